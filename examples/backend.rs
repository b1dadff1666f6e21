//! The plainest store of one's own there is: it keeps each grant until it expires. The laws hold,
//! says the program, which checks them in a hundred random histories:
//! `cargo run --example backend --features test-util,unstable-store`.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tower_ratelimit::{
    Clock, Error, ErrorKind, Limit, ManualClock,
    backend::{
        Answer, Backend, BackendStore, Demand, LimitSource, Name, Op, OpResult, Settings, Settle,
        laws,
    },
};

/// Limiters in this process.
#[derive(Debug)]
pub struct Plain {
    /// The current time.
    pub clock: ManualClock,
    /// The limiters by their names.
    pub limiters: Mutex<HashMap<String, Log>>,
}

impl Plain {
    fn limiters(&self) -> MutexGuard<'_, HashMap<String, Log>> {
        self.limiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One limiter.
#[derive(Clone, Debug)]
pub struct Log {
    /// The stored limit.
    pub limit: Limit,
    /// When, by which demand, and how many; the oldest first.
    pub grants: Vec<(Duration, [u8; 16], u64)>,
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
    async fn acquire(&self, demand: &Demand) -> Result<Vec<Answer>, Error> {
        let (now, mut all) = (self.clock.now(), self.limiters());
        let (mut logs, mut granted) = (Vec::new(), true);
        for charge in demand.charges() {
            let new = |limit| Log {
                limit,
                grants: Vec::new(),
            };
            let stored = all.get(charge.name().as_str()).cloned();
            let mut log = match (charge.limit(), stored) {
                (LimitSource::Code(limit), Some(log)) => Log { limit, ..log },
                (_, Some(log)) => log,
                (LimitSource::Code(limit) | LimitSource::StoreOrInit(limit), None) => new(limit),
                (LimitSource::Store, None) => return Err(ErrorKind::NotInitialized.into()),
            };
            log.forget(now);
            granted &= charge.is_shadow() || log.free() >= charge.permits().into();
            logs.push(log);
        }
        let mut answers = Vec::new();
        for (charge, mut log) in demand.charges().zip(logs) {
            let permits = charge.permits().into();
            let has_room = log.free() >= permits;
            let wait = (!has_room).then(|| log.wait(permits, now));
            if granted && has_room {
                log.grants.push((now, demand.id(), permits));
            }
            let (name, limit) = (charge.name().as_str(), log.limit);
            answers.push(Answer {
                limit,
                remaining: log.free(),
                wait,
                next: log.wait(log.free() + 1, now),
                reset: log.wait(limit.permits(), now),
                changed: all.get(name).is_none_or(|log| log.limit != limit),
            });
            all.insert(name.to_owned(), log);
        }
        Ok(answers)
    }

    async fn settle(&self, name: &Name, settle: Settle) -> Result<(), Error> {
        let (now, mut all) = (self.clock.now(), self.limiters());
        let log = all.get_mut(name.as_str());
        match (settle, log) {
            (Settle::Charge(id, more), Some(log)) => log.grants.push((now, id, more.into())),
            (Settle::Keep(id, keep), Some(log)) => {
                let grant = log.grants.iter_mut().find(|(_, of, _)| *of == id);
                if let Some((.., permits)) = grant {
                    *permits = keep.into();
                }
            }
            (_, None) => {}
        }
        Ok(())
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<OpResult, Error> {
        let (now, mut all) = (self.clock.now(), self.limiters());
        let name = name.as_str();
        Ok(match (op, all.get_mut(name)) {
            (Op::TrySetRate(_), Some(_)) | (Op::SetRate { existing: true, .. }, None) => {
                OpResult::Changed(false)
            }
            (Op::TrySetRate(limit) | Op::SetRate { limit, .. }, log) => {
                let limit = limit.limit().ok_or(ErrorKind::Limit)?;
                let keeps = matches!(op, Op::SetRate { keep: true, .. });
                let grants = log.filter(|_| keeps).map(|log| log.grants.clone());
                let grants = grants.unwrap_or_default();
                all.insert(name.to_owned(), Log { limit, grants });
                OpResult::Changed(true)
            }
            (Op::Available, Some(log)) => {
                log.forget(now);
                OpResult::Number(log.free() as i64)
            }
            (Op::Inspect, log) => OpResult::Limit(log.map(|log| log.limit.into())),
            (Op::Delete, _) => OpResult::Changed(all.remove(name).is_some()),
            (_, None) => return Err(ErrorKind::NotInitialized.into()),
            // What it does not have: `release`, `expire`, `rename` and `repair`.
            (_, Some(_)) => return Err(ErrorKind::Rejected.into()),
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    let clock = ManualClock::new();
    let plain = Plain {
        clock: clock.clone(),
        limiters: Mutex::default(),
    };
    let settings = Settings {
        // Without it, the backend counts by its server's clock.
        clock: Some(Arc::new(clock.clone())),
        ..Settings::default()
    };
    let store = BackendStore::new(plain, settings)?;
    laws::check(&store, &clock, 7, 100).await;
    println!("100 histories, and no law is broken");
    Ok(())
}
