//! More than one server: a Cluster, or a master that sentinels watch over.

#[cfg(feature = "cluster")]
pub(crate) use cluster::{cluster, send_to};
#[cfg(feature = "sentinel")]
pub(crate) use sentinel::{sentinel, sentinel_pool};

fn shown_all(addresses: &[redis::ConnectionInfo]) -> String {
    let shown: Vec<_> = addresses.iter().map(super::address::shown).collect();
    shown.join(", ")
}

#[cfg(feature = "cluster")]
mod cluster {
    use std::sync::Arc;

    use redis::{
        Cmd, ConnectionInfo, RedisResult, Value,
        cluster::{ClusterClient, ClusterClientBuilder},
        cluster_async::ClusterConnection,
        cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
    };

    use super::{
        super::{
            address::{ServerAddress, wants_tls},
            link::{Link, To, tcp_settings},
            source::{ConnectionSource, Dial},
        },
        shown_all,
    };

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

    /// Returns the source of connections to the nodes of a Cluster, made and repaired by redis-rs.
    ///
    /// With retries, redis-rs sends a command again after a lost connection or a silent node, when
    /// it is unknown whether it ran. It has no such choice for a single command.
    ///
    /// # Errors
    ///
    /// No address, a socket, addresses with different credentials, TLS that the build lacks.
    pub(crate) fn cluster(nodes: Vec<ConnectionInfo>) -> RedisResult<ConnectionSource> {
        let nodes: Arc<[_]> = nodes.into();
        ClusterClientBuilder::new(nodes.iter().cloned()).build()?;
        for node in &*nodes {
            redis::Client::open(node.clone())?;
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
                    async move { client?.get_async_connection().await.map(Link::Cluster) }
                })
            }
        };
        Ok(ConnectionSource {
            once: Some(Arc::new(source(0))),
            ..source(RETRIES)
        })
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
    use std::sync::Arc;

    use deadpool_redis::sentinel::{Connection, Pool};
    use redis::{
        ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisResult, Role,
        TlsMode,
        aio::MultiplexedConnection,
        sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
    };
    use tokio::task::JoinSet;

    use super::{
        super::{
            address::{ServerAddress, wants_tls},
            link::{Link, checked_out, first_of, io_error, tcp_settings},
            source::{ConnectionSource, Dial},
            stream,
        },
        shown_all,
    };

    /// The settings to find a master.
    struct Sentinels {
        addresses: Vec<ConnectionInfo>,
        master_name: String,
        /// The settings for the master once it is found
        settings: RedisConnectionInfo,
        tls: Option<TlsMode>,
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
    ) -> RedisResult<ConnectionSource> {
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
                    let master = sentinels.master(&dial).await?;
                    stream::connect(&master, &dial.config(), dial.traffic).await
                }
            })
        })
    }

    impl Sentinels {
        fn new(addresses: Vec<ConnectionInfo>, master: &str) -> RedisResult<Self> {
            let mut sentinels = Self {
                addresses,
                master_name: master.to_owned(),
                settings: RedisConnectionInfo::default(),
                tls: None,
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
            // Fails here, and not at the first request, if there is no sentinel.
            SentinelClient::build(sentinels.addresses.clone(), String::new(), None, MASTER)?;
            for address in &sentinels.addresses {
                redis::Client::open(address.clone())?;
            }
            Ok(sentinels)
        }

        /// Queries all sentinels at once and returns the first master that confirms its role.
        ///
        /// One client for each of them: redis-rs waits for those named first, and a silent one
        /// would use all of the time for connecting.
        async fn master(&self, dial: &Dial) -> RedisResult<redis::Client> {
            let mut lookups = JoinSet::new();
            for address in &self.addresses {
                let mut sentinel = self.client(address, dial)?;
                lookups.spawn(async move { sentinel.async_get_client().await });
            }
            first_of(lookups, io_error("no sentinel answers")).await
        }

        fn client(&self, address: &ConnectionInfo, dial: &Dial) -> RedisResult<SentinelClient> {
            let mut builder =
                SentinelClientBuilder::new([address.addr().clone()], &self.master_name, MASTER)?
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
            if let Some(user) = self.settings.username() {
                builder = builder.set_client_to_redis_username(user);
            }
            if let Some(password) = self.settings.password() {
                builder = builder.set_client_to_redis_password(password);
            }
            if let Some(mode) = self.tls {
                builder = builder.set_client_to_redis_tls_mode(mode);
            }
            #[cfg(feature = "tls")]
            if let Some(certificates) = &dial.certificates {
                if wants_tls(address) {
                    builder = builder.set_client_to_sentinel_certificates(certificates.clone());
                }
                if self.tls.is_some() {
                    builder = builder.set_client_to_redis_certificates(certificates.clone());
                }
            }
            builder.build()
        }
    }

    const MASTER: SentinelServerType = SentinelServerType::Master;

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
    /// anew.
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
}
