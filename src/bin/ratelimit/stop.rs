//! How a command ends early: [`Stop`].

use tower_ratelimit::{ConfigError, Error, ErrorKind};

/// Why a command ends without a result: the exit status, and the reason.
pub(crate) struct Stop(pub(crate) u8, pub(crate) String);

impl Stop {
    /// The command cannot be meant so, or a file cannot be read.
    pub(crate) fn usage(reason: impl Into<String>) -> Self {
        Self(2, reason.into())
    }
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Self::usage(reason)
    }
}

impl From<ConfigError> for Stop {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        let reason = match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {}", source.to_string().escape_debug()),
            None => error.to_string(),
        };
        match error.kind() {
            ErrorKind::Limit => Self::usage(reason),
            ErrorKind::NotInitialized => Self(4, reason),
            _ => Self(3, reason),
        }
    }
}
