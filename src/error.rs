//! What can go wrong: [`Error`] while deciding, [`ConfigError`] while building.

use std::{fmt, sync::Arc, time::Duration};

use crate::macros::debug_after_display;

/// Why a store could not decide.
///
/// A refusal is not an error: it is a [`Decision::Deny`](crate::Decision::Deny).
///
/// # Formatting
///
/// `Display` names the kind and, where there is one, the name or value at fault, or the server's address
/// without user and password; never a key, and never
/// the server's own words: those are in `source()`. `Debug`, which `main` and `unwrap` print, begins with
/// the same text; the kind and the source follow.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    detail: Option<Arc<str>>,
    /// Of the server, without user and password
    address: Option<Arc<str>>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No limit is stored under the name. Retrying does not help: call `try_set_rate`
    NotInitialized,
    /// The stored limit is per client where an overall one was asked for, or the other way round
    RateTypeDiffers,
    /// Another kind of key, or entries that no Redisson wrote, stand under the name
    ForeignState,
    /// No permits, or more than 2^32 - 1, were asked for
    Permits,
    /// More permits than the limit were waited for
    AboveRate,
    /// The new name cannot name a limiter
    Name,
    /// Two names of one operation are in different slots of a Redis Cluster
    OtherSlot,
    /// No answer in time. What was asked may still be carried out, and is given back if it is
    Timeout,
    /// The server cannot be reached, or cannot work at present
    Unavailable,
    /// The server answered and refused: permissions, credentials, a command or script that it lacks
    /// or may not run, or a reason that this version does not know; `source()` has its words
    Rejected,
    /// TLS failed, by a certificate or by a setting, here or there; `source()` has the words by
    /// which the page [failure](crate::docs::failure#tls) says what to do
    Tls,
    /// The memory store holds as many limiters as it may, none of them is idle, and what was asked
    /// cannot be answered [by an estimate](crate::MemoryStore#bounds)
    Full,
    /// The limit is none that the limiter's [`Algorithm`](crate::Algorithm) can count by: `source()` says why
    Limit,
}

impl Error {
    /// What kind of error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether no answer came in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.kind == ErrorKind::Timeout
    }

    /// Whether the limiter has no limit yet, so that `try_set_rate` is the remedy.
    #[must_use]
    pub fn is_not_initialized(&self) -> bool {
        self.kind == ErrorKind::NotInitialized
    }

    /// The innermost cause, for a log line.
    #[cfg(feature = "redis")]
    pub(crate) fn cause(&self) -> String {
        self.source
            .as_ref()
            .map_or_else(String::new, ToString::to_string)
    }

    #[cold]
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self {
            kind,
            detail: None,
            address: None,
            source: None,
        }
    }

    pub(crate) fn detail(mut self, detail: impl Into<Arc<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// With the address of the server, if it is about the server and not about what was asked.
    #[cfg(feature = "redis")]
    pub(crate) fn of(mut self, address: Option<&Arc<str>>) -> Self {
        use ErrorKind::{Rejected, Timeout, Tls, Unavailable};
        if matches!(self.kind, Rejected | Timeout | Tls | Unavailable) {
            self.address = address.cloned();
        }
        self
    }

    pub(crate) fn caused_by(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.source = Some(Arc::new(source));
        self
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ErrorKind::NotInitialized => "no limit is set for this limiter",
            ErrorKind::RateTypeDiffers => "the stored limit has another rate type",
            ErrorKind::ForeignState => "something other than a rate limiter is stored here",
            ErrorKind::Permits => "permits must be between 1 and 4294967295",
            ErrorKind::AboveRate => "more permits than the limit were asked for",
            ErrorKind::Name => "the name cannot name a limiter",
            ErrorKind::OtherSlot => "the names are in different slots of the cluster",
            ErrorKind::Timeout => "the store did not answer in time",
            ErrorKind::Unavailable => "the store is unavailable",
            ErrorKind::Rejected => "the store refused the request",
            ErrorKind::Tls => "no TLS with the store",
            ErrorKind::Full => "the store holds as many limiters as it may",
            ErrorKind::Limit => "the algorithm cannot count by this limit",
        })?;
        if let Some(address) = &self.address {
            write!(f, " ({address})")?;
        }
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} (")?;
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("source", &self.source)
            .finish()?;
        f.write_str(")")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_ref()
            .map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

debug_after_display! {
/// What is wrong with a limit, a rule, a name or a store's settings; found when they are built.
///
/// `Debug`, which `main` and `unwrap` print, begins with the text of `Display`.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A limit of no permits, or of more than 2^53 - 1
    Permits(u64),
    /// An interval shorter than a millisecond, longer than a century, or not of whole milliseconds
    Interval(Duration),
    /// More permits than one in each microsecond, for [`Algorithm::Gcra`](crate::Algorithm::Gcra)
    TooFast {
        /// The permits given
        permits: u64,
        /// The interval given
        interval: Duration,
    },
    /// A keep-alive time that is shorter than the interval
    KeepAlive {
        /// The time given
        keep_alive: Duration,
        /// The interval it must cover
        interval: Duration,
    },
    /// A prefix that is empty or has other characters than `A-Z a-z 0-9 . _ -`
    Prefix(String),
    /// A rule's name that is empty or has other characters than `A-Z a-z 0-9 . _ -`
    RuleName(String),
    /// A name that Redis Cluster, or another limiter's keys, cannot live with
    SharedName {
        /// The name given
        name: String,
        /// What is wrong with it
        reason: &'static str,
    },
    /// A layer, or rules to reload, without any rule: it would limit nothing
    NoRules,
    /// An entry of a table that no request reaches, so that its rules would limit nothing
    Unreachable {
        /// The entry's pattern
        entry: String,
        /// That of the entry before it that matches the same requests
        behind: String,
    },
    /// A pattern that is not `/path` or `METHOD /path`
    Pattern {
        /// The pattern given
        pattern: String,
        /// What is wrong with it
        reason: &'static str,
    },
    /// Two header styles of one layer that write the field named here differently
    Headers(&'static str),
    /// A rule of more than fifteen digits of permits, which the fields of answers cannot tell (RFC 9651, section 3.3.1)
    HeaderPermits {
        /// The rule's name
        rule: String,
        /// The permits given
        permits: u64,
    },
    /// A header name that HTTP does not allow
    HeaderName(String),
    /// A credential's header, named here, as a key without a digest: Redis and its operators would see the credential
    Credential(String),
    /// A secret's key id that is empty, longer than 16, or has other characters than `A-Z a-z 0-9 . _ -`; it is not shown,
    /// because it may be the secret
    SecretId,
    /// A secret of so few bytes: it needs at least 32. Its key id is not shown, because it may be the secret
    SecretTooShort(usize),
    /// A network of proxies that cannot be trusted
    TrustedProxy {
        /// The network given
        network: String,
        /// What is wrong with it
        reason: &'static str,
    },
    /// A network of a list that is none
    Network {
        /// The network given
        network: String,
        /// What is wrong with it
        reason: &'static str,
    },
    /// No trusted proxies in a row, or more than 64
    Hops(usize),
    /// So many bits of an address that a key by them makes no sense: 8 to 32 of IPv4, 32 to 128 of IPv6
    AddressPrefix {
        /// 4 or 6
        version: u8,
        /// The number given
        bits: u8,
    },
    /// Two rules of one name with different limits or keys: they would count in one place
    DuplicateName(String),
    /// A rule, named here, without a key
    MissingKey(String),
    /// A rule, named here, whose key is not used: its shared name has no `<key>` in it
    UnusedKey(String),
    /// A rule, named here, that is not shared and so has no use for `or_init`: its limit is its own
    NotShared(String),
    /// A rule, named here, whose fixed cost is zero or more than its limit: it would never, or always, refuse
    Cost {
        /// The rule's name
        rule: String,
        /// The cost given
        cost: u32,
    },
    /// A rule, named here, that is to be enforced for more than 100 of a hundred keys
    EnforceShare {
        /// The rule's name
        rule: String,
        /// The share given
        percent: u8,
    },
    /// A lease that permits cannot be taken for: not of whole milliseconds, longer than a tenth of the interval, or of an
    /// algorithm that has none
    Lease {
        /// The rule's, or the limiter's, name
        owner: String,
        /// The time given
        lease: Duration,
        /// What is wrong with it
        reason: &'static str,
    },
    /// A rule, named here, in whose queue nobody may wait
    Queue(String),
    /// A rule, named here, whose tiers are empty or have two of one name
    Tiers(String),
    /// Slots that a limiter or a rule cannot have
    Slots {
        /// The limiter's or the rule's name
        name: String,
        /// The number given
        slots: u32,
        /// What is wrong with it
        reason: &'static str,
    },
    /// Two rules of one entry, named here, that charge one limiter and differ in the algorithm or its slots, or of which one has a
    /// `charge_if`: what they cost is charged together, and so cannot be settled apart
    OneLimiter([String; 2]),
    /// Limiters of which permits cannot be taken together, and why
    NotTogether(&'static str),
    /// An address of Redis that cannot be read; passwords are left out
    Url(String),
    /// Certificates for TLS that cannot be used; nothing of them is shown
    Certificates(&'static str),
    /// A client id that is empty or has other characters than `A-Z a-z 0-9 . _ -`
    ClientId(String),
    /// Something in a rules file that cannot be meant
    File {
        /// The line, from 1
        line: usize,
        /// The field at fault, as in `rules.login.rate`; empty where the file is no TOML
        field: String,
        /// What is wrong with it, and what to write
        reason: String,
    },
    /// A rules file that cannot be read
    Unreadable {
        /// The path given
        path: String,
        /// Why not
        reason: String,
    },
    /// A name given in code to what rules files may name, which means something else there
    ReservedName(String),
    /// A time, longer than a minute, for which refusals are to be told again without asking
    DenyCache(Duration),
    /// A share of a limit, for when the store fails, that is not above 0 and 1 at most
    LocalShare {
        /// The rule's name
        rule: String,
        /// The share given
        share: String,
    },
    /// More failures, before Redis is left alone, than are counted: 32
    Breaker(u32),
}
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permits(permits) => {
                write!(f, "a limit takes 1 to 2^53 - 1 permits, not {permits}")
            }
            Self::Interval(interval) => write!(
                f,
                "an interval is of whole milliseconds, at least one and at most a century, not {interval:?}"
            ),
            Self::TooFast { permits, interval } => write!(
                f,
                "{permits} permits in {interval:?} are more than one in each microsecond, the most that `Algorithm::Gcra` counts"
            ),
            Self::KeepAlive {
                keep_alive,
                interval,
            } => write!(
                f,
                "a keep-alive time of {keep_alive:?} is shorter than the interval of {interval:?}"
            ),
            Self::Prefix(prefix) => {
                write!(
                    f,
                    "a prefix has one or more of A-Z a-z 0-9 . _ -, not {prefix:?}"
                )
            }
            Self::RuleName(name) => {
                write!(
                    f,
                    "a rule's name has one or more of A-Z a-z 0-9 . _ -, not {name:?}"
                )
            }
            Self::SharedName { name, reason } => {
                write!(f, "{name:?} cannot name a limiter: {reason}")
            }
            Self::NoRules => f.write_str(
                "there is no rule, so nothing would be limited: add `.otherwise(rule)`, or \
                 `.on(pattern, rule)`",
            ),
            Self::Unreachable { entry, behind } => write!(
                f,
                "the entry {entry:?} is never reached, as {behind:?} before it matches the same \
                 requests: put the narrower one first, or the rules of both into one list"
            ),
            Self::Pattern { pattern, reason } => {
                write!(f, "{pattern:?} is not `/path` or `METHOD /path`: {reason}")
            }
            Self::Headers(field) => write!(
                f,
                "two header styles write {field} differently: choose one of them"
            ),
            Self::HeaderPermits { rule, permits } => write!(
                f,
                "rule {rule:?} has {permits} permits, and answers can tell at most 999999999999999: add \
                 `.hide_headers()`, or turn the fields off"
            ),
            Self::HeaderName(name) => write!(f, "{name:?} is not a header's name"),
            Self::Credential(name) => write!(
                f,
                "the header {name:?} holds a credential, which would be seen in Redis: add `.digest(&secret)`, or \
                 `.plain()` if it may be seen"
            ),
            Self::SecretId => f.write_str("a secret's key id has 1 to 16 of A-Z a-z 0-9 . _ -"),
            Self::SecretTooShort(bytes) => {
                write!(f, "a secret of a key needs at least 32 bytes, not {bytes}")
            }
            Self::TrustedProxy { network, reason } => {
                write!(
                    f,
                    "{network:?} cannot be a network of trusted proxies: {reason}"
                )
            }
            Self::Network { network, reason } => {
                write!(f, "{network:?} cannot be in a list of networks: {reason}")
            }
            Self::Hops(hops) => write!(
                f,
                "1 to 64 proxies can be trusted, not {hops}: without a proxy count by `PeerIp`, \
                 in a file by `peer`"
            ),
            Self::AddressPrefix { version, bits } => {
                let allowed = if *version == 4 {
                    "8 to 32"
                } else {
                    "32 to 128"
                };
                write!(
                    f,
                    "{allowed} bits of an IPv{version} address can count, not {bits}"
                )
            }
            Self::DuplicateName(name) => write!(
                f,
                "two rules are named {name:?} and differ in limit or key: name one of them otherwise"
            ),
            Self::MissingKey(rule) => write!(f, "rule {rule:?} has no key: add `.by(..)`"),
            Self::UnusedKey(rule) => {
                write!(
                    f,
                    "rule {rule:?} has a key, but no `<key>` in its shared name"
                )
            }
            Self::Cost { rule, cost } => {
                write!(
                    f,
                    "rule {rule:?} costs {cost} permits: the cost lies between 1 and the limit"
                )
            }
            Self::EnforceShare { rule, percent } => {
                write!(
                    f,
                    "rule {rule:?} is enforced for 0 to 100 percent of its keys, not {percent}"
                )
            }
            Self::Lease {
                owner,
                lease,
                reason,
            } => write!(f, "{owner:?} cannot lease permits for {lease:?}: {reason}"),
            Self::Queue(rule) => write!(
                f,
                "rule {rule:?} has a queue of 0 requests: for none to wait leave `wait` out"
            ),
            Self::NotShared(rule) => {
                write!(
                    f,
                    "rule {rule:?} is not shared: `or_init` is for `Rule::shared`"
                )
            }
            Self::Tiers(rule) => {
                write!(f, "rule {rule:?} has no tiers, or two of one name")
            }
            Self::Slots {
                name,
                slots,
                reason,
            } => write!(f, "{name:?} cannot have {slots} slots: {reason}"),
            Self::OneLimiter([one, other]) => {
                write!(
                    f,
                    "rules {one:?} and {other:?} of one entry charge the same limiter: give them the same algorithm, the same slots \
                     and no `charge_if`, or make one rule of them"
                )
            }
            Self::NotTogether(reason) => {
                write!(
                    f,
                    "permits of these limiters cannot be taken together: {reason}"
                )
            }
            Self::Url(reason) => write!(f, "the address of Redis cannot be read: {reason}"),
            Self::Certificates(reason) => {
                write!(f, "the certificates for TLS cannot be used: {reason}")
            }
            Self::File {
                line,
                field,
                reason,
            } if field.is_empty() => write!(f, "line {line}: {reason}"),
            Self::File {
                line,
                field,
                reason,
            } => write!(f, "line {line}, {field}: {reason}"),
            Self::Unreadable { path, reason } => {
                write!(f, "the rules file {path:?} cannot be read: {reason}")
            }
            Self::ReservedName(name) => {
                write!(f, "{name:?} means something else in a rules file")
            }
            Self::ClientId(id) => {
                write!(
                    f,
                    "a client id has one or more of A-Z a-z 0-9 . _ -, not {id:?}"
                )
            }
            Self::DenyCache(cap) => write!(
                f,
                "refusals are told again without asking for a minute at most, not for {cap:?}"
            ),
            Self::LocalShare { rule, share } => write!(
                f,
                "the rule {rule:?} decides by {share} of its limit when the store fails: it must be above 0 and 1 at most, \
                 one divided by the number of instances"
            ),
            Self::Breaker(failures) => write!(
                f,
                "a breaker opens after 32 failures at most, not after {failures}: 0 switches it off"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// The same, with the line and the field of the file where it was found.
    pub(crate) fn at(self, place: Option<(usize, String)>) -> Self {
        match (self, place) {
            (placed @ Self::File { .. }, _) | (placed, None) => placed,
            (found, Some((line, field))) => Self::File {
                line,
                field,
                reason: found.to_string(),
            },
        }
    }
}
