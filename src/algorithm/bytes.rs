//! States as bytes: fields one after the other, numbers little-endian.

use std::collections::VecDeque;

use crate::values::{
    charge::{PermitId, Tat},
    limit::{RateType, StoredLimit},
};

/// A value as bytes.
pub(crate) trait Bytes: Sized {
    /// Adds its bytes.
    fn write(&self, to: &mut Vec<u8>);

    /// Takes it from the front of these bytes; `None` if they are others.
    fn read(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! number {
    ($($number:ty),+) => {
        $(impl Bytes for $number {
            fn write(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn read(from: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_le_bytes(*bytes))
            }
        })+
    };
}

number!(u8, u32, u64, u128);

/// The greatest number that states have, except the end of time: twice as much fits. An expiry may
/// be 2^52 ms from now.
const MOST: i64 = 4_600_000_000_000_000_000;

impl Bytes for i64 {
    fn write(&self, to: &mut Vec<u8>) {
        self.cast_unsigned().write(to);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let number = u64::read(from)?.cast_signed();
        ((-MOST..=MOST).contains(&number) || number == Self::MAX).then_some(number)
    }
}

/// Implements [`Bytes`] for a type by its fields. All other fields have their default.
macro_rules! bytes {
    ($type:ty { $($field:tt),+ } $($rest:tt)*) => {
        impl $crate::algorithm::bytes::Bytes for $type {
            fn write(&self, to: &mut Vec<u8>) {
                $(self.$field.write(to);)+
            }

            fn read(from: &mut &[u8]) -> Option<Self> {
                Some(Self {
                    $($field: $crate::algorithm::bytes::Bytes::read(from)?,)+
                    $($rest)*
                })
            }
        }
    };
}

pub(crate) use bytes;

impl Bytes for bool {
    fn write(&self, to: &mut Vec<u8>) {
        to.push((*self).into());
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        match u8::read(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Bytes> Bytes for Option<T> {
    fn write(&self, to: &mut Vec<u8>) {
        write_option(self.as_ref(), to);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        if bool::read(from)? {
            T::read(from).map(Some)
        } else {
            Some(None)
        }
    }
}

/// Adds the bytes of an option whose value is elsewhere.
pub(crate) fn write_option<T: Bytes>(value: Option<&T>, to: &mut Vec<u8>) {
    value.is_some().write(to);
    if let Some(value) = value {
        value.write(to);
    }
}

impl<A: Bytes, B: Bytes, C: Bytes> Bytes for (A, B, C) {
    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
        self.1.write(to);
        self.2.write(to);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        Some((A::read(from)?, B::read(from)?, C::read(from)?))
    }
}

impl<A: Bytes, B: Bytes> Bytes for (A, B) {
    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
        self.1.write(to);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        Some((A::read(from)?, B::read(from)?))
    }
}

impl<T: Bytes> Bytes for VecDeque<T> {
    fn write(&self, to: &mut Vec<u8>) {
        (self.len() as u64).write(to);
        self.iter().for_each(|each| each.write(to));
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let length = u64::read(from)?;
        // No room is made for what a length claims alone.
        (0..length).map(|_| T::read(from)).collect()
    }
}

impl<T: Bytes> Bytes for Vec<T> {
    fn write(&self, to: &mut Vec<u8>) {
        (self.len() as u64).write(to);
        self.iter().for_each(|each| each.write(to));
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        VecDeque::read(from).map(Self::from)
    }
}

bytes!(PermitId { 0 });
bytes!(Tat { at, given });

impl Bytes for [u8; 16] {
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        u128::read(from).map(u128::to_le_bytes)
    }
}

impl Bytes for RateType {
    fn write(&self, to: &mut Vec<u8>) {
        (*self == Self::PerClient).write(to);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::read(from)? {
            Self::PerClient
        } else {
            Self::Overall
        })
    }
}

impl Bytes for StoredLimit {
    fn write(&self, to: &mut Vec<u8>) {
        self.rate.write(to);
        self.interval.write(to);
        self.rate_type.write(to);
        self.keep_alive.write(to);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let (rate, interval) = (Bytes::read(from)?, Bytes::read(from)?);
        let (rate_type, keep_alive) = (Bytes::read(from)?, Bytes::read(from)?);
        let read = Self {
            rate,
            interval,
            rate_type,
            keep_alive,
        };
        // Only Java stores others, and no store has these bytes from Java.
        let is_valid = read.limit().is_some_and(|limit| limit.stored() == read);
        (is_valid && read.keep_alive <= MOST.unsigned_abs() / 1000).then_some(read)
    }
}
