//! The percentage of keys for which a rule is enforced; for all others it is a shadow rule.

use hmac_sha256::Hash;

use crate::name::Name;

/// A percentage of keys. The keys are the same in every process and in every release of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share(pub(super) u8);

impl Share {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self(100);

    pub(super) fn is_all(self) -> bool {
        self.0 >= Self::ALL.0
    }

    /// Returns whether the limiter of this name may refuse. It still may when the share grows.
    ///
    /// The name contains prefix, key and rule, so each rule begins with other callers.
    pub(super) fn has(self, name: &Name) -> bool {
        if self.is_all() || self == Self::NONE {
            return self.is_all();
        }
        let [a, b, c, d, ..] = Hash::hash(name.as_str().as_bytes());
        let place = u64::from(u32::from_be_bytes([a, b, c, d]));
        // Scales a place among 2^32 to one among a hundred.
        (place * u64::from(Self::ALL.0)) >> 32 < u64::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: usize) -> Name {
        Name::exact(&format!("shop:{{{key}}}:login")).unwrap()
    }

    #[test]
    fn a_share_is_as_large_as_it_says_and_only_grows() {
        let share = |percent| (0..10_000).filter(move |key| Share(percent).has(&name(*key)));
        assert_eq!(share(0).count(), 0);
        assert_eq!(share(100).count(), 10_000);
        let mut before = Vec::new();
        for percent in [1, 10, 50, 99] {
            let enforced: Vec<_> = share(percent).collect();
            let expected = usize::from(percent) * 100;
            assert!(
                enforced.len().abs_diff(expected) < 200,
                "{} of 10000 at {percent} percent",
                enforced.len()
            );
            assert!(before.iter().all(|key| enforced.contains(key)));
            before = enforced;
        }
    }

    /// Fixed since the first release: another choice would change which callers an update refuses.
    #[test]
    fn a_share_is_of_the_same_keys_for_ever() {
        let enforced: Vec<_> = (0..40).filter(|key| Share(10).has(&name(*key))).collect();
        assert_eq!(enforced, [0, 29, 37]);
    }
}
