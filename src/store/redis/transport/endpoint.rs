//! Where Redis is, and where connections to it come from.

use std::{sync::Arc, time::Duration};

use redis::AsyncConnectionConfig;
#[cfg(feature = "tls")]
use redis::TlsCertificates;

#[cfg(any(feature = "cluster", feature = "sentinel"))]
use super::topology;
use super::{address, source::Source};
#[cfg(feature = "tls")]
use crate::error::ConfigError;

/// The target of connections.
#[derive(Clone)]
pub(crate) enum Endpoint {
    Address(Box<redis::Client>),
    #[cfg(feature = "cluster")]
    Cluster(Box<topology::Cluster>),
    #[cfg(feature = "sentinel")]
    Sentinel(Box<topology::Sentinels>),
    /// The caller's own connection or pool, with its settings
    Ready(Source),
}

impl Endpoint {
    pub(crate) fn source(&self, connect_timeout: Duration, response_timeout: Duration) -> Source {
        let config = || {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(connect_timeout))
                .set_response_timeout(Some(response_timeout));
            Box::new(config)
        };
        match self {
            Self::Address(client) => Source::Client(client.clone(), config()),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let cluster = (**cluster).clone();
                Source::Cluster(Box::new(cluster.waiting(connect_timeout, response_timeout)))
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => Source::Sentinel(sentinels.clone(), config()),
            Self::Ready(source) => source.clone(),
        }
    }

    /// Returns the address without user and password; `None` for a pool or connection of the
    /// caller's.
    pub(crate) fn shown(&self) -> Option<Arc<str>> {
        match self {
            Self::Address(client) => Some(address::shown(client.get_connection_info()).into()),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => Some(cluster.shown().into()),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => Some(sentinels.shown().into()),
            Self::Ready(_) => None,
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_certificates(
        self,
        certificates: TlsCertificates,
    ) -> Result<Self, ConfigError> {
        match self {
            Self::Address(client) => {
                let info = super::tls::equip(client.get_connection_info(), certificates)?;
                let client = redis::Client::open(info).map_err(|error| address::refused(&error))?;
                Ok(Self::Address(Box::new(client)))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let cluster = cluster.with_certificates(certificates)?;
                Ok(Self::Cluster(Box::new(cluster)))
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => {
                let sentinels = sentinels.with_certificates(certificates)?;
                Ok(Self::Sentinel(Box::new(sentinels)))
            }
            Self::Ready(_) => Err(super::tls::unusable(
                "a pool or connection made elsewhere has its own",
            )),
        }
    }
}
