//! What a key of [`Keyed::of`](super::Keyed::of) may be: [`LimiterKey`].

use std::net::IpAddr;

use self::sealed::Components;
use crate::values::name::{IPV6_PREFIX, Identity, spell};

/// A key of [`Keyed::of`](super::Keyed::of): text, bytes, a whole number, an [`IpAddr`], or a tuple
/// of up to four of these.
///
/// Any text and bytes are fit, also those that a caller has chosen: they are encoded as the keys of
/// rules, so that no key can imitate another. Two keys are one if the same bytes are written for
/// them: `7` is `"7"`. An address counts as in [`PeerIp`](crate::key::PeerIp), in IPv6 by its /56
/// network. An empty text is a key like others, while a rule refuses it.
///
/// Sealed until 1.0. A type of your own gives what identifies it: `user.id`, `id.to_string()`.
pub trait LimiterKey: Components {}

impl<K: Components + ?Sized> LimiterKey for K {}

mod sealed {
    use crate::values::name::Identity;

    // Public to the compiler alone: the module is private, so the trait cannot be named outside.
    #[allow(unnameable_types)]
    pub trait Components {
        #[doc(hidden)]
        fn add_to(&self, identity: &mut Identity);
    }
}

impl<K: Components + ?Sized> Components for &K {
    fn add_to(&self, identity: &mut Identity) {
        (**self).add_to(identity);
    }
}

impl<const N: usize> Components for [u8; N] {
    fn add_to(&self, identity: &mut Identity) {
        identity.push(self);
    }
}

impl Components for IpAddr {
    fn add_to(&self, identity: &mut Identity) {
        identity.push_display(spell(*self, IPV6_PREFIX));
    }
}

macro_rules! texts {
    ($($text:ty)+) => {$(
        impl Components for $text {
            fn add_to(&self, identity: &mut Identity) {
                identity.push(self.as_ref());
            }
        }
    )+};
}

macro_rules! numbers {
    ($($number:ty)+) => {$(
        impl Components for $number {
            fn add_to(&self, identity: &mut Identity) {
                identity.push(itoa::Buffer::new().format(*self).as_bytes());
            }
        }
    )+};
}

macro_rules! tuples {
    ($($($part:ident)+;)+) => {$(
        impl<$($part: Components),+> Components for ($($part,)+) {
            fn add_to(&self, identity: &mut Identity) {
                #[allow(non_snake_case, reason = "each part is named as its type")]
                let ($($part,)+) = self;
                $($part.add_to(identity);)+
            }
        }
    )+};
}

texts!(str String [u8] Vec<u8>);
numbers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);
tuples!(A B; A B C; A B C D;);
