//! Bans: counts the refusals of a caller (strikes), and refuses it for a time after too many.
//!
//! Pure state. `lua/packed/ban.lua` does the same in Redis.

use super::answer::{Answer, Changed, Verdict};
use super::bytes::bytes;
use crate::values::{
    List,
    charge::{Charge, PermitId},
    clock::Now,
    demand::Demand,
    limit::{Ban, StoredLimit},
};

/// The refusals and the ban of the caller of one limiter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The refusals that may still count: the time, the id of the call and the number of each.
    strikes: Vec<(i64, PermitId, u32)>,
    ban: Option<StoredBan>,
}

bytes!(Record { strikes, ban });

/// A ban, kept until its level is forgotten. All fields except the level are ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredBan {
    until: i64,
    /// The number of bans in a row that refusals have caused: each doubles the next.
    level: u32,
    forgotten: i64,
    /// When the limit will have room for the refused call; not before the ban ends.
    room: i64,
}

bytes!(StoredBan {
    until,
    level,
    forgotten,
    room
});

impl Record {
    /// Sets back what the store's own clock wrote before it was set back: a ban lasts no longer
    /// than itself, and a refusal was no later than now. A caller's clock proves nothing.
    pub(crate) fn set_back(&mut self, now: Now) {
        if now.is_by_caller {
            return;
        }
        for (at, ..) in &mut self.strikes {
            *at = (*at).min(now.tick);
        }
        if let Some(ban) = &mut self.ban {
            // Its level is known for as long again as it lasts, unless that is for ever.
            let lasts = ban.forgotten.saturating_sub(ban.until);
            let late = ban.until.saturating_sub(now.score()).saturating_sub(lasts);
            if late > 0 && ban.forgotten < i64::MAX {
                // A file may say anything.
                for tick in [&mut ban.until, &mut ban.forgotten, &mut ban.room] {
                    *tick = tick.saturating_sub(late);
                }
            }
        }
    }

    /// Returns the ticks until the ban in force ends, and those until it is worth asking again.
    pub(crate) fn in_force(&self, now: Now) -> Option<[i64; 2]> {
        let ban = self.ban.filter(|ban| ban.until > now.tick)?;
        Some([ban.until, ban.room].map(|tick| tick - now.tick))
    }

    /// Returns the tick from which the record says nothing any more, if refusals count for `within`
    /// ticks.
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

    /// Adds `number` refusals of the call `id` at the tick `at`, unless that call was added before.
    /// Returns whether they ban its caller, for which the limit has room after `wait` ticks.
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

    /// Removes the refusal of a call that is granted after all.
    pub(crate) fn forgive(&mut self, id: PermitId) {
        self.strikes.retain(|(_, of, _)| *of != id);
    }

    /// Bans for `ticks`, in place of any ban in force.
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
        self.ban = Some(StoredBan {
            until,
            level,
            forgotten: until.saturating_add(lasts),
            room: until.max(now.tick.saturating_add(wait)),
        });
    }
}

impl Answer {
    /// Returns the answer of a limiter in a call that counts nothing because a ban is in force. It
    /// is this limiter's ban if `back` has the ticks until the caller may come back.
    pub(crate) fn of_banned(limit: Option<StoredLimit>, back: Option<i64>, now: Now) -> Self {
        let mut answer = Self::new(&limit.unwrap_or_default(), Changed::Nothing, now);
        back.into_iter().for_each(|back| answer.ban(back));
        answer
    }

    /// Marks the answer as a ban of its caller, which may come back after `wait` ticks.
    pub(crate) fn ban(&mut self, wait: i64) {
        self.banned = true;
        self.wait = self.wait.max(wait);
    }
}

/// Returns whether a ban in force refuses the callers, so that no limiter of the list counts.
/// `terms` and `records` have an element for each limiter.
pub(crate) fn is_banned(
    first: &Demand,
    terms: &[Option<Ban>],
    records: &[Record],
    now: Now,
) -> bool {
    let mut each = first.charges().zip(terms.iter().zip(records));
    each.any(|(charge, (ban, record))| {
        ban.is_some() && !charge.shadow && record.in_force(now).is_some()
    })
}

/// Returns the answers to all callers while a ban is in force.
pub(crate) fn refuse(
    run: &[Demand],
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
    all.cloned().collect()
}

/// Records the refusals among `answers`, bans the callers that had too many, and marks the answers
/// that a ban changes. The answers are those of [`acquire`](super::call::acquire).
pub(crate) fn judge(
    run: &[Demand],
    terms: &[Option<Ban>],
    records: &mut [Record],
    answers: &mut [Answer],
    now: Now,
) {
    let each = || terms.iter().zip(records.iter());
    // The bans in force, which are the same for all callers.
    let mut waits: List<_> = each()
        .map(|(ban, record)| ban.and_then(|_| Some(record.in_force(now)?[1])))
        .collect();
    for (caller, answers) in run.iter().zip(answers.chunks_mut(terms.len())) {
        let outcome = JoinedAnswer::of(caller, answers);
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

/// The answers of all enforced limits to one caller, joined.
pub(crate) struct JoinedAnswer {
    pub(crate) is_granted: bool,
    is_above_rate: bool,
    /// The longest wait, in ticks.
    pub(crate) wait: i64,
}

impl JoinedAnswer {
    pub(crate) fn of(caller: &Demand, answers: &[Answer]) -> Self {
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

    /// Returns whether this answer is a refusal that counts. A caller that waits is asked for
    /// again, so only its last refusal counts.
    pub(crate) fn strikes(&self, caller: &Demand, charge: &Charge, answer: &Answer) -> bool {
        let is_last = caller.max_wait.is_none() || charge.shadow && self.is_granted;
        answer.verdict == Verdict::Refused && !self.is_above_rate && is_last
    }
}
