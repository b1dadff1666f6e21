//! Finished names, each with its hash.

use std::{
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    sync::{Arc, LazyLock},
};

use crate::draft::{Draft, Short};

/// The secret of this process: no outsider can choose texts that collide in its tables.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A finished text with its hash, which is computed once for all tables.
///
/// A clone copies some bytes, or increments the reference count of a long text.
#[derive(Clone)]
pub(crate) struct Text {
    hash: u64,
    held: Held,
}

#[derive(Clone)]
enum Held {
    Short(Short),
    Long(Arc<str>),
}

impl Text {
    fn new(held: Held) -> Self {
        let mut hasher = SEED.build_hasher();
        hasher.write(held.as_bytes());
        Self {
            hash: hasher.finish(),
            held,
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        match &self.held {
            Held::Short(short) => short.as_str(),
            Held::Long(long) => long,
        }
    }

    /// Returns its hash, in which every bit counts as much as any other.
    pub(crate) fn seeded_hash(&self) -> u64 {
        self.hash
    }
}

impl Held {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(short) => short.as_bytes(),
            Self::Long(long) => long.as_bytes(),
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.held.as_bytes() == other.held.as_bytes()
    }
}

impl Eq for Text {}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl From<Draft> for Text {
    fn from(draft: Draft) -> Self {
        Self::new(match draft {
            Draft::Short(short) => Held::Short(short),
            Draft::Long(long) => Held::Long(long.into()),
        })
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        let mut draft = Draft::default();
        draft.push(text);
        draft.into()
    }
}

/// Builds the hashers of tables whose keys are texts, or contain some.
pub(crate) type BuildSpread = BuildHasherDefault<Spread>;

/// Hashes what is already hashed by the secret of this process: it only spreads the given numbers.
#[derive(Clone, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        // An odd number with as many ones as zeros. Both halves of the product count, so that all
        // bits of one affect all bits of the other.
        const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ number).wrapping_mul(FACTOR);
        self.0 = (product as u64).rotate_left(5) ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::draft::SHORT;

    proptest! {
        /// However a text was built, it equals the `String` of the same contents, in place up to
        /// the last byte.
        #[test]
        fn a_draft_is_a_string(
            steps in prop::collection::vec(
                ("[a-z%é]{0,40}", any::<prop::sample::Index>(), any::<bool>()),
                0..8,
            ),
        ) {
            let (mut draft, mut string) = (Draft::default(), String::new());
            for (text, cut, cuts) in steps {
                let end = cut.index(string.len() + 1);
                if cuts && string.is_char_boundary(end) {
                    draft.truncate(end);
                    string.truncate(end);
                } else {
                    write!(draft, "{text}").unwrap();
                    string.push_str(&text);
                }
                prop_assert_eq!(draft.as_str(), &string);
                prop_assert_eq!(draft.len(), string.len());
            }
            let text = Text::from(draft);
            prop_assert_eq!(text.as_str(), &string);
            let whole = Text::from(&*string);
            prop_assert!(whole == text, "cut and whole");
            prop_assert_eq!(whole.seeded_hash(), text.seeded_hash());
            prop_assert_eq!(matches!(whole.held, Held::Short(_)), string.len() <= SHORT);
        }
    }
}
