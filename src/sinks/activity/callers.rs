//! The callers that were refused most, in bounded memory: [`TopCallers`].

use std::sync::Arc;

use serde::Serialize;

/// The callers that are followed at a time.
pub(super) const FOLLOWED: usize = 64;
/// The longest text of a key that is kept.
const LONGEST_KEY: usize = 160;

/// Finds those with the most refusals by the algorithm Space-Saving: a newcomer takes the place of
/// the caller with the fewest, and begins with its number.
///
/// So a number is never too low, and too high by at most its error. That is at most a 64th of all
/// refusals: a caller with a larger part of them is always among those that are followed.
#[derive(Debug, Default)]
pub(super) struct TopCallers(Vec<RefusedCaller>);

#[derive(Clone, Debug, Serialize)]
pub(super) struct RefusedCaller {
    rule: Option<Arc<str>>,
    #[serde(skip)]
    key_hash: u64,
    /// The hash in digits: it is too long for a number in JavaScript.
    caller: String,
    /// `None` unless the rule shows its keys.
    key: Option<String>,
    refused: u64,
    error: u64,
    /// When it was last refused, in milliseconds since 1970.
    last: u64,
}

impl TopCallers {
    /// Adds refusals of one caller.
    pub(super) fn add(
        &mut self,
        rule: Option<&Arc<str>>,
        (key_hash, key): (u64, Option<&str>),
        refusals: u64,
        now: u64,
    ) {
        let is_it = |it: &&mut RefusedCaller| it.key_hash == key_hash && it.rule.as_ref() == rule;
        if let Some(known) = self.0.iter_mut().find(is_it) {
            known.refused += refusals;
            known.last = now;
            return;
        }
        let error = if self.0.len() < FOLLOWED {
            0
        } else {
            let fewest = (0..self.0.len()).min_by_key(|at| self.0.get(*at).map(|it| it.refused));
            self.0.swap_remove(fewest.unwrap_or_default()).refused
        };
        self.0.push(RefusedCaller {
            rule: rule.cloned(),
            key_hash,
            caller: format!("{key_hash:016x}"),
            key: key.map(|key| key.chars().take(LONGEST_KEY).collect()),
            refused: error + refusals,
            error,
            last: now,
        });
    }

    /// Returns those with the most refusals.
    pub(super) fn top(&self, most: usize) -> Vec<RefusedCaller> {
        let mut all = self.0.clone();
        all.sort_by_key(|caller| std::cmp::Reverse(caller.refused));
        all.truncate(most);
        all
    }
}
