//! The reasons for which a call has no answer in time.

use std::{error, fmt};

use crate::values::error::{Error, ErrorKind};

/// The source of the error of a caller that has no answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// The caller left at its deadline, and nothing came from the server meanwhile
    Silence,
    /// The caller left at its deadline, and the server answered others meanwhile
    Slow,
    /// The call was not sent, so it took nothing
    Unsent,
}

impl Late {
    /// Returns why the caller that got this error has no answer in time, if that is so.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        let source = error::Error::source(error)?;
        source.downcast_ref().copied()
    }

    /// Returns the error that it is the source of.
    pub(crate) fn error(self) -> Error {
        Error::new(ErrorKind::Timeout).caused_by(self)
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silence => "nothing came in from the server",
            Self::Slow => "the server answers other calls, but not all of them in time",
            Self::Unsent => "more calls are asked for than the server answers in time",
        })
    }
}

impl error::Error for Late {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_why_it_is_late() {
        for (late, reason) in [
            (Late::Silence, "nothing came in"),
            (Late::Slow, "answers other calls"),
            (Late::Unsent, "more calls are asked for"),
        ] {
            let error = late.error();
            assert_eq!(Late::of(&error), Some(late));
            let source = error::Error::source(&error).map(ToString::to_string);
            assert!(source.is_some_and(|text| text.contains(reason)), "{late:?}");
        }
        assert_eq!(Late::of(&ErrorKind::Timeout.into()), None);
    }
}
