//! Tells a refusal again without asking, while nothing that this process knows of can have made room.
//!
//! A refusal carries the first instant at which its permits can be free. Only room given back, another limit or a loss
//! of data brings that forward. What this process does of these drops the refusal at once; what others do reaches it
//! when the store is asked again, after the cap at the latest.

mod generations;

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use quick_cache::{Equivalent, UnitWeighter, sync::Cache};

use self::generations::{Generations, Seen};
use crate::{
    clock::{Clock, SteadyClock, millis, moment},
    decision::{Decision, LimitState, Refusal, RefusalKind, Source},
    demand::{Acquire, Charge, Labels, Limiter, MaxWait},
    error::Error,
    limit::Algorithm,
    list::List,
    name::{BuildSpread, Name},
    receipt::Receipt,
    store::{Decide, Listener, Op, Outcome},
    sync::atomic::{AtomicBool, Ordering},
};

/// How many refusals are kept, at most. Some 500 bytes each for one limiter, its name included: 65 MB where all are.
const MOST_REFUSALS: usize = if cfg!(interleavings) { 16 } else { 1 << 17 };
/// How much earlier a server's clock can turn than this process sees: it counts whole milliseconds, and a decision
/// falls anywhere within one.
const WHOLE_MILLISECOND: Duration = Duration::from_millis(1);

/// A store whose refusals are told again without asking it.
#[derive(Debug)]
pub(crate) struct DenyCache<S> {
    inner: S,
    refusals: Arc<Refusals>,
}

impl<S> DenyCache<S> {
    /// `refusals` is also among the store's listeners.
    pub(crate) fn new(inner: S, refusals: Arc<Refusals>) -> Self {
        Self { inner, refusals }
    }
}

impl<S: Decide> Decide for DenyCache<S> {
    /// Returns the refusal that asking would give, if it is known: there is no future to poll, and
    /// nothing to allocate for a single limiter.
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        match self.refusals.known(acquire) {
            Some(refusal) => Some(Ok(Decision::Deny(refusal))),
            None => self.inner.decide_at_once(acquire),
        }
    }

    /// # Cancel safety
    ///
    /// As the store's within; nothing is learnt from a call that nobody waits for.
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let asked = self.refusals.ask(acquire);
        let decision = self.inner.acquire(acquire).await?;
        match &decision {
            // It was taken before: nothing has changed.
            Decision::Allow(grant) if grant.source() == Source::Lease => {}
            // What is told of these limiters is no longer true, though it goes on being a refusal.
            Decision::Allow(grant) => grant
                .receipts()
                .iter()
                .for_each(|receipt| self.refusals.changed(receipt.name())),
            Decision::Deny(refusal) => {
                if let Some(asked) = asked {
                    self.refusals.learn(acquire, asked, refusal);
                }
            }
        }
        Ok(decision)
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        self.inner.manage(name, op).await
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        // The store says so once more when it has arrived: then there is room. That is enough where nobody has heard
        // whether anything was taken, and whoever asks meanwhile may as well be refused: also by a store that is
        // silent.
        if receipt.was_granted() {
            self.refusals.changed(receipt.name());
        }
        self.inner.settle(receipt, keep);
    }
}

/// The refusals that a store has told.
pub(crate) struct Refusals {
    /// Saves the look-up while nothing was ever refused: permits in hand lie behind it.
    any: AtomicBool,
    /// None where nothing is told again.
    kept: Option<Cache<Key, Arc<Known>, UnitWeighter, BuildSpread>>,
    cap: Duration,
    generations: Generations,
    /// The clock of the logs, if it is this process's; none for the server's.
    own_clock: Option<Arc<dyn Clock>>,
    steady_clock: SteadyClock,
}

/// When something was asked.
pub(crate) struct Asked {
    seen: Seen,
    at: Duration,
    moment: Instant,
}

impl Refusals {
    /// Tells a refusal again for `cap` at most; never, if that is zero.
    pub(crate) fn new(cap: Duration, own_clock: Option<Arc<dyn Clock>>) -> Self {
        Self::keeping(MOST_REFUSALS, cap, own_clock)
    }

    fn keeping(most: usize, cap: Duration, own_clock: Option<Arc<dyn Clock>>) -> Self {
        let kept = (!cap.is_zero()).then(|| {
            Cache::with(
                most,
                most as u64,
                UnitWeighter,
                BuildSpread::new(),
                Default::default(),
            )
        });
        Self {
            any: AtomicBool::new(false),
            kept,
            cap,
            generations: Generations::default(),
            own_clock,
            steady_clock: SteadyClock::new(),
        }
    }

    /// Drops what is known of this name.
    pub(crate) fn changed(&self, name: &Name) {
        if self.kept.is_some() {
            self.generations.changed(name);
        }
    }

    /// Notes that somebody asks; none where the answer is not to be told again.
    fn ask(&self, acquire: &Acquire) -> Option<Asked> {
        self.kept.as_ref()?;
        let names = acquire.charges().map(|charge| charge.name());
        Some(Asked {
            seen: self.generations.see(names),
            at: self.clock_of(acquire)?.now(),
            moment: moment(),
        })
    }

    #[cfg(test)]
    pub(crate) fn learns(&self, acquire: &Acquire, refusal: &Refusal) {
        if let Some(asked) = self.ask(acquire) {
            self.learn(acquire, asked, refusal);
        }
    }

    /// Keeps a refusal.
    fn learn(&self, acquire: &Acquire, asked: Asked, refusal: &Refusal) {
        let (Some(kept), Some(clock)) = (&self.kept, self.clock_of(acquire)) else {
            return;
        };
        // Those before it may leave, and then it has room earlier.
        if refusal.behind {
            return;
        }
        let received = clock.now();
        let after = |wait| asked.at.saturating_add(wait).saturating_sub(clock.slack());
        let (until, over) = match (refusal.kind, refusal.retry_after) {
            (RefusalKind::OverLimit, Some(wait)) => {
                let waits = refusal.limits.iter().filter_map(|limit| limit.retry_after);
                (after(waits.min().unwrap_or(wait).min(wait)), after(wait))
            }
            // Until somebody changes the limit.
            (RefusalKind::AboveRate, _) => {
                let until = asked.at.saturating_add(self.cap);
                (until, until)
            }
            // Not of the store, or not of the limits alone.
            (
                RefusalKind::OverLimit
                | RefusalKind::MissingKey
                | RefusalKind::KeyTooLong
                | RefusalKind::Blocked
                | RefusalKind::QueueFull
                | RefusalKind::Unavailable,
                _,
            ) => return,
        };
        // What is over already must not replace what others know: the wait of one that has waited
        // counts from now, and not from when it asked.
        if until <= asked.at.max(received) || !self.generations.is_current(&asked.seen) {
            return;
        }
        let known = Arc::new(Known {
            charges: acquire.charges().map(Held::of).collect(),
            remaining: acquire.remaining,
            limits: refusal.limits.clone(),
            retry_after: refusal.retry_after,
            seen: asked.seen,
            sent: asked.at,
            moment: asked.moment,
            received,
            until,
            over,
            asked_again: AtomicBool::new(false),
        });
        kept.insert(Key(Arc::clone(&known)), known);
        self.any.store(true, Ordering::Relaxed);
    }

    /// The refusal that asking would give. One that waits gets it where there is no room before it
    /// gives up: those who wait before it could only put that off.
    fn known(&self, acquire: &Acquire) -> Option<Refusal> {
        let (known, clock, now) = self.find(acquire, |known| known.until)?;
        let wait = known.retry_after.map(|_| known.over.saturating_sub(now));
        if !gives_up_within(acquire.patience, wait) {
            return None;
        }
        let fresh_until = known.sent.saturating_add(self.cap);
        // A clock that is set may show the same time once more.
        let jumped = clock.is_own() && moment().duration_since(known.moment) >= self.cap;
        if now >= fresh_until || jumped {
            return None;
        }
        // One of many asks in time, so that not all of them do at the end.
        let soon = known.sent.saturating_add(self.cap / 4 * 3);
        let asks = now >= soon && known.until > fresh_until;
        if asks && !known.asked_again.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(known.refusal(now))
    }

    /// The refusal that was told last, and that nothing has come of which this process would know: for when nobody can
    /// be asked.
    pub(crate) fn last_known(&self, acquire: &Acquire) -> Option<Refusal> {
        if acquire.patience.is_some() {
            return None;
        }
        let (known, _, now) = self.find(acquire, |known| known.over)?;
        Some(known.refusal(now))
    }

    /// What is known until that end, by whose clock, and the time by that.
    fn find(
        &self,
        acquire: &Acquire,
        end: fn(&Known) -> Duration,
    ) -> Option<(Arc<Known>, ClockOf<'_>, Duration)> {
        // Who misses the first refusal asks the store, as before it.
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let known = self.kept.as_ref()?.get(&Question(acquire))?;
        let clock = self.clock_of(acquire)?;
        let now = clock.now();
        let counts = (known.sent..end(&known)).contains(&now);
        (counts && self.generations.is_current(&known.seen)).then_some((known, clock, now))
    }

    /// The clock by which waits are told. None where there are several: windows end by the server's clock, whatever the
    /// logs are counted by.
    fn clock_of(&self, acquire: &Acquire) -> Option<ClockOf<'_>> {
        let server = ClockOf::Server(self.steady_clock);
        let Some(own) = &self.own_clock else {
            return Some(server);
        };
        let windows = |charge: &Charge| charge.name().algorithm() == Algorithm::FixedWindow;
        if !acquire.charges().any(windows) {
            Some(ClockOf::Own(&**own))
        } else if acquire.charges().all(windows) {
            Some(server)
        } else {
            None
        }
    }
}

/// Whose clock tells the waits of a call.
enum ClockOf<'a> {
    /// This process's, by which the call itself is made
    Own(&'a dyn Clock),
    /// The server's, of which this process sees how long it goes on
    Server(SteadyClock),
}

impl ClockOf<'_> {
    fn now(&self) -> Duration {
        match self {
            // As the call tells it.
            Self::Own(clock) => Duration::from_millis(millis(*clock)),
            Self::Server(steady) => steady.now(),
        }
    }

    /// By how much a wait may be told too long.
    fn slack(&self) -> Duration {
        match self {
            Self::Own(_) => Duration::ZERO,
            Self::Server(_) => WHOLE_MILLISECOND,
        }
    }

    fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

impl Listener for Arc<Refusals> {
    fn changed(&self, name: &Name) {
        Refusals::changed(self, name);
    }

    fn room(&self, name: &Name, _undone: bool) {
        Refusals::changed(self, name);
    }
}

/// A refusal, and what was asked.
struct Known {
    charges: List<Held>,
    remaining: bool,
    limits: List<LimitState>,
    retry_after: Option<Duration>,
    /// The generations in which it was asked.
    seen: Seen,
    sent: Duration,
    moment: Instant,
    received: Duration,
    /// Until when it is certain, but for what others do: of several limits, the first that has room changes what is told.
    until: Duration,
    /// Until when it is certain that it is refused.
    over: Duration,
    /// Whether somebody asks already, to know it for longer.
    asked_again: AtomicBool,
}

impl Known {
    /// As it is told at another time.
    fn refusal(&self, now: Duration) -> Refusal {
        // From when the reply arrived: the server counted from some time before, so nobody is told to come too early.
        let left = |time: Duration| self.received.saturating_add(time).saturating_sub(now);
        let mut limits = self.limits.clone();
        for limit in limits.iter_mut() {
            limit.next_after = limit.next_after.map(left).filter(|next| !next.is_zero());
            limit.reset_after = left(limit.reset_after);
            if let Some(wait) = limit.retry_after.map(left) {
                // One of several has room before the others.
                limit.refused = !wait.is_zero();
                limit.retry_after = limit.refused.then_some(wait);
            }
        }
        Refusal::by_limits(limits, self.retry_after.map(left), Source::Cache)
    }
}

/// Whether a caller does not wait as long as it takes until there is room, if there ever is.
fn gives_up_within(max_wait: Option<MaxWait>, wait: Option<Duration>) -> bool {
    let Some(MaxWait { longest, .. }) = max_wait else {
        return true;
    };
    wait.is_none_or(|wait| longest.is_some_and(|longest| wait > longest))
}

/// A kept refusal, found by what was asked.
struct Key(Arc<Known>);

/// What is asked.
struct Question<'a>(&'a Acquire);

/// A charge, as far as its answer depends on it: ids differ with each caller, and stand in none.
struct Held {
    limiter: Arc<Limiter>,
    labels: Arc<Labels>,
    permits: u32,
    shadow: bool,
}

impl Held {
    fn of(charge: &Charge) -> Self {
        Self {
            limiter: charge.limiter.share(),
            labels: Arc::clone(&charge.labels),
            permits: charge.permits,
            shadow: charge.shadow,
        }
    }

    /// Whether its answer is that to these permits.
    fn answers(
        &self,
        limiter: &Limiter,
        labels: &Arc<Labels>,
        (permits, shadow): (u32, bool),
    ) -> bool {
        (self.permits, self.shadow) == (permits, shadow)
            && *self.limiter == *limiter
            && (Arc::ptr_eq(&self.labels, labels) || self.labels.answers_like(labels))
    }
}

/// Hashes a charge by its limiter and permits.
fn hash(limiter: &Limiter, permits: u32, state: &mut impl Hasher) {
    limiter.name.hash(state);
    permits.hash(state);
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for held in self.0.charges.iter() {
            hash(&held.limiter, held.permits, state);
        }
    }
}

impl Hash for Question<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for charge in self.0.charges() {
            hash(&charge.limiter, charge.permits, state);
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        a.remaining == b.remaining
            && a.charges.len() == b.charges.len()
            && (a.charges.iter().zip(b.charges.iter()))
                .all(|(a, b)| a.answers(&b.limiter, &b.labels, (b.permits, b.shadow)))
    }
}

impl Eq for Key {}

impl Equivalent<Key> for Question<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        let (asked, known) = (self.0, &key.0);
        asked.remaining == known.remaining
            && 1 + asked.rest.len() == known.charges.len()
            && (asked.charges().zip(known.charges.iter())).all(|(asked, held)| {
                held.answers(&asked.limiter, &asked.labels, (asked.permits, asked.shadow))
            })
    }
}

// What it holds has identities in it.
impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals")
            .field("cap", &self.cap)
            .field("len", &self.kept.as_ref().map_or(0, Cache::len))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "deny_cache/tests.rs"]
mod tests;
