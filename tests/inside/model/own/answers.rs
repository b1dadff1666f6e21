//! What calls say, held against how limiters stood before them and stand after them.

use std::slice;

use super::{
    stage::{Receipt, Side},
    *,
};
use crate::store::redis::packed::{requests::together, row::Row};

/// What a reply says to callers.
pub(super) struct Said {
    /// By the clock of the model
    pub(super) now: i64,
    /// Set if the reply does not say the time, and refuses: it was at most so late.
    pub(super) is_vague: bool,
    pub(super) answers: Vec<Answer>,
}

impl Side {
    pub(super) fn row(&self) -> Row {
        row(self.kind, self.terms)
    }

    pub(super) fn charge(&self, permits: u32) -> Charge {
        let (rate, interval) = self.terms;
        let limit = Limit::new(rate, Duration::from_millis(interval));
        let compiled = CompiledLimit {
            limit: LimitSource::Code(limit),
            counting: Counting {
                algorithm: self.kind,
                ..Counting::default()
            },
            ..CompiledLimit::with_defaults("model", true, false)
        };
        let (name, compiled) = (self.name.clone(), compiled.into());
        Charge::new(Limiter { name, compiled }, permits)
    }

    /// Returns the permits left.
    pub(super) fn left(&self, now: i64) -> i64 {
        if self.memory.limit.is_none() {
            return self.terms.0.cast_signed();
        }
        let now = instant(now);
        let left = match &self.memory {
            AnyLimiter::Log(limiter) => limiter.clone().available(now, PermitId::NONE),
            AnyLimiter::Window(limiter) => limiter.clone().available(now, PermitId::NONE),
            AnyLimiter::Gcra(limiter) => limiter.clone().available(now, PermitId::NONE),
            AnyLimiter::Calendar(limiter) => limiter.clone().available(now, PermitId::NONE),
        };
        left.unwrap()
    }

    /// Returns how long what was just granted is known.
    pub(super) fn lasts(&self, now: i64) -> i64 {
        match &self.memory {
            AnyLimiter::Log(_) => self.terms.1.cast_signed(),
            AnyLimiter::Window(limiter) => {
                let end = limiter.state.0.and_then(|window| window.end);
                let left = end.map(|end| end + 1 - now).filter(|left| *left > 0);
                left.unwrap_or(i64::MAX / 2)
            }
            _ => i64::MAX / 2,
        }
    }

    /// Returns by how much the last permits lie ahead.
    fn lead(&self, now: i64) -> i64 {
        match &self.memory {
            AnyLimiter::Log(limiter) => {
                let times = limiter.state.log.entries().map(|entry| entry.score);
                (times.max().unwrap_or(now) - now).max(0)
            }
            _ => 0,
        }
    }

    /// Returns whether a record may live of which all was given back.
    fn has_empty(&self, now: i64) -> bool {
        let interval = self.terms.1.cast_signed();
        self.kind == Algorithm::SlidingLog && self.gave_back > now - interval - interval / 10
    }

    pub(super) fn lose(&mut self) {
        self.memory = AnyLimiter::new(self.kind);
        self.receipts.clear();
    }
}

impl Stage {
    /// Holds what a call says against what must be, and takes what it takes. `found` is who took
    /// before. Returns who takes anything.
    pub(super) fn hold(
        &mut self,
        question: &Question,
        run: &[Demand],
        said: &Said,
        found: &[bool],
    ) -> Vec<bool> {
        let width = question.which.len();
        let is_fetched = |demand: &&Demand| demand.first().lead == 0 || found.is_empty();
        let sent = together(run).iter().filter(is_fetched).count();
        assert!(said.answers.len() >= sent * width);
        assert_eq!(said.answers.len() % width, 0);
        let mut granted = vec![false; run.len()];
        let mut took: Vec<Vec<bool>> = Vec::new();
        let callers = run.iter().zip(said.answers.chunks(width));
        for (number, (demand, answers)) in callers.enumerate() {
            let is_allowed = demand.decision(answers).is_allowed();
            granted[number] = is_allowed;
            took.push(match found.get(number) {
                _ if number >= sent => {
                    assert!(!is_allowed, "it is behind one that waits");
                    vec![false; width]
                }
                Some(true) => {
                    assert!(is_allowed, "it was granted before");
                    vec![false; width]
                }
                _ => {
                    let others = granted[..number].iter().all(|granted| *granted);
                    self.decide(question, demand, answers, (said, others))
                }
            });
        }
        if !said.is_vague {
            for place in 0..width {
                let took: Vec<_> = took.iter().map(|took| took[place]).collect();
                self.hold_answers(question, place, (&run[..sent], &took), (said, &granted));
            }
        }
        // A shadow that took nothing is not known.
        let took = took.iter().map(|took| took.contains(&true));
        let mut known: Vec<_> = took.collect();
        known.resize(run.len(), false);
        known
    }

    /// Decides for one caller as the reply does. Returns what it takes from.
    fn decide(
        &mut self,
        question: &Question,
        demand: &Demand,
        answers: &[Answer],
        (said, others_are_granted): (&Said, bool),
    ) -> Vec<bool> {
        let is_allowed = demand.decision(answers).is_allowed();
        let is_ahead = demand.first().lead > 0;
        let (mut fits, mut took) = (true, Vec::new());
        for ((charge, limiter), answer) in demand.charges().zip(&question.which).zip(answers) {
            let has_room = i64::from(charge.permits) <= self.sides[*limiter].left(said.now);
            let takes = is_allowed && answer.verdict == Verdict::Granted;
            if charge.shadow && is_allowed {
                assert_eq!(takes, has_room);
            }
            fits &= charge.shadow || has_room;
            took.push(takes);
        }
        if is_allowed {
            assert!(fits, "{demand:?} is granted");
        } else if is_ahead {
            assert!(!fits || !others_are_granted, "nothing is fetched");
        } else {
            assert!(!fits || said.is_vague, "{demand:?} is refused");
        }
        self.take(question, demand, answers, (said.now, &took));
        if !said.is_vague && (is_allowed || !is_ahead) {
            let sides = self.sides.iter_mut().enumerate();
            let sides = sides.filter(|(limiter, _)| question.which.contains(limiter));
            let models = sides.map(|(_, side)| &mut *side.memory);
            let answers = call::acquire(models, slice::from_ref(demand), instant(said.now));
            let decision = demand.decision(&answers.unwrap());
            assert_eq!(decision.is_allowed(), is_allowed, "in memory");
        }
        took
    }

    /// Keeps the receipts of what a caller takes.
    fn take(
        &mut self,
        question: &Question,
        demand: &Demand,
        answers: &[Answer],
        (now, took): (i64, &[bool]),
    ) {
        let moved = self.moved();
        for (place, limiter) in question.which.iter().enumerate().filter(|it| took[it.0]) {
            let Charge {
                id, permits, lead, ..
            } = demand.charges[place];
            let side = &mut self.sides[*limiter];
            let taken = answers[place].taken.map(|taken| match taken {
                Taken::Date { label, end } => Taken::Date {
                    label: label + moved,
                    end: end + moved,
                },
                taken => taken,
            });
            side.receipts.push(Receipt {
                id,
                permits,
                time: now + lead,
                taken,
            });
        }
    }

    /// Holds what callers are answered about one limiter against how it stands after them.
    fn hold_answers(
        &self,
        question: &Question,
        place: usize,
        (sent, took): (&[Demand], &[bool]),
        (said, granted): (&Said, &[bool]),
    ) {
        let after = After {
            side: &self.sides[question.which[place]],
            now: said.now,
        };
        let each = said.answers.iter().skip(place);
        let answers: Vec<_> = each.step_by(question.which.len()).collect();
        let is_refused = granted[..sent.len()].contains(&false)
            || (answers.iter()).any(|answer| answer.verdict != Verdict::Granted);
        let mut is_first = true;
        for (number, (demand, answer)) in sent.iter().zip(answers).enumerate() {
            let permits = i64::from(demand.charges[place].permits);
            after.holds_left(answer);
            if answer.verdict == Verdict::Refused && demand.first().lead == 0 {
                // In a line, others come first.
                let is_alone = !question.waits || number == 0;
                let is_exact = is_first && is_alone && !took[number + 1..].contains(&true);
                after.holds_wait(answer, permits, [is_alone, is_exact]);
                is_first = false;
            }
            if answer.verdict == Verdict::Granted && granted[number] {
                after.holds_next(answer, is_refused);
            }
            after.holds_reset(answer, is_refused);
        }
    }
}

/// How a limiter stands after a call.
struct After<'a> {
    side: &'a Side,
    now: i64,
}

impl After<'_> {
    /// Returns what is left so many ms later.
    fn left(&self, by: i64) -> i64 {
        self.side.left(self.now + by)
    }

    fn rate(&self) -> i64 {
        self.side.terms.0.cast_signed()
    }

    fn shown(&self, answer: &Answer) -> String {
        let (memory, left) = (&self.side.memory, self.left(0));
        format!("{answer:?} at {} of {left:?}, {memory:?}", self.now)
    }

    fn holds_left(&self, answer: &Answer) {
        let (left, said) = (self.left(0), answer.remaining);
        // A grant, which is said last, does not say how large a debt is.
        let is_debt = said == 0 && left < 0;
        assert!(said == left || is_debt, "{}", self.shown(answer));
    }

    /// A wait is never late where a caller is alone, and exact where none behind it takes.
    fn holds_wait(&self, answer: &Answer, permits: i64, [is_alone, is_exact]: [bool; 2]) {
        let (wait, shown) = (answer.wait, self.shown(answer));
        assert!(wait > 0, "{shown}");
        assert!(!is_alone || self.left(wait - 1) < permits, "{shown}");
        assert!(!is_exact || self.left(wait) >= permits, "{shown}");
    }

    fn holds_next(&self, answer: &Answer, is_refused: bool) {
        let (left, next, shown) = (self.left(0), answer.next, self.shown(answer));
        if left == self.rate() {
            assert_eq!(next, 0, "{shown}");
        } else if left >= 0 && (next > 0 || !is_refused) {
            // What was given back whole leaves a record, which says a time.
            let may_be_early = self.side.has_empty(self.now);
            assert!(may_be_early || self.left(next) > left, "{shown}");
            assert!(self.left(next - 1) <= left, "{shown}");
        }
    }

    fn holds_reset(&self, answer: &Answer, is_refused: bool) {
        // Callers who all ask for more than the rate learn of no end.
        let is_said = answer.verdict != Verdict::AboveRate && !is_refused;
        if answer.reset > 0 || answer.remaining < self.rate() && is_said {
            // What lies ahead is free a little later.
            let reset = answer.reset + self.side.lead(self.now);
            assert_eq!(self.left(reset), self.rate(), "{}", self.shown(answer));
        }
    }
}
