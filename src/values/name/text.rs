//! The bytes of a name, [`Short`], and how tables hash it: [`BuildSpread`].

use std::{
    hash::{BuildHasherDefault, Hash, Hasher},
    ops::Deref,
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

/// Builds the hashers of tables whose keys are names, or contain some.
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
    use crate::values::name::Name;

    proptest! {
        /// However a name was built, it equals the `String` of the same contents, and so does its
        /// clone, in place up to the last byte.
        #[test]
        fn a_name_is_a_string(
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
            let name = Name::of(bytes);
            prop_assert_eq!(name.as_str(), &string);
            let whole = Name::known(&string);
            for same in [whole.clone(), name.clone(), whole] {
                prop_assert!(same == name, "cut and whole");
                prop_assert_eq!(same.seeded_hash(), name.seeded_hash());
            }
            let is_inline = matches!(Name::known(&string).bytes, Short::Inline(..));
            prop_assert_eq!(is_inline, string.len() <= 70);
        }
    }
}
