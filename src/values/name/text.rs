//! The text of a name: [`Short`] while it is put together, then [`Text`] with its hash.

use std::{
    cmp::Ordering,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    ops::Deref,
    str,
    sync::LazyLock,
};

/// The longest inline text: `ratelimit:{..}:..` with a UUID as identity leaves 21 bytes for the
/// rule.
const INLINE: usize = 70;

/// Bytes that grow at their end.
///
/// Not a `SmallVec`: each request adds to several texts, and with it an addition takes four times
/// as many instructions.
#[derive(Clone)]
pub(crate) enum Short {
    Inline(u8, [u8; INLINE]),
    Heap(Vec<u8>),
}

impl Short {
    pub(crate) fn push(&mut self, text: &[u8]) {
        if let Self::Inline(len, bytes) = self {
            let begin = usize::from(*len);
            if let Some(free) = bytes.get_mut(begin..begin + text.len()) {
                free.copy_from_slice(text);
                *len += text.len() as u8;
                return;
            }
        }
        self.push_to_heap(text);
    }

    #[cold]
    fn push_to_heap(&mut self, text: &[u8]) {
        match self {
            Self::Inline(..) => *self = Self::Heap([&**self, text].concat()),
            Self::Heap(heap) => heap.extend_from_slice(text),
        }
    }

    /// Drops everything after the first `end` bytes.
    pub(crate) fn truncate(&mut self, end: usize) {
        match self {
            Self::Inline(len, _) => *len = end.min((*len).into()) as u8,
            Self::Heap(heap) => heap.truncate(end),
        }
    }
}

impl Default for Short {
    fn default() -> Self {
        Self::Inline(0, [0; INLINE])
    }
}

impl Deref for Short {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Inline(len, bytes) => bytes.get(..(*len).into()).unwrap_or_default(),
            Self::Heap(heap) => heap,
        }
    }
}

// Compares the bytes, whichever variant holds them.
impl PartialEq for Short {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Short {}

impl Hash for Short {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

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

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns its hash, in which every bit counts as much as any other.
    pub(crate) fn seeded_hash(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && *self.bytes == *other.bytes
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
