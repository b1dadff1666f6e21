//! One call: who of its callers gets what they ask of one limiter, or of several.
//!
//! Pure, and what `lua/acquire_list.lua` does in Redis. Each way to count has a file of its own:
//! `sliding_log.rs`, `fixed_window.rs`, `gcra.rs`.

use super::answer::{Answer, Changed, Verdict};
use crate::{
    clock::Now,
    error::ErrorKind,
    limit::{LimitSource, StoredLimit, ahead_of},
    list::List,
    receipt::PermitId,
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

    /// Whether the same call came before and took this. Most algorithms cannot tell one grant from
    /// another.
    fn holds(&self, _take: &Take) -> bool {
        false
    }

    /// Writes down a grant, as made at `score`, where each has an entry of its own.
    fn note(&mut self, _take: &Take, _score: i64) {}

    /// Stores the permits left as `answer` has them, completes it with the times, and says when
    /// there is room for those that were refused: `needs` do not fall.
    fn end(&mut self, answer: &mut Answer, needs: &mut [Needs], exact: bool);
}

/// The permits that must be free for a caller, and the time until they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Needs {
    /// The permits, those of the callers that wait before it included, up to the rate.
    pub(crate) permits: i64,
    /// More than the rate is never free at once: so many further rates must come and go.
    pub(crate) rounds: i64,
    /// The place of its answer.
    answer: usize,
    /// Ticks until there is room.
    pub(crate) wait: i64,
}

impl Needs {
    fn of(permits: i64, rate: i64, answer: usize) -> Self {
        let rounds = (permits - 1).div_euclid(rate);
        Self {
            permits: permits - rounds * rate,
            rounds,
            answer,
            wait: 0,
        }
    }
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

/// Takes permits for each caller, in the order in which they came, or finds when they will be free.
///
/// Each caller is granted whole, by all limiters, or not at all. One that waits and does not fit
/// closes the line to those behind it; one that does not wait takes what is left. There is one
/// answer for each caller and limiter, those of the first caller first, as they were left by the
/// whole call. An error has changed nothing.
pub(crate) fn acquire<'a>(
    limiters: impl Iterator<Item = (&'a mut dyn Counts, Ask)>,
    callers: &[Caller],
    now: Now,
) -> Result<List<Answer>, ErrorKind> {
    let mut books = limiters
        .map(|(limiter, ask)| Book::open(limiter, ask, now))
        .collect::<Result<List<_>, _>>()?;
    let takes = |caller| Iterator::zip(books.iter(), <[Take]>::iter(caller));
    let takes = callers.iter().flat_map(|caller| takes(&caller.takes));
    let mut answers: List<_> = takes.map(|(book, take)| book.first_answer(take)).collect();
    let hopeless = callers.iter().map(|caller| is_hopeless(caller, &books));
    let hopeless: List<bool> = hopeless.collect();
    if hopeless.iter().all(|hopeless| *hopeless) && books.iter().all(|book| !book.has_changed()) {
        return Ok(answers);
    }
    for (place, book) in books.iter_mut().enumerate() {
        let take = |caller: &'_ Caller| caller.takes.get(place).copied();
        let hopeful = callers.iter().zip(hopeless.iter());
        let hopeful = hopeful.filter(|(_, hopeless)| !**hopeless);
        let wanted = hopeful.filter_map(|(caller, _)| take(caller));
        book.begin(wanted, callers.first().and_then(take));
    }

    let mut line = Line::default();
    let width = books.len();
    for (number, (caller, hopeless)) in callers.iter().zip(hopeless.iter()).enumerate() {
        if *hopeless {
            continue;
        }
        if is_granted(caller, &books) {
            // The same call came before, and took what it takes.
            for answer in answers.iter_mut().skip(number * width).take(width) {
                answer.verdict = Verdict::Granted;
            }
        } else if !is_above_rate(caller, &books) {
            line.serve(caller, &mut books, number * width);
        }
        // Else granted before the limit was lowered, and expired since.
    }
    for (place, book) in books.iter_mut().enumerate() {
        let mut needs = line.unmet(place, book);
        let closed = book.close(&mut needs, width > 1);
        for needs in needs.iter() {
            let answer = &mut answers[needs.answer];
            (answer.verdict, answer.wait) = (Verdict::Refused, needs.wait);
        }
        for answer in answers.iter_mut().skip(place).step_by(width) {
            *answer = closed.for_caller(answer.verdict, answer.wait);
        }
    }
    Ok(answers)
}

/// The same for one caller of one limiter, as most are. Whether it waits makes no difference: there
/// is no caller behind it.
///
/// Compiled for each algorithm by itself, as it is what nearly every request costs.
pub(crate) fn acquire_one<C: Counts + ?Sized>(
    limiter: &mut C,
    ask: Ask,
    take: &Take,
    now: Now,
) -> Result<Answer, ErrorKind> {
    let mut book = Book::open(limiter, ask, now)?;
    let mut verdict = book.first_answer(take).verdict;
    let is_above_rate = !take.shadow && verdict == Verdict::AboveRate;
    let hopeless = is_above_rate && !book.holds(take);
    if hopeless && !book.has_changed() {
        return Ok(book.first_answer(take));
    }
    book.begin((!hopeless).then_some(*take).into_iter(), Some(*take));
    let mut needs = None;
    if hopeless {
        // The limit has changed all the same.
    } else if book.holds(take) {
        verdict = Verdict::Granted;
    } else if is_above_rate {
        // Granted before the limit was lowered, and expired since.
    } else if book.has_room(take) {
        book.take(take);
    } else if book.is_possible(take) {
        verdict = Verdict::Refused;
        needs = Some(Needs::of(i64::from(take.permits), book.limit.rate, 0));
    }
    let closed = book.close(needs.as_mut_slice(), false);
    Ok(closed.for_caller(verdict, needs.map_or(0, |needs| needs.wait)))
}

/// Whether it asks for more than a limit ever allows, and was not granted that before the limit was
/// lowered.
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

/// The callers of a call that were not granted, and what they need.
#[derive(Default)]
struct Line {
    /// Whether one that waits was refused: none behind it that waits is granted.
    is_closed: bool,
    /// Of which limiter, how many permits, and the place of the answer. It need not be this limiter
    /// that has no room.
    unmet: List<(usize, i64, usize)>,
}

impl Line {
    /// Takes what a caller asks for, if all of it fits. Its answers begin at a place.
    fn serve(&mut self, caller: &Caller, books: &mut [Book<'_>], answers_begin: usize) {
        let mut takes = books.iter().zip(caller.takes.iter());
        let fits = takes.all(|(book, take)| take.shadow || book.has_room(take))
            && !(self.is_closed && caller.waits);
        for ((place, book), take) in books.iter_mut().enumerate().zip(caller.takes.iter()) {
            if fits && book.has_room(take) {
                book.take(take);
            } else if book.is_possible(take) {
                let mut needs = i64::from(take.permits);
                if caller.waits && !take.shadow {
                    needs += book.in_line;
                    book.in_line = needs;
                }
                self.unmet.push((place, needs, answers_begin + place));
            }
        }
        self.is_closed |= !fits && caller.waits;
    }

    /// The needs that a limiter has no room for in the end: after all grants, as a caller that
    /// another limiter refused has left its room to those behind it.
    fn unmet(&self, place: usize, book: &Book<'_>) -> List<Needs> {
        let without_room = self
            .unmet
            .iter()
            .filter(|(limiter, needs, _)| *limiter == place && *needs > book.answer.remaining);
        let mut needs: List<_> = without_room
            .map(|(_, needs, answer)| Needs::of(*needs, book.limit.rate, *answer))
            .collect();
        needs.sort_unstable();
        needs
    }
}

/// One limiter in the midst of a call.
struct Book<'a, C: ?Sized = dyn Counts + 'a> {
    limiter: &'a mut C,
    ask: Ask,
    limit: StoredLimit,
    /// As the call leaves the limiter up to now.
    answer: Answer,
    /// Permits of the callers that wait, up to now.
    in_line: i64,
}

impl<'a, C: Counts + ?Sized> Book<'a, C> {
    /// Finds the limit in force; changes nothing.
    fn open(limiter: &'a mut C, ask: Ask, now: Now) -> Result<Self, ErrorKind> {
        let (limit, changed) = limit_in_force(&ask, limiter.limit())?;
        limiter.check(&limit)?;
        Ok(Self {
            limiter,
            ask,
            limit,
            answer: Answer::new(&limit, changed, now),
            in_line: 0,
        })
    }

    fn has_changed(&self) -> bool {
        self.answer.changed != Changed::Nothing
    }

    fn first_answer(&self, take: &Take) -> Answer {
        let verdict = if self.is_possible(take) {
            Verdict::Granted
        } else {
            Verdict::AboveRate
        };
        self.answer.for_caller(verdict, 0)
    }

    /// Puts the limit in force and counts what is left, as far as the callers need to know.
    fn begin(&mut self, takes: impl Iterator<Item = Take>, first: Option<Take>) {
        let wanted = takes
            .filter(|take| self.is_possible(take) || self.holds(take))
            .map(|take| i64::from(take.permits))
            .sum();
        let id = first.map_or(PermitId::NONE, |take| take.id);
        let Answer { changed, now, .. } = self.answer;
        let left = self
            .limiter
            .begin(self.limit, changed, wanted, self.ask.exact, now, id);
        self.answer.remaining = left;
    }

    fn is_possible(&self, take: &Take) -> bool {
        i64::from(take.permits) <= self.limit.rate
    }

    fn has_room(&self, take: &Take) -> bool {
        self.answer.remaining >= i64::from(take.permits)
    }

    fn holds(&self, take: &Take) -> bool {
        self.ask.resendable && self.limiter.holds(take)
    }

    fn take(&mut self, take: &Take) {
        let now = self.answer.now;
        let lead = now.ticks(take.lead);
        let lead = lead.min(ahead_of(now.ticks(self.limit.interval)));
        self.limiter.note(take, now.score() + lead);
        self.answer.remaining -= i64::from(take.permits);
    }

    /// Stores what is left. Returns what all callers are answered, and gives `needs` their waits.
    fn close(&mut self, needs: &mut [Needs], is_of_several: bool) -> Answer {
        let Answer {
            changed, remaining, ..
        } = self.answer;
        // A caller that another limiter refuses makes nothing here.
        let is_unmade =
            is_of_several && changed == Changed::Created && self.limiter.is_unused(remaining);
        self.limiter.end(&mut self.answer, needs, self.ask.exact);
        if is_unmade {
            self.limiter.unmake();
            self.answer.changed = Changed::Nothing;
        }
        self.answer
    }
}

#[cfg(test)]
mod tests;
