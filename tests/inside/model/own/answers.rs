//! What calls say, held against how limiters stood before them and stand after them.

use std::slice;

use super::{
    stage::{Receipt, Side},
    *,
};
use crate::store::redis::packed::requests::together;

/// What a reply says to callers.
pub(super) struct Said {
    /// By the clock of the model
    pub(super) now: i64,
    /// Set if the reply does not say the time, and refuses: it was at most so late.
    pub(super) is_vague: bool,
    pub(super) answers: Vec<Answer>,
}

impl Side {
    pub(super) fn charge(&self, (rate, interval): Terms, permits: u32) -> Charge {
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

    /// Returns the permits left, at least and at most.
    pub(super) fn left(&self, now: i64, terms: Terms) -> [i64; 2] {
        match &self.spec {
            Spec::Gcra if self.memory.limit.is_some() => [self.left_in_memory(now); 2],
            spec => spec.left(now, terms),
        }
    }

    pub(super) fn left_in_memory(&self, now: i64) -> i64 {
        let now = instant(now);
        let left = match &self.memory {
            AnyLimiter::Log(limiter) => limiter.clone().available(now, PermitId::NONE),
            AnyLimiter::Window(limiter) => limiter.clone().available(now, PermitId::NONE),
            AnyLimiter::Gcra(limiter) => limiter.clone().available(now, PermitId::NONE),
            AnyLimiter::Calendar(limiter) => limiter.clone().available(now, PermitId::NONE),
        };
        left.unwrap()
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
        let (mut must, mut may, mut took) = (true, true, Vec::new());
        for ((charge, limiter), answer) in demand.charges().zip(&question.which).zip(answers) {
            let terms = self.terms(*limiter, question.versions[*limiter]);
            let [least, most] = self.sides[*limiter].left(said.now, terms);
            let permits = i64::from(charge.permits);
            let takes = is_allowed && answer.verdict == Verdict::Granted;
            if charge.shadow && is_allowed {
                assert!(if takes {
                    permits <= most
                } else {
                    permits > least
                });
            } else if !charge.shadow {
                (must, may) = (must && permits <= least, may && permits <= most);
            }
            took.push(takes);
        }
        if is_allowed {
            assert!(may, "{demand:?} is granted");
        } else if is_ahead {
            assert!(!must || !others_are_granted, "nothing is fetched");
        } else {
            assert!(!must || said.is_vague, "{demand:?} is refused");
        }
        self.take(question, demand, answers, (said.now, &took));
        if self.has_one_limit() && !said.is_vague && (is_allowed || !is_ahead) {
            let sides = self.sides.iter_mut().enumerate();
            let sides = sides.filter(|(limiter, _)| question.which.contains(limiter));
            let models = sides.map(|(_, side)| &mut *side.memory);
            let answers = call::acquire(models, slice::from_ref(demand), instant(said.now));
            let decision = demand.decision(&answers.unwrap());
            assert_eq!(decision.is_allowed(), is_allowed, "in memory");
        }
        took
    }

    /// Takes what a caller takes.
    fn take(
        &mut self,
        question: &Question,
        demand: &Demand,
        answers: &[Answer],
        (now, took): (i64, &[bool]),
    ) {
        let moved = self.moved();
        for (place, limiter) in question.which.iter().enumerate().filter(|it| took[it.0]) {
            let terms = self.terms(*limiter, question.versions[*limiter]);
            let Charge {
                id, permits, lead, ..
            } = demand.charges[place];
            let side = &mut self.sides[*limiter];
            side.spec
                .take(now, terms, (id, permits.into(), lead), false);
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
                terms,
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
        let limiter = question.which[place];
        let after = After {
            side: &self.sides[limiter],
            terms: self.terms(limiter, question.versions[limiter]),
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
    terms: Terms,
    now: i64,
}

impl After<'_> {
    /// Returns what is left so many ms later, at least and at most.
    fn left(&self, by: i64) -> [i64; 2] {
        self.side.left(self.now + by, self.terms)
    }

    fn rate(&self) -> i64 {
        self.terms.0.cast_signed()
    }

    /// Returns whether it is a window that ends later than the limit can say.
    fn is_cut(&self) -> bool {
        self.side.spec.is_longer(self.now, self.terms)
    }

    fn shown(&self, answer: &Answer) -> String {
        let (spec, left) = (&self.side.spec, self.left(0));
        format!("{answer:?} at {} of {left:?}, {spec:?}", self.now)
    }

    fn holds_left(&self, answer: &Answer) {
        let ([least, most], said) = (self.left(0), answer.remaining);
        // A grant, which is said last, does not say how large a debt is.
        let is_debt = said == 0 && most < 0;
        let is_said = least <= said && said <= most;
        assert!(is_said || is_debt, "{}", self.shown(answer));
    }

    /// A wait is never late where a caller is alone, and exact where none behind it takes.
    fn holds_wait(&self, answer: &Answer, permits: i64, [is_alone, is_exact]: [bool; 2]) {
        let (wait, shown) = (answer.wait, self.shown(answer));
        assert!(wait > 0, "{shown}");
        // A longer limit counts a window as if that had grown.
        if is_alone && !self.side.spec.is_shorter(self.now, self.terms) {
            assert!(self.left(wait - 1)[0] < permits, "{shown}");
        }
        if is_exact && !self.is_cut() {
            assert!(self.left(wait)[1] >= permits, "{shown}");
        }
    }

    fn holds_next(&self, answer: &Answer, is_refused: bool) {
        let ([least, most], next, shown) = (self.left(0), answer.next, self.shown(answer));
        if least != most || least < 0 || self.is_cut() {
            return;
        }
        if least == self.rate() {
            assert_eq!(next, 0, "{shown}");
        } else if next > 0 || !is_refused {
            let spec = &self.side.spec;
            // What was given back whole leaves a record, which says a time.
            let may_be_early = spec.has_empty(self.now, self.terms);
            assert!(may_be_early || self.left(next)[1] > least, "{shown}");
            let may_be_late = spec.is_shorter(self.now, self.terms);
            assert!(may_be_late || self.left(next - 1)[0] <= least, "{shown}");
        }
    }

    fn holds_reset(&self, answer: &Answer, is_refused: bool) {
        // Callers who all ask for more than the rate learn of no end.
        let is_said = answer.verdict != Verdict::AboveRate && !is_refused;
        if !self.is_cut() && (answer.reset > 0 || answer.remaining < self.rate() && is_said) {
            // What lies ahead is free a little later.
            let reset = answer.reset + self.side.spec.lead(self.now);
            assert_eq!(self.left(reset)[1], self.rate(), "{}", self.shown(answer));
        }
    }
}
