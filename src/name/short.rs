//! A byte string that is stored inline while it is short, instead of on the heap.

use std::{
    hash::{Hash, Hasher},
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
            if let Some(place) = bytes.get_mut(begin..begin + text.len()) {
                place.copy_from_slice(text);
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
