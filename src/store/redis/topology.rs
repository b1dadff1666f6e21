//! More than one server: a Cluster, or a master that sentinels watch over.

#[cfg(feature = "cluster")]
pub(super) use cluster::{Cluster, send_all};
#[cfg(feature = "sentinel")]
pub(super) use sentinel::Sentinels;

#[cfg(feature = "cluster")]
mod cluster {
    use std::time::Duration;

    use redis::{
        ConnectionInfo, Pipeline, RedisError, RedisResult, Value,
        aio::ConnectionLike,
        cluster::{ClusterClient, ClusterClientBuilder},
        cluster_async::ClusterConnection,
    };
    use tokio::task::JoinSet;

    use super::super::tcp_settings;

    /// What one lost connection takes: another node is asked, it names the node of the slot, and that one is asked over a
    /// new connection. If all were lost, [`Connection::send`](super::super::connection::Connection::send) begins again.
    /// redis-rs' own default is 16, over many seconds.
    const RETRIES: u32 = 2;
    /// Between attempts, in milliseconds; redis-rs' own default is at least 1280.
    const LONGEST_WAIT: u64 = 10;
    /// redis-rs holds up every shard while it connects to the nodes anew, so a node may not take all of the time that
    /// connecting to the Cluster may: it is tried twice, as an address that was given and as a node.
    const SHARE_OF_A_NODE: u32 = 4;

    /// How to reach a Cluster.
    #[derive(Clone)]
    pub(in super::super) struct Cluster {
        nodes: Vec<ConnectionInfo>,
        connect_timeout: Duration,
        response_timeout: Duration,
        retries: u32,
    }

    impl Cluster {
        pub(in super::super) fn new(
            nodes: Vec<ConnectionInfo>,
            connect_timeout: Duration,
            response_timeout: Duration,
        ) -> Self {
            Self {
                nodes,
                connect_timeout,
                response_timeout,
                retries: RETRIES,
            }
        }

        /// The same Cluster, over connections that send nothing twice.
        ///
        /// With retries, redis-rs sends a command again after a lost connection or a silent node, where nobody knows
        /// whether it ran. It has no such choice for a single command.
        pub(in super::super) fn once(&self) -> Self {
            Self {
                retries: 0,
                ..self.clone()
            }
        }

        /// Whether a command may be sent more than once.
        pub(in super::super) fn repeats(&self) -> bool {
            self.retries > 0
        }

        fn client(&self) -> RedisResult<ClusterClient> {
            ClusterClientBuilder::new(self.nodes.iter().cloned())
                .connection_timeout(self.connect_timeout / SHARE_OF_A_NODE)
                .response_timeout(self.response_timeout)
                .overall_response_timeout(Some(self.response_timeout))
                .retries(self.retries)
                .min_retry_wait(1)
                .max_retry_wait(LONGEST_WAIT)
                .tcp_settings(tcp_settings())
                .build()
        }

        /// Finds what is wrong without a server: no address, a socket, addresses that differ in credentials, TLS that the
        /// build lacks.
        pub(in super::super) fn check(&self) -> RedisResult<()> {
            self.client()?;
            for node in &self.nodes {
                redis::Client::open(node.clone())?;
            }
            Ok(())
        }

        pub(in super::super) async fn connect(&self) -> RedisResult<ClusterConnection> {
            self.client()?.get_async_connection().await
        }
    }

    /// Sends each command to its own node, all at once: a pipeline of redis-rs goes to one slot, and one that spans
    /// several is refused.
    pub(in super::super) async fn send_all(
        connection: &ClusterConnection,
        commands: &Pipeline,
    ) -> Vec<RedisResult<Value>> {
        let mut calls = JoinSet::new();
        for (index, command) in commands.cmd_iter().enumerate() {
            let (mut connection, command) = (connection.clone(), command.clone());
            calls.spawn(async move { (index, connection.req_packed_command(&command).await) });
        }
        let unsent = || {
            Err(RedisError::from(std::io::Error::from(
                std::io::ErrorKind::Interrupted,
            )))
        };
        let mut replies: Vec<_> = (0..calls.len()).map(|_| unsent()).collect();
        while let Some(call) = calls.join_next().await {
            if let Ok((index, reply)) = call
                && let Some(place) = replies.get_mut(index)
            {
                *place = reply.and_then(Value::extract_error);
            }
        }
        replies
    }
}

#[cfg(feature = "sentinel")]
mod sentinel {
    use redis::{
        AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisResult,
        TlsMode,
        aio::MultiplexedConnection,
        sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
    };
    use tokio::task::JoinSet;

    use super::super::{connection::io_error, tcp_settings};

    /// How to find a master.
    #[derive(Clone)]
    pub(in super::super) struct Sentinels {
        addresses: Vec<ConnectionInfo>,
        master_name: String,
        master: SentinelNodeConnectionInfo,
    }

    impl Sentinels {
        /// `master` is a name, or an address with the name for a host.
        pub(in super::super) fn new(
            addresses: Vec<ConnectionInfo>,
            master: &str,
        ) -> RedisResult<Self> {
            let mut node = SentinelNodeConnectionInfo::default().set_tcp_settings(tcp_settings());
            let mut master_name = master.to_owned();
            if master.contains("://") {
                let info = master.into_connection_info()?;
                node = node.set_redis_connection_info(info.redis_settings().clone());
                match info.addr() {
                    ConnectionAddr::Tcp(name, _) => master_name.clone_from(name),
                    ConnectionAddr::TcpTls { host, insecure, .. } => {
                        master_name.clone_from(host);
                        node = node.set_tls_mode(if *insecure {
                            TlsMode::Insecure
                        } else {
                            TlsMode::Secure
                        });
                    }
                    _ => return Err(io_error("a master is reached over TCP")),
                }
            }
            let sentinels = Self {
                addresses,
                master_name,
                master: node,
            };
            // Fails here, and not at the first request, where there is no sentinel or the build lacks TLS.
            sentinels.client(sentinels.addresses.clone())?;
            for address in &sentinels.addresses {
                redis::Client::open(address.clone())?;
            }
            Ok(sentinels)
        }

        /// Asks all sentinels at once and takes the first master that says it is one.
        ///
        /// One client for each of them: redis-rs waits for those named first, and one that is silent would take all of the
        /// time that connecting may.
        pub(in super::super) async fn connect(
            &self,
            config: &AsyncConnectionConfig,
        ) -> RedisResult<MultiplexedConnection> {
            let mut lookups = JoinSet::new();
            for address in &self.addresses {
                let mut sentinel = self.client(vec![address.clone()])?;
                lookups.spawn(async move { sentinel.async_get_client().await });
            }
            let mut failed = io_error("no sentinel answers");
            while let Some(lookup) = lookups.join_next().await {
                match lookup {
                    Ok(Ok(master)) => {
                        return master
                            .get_multiplexed_async_connection_with_config(config)
                            .await;
                    }
                    Ok(Err(error)) => failed = error,
                    Err(_) => {}
                }
            }
            Err(failed)
        }

        fn client(&self, addresses: Vec<ConnectionInfo>) -> RedisResult<SentinelClient> {
            SentinelClient::build(
                addresses,
                self.master_name.clone(),
                Some(self.master.clone()),
                SentinelServerType::Master,
            )
        }
    }
}
