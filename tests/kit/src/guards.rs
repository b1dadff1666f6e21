//! The guards of a store in every combination: none of them changes what is decided.

use std::time::Duration;

use tower_ratelimit::{RedisStore, RedisStoreBuilder};

use crate::LONG;

/// How the guards are set. Another guard is one more field here, and one more loop in
/// [`all`](Self::all).
#[derive(Clone, Copy, Debug)]
pub struct Guards {
    /// Off, as by default, and as long as it can be
    deny_cache: Duration,
    /// Where a busy machine does not meet it, and off
    deadline: Duration,
    /// Off, and as easily opened as it can be: none of these calls fails
    breaker: u32,
}

impl Guards {
    /// Every combination; the first has them all off, or as if.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for deny_cache in [0, 1, 60] {
            for deadline in [LONG, Duration::MAX] {
                for breaker in [0, 1] {
                    all.push(Self {
                        deny_cache: Duration::from_secs(deny_cache),
                        deadline,
                        breaker,
                    });
                }
            }
        }
        all
    }

    /// A new store with them.
    pub fn put_on(self, store: RedisStoreBuilder) -> RedisStore {
        store
            .connect_timeout(LONG)
            .response_timeout(LONG)
            .deadline(self.deadline)
            .breaker(self.breaker)
            .deny_cache(self.deny_cache)
            .build()
            .expect("settings")
    }
}
