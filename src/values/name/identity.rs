//! The identity of a request's caller, as names contain it.

use std::{
    fmt::{self, Display, Write},
    str,
};

use percent_encoding::percent_encode_byte;

use super::{LONGEST_IDENTITY, Short, push_hex};
use crate::macros::opaque;

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
pub struct Identity(Short);

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

    /// Adds the identity to a name: whole, or digested if it is too long.
    pub(super) fn spell(&self, name: &mut Short) {
        if self.0.len() > LONGEST_IDENTITY {
            name.push(digested(&self.0).as_bytes());
        } else {
            name.push(&self.0);
        }
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

/// Returns `!`, with which no encoding begins, and the first 128 bits of SHA-256 in hexadecimal.
fn digested(identity: &[u8]) -> String {
    let hash = hmac_sha256::Hash::hash(identity);
    let mut digest = String::with_capacity(33);
    digest.push('!');
    push_hex(&mut digest, &hash[..16]);
    digest
}
