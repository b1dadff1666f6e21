//! The bytes of a name, [`Short`]; and the identity of a request's caller, as names contain it:
//! [`Identity`].

use std::{
    fmt::{self, Display, Write},
    hash::{Hash, Hasher},
    ops::Deref,
    str,
};

use percent_encoding::percent_encode_byte;

use crate::macros::opaque;

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

/// The bytes of a component that are not encoded. A table, as each request looks up those of its
/// key.
const PLAIN: [bool; 256] = {
    let (mut plain, mut byte) = ([false; 256], 0u8);
    while byte < 128 {
        plain[byte as usize] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-');
        byte += 1;
    }
    plain
};

/// The identity of a caller: one or more components, encoded.
// Public to the compiler alone, for the keys of limiters without HTTP.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
#[allow(unnameable_types)]
pub struct Identity(pub(super) Short);

// It belongs to a person.
opaque!(Identity);

impl Identity {
    /// Adds a component of any bytes. All but `A-Z a-z 0-9 . _ ~ -` is percent-encoded, so that no
    /// component can imitate another one, a separator, a marker or a hash tag.
    pub(crate) fn push(&mut self, component: &[u8]) {
        self.separate();
        if component.is_empty() {
            // Alone, `%` is no encoded byte: so an empty component still differs from none.
            self.0.push(b"%");
        }
        self.encode(component);
    }

    /// Adds a component that is formatted in place. It is not empty.
    pub(crate) fn push_display(&mut self, component: impl Display) {
        self.separate();
        // Only an error of `component` itself can occur.
        let _ = write!(Encoding(self), "{component}");
    }

    /// Adds a marker, to which no component can be encoded: the alternative that the next
    /// components are of.
    pub(crate) fn mark(&mut self, alternative: usize) {
        self.separate();
        self.0.push(b"+");
        let mut number = itoa::Buffer::new();
        self.0.push(number.format(alternative).as_bytes());
    }

    /// Returns where the next component begins.
    pub(crate) fn end(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn truncate(&mut self, end: usize) {
        self.0.truncate(end);
    }

    /// Returns whether a marker begins what was added since `end`.
    pub(crate) fn is_marked_from(&self, end: usize) -> bool {
        self.since(end).starts_with(b"+")
    }

    /// Inserts a marker before what was added since `end`.
    pub(crate) fn mark_from(&mut self, end: usize, alternative: usize) {
        let added = self.since(end).to_vec();
        self.truncate(end);
        self.mark(alternative);
        self.separate();
        self.0.push(&added);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the components as a name contains them, however long.
    pub(crate) fn as_str(&self) -> &str {
        // It is encoded, so it is ASCII.
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the components that were added since `end`.
    fn since(&self, end: usize) -> &[u8] {
        let added = self.0.get(end..).unwrap_or_default();
        added.strip_prefix(b",").unwrap_or(added)
    }

    fn encode(&mut self, component: &[u8]) {
        let is_plain = |byte: u8| PLAIN[usize::from(byte)];
        // Without a branch for each byte: nearly all components are plain.
        if component
            .iter()
            .fold(true, |so_far, byte| so_far & is_plain(*byte))
        {
            return self.0.push(component);
        }
        for byte in component {
            if is_plain(*byte) {
                self.0.push(&[*byte]);
            } else {
                self.0.push(percent_encode_byte(*byte).as_bytes());
            }
        }
    }

    fn separate(&mut self) {
        if !self.0.is_empty() {
            self.0.push(b",");
        }
    }
}

/// Encodes what is written to it.
struct Encoding<'a>(&'a mut Identity);

impl Write for Encoding<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.encode(text.as_bytes());
        Ok(())
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
