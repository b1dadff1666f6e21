//! Legal and illegal histories of `wrong.toml`, in words: shows that the check itself can fail.
//!
//! `a=0@10 1` begins a question, which may have a name: a handle asks at 10 ms for one permit.
//! Behind that may stand that it `waits` for so many ms, and that its answer is `by 1`, the id that
//! it took later. The answers: `granted`, with the permits left; `refused`, with the wait, the
//! permits left, and when all are free; `repeated`, with the wait, and `alone` before it if the
//! store is not asked; `dropped`. The other steps are in [`Tale::step`].

use serde::Deserialize;

use super::*;
use crate::values::{
    charge::Standing, compiled_limit::CompiledLimit, decision::Refusal, limit::LimitSource,
};

const START: i64 = 1_700_000_000_000;
const RATE: u64 = 2;
const INTERVAL: i64 = 1000;
const CAP: i64 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tales {
    tale: Vec<Rows>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    name: String,
    /// The steps before those of each row
    begin: Option<String>,
    /// Why it is illegal, nothing if it is legal; and the steps
    rows: Vec<(String, String)>,
}

/// A history of one limiter of two permits a second. None is taken yet.
struct Tale<'a> {
    events: Vec<Event>,
    named: HashMap<&'a str, usize>,
    /// The calls that were seen, by the events that each was for.
    calls: Vec<Vec<Asked>>,
    /// The order of the next event, and of its end.
    order: u64,
    /// When all that was given back had arrived, if not at the end only.
    closed: Option<Moment>,
}

impl<'a> Tale<'a> {
    fn new() -> Self {
        let mut tale = Self {
            events: Vec::new(),
            named: HashMap::new(),
            calls: Vec::new(),
            order: 0,
            closed: None,
        };
        let set = Op::TrySetRate(Limit::new(RATE, time(INTERVAL)).stored());
        tale.manage((0, 0), set, OpResult::Changed(true));
        tale
    }

    fn moment(&mut self, at: i64) -> Moment {
        self.order += 10;
        Moment {
            order: self.order,
            clock: time(START + at),
        }
    }

    /// Something that begins and is over then, after all events before it.
    fn add(&mut self, (handle, at): (usize, i64), what: What) -> usize {
        let (begun, ended) = (self.moment(at), self.moment(at));
        self.events.push(Event {
            handle,
            what,
            begun,
            ended: Some(ended),
        });
        self.events.len() - 1
    }

    fn manage(&mut self, place: (usize, i64), op: Op, result: OpResult) -> usize {
        self.add(place, What::Manage(name(), op, Some(result)))
    }

    fn step(&mut self, step: &'a str) {
        let (name, step) = step.split_once('=').unwrap_or(("", step));
        let words: Vec<_> = step.split(' ').collect();
        let number = |place: usize| words[place].parse::<i64>().unwrap();
        let named = |tale: &Self, place: usize| tale.named[words[place]];
        let event = match words[0] {
            // Both permits are taken at 0, and one more is refused at 10 by the store.
            "spent" => {
                let spent = "0@0 1 granted 1, last=1@0 1 granted 0, 0@10 1 refused 990 0 990";
                return spent.split(", ").for_each(|step| self.step(step));
            }
            // By a handle, what an event took, which arrives at once.
            "back" => {
                let receipt = self.demand(named(self, 2)).first().to_send();
                self.add(place(words[1]), What::Settle(receipt, 0))
            }
            // By a handle, to so many permits in so many ms; `keep` counts on what is in use.
            "rate" => {
                let limit = Limit::new(number(2).cast_unsigned(), time(number(3))).stored();
                let keep = words.ends_with(&["keep"]);
                let existing = keep;
                let op = Op::SetRate {
                    limit,
                    keep,
                    existing,
                };
                self.manage(place(words[1]), op, OpResult::Changed(true))
            }
            // At a time, that so many are left.
            "count" => self.manage((0, number(1)), Op::Available, OpResult::Number(number(2))),
            // The same when all that was given back has arrived.
            "end" => {
                self.closed = Some(self.moment(1));
                self.manage((0, 1), Op::Available, OpResult::Number(number(1)))
            }
            // Has an event begin, or end, beside the one before it.
            "overlap" => {
                let event = named(self, 1);
                self.events[event].begun.order -= 25;
                event
            }
            // A call is seen, by the first ids of its callers; or again, by those they took later.
            verb @ ("call" | "again") => {
                let events = (1..words.len()).map(|place| named(self, place));
                let asked = events.map(|event| (event, id(event, u8::from(verb == "again"))));
                self.calls.push(asked.collect());
                return;
            }
            // It is not known when an event ends, or it ends with another, or at a time.
            "open" | "ends" => {
                let ended = match words.get(2) {
                    None => None,
                    Some(&"with") => self.events[named(self, 3)].ended,
                    Some(_) => Some(self.moment(number(3))),
                };
                let event = named(self, 1);
                self.events[event].ended = ended;
                event
            }
            _ => self.ask(&words),
        };
        self.named.insert(name, event);
    }

    fn demand(&self, event: usize) -> &Demand {
        match &self.events[event].what {
            What::Demand(demand, _) => demand,
            other => panic!("nothing was taken: {other:?}"),
        }
    }

    fn ask(&mut self, words: &[&str]) -> usize {
        let charge = Charge {
            id: id(self.events.len(), 0),
            ..Charge::named(
                name(),
                LimitSource::Store,
                &CompiledLimit::unnamed("tale"),
                words[1].parse().unwrap(),
            )
        };
        let mut demand = Demand {
            wants_remaining: true,
            ..Demand::caller([charge], false)
        };
        let number = |word: &str| word.parse::<i64>().unwrap();
        let (mut answer, mut later) = (&words[2..], 0);
        if let ["waits", longest, rest @ ..] = answer {
            demand.max_wait = Some(MaxWait::at_most(time(number(longest))));
            answer = rest;
        }
        if let ["by", id, rest @ ..] = answer {
            (answer, later) = (rest, id.parse().unwrap());
        }
        let event = self.add(place(words[0]), What::Demand(demand, Outcome::Nothing));
        let refused = |wait, left, reset, source| refusal([wait, left, reset].map(number), source);
        let (decision, came) = match *answer {
            ["dropped"] => {
                self.events[event].ended = None;
                return event;
            }
            ["granted", left] => (self.grant(event, later, left), Came::Awaited),
            ["regranted"] => {
                let grant = Grant::new(Charges::default(), Source::Cache);
                (Decision::Allow(grant), Came::AtOnce)
            }
            ["refused", wait, left, reset] => {
                (refused(wait, left, reset, Source::Store), Came::Awaited)
            }
            ["repeated", wait] => (refused(wait, "0", wait, Source::Cache), Came::AtOnce),
            ["alone", "repeated", wait] => {
                (refused(wait, "0", wait, Source::Cache), Came::LeftAlone)
            }
            _ => panic!("{words:?}"),
        };
        if let What::Demand(_, outcome) = &mut self.events[event].what {
            *outcome = Outcome::Decision { decision, came };
        }
        event
    }

    /// By the store; the next permit is free when the first of those that count expires.
    fn grant(&self, event: usize, later: u8, left: &str) -> Decision {
        let at = self.events[event].begun.at();
        let granted = self.events.iter().filter(|event| {
            let granted = |outcome: &Outcome| match outcome {
                Outcome::Decision { decision, .. } => decision.is_allowed(),
                _ => false,
            };
            matches!(&event.what, What::Demand(_, outcome) if granted(outcome))
        });
        let counting = granted
            .map(|event| event.begun.at())
            .filter(|then| *then + INTERVAL > at);
        let next = counting.min().unwrap_or(at) + INTERVAL - at;
        let charge = Charge {
            id: id(event, later),
            standing: Standing {
                wait: Some(time(next)),
                ..standing(left.parse().unwrap(), INTERVAL, None)
            },
            ..self.demand(event).first().clone()
        };
        Decision::Allow(Grant::new(Charges::one(charge), Source::Store))
    }

    fn verdict(mut self) -> Verdict {
        let end = match self.closed {
            Some(closed) => self.moment(closed.at() - START),
            None => self.moment(3 * INTERVAL),
        };
        let closed = self.closed.unwrap_or(end);
        let closed = (0..2).map(|handle| (handle, closed)).collect();
        let recorded = (self.events, end, closed);
        let mut history = History::new(recorded, vec![name()], Counted::ByServer, time(CAP));
        history.see(&self.calls);
        check(&history, &[])
    }
}

/// A handle, and a time.
fn place(word: &str) -> (usize, i64) {
    let (handle, at) = word.split_once('@').unwrap();
    (handle.parse().unwrap(), at.parse().unwrap())
}

fn time(millis: i64) -> Duration {
    Duration::from_millis(millis.cast_unsigned())
}

/// The id of an event, or one that it took `later`.
fn id(event: usize, later: u8) -> PermitId {
    let first = PermitId([u8::try_from(event).unwrap(); 16]);
    (0..later).fold(first, |id, _| id.for_next_call())
}

fn name() -> Name {
    Name::exact("tale").unwrap()
}

fn standing(remaining: u64, reset: i64, wait: Option<i64>) -> Standing {
    Standing {
        permits: RATE,
        interval: INTERVAL.cast_unsigned(),
        remaining: Some(remaining),
        wait: wait.map(time),
        reset_after: time(reset),
        refused: wait.is_some(),
        banned: false,
        granted: wait.is_none(),
    }
}

fn refusal([wait, left, reset]: [i64; 3], source: Source) -> Decision {
    let standing = standing(left.cast_unsigned(), reset, Some(wait));
    let charge = Charge::by_hand(CompiledLimit::unnamed("tale"), standing);
    Decision::Deny(Refusal::by_limits(
        Charges::one(charge),
        Some(time(wait)),
        source,
    ))
}

#[test]
fn each_tale_is_judged_as_it_says() {
    let tales: Tales = toml::from_str(include_str!("wrong.toml")).unwrap();
    for Rows { name, begin, rows } in &tales.tale {
        for (why, steps) in rows {
            let mut tale = Tale::new();
            let begin = begin.iter().flat_map(|begin| begin.split(", "));
            let steps = begin.chain(steps.split(", "));
            steps.clone().for_each(|step| tale.step(step));
            let told = format!("{name}: {}", steps.collect::<Vec<_>>().join(", "));
            match tale.verdict() {
                Verdict::Legal(_) => assert_eq!(why, "", "{told}"),
                Verdict::Illegal(story) if !why.is_empty() => {
                    assert!(story.contains(why), "{told}: {story}");
                }
                verdict => panic!("{told}: {verdict:?}"),
            }
        }
    }
}
