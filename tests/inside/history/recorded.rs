//! A history: all that was recorded, and what of it can be said before any order of it is known.

use super::{
    spec::shown,
    steps::{given_back, steps},
    *,
};
use crate::values::clock::Now;

/// All that was recorded of some limiters, and by which rules it is judged.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    pub(crate) end: Moment,
    /// When handles were closed for the last time.
    pub(crate) closed: HashMap<usize, Moment>,
    pub(crate) names: Vec<Name>,
    pub(crate) clock: Counted,
    /// For how long a refusal may be repeated.
    pub(crate) cap: Duration,
    /// What is put in order.
    pub(crate) steps: Vec<Step>,
}

/// By which clock permits are counted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Counted {
    /// The server's: it decides in the order of the times that it reads
    ByServer,
    /// One of this process, that was moved by hand and showed these milliseconds: it is read before
    /// a call is sent
    ByHand(Vec<i64>),
}

impl Counted {
    /// An instant of it. A clock of this process proves nothing about scores by others.
    pub(crate) fn at(&self, millis: i64) -> Now {
        match self {
            Self::ByServer => Now::millis(millis),
            Self::ByHand(_) => Now::millis(millis).by_caller(true),
        }
    }
}

impl History {
    pub(crate) fn new(
        (events, end, closed): (Vec<Event>, Moment, HashMap<usize, Moment>),
        names: Vec<Name>,
        clock: Counted,
        cap: Duration,
    ) -> Self {
        Self {
            steps: steps(&events, end, &[]),
            events,
            end,
            closed,
            names,
            clock,
            cap,
        }
    }

    /// Has it know of the calls that were seen, in their order, each by the events that it was for.
    pub(crate) fn see(&mut self, calls: &[Vec<Asked>]) {
        let given_back = given_back(&self.events, calls, &self.closed);
        self.events.extend(given_back);
        self.steps = steps(&self.events, self.end, calls);
    }

    pub(crate) fn place(&self, name: &Name) -> usize {
        let place = self.names.iter().position(|known| known == name);
        place.expect("all limiters of a history are known")
    }

    /// A step in one line, or one for each of its callers.
    pub(crate) fn step(&self, index: usize) -> String {
        match &self.steps[index].of {
            Of::Event(event) => self.shown(*event),
            Of::Call(callers) => {
                let callers = callers.iter().map(|caller| {
                    let answer = match caller.answer {
                        Answer::Returned => "",
                        Answer::Refused => " (in vain)",
                        Answer::GivenBack => " (to be given back)",
                    };
                    let (outcome, id) = (self.shown(caller.event), caller.id.0[0]);
                    format!("{outcome} by id {id:02x}{answer}")
                });
                callers.collect::<Vec<_>>().join("\n    and ")
            }
        }
    }

    /// An event in one line.
    fn shown(&self, index: usize) -> String {
        let Event {
            handle,
            what,
            begun,
            ended,
        } = &self.events[index];
        let first = self
            .events
            .first()
            .map_or(begun.at(), |first| first.begun.at());
        let since = |moment: &Moment| format!("{} ms (#{})", moment.at() - first, moment.order);
        let ended = ended.as_ref().map_or_else(|| String::from("?"), since);
        let what = match what {
            What::Demand(demand, outcome) => {
                let charges = demand.charges();
                let charges = charges.map(|charge| (self.place(charge.name()), charge.permits));
                let charges: Vec<_> = charges.collect();
                let outcome = match outcome {
                    Outcome::Nothing => String::from("unanswered"),
                    Outcome::Failed(error) => error.to_string(),
                    Outcome::Decision { decision, came } => {
                        let source = decision.source();
                        format!("{}, {source:?}, {came:?}", shown(decision))
                    }
                };
                let (id, max_wait) = (demand.first().id.0[0], demand.max_wait);
                format!("id {id:02x} takes {charges:?} {max_wait:?}: {outcome}")
            }
            What::Settle(receipt, keep) => {
                let (id, permits, place) =
                    (receipt.id.0[0], receipt.permits, self.place(receipt.name()));
                format!("id {id:02x} of {permits} in {place} settled at {keep}")
            }
            What::Manage(name, op, outcome) => format!("{}: {op:?}: {outcome:?}", self.place(name)),
        };
        format!(
            "{index}: handle {handle}, {} to {ended}, {what}",
            since(begun)
        )
    }

    /// How many permits those of its process ask for who may stand before a waiter, and whether
    /// another process has made room since the line began.
    pub(crate) fn line_of(&self, index: usize) -> (u64, bool) {
        let event = &self.events[index];
        let waits = |other: &Event| {
            let waits = matches!(&other.what, What::Demand(demand, _) if demand.max_wait.is_some());
            waits && other.handle == event.handle
        };
        let end_of = |event: &Event| event.ended.map_or(u64::MAX, |ended| ended.order);
        let (mut began, end) = (event.begun.order, end_of(event));
        // The queue is there while a caller waits in it.
        loop {
            let overlapping =
                |other: &&Event| waits(other) && other.begun.order < began && began < end_of(other);
            let earlier = self.events.iter().filter(overlapping);
            match earlier.map(|other| other.begun.order).min() {
                Some(earlier) => began = earlier,
                None => break,
            }
        }
        let overlaps =
            |other: &&Event| other.begun.order < end && event.begun.order < end_of(other);
        let before = self
            .events
            .iter()
            .filter(|other| waits(other) && overlaps(other));
        let before = before.filter(|other| other.begun != event.begun);
        let permits = before.map(|other| match &other.what {
            What::Demand(demand, _) => u64::from(demand.first().permits),
            _ => 0,
        });
        let others_made_room = self.events.iter().any(|other| {
            let makes_room = match &other.what {
                What::Settle(..) => true,
                What::Manage(_, op, _) => !op.only_reads(),
                What::Demand(..) => false,
            };
            let meanwhile = other.begun.order < end && began < end_of(other);
            makes_room && other.handle != event.handle && meanwhile
        });
        (permits.sum(), others_made_room)
    }
}
