//! What an HTTP server limits, and what it is asked.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body, routing::Route};
use tower::layer::layer_fn;
use tower_ratelimit::{FailurePolicy, HeaderStyle, Limit, RateLimitLayer};

use crate::{
    database::patient,
    floors::{Gcra, Hand, Left, limited, refused},
    requests::by_user,
    row::{
        Figure,
        Goal::{self, AtMost, RatioAtLeast, Reported},
        figure,
    },
};

const HOURLY: Limit = Limit::per_hour(1);
const AMPLE: Limit = Limit::per_second(1_000_000);
const MANY: usize = 100_000;
const SEVERAL: usize = 10_000;

/// The name of the server that limits nothing.
pub(crate) const BARE: &str = "bare";
const ONE_LIMIT: &str = "http admitted, 10,000 keys";

/// A row over HTTP: the same axum with and without the layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) parameters: &'static str,
    /// The server in whose place it stands
    pub(crate) beside: &'static str,
    pub(crate) limit: Limit,
    /// How many such limits each request is charged for
    limits: usize,
    /// How many users ask
    pub(crate) keys: usize,
    /// How long a refusal is repeated; none for the default
    pub(crate) cap: Option<Duration>,
    /// For how long permits are taken ahead; none where they are not
    pub(crate) lease: Option<Duration>,
    pub(crate) by: By,
    pub(crate) figures: [Figure; 4],
}

/// What limits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Layer,
    /// The least that could, in this process
    Hand,
    /// An answer that is cloned
    Nothing,
}

/// Requests a second, scripts as one goal wants them reported, and processor time.
const fn figures(requests: Goal, scripts: Figure) -> [Figure; 4] {
    [
        figure("requests/s", requests),
        scripts,
        figure("µs of the service", Reported),
        figure("µs of Redis", Reported),
    ]
}

pub(crate) const PER_SECOND: &str = "script calls per second";
pub(crate) const PER_REQUEST: &str = "script calls per request";

/// One limit that is never reached, beside the server without a layer.
const ADMITTED: Scene = Scene {
    name: "",
    parameters: "1,000,000 per second each",
    beside: BARE,
    limit: AMPLE,
    limits: 1,
    keys: 1,
    cap: None,
    lease: None,
    by: By::Layer,
    figures: figures(Reported, figure(PER_REQUEST, Reported)),
};

/// The same, with all permits spent.
const REFUSED: Scene = Scene {
    parameters: "1 per hour each, spent",
    limit: HOURLY,
    ..ADMITTED
};

const LEASE: Option<Duration> = Some(Duration::from_millis(100));

pub(crate) const SCENES: [Scene; 14] = [
    Scene {
        name: "http refused, 1 key",
        figures: figures(RatioAtLeast(0.95), figure(PER_SECOND, AtMost(2.0))),
        ..REFUSED
    },
    Scene {
        name: "http refused, 100,000 keys, cap 60 s",
        parameters: "1 per hour each, spent, refusals repeated for 60 s",
        keys: MANY,
        cap: Some(Duration::from_secs(60)),
        figures: figures(RatioAtLeast(0.92), figure(PER_REQUEST, Reported)),
        ..REFUSED
    },
    Scene {
        name: "http refused, 100,000 keys, default cap",
        parameters: "1 per hour each, spent, refusals repeated for 1 s",
        keys: MANY,
        ..REFUSED
    },
    Scene {
        name: "http admitted, 1 key",
        figures: figures(RatioAtLeast(0.75), figure(PER_REQUEST, AtMost(0.06))),
        ..ADMITTED
    },
    Scene {
        name: "http admitted, 1 key, lease",
        parameters: "1,000,000 per second, taken ahead for 100 ms",
        lease: LEASE,
        figures: figures(RatioAtLeast(0.94), figure(PER_REQUEST, AtMost(0.005))),
        ..ADMITTED
    },
    Scene {
        name: "http admitted, 100,000 keys",
        keys: MANY,
        figures: figures(RatioAtLeast(0.55), figure(PER_REQUEST, Reported)),
        ..ADMITTED
    },
    Scene {
        name: "http admitted, 100,000 keys, lease",
        parameters: "1,000,000 per second each, taken ahead for 100 ms",
        keys: MANY,
        lease: LEASE,
        ..ADMITTED
    },
    Scene {
        name: ONE_LIMIT,
        keys: SEVERAL,
        ..ADMITTED
    },
    Scene {
        name: "http admitted, 10,000 keys, list of three limits",
        beside: ONE_LIMIT,
        limits: 3,
        keys: SEVERAL,
        figures: figures(RatioAtLeast(0.85), figure(PER_REQUEST, Reported)),
        ..ADMITTED
    },
    Scene {
        name: "http admitted, 1 key, list of three limits, lease",
        parameters: "1,000,000 per second each, taken ahead for 100 ms",
        limits: 3,
        lease: LEASE,
        ..ADMITTED
    },
    Scene {
        name: "http static 429",
        parameters: "an answer that is cloned, with the fields and the body of a refusal",
        by: By::Nothing,
        ..REFUSED
    },
    Scene {
        name: "http by hand, refused, 1 key",
        parameters: "1 per hour each, spent, decided by hand in this process",
        by: By::Hand,
        ..REFUSED
    },
    Scene {
        name: "http by hand, refused, 100,000 keys",
        parameters: "1 per hour each, spent, decided by hand in this process",
        keys: MANY,
        by: By::Hand,
        ..REFUSED
    },
    Scene {
        name: "http by hand, admitted, 1 key",
        parameters: "1,000,000 per second each, decided by hand in this process",
        by: By::Hand,
        ..ADMITTED
    },
];

/// The name of the rule that is limited by hand
const RULE: &str = "goal-0";

impl Scene {
    pub(crate) fn named(name: &str) -> Option<Self> {
        SCENES.into_iter().find(|scene| scene.name == name)
    }

    /// Whether its users are let pass, once warm.
    pub(crate) fn allows(&self) -> bool {
        self.limit == AMPLE
    }

    /// Limits what a server does.
    pub(crate) fn limit(&self, app: Router, redis: &str) -> Router {
        let limit = self.limit;
        match self.by {
            By::Layer => app.layer(self.layer(redis)),
            By::Hand => {
                // axum makes a service for each connection.
                let hand = Hand::<Gcra>::new(RULE, limit, Left::ALL);
                app.layer(layer_fn(move |inner: Route| {
                    limited(inner, Arc::clone(&hand))
                }))
            }
            By::Nothing => app.layer(layer_fn(move |_: Route| refused::<Body>(RULE, limit))),
        }
    }

    fn layer(&self, redis: &str) -> RateLimitLayer {
        let mut store = patient(redis);
        if let Some(cap) = self.cap {
            store = store.deny_cache(cap);
        }
        let rule = |name: usize| {
            let rule = self.limit.by(by_user()).named(&format!("goal-{name}"));
            // A failure is no request that was let pass.
            let rule = rule.on_failure(FailurePolicy::Deny);
            match self.lease {
                Some(lease) => rule.lease(lease),
                None => rule,
            }
        };
        RateLimitLayer::builder(&store.build().unwrap())
            .otherwise((0..self.limits).map(rule).collect::<Vec<_>>())
            .headers([HeaderStyle::Draft11])
            .build()
            .unwrap()
    }
}
