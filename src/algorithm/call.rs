//! One call: who of its callers gets what they ask of one limiter, or of several.
//!
//! Pure, and what `lua/sliding_log/acquire_list.lua` does in Redis. Each way to count has a file of
//! its own: `sliding_log.rs`, `fixed_window.rs`, `gcra.rs`.

use super::answer::{Answer, Changed, Verdict};
use crate::{
    clock::Now,
    demand::{Acquire, Charge},
    error::ErrorKind,
    limit::{LimitSource, StoredLimit, ahead_of},
    list::List,
    receipt::PermitId,
};

/// How a call treats one limiter, whoever its callers are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Whether a stored limit that differs from the code's is rewritten.
    pub(crate) rewrite: bool,
    /// Whether the same call may have come before, so that its entries are looked for.
    pub(crate) resendable: bool,
}

impl Terms {
    /// Of a store in this process, to which nothing is sent twice.
    pub(crate) const HERE: Self = Self {
        rewrite: true,
        resendable: false,
    };
}

/// A limiter, however it counts, in the midst of a call.
pub(crate) trait Counts {
    /// The stored limit.
    fn limit(&self) -> Option<StoredLimit>;

    /// Whether it can be counted by this limit.
    fn check(&self, _limit: &StoredLimit) -> Result<(), ErrorKind> {
        Ok(())
    }

    /// Stores `limit` if it was `changed`, and counts the permits left: at least so well that it is
    /// known whether there are as many as `wanted`. `id` marks entries that a repair adds.
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
    fn holds(&self, _charge: &Charge) -> bool {
        false
    }

    /// Writes down a grant, as made at `score`, where each has an entry of its own.
    fn note(&mut self, _charge: &Charge, _score: i64) {}

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
    source: LimitSource,
    rewrite: bool,
    stored: Option<StoredLimit>,
) -> Result<(StoredLimit, Changed), ErrorKind> {
    let (given, stored) = match (source, stored) {
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
    if same || !rewrite {
        return Ok((stored, Changed::Nothing));
    }
    let written = StoredLimit {
        rate: given.rate,
        interval: given.interval,
        ..stored
    };
    Ok((written, Changed::Rewritten))
}

/// Takes permits for each caller, in the order in which they came, or finds when they will be free.
///
/// Each caller is granted whole, by all limiters, or not at all. One that waits and does not fit
/// closes the line to those behind it; one that does not wait takes what is left. All go by the
/// limits of the first. There is one answer for each caller and limiter, those of the first caller
/// first, as they were left by the whole call. An error has changed nothing.
pub(crate) fn acquire<'a>(
    limiters: impl Iterator<Item = (&'a mut dyn Counts, Terms)>,
    run: &[Acquire],
    now: Now,
) -> Result<List<Answer>, ErrorKind> {
    let first = run.iter().flat_map(Acquire::charges);
    let exact = run.iter().any(|caller| caller.remaining);
    let mut books = limiters
        .zip(first)
        .map(|((limiter, terms), first)| Book::open(limiter, first, terms, exact, now))
        .collect::<Result<List<_>, _>>()?;
    let each = run
        .iter()
        .flat_map(|caller| caller.charges().zip(books.iter()));
    let mut answers: List<_> = each
        .map(|(charge, book)| book.first_answer(charge))
        .collect();
    let hopeless = run.iter().map(|caller| is_hopeless(caller, &books));
    let hopeless: List<bool> = hopeless.collect();
    if hopeless.iter().all(|hopeless| *hopeless) && books.iter().all(|book| !book.has_changed()) {
        return Ok(answers);
    }
    for (place, book) in books.iter_mut().enumerate() {
        let hopeful = run.iter().zip(hopeless.iter());
        let hopeful = hopeful.filter(|(_, hopeless)| !**hopeless);
        book.begin(hopeful.filter_map(|(caller, _)| caller.charges().nth(place)));
    }

    let mut line = Line::default();
    let width = books.len();
    for (number, (caller, hopeless)) in run.iter().zip(hopeless.iter()).enumerate() {
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
    charge: &Charge,
    terms: Terms,
    exact: bool,
    now: Now,
) -> Result<Answer, ErrorKind> {
    let mut book = Book::open(limiter, charge, terms, exact, now)?;
    let mut verdict = book.first_answer(charge).verdict;
    let is_above_rate = !charge.shadow && verdict == Verdict::AboveRate;
    let hopeless = is_above_rate && !book.holds(charge);
    if hopeless && !book.has_changed() {
        return Ok(book.first_answer(charge));
    }
    book.begin((!hopeless).then_some(charge).into_iter());
    let mut needs = None;
    if hopeless {
        // The limit has changed all the same.
    } else if book.holds(charge) {
        verdict = Verdict::Granted;
    } else if is_above_rate {
        // Granted before the limit was lowered, and expired since.
    } else if book.has_room(charge) {
        book.take(charge);
    } else if book.is_possible(charge) {
        verdict = Verdict::Refused;
        needs = Some(Needs::of(i64::from(charge.permits), book.limit.rate, 0));
    }
    let closed = book.close(needs.as_mut_slice(), false);
    Ok(closed.for_caller(verdict, needs.map_or(0, |needs| needs.wait)))
}

/// Whether it asks for more than a limit ever allows, and was not granted that before the limit was
/// lowered.
fn is_hopeless(caller: &Acquire, books: &[Book<'_>]) -> bool {
    is_above_rate(caller, books) && !is_granted(caller, books)
}

fn is_above_rate(caller: &Acquire, books: &[Book<'_>]) -> bool {
    let mut each = caller.charges().zip(books);
    each.any(|(charge, book)| !charge.shadow && !book.is_possible(charge))
}

fn is_granted(caller: &Acquire, books: &[Book<'_>]) -> bool {
    let mut each = caller.charges().zip(books);
    each.any(|(charge, book)| book.holds(charge))
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
    fn serve(&mut self, caller: &Acquire, books: &mut [Book<'_>], answers_begin: usize) {
        let waits = caller.patience.is_some();
        let mut each = caller.charges().zip(books.iter());
        let fits = each.all(|(charge, book)| charge.shadow || book.has_room(charge))
            && !(self.is_closed && waits);
        for (place, (charge, book)) in caller.charges().zip(books).enumerate() {
            if fits && book.has_room(charge) {
                book.take(charge);
            } else if book.is_possible(charge) {
                let mut needs = i64::from(charge.permits);
                if waits && !charge.shadow {
                    needs += book.in_line;
                    book.in_line = needs;
                }
                self.unmet.push((place, needs, answers_begin + place));
            }
        }
        self.is_closed |= !fits && waits;
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
    limit: StoredLimit,
    /// Whether the permits left are wanted exactly.
    exact: bool,
    resendable: bool,
    /// As the call leaves the limiter up to now.
    answer: Answer,
    /// Permits of the callers that wait, up to now.
    in_line: i64,
    /// Marks entries that a repair adds.
    id: PermitId,
}

impl<'a, C: Counts + ?Sized> Book<'a, C> {
    /// Finds the limit in force; changes nothing.
    fn open(
        limiter: &'a mut C,
        first: &Charge,
        Terms {
            rewrite,
            resendable,
        }: Terms,
        exact: bool,
        now: Now,
    ) -> Result<Self, ErrorKind> {
        let (limit, changed) = limit_in_force(first.limit(), rewrite, limiter.limit())?;
        limiter.check(&limit)?;
        Ok(Self {
            limiter,
            limit,
            exact,
            resendable,
            answer: Answer::new(&limit, changed, now),
            in_line: 0,
            id: first.id,
        })
    }

    fn has_changed(&self) -> bool {
        self.answer.changed != Changed::Nothing
    }

    fn first_answer(&self, charge: &Charge) -> Answer {
        let verdict = if self.is_possible(charge) {
            Verdict::Granted
        } else {
            Verdict::AboveRate
        };
        self.answer.for_caller(verdict, 0)
    }

    /// Puts the limit in force and counts what is left, as far as these charges need to know.
    fn begin<'c>(&mut self, charges: impl Iterator<Item = &'c Charge>) {
        let wanted = charges
            .filter(|charge| self.is_possible(charge) || self.holds(charge))
            .map(|charge| i64::from(charge.permits))
            .sum();
        let Answer { changed, now, .. } = self.answer;
        self.answer.remaining = self
            .limiter
            .begin(self.limit, changed, wanted, self.exact, now, self.id);
    }

    fn is_possible(&self, charge: &Charge) -> bool {
        i64::from(charge.permits) <= self.limit.rate
    }

    fn has_room(&self, charge: &Charge) -> bool {
        self.answer.remaining >= i64::from(charge.permits)
    }

    fn holds(&self, charge: &Charge) -> bool {
        self.resendable && self.limiter.holds(charge)
    }

    fn take(&mut self, charge: &Charge) {
        let now = self.answer.now;
        let lead = now.ticks(charge.lead);
        let lead = lead.min(ahead_of(now.ticks(self.limit.interval)));
        self.limiter.note(charge, now.score() + lead);
        self.answer.remaining -= i64::from(charge.permits);
    }

    /// Stores what is left. Returns what all callers are answered, and gives `needs` their waits.
    fn close(&mut self, needs: &mut [Needs], is_of_several: bool) -> Answer {
        let Answer {
            changed, remaining, ..
        } = self.answer;
        // A caller that another limiter refuses makes nothing here.
        let is_unmade =
            is_of_several && changed == Changed::Created && self.limiter.is_unused(remaining);
        self.limiter.end(&mut self.answer, needs, self.exact);
        if is_unmade {
            self.limiter.unmake();
            self.answer.changed = Changed::Nothing;
        }
        self.answer
    }
}

#[cfg(test)]
mod tests;
