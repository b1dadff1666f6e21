//! Addresses: which part of one is wrong, and what may be logged of one.

use std::{fmt, net::Ipv6Addr};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

use crate::error::{ConfigError, config_error};

const FORM: &str = "write `redis://[user:password@]host[:port][/db]`";
const TCP: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];
const SOCKET: [&str; 3] = ["unix", "redis+unix", "valkey+unix"];

/// Parses an address, or returns which part of it is wrong.
pub(crate) fn read(address: &str) -> Result<ConnectionInfo, ConfigError> {
    // First: an address with a stray `@` may be parsed with a part of the password as its host.
    let parts = Parts::of(address).map_err(wrong)?;
    let info = address.into_connection_info().map_err(|error| {
        parts.as_ref().map_or_else(
            || refused(&error),
            |parts| parts.wrong().map_or_else(|| refused(&error), wrong),
        )
    })?;
    if parts.is_some_and(|parts| parts.port == Some("0")) {
        return Err(wrong("the port 0 is not valid: omit it for 6379"));
    }
    match info.redis_settings().db() {
        db @ ..0 => Err(wrong(format!("the database {db} is below 0"))),
        _ => Ok(info),
    }
}

/// Describes redis-rs' error by its category: the whole error may repeat a password.
pub(crate) fn refused(error: &RedisError) -> ConfigError {
    #[cfg(not(feature = "tls"))]
    if error.to_string().contains("with TLS") {
        return unusable("TLS needs the feature `tls`");
    }
    unusable(error.category())
}

/// Formats an address without user and password.
pub(crate) fn shown(info: &ConnectionInfo) -> String {
    let (scheme, place) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => ("redis", (host, port)),
        ConnectionAddr::TcpTls { host, port, .. } => ("rediss", (host, port)),
        ConnectionAddr::Unix(path) => return format!("redis+unix://{}", path.display()),
        _ => return "an address".to_owned(),
    };
    let (host, port) = place;
    let database = match info.redis_settings().db() {
        0 => String::new(),
        db => format!("/{db}"),
    };
    if host.contains(':') {
        format!("{scheme}://[{host}]:{port}{database}")
    } else {
        format!("{scheme}://{host}:{port}{database}")
    }
}

fn wrong(reason: impl fmt::Display) -> ConfigError {
    unusable(format!("{reason}; {FORM}"))
}

fn unusable(reason: impl fmt::Display) -> ConfigError {
    config_error!(Store: "the address of Redis cannot be read: {reason}")
}

/// The parts of an address over TCP that hold no secret.
struct Parts<'a> {
    /// True if there is a user or a password. If not, the supposed host and port may be these.
    has_user: bool,
    host: &'a str,
    port: Option<&'a str>,
    database: &'a str,
}

impl<'a> Parts<'a> {
    /// Splits an address; `None` for one of a socket. Errors show nothing of the address.
    fn of(address: &'a str) -> Result<Option<Self>, String> {
        let Some((scheme, rest)) = address.split_once("://") else {
            return Err("the scheme is missing".to_owned());
        };
        if SOCKET.contains(&scheme) {
            return Ok(None);
        }
        if !TCP.contains(&scheme) {
            return Err("the scheme is not `redis`, `rediss` or `redis+unix`".to_owned());
        }
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        if user.is_some_and(|user| user.contains(['/', '?', '#', '\\'])) {
            return Err("user or password contain `/`, `?`, `#` or `\\`: \
                write `%2F`, `%3F`, `%23` or `%5C`"
                .to_owned());
        }
        let (place, rest) = place.split_at(place.find(['/', '?', '#']).unwrap_or(place.len()));
        let bracketed = place.find(']').filter(|_| place.starts_with('['));
        let (host, port) = match bracketed {
            Some(end) => (&place[..=end], place[end + 1..].strip_prefix(':')),
            None => match place.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let database = rest.split(['?', '#']).next().unwrap_or_default();
        Ok(Some(Self {
            has_user: user.is_some(),
            host,
            port,
            database: database.trim_matches('/'),
        }))
    }

    /// Returns the first part that is wrong.
    fn wrong(&self) -> Option<String> {
        if self.host.is_empty() {
            return Some("the host is missing".to_owned());
        }
        if let Some(port) = self.port.filter(|port| port.parse::<u16>().is_err()) {
            return Some(match self.has_user {
                true => format!("the port {port:?} is no number from 1 to 65535"),
                // It may be a password, if the host was forgotten.
                false => "the port is no number from 1 to 65535".to_owned(),
            });
        }
        if !self.database.is_empty() && self.database.parse::<i64>().is_err() {
            return Some(match self.has_user {
                true => format!("the database {:?} is no number", self.database),
                false => "the database is no number".to_owned(),
            });
        }
        let host = self.host.trim_matches(['[', ']']);
        let is_v6 = self.host.starts_with('[');
        if is_v6 && (!self.host.ends_with(']') || host.parse::<Ipv6Addr>().is_err()) {
            return Some("the host is no IPv6 address in brackets".to_owned());
        }
        if matches!(host, "0.0.0.0" | "::") {
            return Some(format!(
                "the host {host} is an address to listen on: write the address of the server"
            ));
        }
        let odd = |it: char| it.is_whitespace() || it.is_control() || "<>^|%\\".contains(it);
        host.contains(odd)
            .then(|| "the host has invalid characters".to_owned())
    }
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
            ("redis://", "the host is missing"),
            ("redis://:secret@", "the host is missing"),
            ("redis://a b/", "the host has invalid characters"),
            ("redis://[::1/", "the host is no IPv6"),
            ("redis://0.0.0.0/", "the host 0.0.0.0"),
            ("redis://localhost:99999", "the port is no number"),
            (
                "redis://u:p@localhost:http",
                "the port \"http\" is no number",
            ),
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

    /// Passwords as people write them, also with characters that have a meaning in an address.
    fn password() -> impl Strategy<Value = String> {
        "[a-z0-9/?#@:%\\[\\]\\\\ <>|^&=+é-]{0,8}".prop_map(|noise| format!("Sesame{noise}Sesame"))
    }

    fn address() -> impl Strategy<Value = (String, String)> {
        let scheme = prop::sample::select(vec!["redis", "rediss", "redis+unix", "http", ""]);
        let between = prop::sample::select(vec!["://", ":/", "//", ":", ""]);
        let place = prop::sample::select(vec![
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
        (scheme, between, user, password(), place).prop_map(
            |(scheme, between, user, password, place)| {
                let address = format!("{scheme}{between}{user}{password}{place}");
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
