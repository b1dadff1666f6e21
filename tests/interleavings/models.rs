//! What is tried in every order of its steps: each function is one test, see `all.rs`.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use loom::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::{
    store::{
        About, Calls, Decide, Listener, Listeners, Op, OpResult,
        guard::{
            deny_cache::Refusals,
            outbox::{
                Nodes, Outbox, Waits,
                breaker::{BreakerState, Signal},
                passes::Pass,
            },
        },
        stack::Outermost,
    },
    values::{
        List,
        charge::{Charge, PermitId, Standing},
        clock::ManualClock,
        compiled_limit::{CompiledLimit, Limiter},
        decision::{Charges, Decision, Grant, Refusal, Source},
        demand::Demand,
        error::Error,
        limit::LimitSource,
        name::Name,
    },
};

const CAP: Duration = Duration::from_secs(60);
/// When a call that is polled once more has been answered.
const POLLS: usize = 3;

/// A server of one limiter, with room or without. A call is sent when it is polled first, carried
/// out before the second time, and answered at the third.
#[derive(Clone, Debug, Default)]
struct Server {
    has_room: Arc<Mutex<bool>>,
}

impl Server {
    fn has_room(&self) -> bool {
        *self.has_room.lock().unwrap()
    }

    fn make_room(&self) {
        *self.has_room.lock().unwrap() = true;
    }
}

impl Decide for Server {
    fn decide_at_once(&self, _: &mut Demand) -> Option<Result<Decision, Error>> {
        None
    }

    async fn manage(&self, _: &Limiter, _: &Op) -> Result<OpResult, Error> {
        pending_once().await;
        self.make_room();
        pending_once().await;
        Ok(OpResult::Changed(true))
    }
}

impl Calls for Server {
    async fn acquire_run(&self, _: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        pending_once().await;
        let decision = if self.has_room() { grant() } else { refusal() };
        pending_once().await;
        Ok(List::from([decision]))
    }

    /// So each caller of an outbox has a call of its own.
    fn decides_together(&self, _: &Demand) -> bool {
        false
    }

    fn settle(&self, _: Charge, _: u32) {}
}

/// A process with its cache, and the question that all ask.
#[derive(Clone)]
struct Process {
    outermost: Arc<Outermost>,
    server: Server,
    refusals: Arc<Refusals>,
    clock: ManualClock,
}

impl Process {
    fn new() -> Self {
        let clock = ManualClock::new();
        let refusals = Arc::new(Refusals::new(CAP, Some(Arc::new(clock.clone())), false));
        // What the first call makes, it makes for all, which loom does not see.
        refusals.changed(&name());
        let server = Server::default();
        let listener: Box<dyn Listener> = Box::new(Arc::clone(&refusals));
        let outermost = Outermost::new(Listeners::new([listener]), About::default());
        Self {
            outermost: Arc::new(outermost),
            server,
            refusals,
            clock,
        }
    }

    /// Asks, polls so often, and drops the call.
    fn asks(&self, polls: usize) {
        poll(polls, async {
            let question = question();
            let asked = self.refusals.ask(&question);
            if let Ok(decision) = self.server.acquire(&question).await {
                self.refusals.decided(&question, asked, &decision);
            }
        });
    }

    /// Has a verb carried out, polls so often, and drops the call.
    fn changes(&self, polls: usize) {
        let (limiter, op) = (limiter(), Op::Delete);
        poll(polls, async {
            let _changing = self.outermost.changing(&limiter.name, &op);
            self.server.manage(&limiter, &op).await
        });
    }

    fn knows(&self) -> bool {
        self.refusals.refusal(&mut question()).is_some()
    }

    /// What was given back arrives.
    fn learns_of_room(&self) {
        self.server.make_room();
        self.refusals.changed(&name());
    }
}

/// A refusal is on its way while room is given back: a caller that knows of the room is not refused
/// from memory. A call may be dropped at every point.
pub fn a_refusal_and_what_is_given_back() {
    for polls in 0..=POLLS {
        let refused = count(move |refused| {
            let (process, arrived) = (Process::new(), Arc::new(AtomicBool::new(false)));
            let asking = {
                let (process, refused) = (process.clone(), Arc::clone(&refused));
                thread::spawn(move || {
                    process.asks(polls);
                    if process.knows() {
                        refused.fetch_add(1, SeqCst);
                    }
                })
            };
            let giving_back = {
                let (process, arrived) = (process.clone(), Arc::clone(&arrived));
                thread::spawn(move || {
                    process.learns_of_room();
                    arrived.store(true, Ordering::Release);
                    assert!(!process.knows(), "known by this thread");
                })
            };
            if arrived.load(Ordering::Acquire) {
                assert!(!process.knows(), "known by another thread");
            }
            asking.join().unwrap();
            giving_back.join().unwrap();
            assert!(!process.knows(), "afterwards");
        });
        // Nothing is learnt from a call that no caller waits for.
        assert_eq!(refused > 0, polls == POLLS, "{polls} polls");
    }
}

/// The same, where a verb makes room: that is known when its call ends, however it does.
pub fn a_refusal_and_a_verb() {
    for polls in 1..=POLLS {
        let refused = count(move |refused| {
            let process = Process::new();
            let changing = {
                let process = process.clone();
                thread::spawn(move || {
                    process.changes(polls);
                    assert!(!process.server.has_room() || !process.knows());
                })
            };
            process.asks(POLLS);
            if process.knows() {
                refused.fetch_add(1, SeqCst);
            }
            changing.join().unwrap();
            assert!(!process.server.has_room() || !process.knows());
        });
        assert!(refused > 0, "{polls} polls");
    }
}

/// Of several callers that find a refusal shortly before its end, one asks, and the others do not.
pub fn one_of_many_asks_in_time() {
    loom::model(|| {
        let process = Process::new();
        process.asks(POLLS);
        process.clock.advance(CAP / 4 * 3);
        let others = [(); 2].map(|()| {
            let process = process.clone();
            thread::spawn(move || process.knows())
        });
        let known = others.map(|other| other.join().unwrap());
        let refused = known.into_iter().chain([process.knows()]);
        assert_eq!(refused.filter(|refused| *refused).count(), 2);
    });
}

/// Of the callers at the end of a pause one goes, and its outcome decides for all.
pub fn one_of_a_herd_goes() {
    for answered in [false, true] {
        loom::model(move || {
            let (breakers, clock) = breakers(1);
            enter(&breakers).unwrap().ends(Signal::Failed);
            clock.advance(Duration::from_secs(1));
            let herd = [(); 2].map(|()| {
                let breakers = Arc::clone(&breakers);
                thread::spawn(move || {
                    let pass = enter(&breakers)?;
                    pass.ends(if answered {
                        Signal::Answered
                    } else {
                        Signal::Failed
                    });
                    Some(())
                })
            });
            let went = herd.map(|one| one.join().unwrap());
            let went = went.iter().flatten().count();
            // After an answer, all go.
            assert!(went == 1 || (answered && went == 2), "{went}");
            let state = if answered {
                BreakerState::Closed
            } else {
                BreakerState::Open
            };
            assert_eq!(breakers.look()[0].0, state);
            assert_eq!(breakers.refuses(&question()).is_some(), !answered);
        });
    }
}

/// Two callers come where one call may be in flight, and the second leaves at every point: whoever
/// waits gets the place, and none is lost.
pub fn a_place_that_is_left_is_given_on() {
    for polls in 0..=POLLS {
        let waited = count(move |waited| {
            let (outbox, turns) = (outbox(), Arc::new(AtomicBool::new(false)));
            let asks = |polls| {
                let (outbox, turns) = (Arc::clone(&outbox), Arc::clone(&turns));
                thread::spawn(move || poll_in_turns(&turns, polls, outbox.acquire(&question())))
            };
            let (first, second) = (asks(POLLS), asks(polls));
            let answered = [first.join().unwrap(), second.join().unwrap()];
            if answered.contains(&false) {
                waited.fetch_add(1, SeqCst);
            }
            assert!(poll(POLLS, outbox.acquire(&question())), "{polls} polls");
        });
        assert!(waited > 0, "{polls} polls");
    }
}

fn outbox() -> Arc<Outbox<Server>> {
    let clock = Arc::new(ManualClock::new());
    let nodes = Nodes::new(1, |_| 0, Duration::from_secs(5), clock.clone());
    let waits = Arc::new(Waits::default());
    let server = Arc::new(Server::default());
    Outbox::new(server, clock, waits, Arc::new(nodes), None)
}

fn breakers(failures: u32) -> (Arc<Nodes>, ManualClock) {
    let clock = ManualClock::new();
    let shared = Arc::new(clock.clone());
    let breakers = Nodes::new(1, |_| 0, Duration::from_secs(5), shared).with_breakers(
        failures,
        None,
        |_, _| (),
    );
    (Arc::new(breakers), clock)
}

fn enter(breakers: &Nodes) -> Option<Pass<'_>> {
    breakers.enter(&name(), Duration::ZERO).ok()
}

/// Tries every order, and tells how often something was noted in one of them.
fn count(model: impl Fn(Arc<AtomicUsize>) + Send + Sync + 'static) -> usize {
    // Of all orders together: not one of the steps.
    let noted = Arc::new(AtomicUsize::new(0));
    let of_model = Arc::clone(&noted);
    loom::model(move || model(Arc::clone(&of_model)));
    noted.load(SeqCst)
}

/// Polls so often, and drops it. Returns whether it has ended.
fn poll<F: Future>(polls: usize, future: F) -> bool {
    poll_in_turns(&AtomicBool::new(false), polls, future)
}

/// Does the same. loom tries every order of what threads do to one of its own types, so all that
/// take turns touch `turns` between their polls, and before they drop.
fn poll_in_turns<F: Future>(turns: &AtomicBool, polls: usize, future: F) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        turns.store(true, Ordering::SeqCst);
        if polled.is_ready() {
            return true;
        }
    }
    false
}

async fn pending_once() {
    let mut polled = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut polled, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

fn name() -> Name {
    Name::exact("a").unwrap()
}

fn limiter() -> Limiter {
    let (name, compiled) = (name(), CompiledLimit::new("a", false));
    Limiter { name, compiled }
}

fn question() -> Demand {
    Demand {
        charges: Charges::one(Charge {
            id: PermitId([7; 16]),
            ..Charge::new(limiter(), 1)
        }),
        on_failure: None,
        wants_remaining: true,
        max_wait: None,
        asked_at: None,
        unsent: std::sync::OnceLock::new(),
    }
}

fn refusal() -> Decision {
    let wait = Duration::from_secs(3600);
    let standing = Standing {
        permits: 1,
        interval: 3_600_000,
        remaining: Some(0),
        wait: Some(wait),
        reset_after: wait,
        refused: true,
        banned: false,
        granted: false,
    };
    let charge = Charge {
        standing,
        ..Charge::new(limiter(), 1)
    };
    let charges = Charges::one(charge);
    Decision::Deny(Refusal::by_limits(charges, Some(wait), Source::Store))
}

fn grant() -> Decision {
    let mut charge = question().first().clone();
    (charge.standing.interval, charge.standing.granted) = (3_600_000, true);
    Decision::Allow(Grant::new(Charges::one(charge), Source::Store))
}
