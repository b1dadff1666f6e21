//! The bytes of an argument.

use super::{LATEST, MOST};
use crate::values::{clock::Millis, name::Short};

/// Bytes that grow. Those of most requests need no allocation.
#[derive(Default)]
pub(super) struct Buffer(pub(super) Short);

impl Buffer {
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// Writes a number in so many bytes: 4, where it must fit, or 6 or 7, where one that does not
    /// fit becomes the nearest that does.
    pub(super) fn number(&mut self, number: i64, width: usize) {
        let number = number.clamp(0, if width < 7 { LATEST } else { MOST });
        self.put(&number.to_le_bytes()[..width]);
    }

    /// Writes a time; zero stands for the server's clock.
    pub(super) fn time(&mut self, now: Option<Millis>) {
        self.number(now.map_or(0, Millis::cast_signed), 6);
    }
}
