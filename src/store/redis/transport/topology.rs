//! More than one server: a Cluster, or a master that sentinels watch over.

#[cfg(feature = "cluster")]
pub(crate) use cluster::{Cluster, send_to};
#[cfg(feature = "sentinel")]
pub(crate) use sentinel::{Sentinels, take_master};

fn shown_all(addresses: &[redis::ConnectionInfo]) -> String {
    let shown: Vec<_> = addresses.iter().map(super::address::shown).collect();
    shown.join(", ")
}

#[cfg(feature = "cluster")]
mod cluster {
    use std::time::Duration;

    use redis::{
        Cmd, ConnectionInfo, RedisResult, Value,
        cluster::{ClusterClient, ClusterClientBuilder},
        cluster_async::ClusterConnection,
        cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
    };

    #[cfg(feature = "tls")]
    use super::super::tls;
    use super::super::{
        CONNECT_TIMEOUT, RESPONSE_TIMEOUT,
        link::{To, tcp_settings},
    };
    use super::shown_all;
    #[cfg(feature = "tls")]
    use crate::error::ConfigError;

    /// A lost connection takes two retries: another node is called, it names the node of the hash
    /// slot, and that one is called over a new connection. If all were lost,
    /// [`Connection::send`](super::super::connection::Connection::send) begins again. redis-rs' own
    /// default is 16, over many seconds.
    const RETRIES: u32 = 2;
    /// The longest pause between attempts, in milliseconds; redis-rs' own default is at least 1280.
    const LONGEST_WAIT: u64 = 10;
    /// redis-rs delays every shard while it reconnects to the nodes, so a node may not use all of
    /// the time for connecting to the Cluster: it is tried twice, as a given address and as a node.
    const SHARE_OF_A_NODE: u32 = 4;

    /// The settings of a Cluster.
    #[derive(Clone)]
    pub(crate) struct Cluster {
        nodes: Vec<ConnectionInfo>,
        connect_timeout: Duration,
        response_timeout: Duration,
        retries: u32,
        #[cfg(feature = "tls")]
        certificates: Option<redis::TlsCertificates>,
    }

    impl Cluster {
        pub(crate) fn new(nodes: Vec<ConnectionInfo>) -> Self {
            Self {
                nodes,
                connect_timeout: CONNECT_TIMEOUT,
                response_timeout: RESPONSE_TIMEOUT,
                retries: RETRIES,
                #[cfg(feature = "tls")]
                certificates: None,
            }
        }

        /// Returns the same Cluster, with other timeouts.
        pub(crate) fn waiting(self, connect: Duration, response: Duration) -> Self {
            Self {
                connect_timeout: connect,
                response_timeout: response,
                ..self
            }
        }

        /// Returns the same Cluster, over TLS with certificates.
        #[cfg(feature = "tls")]
        pub(crate) fn with_certificates(
            self,
            certificates: redis::TlsCertificates,
        ) -> Result<Self, ConfigError> {
            if !self.wants_tls() {
                return Err(tls::no_tls());
            }
            Ok(Self {
                certificates: Some(certificates),
                ..self
            })
        }

        #[cfg(feature = "tls")]
        pub(crate) fn wants_tls(&self) -> bool {
            self.nodes.iter().any(tls::is_wanted)
        }

        /// Returns the same Cluster, over connections that send nothing twice.
        ///
        /// With retries, redis-rs sends a command again after a lost connection or a silent node,
        /// when it is unknown whether it ran. It has no such choice for a single command.
        pub(crate) fn once(&self) -> Self {
            Self {
                retries: 0,
                ..self.clone()
            }
        }

        /// Returns whether a command may be sent more than once.
        pub(crate) fn repeats(&self) -> bool {
            self.retries > 0
        }

        fn client(&self) -> RedisResult<ClusterClient> {
            let builder = ClusterClientBuilder::new(self.nodes.iter().cloned());
            #[cfg(feature = "tls")]
            let builder = match &self.certificates {
                Some(certificates) => builder.certs(certificates.clone()),
                None => builder,
            };
            builder
                .connection_timeout(self.connect_timeout / SHARE_OF_A_NODE)
                .response_timeout(self.response_timeout)
                .overall_response_timeout(Some(self.response_timeout))
                .retries(self.retries)
                .min_retry_wait(1)
                .max_retry_wait(LONGEST_WAIT)
                .tcp_settings(tcp_settings())
                .build()
        }

        /// Returns what is wrong without a server: no address, a socket, addresses with different
        /// credentials, TLS that the build lacks.
        pub(crate) fn check(&self) -> RedisResult<()> {
            self.client()?;
            for node in &self.nodes {
                redis::Client::open(node.clone())?;
            }
            Ok(())
        }

        /// Formats its addresses, without users and passwords.
        pub(crate) fn shown(&self) -> String {
            shown_all(&self.nodes)
        }

        pub(crate) async fn connect(&self) -> RedisResult<ClusterConnection> {
            self.client()?.get_async_connection().await
        }
    }

    /// Sends a command to the master of a hash slot, whatever its keys.
    pub(crate) async fn send_to(
        connection: &ClusterConnection,
        to: To<'_>,
        command: &Cmd,
    ) -> RedisResult<Value> {
        let to = match to {
            To::Any => SingleNodeRoutingInfo::Random,
            To::Slot(slot) => {
                SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master))
            }
            To::Key(key) => {
                SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master))
            }
        };
        let to = RoutingInfo::SingleNode(to);
        let mut connection = connection.clone();
        let reply = connection.route_command(command.clone(), to).await;
        reply.and_then(Value::extract_error)
    }
}

#[cfg(feature = "sentinel")]
mod sentinel {
    use deadpool_redis::sentinel::{Connection, Pool};
    use redis::{
        ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisResult, Role,
        TlsMode,
        aio::MultiplexedConnection,
        sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
    };
    use tokio::task::JoinSet;

    use super::super::link::{checked_out, io_error, tcp_settings};
    use super::shown_all;

    /// The settings to find a master.
    #[derive(Clone)]
    pub(crate) struct Sentinels {
        addresses: Vec<ConnectionInfo>,
        master_name: String,
        /// The settings for the master once it is found
        settings: RedisConnectionInfo,
        tls: Option<TlsMode>,
        #[cfg(feature = "tls")]
        certificates: Option<redis::TlsCertificates>,
    }

    impl Sentinels {
        /// Combines the addresses of sentinels with `master`, which is a name, or an address with
        /// the name as its host.
        pub(crate) fn new(addresses: Vec<ConnectionInfo>, master: &str) -> RedisResult<Self> {
            let mut sentinels = Self {
                addresses,
                master_name: master.to_owned(),
                settings: RedisConnectionInfo::default(),
                tls: None,
                #[cfg(feature = "tls")]
                certificates: None,
            };
            if master.contains("://") {
                let info = master.into_connection_info()?;
                sentinels.settings = info.redis_settings().clone();
                match info.addr() {
                    ConnectionAddr::Tcp(name, _) => sentinels.master_name.clone_from(name),
                    ConnectionAddr::TcpTls { host, insecure, .. } => {
                        sentinels.master_name.clone_from(host);
                        sentinels.tls = Some(if *insecure {
                            TlsMode::Insecure
                        } else {
                            TlsMode::Secure
                        });
                    }
                    _ => return Err(io_error("a master is reached over TCP")),
                }
            }
            // Fails here, and not at the first request, if there is no sentinel or the platform
            // lacks what is needed.
            sentinels.plain(sentinels.addresses.clone())?;
            for address in &sentinels.addresses {
                redis::Client::open(address.clone())?;
            }
            Ok(sentinels)
        }

        /// Queries all sentinels at once and returns the first master that confirms its role.
        ///
        /// One client for each of them: redis-rs waits for those named first, and a silent one
        /// would use all of the time for connecting.
        pub(crate) async fn master(&self) -> RedisResult<redis::Client> {
            let mut lookups = JoinSet::new();
            for address in &self.addresses {
                let mut sentinel = self.client(address)?;
                lookups.spawn(async move { sentinel.async_get_client().await });
            }
            let mut failed = io_error("no sentinel answers");
            while let Some(lookup) = lookups.join_next().await {
                match lookup {
                    Ok(Ok(master)) => return Ok(master),
                    Ok(Err(error)) => failed = error,
                    Err(_) => {}
                }
            }
            Err(failed)
        }

        /// Formats the master's name and the sentinels' addresses, without users and passwords.
        pub(crate) fn shown(&self) -> String {
            format!("{} of {}", self.master_name, shown_all(&self.addresses))
        }

        fn client(&self, address: &ConnectionInfo) -> RedisResult<SentinelClient> {
            #[cfg(feature = "tls")]
            if let Some(certificates) = &self.certificates {
                return self.certified(address, certificates);
            }
            self.plain(vec![address.clone()])
        }

        fn plain(&self, addresses: Vec<ConnectionInfo>) -> RedisResult<SentinelClient> {
            let node = SentinelNodeConnectionInfo::default()
                .set_tcp_settings(tcp_settings())
                .set_redis_connection_info(self.settings.clone());
            let node = match self.tls {
                Some(mode) => node.set_tls_mode(mode),
                None => node,
            };
            let kind = SentinelServerType::Master;
            SentinelClient::build(addresses, self.master_name.clone(), Some(node), kind)
        }
    }

    /// The part with certificates: redis-rs takes them by another builder, which has fewer
    /// settings.
    #[cfg(feature = "tls")]
    mod certified {
        use redis::{
            ConnectionInfo, RedisResult, TlsCertificates,
            sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
        };

        use super::{
            super::super::{link::tcp_settings, tls},
            Sentinels,
        };
        use crate::error::ConfigError;

        impl Sentinels {
            /// Returns the same sentinels and master, with certificates for those reached over TLS.
            pub(in super::super::super) fn with_certificates(
                mut self,
                certificates: TlsCertificates,
            ) -> Result<Self, ConfigError> {
                if !self.wants_tls() {
                    return Err(tls::no_tls());
                }
                for address in self.addresses.iter_mut().filter(|it| tls::is_wanted(it)) {
                    *address = tls::equip(address, certificates.clone())?;
                }
                self.certificates = Some(certificates);
                Ok(self)
            }

            pub(in super::super::super) fn wants_tls(&self) -> bool {
                self.tls.is_some() || self.addresses.iter().any(tls::is_wanted)
            }

            pub(crate) fn certified(
                &self,
                address: &ConnectionInfo,
                certificates: &TlsCertificates,
            ) -> RedisResult<SentinelClient> {
                let kind = SentinelServerType::Master;
                let addresses = [address.addr().clone()];
                let mut builder = SentinelClientBuilder::new(addresses, &self.master_name, kind)?
                    .set_client_to_sentinel_tcp_settings(tcp_settings())
                    .set_client_to_sentinel_protocol(address.redis_settings().protocol())
                    .set_client_to_redis_tcp_settings(tcp_settings())
                    .set_client_to_redis_protocol(self.settings.protocol())
                    .set_client_to_redis_db(self.settings.db());
                if let Some(user) = address.redis_settings().username() {
                    builder = builder.set_client_to_sentinel_username(user);
                }
                if let Some(password) = address.redis_settings().password() {
                    builder = builder.set_client_to_sentinel_password(password);
                }
                if let Some(mode) = self.tls {
                    builder = builder
                        .set_client_to_redis_tls_mode(mode)
                        .set_client_to_redis_certificates(certificates.clone());
                }
                if let Some(user) = self.settings.username() {
                    builder = builder.set_client_to_redis_username(user);
                }
                if let Some(password) = self.settings.password() {
                    builder = builder.set_client_to_redis_password(password);
                }
                builder.build()
            }
        }
    }

    /// Takes connections out of a pool until one leads to a master.
    ///
    /// The pool returns its stock first, and a master that was demoted since answers its PING.
    /// Connections to others are dropped, so the stock ends, and the pool then looks the master up
    /// anew.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection in hand.
    pub(crate) async fn take_master(pool: &Pool) -> RedisResult<MultiplexedConnection> {
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
}
