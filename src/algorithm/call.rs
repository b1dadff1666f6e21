//! One call: who of its callers gets what they ask of one limiter, or of several.
//!
//! Pure, and what `lua/sliding_log/acquire_list.lua` does in Redis. Each way to count has a file of
//! its own:
//! `sliding_log.rs`, `fixed_window.rs`, `gcra.rs`.

use std::slice;

use super::answer::{Answer, Changed, Verdict};
use crate::{
    clock::Now,
    error::ErrorKind,
    limit::{LimitSource, StoredLimit, ahead_of},
    list::List,
    receipt::{PermitId, Tat},
};

/// What a call asks of one limiter, whoever its callers are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) limit: LimitSource,
    /// Whether a stored limit that differs from the code's is rewritten.
    pub(crate) rewrite: bool,
    /// Whether the permits left are wanted exactly.
    pub(crate) exact: bool,
    /// Whether the same call may have come before, so that its entries are looked for.
    pub(crate) resendable: bool,
}

/// A limiter, however it counts, in the midst of a call.
pub(crate) trait Counts {
    /// The stored limit.
    fn limit(&self) -> Option<StoredLimit>;

    /// Whether it can be counted by this limit.
    fn check(&self, _limit: &StoredLimit) -> Result<(), ErrorKind> {
        Ok(())
    }

    /// Stores `limit` if it was `changed`, and counts the permits left: at least so well that it is known whether there are as
    /// many as `wanted`. `id` marks entries that a repair adds.
    fn begin(
        &mut self,
        limit: StoredLimit,
        changed: Changed,
        wanted: i64,
        exact: bool,
        now: Now,
        id: PermitId,
    ) -> i64;

    /// Whether nothing is stored beside the limit, and all of its permits, so many, are left.
    fn is_unused(&self, _value: i64) -> bool {
        false
    }

    /// Forgets the limit.
    fn unmake(&mut self) {}

    /// Whether the same call came before and took this.
    fn holds(&self, take: &Take) -> bool;

    /// Notes a grant, as made at `score`.
    fn note(&mut self, take: &Take, score: i64);

    /// Stores the permits left, and tells when there is room for those that were refused: in the order of `needs`, which do
    /// not fall.
    fn end(&mut self, value: i64, needs: &[Needs], ask: &Ask, now: Now) -> End;
}

/// What must be free for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Needs {
    /// The permits, those of the callers that wait before it included, up to the rate.
    pub(crate) permits: i64,
    /// More than the rate is never free at once: so many further rates must come and go.
    pub(crate) rounds: i64,
    /// The place of its answer.
    answer: usize,
}

impl Needs {
    fn of(permits: i64, rate: i64, answer: usize) -> Self {
        let rounds = (permits - 1).div_euclid(rate);
        Self {
            permits: permits - rounds * rate,
            rounds,
            answer,
        }
    }
}

/// What a limiter says at the end of a call.
#[derive(Debug)]
pub(crate) struct End {
    /// Ticks until there is room, for each of the needs.
    pub(crate) waits: List<i64>,
    /// Ticks until at least one more permit is free; 0 where it is not known.
    pub(crate) next: i64,
    /// Ticks until all permits are free; the interval where some are not, unless that is wanted
    /// exactly.
    pub(crate) reset: i64,
    /// Scores that were set back.
    pub(crate) repaired: i64,
    /// What receipts are to know, where permits have a theoretical arrival time.
    pub(crate) tat: Option<Tat>,
}

/// The limit that counts in a call, and what the call makes of the stored one.
fn limit_in_force(
    ask: &Ask,
    stored: Option<StoredLimit>,
) -> Result<(StoredLimit, Changed), ErrorKind> {
    let (given, stored) = match (ask.limit, stored) {
        (LimitSource::Store, None) => return Err(ErrorKind::NotInitialized),
        (LimitSource::Code(given) | LimitSource::StoreOrInit(given), None) => {
            return Ok((given.stored(), Changed::Created));
        }
        (LimitSource::Store | LimitSource::StoreOrInit(_), Some(stored)) => {
            return Ok((stored, Changed::Nothing));
        }
        (LimitSource::Code(given), Some(stored)) => (given.stored(), stored),
    };
    if given.rate_type != stored.rate_type {
        return Err(ErrorKind::RateTypeDiffers);
    }
    let same = given.rate == stored.rate && given.interval == stored.interval;
    if same || !ask.rewrite {
        return Ok((stored, Changed::Nothing));
    }
    let written = StoredLimit {
        rate: given.rate,
        interval: given.interval,
        ..stored
    };
    Ok((written, Changed::Rewritten))
}

/// One caller of a call.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Whether it waits in line: it then is not overtaken by those behind it that wait, too.
    pub(crate) waits: bool,
    /// What it asks of each limiter, in their order.
    pub(crate) takes: List<Take>,
}

/// What a caller asks of a limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Take {
    pub(crate) permits: u32,
    pub(crate) id: PermitId,
    /// Whether it is taken if there is room, and no reason to refuse if there is none.
    pub(crate) shadow: bool,
    /// By how many milliseconds it is scored ahead, as it is used until then: as far as the format allows.
    pub(crate) lead: i64,
}

/// Takes permits for each caller, in the order in which they came, or tells when they will be free.
///
/// Each caller is granted whole, by all limiters, or not at all. One that waits and does not fit closes the line to those
/// behind it; one that does not wait takes what is left. There is one answer for each caller and limiter, those of the first
/// caller first, as they were left by the whole call. An error has changed nothing.
pub(crate) fn acquire<'a>(
    limiters: impl Iterator<Item = (&'a mut dyn Counts, Ask)>,
    callers: &[Caller],
    now: Now,
) -> Result<List<Answer>, ErrorKind> {
    let mut books = List::EMPTY;
    for (limiter, ask) in limiters {
        books.push(Book::open(limiter, ask)?);
    }
    let mut answers = List::EMPTY;
    for caller in callers {
        for (book, take) in books.iter().zip(caller.takes.iter()) {
            answers.push(book.first_answer(take, now));
        }
    }
    let hopeless: List<bool> = callers
        .iter()
        .map(|caller| is_hopeless(caller, &books))
        .collect();
    if hopeless.iter().all(|hopeless| *hopeless)
        && books.iter().all(|book| book.changed == Changed::Nothing)
    {
        return Ok(answers);
    }
    for (place, book) in books.iter_mut().enumerate() {
        let hopeful = callers.iter().zip(hopeless.iter());
        let hopeful = hopeful.filter(|(_, hopeless)| !**hopeless);
        let wanted = hopeful.filter_map(|(caller, _)| caller.takes.get(place));
        let first = callers.first().and_then(|caller| caller.takes.get(place));
        book.begin(wanted, first, now);
    }

    let mut closed = false;
    let mut next_answer = 0;
    for (caller, hopeless) in callers.iter().zip(hopeless.iter()) {
        let answers_begin = next_answer;
        next_answer += books.len();
        if *hopeless {
            continue;
        }
        if is_granted(caller, &books) {
            // The same call came before, and took what it takes.
            for answer in &mut answers[answers_begin..next_answer] {
                answer.verdict = Verdict::Granted;
            }
            continue;
        }
        if is_above_rate(caller, &books) {
            // Granted before the limit was lowered, and expired since.
            continue;
        }
        let mut takes = books.iter().zip(caller.takes.iter());
        let fits = takes.all(|(book, take)| take.shadow || book.has_room(take))
            && !(closed && caller.waits);
        for ((place, book), take) in books.iter_mut().enumerate().zip(caller.takes.iter()) {
            let answer = answers_begin + place;
            if fits && book.has_room(take) {
                book.take(take, now);
            } else if book.is_possible(take) {
                book.pass_over(take, caller.waits && !take.shadow, answer);
            }
        }
        closed |= !fits && caller.waits;
    }
    let limiters = books.len();
    for (place, book) in books.iter_mut().enumerate() {
        book.close(now, place, limiters, &mut answers);
    }
    Ok(answers)
}

/// The same for one caller of one limiter, as most are. Whether it waits makes no difference: nobody stands behind it.
///
/// Compiled for each algorithm by itself, as it is what nearly every request costs.
pub(crate) fn acquire_one<C: Counts + ?Sized>(
    limiter: &mut C,
    ask: Ask,
    take: &Take,
    now: Now,
) -> Result<Answer, ErrorKind> {
    let mut book = Book::open(limiter, ask)?;
    let mut answer = book.first_answer(take, now);
    let is_above_rate = !take.shadow && !book.is_possible(take);
    let hopeless = is_above_rate && !book.holds(take);
    if hopeless && book.changed == Changed::Nothing {
        return Ok(answer);
    }
    let wanted = (!hopeless).then_some(take);
    book.begin(wanted.into_iter(), Some(take), now);
    if hopeless {
        // The limit has changed all the same.
    } else if book.holds(take) {
        answer.verdict = Verdict::Granted;
    } else if is_above_rate {
        // Granted before the limit was lowered, and expired since.
    } else if book.has_room(take) {
        book.take(take, now);
    } else if book.is_possible(take) {
        book.pass_over(take, false, 0);
    }
    book.close(now, 0, 1, slice::from_mut(&mut answer));
    Ok(answer)
}

/// Whether it asks for more than a limit ever allows, and was not granted that before the limit was lowered.
fn is_hopeless(caller: &Caller, books: &[Book<'_>]) -> bool {
    is_above_rate(caller, books) && !is_granted(caller, books)
}

fn is_above_rate(caller: &Caller, books: &[Book<'_>]) -> bool {
    let mut takes = books.iter().zip(caller.takes.iter());
    takes.any(|(book, take)| !take.shadow && !book.is_possible(take))
}

fn is_granted(caller: &Caller, books: &[Book<'_>]) -> bool {
    let mut takes = books.iter().zip(caller.takes.iter());
    takes.any(|(book, take)| book.holds(take))
}

/// One limiter in the midst of a call.
struct Book<'a, C: ?Sized = dyn Counts + 'a> {
    limiter: &'a mut C,
    ask: Ask,
    limit: StoredLimit,
    changed: Changed,
    /// Permits left.
    value: i64,
    /// Permits of the callers that wait, up to now.
    in_line: i64,
    /// What callers need that were not granted: the permits, and the place of the answer.
    unmet: List<(i64, usize)>,
}

impl<'a, C: Counts + ?Sized> Book<'a, C> {
    /// Finds the limit in force; changes nothing.
    fn open(limiter: &'a mut C, ask: Ask) -> Result<Self, ErrorKind> {
        let (limit, changed) = limit_in_force(&ask, limiter.limit())?;
        limiter.check(&limit)?;
        Ok(Self {
            limiter,
            ask,
            limit,
            changed,
            value: 0,
            in_line: 0,
            unmet: List::EMPTY,
        })
    }

    fn first_answer(&self, take: &Take, now: Now) -> Answer {
        Answer {
            verdict: if self.is_possible(take) {
                Verdict::Granted
            } else {
                Verdict::AboveRate
            },
            remaining: 0,
            wait: 0,
            next: 0,
            reset: 0,
            now,
            rate: self.limit.rate,
            interval: self.limit.interval,
            changed: self.changed,
            repaired: 0,
            tat: None,
            estimated: false,
        }
    }

    /// Puts the limit in force and counts what is left, as far as the callers need to know.
    fn begin<'t>(&mut self, takes: impl Iterator<Item = &'t Take>, first: Option<&Take>, now: Now) {
        let wanted = takes
            .filter(|take| self.is_possible(take) || self.holds(take))
            .map(|take| i64::from(take.permits))
            .sum();
        let id = first.map_or(PermitId([0; 16]), |take| take.id);
        let (limit, changed, exact) = (self.limit, self.changed, self.ask.exact);
        self.value = self.limiter.begin(limit, changed, wanted, exact, now, id);
    }

    fn is_possible(&self, take: &Take) -> bool {
        i64::from(take.permits) <= self.limit.rate
    }

    fn has_room(&self, take: &Take) -> bool {
        self.value >= i64::from(take.permits)
    }

    fn holds(&self, take: &Take) -> bool {
        self.ask.resendable && self.limiter.holds(take)
    }

    fn take(&mut self, take: &Take, now: Now) {
        let lead = now.ticks(take.lead);
        let lead = lead.min(ahead_of(now.ticks(self.limit.interval)));
        self.limiter.note(take, now.score() + lead);
        self.value -= i64::from(take.permits);
    }

    /// Notes a caller that is not granted. It need not be this limiter that has no room for it.
    fn pass_over(&mut self, take: &Take, waits: bool, answer: usize) {
        let mut needs = i64::from(take.permits);
        if waits {
            needs += self.in_line;
            self.in_line = needs;
        }
        self.unmet.push((needs, answer));
    }

    /// Tells the callers what is left, and those without room when there will be some: after all grants, as one that
    /// another limiter refused has left its room to those behind it.
    ///
    /// `answers` are those of all limiters; this one's is the one at `place` of each caller.
    fn close(&mut self, now: Now, place: usize, limiters: usize, answers: &mut [Answer]) {
        let mut refused = List::EMPTY;
        if !self.unmet.is_empty() {
            let without_room = self.unmet.iter().filter(|(needs, _)| *needs > self.value);
            refused = without_room
                .map(|(needs, answer)| Needs::of(*needs, self.limit.rate, *answer))
                .collect();
            refused.sort_unstable();
        }
        // Whom another limiter refuses makes nothing here.
        let is_unmade =
            limiters > 1 && self.changed == Changed::Created && self.limiter.is_unused(self.value);
        let end = self.limiter.end(self.value, &refused, &self.ask, now);
        if is_unmade {
            self.limiter.unmake();
        }
        for (needs, wait) in refused.iter().zip(end.waits.iter()) {
            answers[needs.answer].verdict = Verdict::Refused;
            answers[needs.answer].wait = *wait;
        }
        for answer in answers.iter_mut().skip(place).step_by(limiters) {
            answer.remaining = self.value;
            if answer.verdict == Verdict::Granted {
                answer.next = end.next;
            }
            answer.reset = end.reset;
            answer.repaired = end.repaired;
            answer.tat = end.tat;
            if is_unmade {
                answer.changed = Changed::Nothing;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Debug, iter};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::{fixed_window, gcra, sliding_log},
        limit::{Limit, Slots},
    };

    const START: i64 = 1_700_000_000_000;
    const NOW: Now = Now::millis(START);

    /// What is asked, and how long after what was asked before.
    #[derive(Clone, Copy, Debug)]
    struct Step {
        take: Take,
        waits: bool,
        ask: Ask,
        pause: i64,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let limit = (1..6_u64, prop::sample::select(vec![10_u64, 1000])).prop_map(|(rate, ms)| {
            let limit = Limit::new(rate, std::time::Duration::from_millis(ms));
            LimitSource::Code(limit)
        });
        let limit = prop_oneof![9 => limit, 1 => Just(LimitSource::Store)];
        let flags = any::<[bool; 6]>();
        let step = (limit, flags, 1..8_u32, 0..12_u8, 0..400_i64).prop_map(
            |(limit, [waits, shadow, rewrite, exact, resendable, leads], permits, id, pause)| {
                Step {
                    take: Take {
                        permits,
                        // Some are sent again.
                        id: PermitId([id; 16]),
                        shadow,
                        lead: if leads { 100 } else { 0 },
                    },
                    waits,
                    ask: Ask {
                        limit,
                        rewrite,
                        exact,
                        resendable,
                    },
                    pause,
                }
            },
        );
        prop::collection::vec(step, 1..30)
    }

    fn ask(limit: LimitSource) -> Ask {
        Ask {
            limit,
            rewrite: false,
            exact: false,
            resendable: true,
        }
    }

    fn per_second(permits: u64) -> LimitSource {
        LimitSource::Code(Limit::per_second(permits))
    }

    fn take(permits: u32) -> Take {
        Take {
            permits,
            id: PermitId([1; 16]),
            shadow: false,
            lead: 0,
        }
    }

    /// Asks both ways, and holds answers and what is kept against each other.
    fn agree<L: Counts + Clone + Debug + PartialEq>(
        steps: &[Step],
        mut one: L,
    ) -> Result<(), TestCaseError> {
        let mut many = one.clone();
        let mut now = START;
        for step in steps {
            now += step.pause;
            let (take, ask) = (step.take, step.ask);
            let at = Now::millis(now);
            let answer = acquire_one(&mut one, ask, &take, at);
            let caller = Caller {
                waits: step.waits,
                takes: List::one(take),
            };
            let limiters = iter::once((&mut many as &mut dyn Counts, ask));
            let answers = acquire(limiters, &[caller], at);
            prop_assert_eq!(answer.map(List::one), answers, "{:?}", step);
            prop_assert_eq!(&one, &many, "{:?}", step);
        }
        Ok(())
    }

    #[test]
    fn only_a_log_knows_a_call_that_comes_again() {
        let twice = |limiter: &mut dyn Counts| {
            let mut answer = || acquire_one(limiter, ask(per_second(1)), &take(1), NOW).unwrap();
            [answer(), answer()].map(|answer| answer.verdict)
        };
        let granted = [Verdict::Granted, Verdict::Granted];
        assert_eq!(twice(&mut sliding_log::Limiter::default()), granted);
        let refused = [Verdict::Granted, Verdict::Refused];
        assert_eq!(twice(&mut fixed_window::Limiter::default()), refused);
        assert_eq!(twice(&mut gcra::Limiter::default()), refused);
    }

    /// What a refused caller was the first to ask is either made, and said to be, or neither.
    #[test]
    fn what_is_made_is_told() {
        fn told<L: Counts>(mut first: L) -> bool {
            let mut spent = sliding_log::Limiter::default();
            acquire_one(&mut spent, ask(per_second(1)), &take(1), NOW).unwrap();
            let of = |id| Take {
                id: PermitId([id; 16]),
                ..take(1)
            };
            let caller = Caller {
                waits: false,
                takes: [of(2), of(3)].into_iter().collect(),
            };
            let limiters: [(&mut dyn Counts, Ask); 2] = [
                (&mut first, ask(per_second(2))),
                (&mut spent, ask(per_second(1))),
            ];
            let answers = acquire(limiters.into_iter(), &[caller], NOW).unwrap();
            assert_eq!(answers[1].verdict, Verdict::Refused);
            let told = answers[0].changed == Changed::Created;
            assert_eq!(told, first.limit().is_some());
            told
        }
        assert!(!told(sliding_log::Limiter::default()));
        // Of this one only the limit was lost.
        assert!(told(sliding_log::Limiter {
            value: Some(2),
            ..sliding_log::Limiter::default()
        }));
        assert!(told(fixed_window::Limiter::default()));
        assert!(told(gcra::Limiter::default()));
    }

    proptest! {
        #[test]
        fn one_caller_of_one_limiter_is_answered_as_a_list_of_one(steps in steps()) {
            let mut slotted = sliding_log::Limiter::default();
            slotted.note_in(Some(Slots::try_new(10, "orders", iter::empty()).unwrap()));
            agree(&steps, slotted)?;
            agree(&steps, sliding_log::Limiter::default())?;
            agree(&steps, fixed_window::Limiter::default())?;
            agree(&steps, gcra::Limiter::default())?;
        }
    }
}
