//! Writes down what handles of one store are asked, what they answer, and when.

use std::{
    collections::HashSet,
    fmt,
    pin::Pin,
    sync::{MutexGuard, PoisonError},
    task::Context,
};

use super::*;
use crate::{
    store::{About, AnyStore, Deciding, Managing, redis::BreakerState, sealed::Handle},
    values::{clock::SystemClock, compiled_limit::Limiter},
};

/// When something happened: by an order that all threads share, and by the clock that permits are
/// counted by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    pub(crate) order: u64,
    pub(crate) clock: Duration,
}

impl Moment {
    /// In whole milliseconds, as a server counts.
    pub(crate) fn at(&self) -> i64 {
        millis(self.clock)
    }
}

/// One thing that was asked of a handle.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) handle: usize,
    pub(crate) what: What,
    pub(crate) begun: Moment,
    /// None if it is unknown when it was over.
    pub(crate) ended: Option<Moment>,
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are a few hundred")]
pub(crate) enum What {
    Demand(Demand, Outcome),
    Settle(Charge, u32),
    /// With its outcome, once that is known
    Manage(Name, Op, Option<OpResult>),
}

/// What a caller got.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are a few hundred")]
pub(crate) enum Outcome {
    /// It did not wait for an answer
    Nothing,
    Failed(Error),
    Decision {
        decision: Decision,
        came: Came,
    },
}

/// How a decision came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Came {
    /// It was waited for
    Awaited,
    /// Nothing was waited for
    AtOnce,
    /// The same, while the breaker of its handle was not closed: no server is asked then
    LeftAlone,
}

impl Outcome {
    /// Whether what was asked for may have been taken or not, and is given back by the store
    /// itself.
    fn is_open(&self) -> bool {
        match self {
            Self::Nothing | Self::Failed(_) => true,
            Self::Decision { decision, came } => match decision.source() {
                Source::Store | Source::Lease => false,
                // By policy, as no server answered.
                Source::Cache => *came == Came::Awaited,
                Source::Local | Source::FailurePolicy | Source::None | Source::Estimate => true,
            },
        }
    }
}

/// Where all handles write.
#[derive(Debug)]
pub(crate) struct Tape {
    order: AtomicU64,
    events: Mutex<Vec<Event>>,
    /// What was to be settled, and is in its store's hands.
    handed: Mutex<HashSet<usize>>,
    /// When handles were closed for the last time.
    closed: Mutex<HashMap<usize, Moment>>,
    clock: Option<ManualClock>,
}

impl Tape {
    /// `clock`: the one that permits are counted by, if that is not the server's.
    pub(crate) fn new(clock: Option<ManualClock>) -> Arc<Self> {
        Arc::new(Self {
            order: AtomicU64::new(0),
            events: Mutex::default(),
            handed: Mutex::default(),
            closed: Mutex::default(),
            clock,
        })
    }

    /// All that was written down. What was asked and never answered was still asked; what was given
    /// back of it had arrived when its handle was closed for the last time.
    pub(crate) fn cut(&self) -> (Vec<Event>, Moment, HashMap<usize, Moment>) {
        let mut events = self.events().clone();
        let unanswered: Vec<_> = events.iter().filter_map(given_back_unanswered).collect();
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        events.extend(unanswered.into_iter().flatten().map(|event| Event {
            ended: closed.get(&event.handle).copied(),
            ..event
        }));
        for event in &mut events {
            if let What::Demand(_, outcome) = &event.what
                && outcome.is_open()
            {
                event.ended = None;
            }
        }
        (events, self.moment(), closed.clone())
    }

    /// What is not answered yet.
    pub(crate) fn unanswered(&self) -> String {
        let events = self.events();
        let open = events.iter().filter(|event| event.ended.is_none());
        format!("{:#?}", open.collect::<Vec<_>>())
    }

    fn moment(&self) -> Moment {
        let by_hand = self.clock.as_ref().map(Clock::now);
        Moment {
            clock: by_hand.unwrap_or_else(|| SystemClock.now()),
            order: self.order.fetch_add(1, Ordering::SeqCst),
        }
    }

    fn begin(&self, handle: usize, what: What) -> usize {
        let begun = self.moment();
        let mut events = self.events();
        events.push(Event {
            handle,
            what,
            begun,
            ended: None,
        });
        events.len() - 1
    }

    fn end(&self, event: usize, change: impl FnOnce(&mut What)) {
        let ended = self.moment();
        let event = &mut self.events()[event];
        event.ended = Some(ended);
        change(&mut event.what);
    }

    fn handed(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a store gives back by itself of a call whose outcome it does not know.
fn given_back_unanswered(event: &Event) -> Option<Vec<Event>> {
    let What::Demand(demand, outcome) = &event.what else {
        return None;
    };
    let (by_itself, begun) = match outcome {
        // A request stays charged.
        Outcome::Nothing => {
            let is_request = demand.on_failure.is_some();
            (demand.max_wait.is_some() || !is_request, event.ended)
        }
        // Before it said so.
        outcome => (outcome.is_open(), None),
    };
    let settle = |receipt: &Charge| Event {
        handle: event.handle,
        what: What::Settle(receipt.clone(), 0),
        begun: begun.unwrap_or(event.begun),
        ended: None,
    };
    by_itself.then(|| demand.to_settle().iter().map(settle).collect())
}

/// A handle of a store, with all that is asked of it written down.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(Arc<Recording>);

struct Recording {
    handle: usize,
    store: RedisStore,
    guarded: Arc<dyn AnyStore>,
    tape: Arc<Tape>,
    /// What could not be decided at once, and goes on.
    asked: Mutex<HashMap<PermitId, usize>>,
}

impl Recording {
    /// How an answer comes that is there without waiting.
    fn comes_at_once(&self) -> Came {
        let health = self.store.health();
        let mut nodes = health.nodes.iter();
        if nodes.all(|node| node.breaker == BreakerState::Closed) {
            Came::AtOnce
        } else {
            Came::LeftAlone
        }
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<PermitId, usize>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    pub(crate) fn new(handle: usize, store: RedisStore, tape: Arc<Tape>) -> Self {
        Self(Arc::new(Recording {
            handle,
            guarded: store.handle().0,
            store,
            tape,
            asked: Mutex::default(),
        }))
    }

    /// Waits until what was given back has arrived.
    pub(crate) async fn close(&self) {
        let Recording {
            handle,
            store,
            tape,
            ..
        } = &*self.0;
        let handed = tape.handed().clone();
        let on_their_way: Vec<_> = {
            let events = tape.events();
            let is_on_its_way = |event: &usize| {
                let Event {
                    handle: of, ended, ..
                } = &events[*event];
                of == handle && ended.is_none()
            };
            handed.into_iter().filter(is_on_its_way).collect()
        };
        store.close().await;
        for event in on_their_way {
            tape.end(event, |_| {});
        }
        let closed = tape.moment();
        let mut all = tape.closed.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(*handle, closed);
    }
}

impl Sealed for Recorder {
    fn handle(&self) -> Handle {
        Handle(self.0.clone())
    }
}

impl AnyStore for Recording {
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        let asked = |demand: &Demand| What::Demand(demand.clone(), Outcome::Nothing);
        let event = self.tape.begin(self.handle, asked(demand));
        let before = self.comes_at_once();
        let decision = self.guarded.decide_at_once(demand);
        match &decision {
            Some(decision) => {
                let mut entry = Entry {
                    tape: Arc::clone(&self.tape),
                    event: Some(event),
                };
                let came = match before {
                    Came::LeftAlone => before,
                    _ => self.comes_at_once(),
                };
                entry.answered(decision, came);
            }
            // It has an id from here on.
            None => {
                self.tape.events()[event].what = asked(demand);
                self.asked().insert(demand.first().id, event);
            }
        }
        decision
    }

    fn acquire(self: Arc<Self>, demand: Demand) -> Deciding {
        let begun = self.asked().remove(&demand.first().id);
        let event = begun.unwrap_or_else(|| {
            let what = What::Demand(demand.clone(), Outcome::Nothing);
            self.tape.begin(self.handle, what)
        });
        let entry = Entry {
            tape: Arc::clone(&self.tape),
            event: Some(event),
        };
        let deciding = Arc::clone(&self.guarded).acquire(demand);
        Box::pin(Recorded { entry, deciding })
    }

    fn manage(self: Arc<Self>, limiter: Limiter, op: Op) -> Managing {
        let what = What::Manage(limiter.name.clone(), op.clone(), None);
        let event = self.tape.begin(self.handle, what);
        let managing = Arc::clone(&self.guarded).manage(limiter, op);
        Box::pin(async move {
            let result = managing.await;
            self.tape.end(event, |what| {
                if let (What::Manage(_, _, outcome), Ok(result)) = (what, &result) {
                    *outcome = Some(*result);
                }
            });
            result
        })
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        let what = What::Settle(receipt.clone(), keep);
        let event = self.tape.begin(self.handle, what);
        self.guarded.settle(receipt, keep);
        self.tape.handed().insert(event);
    }

    fn about(&self) -> &About {
        self.guarded.about()
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recording({})", self.handle)
    }
}

/// A call that is being answered. The moment at which it is dropped is noted before anything
/// follows from that: fields are dropped in their order.
struct Recorded {
    entry: Entry,
    deciding: Deciding,
}

impl Future for Recorded {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.deciding).poll(cx);
        if let Poll::Ready(decision) = &polled {
            self.entry.answered(decision, Came::Awaited);
        }
        polled
    }
}

/// Records the outcome of a call, or that its caller is gone.
struct Entry {
    tape: Arc<Tape>,
    event: Option<usize>,
}

impl Entry {
    fn answered(&mut self, decision: &Result<Decision, Error>, came: Came) {
        let outcome = match decision {
            Ok(decision) => Outcome::Decision {
                decision: decision.clone(),
                came,
            },
            Err(error) => Outcome::Failed(error.clone()),
        };
        self.record(outcome);
    }

    fn record(&mut self, found: Outcome) {
        if let Some(event) = self.event.take() {
            self.tape.end(event, |what| {
                if let What::Demand(_, outcome) = what {
                    *outcome = found;
                }
            });
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.record(Outcome::Nothing);
    }
}
