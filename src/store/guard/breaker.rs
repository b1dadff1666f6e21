//! Leaves a server alone that does not answer: while its breaker is open nobody asks it, and nobody waits for it.
//!
//! It is for a server that can be reached and is slow, hangs, or is busy with other things. One that cannot be reached
//! has the pauses of the connection, in which commands fail at once; of these nothing is learnt here. What a server
//! answers in time is an answer, whatever it says of the limiter.
//!
//! Its front, [`Breakers::refuses`], is asked before there is any future; its back, [`Breakers::enter`], by whoever is
//! about to send a call, once for each call and node. What comes of calls is a row of bits: so many failures among the
//! last twice as many open it. After a pause one call goes through, the probe. If that is answered, all do.
//!
//! A call that all its callers have left counts as a failure if they left at their deadline, and if
//! the server was silent: see [`Traffic`]. Callers who hang up early prove nothing, or anybody
//! could have everybody answered by policy by sending requests and leaving at once. A server that
//! answers others in the meantime has more to do than it can in time, by a burst: that is overload,
//! and leaving it alone would open the limits of all for the burst of one. Of an answer that comes
//! too late, but while somebody waits for it, nothing is learnt either.
//!
//! The probe goes alone, so its own time is the truth.

mod traffic;
mod word;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

pub(crate) use self::traffic::{Traffic, Watch};
use self::word::{Entry, Phase, Word, millis};
use crate::{
    clock::Clock,
    demand::{Acquire, Charge},
    error::{Error, ErrorKind},
    macros::{detail, notice, warning},
    name::Name,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// As many as the row of bits can tell.
pub(crate) const MOST_FAILURES: u32 = 32;

/// A server that is slow now and then is told of so often.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The breakers of a store, one for each node.
pub(crate) struct Breakers {
    /// None where there is no breaker.
    nodes: Box<[Node]>,
    /// How many of them are not closed: saves all else while all are.
    unwell: AtomicUsize,
    /// Of the last twice as many calls.
    failures: u32,
    /// A call that takes as long is of no use to anybody.
    slow: Duration,
    /// Which node a name is on, and what comes from there.
    traffic: Arc<Traffic>,
    clock: Arc<dyn Clock>,
    made: Duration,
    jitter: RandomState,
    /// Made once, as it is told often.
    open: Error,
    /// When it was last said that one opened, and whether it is to be said that all are closed.
    told: AtomicU64,
    tells: AtomicBool,
}

struct Node {
    word: AtomicU64,
    /// The last calls, the latest in the lowest bit: whether they failed. Nothing is noted before the first failure.
    row: AtomicU64,
    /// When it was opened or closed last, in milliseconds.
    since: AtomicU64,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// There was an answer, whatever it says
    Answered,
    /// The server says that it cannot work
    Failed,
    /// Nothing of the server: it was not sent, or is a matter of the connection
    Nothing,
}

/// A node as it is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) state: Seems,
    pub(crate) lasts: Duration,
    /// Failures among the last calls, while it is closed.
    pub(crate) failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seems {
    Closed,
    Open,
    HalfOpen,
}

impl Breakers {
    /// Breakers for so many nodes, of which `place` tells a name's; `slow` is how long callers wait. No `failures`: never
    /// open.
    pub(crate) fn new(
        failures: u32,
        slow: Duration,
        nodes: usize,
        place: fn(&Name) -> usize,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let traffic = Arc::new(Traffic::new(nodes, place, Arc::clone(&clock)));
        let nodes = if failures == 0 { 0 } else { nodes };
        Self {
            nodes: (0..nodes).map(|_| Node::new()).collect(),
            unwell: AtomicUsize::new(0),
            failures: failures.min(MOST_FAILURES),
            slow,
            traffic,
            made: clock.now(),
            clock,
            jitter: RandomState::new(),
            open: Error::new(ErrorKind::Unavailable).detail("its breaker is open"),
            told: AtomicU64::new(0),
            tells: AtomicBool::new(false),
        }
    }

    /// Says in errors which server it is.
    pub(crate) fn named(self, address: Option<&Arc<str>>) -> Self {
        Self {
            open: self.open.of(address),
            ..self
        }
    }

    /// What is recorded of the nodes' replies, also where there is no breaker.
    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Why not to ask, if a node is left alone that would be. To be asked before there is a future.
    ///
    /// Where somebody has to find out whether it is well again, this is the caller who does.
    #[inline]
    pub(crate) fn refuses(&self, acquire: &Acquire) -> Option<Error> {
        if self.unwell.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.looks_up(acquire)
    }

    #[cold]
    fn looks_up(&self, acquire: &Acquire) -> Option<Error> {
        let now = self.now();
        let shut = |charge: &Charge| {
            let node = self.nodes.get(self.traffic.index(charge.name()));
            node.is_some_and(|node| node.load().entry(now) == Entry::Nobody)
        };
        // What is only tried out is no reason to refuse.
        let counts = |charge: &&Charge| !charge.shadow || acquire.is_trial();
        let mut charges = acquire.charges().filter(counts);
        charges.any(shut).then(|| self.open.clone())
    }

    /// Lets a call of this name pass, which tells by what it gets what became of it. `waited` is how long its callers have
    /// waited for it at most.
    ///
    /// # Errors
    ///
    /// Of kind [`Unavailable`](ErrorKind::Unavailable) while the breaker is open, but for the one who finds out.
    pub(crate) fn enter(&self, name: &Name, waited: Duration) -> Result<Pass<'_>, Error> {
        let index = self.traffic.index(name);
        let Some(node) = self.nodes.get(index) else {
            self.traffic.sends(index);
            return Ok(Pass(None));
        };
        let began = self.clock.now();
        let word = node.load();
        let (word, probes) = match word.entry(self.since_made(began)) {
            Entry::All => (word, false),
            Entry::One(probing) if node.change(word, probing) => (probing, true),
            Entry::One(_) | Entry::Nobody => return Err(self.open.clone()),
        };
        self.traffic.sends(index);
        Ok(Pass(Some(Passing {
            breakers: self,
            node,
            index,
            word,
            probes,
            began,
            waited,
        })))
    }

    /// The nodes in their order; none where there is no breaker.
    pub(crate) fn look(&self) -> Vec<Seen> {
        let now = self.now();
        self.nodes.iter().map(|node| node.look(now)).collect()
    }

    /// Notes what became of a call that went as all do.
    fn note(&self, node: &Node, began_in: Word, failed: bool) {
        // The plain load keeps the cache line shared while all is well.
        if (!failed && node.row.load(Ordering::Relaxed) == 0) || node.load() != began_in {
            return;
        }
        let among = u64::MAX >> (64 - 2 * self.failures);
        let next = |row: u64| (row << 1 | u64::from(failed)) & among;
        let noted = node
            .row
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |row| Some(next(row)));
        let row = noted.map_or(0, next);
        if failed && row.count_ones() >= self.failures {
            let now = self.now();
            if node.change(began_in, began_in.opened(now, self.spread())) {
                self.turned(node, now, true);
            }
        }
    }

    /// Notes what became of the one call that went.
    fn probed(&self, node: &Node, probing: Word, told: Told) {
        let now = self.now();
        match told {
            Told::Answered => {
                // Also if another one asks by now: there was an answer since it opened.
                let last = node.load();
                let is_open = last.phase != Phase::Closed && last.generation == probing.generation;
                if is_open && node.change(last, last.closed()) {
                    self.turned(node, now, false);
                }
            }
            Told::Failed => {
                node.change(probing, probing.opened(now, self.spread()));
            }
            Told::Nothing => {
                node.change(probing, probing.unanswered(now));
            }
        }
    }

    /// Says so, of the first of several nodes and of the last.
    fn turned(&self, node: &Node, now: u64, opened: bool) {
        node.row.store(0, Ordering::Relaxed);
        node.since.store(now, Ordering::Relaxed);
        if opened {
            if self.unwell.fetch_add(1, Ordering::Relaxed) == 0 {
                self.tell_opened(now);
            }
        } else if self.unwell.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.tell_closed();
        }
    }

    fn tell_opened(&self, now: u64) {
        let told = self.told.load(Ordering::Relaxed);
        let soon = told != 0 && now < told + millis(TOLD_AGAIN_AFTER);
        if soon {
            detail!(failures = self.failures, "the breaker opens once more");
            return;
        }
        self.told.store(now.max(1), Ordering::Relaxed);
        self.tells.store(true, Ordering::Relaxed);
        warning!(
            failures = self.failures,
            "the breaker opens: the store of the rate limits is left alone, but for a call now and then, until it \
             answers in time"
        );
    }

    fn tell_closed(&self) {
        if self.tells.swap(false, Ordering::Relaxed) {
            notice!("the breaker closes: the store of the rate limits is asked again");
        } else {
            detail!("the breaker closes once more");
        }
    }

    fn spread(&self) -> u64 {
        self.jitter.hash_one(self.clock.now())
    }

    fn now(&self) -> u64 {
        self.since_made(self.clock.now())
    }

    fn since_made(&self, time: Duration) -> u64 {
        millis(time.saturating_sub(self.made))
    }
}

impl Node {
    fn new() -> Self {
        Self {
            word: AtomicU64::new(Word::NEW.pack()),
            row: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }

    fn load(&self) -> Word {
        Word::unpack(self.word.load(Ordering::Acquire))
    }

    /// Whether it was still as it was.
    fn change(&self, from: Word, to: Word) -> bool {
        let changed =
            self.word
                .compare_exchange(from.pack(), to.pack(), Ordering::AcqRel, Ordering::Relaxed);
        changed.is_ok()
    }

    fn look(&self, now: u64) -> Seen {
        let word = self.load();
        Seen {
            state: match word.phase {
                Phase::Closed => Seems::Closed,
                Phase::Open if now < word.until => Seems::Open,
                Phase::Open | Phase::Probing => Seems::HalfOpen,
            },
            lasts: Duration::from_millis(now.saturating_sub(self.since.load(Ordering::Relaxed))),
            failures: self.row.load(Ordering::Relaxed).count_ones(),
        }
    }
}

/// One call, until it is over. Dropping it says that nobody waits for it any longer.
#[must_use = "a call that is not told of has failed, or was not waited for"]
pub(crate) struct Pass<'a>(Option<Passing<'a>>);

struct Passing<'a> {
    breakers: &'a Breakers,
    node: &'a Node,
    index: usize,
    /// The state in which it began.
    word: Word,
    probes: bool,
    began: Duration,
    /// How long it was waited for before.
    waited: Duration,
}

impl Pass<'_> {
    /// Tells what became of the call. An answer that took longer than callers wait is none.
    pub(crate) fn ends(mut self, told: Told) {
        if let Some(passing) = self.0.take() {
            let late = told == Told::Answered && passing.took() >= passing.breakers.slow;
            passing.tell(if !late {
                told
            } else if passing.probes {
                Told::Failed
            } else {
                Told::Nothing
            });
        }
    }

    /// Tells that the connection waits for an answer no longer.
    pub(crate) fn ends_unanswered(mut self) {
        if let Some(passing) = self.0.take() {
            passing.tell_unanswered(passing.took().min(passing.breakers.slow));
        }
    }
}

impl Passing<'_> {
    fn took(&self) -> Duration {
        self.breakers.clock.now().saturating_sub(self.began)
    }

    /// Records a call that is given up after `patience`: it failed if the server was silent for as
    /// long, during this call or since an earlier one that stood before it in line.
    fn tell_unanswered(&self, patience: Duration) {
        let waited = if self.took() >= nearly(patience) {
            Duration::ZERO
        } else {
            self.waited
        };
        let asked = self.began.saturating_sub(waited);
        let traffic = &self.breakers.traffic;
        let silent = traffic.lets_down(self.index, asked, patience);
        self.tell(if silent || self.probes {
            Told::Failed
        } else {
            Told::Nothing
        });
    }

    fn tell(&self, told: Told) {
        if self.probes {
            self.breakers.probed(self.node, self.word, told);
        } else if told != Told::Nothing {
            let failed = told == Told::Failed;
            self.breakers.note(self.node, self.word, failed);
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(passing) = self.0.take() {
            // Of a line that is longer than a run the first leave when their call is young: they have waited before it.
            let slow = passing.breakers.slow;
            if passing.waited + passing.took() >= nearly(slow) {
                passing.tell_unanswered(slow);
            } else {
                passing.tell(Told::Nothing);
            }
        }
    }
}

/// When a caller that leaves does so at its deadline.
fn nearly(slow: Duration) -> Duration {
    slow / 10 * 9
}

impl fmt::Debug for Breakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breakers")
            .field("nodes", &self.nodes.len())
            .field("unwell", &self.unwell)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
