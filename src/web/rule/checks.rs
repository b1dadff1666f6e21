//! Checks of a rule's settings when its layer is built.

use std::{collections::HashSet, time::Duration};

use super::{CostOf, LimitOf, Rule};
use crate::{
    values::{
        error::{ConfigError, bail},
        limit::{Algorithm, Ban, Limit, Slots, check_lease},
        name::{check_rule_name, check_word},
    },
    web::key::{KeyExtractor, KeyTraits},
};

impl Rule {
    /// Checks its settings. `store_prefers` is the format of the store's limiters: `Some(true)`
    /// Redisson's where that has the algorithm, `Some(false)` our own, `None` if no store is known,
    /// as when a file is checked alone. Returns the traits of its key, if it has one.
    pub(super) fn check(
        &self,
        store_prefers: Option<bool>,
    ) -> Result<Option<KeyTraits>, ConfigError> {
        let label = self.label();
        check_rule_name(label)?;
        if let Some(unit) = &self.unit {
            check_word("a rule's unit", unit)?;
        }
        if self.init.is_some() && !matches!(self.limit, LimitOf::Shared(_)) {
            bail!(Rule: "rule {label:?} is not shared: `or_init` is for `Rule::shared`");
        }
        if matches!(self.limit, LimitOf::Shared(_)) {
            self.check_shared(label)?;
        }
        if self.share > 100 {
            bail!(Rule: "rule {label:?}: `enforce_share` must be 0 to 100, not {}", self.share);
        }
        self.check_lease(self.lease)?;
        if let Some(ban) = &self.ban {
            self.check_ban(ban)?;
        }
        self.on_failure.check(label)?;
        let traits = self.key.as_ref().map(|key| key.check()).transpose()?;
        if let Some(header) = traits.and_then(|key| key.exposed_credential) {
            bail!(Key: "the header {header:?} holds a credential, which would be visible in \
                Redis: add `.digest(&secret)`, or `.plain()` if it may be visible");
        }
        if self.observe_keys && traits.is_none_or(|key| key.is_secret) {
            bail!(Key: "rule {label:?} has no key that observers may see: with a credential, a \
                digest or no key leave `observe_keys` out");
        }
        self.check_format(store_prefers)?;
        if let LimitOf::Tiers(tiers) = &self.limit {
            if tiers.limits.is_empty() {
                bail!(Rule: "rule {label:?} has no tiers");
            }
            let mut names = HashSet::new();
            if let Some((name, _)) = tiers.limits.iter().find(|(name, _)| !names.insert(name)) {
                bail!(Rule: "rule {label:?} has two tiers named {name:?}");
            }
        }
        if let CostOf::Fixed(permits) = self.cost {
            self.check_cost(permits)?;
        }
        Ok(traits)
    }

    /// Checks that its limiters can be in the format of such a store.
    pub(super) fn check_format(&self, store_prefers: Option<bool>) -> Result<(), ConfigError> {
        let (label, in_redissons) = (self.label(), self.prefers_redisson(store_prefers));
        for limit in self.known_limits() {
            limit.check_counting(label, self.algorithm, in_redissons)?;
        }
        if self.slots.is_some() && !in_redissons {
            bail!(Limit: "rule {label:?} needs no slots, which only logs in Redisson's format \
                have: leave `slots` out, or count in that format, by `Rule::shared` or with \
                `RedisStore::builder(..).redisson()`");
        }
        Ok(())
    }

    /// Returns whether its limiters are in Redisson's format, where that has the algorithm.
    pub(super) fn prefers_redisson(&self, store: Option<bool>) -> bool {
        let can_be = || !self.known_limits().any(Limit::is_several);
        store.unwrap_or_else(can_be) || matches!(self.limit, LimitOf::Shared(_))
    }

    /// Checks that its limit is one that a store can have.
    fn check_shared(&self, label: &str) -> Result<(), ConfigError> {
        if self.has_calendar() || self.algorithm == Algorithm::Calendar {
            bail!(Limit: "rule {label:?} cannot share a limit by the calendar, as Java knows none: \
                give the limit to `Rule::new`");
        }
        if self.algorithm.facts().only_own_format {
            bail!(Limit: "rule {label:?} cannot share a limit by GCRA, as Java knows none: give \
                the limit to `Rule::new`, or leave the algorithm out");
        }
        Ok(())
    }

    /// Checks that a fixed cost is between 1 and the limits that are known.
    pub(crate) fn check_cost(&self, cost: u32) -> Result<(), ConfigError> {
        let mut limits = self.known_limits();
        if cost == 0 || limits.any(|limit| u64::from(cost) > limit.most_permits()) {
            let rule = self.label();
            bail!(Rule: "rule {rule:?} costs {cost} permits: the cost must be between 1 and the \
                limit");
        }
        Ok(())
    }

    /// Checks that callers can be banned by these terms.
    pub(crate) fn check_ban(&self, ban: &Ban) -> Result<(), ConfigError> {
        ban.check(self.label(), !self.lease.is_zero())
    }

    /// Checks that permits can be leased for this long.
    pub(crate) fn check_lease(&self, lease: Duration) -> Result<(), ConfigError> {
        let check = |limit| {
            let in_slots = self.slots.is_some();
            check_lease(self.label(), lease, self.algorithm, in_slots, limit)
        };
        // The part of the check that needs no limit.
        check(None)?;
        self.known_limits().try_for_each(|limit| check(Some(limit)))
    }

    /// Returns how many slots divide its intervals, after a check.
    pub(super) fn checked_slots(&self) -> Result<Option<Slots>, ConfigError> {
        let checked = |slots| {
            let has_log = self.algorithm.facts().has_log && !self.has_calendar();
            let intervals = self.known_limits().map(Limit::interval);
            Slots::try_new(slots, self.label(), has_log, intervals)
        };
        self.slots.map(checked).transpose()
    }

    /// Returns whether a known limit goes by the calendar.
    fn has_calendar(&self) -> bool {
        let mut limits = self.known_limits();
        limits.any(|limit| limit.calendar().is_some())
    }

    /// Returns its limits, except those that a request determines or that are stored.
    fn known_limits(&self) -> impl Iterator<Item = &Limit> {
        let (one, tiers) = match &self.limit {
            LimitOf::Fixed(limit) => (Some(limit), &[][..]),
            LimitOf::Shared(_) => (self.init.as_ref(), &[][..]),
            LimitOf::Tiers(tiers) => (None, &tiers.limits[..]),
            LimitOf::Parts(_) => (None, &[][..]),
        };
        one.into_iter().chain(tiers.iter().map(|(_, limit)| limit))
    }
}
