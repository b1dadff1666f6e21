//! The breaker of a node, and what the breakers of a store share. How calls pass them, and what
//! their ends mean: [`passes`](super::passes).

use std::{
    hash::{BuildHasher, RandomState},
    sync::PoisonError,
    time::Duration,
};

use crate::{
    sync::{Mutex, atomic::AtomicUsize},
    values::error::{Error, ErrorKind},
};

/// The most failures that open a breaker: the row of its last calls has 64 bits, two for each.
pub(crate) const MOST_FAILURES: u32 = 32;

/// A server that is slow now and then is reported once in this time.
pub(super) const WARNED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The first pause, and the longest: a server that is back is found within about a second.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Every decision that needs it calls it
    Closed,
    /// No decision calls it
    Open,
    /// One decision calls it, to find out whether it answers
    HalfOpen,
}

/// What the breakers of a store share.
pub(super) struct Breakers {
    /// The failures that open one, of the last twice as many calls; zero where there is none.
    pub(super) failures: u32,
    /// The number of nodes that are open, or failed lately. No breaker is looked at without one.
    pub(super) troubled: AtomicUsize,
    log: Mutex<BreakerLog>,
    jitter: RandomState,
    /// Made once, as it is returned often.
    pub(super) open: Error,
    pub(super) turned: Box<dyn Fn(usize, bool) + Send + Sync>,
}

#[derive(Default)]
struct BreakerLog {
    /// The number of nodes that are open.
    open: usize,
    /// When the last warning was logged.
    warned: Option<Duration>,
    /// Set if the end of what was warned of is still to be logged.
    has_warned: bool,
}

impl Default for Breakers {
    fn default() -> Self {
        Self {
            failures: 0,
            troubled: AtomicUsize::new(0),
            log: Mutex::new(BreakerLog::default()),
            jitter: RandomState::new(),
            open: Error::new(ErrorKind::Unavailable).detail("its breaker is open"),
            turned: Box::new(|_, _| ()),
        }
    }
}

/// The breaker of a node.
#[derive(Debug)]
pub(super) struct Breaker {
    /// `None` while it is closed.
    pub(super) open: Option<Open>,
    /// When it was last opened or closed.
    pub(super) since: Duration,
    /// The last calls as bits, set for a failure, the latest in the lowest bit; empty while it is
    /// open.
    pub(super) row: u64,
}

/// An open breaker, in one of its pauses or while it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    /// The end of the pause, or of the longest time of the probe.
    pub(super) until: Duration,
    /// The number of pauses so far.
    pub(super) pauses: u32,
    pub(super) is_probed: bool,
}

/// The meaning of a call's end for its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The server answered, even with an error
    Answered,
    /// The server says that it cannot work, or is silent
    Failed,
    /// Nothing: the call was not sent, or only its connection failed
    Nothing,
}

impl Breakers {
    /// Returns a number by which processes differ.
    pub(super) fn spread(&self, now: Duration) -> u64 {
        self.jitter.hash_one(now)
    }

    /// Counts that a node opened or closed. Returns whether to log it: the first of the nodes that
    /// opens, once in a while, and the last that closes after that.
    pub(super) fn count_change(&self, opened: bool, now: Duration) -> bool {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.open = if opened {
            log.open + 1
        } else {
            log.open.saturating_sub(1)
        };
        if log.open != usize::from(opened) {
            return false;
        }
        if !opened {
            return std::mem::take(&mut log.has_warned);
        }
        let lately = |warned| now < WARNED_AGAIN_AFTER.saturating_add(warned);
        let warns = !log.warned.is_some_and(lately);
        if warns {
            (log.warned, log.has_warned) = (Some(now), true);
        }
        warns
    }
}

impl Breaker {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            open: None,
            since: now,
            row: 0,
        }
    }

    /// Returns whether no call passes.
    pub(super) fn refuses(&self, now: Duration) -> bool {
        self.open.is_some_and(|open| now < open.until)
    }

    pub(super) fn has_failures(&self) -> bool {
        self.open.is_some() || self.row != 0
    }

    pub(super) fn state(&self, now: Duration) -> BreakerState {
        match self.open {
            None => BreakerState::Closed,
            Some(open) if !open.is_probed && now < open.until => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }
}

impl Open {
    /// Returns the state at the beginning of a pause. It takes twice as long as the one before, up
    /// to the longest; of that, somewhere between half and all, as drawn by `spread`, so that
    /// processes do not ask together.
    pub(super) fn pausing(before: u32, now: Duration, spread: u64) -> Self {
        let whole = FIRST_PAUSE.saturating_mul(1 << before.min(10));
        let half = whole.min(LONGEST_PAUSE) / 2;
        let more = spread % (half.as_millis() as u64 + 1);
        Self {
            until: now.saturating_add(half + Duration::from_millis(more)),
            pauses: before.saturating_add(1),
            is_probed: false,
        }
    }
}
