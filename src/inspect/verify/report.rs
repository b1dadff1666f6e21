//! The report of a check of servers, with a remedy for each finding.

use std::{cmp::Reverse, fmt, time::Duration};

#[cfg(feature = "serde")]
use serde::ser::{Serialize, Serializer};

use super::engine::{self, Known};
use crate::inspect::finding::{Finding, Severity, add, finding, write_findings};
#[cfg(feature = "serde")]
use crate::inspect::{members, millis};

/// The result of [`RedisStore::verify`](crate::RedisStore::verify). `Display` prints it on a page.
///
/// With the feature `serde` it is serialized as a map: `findings`, and `servers`, the server or the
/// masters of a Cluster, each with its `address`, `engine` (its row in
/// [`docs::engines`](crate::docs::engines)), `version`, `clock_ahead_ms`, `round_trip_ms` and its
/// own `findings`.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// The server, or the masters of a Cluster
    pub(super) servers: Vec<VerifiedServer>,
    /// Findings that belong to no single server
    pub(super) findings: Vec<Finding>,
}

impl Verification {
    /// Returns all findings, the worst first, those of several servers included.
    pub fn findings(&self) -> Vec<Finding> {
        let of_servers = self.servers.iter().flat_map(|server| &server.findings);
        let mut findings: Vec<_> = self.findings.iter().chain(of_servers).cloned().collect();
        findings.sort_by_key(|finding| Reverse(finding.severity()));
        findings
    }

    /// Returns the worst severity; `None` if there are no findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings().first().map(Finding::severity)
    }
}

/// A server, as it was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VerifiedServer {
    /// Its address; only for masters of a Cluster
    pub(super) address: Option<String>,
    /// Its row in `docs::engines`; `None` if it has none, or the user may not see it
    pub(super) engine: Option<&'static str>,
    /// Its name and version, as `Redis 7.2.11`; `None` if the user may not see it
    pub(super) version: Option<String>,
    /// The distance between its clock and this process's, and whether it is ahead; `None` if it is
    /// unknown
    pub(super) clock: Option<(Duration, bool)>,
    /// The round trip of that query: the distance is exact to half of it
    pub(super) round_trip: Duration,
    /// The findings about this server
    pub(super) findings: Vec<Finding>,
}

#[cfg(feature = "serde")]
impl Serialize for Verification {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        members!(to, "findings": self.findings(), "servers": self.servers)
    }
}

#[cfg(feature = "serde")]
impl Serialize for VerifiedServer {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let clock = self.clock;
        let ahead = clock.map(|(apart, ahead)| millis(apart) * if ahead { 1 } else { -1 });
        members!(to,
            "address": self.address, "engine": self.engine, "version": self.version,
            "clock_ahead_ms": ahead, "round_trip_ms": millis(self.round_trip),
            "findings": self.findings,
        )
    }
}

pub(super) fn command_refused(command: &str) -> Finding {
    let allowed = command.to_lowercase();
    let verb = match command {
        "DEL" => "delete",
        "RENAME" => "rename",
        _ => {
            return finding!(Error "command_refused": "{command} is refused: allow it with \
                `ACL SETUSER .. +{allowed}`, and do not rename it; the guide has all commands");
        }
    };
    finding!(Note "command_refused": "the user may not call {command}, which `RateLimiter::{verb}` \
        needs: if you use that, allow it with `ACL SETUSER .. +{allowed}`")
}

pub(super) fn not_understood(command: &str, said: &str) -> Finding {
    // It may still work: only the check sends such arguments.
    let severity = if command.starts_with("EVAL") {
        Severity::Error
    } else {
        Severity::Warning
    };
    let said = said.trim_end().escape_debug();
    finding!((severity) "not_understood": "the reply to {command} is `{said}`, which this version \
        does not know: ask the server's operator whether it may be called, and report it")
}

pub(super) fn replica() -> Finding {
    finding!(Error "replica": "it is a replica, which grants nothing: use the master's address, or \
        `RedisStore::sentinel`")
}

pub(super) fn node_of_cluster() -> Finding {
    finding!(Error "node_of_cluster": "it is a node of a Cluster, which refuses other nodes' hash \
        slots: use `RedisStore::cluster`")
}

impl VerifiedServer {
    /// Adds a finding, if another part of the check has not found it.
    pub(super) fn add(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// Adds what the server cannot compile of a script.
    pub(super) fn add_unreadable(&mut self, faults: &[String]) {
        for fault in faults.iter().filter(|fault| !fault.is_empty()) {
            let fault = fault.escape_debug();
            self.add(
                finding!(Error "script_unreadable": "a script cannot be compiled, {fault}: \
                use Redis or Valkey, because this server has another Lua"),
            );
        }
    }

    /// Reads the reply of INFO. `in_cluster` is set if the store is built for a Cluster.
    pub(super) fn read(&mut self, info: &str, in_cluster: bool) {
        let field = |name: &str| engine::field(info, name);
        let known = Known::read(info);
        self.engine = known.row();
        if let Some((product, version)) = known.version {
            self.findings.extend(look_at_version(product, version));
            // A service runs the engine of another.
            let of = known.row().filter(|row| *row != product);
            let of = of.map_or_else(String::new, |row| format!("{row}, "));
            self.version = Some(format!("{of}{product} {version}"));
        }
        self.findings.extend(known.untested());
        // The latter is Valkey's word.
        let mode = field("redis_mode").or_else(|| field("server_mode"));
        if mode == Some("sentinel") {
            add!(self.findings, Error "sentinel": "it is a sentinel, which keeps no limits: use \
                `RedisStore::sentinel`");
        }
        // The latter is Dragonfly's word.
        if matches!(field("role"), Some("slave" | "replica")) {
            self.findings.push(replica());
        }
        if field("cluster_enabled") == Some("1") && !in_cluster {
            self.findings.push(node_of_cluster());
        }
        if let Some(policy) = field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
            let (severity, when) = match field("maxmemory") {
                None | Some("0") => (Severity::Note, "would evict keys, if it had a `maxmemory`,"),
                Some(_) => (Severity::Warning, "evicts keys"),
            };
            let policy = policy.escape_debug();
            add!(self.findings, (severity) "evicts": "it {when} when its memory is used up, by \
                {policy}, and limits start over: use a server with `maxmemory-policy noeviction` \
                for the limiters");
        }
    }
}

/// The first release of each line without the four holes in Lua of October 2025 (CVE-2025-49844,
/// 46817, 46818 and 46819; see Redis' advisory of that month, and Valkey's releases).
const FIXED: &[(&str, [u32; 3])] = &[
    ("Redis", [6, 2, 20]),
    ("Redis", [7, 2, 11]),
    ("Redis", [7, 4, 6]),
    ("Redis", [8, 0, 4]),
    ("Redis", [8, 2, 2]),
    ("Valkey", [7, 2, 11]),
    ("Valkey", [8, 0, 6]),
    ("Valkey", [8, 1, 4]),
];

/// Returns what is known of a version of Redis or Valkey. Others have numbers of their own.
fn look_at_version(product: &str, version: &str) -> Vec<Finding> {
    if !["Redis", "Valkey"].contains(&product) {
        return Vec::new();
    }
    // The server wrote it: characters that could steer a terminal are escaped.
    let full = format!("{product} {}", version.escape_debug());
    let numbers = version.split('.').map_while(|number| number.parse().ok());
    let Ok(version) = <[u32; 3]>::try_from(numbers.take(3).collect::<Vec<_>>()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    if version < [6, 2, 0] {
        add!(found, Error "too_old": "{full} is too old: use Redis 6.2 or newer, or Valkey");
    } else if version < [7, 0, 0] {
        add!(found, Note "old": "{full} works, but Redis 7 or newer reports the errors of scripts \
            in more detail");
    }
    let fixed = || FIXED.iter().filter(|(of, _)| *of == product);
    let by_its_line = fixed().any(|(_, it)| it[..2] == version[..2] && version >= *it);
    // A later line started with the fix; one between two others never had it.
    if !by_its_line && !fixed().all(|(_, it)| version > *it) {
        add!(found, Warning "holes": "{full} by its number has security holes in Lua, \
            CVE-2025-49844 among them, for every user who may call scripts: use Redis 6.2.20, \
            7.2.11, 7.4.6, 8.0.4, 8.2.2, Valkey 7.2.11, 8.0.6, 8.1.4 or newer ones of these lines, \
            unless a distribution has fixed it under the old number");
    }
    found
}

impl fmt::Display for VerifiedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // These texts come from a server: characters that could steer a terminal are escaped.
        if let Some(address) = &self.address {
            write!(f, "{}: ", address.escape_debug())?;
        }
        match &self.version {
            Some(version) => write!(f, "{}", version.escape_debug())?,
            None => f.write_str("unknown version")?,
        }
        if let Some((apart, ahead)) = self.clock {
            let direction = if ahead { "ahead" } else { "behind" };
            let half = self.round_trip / 2;
            write!(f, ", clock {apart:.1?} {direction}, exact to {half:.1?}")?;
        }
        write_findings(f, &self.findings)
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (server, index) in self.servers.iter().zip(0..) {
            write!(f, "{}{server}", if index == 0 { "" } else { "\n" })?;
        }
        write_findings(f, &self.findings)?;
        match self.worst() {
            None => f.write_str("\nNothing looks wrong."),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_findings() {
        let [too_old, old, holes] = ["too_old", "old", "holes"];
        for (product, version, expected) in [
            ("Redis", "5.0.14", &[too_old, holes][..]),
            ("Redis", "6.2.19", &[old, holes]),
            ("Redis", "6.2.20", &[old]),
            // This line never got a fix from its makers.
            ("Redis", "7.0.15", &[holes]),
            ("Redis", "7.2.11", &[]),
            ("Redis", "7.4.5", &[holes]),
            ("Redis", "8.0.4", &[]),
            ("Redis", "8.2.1", &[holes]),
            ("Redis", "8.2.2", &[]),
            ("Redis", "8.4.0", &[]),
            ("Redis", "9.0.0", &[]),
            ("Redis", "unstable", &[]),
            ("Valkey", "8.1.3", &[holes]),
            ("Valkey", "8.0.6", &[]),
            ("Valkey", "9.0.0", &[]),
        ] {
            let found = look_at_version(product, &format!("{version}.\u{1b}"));
            let codes: Vec<_> = found.iter().map(Finding::code).collect();
            assert_eq!(codes, expected, "{product} {version}");
            // The server wrote its version: it must not steer a terminal.
            let shown = format!(r"{product} {version}.\u{{1b}} ");
            let is_shown = |it: &Finding| it.to_string().starts_with(&shown);
            assert!(found.iter().all(is_shown), "{found:?}");
        }
    }

    #[test]
    fn a_foreign_server_is_judged_only_by_the_fields_it_sends() {
        let mut server = VerifiedServer::default();
        server.read("# Server\r\nsomething:else\r\n", false);
        let codes: Vec<_> = server.findings.iter().map(Finding::code).collect();
        assert_eq!(codes, ["unknown_engine"]);
        server = VerifiedServer::default();
        server.read(
            "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.4\r\nmaxmemory:1000\r\n\
             maxmemory_policy:volatile-ttl\r\nrole:slave\r\ncluster_enabled:1\r\n",
            false,
        );
        assert_eq!(server.version.as_deref(), Some("Valkey 8.1.4"));
        let [first, second, evicts] = &*server.findings else {
            panic!("{server}");
        };
        assert_eq!([first, second], [&replica(), &node_of_cluster()]);
        assert_eq!(
            (evicts.code(), evicts.severity()),
            ("evicts", Severity::Warning)
        );
        assert!(evicts.to_string().contains("by volatile-ttl,"), "{evicts}");
    }

    #[test]
    fn a_service_is_named_with_the_engine_that_it_runs() {
        for (info, version, codes) in [
            (
                "redis_version:7.1.0\r\nos:Amazon ElastiCache\r\n",
                "ElastiCache, Redis 7.1.0",
                &["holes", "untested"][..],
            ),
            // The number of Redis is for old clients.
            (
                "redis_version:5.0.0\r\ndragonfly_version:df-v1.37.0\r\nrole:replica\r\n",
                "Dragonfly df-v1.37.0",
                &["untested", "replica"],
            ),
            (
                "redis_version:8.2.3\r\nredis_mode:sentinel\r\n",
                "Redis 8.2.3",
                &["sentinel"],
            ),
        ] {
            let mut server = VerifiedServer::default();
            server.read(info, false);
            assert_eq!(server.version.as_deref(), Some(version));
            let found: Vec<_> = server.findings.iter().map(Finding::code).collect();
            assert_eq!(found, codes, "{info}");
        }
    }
}
