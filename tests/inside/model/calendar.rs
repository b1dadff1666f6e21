//! A window of the calendar in Redis and as a [`Model`].
//!
//! The server's clock cannot be moved: so the windows are. Each begins and ends so far from now
//! that a busy machine does not reach its turn.

use proptest::array::uniform3;
use redis::Connection;

use super::{
    pair::{ask, assert_same, connect, run_script},
    *,
};
use crate::{
    algorithm::calendar::{CalendarCount, Used},
    store::redis::{
        packed::{
            self, Stamp,
            calendar::{self, CalendarRow},
            freed,
            requests::{Asked as AskedFor, KNOWN, may_ask_again, together},
            row::Row,
            verbs::release,
        },
        script::ScriptCall,
    },
    values::limit::calendar::{LINGERS, Window},
};
use kit::{label_and_used, unique};

type Model = LimiterState<CalendarCount>;

const LENGTH: i64 = 1_000_000;
/// What a busy machine may lose between two commands, in ms.
const TOLERANCE: i64 = 5_000;
const FIRST: i64 = 20_261_101;

const LIMITERS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Call(Asked),
    At(usize, One),
}

/// Callers ask for permits of some limiters.
#[derive(Clone, Debug)]
struct Asked {
    which: Vec<usize>,
    /// For each limiter, so many permits, perhaps as a shadow; and whether the caller waits
    callers: Vec<([(u32, bool); LIMITERS], bool)>,
    rates: [u64; LIMITERS],
    /// By how many windows the clock of their process is off, and how much later its windows end
    off: [i64; LIMITERS],
    later: [i64; LIMITERS],
    /// Set if they ask once more, as the reply was lost.
    again: bool,
}

/// What happens to one limiter.
#[derive(Clone, Debug)]
enum One {
    /// It is another window, by so many, and this part of it, in thousandths
    Move(i64, i64),
    Settle(Index, u32),
    Release(u32),
    Left,
    /// The key is lost, or written by hand, of a window that is open or over
    Lose,
    Write(i64, i64, bool),
    Spoil,
}

fn asked() -> impl Strategy<Value = Asked> {
    let which = prop_oneof![
        2 => (0..LIMITERS).prop_map(|limiter| vec![limiter]),
        1 => proptest::sample::subsequence((0..LIMITERS).collect::<Vec<_>>(), 2..=LIMITERS),
    ];
    let takes = uniform3((1u32..9, proptest::bool::weighted(0.2)));
    let callers = proptest::collection::vec((takes, any::<bool>()), 1..4);
    let rate = prop_oneof![6 => Just(7u64), 1 => 1u64..12, 1 => Just((1 << 53) - 1)];
    let off = prop_oneof![6 => Just(0i64), 3 => Just(-1i64), 1 => -3i64..=3];
    let later = prop_oneof![3 => Just(0i64), 1 => -80_000i64..80_000];
    let windows = (uniform3(off), uniform3(later));
    let again = proptest::bool::weighted(0.2);
    (which, callers, uniform3(rate), windows, again).prop_map(
        |(which, callers, rates, (off, later), again)| Asked {
            which,
            callers,
            rates,
            off,
            later,
            again,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let one = prop_oneof![
        3 => (-2i64..=2, 100i64..900).prop_map(|(by, part)| One::Move(by, part)),
        3 => (any::<Index>(), 0u32..14).prop_map(|(which, keep)| One::Settle(which, keep)),
        1 => (1u32..9).prop_map(One::Release),
        2 => Just(One::Left),
        1 => Just(One::Lose),
        1 => (-20i64..=30, 0i64..12, proptest::bool::weighted(0.7))
            .prop_map(|(label, used, is_open)| One::Write(label, used, is_open)),
        1 => Just(One::Spoil),
    ];
    prop_oneof![
        asked().prop_map(Step::Call),
        (0..LIMITERS, one).prop_map(|(limiter, one)| Step::At(limiter, one)),
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
        calendar::key(&self.name)
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

    /// Holds the answers to callers of this limiter against those of the model.
    fn agree(
        &self,
        answers: &[Answer],
        expected: &[Answer],
        says_end: bool,
        windows: &[Window; 2],
    ) {
        for (answer, expected) in answers.iter().zip(expected) {
            let Some(Taken::Date { label, end }) = expected.taken else {
                // More than a rate, for all: the model did not look.
                assert_eq!(answer.verdict, expected.verdict);
                continue;
            };
            // A label that the call does not know is not said: if its window is over, the present
            // one lasts on under it.
            let is_known = windows
                .iter()
                .find(|window| window.label == label || window.end == end);
            let said = match answer.taken {
                Some(Taken::Date { label, .. }) => Some(label),
                _ => None,
            };
            let now = answer.now.tick;
            let is_far = is_known.is_none() && end - now >= windows[1].end - windows[0].start;
            if !says_end || is_far {
                // So far ahead, a grant does not say the end.
                assert_eq!(answer.verdict, expected.verdict);
                assert_eq!(answer.remaining, expected.remaining);
                continue;
            }
            assert_eq!(said, is_known.map(|known| known.label), "{answer:?}");
            let expected = Answer {
                changed: answer.changed,
                taken: answer.taken,
                ..expected.clone()
            };
            assert_same(answer, &expected, TOLERANCE);
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
        let settled = packed::verbs::settle(&receipt, None, keep).unwrap();
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

    fn live(&mut self, step: &One) {
        let name = self.key();
        match step {
            // Labels of these have eight digits, as all.
            One::Move(by, part) => self.here = ((self.here.0 + by).clamp(-9, 9), *part),
            One::Settle(which, keep) => self.settle(*which, *keep),
            One::Release(permits) => {
                let released = i64::from(*permits).min(self.used());
                let call = release(Algorithm::Calendar, &self.name, self.stamp(), *permits);
                assert_eq!(self.freed(&call), released);
                if let Some(used) = &mut self.model.state.stored {
                    used.permits -= released;
                }
            }
            One::Left => self.ask_left(),
            One::Lose => {
                self.write(&["DEL", &name]);
                (self.model.state.stored, self.spoilt) = (None, false);
            }
            One::Write(label, permits, is_open) => {
                let left = if *is_open { LENGTH / 3 } else { -LENGTH / 3 };
                let used = Used {
                    label: FIRST + 10 * self.here.0 + label,
                    permits: *permits,
                    end: self.now() + left,
                };
                self.put(&used, left);
                (self.model.state.stored, self.spoilt) = (Some(used), false);
            }
            One::Spoil => {
                self.write(&["SET", &name, "spoilt"]);
                (self.model.state.stored, self.spoilt) = (None, true);
            }
        }
        self.compare();
    }

    /// Writes a state by hand.
    fn put(&mut self, used: &Used, left: i64) {
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
        command.arg("PX").arg(left + LINGERS);
        command.exec(&mut self.connection).unwrap();
    }

    /// Asks what is left, by windows that hold the time of the server.
    fn ask_left(&mut self) {
        let now = self.now();
        let windows = self.windows(now, 0, 0);
        let row = Row::Calendar(CalendarRow { rate: 7, windows });
        let reply = self.call(&packed::verbs::ask_left(&row, &self.name, self.stamp()));
        let read = packed::verbs::read_left(&row, &reply);
        if self.spoilt {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::ForeignState);
            return;
        }
        let (time, left) = read.unwrap();
        let time = time / 1000;
        assert!((now - time).abs() < TOLERANCE, "{now} {time}");
        let expected = Used::at(time, self.model.state.stored, &windows).unwrap().0;
        assert_eq!(left, Some(7 - expected.permits));
    }

    fn id(&self) -> PermitId {
        crate::store::random_id().unwrap()
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            id: self.id(),
            now: None,
        }
    }

    fn write(&mut self, command: &[&str]) {
        ask::<Value>(&mut self.connection, command);
    }
}

/// Has callers ask for permits of several limiters, by the script and by the model.
fn ask_all(pairs: &mut [Pair; LIMITERS], asked: &Asked) {
    let which = &asked.which;
    let now = pairs[0].now();
    let row = |limiter: &usize| CalendarRow {
        rate: asked.rates[*limiter].cast_signed(),
        windows: pairs[*limiter].windows(now, asked.off[*limiter], asked.later[*limiter]),
    };
    let rows: Vec<_> = which.iter().map(row).collect();
    let of = CompiledLimit::unnamed("model");
    let charge = |limiter: &usize, (permits, shadow): (u32, bool)| {
        let limit = Limit::monthly(1).with_permits(|_| asked.rates[*limiter]);
        let name = pairs[*limiter].name.clone();
        Charge {
            shadow,
            ..Charge::named(name, LimitSource::Code(limit), &of, permits)
        }
    };
    let demand = |(takes, waits): &([(u32, bool); LIMITERS], bool)| {
        let charges = which.iter().map(|limiter| charge(limiter, takes[*limiter]));
        let mut demand = Demand::of(charges.collect::<Vec<_>>(), *waits);
        demand.identify(pairs[0].id());
        demand
    };
    let run: Vec<_> = asked.callers.iter().map(demand).collect();
    let sent = together(&run);
    let all: Vec<_> = rows.iter().copied().map(Row::Calendar).collect();
    let again = asked.again && may_ask_again(&all, sent);
    let asked_for = |again| AskedFor {
        stamp: Stamp {
            id: run[0].first().id,
            now: None,
        },
        rows: &all,
        carried: &[],
        again,
    };
    let call = |again| asked_for(again).call(sent);
    let mut calls = vec![call(false)];
    // The second one may be sent twice.
    calls.extend((again && sent.len() <= KNOWN).then(|| call(true)));
    calls.extend(again.then(|| call(true)));
    let mut reply = Value::Nil;
    for call in &calls {
        reply = pairs[0].call(&call.command());
    }
    let read = asked_for(again).read(&reply, &run);
    if which.iter().any(|limiter| pairs[*limiter].spoilt) {
        assert_eq!(read.err().unwrap().kind(), ErrorKind::ForeignState);
        return;
    }
    let reply = read.unwrap();
    let mut is_known = which.iter().zip(&rows).map(|(limiter, row)| {
        Used::at(
            reply.now / 1000,
            pairs[*limiter].model.state.stored,
            &row.windows,
        )
        .is_some()
    });
    let all_known = is_known.all(|known| known);
    assert_eq!(reply.answers.is_some(), all_known);
    let Some(answers) = reply.answers else {
        return;
    };
    let decided = answers.len() / which.len();
    assert!(decided >= sent.len());
    let run = &run[..decided];
    let instant = answers[0].now;
    let models = pairs.iter_mut().enumerate();
    let models = models.filter(|(limiter, _)| which.contains(limiter));
    let models = models.zip(&rows).map(|((_, pair), row)| {
        pair.model.state.windows = row.windows;
        &mut pair.model as &mut LimiterState
    });
    let expected = call::acquire(models, run, instant).unwrap();
    for (place, limiter) in which.iter().enumerate() {
        let of_this = |answers: &[Answer]| -> Vec<Answer> {
            let answers = answers.iter().skip(place);
            answers.step_by(which.len()).cloned().collect()
        };
        let rate = asked.rates[*limiter];
        let permits = |demand: &Demand| demand.charges[place].permits;
        let says_end = sent.iter().any(|demand| u64::from(permits(demand)) <= rate);
        let pair = &mut pairs[*limiter];
        let windows = &rows[place].windows;
        pair.agree(&of_this(&answers), &of_this(&expected), says_end, windows);
    }
    for (demand, answers) in run.iter().zip(answers.chunks(which.len())) {
        let mut enforced = demand.charges().zip(answers);
        let is_granted =
            enforced.all(|(charge, answer)| charge.shadow || answer.verdict == Verdict::Granted);
        for (answer, (charge, limiter)) in answers.iter().zip(demand.charges().zip(which)) {
            if let (true, Verdict::Granted, Some(taken)) =
                (is_granted, answer.verdict, answer.taken)
            {
                pairs[*limiter].granted.push((charge.permits, taken));
            }
        }
    }
}

proptest! {
    #![proptest_config(config(240))]

    #[test]
    fn a_history(steps in proptest::collection::vec(step(), 1..60)) {
        let mut pairs = [(); LIMITERS].map(|()| Pair::new());
        for step in &steps {
            match step {
                Step::Call(asked) => ask_all(&mut pairs, asked),
                Step::At(limiter, one) => pairs[*limiter].live(one),
            }
            pairs.iter_mut().for_each(Pair::compare);
        }
    }
}
