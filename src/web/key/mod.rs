//! Keys: the caller as which a request is counted, found in the head of the request.
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
mod digest;
#[cfg(feature = "config")]
mod dynamic;
mod extension;
mod forwarded;
mod header;
mod ip;
mod mistakes;
mod route;

use std::{any::TypeId, fmt, sync::Arc};

use http::request::Parts;

#[cfg(feature = "config")]
pub(crate) use self::dynamic::{All, Any, intern};
pub(crate) use self::mistakes::PEER_HINT;
pub(crate) use self::{
    client_ip::network_of,
    mistakes::{Mistakes, Warned},
};
pub use self::{
    client_ip::{ClientIp, ForwardedHeader},
    digest::{Digested, Secret},
    extension::FromExtension,
    header::FromHeader,
    ip::{PeerAddr, PeerIp},
    route::Route,
};
use crate::{
    decision::{Fault, Missing},
    error::ConfigError,
    name::Identity,
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
pub trait KeyExtractor: fmt::Debug + Send + Sync + 'static {
    /// Adds the request's components to `key`.
    ///
    /// # Errors
    ///
    /// [`NoKey`], if the request does not have the key.
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey>;

    /// Checks the extractor's own settings, when a layer is built.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with the value at fault.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns the credential, `authorization` for example, that this puts into keys as it is.
    ///
    /// A rule whose key returns one is refused with a [`ConfigError`] when a layer is built. An
    /// extractor that delegates to others delegates this, too. Default: none.
    fn exposed_credential(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether a caller has few keys by this, whatever its requests contain: an address, a
    /// constant.
    ///
    /// If the limits of a request take several calls, those by such keys come first: so a caller
    /// over the limit of its address cannot create limiters with invented names. An extractor that
    /// delegates to others returns this for all of them. Default: no.
    fn is_bounded(&self) -> bool {
        false
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
        Digested::new(self, secret.clone())
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
        Or(vec![Arc::new(self), Arc::new(other)])
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
    /// A repeated [`FromHeader`] is refused, and so is every request whose peer address the server
    /// should have recorded and has not: otherwise a limit by address would silently be none.
    fn or_skip(self) -> OrSkip<Self>
    where
        Self: Sized,
    {
        OrSkip(self)
    }
}

/// The key of a request: components, in the order in which they were added.
///
/// Any bytes may be added: they are encoded, so that no component can imitate another.
#[derive(Clone, Default)]
pub struct Key(pub(crate) Identity, pub(crate) Mistakes);

impl Key {
    /// Adds a component. A key to which nothing was added counts as missing.
    pub fn push(&mut self, component: impl AsRef<[u8]>) {
        self.0.push(component.as_ref());
    }

    /// Records what looks like a mistake in the setup, for the rule to warn about.
    fn record(&mut self, mistake: Mistakes) {
        self.1.add(mistake);
    }

    /// Records that the server has not provided the peer's address: whatever becomes of the
    /// request, the setup is wrong.
    fn lacks_peer(&mut self) -> NoKey {
        self.record(Mistakes::NO_PEER);
        NoKey::missing_peer()
    }
}

// A key belongs to a person.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

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
    /// Returns that the caller should have sent something, named here. The name is shown to the
    /// caller.
    #[must_use]
    pub const fn missing(what: &'static str) -> Self {
        Self::of(what, Fault::Caller)
    }

    /// Returns that the caller has sent it twice.
    pub(crate) const fn ambiguous(what: &'static str) -> Self {
        Self::of(what, Fault::Ambiguous)
    }

    /// Returns that the caller has sent more than `most` bytes of it.
    pub(crate) const fn too_long(what: &'static str, most: usize) -> Self {
        Self::of(what, Fault::TooLong { most })
    }

    /// Returns that the server did not record the peer's address.
    pub(crate) const fn missing_peer() -> Self {
        Self::of("peer address", Fault::Server)
    }

    const fn of(what: &'static str, fault: Fault) -> Self {
        Self::Missing(Missing { what, fault })
    }

    /// Returns whose fault it is, if it is one.
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

    fn is_bounded(&self) -> bool {
        true
    }
}

/// Counts by what a closure returns: `FromParts(|parts: &Parts| ..)`. `None` is a missing key.
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

/// Tries several extractors in order until one finds something. Made by [`KeyExtractor::or`].
#[derive(Clone)]
pub struct Or(Vec<Arc<dyn AnyKey>>);

impl Or {
    /// Uses another extractor if none of these finds anything.
    #[must_use]
    pub fn or<K: KeyExtractor>(mut self, other: K) -> Self {
        self.0.push(Arc::new(other));
        self
    }
}

impl KeyExtractor for Or {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let start = key.0.end();
        let mut first_missing = None;
        for (index, alternative) in self.0.iter().enumerate() {
            if index > 0 {
                key.0.mark(index);
            }
            let before = key.0.end();
            let found = match alternative.extract(parts, key) {
                // An extractor that adds nothing has found nothing.
                Ok(()) if key.0.end() == before => Err(NoKey::missing("identity")),
                found => found,
            };
            match found {
                Ok(()) => {
                    // The first alternative goes unmarked, unless it could be taken for another.
                    if index == 0 && key.0.is_marked_from(start) {
                        key.0.mark_from(start, 0);
                    }
                    return Ok(());
                }
                Err(NoKey::Skip) => return Err(NoKey::Skip),
                Err(missing) => {
                    if let Some(Fault::Ambiguous | Fault::TooLong { .. }) = missing.fault() {
                        return Err(missing);
                    }
                    key.0.truncate(start);
                    // The caller cannot change what the server lacks.
                    let is_worse = first_missing.is_none_or(|first: NoKey| {
                        first.fault() != missing.fault() && missing.fault() == Some(Fault::Server)
                    });
                    if is_worse {
                        first_missing = Some(missing);
                    }
                }
            }
        }
        Err(first_missing.unwrap_or(NoKey::missing("identity")))
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.0
            .iter()
            .try_for_each(|alternative| alternative.check())
    }

    fn exposed_credential(&self) -> Option<&'static str> {
        self.0
            .iter()
            .find_map(|alternative| alternative.exposed_credential())
    }

    fn is_bounded(&self) -> bool {
        self.0.iter().all(|alternative| alternative.is_bounded())
    }
}

impl fmt::Debug for Or {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let descriptions = self.0.iter().map(|alternative| alternative.description());
        f.debug_list().entries(descriptions).finish()
    }
}

/// Does not limit requests in which an extractor finds nothing. Made by [`KeyExtractor::or_skip`].
#[derive(Clone, Copy, Debug)]
pub struct OrSkip<K>(K);

impl<K: KeyExtractor> KeyExtractor for OrSkip<K> {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        self.0
            .extract(parts, key)
            .map_err(|none| match none.fault() {
                Some(Fault::Caller) | None => NoKey::Skip,
                Some(Fault::Ambiguous | Fault::TooLong { .. } | Fault::Server) => none,
            })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.0.check()
    }

    fn exposed_credential(&self) -> Option<&'static str> {
        self.0.exposed_credential()
    }

    fn is_bounded(&self) -> bool {
        self.0.is_bounded()
    }
}

macro_rules! tuple {
    ($($field:ident),+) => {
        impl<$($field: KeyExtractor),+> KeyExtractor for ($($field,)+) {
            #[allow(non_snake_case, reason = "the fields are named as their types")]
            fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
                let ($($field,)+) = self;
                $($field.extract(parts, key)?;)+
                Ok(())
            }

            #[allow(non_snake_case, reason = "the fields are named as their types")]
            fn check(&self) -> Result<(), ConfigError> {
                let ($($field,)+) = self;
                $($field.check()?;)+
                Ok(())
            }

            #[allow(non_snake_case, reason = "the fields are named as their types")]
            fn exposed_credential(&self) -> Option<&'static str> {
                let ($($field,)+) = self;
                None$(.or_else(|| $field.exposed_credential()))+
            }

            #[allow(non_snake_case, reason = "the fields are named as their types")]
            fn is_bounded(&self) -> bool {
                let ($($field,)+) = self;
                true $(&& $field.is_bounded())+
            }
        }
    };
}
tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);

/// The object-safe part of an extractor: the trait itself has methods that need its type.
pub(crate) trait AnyKey: fmt::Debug + Send + Sync {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey>;
    fn check(&self) -> Result<(), ConfigError>;
    fn exposed_credential(&self) -> Option<&'static str>;
    fn is_bounded(&self) -> bool;
    /// Returns its type and settings: extractors that are equal in this find the same keys.
    fn description(&self) -> String;
}

impl<K: KeyExtractor> AnyKey for K {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        KeyExtractor::extract(self, parts, key)
    }

    fn check(&self) -> Result<(), ConfigError> {
        KeyExtractor::check(self)
    }

    fn exposed_credential(&self) -> Option<&'static str> {
        KeyExtractor::exposed_credential(self)
    }

    fn is_bounded(&self) -> bool {
        KeyExtractor::is_bounded(self)
    }

    fn description(&self) -> String {
        // The type's name alone is the same for all closures of a function.
        let (name, id) = (std::any::type_name::<K>(), TypeId::of::<K>());
        format!("{name} {id:?} {self:?}")
    }
}

/// Adds one component, unless there is none or it is empty: an empty string identifies no caller.
fn push_non_empty(
    key: &mut Key,
    component: Option<impl AsRef<[u8]>>,
    what: &'static str,
) -> Result<(), NoKey> {
    match component {
        Some(component) if !component.as_ref().is_empty() => {
            key.push(component);
            Ok(())
        }
        _ => Err(NoKey::missing(what)),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::name::Naming;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn name(extractor: &impl KeyExtractor, headers: &[(&str, &str)]) -> Result<String, NoKey> {
        let mut key = Key::default();
        extractor.extract(&parts(headers), &mut key)?;
        let naming = Naming::derived("p", "r").unwrap();
        let name = naming.name(&key.0);
        Ok(name
            .as_str()
            .strip_prefix("p:{")
            .unwrap()
            .strip_suffix("}:r")
            .unwrap()
            .to_owned())
    }

    #[test]
    fn alternatives_cannot_be_taken_for_each_other() {
        let (a, b, c) = (
            || FromHeader::new("a"),
            || FromHeader::new("b"),
            || FromHeader::new("c"),
        );
        let flat = a().or(b()).or(c());
        assert_eq!(name(&flat, &[("a", "x")]).unwrap(), "x");
        assert_eq!(name(&flat, &[("b", "x")]).unwrap(), "+1,x");
        assert_eq!(name(&flat, &[("c", "x")]).unwrap(), "+2,x");
        assert_eq!(name(&flat, &[("a", "+1"), ("b", "x")]).unwrap(), "%2B1");

        // Also if they are nested or of other types.
        let nested = OrSkip(a().or(b())).or(c());
        assert_eq!(name(&nested, &[("b", "x")]).unwrap(), "+0,+1,x");
        let behind = (Constant("k"), (a().or(b()), Constant("z")).or(c()));
        assert_eq!(name(&behind, &[("a", "x")]).unwrap(), "k,x,z");
        assert_eq!(name(&behind, &[("b", "x")]).unwrap(), "k,+0,+1,x,z");
        assert_eq!(name(&behind, &[("c", "x")]).unwrap(), "k,+1,x");
    }

    #[test]
    fn a_repeated_header_is_not_excused() {
        let twice = [("a", "x"), ("a", "y"), ("b", "z")];
        let (a, b) = (|| FromHeader::new("a"), || FromHeader::new("b"));
        let refused = Err(NoKey::ambiguous("a"));
        assert_eq!(name(&a(), &twice), refused);
        assert_eq!(name(&a().or(b()), &twice), refused);
        assert_eq!(name(&FromHeader::new("c").or(a()).or(b()), &twice), refused);
        assert_eq!(name(&a().or_shared(), &twice), refused);
        assert_eq!(name(&a().or_skip(), &twice), refused);
        assert_eq!(name(&(b(), a()).or_skip().or_shared(), &twice), refused);
        let secret = Secret::new("k1", [7; 32]).unwrap();
        assert_eq!(name(&a().digest(&secret).or_skip(), &twice), refused);
        // Extractors after the first match are not called.
        assert_eq!(name(&b().or(a()), &twice).unwrap(), "z");
    }

    #[test]
    fn the_servers_fault_goes_before_the_callers() {
        let (a, server) = (|| FromHeader::new("a"), Err(NoKey::missing_peer()));
        assert_eq!(name(&a().or(PeerIp), &[]), server);
        assert_eq!(name(&PeerIp.or(a()), &[]), server);
        assert_eq!(name(&a().or(PeerIp).or(FromHeader::new("b")), &[]), server);
        assert_eq!(name(&PeerIp.or_skip(), &[]), server);
        assert_eq!(name(&ClientIp::hops(1).or_skip(), &[]), server);
        assert_eq!(name(&a().or(PeerIp.or_skip()).or_skip(), &[]), server);
        // Another key stands in for it, which causes only a warning.
        assert_eq!(name(&PeerIp.or_shared(), &[]).unwrap(), "+1,shared");
        assert_eq!(name(&PeerIp.or(a()), &[("a", "x")]).unwrap(), "+1,x");
    }

    #[test]
    fn what_is_missing_is_named_or_excused() {
        assert_eq!(name(&FromHeader::new("a"), &[]), Err(NoKey::missing("a")));
        let both = FromHeader::new("a").or(FromHeader::new("b"));
        assert_eq!(name(&both, &[]), Err(NoKey::missing("a")));
        assert_eq!(name(&FromHeader::new("a").or_skip(), &[]), Err(NoKey::Skip));
        assert_eq!(
            name(&FromHeader::new("a").or_shared(), &[]).unwrap(),
            "+1,shared"
        );
        assert_eq!(
            name(&(Constant("k"), FromHeader::new("a")), &[]),
            Err(NoKey::missing("a"))
        );
        assert_eq!(
            name(&FromParts(|_: &Parts| Some("")), &[]),
            Err(NoKey::missing("identity"))
        );
    }
}
