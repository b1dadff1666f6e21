//! A window of the calendar in Redis and as a [`Model`].
//!
//! The server's clock cannot be moved: so the windows are. Each begins and ends so far from now
//! that a busy machine does not reach its turn.

use redis::Connection;

use super::{
    pair::{ask, assert_same, connect, run_script},
    support::unique,
    *,
};
use crate::{
    algorithm::calendar::{Calendar, Used},
    limit::calendar::{LINGERS, Window},
    store::{
        Op,
        redis::wire::{
            calendar::{ACQUIRE, SCRIPTS, VERBS, acquire_command, read},
            script::Brief,
            verbs,
        },
    },
};

type Model = LimiterState<Calendar>;

const ASK: wire::CallSettings<'static> = wire::CallSettings {
    client_id: "",
    now: None,
    exact: false,
};
const LENGTH: i64 = 1_000_000;
/// What a busy machine may lose between two commands, in ms.
const TOLERANCE: i64 = 5_000;
const FIRST: i64 = 20_261_101;

#[derive(Clone, Debug)]
enum Step {
    /// It is another window, by so many, and this part of it, in thousandths
    Move(i64, i64),
    /// Callers ask by a rate. The clock of their process is so many windows off, and its windows
    /// end so much later
    Acquire(u64, Vec<(u32, bool)>, i64, i64),
    Settle(Index, u32),
    Release(u32),
    Used,
    Rename,
    /// The key is lost, or written by hand
    Lose,
    Write(i64, i64),
    Spoil,
}

fn step() -> impl Strategy<Value = Step> {
    let callers = proptest::collection::vec((1u32..9, any::<bool>()), 1..4);
    let off = prop_oneof![6 => Just(0i64), 3 => Just(-1i64), 1 => -3i64..=3];
    let later = prop_oneof![3 => Just(0i64), 1 => -80_000i64..80_000];
    let rate = prop_oneof![6 => Just(7u64), 1 => 1u64..12, 1 => Just((1 << 53) - 1)];
    prop_oneof![
        3 => (-2i64..=2, 100i64..900).prop_map(|(by, part)| Step::Move(by, part)),
        12 => (rate, callers, off, later).prop_map(|(rate, callers, off, later)| {
            Step::Acquire(rate, callers, off, later)
        }),
        3 => (any::<Index>(), 0u32..14).prop_map(|(which, keep)| Step::Settle(which, keep)),
        1 => (1u32..9).prop_map(Step::Release),
        2 => Just(Step::Used),
        1 => Just(Step::Rename),
        1 => Just(Step::Lose),
        1 => (-2i64..=3, 0i64..12).prop_map(|(label, used)| Step::Write(label, used)),
        1 => Just(Step::Spoil),
    ]
}

struct Pair {
    connection: Connection,
    name: Name,
    model: Model,
    /// The number of the present window, and which part of it is over.
    here: (i64, i64),
    granted: Vec<(u32, i64)>,
    /// Set while the key holds no count.
    spoilt: bool,
}

impl Pair {
    fn new() -> Self {
        Self {
            connection: connect(),
            name: Self::name(),
            model: Model::default(),
            here: (0, 500),
            granted: Vec::new(),
            spoilt: false,
        }
    }

    fn name() -> Name {
        Name::exact(&unique("calendar")).unwrap()
    }

    fn key(&self) -> String {
        wire::own_keys(&self.name, Algorithm::Calendar, "").concat()
    }

    fn verb(&self, op: &Op) -> wire::script::ScriptCall {
        let of = CompiledLimit::unnamed("model").by(LimitSource::Code(Limit::monthly(1)));
        let name = self.name.clone();
        verbs::call(&VERBS, &Limiter { name, of }, op, ASK)
            .unwrap()
            .unwrap()
    }

    fn now(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = ask(&mut self.connection, &["TIME"]);
        seconds * 1000 + micros / 1000
    }

    /// The windows of a process whose clock is so many windows off.
    fn windows(&self, now: i64, off: i64, later: i64) -> [Window; 2] {
        let (number, part) = self.here;
        let start = now - LENGTH * part / 1000 + later;
        [off, off + 1].map(|place| Window {
            label: FIRST + number + place,
            start: start + place * LENGTH,
            end: start + (place + 1) * LENGTH,
        })
    }

    fn acquire(&mut self, rate: u64, callers: &[(u32, bool)], windows: [Window; 2]) {
        let limit = LimitSource::Code(Limit::monthly(1).with_permits(rate));
        let run: Vec<_> = callers
            .iter()
            .map(|(permits, waits)| {
                let of = CompiledLimit::unnamed("model");
                let charge = Charge::named(self.name.clone(), limit, &of, *permits);
                Acquire::of([charge], *waits)
            })
            .collect();
        let command = acquire_command(&run, windows, ASK).unwrap();
        let reply = run_script(&mut self.connection, &ACQUIRE, &command).unwrap();
        if self.spoilt && windows.iter().any(|window| window.holds(self.now())) {
            let error = read(&reply, &run).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::ForeignState);
            return;
        }
        let answers = match read(&reply, &run).unwrap() {
            Brief::Answers(answers) => answers,
            Brief::AskAt(now) => {
                let now = now.cast_signed();
                assert_eq!(Used::at(now, self.model.state.stored, &windows), None);
                assert!((self.now() - now).abs() < TOLERANCE);
                return;
            }
            Brief::AskFully => panic!("the script left it to none"),
        };
        let now = answers[0].now;
        assert!(Used::at(now.tick, self.model.state.stored, &windows).is_some());
        self.model.state.windows = windows;
        let before = self.model.state.stored;
        let limiter = std::iter::once(&mut self.model as &mut LimiterState);
        let expected = call::acquire(limiter, &run, now).unwrap();
        let is_hopeless = |answer: &Answer| answer.verdict == Verdict::AboveRate;
        for (answer, expected) in answers.iter().zip(expected.iter()) {
            if expected.taken.is_none() {
                // More than the rate, for all: the model did not look.
                assert!(expected.verdict == Verdict::AboveRate && is_hopeless(answer));
                continue;
            }
            let expected = Answer {
                changed: answer.changed,
                ..*expected
            };
            assert_same(answer, &expected, TOLERANCE);
        }
        if answers.iter().all(is_hopeless) {
            assert_eq!(self.model.state.stored, before);
        }
        for (answer, (permits, _)) in answers.iter().zip(callers) {
            if let (Verdict::Granted, Some(Taken::Date(label))) = (answer.verdict, answer.taken) {
                self.granted.push((*permits, label));
            }
        }
    }

    fn number(&mut self, call: &wire::script::ScriptCall) -> i64 {
        let reply = run_script(&mut self.connection, call.script, &call.command).unwrap();
        match verbs::outcome(&reply) {
            Ok(crate::store::OpResult::Number(number)) => number,
            Err(error) if self.spoilt => {
                assert_eq!(error.kind(), ErrorKind::ForeignState);
                0
            }
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, which: Index, keep: u32) {
        let Some((permits, label)) = self
            .granted
            .get(which.index(self.granted.len().max(1)))
            .copied()
        else {
            return;
        };
        let limit = LimitSource::Code(Limit::monthly(9));
        let of = CompiledLimit::unnamed("model");
        let charge = Charge::named(self.name.clone(), limit, &of, permits);
        let receipt = charge.to_send().marked(Taken::Date(label));
        let settled = (SCRIPTS.settle)(&receipt, keep, ASK).unwrap();
        let (replied, stored) = (self.number(&settled), self.model.state.stored);
        let Some(used) = stored.filter(|used| used.label == label && !self.spoilt) else {
            assert_eq!(replied, 0, "{stored:?} {label}");
            return;
        };
        // Whatever the time: of a window that is over, what is left is never counted.
        let credited = (i64::from(permits) - i64::from(keep)).min(used.permits);
        assert_eq!(replied, credited);
        self.model.state.stored = Some(Used {
            permits: used.permits - credited,
            ..used
        });
    }

    /// What is used in the window that is open by the time to live of the key.
    fn used(&mut self) -> i64 {
        let now = self.now();
        let stored = self.model.state.stored.filter(|_| !self.spoilt);
        stored
            .filter(|used| used.end > now)
            .map_or(0, |used| used.permits)
    }

    fn compare(&mut self) {
        let key = self.key();
        if self.spoilt {
            assert_eq!(
                ask::<String>(&mut self.connection, &["GET", &key]),
                "spoilt"
            );
            return;
        }
        let text: Option<String> = ask(&mut self.connection, &["GET", &key]);
        let stored = self.model.state.stored;
        let expected = stored.map(|used| format!("{} {}", used.label, used.permits));
        assert_eq!(text, expected);
        if let Some(used) = stored {
            let left: i64 = ask(&mut self.connection, &["PTTL", &key]);
            let expected = used.end - self.now() + LINGERS;
            assert!((left - expected).abs() < TOLERANCE, "{left} {expected}");
        }
    }

    fn live(&mut self, step: &Step) {
        let name = self.key();
        match step {
            // Labels of these have eight digits, as all.
            Step::Move(by, part) => self.here = ((self.here.0 + by).clamp(-9, 9), *part),
            Step::Acquire(rate, callers, off, later) => {
                let now = self.now();
                self.acquire(*rate, callers, self.windows(now, *off, *later));
            }
            Step::Settle(which, keep) => self.settle(*which, *keep),
            Step::Release(permits) => {
                let released = i64::from(*permits).min(self.used());
                let call = self.verb(&Op::Release(*permits));
                assert_eq!(self.number(&call), released);
                if let Some(used) = &mut self.model.state.stored {
                    used.permits -= released;
                }
            }
            Step::Used => {
                let (call, used) = (self.verb(&Op::Used), self.used());
                assert_eq!(self.number(&call), used);
            }
            Step::Rename => {
                let new = Self::name();
                let call = self.verb(&Op::Rename(new.clone()));
                let renamed = run_script(&mut self.connection, call.script, &call.command).unwrap();
                let is_there = self.spoilt || self.model.state.stored.is_some();
                assert_eq!(renamed, Value::Int(is_there.into()));
                if is_there {
                    self.name = new;
                }
            }
            Step::Lose => {
                self.write(&["DEL", &name]);
                (self.model.state.stored, self.spoilt) = (None, false);
            }
            Step::Write(label, permits) => {
                let used = Used {
                    label: FIRST + self.here.0 + label,
                    permits: *permits,
                    end: self.now() + LENGTH / 3,
                };
                let text = format!("{} {}", used.label, used.permits);
                let left = (LENGTH / 3 + LINGERS).to_string();
                self.write(&["SET", &name, &text, "PX", &left]);
                (self.model.state.stored, self.spoilt) = (Some(used), false);
            }
            Step::Spoil => {
                self.write(&["SET", &name, "spoilt"]);
                (self.model.state.stored, self.spoilt) = (None, true);
            }
        }
        self.compare();
    }

    fn write(&mut self, command: &[&str]) {
        ask::<Value>(&mut self.connection, command);
    }
}

proptest! {
    #![proptest_config(config(240))]

    #[test]
    fn a_history(steps in proptest::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.live(step);
        }
    }
}
