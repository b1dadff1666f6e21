//! Histories made up by hand, right ones and wrong ones: the check itself can fail.

use std::time::Duration;

use super::{
    check::{Verdict, check},
    record::{Came, Event, Moment, Told, What},
    recorded::{Counted, History},
    steps,
};
use crate::{
    decision::{Decision, Grant, LimitState, Refusal, Source},
    demand::{Acquire, Charge, Labels, MaxWait},
    limit::{Limit, LimitSource},
    list::List,
    name::Name,
    receipt::{PermitId, Receipt},
    store::{Op, Outcome},
};

const START: i64 = 1_700_000_000_000;
const RATE: u64 = 2;
const INTERVAL: i64 = 1000;
const CAP: i64 = 100;

/// A history of one limiter of two permits a second, which nobody has taken yet.
struct Tale {
    events: Vec<Event>,
    /// The calls that were seen, by the events that each was for.
    calls: Vec<Vec<steps::Asked>>,
    /// The order of what is told next, and of its end.
    order: u64,
    /// When all that was given back had arrived, if not at the end only.
    closed: Option<Moment>,
}

/// What was asked by a handle, for how many permits.
struct Asked<'a> {
    tale: &'a mut Tale,
    event: usize,
}

impl Tale {
    fn new() -> Self {
        let mut tale = Self {
            events: Vec::new(),
            calls: Vec::new(),
            order: 0,
            closed: None,
        };
        let limit = Limit::new(RATE, Duration::from_millis(INTERVAL as u64)).stored();
        let set = What::Manage(name(), Op::TrySetRate(limit), Some(Outcome::Changed(true)));
        tale.add(0, 0, set);
        tale
    }

    fn moment(&mut self, at: i64) -> Moment {
        self.order += 10;
        Moment {
            order: self.order,
            clock: Duration::from_millis((START + at).cast_unsigned()),
        }
    }

    /// Something that begins and is over then, after all that was told before.
    fn add(&mut self, handle: usize, at: i64, what: What) -> usize {
        let (begun, ended) = (self.moment(at), self.moment(at));
        self.events.push(Event {
            handle,
            what,
            begun,
            ended: Some(ended),
        });
        self.events.len() - 1
    }

    fn ask(&mut self, handle: usize, at: i64, permits: u32) -> Asked<'_> {
        let charge = Charge {
            id: id(self.events.len(), 0),
            ..Charge::named(name(), LimitSource::Store, Labels::unnamed("tale"), permits)
        };
        let acquire = Acquire {
            first: charge,
            rest: Vec::new(),
            on_failure: None,
            remaining: true,
            max_wait: None,
            asked: None,
            unsent: std::sync::OnceLock::new(),
        };
        let event = self.add(handle, at, What::Acquire(acquire, Told::Nothing));
        Asked { tale: self, event }
    }

    /// Gives back what was taken then, and hears at once that it has arrived.
    fn give_back(&mut self, handle: usize, at: i64, of: usize) -> usize {
        let What::Acquire(acquire, _) = &self.events[of].what else {
            panic!("nothing was taken");
        };
        let receipt = acquire.first.receipt();
        self.add(handle, at, What::Settle(receipt, 0))
    }

    /// Sets another limit; `keep` goes on counting what is in use.
    fn set_rate(&mut self, handle: usize, at: i64, limit: Limit, keep: bool) {
        let op = Op::SetRate {
            limit: limit.stored(),
            keep,
            existing: keep,
        };
        let outcome = Some(Outcome::Changed(true));
        self.add(handle, at, What::Manage(name(), op, outcome));
    }

    /// Has a call seen, by the first ids of its callers.
    fn call(&mut self, events: &[usize]) {
        self.call_again(events, 0);
    }

    /// The same, by ids that they took later.
    fn call_again(&mut self, events: &[usize], later: u8) {
        let asked = |event: &usize| (*event, id(*event, later));
        self.calls.push(events.iter().map(asked).collect());
    }

    fn count(&mut self, at: i64, left: i64) -> usize {
        let outcome = Some(Outcome::Permits(left));
        self.add(0, at, What::Manage(name(), Op::Available, outcome))
    }

    /// Counts when all that was given back has arrived.
    fn count_at_the_end(&mut self, left: i64) {
        let closed = self.moment(1);
        self.closed = Some(closed);
        self.count(1, left);
    }

    /// Has it begin, or end, beside the event that was told before it.
    fn overlap(&mut self, event: usize) {
        self.events[event].begun.order -= 25;
    }

    fn verdict(mut self) -> Verdict {
        let end = match self.closed {
            Some(closed) => self.moment(closed.at() - START),
            None => self.moment(3 * INTERVAL),
        };
        let cap = Duration::from_millis(CAP.cast_unsigned());
        let closed = self.closed.unwrap_or(end);
        let closed = (0..2).map(|handle| (handle, closed)).collect();
        let recorded = (self.events, end, closed);
        let mut history = History::new(recorded, vec![name()], Counted::ByServer, cap);
        history.see(&self.calls);
        check(&history, &[])
    }

    #[track_caller]
    fn passes(self) {
        let verdict = self.verdict();
        assert!(matches!(verdict, Verdict::Legal(_)), "{verdict:?}");
    }

    /// Passes if it is legal, and fails otherwise because of what the text says.
    #[track_caller]
    fn is(self, legal: bool, because: &str) {
        if legal {
            self.passes();
        } else {
            self.fails(because);
        }
    }

    /// Because of what the text says.
    #[track_caller]
    fn fails(self, because: &str) {
        match self.verdict() {
            Verdict::Illegal(story) => assert!(story.contains(because), "{story}"),
            verdict => panic!("{verdict:?}"),
        }
    }
}

impl Asked<'_> {
    /// By the store; the next permit is free when the first of those that count expires.
    fn granted(self, left: u64) -> usize {
        self.granted_by(0, left)
    }

    /// By an id that the caller took `later`.
    fn granted_by(self, later: u8, left: u64) -> usize {
        let at = self.tale.events[self.event].begun.at();
        let granted = self.tale.events.iter().filter(|event| {
            let granted = |told: &Told| matches!(told, Told::Decision { decision, .. } if decision.is_allowed());
            matches!(&event.what, What::Acquire(_, told) if granted(told))
        });
        let counting = granted
            .map(|event| event.begun.at())
            .filter(|then| *then + INTERVAL > at);
        let next = counting.min().unwrap_or(at) + INTERVAL - at;
        let limits = List::from([LimitState {
            next_after: Some(Duration::from_millis(next.cast_unsigned())),
            ..state(Some(left), INTERVAL, None)
        }]);
        let What::Acquire(acquire, _) = &self.tale.events[self.event].what else {
            panic!("nothing was asked for");
        };
        let receipt = Receipt {
            id: id(self.event, later),
            ..acquire.first.receipt()
        };
        let grant = Grant::new(limits, List::from([receipt]), Source::Store);
        self.told(Decision::Allow(grant), Came::Awaited)
    }

    /// By the store; all are free `reset` later.
    fn refused(self, wait: i64, left: u64, reset: i64) -> usize {
        self.told(refusal(wait, left, reset, Source::Store), Came::Awaited)
    }

    fn told_again(self, wait: i64) -> usize {
        self.told(refusal(wait, 0, wait, Source::Cache), Came::AtOnce)
    }

    fn told_again_in_an_outage(self, wait: i64) -> usize {
        self.told(refusal(wait, 0, wait, Source::Cache), Came::LeftAlone)
    }

    /// Nobody knows what becomes of it.
    fn dropped(self) -> usize {
        self.tale.events[self.event].ended = None;
        self.event
    }

    fn told(self, decision: Decision, came: Came) -> usize {
        if let What::Acquire(_, told) = &mut self.tale.events[self.event].what {
            *told = Told::Decision { decision, came };
        }
        self.event
    }

    fn waits(self) -> Self {
        self.waits_for(Duration::from_millis(1))
    }

    fn waits_for(self, longest: Duration) -> Self {
        if let What::Acquire(acquire, _) = &mut self.tale.events[self.event].what {
            acquire.max_wait = Some(MaxWait::of(longest));
        }
        self
    }
}

/// The id of an event, or one that it took `later`.
fn id(event: usize, later: u8) -> PermitId {
    let first = PermitId([u8::try_from(event).unwrap(); 16]);
    (0..later).fold(first, |id, _| id.for_next_call())
}

fn name() -> Name {
    Name::exact("tale").unwrap()
}

fn state(remaining: Option<u64>, reset: i64, wait: Option<i64>) -> LimitState {
    let time = |millis: i64| Duration::from_millis(millis.cast_unsigned());
    LimitState {
        labels: Labels::unnamed("tale"),
        permits: RATE,
        interval: time(INTERVAL),
        remaining,
        next_after: None,
        reset_after: time(reset),
        refused: wait.is_some(),
        retry_after: wait.map(time),
        shadow: false,
    }
}

fn refusal(wait: i64, left: u64, reset: i64, source: Source) -> Decision {
    Decision::Deny(Refusal::by_limits(
        List::from([state(Some(left), reset, Some(wait))]),
        Some(Duration::from_millis(wait.cast_unsigned())),
        source,
    ))
}

/// Both permits are taken at 0, and one more is refused at 10 by the store.
fn spent() -> (Tale, usize) {
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    let last = tale.ask(1, 0, 1).granted(0);
    tale.ask(0, 10, 1).refused(990, 0, 990);
    (tale, last)
}

#[test]
fn grants() {
    let (mut tale, _) = spent();
    tale.ask(1, 1000, 1).granted(1);
    tale.passes();
    let (mut tale, _) = spent();
    tale.ask(1, 999, 1).granted(0);
    tale.fails("OverLimit");

    // What was given back is free.
    let (mut tale, last) = spent();
    tale.give_back(0, 20, last);
    tale.ask(1, 20, 1).granted(0);
    tale.passes();
    // Not before, nor twice.
    let (mut tale, last) = spent();
    tale.ask(1, 20, 1).granted(0);
    tale.give_back(0, 20, last);
    tale.fails("OverLimit");
    let (mut tale, last) = spent();
    tale.give_back(0, 20, last);
    tale.give_back(1, 20, last);
    tale.ask(1, 20, 1).granted(0);
    tale.ask(1, 20, 1).granted(0);
    tale.fails("OverLimit");
}

#[test]
fn what_happens_at_the_same_time_has_any_order() {
    let (mut tale, last) = spent();
    tale.ask(1, 20, 1).granted(0);
    let back = tale.give_back(0, 20, last);
    tale.overlap(back);
    tale.passes();
}

#[test]
fn refusals() {
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    tale.ask(0, 0, 1).refused(1000, 1, 1000);
    tale.fails("granted");

    for (wait, is_legal) in [(989, false), (990, true), (991, false)] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 2).granted(0);
        tale.ask(0, 10, 1).refused(wait, 0, 990);
        tale.is(is_legal, "OverLimit, Some(990ms)");
    }

    // L3: it has taken something.
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    tale.ask(0, 0, 2).refused(1000, 1, 1000);
    tale.count(0, 0);
    tale.fails("Permits(1)");
}

#[test]
fn what_is_told_of_each_limit() {
    for left in [0, 2] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(left);
        tale.fails("and not");
    }
    for (left, reset, is_legal) in [(1, 1000, true), (0, 1000, false), (1, 999, false)] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        tale.ask(0, 0, 2).refused(1000, left, reset);
        tale.is(is_legal, "and not");
    }
}

#[test]
fn those_who_share_a_call_hear_what_it_has_left_for_all() {
    for (first, second, is_shared, is_legal) in [
        (0, 0, true, true),
        (1, 0, true, false),
        (0, 1, true, false),
        (0, 0, false, false),
        (1, 0, false, true),
        (0, 1, false, true),
    ] {
        let mut tale = Tale::new();
        let one = tale.ask(0, 0, 1).granted(first);
        let other = tale.ask(0, 0, 1).granted(second);
        tale.overlap(other);
        if is_shared {
            tale.call(&[one, other]);
        }
        tale.is(is_legal, "and not");
    }
    // One who waits closes the line to those behind it who wait, too, and to nobody else.
    for (waits, is_legal) in [(false, true), (true, false)] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        let large = tale.ask(0, 0, 2).waits().dropped();
        let small = tale.ask(0, 0, 1);
        let small = if waits { small.waits() } else { small };
        let small = small.granted(0);
        tale.overlap(small);
        tale.call(&[large, small]);
        tale.is(is_legal, "OverLimit");
    }
    // In the order in which they came.
    for (order, is_legal) in [([0, 1], true), ([1, 0], false)] {
        let mut tale = Tale::new();
        let granted = tale.ask(0, 0, 1).granted(1);
        let refused = tale.ask(0, 0, 2).refused(1000, 1, 1000);
        tale.overlap(refused);
        let callers = [granted, refused];
        tale.call(&order.map(|place| callers[place]));
        tale.is(is_legal, "granted");
    }
    // Only those who are there.
    let mut tale = Tale::new();
    let one = tale.ask(0, 0, 1).granted(0);
    let other = tale.ask(0, 0, 1).granted(0);
    tale.call(&[one, other]);
    tale.fails("1 of 2 taken");
}

#[test]
fn refusals_that_are_told_again() {
    let again = |at, wait| {
        let (mut tale, _) = spent();
        tale.ask(0, at, 1).told_again(wait);
        tale
    };
    again(10, 990).passes();
    again(110, 890).passes();
    // Heard at 10 for the first time, so it never points beyond 1000; it is over then.
    again(50, 951).fails("announced for an earlier time");
    again(50, 949).fails("was not over then");
    again(112, 888).fails("for longer than 100 ms");

    // While nobody is asked, until it is over.
    let in_an_outage = |at, wait| {
        let (mut tale, _) = spent();
        tale.ask(0, at, 1).told_again_in_an_outage(wait);
        tale
    };
    in_an_outage(112, 888).passes();
    in_an_outage(1001, 1).fails("was over");

    // At 950 for 50 ms more.
    let late = |at| {
        let (mut tale, _) = spent();
        tale.ask(0, 950, 1).refused(50, 0, 50);
        tale.ask(0, at, 1).told_again(1000 - at);
        tale
    };
    late(999).passes();
    late(1000).fails("was over at");

    // To a caller that waits, if it gives up before there is room.
    for (longest, is_legal) in [(1, true), (979, true), (980, false), (5000, false)] {
        let (mut tale, _) = spent();
        let longest = Duration::from_millis(longest);
        tale.ask(0, 20, 1).waits_for(longest).told_again(980);
        tale.is(is_legal, "it waits as long as");
    }

    // Of another question, or to another process.
    for (handle, permits) in [(0, 2), (1, 1)] {
        let (mut tale, _) = spent();
        tale.ask(handle, 20, permits).told_again(980);
        tale.fails("nothing like it");
    }
}

#[test]
fn a_process_knows_of_its_own() {
    for (by, is_legal) in [(0, false), (1, true)] {
        let (mut tale, last) = spent();
        tale.give_back(by, 20, last);
        tale.ask(0, 30, 1).told_again(970);
        tale.is(is_legal, "was old");

        let (mut tale, _) = spent();
        let limit = Limit::new(9, Duration::from_secs(1));
        tale.set_rate(by, 20, limit, false);
        tale.ask(0, 30, 1).told_again(970);
        tale.is(is_legal, "was old");
    }
    // Not yet while it is on its way.
    let (mut tale, last) = spent();
    let back = tale.give_back(0, 20, last);
    tale.events[back].ended = None;
    tale.ask(0, 30, 1).told_again(970);
    tale.passes();
    // It was refused while that was on its way, and is told again when it has arrived.
    let (mut tale, last) = spent();
    let back = tale.give_back(0, 20, last);
    let refused = tale.ask(0, 20, 2).refused(980, 0, 980);
    tale.events[back].ended = tale.events[refused].ended;
    tale.overlap(refused);
    tale.ask(0, 30, 2).told_again(970);
    tale.fails("was old");
}

/// The bare store has nothing that is told again.
#[test]
fn a_grant_is_never_told_again() {
    let mut tale = Tale::new();
    let asked = tale.ask(0, 0, 1);
    let grant = Grant::new(List::new(), List::new(), Source::Cache);
    asked.told(Decision::Allow(grant), Came::AtOnce);
    tale.fails("only refusals");
}

#[test]
fn who_dropped_its_call_may_have_taken_or_not() {
    for left in [0, 1] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        tale.ask(1, 0, 1).dropped();
        tale.count(0, left);
        tale.passes();
    }
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    tale.ask(1, 0, 1).dropped();
    tale.count(0, 0);
    // It is there until it expires, or is given back.
    tale.count(500, 1);
    tale.fails("Permits(0)");
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    let dropped = tale.ask(1, 0, 1).dropped();
    tale.count(0, 0);
    tale.give_back(1, 100, dropped);
    tale.count(500, 1);
    tale.passes();
}

#[test]
fn who_waits_is_refused_where_others_wait_before_it() {
    let alone = |waits_beside: bool| {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        tale.ask(0, 0, 1).waits().refused(1000, 1, 1000);
        if waits_beside {
            let first = tale.ask(0, 0, 2).waits().refused(1000, 1, 1000);
            tale.overlap(first);
        }
        tale
    };
    alone(true).passes();
    alone(false).fails("with 0 before it");
}

/// What has expired under the old limit is in use again under the new one, unless somebody came in
/// between, if only in vain.
#[test]
fn a_call_in_vain_removes_what_has_expired() {
    for (is_called, left, is_legal) in [
        (false, 0, true),
        (false, 1, false),
        (true, 0, true),
        (true, 1, true),
        (true, 2, false),
    ] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        tale.ask(0, 900, 1).granted(0);
        let waits = tale.ask(1, 998, 2).waits().refused(902, 0, 902);
        let limit = Limit::new(RATE, Duration::from_secs(10));
        tale.set_rate(0, 1002, limit, true);
        tale.events[waits].ended = Some(tale.moment(1004));
        tale.count(1006, left);
        if is_called {
            tale.call(&[waits]);
        }
        tale.is(is_legal, "Permits(");
    }
}

#[test]
fn who_was_granted_is_not_asked_for_again() {
    let mut tale = Tale::new();
    let waits = tale.ask(0, 0, 1).waits().granted(1);
    tale.call(&[waits]);
    tale.call(&[waits]);
    tale.fails("asked for again");
}

/// Who is refused in line was not granted by the last call for it.
#[test]
fn who_was_granted_is_not_refused() {
    let mut tale = Tale::new();
    let waits = tale.ask(0, 0, 1).waits().refused(1000, 1, 1000);
    tale.call(&[waits]);
    tale.fails("granted");
}

/// A waiter is asked for again, by another id, while the first call may still be answered.
#[test]
fn what_another_id_took_is_given_back() {
    // Both take a permit, and the waiter returns one: at the end one is in use.
    for (later, left, is_legal) in [
        (0, 1, true),
        (1, 1, true),
        (0, 0, false),
        (1, 0, false),
        (0, 2, false),
        (1, 2, false),
    ] {
        let mut tale = Tale::new();
        let waits = tale
            .ask(0, 0, 1)
            .waits()
            .granted_by(later, u64::from(1 - later));
        tale.call(&[waits]);
        tale.call_again(&[waits], 1);
        tale.count_at_the_end(left);
        tale.is(is_legal, "Permits(1)");
    }
    // The first one may be carried out when its caller has returned.
    let mut tale = Tale::new();
    let waits = tale.ask(0, 0, 1).waits().granted_by(1, 1);
    let counted = tale.count(0, 1);
    tale.call_again(&[waits], 1);
    tale.call(&[waits]);
    tale.overlap(counted);
    tale.count_at_the_end(1);
    tale.passes();
}

#[test]
fn a_grant_is_of_the_id_that_took_it() {
    // A call for another id is not the one that it was granted by.
    for (left, is_legal) in [(1, true), (2, false)] {
        let mut tale = Tale::new();
        let waits = tale.ask(0, 0, 1).waits().granted_by(1, 1);
        tale.call(&[waits]);
        tale.count_at_the_end(left);
        tale.is(is_legal, "Permits(1)");
    }
    // Asked for again by the id that it was granted by.
    for (later, again, is_legal) in [(0, 0, false), (1, 1, false), (0, 1, true)] {
        let mut tale = Tale::new();
        let waits = tale.ask(0, 0, 1).waits();
        let waits = waits.granted_by(later, u64::from(1 - later));
        tale.call(&[waits]);
        tale.call_again(&[waits], 1);
        tale.call_again(&[waits], again);
        tale.count_at_the_end(1);
        tale.is(is_legal, "asked for again");
    }
    // Refused, as its first id has the last permit; or though the call by its last id was granted.
    for (first, is_legal) in [(0, true), (1, false)] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        let waits = tale.ask(0, 0, 1).waits().refused(1000, 0, 1000);
        tale.call_again(&[waits], first);
        tale.call_again(&[waits], 1 - first);
        tale.ask(1, 0, 1).granted(0);
        tale.count_at_the_end(0);
        tale.is(is_legal, "granted");
    }
}
