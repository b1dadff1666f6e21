//! The finished text of a name, with its hash.

use std::{
    cmp::Ordering,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    str,
    sync::LazyLock,
};

use super::Short;

/// The secret of this process: no outsider can choose texts that collide in its tables.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A finished text with its hash, which is computed once for all tables.
#[derive(Clone)]
pub(crate) struct Text {
    hash: u64,
    bytes: Short,
}

impl Text {
    /// Creates the text of these bytes, which are UTF-8.
    pub(super) fn new(bytes: Short) -> Self {
        let mut hasher = SEED.build_hasher();
        hasher.write(&bytes);
        Self {
            hash: hasher.finish(),
            bytes,
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes).unwrap_or_default()
    }

    /// Returns its hash, in which every bit counts as much as any other.
    pub(crate) fn seeded_hash(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.bytes == other.bytes
    }
}

impl Eq for Text {}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes[..].cmp(&other.bytes[..])
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        let mut bytes = Short::default();
        bytes.push(text.as_bytes());
        Self::new(bytes)
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
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However a text was built, it equals the `String` of the same contents, and so does its
        /// clone, in place up to the last byte.
        #[test]
        fn a_text_is_a_string(
            steps in prop::collection::vec(
                ("[a-z%é]{0,40}", any::<prop::sample::Index>(), any::<bool>()),
                0..8,
            ),
        ) {
            let (mut bytes, mut string) = (Short::default(), String::new());
            for (text, cut, cuts) in steps {
                let end = cut.index(string.len() + 1);
                if cuts && string.is_char_boundary(end) {
                    bytes.truncate(end);
                    string.truncate(end);
                } else {
                    bytes.push(text.as_bytes());
                    string.push_str(&text);
                }
            }
            let text = Text::new(bytes);
            prop_assert_eq!(text.as_str(), &string);
            let whole = Text::from(&*string);
            for same in [whole.clone(), text.clone(), whole] {
                prop_assert!(same == text, "cut and whole");
                prop_assert_eq!(same.seeded_hash(), text.seeded_hash());
            }
            let is_inline = matches!(Text::from(&*string).bytes, Short::Inline(..));
            prop_assert_eq!(is_inline, string.len() <= 70);
        }
    }
}
