//! Connections to the nodes of a Cluster.

use std::sync::Arc;

use redis::{
    Cmd, ConnectionInfo, RedisError, RedisResult, Value,
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};

use tokio::task::JoinSet;

use super::{
    address::{ServerAddress, shown_all, usable, wants_tls},
    link::{Link, To, first_of, has_hung_up, is_said, tcp_settings},
    source::{ConnectionSource, Dial},
};
use crate::values::error::ConfigError;

/// A lost connection takes two retries: another node is called, it names the node of the hash
/// slot, and that one is called over a new connection. If all were lost,
/// [`Connection::send`](super::connection::Connection::send) begins again. redis-rs' own
/// default is 16, over many seconds.
const RETRIES: u32 = 2;
/// The longest pause between attempts, in milliseconds; redis-rs' own default is at least 1280.
const LONGEST_WAIT: u64 = 10;
/// redis-rs delays every shard while it reconnects to the nodes, so a node may not use all of
/// the time for connecting to the Cluster: it is tried twice, as a given address and as a node.
const SHARE_OF_A_NODE: u32 = 4;

/// Returns the source of connections to the nodes of a Cluster, made and repaired by redis-rs.
///
/// With retries, redis-rs sends a command again after a lost connection or a silent node, when
/// it is unknown whether it ran. It has no such choice for a single command.
///
/// # Errors
///
/// No address, a socket, addresses with different credentials, TLS that the build lacks.
pub(crate) fn cluster(nodes: Vec<ConnectionInfo>) -> Result<ConnectionSource, ConfigError> {
    let nodes: Arc<[_]> = nodes.into();
    usable(ClusterClientBuilder::new(nodes.iter().cloned()).build())?;
    for node in &*nodes {
        usable(redis::Client::open(node.clone()))?;
    }
    let shown: Arc<str> = shown_all(&nodes).into();
    let source = |retries| {
        let nodes = Arc::clone(&nodes);
        ConnectionSource {
            shown: Some(Arc::clone(&shown)),
            // A Cluster has no other database.
            server: ServerAddress::several(&shown, 0),
            is_cluster: true,
            repeats: retries > 0,
            wants_tls: nodes.iter().any(wants_tls),
            ..ConnectionSource::new(move |dial| {
                let client = client(&nodes, retries, &dial);
                let nodes = Arc::clone(&nodes);
                async move {
                    match client?.get_async_connection().await {
                        Ok(connection) => Ok(Link::Cluster(connection)),
                        Err(error) => Err(ask_why(&nodes, dial).await.unwrap_or(error)),
                    }
                }
            })
        }
    };
    Ok(ConnectionSource {
        once: Some(Arc::new(source(0))),
        ..source(RETRIES)
    })
}

/// Returns what a node says to a client that it refuses, if any does: redis-rs does not pass it on.
async fn ask_why(nodes: &[ConnectionInfo], dial: Dial) -> Option<RedisError> {
    let mut refused = JoinSet::new();
    for node in nodes {
        let (node, mut dial) = (node.clone(), dial.clone());
        // The rest of the time for connecting went into the attempt.
        dial.connect_timeout /= SHARE_OF_A_NODE;
        refused.spawn(async move {
            match dial.aside(&node).await {
                Err(error) if is_said(&error) || has_hung_up(&error) => Ok(error),
                _ => Err(()),
            }
        });
    }
    first_of(refused, ()).await.ok()
}

fn client(nodes: &[ConnectionInfo], retries: u32, dial: &Dial) -> RedisResult<ClusterClient> {
    let builder = ClusterClientBuilder::new(nodes.iter().cloned());
    #[cfg(feature = "tls")]
    let builder = match &dial.certificates {
        Some(certificates) => builder.certs(certificates.clone()),
        None => builder,
    };
    builder
        .connection_timeout(dial.connect_timeout / SHARE_OF_A_NODE)
        .response_timeout(dial.response_timeout)
        .overall_response_timeout(Some(dial.response_timeout))
        .retries(retries)
        .min_retry_wait(1)
        .max_retry_wait(LONGEST_WAIT)
        .tcp_settings(tcp_settings())
        .build()
}

/// Sends a command to the master of a hash slot, whatever its keys.
pub(crate) async fn send_to(
    connection: &ClusterConnection,
    to: To<'_>,
    command: &Cmd,
) -> RedisResult<Value> {
    let to = match to {
        To::Any => SingleNodeRoutingInfo::Random,
        To::Slot(slot) => SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master)),
        To::Key(key) => SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master)),
    };
    let to = RoutingInfo::SingleNode(to);
    let mut connection = connection.clone();
    let reply = connection.route_command(command.clone(), to).await;
    reply.and_then(Value::extract_error)
}
