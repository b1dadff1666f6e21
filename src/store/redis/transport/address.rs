//! Parses addresses of servers, says which part of one is wrong, and removes secrets for logs.

use std::{fmt, sync::Arc};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisResult};
use url::{ParseError, Url};

use super::link::tcp_settings;
use crate::values::error::{ConfigError, config_error};

const FORM: &str = "write `redis://[user:password@]host[:port][/db]`";
const TCP: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];
const SOCKET: [&str; 3] = ["unix", "redis+unix", "valkey+unix"];

/// Parses an address, for connections with our TCP settings, or returns which part of it is wrong.
pub(crate) fn read(address: &str) -> Result<ConnectionInfo, ConfigError> {
    check(address).map_err(wrong)?;
    let info = usable(address.into_connection_info())?.set_tcp_settings(tcp_settings());
    match info.redis_settings().db() {
        db @ ..0 => Err(wrong(format!("the database {db} is below 0"))),
        _ => Ok(info),
    }
}

/// Returns the first part that is wrong of an address over TCP. Shows nothing that may be a
/// password.
fn check(address: &str) -> Result<(), String> {
    let (scheme, rest) = address.split_once("://").ok_or("the scheme is missing")?;
    if SOCKET.contains(&scheme) {
        return Ok(());
    }
    if !TCP.contains(&scheme) {
        return Err("the scheme is not `redis`, `rediss` or `redis+unix`".to_owned());
    }
    let user = rest.rsplit_once('@').map(|(user, _)| user);
    // It would be parsed with a part of the password as its host.
    if user.is_some_and(|user| user.contains(['/', '?', '#', '\\'])) {
        return Err("user or password contain `/`, `?`, `#` or `\\`: \
            write `%2F`, `%3F`, `%23` or `%5C`"
            .to_owned());
    }
    let url = Url::parse(address).map_err(|error| error.to_string())?;
    let database = url.path().trim_matches('/');
    match url.host_str().unwrap_or_default() {
        "" => Err(ParseError::EmptyHost.to_string()),
        host @ ("0.0.0.0" | "[::]") => Err(format!(
            "the host {host} is an address to listen on: write the address of the server"
        )),
        _ if url.port() == Some(0) => Err("the port 0 is not valid: omit it for 6379".to_owned()),
        _ if database.is_empty() || database.parse::<i64>().is_ok() => Ok(()),
        // Without a user, it may be a part of a password.
        _ if user.is_none() => Err("the database is no number".to_owned()),
        _ => Err(format!("the database {database:?} is no number")),
    }
}

/// Returns what redis-rs made of an address, or its error by the category: the whole error may
/// repeat a password.
pub(super) fn usable<T>(made: RedisResult<T>) -> Result<T, ConfigError> {
    made.map_err(|error| {
        #[cfg(not(feature = "tls"))]
        if error.to_string().contains("with TLS") {
            return unusable("TLS needs the feature `tls`");
        }
        unusable(error.category())
    })
}

/// Returns whether an address is one over TLS.
pub(super) fn wants_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Formats an address without user and password.
pub(crate) fn shown(info: &ConnectionInfo) -> String {
    let (scheme, host, port) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => ("redis", host, port),
        ConnectionAddr::TcpTls { host, port, .. } => ("rediss", host, port),
        ConnectionAddr::Unix(path) => return format!("redis+unix://{}", path.display()),
        _ => return "an address".to_owned(),
    };
    let host = if host.contains(':') {
        &format!("[{host}]")
    } else {
        host
    };
    match info.redis_settings().db() {
        0 => format!("{scheme}://{host}:{port}"),
        db => format!("{scheme}://{host}:{port}/{db}"),
    }
}

/// Formats several addresses without user and password.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(super) fn shown_all(addresses: &[ConnectionInfo]) -> String {
    addresses.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// A server by the conventions of OpenTelemetry for spans, without user and password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    /// The host or the socket; of several nodes, the addresses that were configured.
    pub(crate) address: Option<Arc<str>>,
    /// `None` for a socket, and for several nodes.
    pub(crate) port: Option<u16>,
    /// The number of the database, which is a text there.
    pub(crate) database: Option<Arc<str>>,
}

impl ServerAddress {
    /// Returns the address of one server.
    pub(super) fn of(info: &ConnectionInfo) -> Self {
        let (address, port) = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (Some(host.as_str().into()), Some(*port))
            }
            ConnectionAddr::Unix(path) => (Some(path.to_string_lossy().into()), None),
            _ => (None, None),
        };
        let database = Some(info.redis_settings().db().to_string().into());
        Self {
            address,
            port,
            database,
        }
    }

    /// Returns the address of nodes that are `shown` so: which of them a call reaches is not known.
    pub(super) fn several(shown: &Arc<str>, database: i64) -> Self {
        Self {
            address: Some(Arc::clone(shown)),
            port: None,
            database: Some(database.to_string().into()),
        }
    }
}

fn wrong(reason: impl fmt::Display) -> ConfigError {
    unusable(format!("{reason}; {FORM}"))
}

pub(super) fn unusable(reason: impl fmt::Display) -> ConfigError {
    config_error!(Store: "the address of Redis cannot be read: {reason}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::redis::RedisStore;

    #[test]
    fn the_part_at_fault_is_named() {
        for (address, part) in [
            ("", "the scheme is missing"),
            ("localhost:6379", "the scheme is missing"),
            ("http://localhost", "the scheme is not"),
            ("redis://", "empty host"),
            ("redis://:secret@", "empty host"),
            ("redis://a b/", "invalid domain character"),
            ("redis://[::1/", "invalid IPv6 address"),
            ("redis://0.0.0.0/", "the host 0.0.0.0"),
            ("redis://[::]/", "the host [::]"),
            ("redis://localhost:99999", "invalid port number"),
            ("redis://u:p@localhost:http", "invalid port number"),
            ("redis://localhost:0", "the port 0"),
            ("redis://localhost/orders", "the database is no number"),
            (
                "redis://u:p@localhost/orders",
                "the database \"orders\" is no number",
            ),
            ("redis://localhost/-1", "the database -1 is below 0"),
            ("redis://user:se/cret@localhost", "user or password"),
            ("redis://user:12/3@localhost", "user or password"),
        ] {
            let error = read(address).unwrap_err().to_string();
            assert!(error.contains(part), "{address}: {error}");
            assert!(
                error.contains("`redis://[user:password@]host[:port][/db]`"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_address_is_shown_without_its_secrets() {
        for (address, expected) in [
            ("redis://localhost", "redis://localhost:6379"),
            ("redis://user:secret@[::1]:7/3", "redis://[::1]:7/3"),
            (
                "valkey://:secret@shop.example/0",
                "redis://shop.example:6379",
            ),
            #[cfg(feature = "tls")]
            ("rediss://user:secret@a:1/", "rediss://a:1"),
            (
                "redis+unix:///run/redis?pass=secret",
                "redis+unix:///run/redis",
            ),
        ] {
            assert_eq!(shown(&read(address).unwrap()), expected);
        }
    }

    #[test]
    fn a_server_has_host_port_and_database_apart() {
        for (address, host, port, database) in [
            ("redis://localhost", "localhost", Some(6379), "0"),
            ("redis://user:secret@[::1]:7/3", "::1", Some(7), "3"),
            #[cfg(feature = "tls")]
            ("rediss://user:secret@a:1/", "a", Some(1), "0"),
            (
                "redis+unix:///run/redis?pass=secret&db=2",
                "/run/redis",
                None,
                "2",
            ),
        ] {
            let expected = ServerAddress {
                address: Some(host.into()),
                port,
                database: Some(database.into()),
            };
            assert_eq!(
                ServerAddress::of(&read(address).unwrap()),
                expected,
                "{address}"
            );
        }
    }

    /// Passwords as people write them, also with characters that have a meaning in an address.
    fn password() -> impl Strategy<Value = String> {
        "[a-z0-9/?#@:%\\[\\]\\\\ <>|^&=+é-]{0,8}".prop_map(|noise| format!("Sesame{noise}Sesame"))
    }

    fn address() -> impl Strategy<Value = (String, String)> {
        let scheme = prop::sample::select(vec!["redis", "rediss", "redis+unix", "http", ""]);
        let between = prop::sample::select(vec!["://", ":/", "//", ":", ""]);
        let host = prop::sample::select(vec![
            "@localhost",
            "@localhost:6379/0",
            "@a:b",
            "@a/b",
            "@[::1",
            "@",
            "",
            "/",
            "/0",
            "?x=1",
        ]);
        let user = prop::sample::select(vec!["user:", ":", ""]);
        (scheme, between, user, password(), host).prop_map(
            |(scheme, between, user, password, host)| {
                let address = format!("{scheme}{between}{user}{password}{host}");
                (address, password)
            },
        )
    }

    proptest! {
        /// The text after the last `@` is a host, and so is a bare name after the scheme: these are
        /// shown.
        #[test]
        fn no_password_is_ever_shown((address, password) in address()) {
            let has_host = address.contains(&format!("{password}@"));
            prop_assume!(has_host || !password.contains('@'));
            prop_assume!(has_host || !address.contains(&format!("://{password}")));
            let builder = RedisStore::builder(&address);
            let mut shown = format!("{builder:?}");
            match builder.build() {
                Ok(store) => shown += &format!("{store:?}"),
                Err(error) => shown += &format!("{error} {error:?}"),
            }
            prop_assert!(!shown.contains("Sesame"), "{}: {}", address, shown);
        }
    }
}
