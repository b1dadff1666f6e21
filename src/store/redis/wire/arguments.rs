//! The keys and arguments of a script, as bytes.

use std::fmt::{self, Display, Write};

use redis::Cmd;

/// The KEYS and ARGV of a call in one allocation, one after the other, each with its length before
/// it.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    keys: usize,
    count: usize,
    bytes: Vec<u8>,
}

/// How long a length is.
const LENGTH: usize = size_of::<u32>();

impl Arguments {
    pub(crate) fn new(
        keys: impl IntoIterator<Item = impl AsRef<[u8]>>,
        argv: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Self {
        let mut arguments = Self::default();
        for key in keys {
            arguments.push_key(&[key.as_ref()]);
        }
        for argument in argv {
            arguments.push(argument);
        }
        arguments
    }

    /// Room for so many, which are so long together.
    pub(crate) fn with_capacity(count: usize, bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(count * LENGTH + bytes),
            ..Self::default()
        }
    }

    /// Adds a key, in pieces. All keys come before all else.
    pub(crate) fn push_key(&mut self, pieces: &[&[u8]]) {
        self.keys += 1;
        self.push_pieces(pieces);
    }

    pub(crate) fn push(&mut self, argument: impl AsRef<[u8]>) {
        self.push_pieces(&[argument.as_ref()]);
    }

    fn push_pieces(&mut self, pieces: &[&[u8]]) {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        // Redis takes no longer ones, and names and numbers are far from that.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_le_bytes());
        pieces
            .iter()
            .for_each(|piece| self.bytes.extend_from_slice(piece));
        self.count += 1;
    }

    /// Each of them, the keys first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.bytes;
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk::<LENGTH>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (argument, after) = after.split_at_checked(length)?;
            rest = after;
            Some(argument)
        })
    }

    /// The same for other keys.
    #[cfg(all(test, inside))]
    pub(crate) fn on(self, keys: impl Into<Vec<String>>) -> Self {
        Self::new(keys.into(), self.iter().skip(self.keys))
    }

    pub(crate) fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = Cmd::with_capacity(3 + self.count, 16 + script.len() + self.bytes.len());
        command.arg(verb).arg(script).arg(self.keys);
        self.iter().for_each(|argument| {
            command.arg(argument);
        });
        command
    }
}

/// An argument that is short, as all but names are: it stands in place.
#[derive(Clone, Copy, Default)]
pub(crate) struct Word {
    length: u8,
    bytes: [u8; Self::LONGEST],
}

impl Word {
    /// As long as a member; numbers have at most 20 digits.
    const LONGEST: usize = 21;

    pub(crate) fn number(number: impl Display) -> Self {
        let mut word = Self::default();
        // It has room for every number.
        let _ = write!(word, "{number}");
        word
    }
}

impl<const N: usize> From<[u8; N]> for Word {
    fn from(bytes: [u8; N]) -> Self {
        const { assert!(N <= Self::LONGEST, "it is no word") };
        let mut word = Self::default();
        word.bytes[..N].copy_from_slice(&bytes);
        word.length = N as u8;
        word
    }
}

impl Write for Word {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let begin = usize::from(self.length);
        let end = begin + text.len();
        let place = self.bytes.get_mut(begin..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length = u8::try_from(end).map_err(|_| fmt::Error)?;
        Ok(())
    }
}

impl AsRef<[u8]> for Word {
    fn as_ref(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Word({} bytes)", self.length)
    }
}
