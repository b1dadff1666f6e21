//! Errors of a replay.

use std::{error::Error, fmt, io};

use tower_ratelimit::ConfigError;

/// An error that ends a replay. Single lines that cannot be read do not: they are counted.
#[derive(Debug)]
pub(crate) enum ReplayError {
    /// The log cannot be read
    Read(io::Error),
    /// A setting cannot be used; the text names it and what would be right
    Setting(String),
    /// The log has no line of a known format, or lacks a column; the text names them
    Format(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "the log cannot be read: {error}"),
            Self::Setting(reason) | Self::Format(reason) => f.write_str(reason),
        }
    }
}

impl Error for ReplayError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Read(error) => Some(error),
            Self::Setting(_) | Self::Format(_) => None,
        }
    }
}

impl From<io::Error> for ReplayError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl From<ConfigError> for ReplayError {
    fn from(error: ConfigError) -> Self {
        Self::Setting(error.to_string())
    }
}
