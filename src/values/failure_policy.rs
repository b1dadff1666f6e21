//! What a rule does when the store cannot decide: [`FailurePolicy`].

use crate::values::error::{ConfigError, bail};

/// Decides requests while the store cannot.
///
/// It is a security decision: a login should not become unlimited because Redis is slow. Default:
/// [`Local(1.0)`](Self::Local), by which each process keeps the limit by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Lets it pass: the limiter causes no outage, and nothing is limited while the store fails.
    /// [Four errors](crate::docs::failure) refuse all the same
    Allow,
    /// Decides in this process, by this share of the limit: all of it, or one divided by the number
    /// of instances.
    ///
    /// With `Local(1.0)`, the default, N processes grant N limits while the store fails, and at the
    /// end of the outage once more what the store grants: N + 1. Callers within the limit are not
    /// refused, except that a grant may count for an eighth of the interval longer. With
    /// `Local(1.0 / N)` the processes together grant one limit, and at the end two; but if all
    /// requests of a caller reach one process, it is refused beyond its share, and N has to be
    /// known.
    ///
    /// The share is above 0, and 1 at most. Fractions of a permit are dropped, but at least one is
    /// left. What this process was granted within the last interval counts, so that an outage gives
    /// nothing to callers that have used up their limit, and takes nothing from others.
    ///
    /// A refusal is 429 with the wait until this process has room again. Such decisions have
    /// [`Source::Local`](crate::Source::Local), and no request [waits](crate::Rule::wait) in a
    /// queue for them. A request that costs more than the share is refused as unavailable. When the
    /// store is back, it decides again, and knows nothing of the grants made here: at most the
    /// share of the limit from each process and interval.
    ///
    /// A limit that only Redis knows, of [`Rule::shared`](crate::Rule::shared) without
    /// [`or_init`](crate::Rule::or_init), is the one last seen for any limiter of the rule; before
    /// the first answer the request is refused as unavailable, which is logged once. A rule of the
    /// request with [`Allow`](Self::Allow) takes no part: it neither refuses the request nor
    /// loosens the other rules.
    ///
    /// For [`RedisStore`](crate::RedisStore). A [`MemoryStore`](crate::MemoryStore) is already in
    /// this process: if it cannot decide, the request is refused as unavailable.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{FailurePolicy, Limit, key::PeerIp};
    ///
    /// // Four instances share the limit.
    /// let policy = FailurePolicy::Local(0.25);
    /// let login = Limit::per_minute(20).by(PeerIp).named("login").on_failure(policy);
    /// ```
    Local(f64),
    /// Refuses it as unavailable: 503, or UNAVAILABLE in gRPC
    Deny,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self::Local(1.0)
    }
}

impl FailurePolicy {
    /// Returns the stricter of two policies.
    pub(crate) fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Local(one), Self::Local(other)) => Self::Local(one.min(other)),
            (Self::Deny, _) | (_, Self::Deny) => Self::Deny,
            (other, Self::Allow) | (Self::Allow, other) => other,
        }
    }

    /// Checks a rule's policy.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) for a share out of range.
    pub(crate) fn check(self, rule: &str) -> Result<(), ConfigError> {
        match self {
            Self::Local(share) if !(share > 0.0 && share <= 1.0) => {
                bail!(Rule: "rule {rule:?}: `FailurePolicy::Local` needs a share above 0 and at most \
                    1, not {share}: one divided by the number of instances")
            }
            _ => Ok(()),
        }
    }
}

/// Returns the share of a limit's permits: of fractions, the whole part, and at least one.
pub(crate) fn part(share: f64, permits: u64) -> u64 {
    // Limits have 53 bits at most, and so has what is left of them.
    let part = permits as f64 * share;
    let nearest = part.round();
    // One divided by the number of instances is seldom exact, which must not cost a whole permit.
    let is_whole = (part - nearest).abs() <= 2.0 * f64::EPSILON * nearest;
    let part = if is_whole { nearest } else { part.floor() };
    (part as u64).clamp(1, permits.max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policies() -> impl Strategy<Value = FailurePolicy> {
        let local =
            (1..=100_u32).prop_map(|percent| FailurePolicy::Local(f64::from(percent) / 100.0));
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
            FailurePolicy::Local(share) => part(share, 100),
            FailurePolicy::Deny => 0,
        }
    }

    proptest! {
        /// No more passes than by either, and no less than by the stricter.
        #[test]
        fn the_stricter_of_two_lets_less_pass(a in policies(), b in policies()) {
            let both = passes(a.stricter(b));
            prop_assert_eq!(both, passes(b.stricter(a)));
            prop_assert_eq!(both, passes(a).min(passes(b)));
        }

        /// All instances together have at most the limit, plus less than one permit each.
        #[test]
        fn shares_of_all_instances_are_no_more_than_the_limit(
            instances in 1..1000_u64,
            permits in 1..1_u64 << 40,
        ) {
            let each = part(1.0 / instances as f64, permits);
            prop_assert!(each >= 1);
            prop_assert!(each * instances <= permits.max(instances), "{each}");
            prop_assert!(each >= permits / instances || instances > permits);
        }

        /// A share that divides the limit loses nothing, although one divided by N is seldom exact.
        #[test]
        fn no_permit_is_lost_to_a_fraction(instances in 1..1000_u64, each in 1..1_u64 << 40) {
            let share = 1.0 / instances as f64;
            prop_assert_eq!(part(share, each * instances), each);
        }
    }

    #[test]
    fn by_default_each_process_keeps_the_limit() {
        assert_eq!(FailurePolicy::default(), FailurePolicy::Local(1.0));
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
            assert_eq!(part(share, permits), expected, "{share}");
            let policy = FailurePolicy::Local(share);
            assert_eq!(policy.check("login"), Ok(()), "{share}");
        }
        for share in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
            let policy = FailurePolicy::Local(share);
            assert!(policy.check("login").is_err(), "{share}");
        }
    }
}
