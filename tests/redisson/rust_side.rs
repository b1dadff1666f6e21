//! A step as the Rust side does it, through the public API.

use std::{collections::HashMap, time::Duration};

use redis::{RedisError, Value};
use tokio::runtime::Runtime;
use tower_ratelimit::{
    Decision, Error, ErrorKind, ExpireWhen, Grant, Limit, RateLimiter, RedisStore, RefusalKind,
    TimeToLive, testing::ManualClock,
};

use super::{
    case::{Case, Op, Step},
    model::{self, Condition, Reply},
};
use kit::scene::{patient, runtime};

/// One Rust process, as Redis sees it.
pub struct RustSide {
    runtime: Runtime,
    clock: ManualClock,
    store: RedisStore,
    limiters: HashMap<String, RateLimiter>,
    /// Of the last grant
    grant: Option<Grant>,
}

impl RustSide {
    pub fn new(url: &str, client: &str) -> Self {
        let clock = ManualClock::new();
        let store = patient(url).client_id(client).client_clock(clock.clone());
        // Every refusal is to be the script's.
        let store = store.deny_cache(Duration::ZERO).build().unwrap();
        Self {
            runtime: runtime(),
            clock,
            store,
            limiters: HashMap::new(),
            grant: None,
        }
    }

    pub fn perform(&mut self, case: &Case, names: &[String; 2], step: &Step, now: i64) -> Reply {
        self.clock.set(Duration::from_millis(now as u64));
        let (on, op) = (step.on, &step.op);
        let limiter = self
            .limiters
            .entry(names[on].clone())
            .or_insert_with(|| RateLimiter::new(&self.store, &names[on]).unwrap())
            .clone();
        let limiter = match case.slots {
            Some(slots) => limiter.slots(slots).unwrap(),
            None => limiter,
        };
        let reply = self.runtime.block_on(async {
            let reply = perform(&limiter, &names[1 - on], op, &mut self.grant).await;
            if matches!(op, Op::Settle(_)) {
                // What is settled is sent in the background.
                self.store.close().await;
            }
            reply
        });
        // Names are used by one case.
        self.limiters.retain(|name, _| names.contains(name));
        reply.unwrap_or_else(|error| failed(&error))
    }
}

async fn perform(
    limiter: &RateLimiter,
    to: &str,
    op: &Op,
    grant: &mut Option<Grant>,
) -> Result<Reply, Error> {
    Ok(match op {
        Op::Demand(permits) => {
            let permits = u32::try_from(*permits).expect("a case asks Rust for no negative number");
            let decision = limiter.try_acquire_many(permits).await?;
            if let Decision::Allow(taken) = &decision {
                *grant = Some(taken.clone());
            }
            decided(&decision)
        }
        Op::Settle(keep) => {
            let keep = u32::try_from(*keep).expect("no grant is settled below zero");
            if let Some(grant) = grant {
                limiter.settle(grant, keep);
            }
            Reply::Done
        }
        Op::Available => Reply::Number(limiter.available_permits().await? as i64),
        Op::TrySetRate(limit) => Reply::Flag(limiter.try_set_rate(wanted(limit)).await?),
        Op::Config => Reply::Config(limiter.limit().await?.map(|limit| {
            let per_client = limit.is_per_client();
            (
                per_client,
                limit.permits() as i64,
                limit.interval().as_millis() as i64,
            )
        })),
        Op::SetRate(limit) | Op::Set(limit, false) => {
            limiter.set_rate(wanted(limit)).await?;
            Reply::Done
        }
        Op::Set(limit, true) => {
            limiter.set_or_update_rate(wanted(limit)).await?;
            Reply::Done
        }
        Op::Update(limit, true) => Reply::Flag(limiter.update_rate(wanted(limit)).await?),
        Op::Update(limit, false) => Reply::Flag(limiter.reset_rate(wanted(limit)).await?),
        Op::Release(permits) => Reply::Number(limiter.release(*permits as u32).await? as i64),
        Op::Expire(ttl, condition) => {
            let when = match condition {
                Condition::Always => ExpireWhen::Always,
                Condition::IfSet => ExpireWhen::Set,
                Condition::IfNotSet => ExpireWhen::NotSet,
                Condition::IfGreater => ExpireWhen::Greater,
                Condition::IfLess => ExpireWhen::Less,
            };
            Reply::Flag(
                limiter
                    .expire_when(Duration::from_millis(*ttl as u64), when)
                    .await?,
            )
        }
        Op::ClearExpire => Reply::Flag(limiter.clear_expire().await?),
        Op::Life => Reply::Life(match limiter.time_to_live().await? {
            TimeToLive::Missing => -2,
            TimeToLive::Lasting => -1,
            TimeToLive::Left(_) => 0,
        }),
        Op::Delete => Reply::Flag(limiter.delete().await?),
        Op::Exists => Reply::Flag(limiter.exists().await?),
        Op::Rename => match limiter.rename(to).await {
            Ok(renamed) => {
                assert_eq!(renamed.name(), to);
                Reply::Done
            }
            Err(error) if error.kind() == ErrorKind::NotInitialized => Reply::NoSuchKey,
            Err(error) => return Err(error),
        },
        _ => unreachable!("no step for Rust: {op:?}"),
    })
}

fn wanted(limit: &model::Limit) -> Limit {
    let interval = Duration::from_millis(limit.interval as u64);
    let mut wanted = Limit::new(limit.rate as u64, interval);
    if limit.per_client {
        wanted = wanted.per_client();
    }
    match limit.keep_alive {
        None | Some(0) => wanted,
        Some(time) => wanted
            .keep_alive(Duration::from_millis(time as u64))
            .unwrap(),
    }
}

fn decided(decision: &Decision) -> Reply {
    match decision {
        Decision::Allow(_) => Reply::Granted,
        Decision::Deny(refusal) if refusal.kind() == RefusalKind::AboveRate => Reply::NeverGranted,
        Decision::Deny(_) => Reply::Denied,
    }
}

fn failed(error: &Error) -> Reply {
    match error.kind() {
        ErrorKind::NotInitialized => Reply::NotInitialized,
        ErrorKind::Permits => Reply::NoPermits,
        _ => Reply::Other(format!("{error:?}")),
    }
}

/// The reply of our acquire script to one caller.
pub fn raw_reply(reply: &Result<Value, RedisError>) -> Reply {
    let numbers: Option<Vec<i64>> = match reply {
        // What is usual is answered with one text.
        Ok(Value::BulkString(text)) => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.split(' ').map(|number| number.parse().ok()).collect()),
        Ok(array) => redis::from_redis_value(array.clone()).ok(),
        Err(_) => None,
    };
    match numbers.as_deref() {
        Some([-1]) => Reply::NotInitialized,
        Some([1, .., 1, _]) => Reply::Granted,
        Some([1, .., 0, _]) => Reply::Denied,
        Some([1, .., 2, _]) => Reply::NeverGranted,
        _ => Reply::Other(format!("{reply:?}")),
    }
}
