//! `limitador`, as its documentation shows it: limits with a variable in a namespace, and one call
//! that checks and updates. In memory alone: 0.14.0, the newest, does not compile with
//! `redis_storage` and without `disk_storage`, as `storage/keys.rs` calls its module `bin` for both
//! and has it only for the second; which is RocksDB, built from C++ with libclang.

use std::collections::HashMap;

use limitador::{
    RateLimiter,
    limit::{Context, Limit as Counted, Namespace},
};

use super::{Entry, Form, Place, Promise, State, contestant};
use crate::contest::{Answer, Limit, Peer, User};

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "limitador",
    package: "limitador",
    state: State::Process,
    form: Form::Call,
    promise: Promise::Window,
    weighs: true,
    build: |limits, place| {
        Box::pin(async move {
            // As many counters as there may be users: more would be forgotten.
            let limiter = RateLimiter::new(1_000_000);
            for limit in counted(&limits, &place) {
                assert!(limiter.add_limit(limit));
            }
            contestant(Memory(limiter, place.label.as_str().into()))
        })
    },
    ..Entry::NONE
}];

fn counted(limits: &[Limit], place: &Place) -> impl Iterator<Item = Counted> {
    limits.iter().map(|limit| {
        let user = "user".try_into().unwrap();
        Counted::new(
            place.label.as_str(),
            limit.permits.into(),
            limit.seconds,
            [],
            [user],
        )
    })
}

fn context(user: &User) -> Context<'static> {
    HashMap::from([(String::from("user"), user.name.clone())]).into()
}

struct Memory(RateLimiter, Namespace);

impl Peer for Memory {
    async fn decide(&self, user: &User, cost: u32) -> Answer {
        let Self(limiter, namespace) = self;
        let asked = limiter.check_rate_limited_and_update(namespace, &context(user), cost.into());
        match asked {
            Ok(result) if result.limited => Answer::Refused(None),
            Ok(_) => Answer::Admitted,
            Err(_) => Answer::Failed,
        }
    }
}
