//! `governor`, called directly: no request, no answer, no layer. Several limits are several
//! limiters, one after the other.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock};

use super::{Entry, Form, Promise, State, contestant};
use crate::contest::{Answer, Limit, Peer, User};

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "governor",
    package: "governor",
    state: State::Process,
    form: Form::Call,
    promise: Promise::Bucket,
    weighs: true,
    build: |limits, _| Box::pin(async move { contestant(Limiters::new(&limits)) }),
    ..Entry::NONE
}];

struct Limiters(Vec<DefaultKeyedRateLimiter<String>>);

impl Limiters {
    fn new(limits: &[Limit]) -> Self {
        let limiter = |limit: &Limit| {
            let quota = Quota::with_period(limit.emission()).unwrap();
            let burst = NonZeroU32::new(limit.permits).unwrap();
            RateLimiter::keyed(quota.allow_burst(burst))
        };
        Self(limits.iter().map(limiter).collect())
    }
}

impl Peer for Limiters {
    async fn decide(&self, user: &User, cost: u32) -> Answer {
        for limiter in &self.0 {
            let asked = match NonZeroU32::new(cost).filter(|cost| cost.get() > 1) {
                None => limiter.check_key(&user.name),
                Some(cost) => match limiter.check_key_n(&user.name, cost) {
                    Ok(asked) => asked,
                    Err(_) => return Answer::Failed,
                },
            };
            if let Err(until) = asked {
                return Answer::Refused(Some(until.wait_time_from(limiter.clock().now())));
            }
        }
        Answer::Admitted
    }
}
