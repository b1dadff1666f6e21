//! What an HTTP server limits, and what it is asked.

use std::time::Duration;

use tower_ratelimit::{FailurePolicy, HeaderStyle, Limit, RateLimitLayer};

use crate::{
    database::patient,
    requests::by_user,
    row::{
        Figure,
        Goal::{self, AtMost, RatioAtLeast, Reported},
    },
};

const HOURLY: Limit = Limit::per_hour(1);
const AMPLE: Limit = Limit::per_second(1_000_000);
const MANY: usize = 100_000;

/// The name of the server that limits nothing.
pub(crate) const BARE: &str = "bare";

/// A row over HTTP: the same axum with and without the layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) parameters: &'static str,
    pub(crate) limit: Limit,
    /// How many users ask
    pub(crate) keys: usize,
    /// How long a refusal is repeated; none for the default
    pub(crate) cap: Option<Duration>,
    /// For how long permits are taken ahead; none where they are not
    pub(crate) lease: Option<Duration>,
    pub(crate) figures: [Figure; 4],
}

/// Requests a second, scripts as one goal wants them reported, and processor time.
const fn figures(requests: Goal, scripts: Figure) -> [Figure; 4] {
    [
        figure("requests/s", requests),
        scripts,
        figure("µs of processor per request, service and Redis", Reported),
        figure("µs of processor per request, the client", Reported),
    ]
}

const fn figure(name: &'static str, goal: Goal) -> Figure {
    Figure { name, goal }
}

pub(crate) const PER_SECOND: &str = "script calls per second";
pub(crate) const PER_REQUEST: &str = "script calls per request";

pub(crate) const SCENES: [Scene; 6] = [
    Scene {
        name: "http refused, 1 key",
        parameters: "1 per hour, spent",
        limit: HOURLY,
        keys: 1,
        cap: None,
        lease: None,
        figures: figures(RatioAtLeast(0.95), figure(PER_SECOND, AtMost(2.0))),
    },
    Scene {
        name: "http refused, 100,000 keys, cap 60 s",
        parameters: "1 per hour each, spent, refusals repeated for 60 s",
        limit: HOURLY,
        keys: MANY,
        cap: Some(Duration::from_secs(60)),
        lease: None,
        figures: figures(RatioAtLeast(0.90), figure(PER_REQUEST, Reported)),
    },
    Scene {
        name: "http refused, 100,000 keys, default cap",
        parameters: "1 per hour each, spent, refusals repeated for 1 s",
        limit: HOURLY,
        keys: MANY,
        cap: None,
        lease: None,
        figures: figures(Reported, figure(PER_REQUEST, Reported)),
    },
    Scene {
        name: "http admitted, 1 key",
        parameters: "1,000,000 per second",
        limit: AMPLE,
        keys: 1,
        cap: None,
        lease: None,
        figures: figures(RatioAtLeast(0.75), figure(PER_REQUEST, AtMost(0.06))),
    },
    Scene {
        name: "http admitted, 1 key, lease",
        parameters: "1,000,000 per second, taken ahead for 100 ms",
        limit: AMPLE,
        keys: 1,
        cap: None,
        lease: Some(Duration::from_millis(100)),
        figures: figures(RatioAtLeast(0.90), figure(PER_REQUEST, AtMost(0.005))),
    },
    Scene {
        name: "http admitted, 100,000 keys",
        parameters: "1,000,000 per second each",
        limit: AMPLE,
        keys: MANY,
        cap: None,
        lease: None,
        figures: figures(RatioAtLeast(0.55), figure(PER_REQUEST, Reported)),
    },
];

impl Scene {
    pub(crate) fn named(name: &str) -> Option<Self> {
        SCENES.into_iter().find(|scene| scene.name == name)
    }

    /// Whether its users are let pass, once warm.
    pub(crate) fn allows(&self) -> bool {
        self.limit == AMPLE
    }

    pub(crate) fn layer(&self, redis: &str) -> RateLimitLayer {
        let mut store = patient(redis);
        if let Some(cap) = self.cap {
            store = store.deny_cache(cap);
        }
        let mut rule = self
            .limit
            .by(by_user())
            .named("goal")
            // A failure is no request that was let pass.
            .on_failure(FailurePolicy::Deny);
        if let Some(lease) = self.lease {
            rule = rule.lease(lease);
        }
        RateLimitLayer::builder(&store.build().unwrap())
            .otherwise(rule)
            .headers([HeaderStyle::Draft11])
            .build()
            .unwrap()
    }
}
