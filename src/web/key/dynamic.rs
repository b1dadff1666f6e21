//! Extractors that a rules file combines at run time.

use std::{collections::BTreeSet, sync::Mutex};

use http::request::Parts;

use super::{AnyKey, Key, KeyExtractor, KeyTraits, NoKey, Or, combine::fingerprint_of_all};
use crate::sync::lock;
use crate::values::error::ConfigError;

impl AnyKey {
    /// Combines several extractors into the first that finds something. A single one is returned
    /// unchanged, and so makes the same names.
    pub(crate) fn first_of(mut alternatives: Vec<Self>) -> Option<Self> {
        match alternatives.len() {
            0 | 1 => alternatives.pop(),
            _ => Some(Self::new(Or(alternatives))),
        }
    }
}

/// Adds the components of all, like a tuple of them.
impl KeyExtractor for Vec<AnyKey> {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        self.iter().try_for_each(|any| key.add(&*any.0, parts))
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        KeyTraits::of_all(self)
    }

    fn fingerprint(&self) -> Option<u64> {
        fingerprint_of_all(self)
    }
}

/// Returns the same text for the life of the process: names of headers, services and constants,
/// which are parts of responses and of limiters' names.
///
/// Each text is kept once, however often a file is read. Their number is that of the texts that an
/// operator writes while the process lives.
pub(crate) fn intern(text: &str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut texts = lock(&TEXTS);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let kept: &'static str = Box::leak(text.into());
    texts.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::key::{Constant, FromHeader, name_by};

    fn name(extractor: &impl KeyExtractor, headers: &[&'static str]) -> Result<String, NoKey> {
        let fields: Vec<_> = headers.iter().map(|name| (*name, "x")).collect();
        name_by(extractor, &fields)
    }

    /// A rule may move from code into a file, and its limiters stay.
    #[test]
    fn names_are_those_of_the_same_extractors_in_code() {
        let (a, b) = (|| FromHeader::new("a"), || FromHeader::new("b"));
        let any = |header| AnyKey::new(header);
        let (k, kept) = (|| Constant("k"), || any_constant("k"));
        for headers in [&[][..], &["a"], &["b"], &["a", "b"]] {
            let or = AnyKey::first_of(vec![any(a()), any(b())]).unwrap();
            assert_eq!(name(&or, headers), name(&a().or(b()), headers));
            let shared =
                AnyKey::first_of(vec![or.clone(), AnyKey::new(Constant("shared"))]).unwrap();
            assert_eq!(
                name(&shared, headers),
                name(&KeyExtractor::or_shared(a().or(b())), headers)
            );
            let all = vec![kept(), or];
            assert_eq!(name(&all, headers), name(&(k(), a().or(b())), headers));
            let one = AnyKey::first_of(vec![any(a())]).unwrap();
            assert_eq!(name(&one, headers), name(&a(), headers));
        }
    }

    fn any_constant(text: &str) -> AnyKey {
        AnyKey::new(Constant(intern(text)))
    }

    /// One part that callers can invent makes the whole key unbounded.
    #[test]
    fn what_callers_make_up_is_not_bounded() {
        use crate::web::key::{ClientIp, FromParts, PeerIp, Secret};

        let secret = Secret::new("k1", [7; 32]).unwrap();
        let header = || FromHeader::new("a");
        let any = |bounded: bool| {
            if bounded {
                AnyKey::new(PeerIp)
            } else {
                AnyKey::new(header())
            }
        };
        let bounded: [&dyn KeyExtractor; 8] = [
            &PeerIp,
            &ClientIp::hops(1),
            &Constant("all"),
            &(PeerIp, Constant("all")),
            &PeerIp.or_shared(),
            &PeerIp.or_skip(),
            &PeerIp.digest(&secret),
            &vec![any(true), any(true)],
        ];
        let made_up: [&dyn KeyExtractor; 9] = [
            &header(),
            &FromParts(|_: &Parts| Some("x")),
            &(PeerIp, header()),
            &(header(), PeerIp),
            &header().or(PeerIp),
            &PeerIp.or(header()),
            &header().or_skip(),
            &header().digest(&secret),
            &vec![any(true), any(false)],
        ];
        for (keys, expected) in [(&bounded[..], true), (&made_up, false)] {
            for key in keys {
                assert_eq!(key.check().unwrap().is_bounded, expected, "{key:?}");
            }
        }
    }

    #[test]
    fn a_text_is_kept_once() {
        let (first, second) = (intern("x-once"), intern(&String::from("x-once")));
        assert!(std::ptr::eq(first, second));
        assert_eq!(intern("x-other"), "x-other");
    }
}
