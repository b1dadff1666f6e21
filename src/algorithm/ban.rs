//! Strikes and bans: how often a caller was refused, and for how long it is refused for that.
//!
//! Pure, and what `lua/ban/acquire.lua` does in Redis.

use super::answer::{Answer, Changed, Verdict};
use crate::{
    clock::Now,
    demand::{Acquire, LimiterCharge},
    limit::{Ban, StoredLimit},
    list::List,
    receipt::PermitId,
};

/// The refusals and the ban of the caller of one limiter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The refusals that may still count: their time, their call and their number.
    strikes: Vec<(i64, PermitId, u32)>,
    ban: Option<Sentence>,
}

/// A ban, until its level is forgotten. All but the level are ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sentence {
    until: i64,
    /// The number of bans in a row that refusals have caused.
    level: u32,
    forgotten: i64,
    /// When the refused call has room; not before the ban ends.
    room: i64,
}

impl Record {
    /// Returns the ticks until the ban in force ends, and those until it is worth asking again.
    pub(crate) fn in_force(&self, now: Now) -> Option<[i64; 2]> {
        let ban = self.ban.filter(|ban| ban.until > now.tick)?;
        Some([ban.until, ban.room].map(|tick| tick - now.tick))
    }

    /// Returns the tick from which on nothing is known any more, by terms that count refusals for
    /// so many ticks.
    pub(crate) fn forgotten_at(&self, within: i64) -> Option<i64> {
        let last = self
            .strikes
            .iter()
            .map(|(at, ..)| at.saturating_add(within));
        let ban = self.ban.map(|ban| ban.forgotten);
        last.chain(ban).max()
    }

    /// Returns how many refusals count.
    pub(crate) fn strikes(&self, ban: &Ban, now: Now) -> u32 {
        let [within, ..] = ban.millis();
        let from = now.tick.saturating_sub(now.ticks(within));
        let counted = self.strikes.iter().filter(|(at, ..)| *at > from);
        counted.fold(0, |sum, (_, _, number)| sum.saturating_add(*number))
    }

    /// Adds refusals of this call, once, which were at a tick. Returns whether they ban its caller.
    /// It has room after `wait` ticks.
    pub(crate) fn strike(
        &mut self,
        ban: &Ban,
        (id, number, at): (PermitId, u32, i64),
        wait: i64,
        now: Now,
    ) -> bool {
        let [within, lasting, longest] = ban.millis().map(|millis| now.ticks(millis));
        self.strikes
            .retain(|(at, ..)| *at > now.tick.saturating_sub(within));
        if self.strikes.iter().any(|(_, of, _)| *of == id) {
            return false;
        }
        self.strikes.push((at, id, number));
        if self.strikes(ban, now) < ban.after {
            return false;
        }
        let level = self.level(now);
        let doubled = 2_i64.checked_pow(level).unwrap_or(i64::MAX);
        let lasts = lasting.saturating_mul(doubled).min(longest);
        self.set(lasts, level.saturating_add(1), wait, now);
        true
    }

    /// Takes back the refusal of a call that is granted after all.
    pub(crate) fn forgive(&mut self, id: PermitId) {
        self.strikes.retain(|(_, of, _)| *of != id);
    }

    /// Bans for so many ticks, whatever was before.
    pub(crate) fn ban_for(&mut self, ticks: i64, now: Now) {
        self.set(ticks, self.level(now), 0, now);
    }

    fn level(&self, now: Now) -> u32 {
        let known = self.ban.filter(|ban| ban.forgotten > now.tick);
        known.map_or(0, |ban| ban.level)
    }

    fn set(&mut self, lasts: i64, level: u32, wait: i64, now: Now) {
        let until = now.score().saturating_add(lasts);
        self.strikes.clear();
        self.ban = Some(Sentence {
            until,
            level,
            forgotten: until.saturating_add(lasts),
            room: until.max(now.tick.saturating_add(wait)),
        });
    }
}

impl Answer {
    /// Returns the answer of one of several limiters that count nothing, as one of them bans the
    /// caller: this one, if there are ticks until it may come back.
    pub(crate) fn of_banned(limit: Option<StoredLimit>, back: Option<i64>, now: Now) -> Self {
        let mut answer = Self::new(&limit.unwrap_or_default(), Changed::Nothing, now);
        back.into_iter().for_each(|back| answer.ban(back));
        answer
    }

    /// Makes it that of a limiter that bans the caller, which may come back after so many ticks.
    pub(crate) fn ban(&mut self, wait: i64) {
        self.banned = true;
        self.wait = self.wait.max(wait);
    }
}

/// Returns whether a ban is in force that refuses the callers: then nothing of the list is counted.
/// There are terms and a record for each limiter.
pub(crate) fn is_banned(
    first: &Acquire,
    terms: &[Option<Ban>],
    records: &[Record],
    now: Now,
) -> bool {
    let mut each = first.charges().zip(terms.iter().zip(records));
    each.any(|(charge, (ban, record))| {
        ban.is_some() && !charge.shadow && record.in_force(now).is_some()
    })
}

/// Returns the answers to all callers while a ban is in force, by the limits that are known.
pub(crate) fn refuse(
    run: &[Acquire],
    terms: &[Option<Ban>],
    records: &[Record],
    limits: &[Option<StoredLimit>],
    now: Now,
) -> List<Answer> {
    let each = terms.iter().zip(records).zip(limits);
    let answers: List<_> = each
        .map(|((ban, record), limit)| {
            let back = ban.and_then(|_| record.in_force(now)).map(|[_, back]| back);
            Answer::of_banned(*limit, back, now)
        })
        .collect();
    let all = answers.iter().cycle().take(answers.len() * run.len());
    all.copied().collect()
}

/// Adds to the answers of the limits what bans change, and to the records what the answers do. The
/// answers are those of [`acquire`](super::call::acquire).
pub(crate) fn judge(
    run: &[Acquire],
    terms: &[Option<Ban>],
    records: &mut [Record],
    answers: &mut [Answer],
    now: Now,
) {
    let each = || terms.iter().zip(records.iter());
    // Those that are in force: for all callers.
    let mut waits: List<_> = each()
        .map(|(ban, record)| ban.and_then(|_| Some(record.in_force(now)?[1])))
        .collect();
    for (caller, answers) in run.iter().zip(answers.chunks_mut(terms.len())) {
        let outcome = Outcome::of(caller, answers);
        let each = caller.charges().zip(answers).zip(records.iter_mut());
        for (((charge, answer), record), (ban, wait)) in each.zip(terms.iter().zip(&mut waits)) {
            let Some(ban) = ban else {
                continue;
            };
            if wait.is_none() && answer.verdict == Verdict::Granted {
                record.forgive(charge.id);
            } else if wait.is_none() && outcome.strikes(caller, charge, answer) {
                let strike = (charge.id, 1, now.tick);
                if record.strike(ban, strike, outcome.wait, now) {
                    *wait = record.in_force(now).map(|[_, back]| back);
                }
            }
            if let Some(wait) = *wait
                && (charge.shadow || !outcome.is_granted)
            {
                answer.ban(wait);
            }
        }
    }
}

/// The answer of all limits together to one caller.
struct Outcome {
    is_granted: bool,
    is_above_rate: bool,
    /// The longest wait, in ticks.
    wait: i64,
}

impl Outcome {
    fn of(caller: &Acquire, answers: &[Answer]) -> Self {
        let enforced = || {
            let each = caller.charges().zip(answers);
            each.filter_map(|(charge, answer)| (!charge.shadow).then_some(answer))
        };
        Self {
            is_granted: enforced().all(|answer| answer.verdict == Verdict::Granted),
            is_above_rate: enforced().any(|answer| answer.verdict == Verdict::AboveRate),
            wait: enforced().map(|answer| answer.wait).max().unwrap_or(0),
        }
    }

    /// Returns whether a limit without room refuses the caller for good: one that waits asks again.
    fn strikes(&self, caller: &Acquire, charge: &LimiterCharge, answer: &Answer) -> bool {
        let is_last = caller.max_wait.is_none() || charge.shadow && self.is_granted;
        answer.verdict == Verdict::Refused && !self.is_above_rate && is_last
    }
}

#[cfg(all(test, inside))]
impl Record {
    /// Returns what Redis has of it: the members of the log, each with its score, and the ban.
    pub(crate) fn keys(&self, within: i64, now: Now) -> (Vec<(Vec<u8>, i64)>, Option<String>) {
        let live = self
            .strikes
            .iter()
            .filter(|(at, ..)| *at > now.tick - within);
        let mut members: Vec<_> = live
            .map(|(at, id, number)| ([&id.0[..], &number.to_le_bytes()].concat(), *at))
            .collect();
        members.sort_by_key(|(member, at)| (*at, member.clone()));
        let ban = self.ban.map(|ban| {
            let Sentence {
                until,
                level,
                forgotten,
                room,
            } = ban;
            format!("{until} {level} {forgotten} {room}")
        });
        (members, ban)
    }
}
