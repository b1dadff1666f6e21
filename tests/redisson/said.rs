//! What a step asks, and what it answers.

/// Who asks, when, and with what id.
#[derive(Clone, Debug)]
pub struct Caller {
    pub client: String,
    pub now: i64,
    /// The member of a call that is sent again; new ones are random.
    pub member: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    Always,
    IfSet,
    IfNotSet,
    IfGreater,
    IfLess,
}

/// What a step answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Granted,
    Denied,
    /// "Requested permits amount cannot exceed defined rate"
    AboveRate,
    /// The same as a refusal and not as an error
    NeverGranted,
    /// "RateLimiter is not initialized"
    NotInitialized,
    /// "attempt to perform arithmetic on a nil value"
    NilArithmetic,
    /// No permits are asked for
    NoPermits,
    /// Rename of what is not there
    NoSuchKey,
    Done,
    Flag(bool),
    Number(i64),
    /// Per client, rate, interval
    Config(Option<(bool, i64, i64)>),
    /// -2 no key, -1 no TTL, 0 some TTL
    Life(i64),
    /// None of these
    Other(String),
}
