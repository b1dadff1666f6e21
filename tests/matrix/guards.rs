//! What a handle of the matrix has on, in one place: every guard that there is.

use crate::scene::*;

/// The longest that a decision may take in most rows: far more than one takes, and short beside the faults.
pub const BUDGET: Duration = Duration::from_millis(250);

/// For rows in which no decision may fail: a busy machine is no failure.
pub const PATIENT: Duration = Duration::from_secs(5);

/// How long permits are taken ahead, by the lane that does.
pub const LEASE: Duration = Duration::from_millis(40);

/// How much of its limit a process has that decides by itself while the store cannot: two of them ask.
pub const SHARE: f64 = 0.5;

/// How long the lane waits that waits in line.
pub const PATIENCE: Duration = Duration::from_millis(120);

/// A handle with its guards on: refusals told again, the deadline; the line and leases are on by themselves and by rule.
pub fn guarded(store: RedisStoreBuilder, budget: Duration) -> RedisStoreBuilder {
    let store = store.deadline(budget).deny_cache(Duration::from_secs(1));
    match budget > BUDGET {
        true => store.response_timeout(budget).connect_timeout(budget),
        false => store,
    }
}
