//! What the algorithms have in common: whose limit counts, and who of a run waits behind whom.

use super::{
    Answer, Changed, Verdict,
    window::{Ask, Caller},
};
use crate::{
    error::ErrorKind,
    limit::{LimitSource, StoredLimit},
    list::List,
};

/// The limit in force after `ask`, which may have written it, and what was done to the stored one.
pub(super) fn limit_in_force(
    ask: &Ask,
    limit: &mut Option<StoredLimit>,
) -> Result<(StoredLimit, Changed), ErrorKind> {
    let (given, stored) = match (ask.limit, *limit) {
        (LimitSource::Store, None) => return Err(ErrorKind::NotInitialized),
        (LimitSource::Code(given) | LimitSource::StoreOrInit(given), None) => {
            let given = given.stored();
            *limit = Some(given);
            return Ok((given, Changed::Created));
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
    *limit = Some(written);
    Ok((written, Changed::Rewritten))
}

/// The answers of a run before anything was decided: to all that more was asked for than the rate.
pub(super) fn above_rate(
    callers: &[Caller],
    limit: &StoredLimit,
    changed: Changed,
    now: i64,
) -> List<Answer> {
    let above_rate = Answer {
        verdict: Verdict::AboveRate,
        remaining: 0,
        wait: 0,
        reset: 0,
        now,
        rate: limit.rate,
        interval: limit.interval,
        changed,
        repaired: 0,
    };
    match callers {
        [_] => List::one(above_rate),
        _ => List::Many(vec![above_rate; callers.len()]),
    }
}

/// The callers of a run that wait: one that does not fit closes the line to those behind it.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    closed: bool,
    /// The permits of those that wait before.
    before: i64,
}

impl Waiting {
    pub(super) fn is_closed_to(&self, caller: &Caller) -> bool {
        self.closed && caller.waits
    }

    /// Notes a caller that does not fit. The permits that must be free for it, those of the callers that wait before it
    /// included, up to the rate; and how many further rates they are besides.
    pub(super) fn refuse(&mut self, caller: &Caller, rate: i64) -> (i64, i64) {
        let mut needs = i64::from(caller.permits);
        if caller.waits {
            needs += self.before;
            self.before = needs;
            self.closed = true;
        }
        // More than the rate is never free at once.
        let rounds = (needs - 1).div_euclid(rate);
        (needs - rounds * rate, rounds)
    }
}
