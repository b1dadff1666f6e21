//! Who a request is from, as names spell it.

use std::{
    fmt::{self, Display, Write},
    hash::{Hash, Hasher},
    str,
};

use super::{LONGEST_IDENTITY, push_hex, text::Draft};

/// Who a request is from: one or more components, encoded.
#[derive(Clone, Default)]
pub(crate) struct Identity(Draft);

impl Identity {
    /// Adds a component. Any bytes: what is not `A-Z a-z 0-9 . _ ~ -` is percent-encoded, so that no component can
    /// imitate another one, a separator, a marker or a hash tag.
    pub(crate) fn push(&mut self, component: &[u8]) {
        self.separate();
        if component.is_empty() {
            // Alone, it is no encoded byte: so an empty component is still one.
            self.0.push("%");
        }
        self.encode(component);
    }

    /// Adds a component that is written in place. It is not empty.
    pub(crate) fn push_display(&mut self, component: impl Display) {
        self.separate();
        // An error only where `component` makes one up.
        let _ = write!(Encoding(self), "{component}");
    }

    /// Adds a marker, which no component can be encoded to: which of several alternatives the next ones are.
    pub(crate) fn mark(&mut self, alternative: usize) {
        self.separate();
        // Writing to it makes no error.
        let _ = write!(self.0, "+{alternative}");
    }

    /// Where the next component begins.
    pub(crate) fn end(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn truncate(&mut self, end: usize) {
        self.0.truncate(end);
    }

    /// Whether what was added since `end` begins with a marker.
    pub(crate) fn is_marked_from(&self, end: usize) -> bool {
        self.since(end).starts_with('+')
    }

    /// Puts a marker before what was added since `end`.
    pub(crate) fn mark_from(&mut self, end: usize, alternative: usize) {
        let added = self.since(end).to_owned();
        self.truncate(end);
        self.mark(alternative);
        self.separate();
        self.0.push(&added);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The components as a name spells them, however long.
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Adds it to a name: whole, or digested if it is longer than names spell out.
    pub(super) fn spell(&self, name: &mut Draft) {
        let identity = self.as_str();
        if identity.len() > LONGEST_IDENTITY {
            name.push(&digested(identity));
        } else {
            name.push(identity);
        }
    }

    /// The components that were added since `end`.
    fn since(&self, end: usize) -> &str {
        let added = self.as_str().get(end..).unwrap_or_default();
        added.trim_start_matches(',')
    }

    fn encode(&mut self, component: &[u8]) {
        let mut rest = component;
        while let Some(first) = rest.first() {
            let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
            let (spelled, after) = if plain > 0 {
                rest.split_at(plain)
            } else {
                rest.split_at(1)
            };
            if plain > 0 {
                // Plain bytes are ASCII.
                self.0.push(str::from_utf8(spelled).unwrap_or_default());
            } else {
                const HEX: [u8; 16] = *b"0123456789ABCDEF";
                let digit = |nibble: u8| HEX[usize::from(nibble)];
                let encoded = [b'%', digit(first >> 4), digit(first & 15)];
                self.0.push(str::from_utf8(&encoded).unwrap_or_default());
            }
            rest = after;
        }
    }

    fn separate(&mut self) {
        if !self.is_empty() {
            self.0.push(",");
        }
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
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

fn is_plain(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'~' | b'-')
}

/// `!`, which no encoding begins with, and the first 128 bits of SHA-256 in hexadecimal.
fn digested(identity: &str) -> String {
    let hash = hmac_sha256::Hash::hash(identity.as_bytes());
    let mut digest = String::with_capacity(33);
    digest.push('!');
    push_hex(&mut digest, &hash[..16]);
    digest
}
