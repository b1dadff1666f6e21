//! The errors of the crate: [`Error`] for decisions, [`ConfigError`] for settings.

use std::{fmt, sync::Arc};

/// The reason why a store could not decide.
///
/// A refusal is not an error: it is a [`Decision::Deny`](crate::Decision::Deny).
///
/// # Formatting
///
/// `Display` names the kind and, if known, the name or value at fault or the server's address
/// without user and password. It never contains a key or the server's own message: that message is
/// in `source()`. `Debug`, which `main` and `unwrap` print, begins with the same text, followed by
/// the kind and the source.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    /// Behind a pointer, because every decision has room for an error, and few have one.
    about: Option<Arc<ErrorContext>>,
}

/// The content of an error apart from its kind.
#[derive(Clone, Default)]
struct ErrorContext {
    detail: Option<Arc<str>>,
    /// The server's, without user and password
    address: Option<Arc<str>>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No limit is stored under the name. Retrying does not help: call `try_set_rate`
    NotInitialized,
    /// The stored limit is per client and an overall one was needed, or the other way round
    RateTypeDiffers,
    /// Another kind of key, entries that no Redisson wrote, or a state that this version did not
    /// write, are stored under the name
    ForeignState,
    /// No permits, or more than 2^32 - 1, were requested
    Permits,
    /// A caller would wait for more permits than the limit
    AboveRate,
    /// A caller that would wait is banned: its refusal by `try_acquire` says for how long
    Banned,
    /// The new name cannot name a limiter
    Name,
    /// Two names of one operation are in different hash slots of a Redis Cluster
    OtherSlot,
    /// No reply in time, or none that would come in time, and then nothing is sent. A call that was
    /// sent may still be carried out, and is given back if it is
    Timeout,
    /// The server cannot be reached, or cannot work at present
    Unavailable,
    /// The server replied and refused: permissions, credentials, a command or script that it lacks
    /// or may not run, or a reason that this version does not know; `source()` has its message
    Rejected,
    /// TLS failed, by a certificate or by a setting, on either side. The page
    /// [failure](crate::docs::failure#tls) has the remedy for the message in `source()`
    Tls,
    /// The memory store is at its maximum of limiters, none of them is idle, and the call cannot be
    /// answered [by an estimate](crate::MemoryStore#bounds)
    Full,
    /// The limiter's [`Algorithm`](crate::Algorithm) cannot count by this limit: `source()` has the
    /// reason. Or the limit is in the code alone: a verb would change it, or a limiter by its name
    /// lacks it
    Limit,
}

impl ErrorKind {
    /// Returns the name that metrics and logs have for it.
    pub fn as_str(self) -> &'static str {
        self.texts().0
    }

    /// Returns its name in metrics and logs, and the beginning of its errors' messages.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::NotInitialized => ("not_initialized", "no limit is set for this limiter"),
            Self::RateTypeDiffers => (
                "rate_type_differs",
                "the stored limit has another rate type",
            ),
            Self::ForeignState => (
                "foreign_state",
                "something other than a rate limiter is stored here",
            ),
            Self::Permits => ("permits", "permits must be between 1 and 4294967295"),
            Self::AboveRate => ("above_rate", "more permits than the limit were asked for"),
            Self::Banned => ("banned", "the caller is banned"),
            Self::Name => ("name", "the name cannot name a limiter"),
            Self::OtherSlot => ("other_slot", "the names are in different hash slots"),
            Self::Timeout => ("timeout", "the store did not answer in time"),
            Self::Unavailable => ("unavailable", "the store is unavailable"),
            Self::Rejected => ("rejected", "the store refused the request"),
            Self::Tls => ("tls", "the TLS connection to the store failed"),
            Self::Full => ("full", "the memory store is full: raise `max_limiters`"),
            Self::Limit => ("limit", "the limiter cannot have this limit"),
        }
    }
}

impl Error {
    /// Returns the kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the innermost cause, for a log line.
    pub(crate) fn cause(&self) -> String {
        std::error::Error::source(self).map_or_else(String::new, ToString::to_string)
    }

    #[cold]
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { kind, about: None }
    }

    fn about(&mut self) -> &mut ErrorContext {
        Arc::make_mut(self.about.get_or_insert_default())
    }

    pub(crate) fn detail(mut self, detail: impl Into<Arc<str>>) -> Self {
        self.about().detail = Some(detail.into());
        self
    }

    /// Adds the server's address, if the error is about the server and not about the call.
    pub(crate) fn with_address(mut self, address: Option<&Arc<str>>) -> Self {
        use ErrorKind::{Rejected, Timeout, Tls, Unavailable};
        let known = self.about.as_ref().and_then(|it| it.address.as_ref());
        // An error that is shared is not copied for an address that it has.
        if matches!(self.kind, Rejected | Timeout | Tls | Unavailable) && known != address {
            self.about().address = address.cloned();
        }
        self
    }

    pub(crate) fn caused_by(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.about().source = Some(Arc::new(source));
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
        f.write_str(self.kind.texts().1)?;
        let Some(about) = &self.about else {
            return Ok(());
        };
        if let Some(address) = &about.address {
            write!(f, " ({address})")?;
        }
        match &about.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = std::error::Error::source(self);
        write!(f, "{self} ({:?}, source: {source:?})", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.about.as_ref()?.source.as_ref()?;
        Some(&**source)
    }
}

/// An error in a limit, a rule, a name, a rules file or a store's settings, found when they are
/// built.
///
/// `Display` says what is wrong and what would be right, after the place in the file if there is
/// one. `Debug`, which `main` and `unwrap` print, begins with the same text.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError(Box<Details>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Details {
    /// That of the check that failed, wherever the setting is from.
    kind: ConfigErrorKind,
    place: Option<Box<str>>,
    reason: Box<str>,
}

/// The kinds of [`ConfigError`], by what has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// A number of a limit is out of range: permits, interval, keep-alive time, slots or lease
    Limit,
    /// A prefix, a client id, or the name of a rule or limiter has characters that it cannot have
    Name,
    /// Two rules of one name differ, or are in one entry
    Duplicate,
    /// Nothing would be limited: there is no rule, no request reaches an entry, or a list allows
    /// all of them; or rules or lists would be dropped in silence
    LimitsNothing,
    /// A pattern is not `/path` or `METHOD /path`, or not a gRPC method
    Pattern,
    /// A rule has no key, needs none, or has one that cannot count or would show a credential
    Key,
    /// Networks or a number of proxies that cannot be trusted, or be in a list
    Network,
    /// A secret is too short, or its key id is invalid; neither is shown
    Secret,
    /// A setting of a rule, or several rules or header styles together, cannot work
    Rule,
    /// Redis' address, certificates, or other settings of a store cannot be used
    Store,
    /// A rules file cannot be read
    Unreadable,
    /// A rules file is invalid; [`place`](ConfigError::place) has the line and the field
    File,
}

impl ConfigErrorKind {
    /// Returns an error of this kind. The reason names the value and what would be right.
    #[cold]
    pub(crate) fn error(self, reason: impl Into<Box<str>>) -> ConfigError {
        ConfigError(Box::new(Details {
            kind: self,
            place: None,
            reason: reason.into(),
        }))
    }
}

/// Makes a [`ConfigError`] of a kind: `config_error!(Name: "{name:?} is ..")`.
macro_rules! config_error {
    ($kind:ident: $($reason:tt)*) => {
        $crate::values::error::ConfigErrorKind::$kind.error(format!($($reason)*))
    };
}

/// Returns early with such an error.
macro_rules! bail {
    ($($error:tt)*) => {
        return Err($crate::values::error::config_error!($($error)*))
    };
}

pub(crate) use {bail, config_error};

impl ConfigError {
    /// Returns the kind of error.
    pub fn kind(&self) -> ConfigErrorKind {
        match self.0.place {
            Some(_) => ConfigErrorKind::File,
            None => self.0.kind,
        }
    }

    /// Returns whether two rules of one name differ, also where one of them is in a file.
    pub(crate) fn is_duplicate(&self) -> bool {
        self.0.kind == ConfigErrorKind::Duplicate
    }

    /// Returns the line and the field of a rules file, as in `line 7, rules.login.rate`.
    pub fn place(&self) -> Option<&str> {
        self.0.place.as_deref()
    }

    /// Returns what is wrong, without the place.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Moves the error to this place in a file.
    pub(crate) fn at(mut self, place: Option<impl Into<Box<str>>>) -> Self {
        if let Some(place) = place {
            self.0.place = Some(place.into());
        }
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.place() {
            write!(f, "{place}: ")?;
        }
        f.write_str(self.reason())
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:?})", self.kind())
    }
}

impl std::error::Error for ConfigError {}
