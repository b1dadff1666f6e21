//! Builds a history by hand, step by step.

use super::*;
use crate::values::{
    charge::Standing,
    compiled_limit::CompiledLimit,
    decision::{Grant, Refusal},
    limit::LimitSource,
};

pub(super) const START: i64 = 1_700_000_000_000;
pub(super) const RATE: u64 = 2;
pub(super) const INTERVAL: i64 = 1000;
pub(super) const CAP: i64 = 100;

/// A history of one limiter of two permits a second. None is taken yet.
pub(super) struct Tale {
    pub(super) events: Vec<Event>,
    /// The calls that were seen, by the events that each was for.
    calls: Vec<Vec<steps::Asked>>,
    /// The order of the next event, and of its end.
    order: u64,
    /// When all that was given back had arrived, if not at the end only.
    closed: Option<Moment>,
}

/// What was asked by a handle, for how many permits.
pub(super) struct Asked<'a> {
    tale: &'a mut Tale,
    event: usize,
}

impl Tale {
    pub(super) fn new() -> Self {
        let mut tale = Self {
            events: Vec::new(),
            calls: Vec::new(),
            order: 0,
            closed: None,
        };
        let limit = Limit::new(RATE, Duration::from_millis(INTERVAL as u64)).stored();
        let set = What::Manage(name(), Op::TrySetRate(limit), Some(OpResult::Changed(true)));
        tale.add(0, 0, set);
        tale
    }

    pub(super) fn moment(&mut self, at: i64) -> Moment {
        self.order += 10;
        Moment {
            order: self.order,
            clock: Duration::from_millis((START + at).cast_unsigned()),
        }
    }

    /// Something that begins and is over then, after all events before it.
    pub(super) fn add(&mut self, handle: usize, at: i64, what: What) -> usize {
        let (begun, ended) = (self.moment(at), self.moment(at));
        self.events.push(Event {
            handle,
            what,
            begun,
            ended: Some(ended),
        });
        self.events.len() - 1
    }

    pub(super) fn ask(&mut self, handle: usize, at: i64, permits: u32) -> Asked<'_> {
        let charge = Charge {
            id: id(self.events.len(), 0),
            ..Charge::named(
                name(),
                LimitSource::Store,
                &CompiledLimit::unnamed("tale"),
                permits,
            )
        };
        let demand = Demand {
            wants_remaining: true,
            ..Demand::caller([charge], false)
        };
        let event = self.add(handle, at, What::Demand(demand, Outcome::Nothing));
        Asked { tale: self, event }
    }

    /// Gives back what was taken then, which arrives at once.
    pub(super) fn give_back(&mut self, handle: usize, at: i64, of: usize) -> usize {
        let What::Demand(demand, _) = &self.events[of].what else {
            panic!("nothing was taken");
        };
        let receipt = demand.first().to_send();
        self.add(handle, at, What::Settle(receipt, 0))
    }

    /// Sets another limit; `keep` goes on counting what is in use.
    pub(super) fn set_rate(&mut self, handle: usize, at: i64, limit: Limit, keep: bool) {
        let op = Op::SetRate {
            limit: limit.stored(),
            keep,
            existing: keep,
        };
        let outcome = Some(OpResult::Changed(true));
        self.add(handle, at, What::Manage(name(), op, outcome));
    }

    /// Has a call seen, by the first ids of its callers.
    pub(super) fn call(&mut self, events: &[usize]) {
        self.call_again(events, 0);
    }

    /// The same, by ids that they took later.
    pub(super) fn call_again(&mut self, events: &[usize], later: u8) {
        let asked = |event: &usize| (*event, id(*event, later));
        self.calls.push(events.iter().map(asked).collect());
    }

    pub(super) fn count(&mut self, at: i64, left: i64) -> usize {
        let outcome = Some(OpResult::Number(left));
        self.add(0, at, What::Manage(name(), Op::Available, outcome))
    }

    /// Counts when all that was given back has arrived.
    pub(super) fn count_at_the_end(&mut self, left: i64) {
        let closed = self.moment(1);
        self.closed = Some(closed);
        self.count(1, left);
    }

    /// Has it begin, or end, beside the event before it.
    pub(super) fn overlap(&mut self, event: usize) {
        self.events[event].begun.order -= 25;
    }

    pub(super) fn verdict(mut self) -> Verdict {
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
    pub(super) fn passes(self) {
        let verdict = self.verdict();
        assert!(matches!(verdict, Verdict::Legal(_)), "{verdict:?}");
    }

    /// Passes if it is legal, and fails otherwise because of what the text says.
    #[track_caller]
    pub(super) fn is(self, legal: bool, because: &str) {
        if legal {
            self.passes();
        } else {
            self.fails(because);
        }
    }

    /// Because of what the text says.
    #[track_caller]
    pub(super) fn fails(self, because: &str) {
        match self.verdict() {
            Verdict::Illegal(story) => assert!(story.contains(because), "{story}"),
            verdict => panic!("{verdict:?}"),
        }
    }
}

impl Asked<'_> {
    /// By the store; the next permit is free when the first of those that count expires.
    pub(super) fn granted(self, left: u64) -> usize {
        self.granted_by(0, left)
    }

    /// By an id that the caller took `later`.
    pub(super) fn granted_by(self, later: u8, left: u64) -> usize {
        let at = self.tale.events[self.event].begun.at();
        let granted = self.tale.events.iter().filter(|event| {
            let granted = |outcome: &Outcome| matches!(outcome, Outcome::Decision { decision, .. } if decision.is_allowed());
            matches!(&event.what, What::Demand(_, outcome) if granted(outcome))
        });
        let counting = granted
            .map(|event| event.begun.at())
            .filter(|then| *then + INTERVAL > at);
        let next = counting.min().unwrap_or(at) + INTERVAL - at;
        let What::Demand(demand, _) = &self.tale.events[self.event].what else {
            panic!("nothing was asked for");
        };
        let charge = Charge {
            id: id(self.event, later),
            standing: Standing {
                wait: Some(Duration::from_millis(next.cast_unsigned())),
                ..standing(Some(left), INTERVAL, None)
            },
            ..demand.first().clone()
        };
        let grant = Grant::new(Charges::one(charge), Source::Store);
        self.answered(Decision::Allow(grant), Came::Awaited)
    }

    /// By the store; all are free `reset` later.
    pub(super) fn refused(self, wait: i64, left: u64, reset: i64) -> usize {
        self.answered(refusal(wait, left, reset, Source::Store), Came::Awaited)
    }

    pub(super) fn repeated(self, wait: i64) -> usize {
        self.answered(refusal(wait, 0, wait, Source::Cache), Came::AtOnce)
    }

    pub(super) fn repeated_in_an_outage(self, wait: i64) -> usize {
        self.answered(refusal(wait, 0, wait, Source::Cache), Came::LeftAlone)
    }

    /// It is unknown what becomes of it.
    pub(super) fn dropped(self) -> usize {
        self.tale.events[self.event].ended = None;
        self.event
    }

    pub(super) fn answered(self, decision: Decision, came: Came) -> usize {
        if let What::Demand(_, outcome) = &mut self.tale.events[self.event].what {
            *outcome = Outcome::Decision { decision, came };
        }
        self.event
    }

    pub(super) fn waits(self) -> Self {
        self.waits_for(Duration::from_millis(1))
    }

    pub(super) fn waits_for(self, longest: Duration) -> Self {
        if let What::Demand(demand, _) = &mut self.tale.events[self.event].what {
            demand.max_wait = Some(MaxWait::at_most(longest));
        }
        self
    }
}

/// The id of an event, or one that it took `later`.
pub(super) fn id(event: usize, later: u8) -> PermitId {
    let first = PermitId([u8::try_from(event).unwrap(); 16]);
    (0..later).fold(first, |id, _| id.for_next_call())
}

pub(super) fn name() -> Name {
    Name::exact("tale").unwrap()
}

pub(super) fn standing(remaining: Option<u64>, reset: i64, wait: Option<i64>) -> Standing {
    let time = |millis: i64| Duration::from_millis(millis.cast_unsigned());
    Standing {
        permits: RATE,
        interval: INTERVAL.cast_unsigned(),
        remaining,
        wait: wait.map(time),
        reset_after: time(reset),
        refused: wait.is_some(),
        banned: false,
        granted: wait.is_none(),
    }
}

pub(super) fn refusal(wait: i64, left: u64, reset: i64, source: Source) -> Decision {
    Decision::Deny(Refusal::by_limits(
        Charges::one(Charge::by_hand(
            CompiledLimit::unnamed("tale"),
            standing(Some(left), reset, Some(wait)),
        )),
        Some(Duration::from_millis(wait.cast_unsigned())),
        source,
    ))
}

/// Both permits are taken at 0, and one more is refused at 10 by the store.
pub(super) fn spent() -> (Tale, usize) {
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    let last = tale.ask(1, 0, 1).granted(0);
    tale.ask(0, 10, 1).refused(990, 0, 990);
    (tale, last)
}
