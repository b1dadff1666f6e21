//! Extractors made of others: alternatives, all of several, and requests that need no key.

use std::sync::Arc;

use http::request::Parts;

use super::{Key, KeyExtractor, KeyTraits, NoKey, fingerprint_of};
use crate::{
    store::rule_names::KeyIdentity,
    values::{decision::Fault, error::ConfigError},
};

/// An extractor of any type.
#[derive(Clone, Debug)]
pub(crate) struct AnyKey(pub(crate) Arc<dyn KeyExtractor>);

impl AnyKey {
    pub(crate) fn new(extractor: impl KeyExtractor) -> Self {
        Self(Arc::new(extractor))
    }

    /// Returns what two extractors share that find the same keys, while both are in use.
    pub(crate) fn identity(&self) -> KeyIdentity {
        let address = || KeyIdentity::Address(Arc::as_ptr(&self.0).addr());
        let fingerprint = self.0.type_fingerprint();
        fingerprint.map_or_else(address, KeyIdentity::Fingerprint)
    }
}

impl KeyExtractor for AnyKey {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        self.0.extract(parts, key)
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        self.0.check()
    }

    fn fingerprint(&self) -> Option<u64> {
        fingerprint_of(self.identity())
    }
}

/// Returns the fingerprint of several extractors.
pub(super) fn fingerprint_of_all(keys: &[AnyKey]) -> Option<u64> {
    fingerprint_of(keys.iter().map(AnyKey::identity).collect::<Vec<_>>())
}

/// Tries several extractors in order until one finds something. Made by [`KeyExtractor::or`].
#[derive(Clone, Debug)]
pub struct Or(pub(super) Vec<AnyKey>);

impl Or {
    /// Uses another extractor if none of these finds anything.
    #[must_use]
    pub fn or<K: KeyExtractor>(mut self, other: K) -> Self {
        self.0.push(AnyKey::new(other));
        self
    }
}

impl KeyExtractor for Or {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let start = key.identity.end();
        let mut missing: Option<NoKey> = None;
        for (index, alternative) in self.0.iter().enumerate() {
            if index > 0 {
                key.identity.mark(index);
            }
            let Err(none) = key.add(&*alternative.0, parts) else {
                // The first alternative goes unmarked, unless it could be taken for another.
                if index == 0 && key.identity.is_marked_from(start) {
                    key.identity.mark_from(start, 0);
                }
                return Ok(());
            };
            match none.fault() {
                None | Some(Fault::Ambiguous | Fault::TooLong { .. }) => return Err(none),
                Some(Fault::Caller | Fault::Server) => {}
            }
            key.identity.truncate(start);
            // Reports the first reason, unless a later one is the server's, which no caller can
            // change.
            let is_servers = none.fault() == Some(Fault::Server);
            if missing.is_none_or(|first| is_servers && first.fault() != none.fault()) {
                missing = Some(none);
            }
        }
        Err(missing.unwrap_or(NoKey::missing("identity")))
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        KeyTraits::of_all(&self.0)
    }

    fn fingerprint(&self) -> Option<u64> {
        fingerprint_of_all(&self.0)
    }
}

/// Does not limit requests in which an extractor finds nothing. Made by [`KeyExtractor::or_skip`].
#[derive(Clone, Copy, Debug)]
pub struct OrSkip<K>(pub(super) K);

impl<K: KeyExtractor> KeyExtractor for OrSkip<K> {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        key.add(&self.0, parts).map_err(|none| match none.fault() {
            Some(Fault::Caller) | None => NoKey::Skip,
            Some(Fault::Ambiguous | Fault::TooLong { .. } | Fault::Server) => none,
        })
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        self.0.check()
    }

    fn fingerprint(&self) -> Option<u64> {
        self.0.fingerprint()
    }
}

macro_rules! tuple {
    ($($type:ident $index:tt),+) => {
        impl<$($type: KeyExtractor),+> KeyExtractor for ($($type,)+) {
            fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
                $(key.add(&self.$index, parts)?;)+
                Ok(())
            }

            fn check(&self) -> Result<KeyTraits, ConfigError> {
                Ok(KeyTraits::BOUNDED$(.and(self.$index.check()?))+)
            }

            fn fingerprint(&self) -> Option<u64> {
                fingerprint_of(($(self.$index.fingerprint()?,)+))
            }
        }
    };
}
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::key::{
        ClientIp, Constant, FromHeader, FromParts, PeerIp, Secret, name_by as name,
    };

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
        let refused = Err(NoKey::with_fault("a", Fault::Ambiguous));
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
        let (a, server) = (
            || FromHeader::new("a"),
            Err(NoKey::with_fault("peer address", Fault::Server)),
        );
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

    /// Finds nothing, and does not say so.
    #[derive(Clone, Copy, Debug)]
    struct Silent;

    impl KeyExtractor for Silent {
        fn extract(&self, _: &Parts, _: &mut Key) -> Result<(), NoKey> {
            Ok(())
        }
    }

    /// Otherwise two tuples that lack different parts would be one key.
    #[test]
    fn an_extractor_that_finds_nothing_lacks_its_key_wherever_it_stands() {
        let missing = Err(NoKey::missing("identity"));
        let constant = || Constant("k");
        assert_eq!(name(&Silent, &[]), missing);
        assert_eq!(name(&(Silent, constant()), &[]), missing);
        assert_eq!(name(&(constant(), Silent), &[]), missing);
        assert_eq!(name(&(constant(), constant(), Silent), &[]), missing);
        let listed = vec![AnyKey::new(constant()), AnyKey::new(Silent)];
        assert_eq!(name(&listed, &[]), missing);
        assert_eq!(name(&Silent.or_skip(), &[]), Err(NoKey::Skip));
        assert_eq!(name(&(constant(), Silent.or_skip()), &[]), Err(NoKey::Skip));
        assert_eq!(name(&Silent.or(constant()), &[]).unwrap(), "+1,k");
        assert_eq!(name(&Silent.or_shared(), &[]).unwrap(), "+1,shared");
        let secret = Secret::new("k1", [7; 32]).unwrap();
        assert_eq!(name(&Silent.digest(&secret), &[]), missing);
    }
}
