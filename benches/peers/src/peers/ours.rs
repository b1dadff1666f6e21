//! This crate, by its documentation: one layer, and nothing set but what the row's name says.

use std::{sync::Arc, time::Duration};

use tower_ratelimit::{
    Algorithm, IntoRules, Limit as Permits, MemoryStore, RateLimitLayer, RedisStore, Store,
    key::FromHeader,
};

use super::{Built, Entry, Form, Place, Promise, State, contestant};
use crate::contest::{Layered, Limit, USER, cost_of};
use crate::work::Contestant;

const ENTRY: Entry = Entry {
    package: "tower-ratelimit",
    form: Form::Layer,
    promise: Promise::Interval,
    weighs: true,
    sends: &["evalsha"],
    ..Entry::NONE
};

pub(super) const ENTRIES: [Entry; 5] = [
    Entry {
        name: "tower-ratelimit",
        state: State::Process,
        build: |limits, place| memory(limits, place, |rule| rule),
        ..ENTRY
    },
    Entry {
        name: "tower-ratelimit, GCRA",
        state: State::Process,
        promise: Promise::Bucket,
        build: |limits, place| memory(limits, place, gcra),
        ..ENTRY
    },
    Entry {
        name: "tower-ratelimit, Redis",
        build: |limits, place| redis(limits, place, |rule| rule),
        ..ENTRY
    },
    Entry {
        name: "tower-ratelimit, Redis, GCRA",
        promise: Promise::Bucket,
        build: |limits, place| redis(limits, place, gcra),
        ..ENTRY
    },
    Entry {
        name: "tower-ratelimit, Redis, lease of 100 ms",
        build: |limits, place| redis(limits, place, |rule| rule.lease(Duration::from_millis(100))),
        ..ENTRY
    },
];

type Rule = tower_ratelimit::Rule;

fn gcra(rule: Rule) -> Rule {
    rule.algorithm(Algorithm::Gcra)
}

fn rules(limits: &[Limit], place: &Place, set: fn(Rule) -> Rule) -> impl IntoRules + use<> {
    let rule = |(at, limit): (usize, &Limit)| {
        let limit = Permits::new(limit.permits.into(), limit.interval());
        let rule = limit.by(FromHeader::new(USER.as_str()));
        let rule = rule
            .named(&format!("{}-{at}", place.label))
            .cost_by(|parts| cost_of(&parts.headers));
        set(rule)
    };
    limits.iter().enumerate().map(rule).collect::<Vec<_>>()
}

fn layer(store: &impl Store, rules: impl IntoRules) -> Option<Arc<dyn Contestant>> {
    let layer = RateLimitLayer::builder(store).otherwise(rules).build();
    contestant(Layered::new(layer.unwrap()))
}

fn memory(limits: Vec<Limit>, place: Place, set: fn(Rule) -> Rule) -> Built {
    let built = layer(&MemoryStore::new(), rules(&limits, &place, set));
    Box::pin(async { built })
}

fn redis(limits: Vec<Limit>, place: Place, set: fn(Rule) -> Rule) -> Built {
    Box::pin(async move {
        let store = RedisStore::open(&place.url).unwrap();
        layer(&store, rules(&limits, &place, set))
    })
}
