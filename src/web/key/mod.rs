//! Who is counted: what a request's head says about whom it is from.
//!
//! An extractor adds one or more components to a [`Key`]. What it cannot find is a refusal, named
//! in the answer, unless [`or`](KeyExtractor::or), [`or_shared`](KeyExtractor::or_shared) or
//! [`or_skip`](KeyExtractor::or_skip) says otherwise: a limit never silently lets pass. Three
//! things these do not excuse: a header sent twice or beyond its [length](FromHeader::max_len), by
//! which a caller would make itself nobody, and with `or_skip` a server that does not note the
//! peer's address. Where another key stands in for the address, a warning says so once. A CORS
//! preflight is never refused for want of a key, as browsers send no credentials with it: a rule
//! whose key it lacks leaves it out (see the [guide](crate::docs::guide#preflights)).
//!
//! A key costs what its bytes cost, and a key of more than 128 bytes a SHA-256 of them. A header is
//! taken up to 16 KiB. What a closure finds is taken whole: its bound is the closure's.
//!
//! | extractor | who |
//! |---|---|
//! | [`PeerIp`] | the address at the other end of the connection |
//! | [`ClientIp`] | the client's address, also behind proxies |
//! | [`FromHeader`] | a header's value |
//! | [`FromExtension`] | a value that an outer layer put into the request's extensions: the user |
//! | [`Route`] | the method and the route, or the gRPC method |
//! | [`Constant`] | everybody together |
//! | [`FromParts`] | what a closure finds |
//! | tuples of these | all of their components together |
//!
//! Combine with care: behind a proxy, the peer's address is the proxy's. What others must not read becomes a key as a
//! [`digest`](KeyExtractor::digest).

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
#[cfg(feature = "tracing")]
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

/// Finds out who a request is from.
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
    /// Adds what the request says about whom it is from to `key`.
    ///
    /// # Errors
    ///
    /// [`NoKey`], if the request does not say it.
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey>;

    /// Checks what the extractor was made of, when a layer is built.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with the value at fault.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// The credential, `authorization` for example, that this puts into keys as it is.
    ///
    /// A rule whose key says so is refused with a [`ConfigError`] when a layer is built. An
    /// extractor that hands on to others hands this on, too. Default: none.
    fn exposed_credential(&self) -> Option<&'static str> {
        None
    }

    /// Whether a caller has few keys by this, whatever its requests say: an address, a constant.
    ///
    /// Where the limits of a request take several calls, those by such keys are asked first: so whoever is over its address's
    /// limit does not get to make up names. An extractor that hands on to others says this of all of them. Default: no.
    fn is_bounded(&self) -> bool {
        false
    }

    /// Puts a digest into keys instead of what this finds: HMAC-SHA-256 under a secret.
    ///
    /// Keys can be seen in Redis: by MONITOR and the slow log, in dumps, on replicas. Use it for tokens, e-mail addresses,
    /// and addresses where they are personal data. A hash without a secret would not do: who can guess a value could
    /// look it up.
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

    /// Uses another extractor where this one finds nothing.
    ///
    /// The two are kept apart: an API key that reads `10.0.0.1` is not the address 10.0.0.1. Where none finds anything, the
    /// refusal names what the first lacks, or the peer's address if the server should have noted that.
    /// A [`FromHeader`] that is
    /// sent twice is refused.
    fn or<K: KeyExtractor>(self, other: K) -> Or
    where
        Self: Sized,
    {
        Or(vec![Arc::new(self), Arc::new(other)])
    }

    /// Counts all requests in which this finds nothing as one caller. A [`FromHeader`] that is sent
    /// twice is refused.
    fn or_shared(self) -> Or
    where
        Self: Sized,
    {
        self.or(Constant("shared"))
    }

    /// Does not limit requests in which this finds nothing.
    ///
    /// A [`FromHeader`] that is sent twice is refused, and so is every request where the server should
    /// have noted the peer's
    /// address and has not: else a limit by address would be none, and nobody would see it.
    fn or_skip(self) -> OrSkip<Self>
    where
        Self: Sized,
    {
        OrSkip(self)
    }
}

/// Who a request is from: components, in the order in which they were added.
///
/// Any bytes may be added: they are encoded, so that no component can imitate another.
#[derive(Clone, Default)]
pub struct Key(pub(crate) Identity, pub(crate) Mistakes);

impl Key {
    /// Adds a component. A key to which nothing was added counts as missing.
    pub fn push(&mut self, component: impl AsRef<[u8]>) {
        self.0.push(component.as_ref());
    }

    /// Notes what looks like a mistake in the set-up, for the rule to warn about.
    fn note(&mut self, mistake: Mistakes) {
        self.1.add(mistake);
    }

    /// Notes that the server has not said who the peer is: whatever becomes of the request, it was set up wrongly.
    fn lacks_peer(&mut self) -> NoKey {
        self.note(Mistakes::NO_PEER);
        NoKey::missing_peer()
    }
}

// A key is somebody's.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A request that does not say who it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoKey {
    /// It should have: refused, as 401, as 431 where a header is too long, or as 500 where the
    /// server forgot to note the peer's address
    Missing(Missing),
    /// The limit does not concern it
    Skip,
}

impl NoKey {
    /// The caller should have sent something, named here. It is shown to the caller.
    #[must_use]
    pub const fn missing(what: &'static str) -> Self {
        Self::Missing(Missing {
            what,
            fault: Fault::Caller,
        })
    }

    /// The caller has said it twice.
    pub(crate) const fn ambiguous(what: &'static str) -> Self {
        Self::Missing(Missing {
            what,
            fault: Fault::Ambiguous,
        })
    }

    /// The caller has said it in more than `most` bytes.
    pub(crate) const fn too_long(what: &'static str, most: usize) -> Self {
        Self::Missing(Missing {
            what,
            fault: Fault::TooLong { most },
        })
    }

    /// Whose fault it is, if it is one.
    pub(crate) fn fault(self) -> Option<Fault> {
        match self {
            Self::Missing(missing) => Some(missing.fault),
            Self::Skip => None,
        }
    }

    pub(crate) const fn missing_peer() -> Self {
        Self::Missing(Missing {
            what: "peer address",
            fault: Fault::Server,
        })
    }
}

/// Everybody together: one limit for all requests of a rule. The text becomes part of the limiter's name.
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

/// A key that a closure finds: `FromParts(|parts: &Parts| ..)`; `None` is a missing key.
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

/// Several extractors, of which the first that finds something counts. Made by [`KeyExtractor::or`].
#[derive(Clone)]
pub struct Or(Vec<Arc<dyn AnyKey>>);

impl Or {
    /// Uses another extractor where none of these finds anything.
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
                // Nobody is who adds nothing.
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
                    // The caller can do nothing about what the server lacks.
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

/// An extractor that lets pass what it finds nothing in. Made by [`KeyExtractor::or_skip`].
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

/// An extractor behind a pointer: the trait itself has methods that need its type.
pub(crate) trait AnyKey: fmt::Debug + Send + Sync {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey>;
    fn check(&self) -> Result<(), ConfigError>;
    fn exposed_credential(&self) -> Option<&'static str>;
    fn is_bounded(&self) -> bool;
    /// Its type and what it was made of: extractors that agree in this find the same keys.
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
        // The name alone is the same for all closures of a function.
        let (name, id) = (std::any::type_name::<K>(), TypeId::of::<K>());
        format!("{name} {id:?} {self:?}")
    }
}

/// Adds one component, unless there is none or it is empty: nobody is the empty string.
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

        // However they are nested, and whatever hides their type.
        let nested = OrSkip(a().or(b())).or(c());
        assert_eq!(name(&nested, &[("b", "x")]).unwrap(), "+0,+1,x");
        let behind = (Constant("k"), (a().or(b()), Constant("z")).or(c()));
        assert_eq!(name(&behind, &[("a", "x")]).unwrap(), "k,x,z");
        assert_eq!(name(&behind, &[("b", "x")]).unwrap(), "k,+0,+1,x,z");
        assert_eq!(name(&behind, &[("c", "x")]).unwrap(), "k,+1,x");
    }

    #[test]
    fn what_is_said_twice_is_not_excused() {
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
        // What is not asked is not read.
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
        // Another key stands in for it: that is only warned about.
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
