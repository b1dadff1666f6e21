//! Connections to the master that sentinels name.

use std::sync::Arc;

use deadpool_redis::sentinel::{Connection, Pool};
use redis::{
    ConnectionAddr, ConnectionInfo, RedisConnectionInfo, RedisResult, Role, TlsMode,
    aio::MultiplexedConnection,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use tokio::task::JoinSet;

use super::{
    address::{self, ServerAddress, shown_all, unusable, usable, wants_tls},
    link::{self, Link, checked_out, first_of, io_error, tcp_settings},
    source::{ConnectionSource, Dial},
};
use crate::error::ConfigError;

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
                let master = sentinels.master(&dial).await?;
                link::connect(&master, &dial.config(), dial.traffic).await
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
                    sentinels.tls = Some(if *insecure {
                        TlsMode::Insecure
                    } else {
                        TlsMode::Secure
                    });
                }
                _ => return Err(unusable("a master is reached over TCP")),
            }
        }
        // Fails here, and not at the first request, if there is no sentinel.
        let nodes = sentinels.addresses.clone();
        usable(SentinelClient::build(nodes, String::new(), None, MASTER))?;
        for address in &sentinels.addresses {
            usable(redis::Client::open(address.clone()))?;
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
