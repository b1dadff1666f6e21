//! The nodes of Redis: the pure algorithms, one call after the other, each for its time.

use std::{collections::HashMap, iter, slice};

use super::{Broken, MILLI, Scenario, cost};
use crate::{
    algorithm::{AnyLimiter, answer::Answer, answer::Verdict, call},
    values::{
        charge::{Charge, PermitId},
        clock::Now,
        compiled_limit::Limiter,
        decision::Decision,
        demand::Demand,
        limit::Algorithm,
        name::Name,
    },
};

/// One Redis.
#[derive(Default)]
pub(super) struct Node {
    limiters: HashMap<u32, AnyLimiter, crate::values::name::BuildSpread>,
    /// When it has done all that has arrived.
    free_at: u64,
    pub(super) busy: u64,
    pub(super) commands: u64,
    /// What it granted, and no caller has received yet.
    pub(super) granted: HashMap<PermitId, u64>,
    last_grant: Option<(u32, Decision)>,
    grants: u64,
}

impl Node {
    /// Has the node busy for a command that arrives at `at`. Returns the time when it begins.
    fn works(&mut self, at: u64, cost: u64) -> u64 {
        let begins = at.max(self.free_at);
        self.free_at = begins + cost;
        self.busy += cost;
        begins
    }

    /// Returns when all that has arrived is done.
    pub(super) fn free_at(&self) -> u64 {
        self.free_at
    }

    pub(super) fn limiters(&self) -> usize {
        self.limiters.len()
    }

    /// Returns how many entries count at the end.
    pub(super) fn entries(&self, end: u64, scenario: &Scenario) -> usize {
        let since = (end / MILLI) as i64 - scenario.interval.as_millis() as i64;
        let logs = self.limiters.values().filter_map(|limiter| match limiter {
            AnyLimiter::Log(limiter) => Some(limiter.state.log.entries()),
            _ => None,
        });
        logs.flatten().filter(|entry| entry.score > since).count()
    }

    /// Decides for the callers of each call of a command.
    pub(super) fn decide(
        &mut self,
        scenario: &Scenario,
        at: u64,
        calls: &[Vec<Demand>],
    ) -> Vec<Vec<Decision>> {
        let begins = self.works(at, cost::of(calls));
        self.commands += 1;
        let decided = calls
            .iter()
            .map(|run| self.decide_one(scenario, begins, run));
        decided.collect()
    }

    fn decide_one(&mut self, scenario: &Scenario, at: u64, run: &[Demand]) -> Vec<Decision> {
        let first = &run[0].first().limiter;
        let now = now_of(first, at);
        let limiter = self.limiter(first);
        let stripped;
        let mut run = run;
        if scenario.broken == Some(Broken::Lease) {
            stripped = run.iter().cloned().map(without_lead).collect::<Vec<_>>();
            run = &stripped;
        }
        let answers: Vec<Answer> = match run {
            [alone] => {
                let exact = alone.wants_remaining;
                let answer = limiter.acquire_one(alone.first(), exact, now);
                vec![answer.expect("a limit")]
            }
            _ => {
                let limiters = iter::once(&mut **limiter);
                call::acquire(limiters, run, now)
                    .expect("a limit")
                    .into_iter()
                    .collect()
            }
        };
        let answered = run.iter().zip(&answers);
        answered
            .map(|(demand, answer)| self.answer(scenario, at, demand, answer, now))
            .collect()
    }

    fn answer(
        &mut self,
        scenario: &Scenario,
        at: u64,
        demand: &Demand,
        answer: &Answer,
        now: Now,
    ) -> Decision {
        let (key, charge) = (key_of(demand.first().name()), demand.first());
        let decision = demand.decision(slice::from_ref(answer));
        if answer.verdict != Verdict::Granted {
            return match (scenario.broken, &self.last_grant) {
                (Some(Broken::Reply), Some((of, grant)))
                    if *of == key && self.grants.is_multiple_of(50) =>
                {
                    grant.clone()
                }
                _ => decision,
            };
        }
        self.grants += 1;
        if charge.lead == 0 {
            self.granted.insert(charge.id, at / MILLI);
        }
        match scenario.broken {
            Some(Broken::Store) if self.grants.is_multiple_of(100) => {
                let receipt = charge.to_send();
                let limiter = self.limiter(&charge.limiter);
                let _ = limiter.settle(&receipt, None, 0, now);
            }
            Some(Broken::Reply) => self.last_grant = Some((key, decision.clone())),
            _ => {}
        }
        decision
    }

    pub(super) fn settle(&mut self, at: u64, receipt: &Charge, keep: u32) {
        let begins = self.works(at, cost::SETTLE);
        self.commands += 1;
        let now = now_of(&receipt.limiter, begins);
        let taken = receipt.claim_mark();
        let limiter = self.limiter(&receipt.limiter);
        // A limiter without a limit has nothing to settle.
        let _ = limiter.settle(receipt, taken, keep, now);
    }

    fn limiter(&mut self, of: &Limiter) -> &mut AnyLimiter {
        let counting = of.compiled.counting;
        let limiter = self
            .limiters
            .entry(key_of(&of.name))
            .or_insert_with(|| AnyLimiter::new(counting.algorithm));
        limiter.state.count_by(counting);
        limiter
    }
}

fn without_lead(mut demand: Demand) -> Demand {
    demand.charges[0].lead = 0;
    demand
}

/// Logs count milliseconds, GCRA microseconds.
fn now_of(limiter: &Limiter, at: u64) -> Now {
    match limiter.compiled.counting.algorithm {
        Algorithm::Gcra => Now::at((at / 1000) as i64),
        _ => Now::millis((at / MILLI) as i64),
    }
}

/// Returns the number of the key that a name was made of.
pub(super) fn key_of(name: &Name) -> u32 {
    let digits = name.as_str().bytes().filter(u8::is_ascii_digit);
    digits.fold(0, |key, digit| key * 10 + u32::from(digit - b'0'))
}
