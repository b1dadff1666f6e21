//! A window of the calendar in Redis and as a [`Model`].
//!
//! The server's clock cannot be moved: so the windows are. Each begins and ends so far from now
//! that a busy machine does not reach its turn.

use redis::Connection;

use super::{
    pair::{ask, assert_same, connect, run_script},
    support::{label_and_used, unique},
    *,
};
use crate::{
    algorithm::calendar::{Calendar, Used},
    limit::calendar::{LINGERS, Window},
    store::redis::{
        packed::{
            self,
            calendar::{Row, freed, release, settle, together},
        },
        wire::script::ScriptCall,
    },
};

type Model = LimiterState<Calendar>;

const LENGTH: i64 = 1_000_000;
/// What a busy machine may lose between two commands, in ms.
const TOLERANCE: i64 = 5_000;
const FIRST: i64 = 20_261_101;

#[derive(Clone, Debug)]
enum Step {
    /// It is another window, by so many, and this part of it, in thousandths
    Move(i64, i64),
    /// Callers ask by a rate. The clock of their process is so many windows off, and its windows
    /// end so much later. They may ask once more, as the reply was lost
    Acquire(u64, Vec<(u32, bool)>, i64, i64, bool),
    Settle(Index, u32),
    Release(u32),
    Left,
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
        12 => (rate, callers, off, later, proptest::bool::weighted(0.2)).prop_map(
            |(rate, callers, off, later, again)| {
                Step::Acquire(rate, callers, off, later, again)
            }
        ),
        3 => (any::<Index>(), 0u32..14).prop_map(|(which, keep)| Step::Settle(which, keep)),
        1 => (1u32..9).prop_map(Step::Release),
        2 => Just(Step::Left),
        1 => Just(Step::Lose),
        1 => (-20i64..=30, 0i64..12).prop_map(|(label, used)| Step::Write(label, used)),
        1 => Just(Step::Spoil),
    ]
}

struct Pair {
    connection: Connection,
    name: Name,
    model: Model,
    /// The number of the present window, and which part of it is over.
    here: (i64, i64),
    /// Permits, and where they are
    granted: Vec<(u32, Taken)>,
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
        packed::key(&self.name)
    }

    fn now(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = ask(&mut self.connection, &["TIME"]);
        seconds * 1000 + micros / 1000
    }

    /// The windows of a process whose clock is so many windows off.
    fn windows(&self, now: i64, off: i64, later: i64) -> [Window; 2] {
        let (number, part) = self.here;
        let length = |place: i64| LENGTH * (1 + (number + place).rem_euclid(2));
        let lengths = |places: std::ops::Range<i64>| places.map(length).sum::<i64>();
        let present = now - length(0) * part / 1000 + later;
        [off, off + 1].map(|place| {
            let start = present + lengths(0..place) - lengths(place..0);
            Window {
                label: FIRST + 10 * (number + place),
                start,
                end: start + length(place),
            }
        })
    }

    fn acquire(&mut self, rate: u64, callers: &[(u32, bool)], windows: [Window; 2], again: bool) {
        let limit = LimitSource::Code(Limit::monthly(1).with_permits(rate));
        let run: Vec<_> = callers
            .iter()
            .map(|(permits, waits)| {
                let of = CompiledLimit::unnamed("model");
                let charge = Charge::named(self.name.clone(), limit, &of, *permits);
                let mut acquire = Acquire::of([charge], *waits);
                acquire.identify(self.id());
                acquire
            })
            .collect();
        let row = Row {
            rate: rate.cast_signed(),
            windows,
        };
        let asked = together(&run);
        let mut reply = self.call(&row.ask(asked, false).call(&self.name, asked.len()));
        if again {
            reply = self.call(&row.ask(asked, true).call(&self.name, asked.len()));
        }
        let read = row.read(&reply, &run, again);
        if self.spoilt {
            assert_eq!(read.err().unwrap().kind(), ErrorKind::ForeignState);
            return;
        }
        let reply = read.unwrap();
        let Some(answers) = reply.answers else {
            assert_eq!(Used::at(reply.now, self.model.state.stored, &windows), None);
            assert!((self.now() - reply.now).abs() < TOLERANCE);
            return;
        };
        let now = answers[0].now;
        assert!(Used::at(now.tick, self.model.state.stored, &windows).is_some());
        self.model.state.windows = windows;
        let before = self.model.state.stored;
        let limiter = std::iter::once(&mut self.model as &mut LimiterState);
        let expected = call::acquire(limiter, &run[..answers.len()], now).unwrap();
        let is_hopeless = |answer: &Answer| answer.verdict == Verdict::AboveRate;
        let says_end = !answers.iter().all(is_hopeless);
        for (answer, expected) in answers.iter().zip(expected.iter()) {
            if !says_end {
                // More than the rate, for all: the model did not look, and no end was said.
                assert!(is_hopeless(expected) && is_hopeless(answer));
                continue;
            }
            let Some(Taken::Date { label, end }) = expected.taken else {
                panic!("{expected:?}");
            };
            // A label that the call does not know is not said.
            let is_known = windows.iter().any(|window| window.label == label);
            let said = match answer.taken {
                Some(Taken::Date { label, .. }) => Some(label),
                _ => None,
            };
            assert_eq!(said, is_known.then_some(label), "{answer:?}");
            if !is_known && end - now.tick >= windows[1].end - windows[0].start {
                // So far ahead, a grant does not say the end.
                assert_eq!(answer.verdict, expected.verdict);
                assert_eq!(answer.remaining, expected.remaining);
                continue;
            }
            let expected = Answer {
                changed: answer.changed,
                taken: answer.taken,
                ..*expected
            };
            assert_same(answer, &expected, TOLERANCE);
        }
        if answers.iter().all(is_hopeless) {
            assert_eq!(self.model.state.stored, before);
        }
        for (answer, (permits, _)) in answers.iter().zip(callers) {
            if let (Verdict::Granted, Some(taken)) = (answer.verdict, answer.taken) {
                self.granted.push((*permits, taken));
            }
        }
    }

    fn call(&mut self, call: &ScriptCall) -> Value {
        run_script(&mut self.connection, call.script, &call.command).unwrap()
    }

    fn freed(&mut self, call: &ScriptCall) -> i64 {
        match freed(&self.call(call)) {
            Ok(freed) => freed,
            Err(error) if self.spoilt => {
                assert_eq!(error.kind(), ErrorKind::ForeignState);
                0
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn settle(&mut self, which: Index, keep: u32) {
        let which = which.index(self.granted.len().max(1));
        let Some((permits, taken)) = self.granted.get(which).copied() else {
            return;
        };
        let limit = LimitSource::Code(Limit::monthly(9));
        let of = CompiledLimit::unnamed("model");
        let charge = Charge::named(self.name.clone(), limit, &of, permits);
        let receipt = charge.to_send().marked(taken);
        let settled = settle(&receipt, keep).unwrap();
        let (now, stored) = (self.now(), self.model.state.stored);
        let Taken::Date { label, end } = taken else {
            panic!("{taken:?}");
        };
        let replied = self.freed(&settled);
        // Another window counts, or will.
        let other =
            stored.filter(|used| used.label > label || used.label < label && used.end > now);
        if self.spoilt || now >= end || other.is_some() {
            return assert_eq!(replied, 0, "{stored:?} {label}");
        }
        let more = i64::from(keep) - i64::from(permits);
        let same = stored.filter(|used| used.label == label);
        let open = same.filter(|used| used.end > now);
        let added = match open {
            Some(used) => more.max(-used.permits),
            None => more.max(0),
        };
        assert_eq!(replied, -added, "{stored:?} {label}");
        if added != 0 {
            self.model.state.stored = Some(Used {
                label,
                permits: same.map_or(0, |used| used.permits) + added,
                end: open.map_or(end, |used| used.end),
            });
        }
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
        let text: Option<Vec<u8>> = ask(&mut self.connection, &["GET", &key]);
        let stored = self.model.state.stored;
        let expected = stored.map(|used| (used.label.cast_unsigned(), used.permits));
        assert_eq!(text.as_deref().map(label_and_used), expected);
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
            Step::Acquire(rate, callers, off, later, again) => {
                let now = self.now();
                let windows = self.windows(now, *off, *later);
                self.acquire(*rate, callers, windows, *again);
            }
            Step::Settle(which, keep) => self.settle(*which, *keep),
            Step::Release(permits) => {
                let released = i64::from(*permits).min(self.used());
                let stored = self.model.state.stored.filter(|_| !self.spoilt);
                let Some(label) = stored.map(|used| used.label) else {
                    return self.compare();
                };
                let call = release(&self.name, self.id(), label, *permits);
                assert_eq!(self.freed(&call), released);
                if let Some(used) = &mut self.model.state.stored {
                    used.permits -= released;
                }
            }
            Step::Left => self.ask_left(),
            Step::Lose => {
                self.write(&["DEL", &name]);
                (self.model.state.stored, self.spoilt) = (None, false);
            }
            Step::Write(label, permits) => {
                let used = Used {
                    label: FIRST + 10 * self.here.0 + label,
                    permits: *permits,
                    end: self.now() + LENGTH / 3,
                };
                self.put(&used);
                (self.model.state.stored, self.spoilt) = (Some(used), false);
            }
            Step::Spoil => {
                self.write(&["SET", &name, "spoilt"]);
                (self.model.state.stored, self.spoilt) = (None, true);
            }
        }
        self.compare();
    }

    /// Writes a state by hand.
    fn put(&mut self, used: &Used) {
        let number = |number: i64, width: usize| number.to_le_bytes()[..width].to_vec();
        let state = [
            number(used.label, 6),
            number(used.end, 6),
            number(used.permits, 7),
            number(LENGTH, 6),
            number(7, 7),
            vec![0; 40],
            vec![21, 183],
        ];
        let mut command = redis::cmd("SET");
        command.arg(self.key()).arg(state.concat());
        command.arg("PX").arg(LENGTH / 3 + LINGERS);
        command.exec(&mut self.connection).unwrap();
    }

    /// Asks what is left, by windows that hold the time of the server.
    fn ask_left(&mut self) {
        let now = self.now();
        let windows = self.windows(now, 0, 0);
        let row = Row { rate: 7, windows };
        let reply = self.call(&row.ask_left(self.id()).call(&self.name, 0));
        let read = row.read_left(&reply);
        if self.spoilt {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::ForeignState);
            return;
        }
        let (time, left) = read.unwrap();
        assert!((now - time).abs() < TOLERANCE, "{now} {time}");
        let expected = Used::at(time, self.model.state.stored, &windows).unwrap().0;
        assert_eq!(left, Some(7 - expected.permits));
    }

    fn id(&self) -> PermitId {
        crate::store::random_id().unwrap()
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
