//! One finding of an inspection, with its remedy: [`Finding`].

use std::fmt;

/// A problem with a server or with a limiter. `Display` has the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub(super) kind: FindingKind,
    pub(super) severity: Severity,
    pub(super) text: String,
}

impl Finding {
    /// Returns its kind.
    pub fn kind(&self) -> FindingKind {
        self.kind
    }

    /// Returns how severe it is.
    pub fn severity(&self) -> Severity {
        self.severity
    }
}

/// Makes a [`Finding`]: `finding!(Error NoLua: "it runs no Lua")`, or with a variable in
/// parentheses, `finding!((severity) Evicts: "it evicts keys")`.
macro_rules! finding {
    ($severity:ident $kind:ident: $($text:tt)*) => {
        $crate::inspect::finding::finding!(($crate::inspect::Severity::$severity) $kind: $($text)*)
    };
    (($severity:expr) $kind:ident: $($text:tt)*) => {
        $crate::inspect::Finding {
            kind: $crate::inspect::FindingKind::$kind,
            severity: $severity,
            text: format!($($text)*),
        }
    };
}
pub(super) use finding;

/// Adds a [`Finding`] to others: `add!(found, Error NoLua: "it runs no Lua")`.
macro_rules! add {
    ($found:expr, $($finding:tt)*) => {
        $found.push($crate::inspect::finding::finding!($($finding)*))
    };
}
pub(super) use add;

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Writes a line for each finding.
pub(super) fn write_findings(f: &mut fmt::Formatter<'_>, findings: &[Finding]) -> fmt::Result {
    let mut findings = findings.iter();
    findings.try_for_each(|finding| write!(f, "\n- {}: {finding}", finding.severity))
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

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// The kinds of [`Finding`]: first those of [`RedisStore::verify`](crate::RedisStore::verify), then
/// those of [`diagnose`](crate::RedisStore::diagnose). The numbers are in the
/// [`Diagnosis`](crate::Diagnosis).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// A version on which scripts cannot work
    TooOld,
    /// A version that works but is not the best
    Old,
    /// A version whose scripts have known security holes
    Holes,
    /// A command that the user may not call, or that the server lacks
    CommandRefused,
    /// A reply to a command that this version does not know
    NotUnderstood,
    /// The server runs no scripts: its Lua is a module, which is not loaded
    NoLua,
    /// The user may not access the keys under the prefix
    KeysForbidden,
    /// The keys of one limiter are in several hash slots
    KeysInSeveralSlots,
    /// A script that the server cannot compile
    ScriptUnreadable,
    /// The server cannot write
    CannotWrite,
    /// It evicts keys when its memory is used up, or would if it had a `maxmemory`
    Evicts,
    /// It is a replica
    Replica,
    /// It is a node of a Cluster, but the store is built for a single server
    NodeOfCluster,
    /// Hash slots of the Cluster have no master
    SlotsWithoutMaster,
    /// All hash slots are refused when one has no master
    WantsFullCoverage,
    /// Its clock and this process's differ: see [`VerifiedServer::clock`](crate::VerifiedServer)
    ClocksApart,
    /// A master of a Cluster could not be queried
    Unasked,
    /// A part was not checked: the user may not call the commands for it
    NotPermitted,

    /// No limit is stored under the name, and nothing is counted
    NotInitialized,
    /// The limit or a part of it is missing, but permits are counted
    LimitMissing,
    /// The stored limit is invalid: not a number, or out of range
    LimitUnreadable,
    /// Permits are lost or, if [`Diagnosis::drift`](crate::Diagnosis) is below zero, counted twice
    Drift,
    /// There are grants, but the number of permits left is missing
    ValueMissing,
    /// Permits are in use, but their grants are missing
    LogMissing,
    /// Entries were written by no Redisson
    ForeignEntries,
    /// Entries were written by releases before 3.17.0
    OldEntries,
    /// Entries have scores ahead of the server's clock
    ScoresAhead,
    /// The limit expires though it has no keep-alive time
    LimitVanishes,
    /// The limit expires, but not the counts
    CountOutlives,
    /// There are keys of the other rate type
    OtherRateType,
    /// Other clients seem to have left keys behind
    LeftBehind,
    /// A Redisson before 3.17.0 has used this server
    OldRedisson,
    /// The limiter moved while it was read
    Moved,
    /// The search for other clients was not complete
    ScanIncomplete,
}
