//! The plainest store of one's own there is: it keeps each grant until it expires. The laws hold,
//! says the program, which checks them in a hundred random histories:
//! `cargo run --example backend --features test-util,unstable-store`.

use std::{collections::HashMap, sync::Mutex, time::Duration};
use tower_ratelimit::{
    Clock, Error, ErrorKind, Limit, ManualClock,
    backend::{Answer, Backend, BackendStore, Demand, LimitFrom, Outcome, Settlement, Verb, laws},
};

#[derive(Debug)]
struct Plain {
    clock: ManualClock,
    limiters: Mutex<HashMap<String, Log>>,
}

#[derive(Clone, Debug)]
struct Log {
    limit: Limit,
    /// When, by which demand, and how many; the oldest first.
    grants: Vec<(Duration, [u8; 16], u64)>,
}

impl Log {
    fn free(&self) -> u64 {
        let used = self.grants.iter().map(|(.., permits)| permits).sum();
        self.limit.permits().saturating_sub(used)
    }

    /// Returns the time until as many are free.
    fn wait(&self, permits: u64, now: Duration) -> Duration {
        let ends = self
            .grants
            .iter()
            .map(|(at, ..)| *at + self.limit.interval() - now);
        let left = |end: &Duration| {
            let mut log = self.clone();
            log.forget(now + *end);
            log.free() >= permits
        };
        ends.filter(left).min().unwrap_or_default()
    }

    fn forget(&mut self, now: Duration) {
        self.grants
            .retain(|(at, ..)| *at + self.limit.interval() > now);
    }
}

impl Backend for Plain {
    async fn acquire(&self, demand: Demand<'_>) -> Result<Vec<Answer>, Error> {
        let (now, mut all) = (self.clock.now(), self.limiters.lock().unwrap());
        let mut logs = Vec::new();
        for charge in demand.charges() {
            let stored = all.get(charge.name()).cloned();
            let mut log = match (charge.limit(), stored) {
                (LimitFrom::Stored, None) => return Err(ErrorKind::NotInitialized.into()),
                (LimitFrom::Given(limit) | LimitFrom::StoredOr(limit), None) => Log {
                    limit,
                    grants: Vec::new(),
                },
                (LimitFrom::Given(limit), Some(log)) => Log { limit, ..log },
                (_, Some(log)) => log,
            };
            log.forget(now);
            logs.push(log);
        }
        let fits = |(charge, log): (_, &Log)| demand.fits(charge, log.free());
        let granted = demand.charges().zip(&logs).all(fits);
        let mut answers = Vec::new();
        for (charge, mut log) in demand.charges().zip(logs) {
            let permits = charge.permits().into();
            let room = log.free() >= permits;
            let wait = (!room).then(|| log.wait(permits, now));
            if granted && room {
                log.grants.push((now, demand.id(), permits));
            }
            answers.push(Answer {
                limit: log.limit,
                remaining: log.free(),
                wait,
                next: log.wait(log.free() + 1, now),
                reset: log.wait(log.limit.permits(), now),
                changed: all.get(charge.name()).map(|log| log.limit) != Some(log.limit),
            });
            all.insert(charge.name().to_owned(), log);
        }
        Ok(answers)
    }

    async fn settle(&self, settled: Settlement<'_>) -> Result<(), Error> {
        let now = self.clock.now();
        if let Some(log) = self.limiters.lock().unwrap().get_mut(settled.name()) {
            if settled.more() > 0 {
                log.grants
                    .push((now, settled.id_of_more(), settled.more().into()));
            }
            for (_, id, permits) in &mut log.grants {
                if *id == settled.id() {
                    *permits = (*permits).min(settled.keep().into());
                }
            }
        }
        Ok(())
    }

    async fn manage(&self, name: &str, verb: &Verb) -> Result<Outcome, Error> {
        let (now, mut all) = (self.clock.now(), self.limiters.lock().unwrap());
        let log = all.get_mut(name);
        Ok(match (*verb, log) {
            (Verb::TrySetRate(_), Some(_)) => Outcome::Changed(false),
            (Verb::TrySetRate(limit), None)
            | (
                Verb::SetRate {
                    limit,
                    existing: false,
                    ..
                },
                None,
            ) => {
                all.insert(
                    name.to_owned(),
                    Log {
                        limit,
                        grants: Vec::new(),
                    },
                );
                Outcome::Changed(true)
            }
            (Verb::SetRate { limit, keep, .. }, Some(log)) => {
                log.limit = limit;
                log.grants.retain(|_| keep);
                Outcome::Changed(true)
            }
            (Verb::Available, Some(log)) => {
                log.forget(now);
                Outcome::Permits(log.free())
            }
            (Verb::Limit, log) => Outcome::Limit(log.map(|log| log.limit)),
            (Verb::Delete, _) => Outcome::Changed(all.remove(name).is_some()),
            (Verb::SetRate { .. }, None) => Outcome::Changed(false),
            (_, None) => return Err(ErrorKind::NotInitialized.into()),
            _ => return Err(ErrorKind::Rejected.into()),
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let clock = ManualClock::new();
    let plain = Plain {
        clock: clock.clone(),
        limiters: Mutex::default(),
    };
    let store = BackendStore::new(plain).clock(clock.clone());
    laws::check(&store, &clock, 7, 100).await;
}
