//! What users choose for when the store cannot decide.

use std::{fmt, time::Duration};

use crate::error::{ConfigError, ConfigErrorKind};

/// What to do with a request while the store cannot decide.
///
/// It is a security decision: a login should not become unlimited because Redis is slow. Default:
/// [`local(1.0)`](Self::local), by which each process keeps the limit by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Let it pass: the limiter is never the outage, and while the store fails there is no limit
    Allow,
    /// Decide in this process, by the limit or a part of it: see [`local`](Self::local). The
    /// default, with all of it
    Local(Local),
    /// Refuse it as unavailable: 503, or UNAVAILABLE in gRPC
    Deny,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self::local(1.0).into()
    }
}

impl FailurePolicy {
    /// Goes on deciding in this process, by this share of the limit: all of it, or one divided by
    /// the number of instances.
    ///
    /// With `local(1.0)`, the default, N processes grant N limits while the store fails, and at the
    /// end of the outage once more what the store grants: N + 1. Callers within the limit are not
    /// refused. With `local(1.0 / N)` the processes together grant one limit, and at the end two;
    /// but where a caller's requests all come to one process it is refused beyond its share, and N
    /// has to be known.
    ///
    /// The share is above 0, and 1 at most; of the permits that it leaves, fractions are dropped, but there is one at least.
    /// What this process was granted within the last interval counts, so that an outage does not free whoever has used up
    /// its limit, and takes nothing from whoever has not. The outage lasts as long as it lasts, unless
    /// [`then_deny_after`](Local::then_deny_after) or [`then_allow_after`](Local::then_allow_after) says otherwise.
    ///
    /// It is refused with 429 and the wait until this process has room again. Such decisions have
    /// [`Source::Local`](crate::Source::Local), and nobody [waits](crate::Rule::wait) in line for them. A request that costs
    /// more than the share of the limit is refused as unavailable. When the store is back it decides again, and knows nothing
    /// of what was granted here: at most the share of the limit from each process and interval.
    ///
    /// A limit that only Redis knows, of [`Rule::shared`](crate::Rule::shared) without
    /// [`or_init`](crate::Rule::or_init), is taken as it was last seen for any limiter of the rule;
    /// before the first answer the request is refused as unavailable, which is logged once. A rule
    /// of the request that has [`Allow`](Self::Allow) is left out: it neither refuses the request
    /// nor loosens the other rules.
    ///
    /// For [`RedisStore`](crate::RedisStore). A [`MemoryStore`](crate::MemoryStore) is in this
    /// process already: where it cannot decide, the request is refused as unavailable.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{FailurePolicy, Limit, key::PeerIp};
    ///
    /// // Four instances share the limit. After a minute without Redis nobody may guess on.
    /// let policy = FailurePolicy::local(0.25).then_deny_after(Duration::from_secs(60));
    /// let login = Limit::per_minute(20).by(PeerIp).named("login").on_failure(policy);
    /// ```
    pub fn local(share: f64) -> Local {
        Local {
            share: Share(share.to_bits()),
            ends: None,
        }
    }

    /// Of two, the one that lets less pass.
    pub(crate) fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Deny, _) | (_, Self::Deny) => Self::Deny,
            (Self::Local(one), Self::Local(other)) => Self::Local(one.stricter(other)),
            (local @ Self::Local(_), Self::Allow) | (Self::Allow, local @ Self::Local(_)) => local,
            (Self::Allow, Self::Allow) => Self::Allow,
        }
    }

    /// Checks what a rule was given.
    ///
    /// # Errors
    ///
    /// Of kind [`Rule`](ConfigErrorKind::Rule) for a share that is none.
    pub(crate) fn check(self, rule: &str) -> Result<(), ConfigError> {
        match self {
            Self::Local(local) if !local.share.is_one() => {
                Err(ConfigErrorKind::Rule.error(format!(
                    "the rule {rule:?} decides by {} of its limit when the store fails: it must \
                     be above 0 and 1 at most, one divided by the number of instances",
                    local.share.get()
                )))
            }
            _ => Ok(()),
        }
    }

    /// What it comes to when the store has failed for so long.
    #[cfg(feature = "redis")]
    pub(crate) fn after(self, failing: Duration) -> Self {
        match self {
            Self::Local(Local {
                ends: Some((longest, then)),
                ..
            }) if failing >= longest => match then {
                Then::Allow => Self::Allow,
                Then::Deny => Self::Deny,
            },
            policy => policy,
        }
    }
}

/// That this process decides by a share of the limit while the store cannot: see [`FailurePolicy::local`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a policy has no effect until a rule has it"]
pub struct Local {
    share: Share,
    ends: Option<(Duration, Then)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Allow,
    Deny,
}

impl Local {
    /// Refuses every request once the store has failed for so long, as [`FailurePolicy::Deny`] does.
    ///
    /// An outage is over when the store has answered, and not failed for a second.
    pub fn then_deny_after(mut self, longest: Duration) -> Self {
        self.ends = Some((longest, Then::Deny));
        self
    }

    /// Lets every request pass once the store has failed for so long, as [`FailurePolicy::Allow`] does.
    ///
    /// An outage is over when the store has answered, and not failed for a second.
    pub fn then_allow_after(mut self, longest: Duration) -> Self {
        self.ends = Some((longest, Then::Allow));
        self
    }

    /// So many of the permits of a limit.
    #[cfg(feature = "redis")]
    pub(crate) fn of(self, permits: u64) -> u64 {
        // Limits have 53 bits at most, and so has what is left of them.
        let part = permits as f64 * self.share.get();
        let nearest = part.round();
        // One divided by the number of instances is seldom exact, and a whole permit is not to be lost by that.
        let is_whole = (part - nearest).abs() <= 2.0 * f64::EPSILON * nearest;
        let part = if is_whole { nearest } else { part.floor() };
        (part as u64).clamp(1, permits.max(1))
    }

    /// The smaller share, until the first of both refuses, or both let pass.
    fn stricter(self, other: Self) -> Self {
        let share = if self.share.get() <= other.share.get() {
            self.share
        } else {
            other.share
        };
        let ends = match (self.ends, other.ends) {
            (Some((a, Then::Deny)), Some((b, Then::Deny))) => Some((a.min(b), Then::Deny)),
            (deny @ Some((_, Then::Deny)), _) | (_, deny @ Some((_, Then::Deny))) => deny,
            (Some((a, Then::Allow)), Some((b, Then::Allow))) => Some((a.max(b), Then::Allow)),
            (None, _) | (_, None) => None,
        };
        Self { share, ends }
    }
}

impl From<Local> for FailurePolicy {
    fn from(local: Local) -> Self {
        Self::Local(local)
    }
}

/// A share, by its bits, as numbers with fractions are not equal to themselves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Share(u64);

impl Share {
    fn get(self) -> f64 {
        f64::from_bits(self.0)
    }

    fn is_one(self) -> bool {
        self.get() > 0.0 && self.get() <= 1.0
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
#[cfg(feature = "redis")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A_SECOND: Duration = Duration::from_secs(1);

    fn policies() -> impl Strategy<Value = FailurePolicy> {
        let local = (1..=100_u32, 0..5_u64, any::<bool>()).prop_map(|(percent, ends, denies)| {
            let local = FailurePolicy::local(f64::from(percent) / 100.0);
            let longest = Duration::from_secs(ends);
            match (ends, denies) {
                (0, _) => local,
                (_, true) => local.then_deny_after(longest),
                (_, false) => local.then_allow_after(longest),
            }
            .into()
        });
        prop_oneof![
            1 => Just(FailurePolicy::Allow),
            1 => Just(FailurePolicy::Deny),
            4 => local
        ]
    }

    /// How little passes: nothing, a share, all.
    fn passes(policy: FailurePolicy) -> u64 {
        match policy {
            FailurePolicy::Allow => u64::MAX,
            FailurePolicy::Local(local) => local.of(100),
            FailurePolicy::Deny => 0,
        }
    }

    proptest! {
        /// At no time does more pass than by either, and no less than by the stricter share.
        #[test]
        fn the_stricter_of_two_lets_less_pass(a in policies(), b in policies(), seconds in 0..6_u32) {
            let both = a.stricter(b);
            prop_assert_eq!(passes(both.after(seconds * A_SECOND)), passes(b.stricter(a).after(seconds * A_SECOND)));
            let failing = seconds * A_SECOND;
            let (a, b, both) = (passes(a.after(failing)), passes(b.after(failing)), passes(both.after(failing)));
            prop_assert!(both <= a.min(b), "{both} of {a} and {b}");
            prop_assert_eq!(both == 0, a.min(b) == 0);
        }

        /// All instances together have no more than the limit, but for one permit each.
        #[test]
        fn shares_of_all_instances_are_no_more_than_the_limit(instances in 1..1000_u64, permits in 1..1_u64 << 40) {
            let each = FailurePolicy::local(1.0 / instances as f64).of(permits);
            prop_assert!(each >= 1);
            prop_assert!(each * instances <= permits.max(instances), "{each}");
            prop_assert!(each >= permits / instances || instances > permits);
        }

        /// What can be divided is, though one divided by the number of instances seldom is exact.
        #[test]
        fn no_permit_is_lost_to_a_fraction(instances in 1..1000_u64, each in 1..1_u64 << 40) {
            let share = FailurePolicy::local(1.0 / instances as f64);
            prop_assert_eq!(share.of(each * instances), each);
        }
    }

    #[test]
    fn by_default_each_process_keeps_the_limit() {
        let default = FailurePolicy::default();
        assert_eq!(default, FailurePolicy::local(1.0).into());
        assert_eq!(default.after(1000 * A_SECOND), default);
    }

    #[test]
    fn a_share_of_a_limit_is_exact() {
        for (share, permits, expected) in [
            (1.0, 7, 7),
            (0.25, 20, 5),
            (0.25, 7, 1),
            (1.0 / 3.0, 9, 3),
            (0.001, 7, 1),
            (f64::MIN_POSITIVE, 7, 1),
            (0.7, 10, 7),
            (1.0 / 49.0, 98, 2),
        ] {
            let local = FailurePolicy::local(share);
            assert_eq!(local.of(permits), expected, "{share}");
            assert_eq!(FailurePolicy::from(local).check("login"), Ok(()), "{share}");
        }
        for share in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
            let policy = FailurePolicy::from(FailurePolicy::local(share));
            assert!(policy.check("login").is_err(), "{share}");
        }
    }
}
