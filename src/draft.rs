//! A text that is usually short, and then is stored inline instead of on the heap.

use std::{fmt, str};

/// The longest inline text: `ratelimit:{..}:..` with a UUID as identity leaves 21 bytes for the
/// rule.
pub(crate) const SHORT: usize = 70;

/// A text that grows at its end.
#[derive(Clone)]
pub(crate) enum Draft {
    Short(Short),
    Long(String),
}

impl Draft {
    pub(crate) fn push(&mut self, text: &str) {
        if !self.fits(text.as_bytes()) {
            self.extend(text);
        }
    }

    /// Adds bytes without validating them as UTF-8. They must be ASCII: others are dropped.
    pub(crate) fn push_ascii(&mut self, text: &[u8]) {
        debug_assert!(text.is_ascii(), "whole texts alone are put in");
        if !self.fits(text) {
            self.extend(str::from_utf8(text).unwrap_or_default());
        }
    }

    /// Adds a number in decimal digits. Written by hand, because it runs several times per request.
    pub(crate) fn push_number(&mut self, number: u64) {
        let (mut digits, mut rest) = ([0; 20], number);
        let mut first = digits.len();
        for place in digits.iter_mut().rev() {
            *place = b"0123456789"[(rest % 10) as usize];
            rest /= 10;
            first -= 1;
            if rest == 0 {
                break;
            }
        }
        self.push_ascii(digits.get(first..).unwrap_or_default());
    }

    /// Drops everything after the first `end` bytes.
    pub(crate) fn truncate(&mut self, end: usize) {
        match self {
            Self::Short(short) => short.truncate(end),
            Self::Long(long) => long.truncate(end),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Short(short) => short.len(),
            Self::Long(long) => long.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(short) => short.as_bytes(),
            Self::Long(long) => long.as_bytes(),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Short(short) => short.as_str(),
            Self::Long(long) => long,
        }
    }

    /// Adds a text inline, if it fits.
    fn fits(&mut self, text: &[u8]) -> bool {
        match self {
            Self::Short(short) => short.push(text),
            Self::Long(_) => false,
        }
    }

    /// Adds a text on the heap.
    #[cold]
    fn extend(&mut self, text: &str) {
        match self {
            Self::Short(short) => {
                let mut long = String::with_capacity(2 * (short.len() + text.len()));
                long.push_str(short.as_str());
                long.push_str(text);
                *self = Self::Long(long);
            }
            Self::Long(long) => long.push_str(text),
        }
    }
}

impl Default for Draft {
    fn default() -> Self {
        Self::Short(Short {
            len: 0,
            bytes: [0; SHORT],
        })
    }
}

impl fmt::Write for Draft {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

/// Inline bytes, and how many of them are text.
#[derive(Clone)]
pub(crate) struct Short {
    len: u8,
    bytes: [u8; SHORT],
}

impl Short {
    /// Adds a text, if it fits.
    fn push(&mut self, text: &[u8]) -> bool {
        let begin = self.len();
        let end = begin + text.len();
        match (self.bytes.get_mut(begin..end), u8::try_from(end)) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(text);
                self.len = len;
                true
            }
            _ => false,
        }
    }

    fn truncate(&mut self, end: usize) {
        self.len = self.len.min(u8::try_from(end).unwrap_or(u8::MAX));
    }

    fn len(&self) -> usize {
        self.len.into()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len()).unwrap_or_default()
    }

    pub(crate) fn as_str(&self) -> &str {
        // Whole texts are added, and truncation is only between them, so this is UTF-8.
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}
