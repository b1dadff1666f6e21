//! One call: who of its callers gets what they ask of one limiter, or of several.
//!
//! Pure, and what `lua/acquire_list.lua` does in Redis. How a limiter counts is said in a file of its own: `window.rs`.

use super::{
    Answer, Changed, Verdict,
    window::{Limiter, ahead_of},
};
use crate::{
    decision::PermitId,
    error::ErrorKind,
    limit::{LimitSource, StoredLimit},
    list::List,
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
    /// Whether all entries are scored by this clock, so that a score far ahead of it is wrong.
    pub(crate) own_clock: bool,
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
}

/// Takes permits for each caller, in the order in which they came, or tells when they will be free.
///
/// Each caller is granted whole, by all limiters, or not at all. One that waits and does not fit closes the line to those
/// behind it; one that does not wait takes what is left. There is one answer for each caller and limiter, those of the first
/// caller first, as they were left by the whole call. An error has changed nothing.
pub(crate) fn acquire<'a>(
    limiters: impl Iterator<Item = (&'a mut Limiter, Ask)>,
    callers: &[Caller],
    now: i64,
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
        let mut takes = books.iter().zip(caller.takes.iter());
        let fits = takes.all(|(book, take)| take.shadow || book.has_room(take))
            && !(closed && caller.waits);
        for ((place, book), take) in books.iter_mut().enumerate().zip(caller.takes.iter()) {
            let answer = answers_begin + place;
            if fits && book.has_room(take) {
                book.take(take, now);
            } else if book.is_possible(take) {
                book.refuse(take, caller.waits && !take.shadow, answer, &mut answers);
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

/// Whether more is asked for than a limit ever allows.
fn is_hopeless(caller: &Caller, books: &[Book<'_>]) -> bool {
    let mut takes = books.iter().zip(caller.takes.iter());
    takes.any(|(book, take)| !take.shadow && !book.is_possible(take))
        // More than the rate only if it was granted before the limit was lowered.
        && !is_granted(caller, books)
}

fn is_granted(caller: &Caller, books: &[Book<'_>]) -> bool {
    let mut takes = books.iter().zip(caller.takes.iter());
    takes.any(|(book, take)| book.holds(take))
}

/// One limiter in the midst of a call.
struct Book<'a> {
    limiter: &'a mut Limiter,
    ask: Ask,
    limit: StoredLimit,
    changed: Changed,
    /// Permits left.
    value: i64,
    /// Permits of the callers that wait, up to now.
    in_line: i64,
    refused: Vec<Refused>,
}

/// A caller that does not fit, or that must wait for another limiter.
struct Refused {
    /// The place of its answer.
    answer: usize,
    /// The permits that must be free for it, those of the callers that wait before it included, up to the rate.
    needs: i64,
    /// How much later than that its turn is, where they are more than the rate.
    later: i64,
}

impl<'a> Book<'a> {
    /// Finds the limit in force; changes nothing.
    fn open(limiter: &'a mut Limiter, ask: Ask) -> Result<Self, ErrorKind> {
        let (limit, changed) = limiter.limit_for(&ask)?;
        Ok(Self {
            limiter,
            ask,
            limit,
            changed,
            value: 0,
            in_line: 0,
            refused: Vec::new(),
        })
    }

    fn first_answer(&self, take: &Take, now: i64) -> Answer {
        Answer {
            verdict: if self.is_possible(take) {
                Verdict::Granted
            } else {
                Verdict::AboveRate
            },
            remaining: 0,
            wait: 0,
            reset: 0,
            now,
            rate: self.limit.rate,
            interval: self.limit.interval,
            changed: self.changed,
            repaired: 0,
        }
    }

    /// Puts the limit in force and counts what is left, as far as the callers need to know.
    fn begin<'t>(&mut self, takes: impl Iterator<Item = &'t Take>, first: Option<&Take>, now: i64) {
        let wanted = takes
            .filter(|take| self.is_possible(take) || self.holds(take))
            .map(|take| i64::from(take.permits))
            .sum();
        self.limiter.put_in_force(self.limit, self.changed);
        let id = first.map_or(PermitId([0; 16]), |take| take.id);
        self.value = self.limiter.count(wanted, self.ask.exact, now, id);
    }

    fn is_possible(&self, take: &Take) -> bool {
        i64::from(take.permits) <= self.limit.rate
    }

    fn has_room(&self, take: &Take) -> bool {
        self.value >= i64::from(take.permits)
    }

    fn holds(&self, take: &Take) -> bool {
        self.ask.resendable && self.limiter.log.holds(take.id, take.permits)
    }

    fn take(&mut self, take: &Take, now: i64) {
        self.limiter.log.note(take.id, take.permits, now);
        self.value -= i64::from(take.permits);
    }

    /// Notes a caller that is not granted. It need not be this limiter that has no room for it.
    fn refuse(&mut self, take: &Take, waits: bool, answer: usize, answers: &mut [Answer]) {
        let mut needs = i64::from(take.permits);
        if waits {
            needs += self.in_line;
            self.in_line = needs;
        }
        if needs <= self.value {
            return;
        }
        answers[answer].verdict = Verdict::Refused;
        // More than the rate is never free at once: each further rate follows an interval later.
        let rounds = (needs - 1).div_euclid(self.limit.rate);
        self.refused.push(Refused {
            answer,
            needs: needs - rounds * self.limit.rate,
            later: rounds * self.limit.interval,
        });
    }

    /// Tells the callers what is left, and those that were refused when there is room: after all grants.
    ///
    /// `answers` are those of all limiters; this one's is the one at `place` of each caller.
    fn close(&mut self, now: i64, place: usize, limiters: usize, answers: &mut [Answer]) {
        let interval = self.limit.interval;
        let log = &mut self.limiter.log;
        let mut newest = log.newest();
        let mut repaired = 0;
        if !self.refused.is_empty() {
            self.refused.sort_by_key(|caller| caller.needs);
            let latest = if self.ask.own_clock {
                now + ahead_of(interval)
            } else {
                i64::MAX
            };
            // What is left is free now.
            let needs = self.refused.iter().map(|caller| caller.needs - self.value);
            let (due, set_back) = log.due(needs, latest, now - interval);
            repaired = set_back;
            for (caller, due) in self.refused.iter().zip(due.iter()) {
                answers[caller.answer].wait = due + interval - now + caller.later;
            }
            newest = newest.map(|newest| newest.min(latest));
        }
        self.limiter.value = Some(self.value);
        for answer in answers.iter_mut().skip(place).step_by(limiters) {
            answer.remaining = self.value;
            answer.reset = newest.map_or(0, |newest| newest + interval - now);
            answer.repaired = repaired;
        }
    }
}
