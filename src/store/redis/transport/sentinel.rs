//! Connections to the master that sentinels name.

use std::sync::Arc;

use deadpool_redis::sentinel::{Connection, Pool};
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    RedisResult, Role, aio::MultiplexedConnection,
};
use tokio::task::JoinSet;

use super::{
    address::{self, ServerAddress, shown_all, unusable, usable, wants_tls},
    link::{self, Link, checked_out, first_of, io_error, tcp_settings},
    source::{ConnectionSource, Dial},
};
use crate::values::error::ConfigError;

/// The settings to find a master.
struct Sentinels {
    addresses: Vec<ConnectionInfo>,
    master_name: String,
    /// The settings for the master once it is found
    settings: RedisConnectionInfo,
    /// Set if the master is reached over TLS; true if its certificate is not checked
    tls: Option<bool>,
}

/// Returns the source of connections to the master that sentinels name at the time.
///
/// `master` is a name, or an address with the name as its host.
///
/// # Errors
///
/// There is no sentinel, or the platform or the build lacks what an address needs.
pub(crate) fn sentinel(
    addresses: Vec<ConnectionInfo>,
    master: &str,
) -> Result<ConnectionSource, ConfigError> {
    let sentinels = Arc::new(Sentinels::new(addresses, master)?);
    let shown = shown_all(&sentinels.addresses);
    let shown: Arc<str> = format!("{} of {shown}", sentinels.master_name).into();
    Ok(ConnectionSource {
        server: ServerAddress::several(&shown, sentinels.settings.db()),
        shown: Some(shown),
        wants_tls: sentinels.tls.is_some() || sentinels.addresses.iter().any(wants_tls),
        ..ConnectionSource::new(move |dial| {
            let sentinels = Arc::clone(&sentinels);
            async move {
                let master = dial.client(&sentinels.master(&dial).await?)?;
                let made = link::connect(&master, &dial.config(), dial.nodes).await;
                made.map(|(connection, driver)| Link::Multiplexed(connection, driver))
            }
        })
    })
}

impl Sentinels {
    fn new(addresses: Vec<ConnectionInfo>, master: &str) -> Result<Self, ConfigError> {
        let mut sentinels = Self {
            addresses,
            master_name: master.to_owned(),
            settings: RedisConnectionInfo::default(),
            tls: None,
        };
        if master.contains("://") {
            let info = address::read(master)?;
            sentinels.settings = info.redis_settings().clone();
            match info.addr() {
                ConnectionAddr::Tcp(name, _) => sentinels.master_name.clone_from(name),
                ConnectionAddr::TcpTls { host, insecure, .. } => {
                    sentinels.master_name.clone_from(host);
                    sentinels.tls = Some(*insecure);
                }
                _ => return Err(unusable("a master is reached over TCP")),
            }
        }
        // Fails here, and not at the first request.
        if sentinels.addresses.is_empty() {
            return Err(unusable("no sentinel is named"));
        }
        for address in &sentinels.addresses {
            usable(redis::Client::open(address.clone()))?;
        }
        Ok(sentinels)
    }

    /// Queries all sentinels at once and returns the first master that confirms its role.
    ///
    /// # Cancel safety
    ///
    /// Dropping it closes the connections that it has opened.
    async fn master(self: &Arc<Self>, dial: &Dial) -> RedisResult<ConnectionInfo> {
        let mut lookups = JoinSet::new();
        for sentinel in self.addresses.clone() {
            let (sentinels, dial) = (Arc::clone(self), dial.clone());
            lookups.spawn(async move { sentinels.master_by(&sentinel, &dial).await });
        }
        first_of(lookups, io_error("no sentinel answers")).await
    }

    /// Asks one sentinel for the master, and that one for its role.
    async fn master_by(
        &self,
        sentinel: &ConnectionInfo,
        dial: &Dial,
    ) -> RedisResult<ConnectionInfo> {
        // It has no databases.
        let settings = sentinel.redis_settings().clone().set_db(0);
        let sentinel = sentinel.clone().set_redis_settings(settings);
        let (mut connection, _driver) = dial.aside(&sentinel).await?;
        let mut lookup = redis::cmd("SENTINEL");
        lookup.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master_name);
        let found: Option<(String, u16)> = lookup.query_async(&mut connection).await?;
        let (host, port) = found.ok_or_else(unknown)?;
        let address = match self.tls {
            Some(insecure) => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params: None,
            },
            None => ConnectionAddr::Tcp(host, port),
        };
        let master = address.into_connection_info()?;
        let master = master
            .set_redis_settings(self.settings.clone())
            .set_tcp_settings(tcp_settings());
        let (mut connection, _driver) = dial.aside(&master).await?;
        match redis::cmd("ROLE").query_async(&mut connection).await? {
            Role::Primary { .. } => Ok(master),
            _ => Err(unknown()),
        }
    }
}

/// Returns the error for a master that no sentinel names, or that is none.
fn unknown() -> RedisError {
    let words = "no master by this name";
    RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, words))
}

/// Returns a pool of connections to the master of sentinels as a source.
pub(crate) fn sentinel_pool(pool: Pool) -> ConnectionSource {
    ConnectionSource::new(move |dial| {
        let pool = pool.clone();
        async move {
            let mut connection = take_master(&pool).await?;
            // `deadpool_redis` has no such setting.
            connection.set_response_timeout(dial.response_timeout);
            Ok(Link::Multiplexed(connection, None))
        }
    })
}

/// Takes connections out of a pool until one leads to a master.
///
/// The pool returns its stock first, and a master that was demoted since answers its PING.
/// Connections to others are dropped, so the stock ends, and the pool then looks the master up
/// again.
///
/// # Cancel safety
///
/// Dropping the future closes the connection in hand.
async fn take_master(pool: &Pool) -> RedisResult<MultiplexedConnection> {
    let mut failed = io_error("the pool has no connection to a master");
    for _ in 0..=pool.status().max_size {
        let mut connection = Connection::take(checked_out(pool.get().await)?);
        match redis::cmd("ROLE")
            .query_async::<Role>(&mut connection)
            .await
        {
            Ok(Role::Primary { .. }) => return Ok(connection),
            Ok(_) => {}
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
