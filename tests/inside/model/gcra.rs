//! Limiters by GCRA, with and without bans, in Redis and as [`Model`]s, by a clock that is moved.
//!
//! That clock tells milliseconds. By the server's, which tells microseconds, each step is held
//! against what it says of itself: see the end.

use proptest::array::uniform3;
use redis::Connection;

use super::{
    pair::{START, ask, connect, run_script},
    *,
};
use crate::{
    algorithm::{
        ban::{self, Record},
        gcra::{Gcra, Pace, State},
    },
    store::{
        guard::deny_cache::bans::{BanState, Carried},
        redis::{
            packed::{
                self, Stamp,
                gcra::{self, GcraRow},
                requests::{Asked, KNOWN, may_ask_again, together},
                row::Row,
                verbs::release,
            },
            script::ScriptCall,
        },
    },
    values::{List, charge::Tat, limit::Ban},
};
use kit::unique;

type Model = LimiterState<Gcra>;

const LIMITERS: usize = 3;
/// The limits of versions of a service. No key expires while a test runs: the server's clock counts
/// for that.
const LIMITS: [(u64, u64); 8] = [
    (5, 100_000),
    (5, 100_000),
    (5, 100_000),
    (3, 100_000),
    (1, 6_000_000),
    (3, 70_001),
    (9, 200_000),
    (7000, 100_000),
];

#[derive(Clone, Debug)]
enum Step {
    Ask(Question),
    Advance(i64),
    At(usize, One),
}

/// Callers ask for permits of some limiters.
#[derive(Clone, Debug)]
struct Question {
    which: Vec<usize>,
    callers: Vec<[u32; LIMITERS]>,
    shadow: [bool; LIMITERS],
    waits: bool,
    limits: [usize; LIMITERS],
    carried: [(u32, u64); LIMITERS],
    /// Set if they ask once more, as the reply was lost.
    again: bool,
    /// Set if a lone caller asks the script for the usual case first.
    is_usual: bool,
}

/// What happens to one limiter.
#[derive(Clone, Debug)]
enum One {
    Settle(Index, u32),
    Release(u32),
    Left(usize),
    Ban(u64),
    Unban,
    Lose,
    Spoil,
}

/// A limiter in our own format.
fn own(name: &Name) -> Limiter {
    let mut of = CompiledLimit::of("model", true, false);
    of.counting.algorithm = Algorithm::Gcra;
    let name = name.clone();
    Limiter {
        name,
        of: of.into(),
    }
}

/// Terms of a ban, or none. All their times are so many of this unit, in ms.
fn terms(unit: u64) -> impl Strategy<Value = Option<Ban>> {
    let millis = move |choices: &'static [u64]| {
        proptest::sample::select(choices).prop_map(move |choice| choice * unit)
    };
    let longest = prop::option::of(Just(4000 * unit));
    let terms = (
        1_u32..5,
        millis(&[700, 5000]),
        millis(&[400, 1500]),
        longest,
    );
    let terms = terms.prop_map(|(after, within, lasting, longest)| {
        let ban = Ban::after(after)
            .within(Duration::from_millis(within))
            .lasting(Duration::from_millis(lasting));
        longest.map_or(ban, |longest| {
            ban.doubling_to(Duration::from_millis(longest))
        })
    });
    prop::option::weighted(0.8, terms)
}

fn question() -> impl Strategy<Value = Question> {
    let which = prop_oneof![
        2 => (0..LIMITERS).prop_map(|limiter| vec![limiter]),
        1 => proptest::sample::subsequence((0..LIMITERS).collect::<Vec<_>>(), 2..=LIMITERS),
    ];
    let permits = prop_oneof![8 => 1u32..4, 2 => 1u32..9, 1 => Just(6000u32)];
    let callers = proptest::collection::vec(uniform3(permits), 1..4);
    let shadow = uniform3(proptest::bool::weighted(0.2));
    let carried = uniform3((prop_oneof![3 => Just(0), 1 => 1_u32..4], 0_u64..600_000));
    let limits = uniform3(0..LIMITS.len());
    let ways = (any::<bool>(), proptest::bool::weighted(0.2), any::<bool>());
    (which, callers, shadow, limits, carried, ways).prop_map(
        |(which, callers, shadow, limits, carried, (waits, again, is_usual))| Question {
            which,
            callers,
            shadow,
            waits,
            limits,
            carried,
            again,
            is_usual,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let one = prop_oneof![
        4 => (any::<Index>(), 0u32..14).prop_map(|(which, keep)| One::Settle(which, keep)),
        2 => (1u32..9).prop_map(One::Release),
        2 => (0..LIMITS.len()).prop_map(One::Left),
        1 => (1u64..300_000).prop_map(One::Ban),
        1 => Just(One::Unban),
        1 => Just(One::Lose),
        1 => Just(One::Spoil),
    ];
    let moves = prop_oneof![
        4 => 0i64..70_000,
        1 => Just(100_000),
        1 => Just(20_000),
        1 => Just(7_000_000),
        // A clock that is set back
        1 => Just(-15_000),
    ];
    prop_oneof![
        4 => question().prop_map(Step::Ask),
        2 => moves.prop_map(Step::Advance),
        3 => (0..LIMITERS, one).prop_map(|(limiter, one)| Step::At(limiter, one)),
    ]
}

struct Pair {
    name: Name,
    terms: Option<Ban>,
    model: Model,
    record: Record,
    /// Permits, and where they are.
    granted: Vec<(u32, Tat)>,
    /// Set while the key holds no count.
    is_spoilt: bool,
}

struct Stage {
    connection: Connection,
    now: i64,
    ids: u64,
    pairs: Vec<Pair>,
}

fn pace((rate, interval): (u64, u64)) -> Pace {
    Pace::of(rate.cast_signed(), interval.cast_signed()).unwrap()
}

fn stored((rate, interval): (u64, u64)) -> StoredLimit {
    Limit::new(rate, Duration::from_millis(interval)).stored()
}

impl Stage {
    fn new(terms: [Option<Ban>; LIMITERS]) -> Self {
        let pair = |terms| Pair {
            name: Name::exact(&unique("gcra")).unwrap(),
            terms,
            model: Model::default(),
            record: Record::default(),
            granted: Vec::new(),
            is_spoilt: false,
        };
        Self {
            connection: connect(),
            now: START,
            ids: 0,
            pairs: terms.map(pair).into(),
        }
    }

    fn stamp(&mut self) -> Stamp {
        Stamp {
            id: self.id(),
            now: Some(self.now.cast_unsigned()),
        }
    }

    fn id(&mut self) -> PermitId {
        self.ids += 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.ids.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        PermitId(id)
    }

    fn instant(&self) -> Now {
        Now::millis(self.now).of_all(false)
    }

    fn call(&mut self, call: &ScriptCall) -> Value {
        run_script(&mut self.connection, call.script, &call.command).unwrap()
    }

    fn live(&mut self, step: &Step) {
        match step {
            Step::Ask(question) => self.ask(question),
            Step::Advance(by) => {
                self.now += by;
                if *by < 0 {
                    self.forget_bans();
                }
            }
            Step::At(limiter, one) => self.at(*limiter, one),
        }
        for limiter in 0..LIMITERS {
            self.compare(limiter);
        }
    }

    /// Times in a ban never fall, and in memory they do: so what is known ends with a clock that is
    /// set back.
    fn forget_bans(&mut self) {
        for limiter in 0..LIMITERS {
            let key = keys::ban(&self.pairs[limiter].name, true);
            self.write(&["DEL", &key]);
            self.pairs[limiter].record = Record::default();
        }
    }

    fn demands(&mut self, question: &Question) -> Vec<Demand> {
        let callers = question.callers.iter();
        let demand = |permits: &[u32; LIMITERS]| {
            let charge = |limiter: &usize| {
                let (rate, interval) = LIMITS[question.limits[*limiter]];
                let limit = Limit::new(rate, Duration::from_millis(interval));
                let pair = &self.pairs[*limiter];
                let of = CompiledLimit {
                    limit: LimitSource::Code(limit),
                    counting: Counting {
                        algorithm: Algorithm::Gcra,
                        ..Counting::default()
                    },
                    ban: pair.terms,
                    ..CompiledLimit::of("model", true, false)
                };
                let (name, of) = (pair.name.clone(), of.into());
                Charge {
                    shadow: question.shadow[*limiter],
                    ..Charge::new(Limiter { name, of }, permits[*limiter])
                }
            };
            let charges: Vec<_> = question.which.iter().map(charge).collect();
            let mut demand = Demand::of(charges, question.waits);
            demand.identify(self.id());
            demand
        };
        callers.map(demand).collect()
    }

    fn ask(&mut self, question: &Question) {
        let which = &question.which;
        let run = self.demands(question);
        let rows: Vec<_> = which
            .iter()
            .map(|limiter| Row::Gcra(GcraRow(pace(LIMITS[question.limits[*limiter]]))))
            .collect();
        let carried: Vec<_> = which
            .iter()
            .map(|limiter| match self.pairs[*limiter].terms {
                Some(_) => question.carried[*limiter],
                None => (0, 0),
            })
            .map(|(number, age)| Carried {
                number,
                age,
                ..Carried::default()
            })
            .collect();
        let stamp = Stamp {
            id: run[0].first().id,
            now: Some(self.now.cast_unsigned()),
        };
        let asked = |again| Asked {
            stamp,
            rows: &rows,
            carried: &carried,
            again,
        };
        let sent = together(&run);
        let mut usual = None;
        let again = question.again && may_ask_again(&rows, sent);
        let mut calls = vec![asked(false).call(sent)];
        if let Some(lone) = asked(false).lone(sent).filter(|_| question.is_usual) {
            let is_unusual = self.is_unusual(which[0], question.limits[which[0]]);
            let reply = run_script(&mut self.connection, lone.script, &lone.command).unwrap();
            assert_eq!(reply == Value::Nil, is_unusual);
            if !is_unusual {
                calls.remove(0);
            }
            usual = Some(reply);
        }
        // The second one may be sent twice.
        calls.extend((again && sent.len() <= KNOWN).then(|| asked(true).call(sent)));
        calls.extend(again.then(|| asked(true).call(sent)));
        let mut reply = usual.map(|usual| asked(false).read_lone(&usual, &run));
        for call in &calls {
            let said = self.call(&call.command());
            reply = Some(asked(again).read(&said, &run).map(Some));
        }
        let reply = reply.unwrap().map(Option::unwrap);
        if which.iter().any(|limiter| self.pairs[*limiter].is_spoilt) {
            assert_eq!(reply.err().unwrap().kind(), ErrorKind::ForeignState);
            return;
        }
        let reply = reply.unwrap();
        // A refusal by the script of the usual case does not say it.
        assert!(reply.now == self.now * 1000 || reply.now == 0 && question.is_usual);
        let answers = reply.answers.unwrap();
        let decided = answers.len() / which.len();
        assert!(decided >= sent.len());
        let run = &run[..decided];
        let has_ban = which
            .iter()
            .any(|limiter| self.pairs[*limiter].terms.is_some());
        let by_other: Vec<_> = which
            .iter()
            .map(|limiter| self.is_unusual(*limiter, question.limits[*limiter]))
            .collect();
        let expected = self.decide(which, run, &carried, has_ban);
        for answer in answers.iter().filter(|_| again) {
            // Nothing is known to lie ahead.
            if let Some(Taken::Tat(tat)) = answer.taken {
                assert!(tat.at <= reply.now);
            }
        }
        if (has_ban && run.len() > 1 && !question.waits) || again {
            // What is said of each is how it stands after all. After a ban has begun, those that
            // ask again meet it.
            let shown = |run: &[Demand], answers: &[Answer]| -> Vec<_> {
                let callers = run.iter().zip(answers.chunks(which.len()));
                let shown = callers.map(|(caller, answers)| caller.decision(answers));
                shown
                    .map(|decision| match decision {
                        Decision::Allow(_) => None,
                        Decision::Deny(refusal) => Some(refusal.kind() == RefusalKind::Banned),
                    })
                    .collect()
            };
            let [said, expected] = [&*answers, &*expected].map(|answers| shown(run, answers));
            let is_banned = again && expected.contains(&Some(true));
            for (said, expected) in said.iter().zip(&expected) {
                let is_like = said == expected || is_banned && *said == Some(true);
                assert!(
                    is_like && said.is_none() == expected.is_none(),
                    "{said:?} {expected:?}"
                );
            }
        } else {
            let shown = |answers: &[Answer]| -> Vec<_> {
                let shown = |answer: &Answer| Answer {
                    changed: Changed::Nothing,
                    taken: answer.taken.filter(|_| answer.verdict == Verdict::Granted),
                    now: Now::millis(0),
                    ..answer.clone()
                };
                answers.iter().map(shown).collect()
            };
            let (said, expected) = (shown(&answers), shown(&expected));
            let callers = said.chunks(which.len()).zip(expected.chunks(which.len()));
            for ((said, expected), demand) in callers.zip(run) {
                let is_above = |answer: &Answer| answer.verdict == Verdict::AboveRate;
                if expected.iter().any(is_above) {
                    // The model did not look.
                    let [said, expected] = [said, expected].map(|it| it.iter().map(is_above));
                    assert!(said.eq(expected));
                    continue;
                }
                let (answers, is_line) = (expected, question.waits && run.len() > 1);
                for (place, (said, expected)) in said.iter().zip(answers).enumerate() {
                    // Where nothing is taken, the mark says nothing.
                    let taken = if demand.decision(answers).is_allowed() {
                        said.taken
                    } else {
                        expected.taken
                    };
                    // Of what is in use by another limit, the script says no wait in a line.
                    let wait = if is_line && by_other[place] {
                        said.wait.max(expected.wait)
                    } else {
                        said.wait
                    };
                    assert_eq!(
                        Answer {
                            taken,
                            wait,
                            ..said.clone()
                        },
                        *expected
                    );
                }
            }
        }
        let now = self.instant();
        for (place, limiter) in which.iter().enumerate() {
            let pair = &self.pairs[*limiter];
            let expected = pair.terms.map_or(BanState::default(), |terms| {
                let [left, back] = pair.record.in_force(now).unwrap_or_default();
                let strikes = pair.record.strikes(&terms, now);
                BanState {
                    left,
                    back,
                    strikes,
                }
            });
            assert_eq!(reply.found[place], expected, "{place}");
        }
        for (demand, answers) in run.iter().zip(answers.chunks(which.len())) {
            if !demand.decision(answers).is_allowed() {
                continue;
            }
            for (answer, (charge, limiter)) in answers.iter().zip(demand.charges().zip(which)) {
                if let (Verdict::Granted, Some(Taken::Tat(tat))) = (answer.verdict, answer.taken) {
                    self.pairs[*limiter].granted.push((charge.permits, tat));
                }
            }
        }
    }

    /// Whether a state is not for the script of the usual case: of another kind or limit.
    fn is_unusual(&self, limiter: usize, limit: usize) -> bool {
        let pace = pace(LIMITS[limit]);
        let stored = self.pairs[limiter].model.state.stored;
        let is_other = |state: State| (state.rate, state.interval) != (pace.rate, pace.interval);
        self.pairs[limiter].is_spoilt || stored.is_some_and(is_other)
    }

    /// What the script does, by the pure functions: those of limits with a ban one after the other.
    fn decide(
        &mut self,
        which: &[usize],
        run: &[Demand],
        carried: &[Carried],
        has_ban: bool,
    ) -> Vec<Answer> {
        let now = self.instant();
        let terms: List<_> = run[0].charges().map(|charge| charge.of().ban).collect();
        let id = run[0].first().id.for_next_call();
        for ((limiter, terms), carried) in which.iter().zip(&terms).zip(carried) {
            let (record, age) = (&mut self.pairs[*limiter].record, carried.age.cast_signed());
            if let Some(terms) = terms
                && record.in_force(now).is_none()
                && carried.number > 0
                && age < terms.millis()[0]
            {
                // Times never fall, so it counts as no older than the last.
                let last = record.last_strike(terms.millis()[0], now);
                let at = last.map_or(now.tick - age, |last| last.max(now.tick - age));
                record.strike(terms, (id, carried.number, at), 0, now);
            }
        }
        let is_apart = has_ban && run[0].max_wait.is_none();
        let mut answers = Vec::new();
        for run in run.chunks(if is_apart { 1 } else { run.len() }) {
            let each = self.pairs.iter().enumerate();
            let each = each.filter(|(limiter, _)| which.contains(limiter));
            let mut records: Vec<_> = each.map(|(_, pair)| pair.record.clone()).collect();
            if ban::is_banned(&run[0], &terms, &records, now) {
                let limits: List<_> = run[0]
                    .charges()
                    .map(|charge| charge.limit().given().map(Limit::stored))
                    .collect();
                answers.extend(ban::refuse(run, &terms, &records, &limits, now));
                continue;
            }
            let models = self.pairs.iter_mut().enumerate();
            let models = models.filter(|(limiter, _)| which.contains(limiter));
            let models = models.map(|(_, pair)| &mut pair.model as &mut LimiterState);
            let mut decided = call::acquire(models, run, now).unwrap();
            ban::judge(run, &terms, &mut records, &mut decided, now);
            answers.extend(decided);
            for (limiter, record) in which.iter().zip(records) {
                self.pairs[*limiter].record = record;
            }
        }
        answers
    }

    fn freed(&mut self, limiter: usize, call: &ScriptCall) -> i64 {
        let reply = self.call(call);
        match packed::freed(&reply) {
            Ok(freed) => freed,
            Err(error) if self.pairs[limiter].is_spoilt => {
                assert_eq!(error.kind(), ErrorKind::ForeignState);
                0
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn at(&mut self, limiter: usize, one: &One) {
        let (stamp, now) = (self.stamp(), self.instant());
        let name = self.pairs[limiter].name.clone();
        let is_spoilt = self.pairs[limiter].is_spoilt;
        match one {
            One::Settle(which, keep) => {
                let granted = &mut self.pairs[limiter].granted;
                if granted.is_empty() {
                    return;
                }
                let which = which.index(granted.len());
                let (permits, tat) = granted.swap_remove(which);
                self.settle(limiter, (permits, *keep), tat);
            }
            One::Release(permits) => {
                let freed = self.freed(limiter, &release(Algorithm::Gcra, &name, stamp, *permits));
                let model = &mut self.pairs[limiter].model;
                let expected = match model.limit {
                    Some(_) if !is_spoilt => model.release((*permits).into(), now, stamp.id),
                    _ => Ok(0),
                };
                assert_eq!(Ok(freed), expected);
            }
            One::Left(limit) => {
                let row = Row::Gcra(GcraRow(pace(LIMITS[*limit])));
                let reply = self.call(&packed::verbs::ask_left(&row, &name, stamp));
                let read = packed::verbs::read_left(&row, &reply);
                if is_spoilt {
                    assert_eq!(read.unwrap_err().kind(), ErrorKind::ForeignState);
                    return;
                }
                let mut model = self.pairs[limiter].model.clone();
                model.limit = Some(stored(LIMITS[*limit]));
                let left = model.available(now, stamp.id).unwrap();
                assert_eq!(read.unwrap(), (self.now * 1000, Some(left)));
            }
            One::Ban(millis) if !is_spoilt => {
                let reply = self.call(&packed::verbs::ban_for(&own(&name), stamp, *millis));
                let until = self.now + millis.cast_signed();
                assert_eq!(packed::verbs::read_ban(&reply).unwrap(), [self.now, until]);
                let record = &mut self.pairs[limiter].record;
                record.ban_for(millis.cast_signed(), now);
            }
            One::Unban if !is_spoilt => {
                let reply = self.call(&packed::verbs::ask_ban(&own(&name), stamp));
                let [_, until] = packed::verbs::read_ban(&reply).unwrap();
                let record = &mut self.pairs[limiter].record;
                let left = record.in_force(now).map_or(0, |[left, _]| left);
                assert_eq!(until, self.now + left);
                *record = Record::default();
                self.write(&["DEL", &keys::ban(&name, true)]);
            }
            One::Ban(_) | One::Unban => {}
            One::Lose => {
                self.write(&["DEL", &packed::key(&name)]);
                let pair = &mut self.pairs[limiter];
                (pair.model.state, pair.is_spoilt) = (Gcra::default(), false);
            }
            One::Spoil => {
                self.write(&["SET", &packed::key(&name), "spoilt"]);
                let pair = &mut self.pairs[limiter];
                (pair.model.state, pair.is_spoilt) = (Gcra::default(), true);
            }
        }
    }

    fn settle(&mut self, limiter: usize, (permits, keep): (u32, u32), tat: Tat) {
        let pair = &self.pairs[limiter];
        let (is_spoilt, limit) = (pair.is_spoilt, pair.model.limit.unwrap());
        if keep == permits {
            return;
        }
        let of = CompiledLimit {
            limit: LimitSource::Code(limit.limit().unwrap()),
            counting: Counting {
                algorithm: Algorithm::Gcra,
                ..Counting::default()
            },
            ..CompiledLimit::of("model", true, false)
        };
        let (name, of) = (pair.name.clone(), of.into());
        let taken = Taken::Tat(tat);
        let charge = Charge::new(Limiter { name, of }, permits);
        let receipt = charge.to_send().marked(taken);
        let now = Some(self.now.cast_unsigned());
        let call = packed::verbs::settle(&receipt, now, keep).unwrap();
        let freed = self.freed(limiter, &call);
        if is_spoilt {
            return;
        }
        let now = self.instant();
        let model = &mut self.pairs[limiter].model;
        let expected = model.settle(&receipt, Some(taken), keep, now);
        assert_eq!(Ok(freed), expected);
    }

    fn write(&mut self, command: &[&str]) {
        ask::<Value>(&mut self.connection, command);
    }

    fn state(&mut self, limiter: usize) -> Option<State> {
        let key = packed::key(&self.pairs[limiter].name);
        let bytes: Option<Vec<u8>> = ask(&mut self.connection, &["GET", &key]);
        bytes.map(|bytes| gcra::state(&bytes).unwrap())
    }

    fn compare(&mut self, limiter: usize) {
        let key = packed::key(&self.pairs[limiter].name);
        if self.pairs[limiter].is_spoilt {
            let held: String = ask(&mut self.connection, &["GET", &key]);
            assert_eq!(held, "spoilt");
            return;
        }
        let state = self.state(limiter);
        assert_eq!(state, self.pairs[limiter].model.state.stored);
        let ban = keys::ban(&self.pairs[limiter].name, true);
        for key in [key, ban] {
            // -2 is a key that is not there.
            let life: i64 = ask(&mut self.connection, &["PTTL", &key]);
            assert_ne!(life, -1, "{key} never expires");
        }
    }
}

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn a_history(
        terms in uniform3(prop_oneof![Just(None), terms(100)]),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut stage = Stage::new(terms);
        for step in &steps {
            stage.live(step);
        }
    }
}

/// By the server's clock a grant says when it was, and a refusal by how much it came too early:
/// both must lie between two looks at that clock, and what is stored must be what follows from
/// them.
#[test]
fn by_the_servers_clock_it_counts_in_microseconds() {
    let mut stage = Stage::new([None; LIMITERS]);
    let pace = pace((40, 8));
    let row = Row::Gcra(GcraRow(pace));
    let (mut granted, mut refused, mut within_ms) = (0, 0, false);
    while granted < 200 || refused < 200 {
        let permits = 1 + u32::try_from((granted + refused) % 9).unwrap();
        let question = Question {
            which: vec![0],
            callers: vec![[permits; LIMITERS]],
            shadow: [false; LIMITERS],
            waits: false,
            limits: [0; LIMITERS],
            carried: [(0, 0); LIMITERS],
            again: false,
            is_usual: true,
        };
        let run = stage.demands(&question);
        let asked = Asked {
            stamp: Stamp {
                id: run[0].first().id,
                now: None,
            },
            rows: &[row],
            carried: &[],
            again: false,
        };
        let stored = stage.state(0);
        let before = stage.micros();
        // By both scripts in turns.
        let lone = asked.lone(&run).filter(|_| (granted + refused) % 2 > 0);
        let reply = stage.call(lone.as_ref().unwrap_or(&asked.call(&run).command()));
        let after = stage.micros();
        let reply = match lone {
            Some(_) => asked.read_lone(&reply, &run).unwrap().unwrap(),
            None => asked.read(&reply, &run).unwrap(),
        };
        let (now, answer) = (reply.now, reply.answers.unwrap().remove(0));
        let (cost, left) = (pace.cost(permits.into()), stage.state(0));
        if answer.verdict == Verdict::Granted {
            granted += 1;
            let Some(Taken::Tat(Tat { at, .. })) = answer.taken else {
                panic!("{answer:?}");
            };
            assert!(left.is_none_or(|left| left.tat.at == at));
            let begun = stored.map_or(now, |stored| stored.tat.at.max(now));
            // Of a key that vanished meanwhile, and whose time was over then, nothing was left.
            assert_eq!(at, begun + cost);
            assert!(at - now <= pace.whole());
        } else {
            refused += 1;
            let due = |now| stored.unwrap().tat.at - now + cost - pace.whole();
            assert!((due(after)..due(before) + 1000).contains(&(answer.wait * 1000)));
            assert!(due(before) > 0);
            if lone.is_some() {
                // It does not say the time.
                continue;
            }
            assert!((due(now)..due(now) + 1000).contains(&(answer.wait * 1000)));
        }
        assert!((before..=after).contains(&now), "{before} {now} {after}");
        within_ms |= now % 1000 != 0;
    }
    assert!(within_ms);
}

impl Stage {
    fn micros(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = ask(&mut self.connection, &["TIME"]);
        seconds * 1_000_000 + micros
    }
}
