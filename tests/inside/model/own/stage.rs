//! Limiters in our own format on a server, and what they must count.

use kit::MOVE;
use redis::Connection;

use super::{
    super::pair::{ask, connect, run_script},
    answers::Said,
    *,
};
use crate::{
    store::redis::{
        packed::{
            self, Stamp,
            call::Call,
            requests::{Asked, KNOWN, RunReply, may_ask_again, together},
            row::Row,
            verbs::{self, GrantToSettle},
        },
        script::ScriptCall,
    },
    values::charge::PermitId,
};

/// A grant that can be settled.
#[derive(Clone, Debug)]
pub(super) struct Receipt {
    pub(super) id: PermitId,
    pub(super) permits: u32,
    /// By the clock of the model
    pub(super) time: i64,
    pub(super) taken: Option<Taken>,
}

pub(super) struct Side {
    pub(super) name: Name,
    pub(super) kind: Algorithm,
    pub(super) terms: Terms,
    /// The same in memory
    pub(super) memory: AnyLimiter,
    pub(super) receipts: Vec<Receipt>,
    /// When permits came back for the last time
    pub(super) gave_back: i64,
}

pub(super) struct Stage {
    connection: Connection,
    pub(super) sides: Vec<Side>,
    /// The time of the caller's clock; `None` by the server's
    given: Option<i64>,
    /// By how much what is stored was moved back
    moved: i64,
    ids: u64,
    /// Set if the machine was so slow that no one can say what must be.
    is_over: bool,
}

impl Stage {
    pub(super) fn new(
        kinds: [Algorithm; LIMITERS],
        limits: [usize; LIMITERS],
        given: Option<i64>,
    ) -> Self {
        let side = |(kind, limit): (Algorithm, usize)| Side {
            name: Name::exact(&unique("own")).unwrap(),
            kind,
            terms: LIMITS[limit],
            memory: AnyLimiter::new(kind),
            receipts: Vec::new(),
            gave_back: i64::MIN / 2,
        };
        Self {
            connection: connect(),
            sides: kinds.into_iter().zip(limits).map(side).collect(),
            given,
            moved: 0,
            ids: 0,
            is_over: false,
        }
    }

    pub(super) fn given(&self) -> Option<i64> {
        self.given
    }

    pub(super) fn moved(&self) -> i64 {
        self.moved
    }

    pub(super) fn id(&mut self) -> PermitId {
        self.ids += 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.ids.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        PermitId(id)
    }

    /// The time by the clock of the model.
    pub(super) fn now(&mut self) -> i64 {
        self.given
            .unwrap_or_else(|| self.micros() / 1000 + self.moved)
    }

    /// The server's time.
    pub(super) fn micros(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = ask(&mut self.connection, &["TIME"]);
        seconds * 1_000_000 + micros
    }

    /// The same of a reply that says it.
    pub(super) fn time_of(&self, reply: &Value) -> Option<i64> {
        let micros = match reply {
            Value::Array(numbers) => match numbers.first() {
                Some(Value::Int(micros)) => *micros,
                _ => return None,
            },
            _ => return None,
        };
        Some(self.given.unwrap_or(micros / 1000 + self.moved))
    }

    /// Makes a call whose reply does not say the time. Returns that, too; `None` if it may be one
    /// of two, so that the history is over.
    pub(super) fn call_at(&mut self, call: &ScriptCall) -> (Value, Option<i64>) {
        let before = self.now();
        let reply = self.call(call);
        let after = self.now();
        self.is_over |= before != after;
        (reply, Some(after).filter(|_| before == after))
    }

    pub(super) fn call(&mut self, call: &ScriptCall) -> Value {
        run_script(&mut self.connection, call.script, &call.command).unwrap()
    }

    pub(super) fn write(&mut self, command: &[&str]) {
        ask::<Value>(&mut self.connection, command);
    }

    pub(super) fn state(&mut self, limiter: usize) -> Option<Vec<u8>> {
        let key = packed::key(&self.sides[limiter].name);
        ask(&mut self.connection, &["GET", &key])
    }

    pub(super) fn live(&mut self, step: &Step) {
        if self.is_over {
            return;
        }
        match step {
            Step::Ask(questions) if questions.len() == 1 => self.ask(&questions[0]),
            Step::Ask(questions) => self.ask_jointly(questions),
            Step::Advance(by) => self.advance(*by),
            Step::At(limiter, one) => self.at(*limiter, one),
        }
        if !self.is_over {
            (0..LIMITERS).for_each(|limiter| self.compare(limiter));
        }
    }

    fn advance(&mut self, by: i64) {
        if let Some(now) = &mut self.given {
            *now += by;
            return;
        }
        self.moved += by;
        let keys: Vec<_> = (self.sides.iter())
            .map(|side| packed::key(&side.name))
            .collect();
        let mut moving = redis::cmd("EVAL");
        moving.arg(MOVE).arg(LIMITERS).arg(keys).arg(by);
        moving.exec(&mut self.connection).unwrap();
    }

    /// The callers of a question, and behind them what they fetch ahead.
    fn demands(&mut self, question: &Question) -> Vec<Demand> {
        let mut run = Vec::new();
        for permits in &question.callers {
            let charge = |limiter: &usize| Charge {
                shadow: question.shadow[*limiter],
                ..self.sides[*limiter].charge(permits[*limiter])
            };
            let charges: Vec<_> = question.which.iter().map(charge).collect();
            let mut demand = Demand::caller(charges, question.waits);
            demand.identify(self.id());
            run.push(demand);
        }
        let first = run[0].first();
        let fetches = run[0].charges.len() == 1
            && first.compiled().counting.tells_grants_apart()
            && !first.shadow
            && !question.waits;
        if let Some((permits, part)) = question.ahead.filter(|_| fetches) {
            let terms = self.sides[question.which[0]].terms;
            let ahead = Charge {
                permits,
                id: first.id.for_ahead(),
                lead: (terms.1.cast_signed() * part / 1000).max(1),
                ..first.clone()
            };
            run.push(Demand::caller([ahead], false));
        }
        run
    }

    fn rows(&self, question: &Question) -> Vec<Row> {
        let sides = question.which.iter().map(|limiter| &self.sides[*limiter]);
        sides.map(Side::row).collect()
    }

    fn asked(&self, run: &[Demand], rows: &[Row], again: bool) -> Asked {
        Asked {
            stamp: stamp(run[0].first().id, self.given),
            rows: rows.iter().copied().collect(),
            bans: None,
            again,
        }
    }

    fn ask(&mut self, question: &Question) {
        let (run, rows) = (self.demands(question), self.rows(question));
        let sent = together(&run);
        if question.gives_up {
            self.give_up(question, &run[0]);
        }
        let again = match question.again {
            Again::After(..) if !may_ask_again(&rows, sent) => Again::Never,
            again => again,
        };
        let mut found = vec![false; run.len()];
        if again != Again::Instead {
            let lone = self.asked(&run, &rows, false).lone(sent);
            let reply = match lone.filter(|_| question.is_lone) {
                Some(lone) => self.ask_alone(question, &run, &rows, &lone),
                None => None,
            };
            if let Some(granted) = reply {
                found = granted;
            } else {
                let call = self.asked(&run, &rows, false).command(sent);
                let reply = self.call(&call);
                let read = self.asked(&run, &rows, false).read(&reply, &run).unwrap();
                found = self.judge(question, &run, (read, self.time_of(&reply).unwrap()), &[]);
            }
        }
        let (times, by) = match again {
            Again::Never => return,
            Again::Instead => (1, 0),
            Again::After(times, by) => (times, by),
        };
        let now = self.now();
        let which = question.which.iter();
        let lasts = which.map(|limiter| self.sides[*limiter].lasts(now));
        let lasts = lasts.min().unwrap();
        if again != Again::Instead && lasts <= by {
            // Then what it granted is gone.
            return;
        }
        let all_recorded = rows.iter().any(|row| matches!(row, Row::Log(_)));
        self.advance(by);
        for time in 0..times {
            // Once more only what states know by then.
            if (time > 0 || again == Again::Instead) && !all_recorded && sent.len() > KNOWN {
                return;
            }
            let call = self.asked(&run, &rows, true).command(sent);
            let reply = self.call(&call);
            let time = self.time_of(&reply).unwrap();
            self.is_over |= time >= now + lasts;
            if self.is_over {
                return;
            }
            let read = self.asked(&run, &rows, true).read(&reply, &run).unwrap();
            let read = self.judge(question, &run, (read, time), &found);
            found
                .iter_mut()
                .zip(read)
                .for_each(|(it, read)| *it |= read);
        }
    }

    /// Sends the call of a lone caller; `None` if it did not decide. Returns who takes anything.
    fn ask_alone(
        &mut self,
        question: &Question,
        run: &[Demand],
        rows: &[Row],
        lone: &ScriptCall,
    ) -> Option<Vec<bool>> {
        let before = self.now();
        let reply = self.call(lone);
        let after = self.now();
        let read = self
            .asked(run, rows, false)
            .read_lone(&reply, run)
            .unwrap()?;
        let mut said = Said {
            now: after,
            is_vague: before != after,
            answers: read.answers.unwrap().to_vec(),
        };
        if said.is_vague
            && let Some(state) = self.state(question.which[0])
            && let Some(log) = packed::log::State::read(&state)
            && said.answers[0].verdict == Verdict::Granted
        {
            // What was fetched ahead lies behind it.
            let ahead = usize::from(state[state.len() - 4]);
            let time = log.records.iter().rev().nth(ahead);
            let time = time.map(|(time, _)| time + self.moved);
            (said.now, said.is_vague) = (time.unwrap(), false);
        }
        Some(self.hold(question, run, &said, &[]))
    }

    /// Holds the reply to a call, and its time, against what must be. `found` is who took before.
    /// Returns who takes anything.
    fn judge(
        &mut self,
        question: &Question,
        run: &[Demand],
        (read, now): (RunReply, i64),
        found: &[bool],
    ) -> Vec<bool> {
        let again = !found.is_empty();
        for answer in read.answers.iter().flatten().filter(|_| again) {
            // Others may have taken since: nothing is known to lie ahead.
            if let Some(Taken::Tat(tat)) = answer.taken {
                assert!(tat.at <= read.now);
            }
        }
        let said = Said {
            now,
            is_vague: false,
            answers: read.answers.unwrap().to_vec(),
        };
        self.hold(question, run, &said, found)
    }

    fn ask_jointly(&mut self, questions: &[Question]) {
        let all: Vec<_> = questions
            .iter()
            .map(|question| (self.demands(question), self.rows(question)))
            .collect();
        let mut joined = Call::default();
        for (run, rows) in &all {
            let asked = self.asked(run, rows, false);
            asked.add_to(&mut joined, together(run));
        }
        let reply = self.call(&joined.command());
        let now = self.time_of(&reply).unwrap();
        let mut replies = joined.replies(&reply);
        for (question, (run, rows)) in questions.iter().zip(&all) {
            let part = replies.next().flatten().unwrap();
            let read = self.asked(run, rows, false).read_part(part, run).unwrap();
            self.judge(question, run, (read, now), &[]);
        }
    }

    /// Settles what a caller may have taken, before its call arrives.
    fn give_up(&mut self, question: &Question, first: &Demand) {
        for (charge, limiter) in first.charges().zip(&question.which) {
            if self.sides[*limiter].kind != Algorithm::SlidingLog {
                continue;
            }
            let before = self.state(*limiter);
            let grant = GrantToSettle::of(&charge.to_send(), self.now_given(), 0).unwrap();
            let call = verbs::settle([(charge.name(), &grant)]);
            assert_eq!(packed::freed(&self.call(&call)).unwrap(), 0);
            assert_eq!(self.state(*limiter), before);
        }
    }

    pub(super) fn now_given(&self) -> Option<u64> {
        self.given.map(i64::cast_unsigned)
    }

    fn compare(&mut self, limiter: usize) {
        let stamp = stamp(self.id(), self.given);
        self.compare_at(limiter, stamp, None);
        // -2 is a key that is not there.
        let key = packed::key(&self.sides[limiter].name);
        let life: i64 = ask(&mut self.connection, &["PTTL", &key]);
        assert_ne!(life, -1, "{key} never expires");
    }

    /// Asks what is left, at the time of the reply or at another.
    pub(super) fn compare_at(&mut self, limiter: usize, stamp: Stamp, now: Option<i64>) {
        let (row, name) = (self.sides[limiter].row(), self.sides[limiter].name.clone());
        let reply = self.call(&verbs::ask_left(&row, &name, stamp));
        let (_, left) = verbs::read_left(&row, &reply).unwrap();
        let now = now.or_else(|| self.time_of(&reply)).unwrap();
        assert_eq!(left.unwrap(), self.sides[limiter].left(now), "in memory");
    }

    /// After an interval, and what was fetched ahead, all permits are free.
    pub(super) fn lose_nothing(&mut self) {
        if self.is_over {
            return;
        }
        // A debt by GCRA lasts up to a microsecond more for each permit.
        self.advance(2 * 3000 + 1);
        for limiter in 0..LIMITERS {
            self.compare(limiter);
            let now = self.now();
            let side = &self.sides[limiter];
            assert_eq!(side.left(now), side.terms.0.cast_signed());
        }
    }
}
