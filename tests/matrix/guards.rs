//! The guards of a handle in the matrix, in one place: every guard that there is.

use kit::scene::*;

/// The longest time that a decision may take in most rows: far more than usual, and short beside
/// the faults.
pub const BUDGET: Duration = Duration::from_millis(250);

/// For rows in which no decision may fail: a busy machine is no failure.
pub const PATIENT: Duration = LONG;

/// The lease of the lane that has one.
pub const LEASE: Duration = Duration::from_millis(40);

/// The share of its limit that a process decides by itself while the store cannot: there are two.
pub const SHARE: f64 = 0.5;

/// The longest wait of the lane that waits in a queue.
pub const MAX_WAIT: Duration = Duration::from_millis(120);

/// Returns a handle with its guards on: deny cache and deadline here; queues always, leases by
/// rule.
pub fn guarded(store: RedisStoreBuilder, budget: Duration) -> RedisStoreBuilder {
    let store = store.deadline(budget).deny_cache(Duration::from_secs(1));
    if budget > BUDGET {
        store.response_timeout(budget).connect_timeout(budget)
    } else {
        store
    }
}
