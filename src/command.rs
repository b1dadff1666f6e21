//! What the command `ratelimit` needs of this crate and no user does: it may change in any version.
//!
//! A replay decides millions of requests of a log, by many limits at once. So it keeps the states
//! of the algorithms itself, without a store: see `src/bin/ratelimit/replay/limits/pass.rs`.
//! Through a layer, a million lines would take three times the processor, and by limiters of a
//! store a third more; the goal leaves room for neither. Replays of rules do go through a layer.

use std::net::IpAddr;

use crate::{
    algorithm::{AnyLimiter, answer::Verdict},
    values::{
        charge::Charge,
        clock::Now,
        compiled_limit::{CompiledLimit, Limiter},
        error::{ConfigError, bail},
        limit::{Algorithm, Counting, Limit, LimitSource},
        name::{IPV6_PREFIX, Name, spell},
    },
};

/// A limit without a limiter: its callers keep their own states.
#[derive(Debug)]
pub struct Meter(Charge);

/// The permits of one caller that are in use.
#[derive(Debug)]
pub struct Metered(AnyLimiter);

impl Meter {
    /// Counts by this limit.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit) if the algorithm cannot
    /// count by the limit, or if that is of the calendar, of what is in flight, or of several.
    pub fn new(algorithm: Algorithm, limit: Limit) -> Result<Self, ConfigError> {
        if limit.calendar().is_some() {
            bail!(Limit: "days, weeks and months are replayed by rules alone: give it a rules file");
        }
        if limit.is_in_flight() {
            bail!(Limit: "{limit} counts what is in flight, which no log shows: replay a rate");
        }
        if limit.is_several() {
            bail!(Limit: "{limit} is several limits of one caller, which are replayed by rules \
                alone: give them a rules file by `--rules`, or each a `--limit` to compare them");
        }
        limit.check_counting("replay", algorithm, false)?;
        let counting = Counting {
            algorithm,
            ..Counting::default()
        };
        let compiled = CompiledLimit {
            counting: counting.for_limit(Some(&limit)),
            limit: LimitSource::Code(limit),
            ..CompiledLimit::with_defaults("replay", false, false)
        };
        let (name, compiled) = (Name::exact("replay")?, compiled.into());
        Ok(Self(Charge::new(Limiter { name, compiled }, 1)))
    }

    /// Returns the state of a caller that has nothing in use.
    pub fn begin(&self) -> Metered {
        let counting = self.0.compiled().counting;
        let mut limiter = AnyLimiter::new(counting.algorithm);
        limiter.state.count_by(counting);
        Metered(limiter)
    }

    /// Takes a permit at a time in microseconds since the epoch. Returns whether there is none.
    pub fn refuses(&self, metered: &mut Metered, micros: i64) -> bool {
        let answer = metered.0.acquire_one(&self.0, false, Now::at(micros));
        // The limit was checked, so there is an answer.
        answer.is_ok_and(|answer| answer.verdict == Verdict::Refused)
    }
}

/// Returns the text under which the address of a caller counts, as in
/// [`PeerIp`](crate::key::PeerIp).
pub fn caller_of(address: IpAddr) -> String {
    spell(address, IPV6_PREFIX).to_string()
}
