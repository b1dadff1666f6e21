//! Keys: extractors find the caller that a request counts for, in the head of the request.
//!
//! An extractor adds one or more components to a [`Key`]. If it finds none, the request is refused
//! and the response names what is missing, unless [`or`](KeyExtractor::or),
//! [`or_shared`](KeyExtractor::or_shared) or [`or_skip`](KeyExtractor::or_skip) provides otherwise:
//! a request never passes unlimited by accident. These three do not excuse a header that is
//! repeated or beyond its [length](FromHeader::max_len), because a caller could hide its identity
//! by it; and `or_skip` does not excuse a server that does not record the peer's address. If
//! another key stands in for the address, one warning reports it. A CORS preflight is never refused
//! for a missing key, because browsers send no credentials with it: a rule whose key it lacks is
//! skipped (see the [guide](crate::docs::guide#preflights)).
//!
//! A key costs what its bytes cost, and a key of more than 128 bytes costs a SHA-256 of them. A
//! header is limited to 16 KiB. The value that a closure returns is used whole: its length is the
//! closure's responsibility.
//!
//! | extractor | counts by |
//! |---|---|
//! | [`PeerIp`] | the address at the other end of the connection |
//! | [`ClientIp`] | the client's address, also behind proxies |
//! | [`FromHeader`] | a header's value |
//! | [`FromExtension`] | a value that an outer layer put into the request's extensions: the user |
//! | [`Route`] | the method and the route, or the gRPC method |
//! | [`Constant`] | nothing: all requests together |
//! | [`FromParts`] | what a closure returns |
//! | tuples of these | all of their components together |
//!
//! Combine with care: behind a proxy, the peer's address is the proxy's. Use a
//! [`digest`](KeyExtractor::digest) for what must not be read in Redis.

mod client_ip;
mod combine;
mod digest;
#[cfg(feature = "config")]
mod dynamic;
mod extension;
mod forwarded;
mod header;
mod ip;
pub(crate) mod mistakes;
mod route;

use std::{
    any::TypeId,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash},
};

use http::request::Parts;

#[cfg(feature = "config")]
pub(crate) use self::dynamic::intern;
pub use self::{
    client_ip::ClientIp,
    combine::{Or, OrSkip},
    digest::{Digested, Secret},
    extension::FromExtension,
    forwarded::ForwardedHeader,
    header::FromHeader,
    ip::{PeerAddr, PeerIp},
    route::Route,
};
pub(crate) use self::{client_ip::network_of, combine::AnyKey};
use crate::{
    macros::opaque,
    values::{
        decision::{Fault, Missing},
        error::ConfigError,
        name::Identity,
    },
};

/// Finds the key of a request.
///
/// # Example
///
/// ```
/// use http::request::Parts;
/// use tower_ratelimit::key::{Key, KeyExtractor, NoKey};
///
/// /// The part of the host name before the first dot.
/// #[derive(Debug)]
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
///         let host = parts.uri.host().ok_or(NoKey::missing("host"))?;
///         key.push(host.split('.').next().unwrap_or(host));
///         Ok(())
///     }
/// }
/// ```
///
/// # Settings
///
/// Rules of one name count together, so they must have one key. An extractor with settings
/// offers a [`fingerprint`](Self::fingerprint) of them: by it, a layer that is built twice has the
/// same rules, and a rule with another key is refused.
///
/// ```
/// use http::request::Parts;
/// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::{Key, KeyExtractor, NoKey}};
///
/// /// The part of the path at this index: 0 is the first.
/// #[derive(Debug)]
/// struct Segment(usize);
///
/// impl KeyExtractor for Segment {
///     fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
///         let mut segments = parts.uri.path().split('/').skip(1);
///         key.push(segments.nth(self.0).ok_or(NoKey::missing("segment"))?);
///         Ok(())
///     }
///
///     fn fingerprint(&self) -> Option<u64> {
///         Some(self.0 as u64)
///     }
/// }
///
/// let store = MemoryStore::new();
/// let layer = |index| {
///     let rule = Limit::per_minute(60).by(Segment(index)).named("segment");
///     RateLimitLayer::builder(&store).otherwise(rule).build()
/// };
/// let first = layer(0)?;
/// // The same rule once more.
/// let same = layer(0)?;
/// // Another rule: two rules of one name are refused.
/// assert!(layer(1).is_err());
/// # drop((first, same));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
pub trait KeyExtractor: fmt::Debug + Send + Sync + 'static {
    /// Adds the request's components to `key`.
    ///
    /// # Errors
    ///
    /// [`NoKey`], if the request does not have the key.
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey>;

    /// Checks the extractor's own settings, when a layer is built, and returns what is known of its
    /// keys before any request.
    ///
    /// An extractor that delegates to others returns theirs, [together](KeyTraits::and). Default:
    /// [`KeyTraits::default`].
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with the value at fault.
    fn check(&self) -> Result<KeyTraits, ConfigError> {
        Ok(KeyTraits::default())
    }

    /// Identifies its settings: extractors of one type that return the same number find the same
    /// keys, and rules of one entry that follow each other look for theirs once.
    ///
    /// A hash of all settings that change what is found; of an extractor of any type that it
    /// delegates to, the [`type_fingerprint`](Self::type_fingerprint). `None` if they cannot be
    /// compared, as those of a closure with captured values: such an extractor equals only itself,
    /// in clones of its rule and of its layer. Default: 0 for a type without fields, otherwise
    /// `None`.
    fn fingerprint(&self) -> Option<u64> {
        (size_of_val(self) == 0).then_some(0)
    }

    /// Identifies its type and its settings.
    fn type_fingerprint(&self) -> Option<u64> {
        // The type's name alone is the same for all closures of a function.
        fingerprint_of((TypeId::of::<Self>(), self.fingerprint()?))
    }

    /// Puts a digest into keys instead of the found value: HMAC-SHA-256 under a secret.
    ///
    /// Keys are visible in Redis: in MONITOR and the slow log, in dumps, on replicas. Use it for
    /// tokens, e-mail addresses, and addresses where they are personal data. A hash without a
    /// secret would not be enough: anyone who can guess a value could look it up.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, key::{FromHeader, KeyExtractor, Secret}};
    ///
    /// let secret = Secret::new("k1", "3f1d7a0c55e94b6f8a2be07d41c9631e")?;
    /// let rule = Limit::per_minute(60).by(FromHeader::new("authorization").digest(&secret));
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    fn digest(self, secret: &Secret) -> Digested<Self>
    where
        Self: Sized,
    {
        let (secret, inner) = (secret.clone(), self);
        Digested { secret, inner }
    }

    /// Uses another extractor if this one finds nothing.
    ///
    /// The two are kept apart: an API key that reads `10.0.0.1` is not the address 10.0.0.1. If
    /// none finds anything, the refusal names what the first lacks, or the peer's address if the
    /// server should have recorded it. A repeated [`FromHeader`] is refused.
    fn or<K: KeyExtractor>(self, other: K) -> Or
    where
        Self: Sized,
    {
        Or(vec![AnyKey::new(self), AnyKey::new(other)])
    }

    /// Counts all requests in which this finds nothing as one caller. A repeated [`FromHeader`] is
    /// refused.
    fn or_shared(self) -> Or
    where
        Self: Sized,
    {
        self.or(Constant("shared"))
    }

    /// Does not limit requests in which this finds nothing.
    ///
    /// Call it last: after a skip no alternative is tried, not by [`or`](Self::or) either. In a
    /// tuple it skips the whole tuple, if the parts before it are found.
    ///
    /// A repeated [`FromHeader`] is refused, and so is every request whose peer address the server
    /// should have recorded and has not: otherwise a limit by address would silently be none.
    fn or_skip(self) -> OrSkip<Self>
    where
        Self: Sized,
    {
        OrSkip(self)
    }
}

/// The properties that all keys of an extractor have. See [`KeyExtractor::check`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyTraits {
    /// The credential, `authorization` for example, that is in keys as it is. A rule whose key has
    /// one is refused with a [`ConfigError`] when a layer is built. Default: none
    pub exposed_credential: Option<&'static str>,
    /// True if keys hold a credential or a digest, which observers are not shown. Default: false
    pub is_secret: bool,
    /// True if a caller cannot make new keys by changing its requests: an address, a constant
    ///
    /// If the limits of a request take several calls, those by such keys come first: so a caller
    /// over the limit of its address cannot create limiters with invented names. Default: false
    pub is_bounded: bool,
}

impl KeyTraits {
    /// The properties of keys that show no credential, and a caller has few of.
    pub const BOUNDED: Self = Self {
        exposed_credential: None,
        is_secret: false,
        is_bounded: true,
    };

    /// Returns the properties of keys that may have components of both extractors.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            exposed_credential: self.exposed_credential.or(other.exposed_credential),
            is_secret: self.is_secret || other.is_secret,
            is_bounded: self.is_bounded && other.is_bounded,
        }
    }

    /// Returns the properties of keys that may have components of all of these.
    fn of_all(keys: &[AnyKey]) -> Result<Self, ConfigError> {
        let mut keys = keys.iter();
        keys.try_fold(Self::BOUNDED, |all, key| Ok(all.and(key.check()?)))
    }
}

/// The key of a request: components, in the order in which they were added.
///
/// Any bytes may be added: they are encoded, so that no component can imitate another.
#[derive(Clone, Default)]
pub struct Key {
    pub(crate) identity: Identity,
    /// The bits of likely mistakes in the setup, which the rule logs.
    pub(crate) mistakes: u8,
}

impl Key {
    /// Adds a component. A key to which nothing was added counts as missing.
    pub fn push(&mut self, component: impl AsRef<[u8]>) {
        self.identity.push(component.as_ref());
    }

    /// Adds the components that an extractor finds. Without any, the key is missing.
    pub(crate) fn add(&mut self, by: &dyn KeyExtractor, parts: &Parts) -> Result<(), NoKey> {
        let before = self.identity.end();
        by.extract(parts, self)?;
        if self.identity.end() == before {
            Err(NoKey::missing("identity"))
        } else {
            Ok(())
        }
    }

    /// Records that the server does not provide the peer's address: the setup is wrong, whatever
    /// the request.
    fn lacks_peer(&mut self) -> NoKey {
        self.mistakes |= mistakes::NO_PEER;
        NoKey::with_fault("peer address", Fault::Server)
    }
}

// A key belongs to a person.
opaque!(Key);

/// A request without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoKey {
    /// It should have one: refused, as 401, as 431 if a header is too long, or as 500 if the server
    /// did not record the peer's address
    Missing(Missing),
    /// The limit does not apply to it
    Skip,
}

impl NoKey {
    /// Reports something that the caller should have sent. Its name is shown to the caller.
    #[must_use]
    pub const fn missing(what: &'static str) -> Self {
        Self::with_fault(what, Fault::Caller)
    }

    const fn with_fault(what: &'static str, fault: Fault) -> Self {
        Self::Missing(Missing { what, fault })
    }

    /// Returns the side at fault; `None` if the limit does not apply.
    pub(crate) fn fault(self) -> Option<Fault> {
        match self {
            Self::Missing(missing) => Some(missing.fault),
            Self::Skip => None,
        }
    }
}

/// One limit for all requests of a rule. The text becomes part of the limiter's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant(pub &'static str);

impl KeyExtractor for Constant {
    fn extract(&self, _parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        key.push(self.0);
        Ok(())
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        Ok(KeyTraits::BOUNDED)
    }

    fn fingerprint(&self) -> Option<u64> {
        fingerprint_of(self.0)
    }
}

/// Counts by what a closure returns: `FromParts(|parts: &Parts| ..)`. `None` is a missing key.
///
/// A closure that captures nothing is the same wherever its rule is built again; one that captures
/// values is the same as itself alone: see [`KeyExtractor::fingerprint`].
#[derive(Clone, Copy)]
pub struct FromParts<F>(pub F);

impl<F, K> KeyExtractor for FromParts<F>
where
    F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    K: AsRef<[u8]>,
{
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        push_non_empty(key, (self.0)(parts), "identity")
    }
}

impl<F> fmt::Debug for FromParts<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromParts(..)")
    }
}

fn fingerprint_of(settings: impl Hash) -> Option<u64> {
    Some(BuildHasherDefault::<DefaultHasher>::default().hash_one(settings))
}

/// Adds one component, unless there is none or it is empty: an empty string identifies no caller.
fn push_non_empty(
    key: &mut Key,
    component: Option<impl AsRef<[u8]>>,
    what: &'static str,
) -> Result<(), NoKey> {
    match component {
        Some(component) if !component.as_ref().is_empty() => {
            key.identity.push(component.as_ref());
            Ok(())
        }
        _ => Err(NoKey::missing(what)),
    }
}

/// Returns the name that the key of a request with these fields has in Redis.
#[cfg(test)]
fn name_by(extractor: &impl KeyExtractor, fields: &[(&str, &str)]) -> Result<String, NoKey> {
    let request = http::Request::builder();
    let request = fields
        .iter()
        .fold(request, |it, (name, value)| it.header(*name, *value));
    name_of(extractor, request.body(()).unwrap())
}

/// Returns the name that a key of these requests has in Redis, without prefix and rule.
#[cfg(test)]
fn name_of<B>(extractor: &impl KeyExtractor, request: http::Request<B>) -> Result<String, NoKey> {
    let mut key = Key::default();
    key.add(extractor, &request.into_parts().0)?;
    let name = crate::values::name::Naming::derived("p", "r")
        .unwrap()
        .name(&key.identity);
    let key = name.as_str().strip_prefix("p:{");
    Ok(key.unwrap().strip_suffix("}:r").unwrap().to_owned())
}
