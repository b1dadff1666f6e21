//! Sources of connections: an address, several servers, or the caller's own pool or connection.

use std::{sync::Arc, time::Duration};

use deadpool_redis::Pool;
#[cfg(feature = "tls")]
use redis::TlsCertificates;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, RedisFuture, RedisResult, aio::ConnectionLike,
};

#[cfg(feature = "tls")]
use super::tls;
use super::{
    address::{self, ServerAddress, usable},
    link::{self, Link, UserSend, checked_out},
};
use crate::{
    store::{guard::outbox::Nodes, redis::header::Header},
    values::{error::ConfigError, observe::Observers},
};

/// The settings of a connection that is made here.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    /// Records that a server answers.
    pub(crate) nodes: Arc<Nodes>,
    /// Those of the store.
    pub(crate) observers: Observers,
    /// What stands in front of scripts.
    pub(crate) header: Option<Arc<Header>>,
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<TlsCertificates>,
}

impl Dial {
    /// Returns these settings for a connection to one server.
    pub(super) fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
    }

    /// Returns the client of a server, with the store's certificates if it is one over TLS.
    pub(super) fn client(&self, info: &ConnectionInfo) -> RedisResult<Client> {
        #[cfg(feature = "tls")]
        if let Some(certificates) = self
            .certificates
            .clone()
            .filter(|_| address::wants_tls(info))
        {
            return Client::build_with_tls(info.clone(), certificates);
        }
        Client::open(info.clone())
    }

    /// Connects to a server for a question, and not for calls: its bytes say nothing about the
    /// server of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) async fn aside(
        &self,
        info: &ConnectionInfo,
    ) -> RedisResult<(redis::aio::MultiplexedConnection, link::Driver)> {
        let clock = Arc::new(crate::values::clock::SteadyClock::new());
        let nodes = Nodes::new(1, |_| 0, self.response_timeout, clock);
        link::connect(&self.client(info)?, &self.config(), Arc::new(nodes)).await
    }
}

#[derive(Clone)]
pub(crate) struct ConnectionSource {
    pub(super) connect: Arc<dyn Fn(Dial) -> RedisFuture<'static, Link> + Send + Sync>,
    /// The address without user and password; `None` for a pool or connection of the caller's.
    pub(crate) shown: Option<Arc<str>>,
    /// The same for spans; empty for a pool or connection of the caller's.
    pub(crate) server: ServerAddress,
    /// Set if each connection leads to several nodes, and is repaired by redis-rs.
    pub(crate) is_cluster: bool,
    /// Set if a lost connection is replaced; one of the caller's looks after itself.
    pub(super) renews: bool,
    /// Set if a connection sends commands again by itself.
    pub(crate) repeats: bool,
    /// The same nodes, over connections that send nothing twice.
    pub(crate) once: Option<Arc<Self>>,
    /// Set if TLS is used. It is unknown for a pool.
    pub(super) wants_tls: bool,
}

impl ConnectionSource {
    /// Returns a source of connections to one server, without an address to show.
    pub(super) fn new<F>(connect: impl Fn(Dial) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = RedisResult<Link>> + Send + 'static,
    {
        Self {
            connect: Arc::new(move |dial| Box::pin(connect(dial))),
            shown: None,
            server: ServerAddress::default(),
            is_cluster: false,
            renews: true,
            repeats: false,
            once: None,
            wants_tls: true,
        }
    }

    /// Returns the source of connections to one server.
    ///
    /// # Errors
    ///
    /// The platform or the build lacks what the address needs.
    pub(crate) fn address(info: ConnectionInfo) -> Result<Self, ConfigError> {
        let shown = address::shown(&info).into();
        let (server, wants_tls) = (ServerAddress::of(&info), address::wants_tls(&info));
        usable(Client::open(info.clone()))?;
        Ok(Self {
            shown: Some(shown),
            server,
            wants_tls,
            ..Self::new(move |dial| {
                let client = dial.client(&info);
                async move {
                    let made = link::connect(&client?, &dial.config(), dial.nodes).await;
                    made.map(|(connection, driver)| Link::Multiplexed(connection, driver))
                }
            })
        })
    }

    /// Returns a pool as a source.
    ///
    /// A checkout costs a PING, so there is one for each connection and not for each command.
    /// Taking the connection out of the pool leaves the pool its full size for other users.
    pub(crate) fn pool(pool: Pool) -> Self {
        Self::new(move |_| {
            let pool = pool.clone();
            async move {
                let connection = checked_out(pool.get().await)?;
                let connection = deadpool_redis::Connection::take(connection);
                Ok(Link::Multiplexed(connection, None))
            }
        })
    }

    /// Returns a pool of connections to a Cluster as a source. They have the pool's settings.
    #[cfg(feature = "cluster")]
    pub(crate) fn cluster_pool(pool: deadpool_redis::cluster::Pool) -> Self {
        let source = Self::new(move |_| {
            let pool = pool.clone();
            async move {
                let nodes = checked_out(pool.get().await)?;
                let nodes = deadpool_redis::cluster::Connection::take(nodes);
                Ok(Link::Cluster(nodes))
            }
        });
        Self {
            is_cluster: true,
            repeats: true,
            ..source
        }
    }

    /// Returns the user's connection as a source, the only one there is.
    pub(crate) fn by_user<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let send: Arc<UserSend> = Arc::new(move |command| {
            let mut connection = connection.clone();
            Box::pin(async move { connection.req_packed_command(command).await })
        });
        Self {
            renews: false,
            wants_tls: false,
            ..Self::new(move |_| std::future::ready(Ok(Link::User(Arc::clone(&send)))))
        }
    }

    /// Checks that connections made here can use these certificates.
    #[cfg(feature = "tls")]
    pub(crate) fn check(&self, certificates: &TlsCertificates) -> Result<(), ConfigError> {
        tls::check(certificates)?;
        match &self.shown {
            None => Err(tls::unusable(
                "a pool or connection made elsewhere has its own",
            )),
            Some(_) if !self.wants_tls => {
                Err(tls::unusable("TLS needs an address with `rediss://`"))
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) fn connect(&self, dial: Dial) -> RedisFuture<'static, Link> {
        #[cfg(feature = "tls")]
        if self.wants_tls {
            tls::choose_provider();
        }
        (self.connect)(dial)
    }
}
