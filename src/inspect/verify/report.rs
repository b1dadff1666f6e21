//! The report of a check of servers, with a remedy for each finding.

use std::{fmt, time::Duration};

use crate::error::Error;

/// The result of [`RedisStore::verify`](crate::RedisStore::verify). `Display` prints it on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// The server, or the masters of a Cluster
    pub servers: Vec<VerifiedServer>,
    /// Findings that belong to no single server
    pub findings: Vec<ServerFinding>,
}

impl Verification {
    /// Returns all findings, the worst first, those of several servers included.
    #[must_use]
    pub fn findings(&self) -> Vec<&ServerFinding> {
        let of_servers = self.servers.iter().flat_map(|server| &server.findings);
        let mut findings: Vec<_> = self.findings.iter().chain(of_servers).collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
        findings
    }

    /// Returns the worst severity; `None` if there are no findings.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        let findings = self.findings();
        findings.first().map(|finding| finding.severity())
    }
}

/// A server, as it was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedServer {
    /// Its address; only for masters of a Cluster
    pub address: Option<String>,
    /// Its name and version, as `Redis 7.2.11`; `None` if the user may not see it
    pub version: Option<String>,
    /// The distance between its clock and this process's, and whether it is ahead; `None` if it is
    /// unknown
    pub clock: Option<(Duration, bool)>,
    /// The round trip of that query: the distance is exact to half of it
    pub round_trip: Duration,
    /// The findings about this server
    pub findings: Vec<ServerFinding>,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know
    Note,
    /// It works now, and may fail when it matters
    Warning,
    /// Limits do not work, or only in part
    Error,
}

/// A problem with a server. `Display` has the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerFinding {
    /// A version, named here, on which scripts cannot work
    TooOld(String),
    /// A version, named here, that works but is not the best
    Old(String),
    /// A version, named here, whose scripts have known security holes
    Holes(String),
    /// A command that the user may not call, or that the server lacks
    CommandRefused(String),
    /// A reply to a command that this version does not know
    NotUnderstood {
        /// The command
        command: String,
        /// The server's message
        said: String,
    },
    /// The server runs no scripts: its Lua is a module, which is not loaded
    NoLua,
    /// The user may not access the keys under this prefix
    KeysForbidden(String),
    /// The keys of one limiter are in several hash slots
    KeysInSeveralSlots,
    /// A script that the server cannot compile, with its message
    ScriptUnreadable(String),
    /// The server cannot write, with the remedy
    CannotWrite(&'static str),
    /// It evicts keys when its memory is used up
    Evicts {
        /// Its `maxmemory-policy`
        policy: String,
        /// Set if it has a `maxmemory` at present
        limited: bool,
    },
    /// It is a replica
    Replica,
    /// It is a node of a Cluster, but the store is built for a single server
    NodeOfCluster,
    /// This many hash slots of the Cluster have no master
    SlotsWithoutMaster(usize),
    /// All hash slots are refused when one has no master
    WantsFullCoverage,
    /// Its clock and this process's differ
    ClocksApart {
        /// The distance
        apart: Duration,
        /// Set if the server's clock is ahead
        ahead: bool,
        /// Set if limits count by this process's clock
        counts: bool,
    },
    /// This was not checked: the user may not call the command
    NotPermitted(&'static str),
    /// A master of a Cluster could not be queried, with the reason
    Unasked(String),
}

impl ServerFinding {
    pub(crate) fn not_understood(command: &str, said: &str) -> Self {
        Self::NotUnderstood {
            command: command.to_owned(),
            said: said.trim_end().to_owned(),
        }
    }

    /// Returns how severe it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            // Needed only by verbs of an operator.
            Self::CommandRefused(command) if matches!(&**command, "DEL" | "RENAME") => {
                Severity::Note
            }
            // It may still work: only the check sends such arguments.
            Self::NotUnderstood { command, .. } if !command.starts_with("EVAL") => {
                Severity::Warning
            }
            Self::TooOld(_)
            | Self::CommandRefused(_)
            | Self::NotUnderstood { .. }
            | Self::NoLua
            | Self::KeysForbidden(_)
            | Self::KeysInSeveralSlots
            | Self::ScriptUnreadable(_)
            | Self::Replica
            | Self::NodeOfCluster
            | Self::SlotsWithoutMaster(_)
            | Self::Unasked(_) => Severity::Error,
            Self::Holes(_)
            | Self::CannotWrite(_)
            | Self::Evicts { limited: true, .. }
            | Self::WantsFullCoverage
            | Self::ClocksApart { counts: true, .. } => Severity::Warning,
            Self::Old(_)
            | Self::Evicts { limited: false, .. }
            | Self::ClocksApart { counts: false, .. }
            | Self::NotPermitted(_) => Severity::Note,
        }
    }
}

impl fmt::Display for ServerFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooOld(version) => write!(
                f,
                "{} is too old: use Redis 6.2 or newer, or Valkey",
                version.escape_debug()
            ),
            Self::Old(version) => write!(
                f,
                "{} works, but Redis 7 or newer reports the errors of scripts in more detail",
                version.escape_debug()
            ),
            Self::Holes(version) => write!(
                f,
                "{} by its number has security holes in Lua, CVE-2025-49844 among them, for every \
                 user who may call scripts: use Redis 6.2.20, 7.2.11, 7.4.6, 8.0.4, 8.2.2, Valkey \
                 7.2.11, 8.0.6, 8.1.4 or newer ones of these lines, unless a distribution has \
                 fixed it under the old number",
                version.escape_debug()
            ),
            Self::CommandRefused(command) => match &**command {
                "DEL" | "RENAME" => write!(
                    f,
                    "the user may not call {command}, which `RateLimiter::{}` needs: if you use \
                     that, allow it with `ACL SETUSER .. +{}`",
                    if command == "DEL" { "delete" } else { "rename" },
                    command.to_lowercase()
                ),
                command => write!(
                    f,
                    "{command} is refused: allow it with `ACL SETUSER .. +{}`, and do not rename \
                     it; the README has all commands",
                    command.to_lowercase()
                ),
            },
            Self::NotUnderstood { command, said } => write!(
                f,
                "the reply to {command} is `{}`, which this version does not know: ask the \
                 server's operator whether it may be called, and report it",
                said.escape_debug()
            ),
            Self::NoLua => f.write_str(
                "it runs no Lua, so no limit works: load its module `lua`, or use a server with \
                 Lua",
            ),
            Self::KeysForbidden(name) => write!(
                f,
                "the user may not access the keys under {0}: allow them with `ACL SETUSER .. \
                 ~{0}:*`",
                name.escape_debug()
            ),
            Self::KeysInSeveralSlots => f.write_str(
                "the keys of one limiter are in several hash slots: Redis never does this, so look \
                 for a proxy in between",
            ),
            Self::ScriptUnreadable(why) => write!(
                f,
                "a script cannot be compiled, {}: use Redis or Valkey, because this server has \
                 another Lua",
                why.escape_debug()
            ),
            Self::CannotWrite(remedy) => {
                write!(
                    f,
                    "it cannot write at present, so it grants no permits: {remedy}"
                )
            }
            Self::Evicts { policy, limited } => {
                let when = if *limited {
                    "evicts keys"
                } else {
                    "would evict keys, if it had a `maxmemory`,"
                };
                write!(
                    f,
                    "it {when} when its memory is used up, by {}, and limits start over: use a \
                     server with `maxmemory-policy noeviction` for the limiters",
                    policy.escape_debug()
                )
            }
            Self::Replica => f.write_str(
                "it is a replica, which grants nothing: use the master's address, or \
                 `RedisStore::sentinel`",
            ),
            Self::NodeOfCluster => f.write_str(
                "it is a node of a Cluster, which refuses other nodes' hash slots: use \
                 `RedisStore::cluster`",
            ),
            Self::SlotsWithoutMaster(slots) => write!(
                f,
                "{slots} hash slots of the Cluster have no master: see `CLUSTER INFO`, and assign \
                 one"
            ),
            Self::WantsFullCoverage => f.write_str(
                "if one master is down, all hash slots are refused: set \
                 `cluster-require-full-coverage no`, so that the limits in other hash slots go on",
            ),
            Self::ClocksApart {
                apart,
                ahead,
                counts,
            } => {
                let direction = if *ahead { "ahead of" } else { "behind" };
                let then = if *counts {
                    "limits count by the latter: run NTP on both, or leave `client_clock` out"
                } else {
                    "limits count by the former, so this matters only for logs, and for Java, \
                     which counts by its own: run NTP on both"
                };
                write!(
                    f,
                    "its clock is {apart:.1?} {direction} the one of this process, and {then}"
                )
            }
            Self::NotPermitted(command) => {
                let part = match *command {
                    "INFO" => "version, eviction and role are",
                    _ => "a setting is",
                };
                write!(
                    f,
                    "{part} unknown: check with another user, or allow `{command}` for once"
                )
            }
            Self::Unasked(why) => write!(f, "it could not be queried, {why}: see whether it runs"),
        }
    }
}

impl VerifiedServer {
    pub(crate) fn unasked(error: &Error) -> Self {
        Self {
            findings: vec![ServerFinding::Unasked(error.to_string())],
            ..Self::default()
        }
    }

    /// Reads the reply of INFO. `in_cluster` is set if the store is built for a Cluster.
    pub(crate) fn read(&mut self, info: &str, in_cluster: bool) {
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let version = match field("valkey_version") {
            Some(version) => Some(("Valkey", version)),
            None => field("redis_version").map(|version| ("Redis", version)),
        };
        if let Some((product, version)) = version {
            let full = format!("{product} {version}");
            self.findings
                .extend(look_at_version(product, version, &full));
            self.version = Some(full);
        }
        if field("role") == Some("slave") {
            self.findings.push(ServerFinding::Replica);
        }
        if field("cluster_enabled") == Some("1") && !in_cluster {
            self.findings.push(ServerFinding::NodeOfCluster);
        }
        if let Some(policy) = field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
            self.findings.push(ServerFinding::Evicts {
                policy: policy.to_owned(),
                limited: field("maxmemory").is_some_and(|bytes| bytes != "0"),
            });
        }
    }
}

/// The first release of each line without the four holes in Lua of October 2025 (CVE-2025-49844,
/// 46817, 46818 and 46819; see Redis' advisory of that month, and Valkey's releases).
const MENDED: &[(&str, [u32; 3])] = &[
    ("Redis", [6, 2, 20]),
    ("Redis", [7, 2, 11]),
    ("Redis", [7, 4, 6]),
    ("Redis", [8, 0, 4]),
    ("Redis", [8, 2, 2]),
    ("Valkey", [7, 2, 11]),
    ("Valkey", [8, 0, 6]),
    ("Valkey", [8, 1, 4]),
];

fn look_at_version(product: &str, version: &str, full: &str) -> Vec<ServerFinding> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let numbers = [(); 3].map(|()| numbers.next().flatten());
    let [Some(major), Some(minor), Some(patch)] = numbers else {
        return Vec::new();
    };
    let version: [u32; 3] = [major, minor, patch];
    let mut findings = Vec::new();
    if version < [6, 2, 0] {
        findings.push(ServerFinding::TooOld(full.to_owned()));
    } else if version < [7, 0, 0] {
        findings.push(ServerFinding::Old(full.to_owned()));
    }
    let lines = MENDED.iter().filter(|(of, _)| *of == product);
    let mended = lines.map(|(_, mended)| *mended).collect::<Vec<_>>();
    let own_line = mended.iter().find(|mended| mended[..2] == version[..2]);
    let is_mended = match own_line {
        Some(mended) => version >= *mended,
        // A later line started with the fix; one between two others never had it.
        None => mended.iter().all(|mended| version > *mended),
    };
    if !is_mended {
        findings.push(ServerFinding::Holes(full.to_owned()));
    }
    findings
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
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

fn write_findings(f: &mut fmt::Formatter<'_>, findings: &[ServerFinding]) -> fmt::Result {
    for finding in findings {
        write!(f, "\n- {}: {finding}", finding.severity())?;
    }
    Ok(())
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (server, place) in self.servers.iter().zip(0..) {
            write!(f, "{}{server}", if place == 0 { "" } else { "\n" })?;
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
        use ServerFinding::{Holes, Old, TooOld};
        let found = |product: &str, version: &str| look_at_version(product, version, version);
        let named = |make: &[fn(String) -> ServerFinding], version: &str| -> Vec<_> {
            make.iter().map(|make| make(version.to_owned())).collect()
        };
        for (version, expected) in [
            ("5.0.14", named(&[TooOld, Holes], "5.0.14")),
            ("6.2.19", named(&[Old, Holes], "6.2.19")),
            ("6.2.20", named(&[Old], "6.2.20")),
            // This line never got a fix from its makers.
            ("7.0.15", named(&[Holes], "7.0.15")),
            ("7.2.11", vec![]),
            ("7.4.5", named(&[Holes], "7.4.5")),
            ("8.0.4", vec![]),
            ("8.2.1", named(&[Holes], "8.2.1")),
            ("8.2.2", vec![]),
            ("8.4.0", vec![]),
            ("9.0.0", vec![]),
            ("unstable", vec![]),
        ] {
            assert_eq!(found("Redis", version), expected, "{version}");
        }
        assert_eq!(found("Valkey", "8.1.3"), named(&[Holes], "8.1.3"));
        assert_eq!(found("Valkey", "8.0.6"), vec![]);
        assert_eq!(found("Valkey", "9.0.0"), vec![]);
    }

    #[test]
    fn a_foreign_server_is_judged_only_by_the_fields_it_sends() {
        let mut server = VerifiedServer::default();
        server.read("# Server\r\nsomething:else\r\n", false);
        assert_eq!(server, VerifiedServer::default());
        server.read(
            "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.4\r\nmaxmemory:1000\r\n\
             maxmemory_policy:volatile-ttl\r\nrole:slave\r\ncluster_enabled:1\r\n",
            false,
        );
        assert_eq!(server.version.as_deref(), Some("Valkey 8.1.4"));
        let evicts = ServerFinding::Evicts {
            policy: "volatile-ttl".to_owned(),
            limited: true,
        };
        let expected = [ServerFinding::Replica, ServerFinding::NodeOfCluster, evicts];
        assert_eq!(server.findings, expected);
    }
}
