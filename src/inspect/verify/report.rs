//! What a look at the servers tells, and what is to be done about it.

use std::{fmt, time::Duration};

use crate::error::Error;

/// What [`RedisStore::verify`](crate::RedisStore::verify) has seen. `Display` tells it on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// The server, or the masters of a Cluster
    pub servers: Vec<VerifiedServer>,
    /// What is wrong with none of them alone
    pub findings: Vec<ServerFinding>,
}

impl Verification {
    /// All that is to be mended, the worst first; those of several servers each time.
    #[must_use]
    pub fn findings(&self) -> Vec<&ServerFinding> {
        let of_servers = self.servers.iter().flat_map(|server| &server.findings);
        let mut findings: Vec<_> = self.findings.iter().chain(of_servers).collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
        findings
    }

    /// How bad the worst of it is; `None` where nothing was found.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        let findings = self.findings();
        findings.first().map(|finding| finding.severity())
    }
}

/// A server as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedServer {
    /// Where it is; told of the masters of a Cluster alone
    pub address: Option<String>,
    /// Its name and version, as `Redis 7.2.11`; `None` if the user may not see it
    pub version: Option<String>,
    /// How far its clock is from the one of this process, and whether it is ahead of that; `None` if it was not told
    pub clock: Option<(Duration, bool)>,
    /// How long it took to ask for that: the difference is exact to half of it
    pub round_trip: Duration,
    /// What is to be mended
    pub findings: Vec<ServerFinding>,
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know
    Note,
    /// It works, and may not when it matters
    Warning,
    /// Limits do not work, or only in part
    Error,
}

/// Something about a server that is not as it should be. `Display` says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerFinding {
    /// A version, named here, on which scripts cannot work
    TooOld(String),
    /// A version, named here, that works, and is not the best
    Old(String),
    /// A version, named here, whose scripts have known security holes
    Holes(String),
    /// A command that the user may not call, or the server does not have
    CommandRefused(String),
    /// What the server said to a command, that this version does not know
    NotUnderstood {
        /// The command
        command: String,
        /// The server's words
        said: String,
    },
    /// The server runs no scripts: its Lua is a module, which is not loaded
    NoLua,
    /// The user may not name the keys under this prefix
    KeysForbidden(String),
    /// The keys of one limiter are in several slots
    KeysInSeveralSlots,
    /// A script that the server cannot compile, by its own words
    ScriptUnreadable(String),
    /// The server must not write, and what mends that
    CannotWrite(&'static str),
    /// It throws keys away when its memory is used up
    Evicts {
        /// Its `maxmemory-policy`
        policy: String,
        /// Whether there is a `maxmemory` at present
        limited: bool,
    },
    /// It is a replica
    Replica,
    /// It is a node of a Cluster, and the store takes it for all of Redis
    NodeOfCluster,
    /// So many slots of the Cluster have no master
    SlotsWithoutMaster(usize),
    /// All slots are refused when one has no master
    WantsFullCoverage,
    /// Its clock and that of this process differ
    ClocksApart {
        /// By so much
        apart: Duration,
        /// Whether the server's is ahead
        ahead: bool,
        /// Whether limits are counted by that of this process
        counts: bool,
    },
    /// This was not looked at: the user may not call the command
    NotPermitted(&'static str),
    /// A master of a Cluster could not be asked, and why
    Unasked(String),
}

impl ServerFinding {
    pub(crate) fn not_understood(command: &str, said: &str) -> Self {
        Self::NotUnderstood {
            command: command.to_owned(),
            said: said.trim_end().to_owned(),
        }
    }

    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            // Verbs of an operator alone.
            Self::CommandRefused(command) if matches!(&**command, "DEL" | "RENAME") => {
                Severity::Note
            }
            // It may work all the same: what was refused are arguments that nothing else sends.
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
                "{} does: Redis 7 or newer is better, as it tells more of what a script meets",
                version.escape_debug()
            ),
            Self::Holes(version) => write!(
                f,
                "{} has holes in Lua by its number, CVE-2025-49844 among them, for whoever may call scripts: use Redis \
                 6.2.20, 7.2.11, 7.4.6, 8.0.4, 8.2.2, Valkey 7.2.11, 8.0.6, 8.1.4 or newer ones of these lines, unless \
                 a distribution has mended it under the old number",
                version.escape_debug()
            ),
            Self::CommandRefused(command) => match &**command {
                "DEL" | "RENAME" => write!(
                    f,
                    "the user may not call {command}, which `RateLimiter::{}` needs: allow it with `ACL SETUSER .. +{}` \
                     if somebody calls that",
                    if command == "DEL" { "delete" } else { "rename" },
                    command.to_lowercase()
                ),
                command => write!(
                    f,
                    "{command} is refused: allow it with `ACL SETUSER .. +{}`, and do not rename it; the README has all \
                     of them",
                    command.to_lowercase()
                ),
            },
            Self::NotUnderstood { command, said } => write!(
                f,
                "{command} is answered by `{}`, which this version does not know: ask who runs the \
                 server whether it may be called, and report it",
                said.escape_debug()
            ),
            Self::NoLua => f.write_str(
                "it runs no Lua, so no limit works: load its module `lua`, or use one that has it",
            ),
            Self::KeysForbidden(name) => write!(
                f,
                "the user may not name the keys under {0}: allow them with `ACL SETUSER .. ~{0}:*`",
                name.escape_debug()
            ),
            Self::KeysInSeveralSlots => f.write_str(
                "the keys of one limiter are in several slots: no Redis does so, ask who stands between",
            ),
            Self::ScriptUnreadable(why) => write!(
                f,
                "a script cannot be compiled, {}: use Redis or Valkey, as this server speaks another Lua",
                why.escape_debug()
            ),
            Self::CannotWrite(remedy) => {
                write!(f, "it must not write at present, so nobody is granted anything: {remedy}")
            }
            Self::Evicts { policy, limited } => {
                let when = if *limited {
                    "throws keys away"
                } else {
                    "would throw keys away, if it had a `maxmemory`,"
                };
                write!(
                    f,
                    "it {when} when its memory is used up, by {}, and limits begin anew: give the limiters a server with \
                     `maxmemory-policy noeviction`",
                    policy.escape_debug()
                )
            }
            Self::Replica => f.write_str(
                "it is a replica, and grants nothing: give the master's address, or use `RedisStore::sentinel`",
            ),
            Self::NodeOfCluster => f.write_str(
                "it is a node of a Cluster, and refuses the slots of others: use `RedisStore::cluster`",
            ),
            Self::SlotsWithoutMaster(slots) => write!(
                f,
                "{slots} slots of the Cluster have no master: see `CLUSTER INFO`, and give them one"
            ),
            Self::WantsFullCoverage => f.write_str(
                "if one master is down, all slots are refused: set `cluster-require-full-coverage no`, so that the \
                 limits of other slots go on",
            ),
            Self::ClocksApart {
                apart,
                ahead,
                counts,
            } => {
                let direction = if *ahead { "ahead of" } else { "behind" };
                let then = if *counts {
                    "limits are counted by the latter: run NTP on both, or leave `client_clock` away"
                } else {
                    "limits are counted by the former, so this matters to logs, and to Java, which counts by its own: run \
                     NTP on both"
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
                    "{part} not told: look by another user, or allow `{command}` for once"
                )
            }
            Self::Unasked(why) => write!(f, "it could not be asked, {why}: see whether it runs"),
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

    /// Reads the reply of INFO. `in_cluster` is what the store takes it for.
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

/// The first release of each line in which the four holes of October 2025 in Lua are mended (CVE-2025-49844, 46817, 46818
/// and 46819; see Redis' advisory of that month, and Valkey's releases).
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
        // A later line began with them mended, one between two others never was.
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
        // A server has said them: what could steer a terminal is escaped.
        if let Some(address) = &self.address {
            write!(f, "{}: ", address.escape_debug())?;
        }
        match &self.version {
            Some(version) => write!(f, "{}", version.escape_debug())?,
            None => f.write_str("version not known")?,
        }
        if let Some((apart, ahead)) = self.clock {
            let direction = if ahead { "ahead" } else { "behind" };
            let half = self.round_trip / 2;
            write!(f, ", clock {apart:.1?} {direction}, by {half:.1?} exact")?;
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
    fn versions_are_told_apart() {
        use ServerFinding::{Holes, Old, TooOld};
        let found = |product: &str, version: &str| look_at_version(product, version, version);
        let named = |make: &[fn(String) -> ServerFinding], version: &str| -> Vec<_> {
            make.iter().map(|make| make(version.to_owned())).collect()
        };
        for (version, expected) in [
            ("5.0.14", named(&[TooOld, Holes], "5.0.14")),
            ("6.2.19", named(&[Old, Holes], "6.2.19")),
            ("6.2.20", named(&[Old], "6.2.20")),
            // This line was never mended by its makers.
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
    fn of_a_foreign_server_only_what_it_tells_is_judged() {
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
