//! The world of a case: stores, one for each client, and layers on the first of them.

use kit::{
    guards::Guards,
    scene::*,
    topologies::{Topology, connected},
};
use std::collections::HashMap;

use tower::{BoxError, util::BoxCloneService};

type Service = BoxCloneService<Request<String>, Response<()>, BoxError>;
/// By its exact name, of the first client or the other.
type ByName = dyn Fn(bool, &str) -> RateLimiter + Send + Sync;
/// Of each client, for a name and a limit of the code.
type ByGcra = dyn Fn(&str, Limit) -> [RateLimiter; 2] + Send + Sync;

pub(crate) struct World {
    clock: ManualClock,
    began: Duration,
    limiters: HashMap<&'static str, RateLimiter>,
    by_name: Box<ByName>,
    by_gcra: Box<ByGcra>,
    layer: Box<dyn Fn(Rule) -> RateLimitLayer + Send + Sync>,
    /// The stores that settle in the background.
    redis: Vec<RedisStore>,
    pub(crate) name: String,
    algorithm: Algorithm,
    slots: Option<u32>,
    services: HashMap<&'static str, Service>,
}

/// The choices of a request.
#[derive(Clone)]
struct Wish {
    permits: u32,
    limit: Option<Limit>,
    tier: Option<&'static str>,
    user: String,
}

/// One whose rules are in Redisson's format, too, or not.
pub(crate) fn memory(redisson: bool) -> World {
    let clock = ManualClock::new();
    let store = |client| {
        let store = MemoryStore::builder().clock(clock.clone());
        let store = if redisson { store.redisson() } else { store };
        (client, store.build())
    };
    World::new(clock.clone(), ["a", "b"].map(store))
}

/// The stores of many cases, one after the other: connecting takes longer than most of them.
pub(crate) struct Stores {
    clock: ManualClock,
    stores: [(&'static str, RedisStore); 2],
}

impl Stores {
    pub(crate) async fn new(topology: Topology, guards: Guards, redisson: bool) -> Self {
        let clock = ManualClock::new();
        let prefix = unique("cases");
        let store = async |client: &'static str| {
            let store = topology
                .store()
                .prefix(&prefix)
                .client_clock(clock.clone())
                .client_id(client);
            let store = if redisson { store.redisson() } else { store };
            (client, connected(guards.put_on(store)).await)
        };
        let stores = [store("a").await, store("b").await];
        Self { clock, stores }
    }

    pub(crate) fn world(&self) -> World {
        let world = World::new(self.clock.clone(), self.stores.clone());
        let redis = self.stores.iter().map(|(_, store)| store.clone());
        World {
            redis: redis.collect(),
            ..world
        }
    }
}

impl World {
    fn new<S: Store>(clock: ManualClock, stores: [(&'static str, S); 2]) -> Self {
        let name = unique("case");
        let limiters = (stores.iter())
            .map(|(client, store)| (*client, RateLimiter::new(store, &name).expect("a name")))
            .collect();
        let [first, second] = stores.map(|(_, store)| Arc::new(store));
        let (store, firsts, seconds) = (first.clone(), first.clone(), second.clone());
        // Where any slot begins.
        let hours = clock.now().as_secs().div_ceil(3600);
        clock.set(secs(3600 * hours));
        Self {
            began: clock.now(),
            clock,
            limiters,
            by_name: Box::new(move |is_first, name| {
                let store = if is_first { &firsts } else { &seconds };
                RateLimiter::new(&**store, name).expect("a name")
            }),
            by_gcra: Box::new(move |name, limit| {
                [&first, &second].map(|store| {
                    let limit = limit.named(name).algorithm(Algorithm::Gcra);
                    limit.single(&**store).expect("a limit")
                })
            }),
            layer: Box::new(move |rule| RateLimitLayer::new(&*store, rule)),
            redis: Vec::new(),
            name,
            algorithm: Algorithm::default(),
            slots: None,
            services: HashMap::new(),
        }
    }

    /// Counts by this algorithm, and by this limit of the case where it is in the code.
    pub(crate) fn count_by(&mut self, algorithm: Algorithm, limit: Option<Limit>) {
        self.algorithm = algorithm;
        if let (true, Some(limit)) = (self.limit_is_in_code(), limit) {
            let limiters = (self.by_gcra)(&self.name, limit);
            self.name = limiters[0].name().to_owned();
            self.limiters = ["a", "b"].into_iter().zip(limiters).collect();
            return;
        }
        for limiter in self.limiters.values_mut() {
            *limiter = limiter.clone().algorithm(algorithm);
        }
    }

    pub(crate) fn note_in_slots(&mut self, slots: u32) {
        self.slots = Some(slots);
        for limiter in self.limiters.values_mut() {
            *limiter = limiter.clone().slots(slots).expect("a number of slots");
        }
    }

    pub(crate) fn limit_is_in_code(&self) -> bool {
        self.algorithm == Algorithm::Gcra
    }

    /// Returns the limiter of a client by its name, whose limit is the stored one.
    pub(crate) fn by_name(&self, client: &str) -> RateLimiter {
        (self.by_name)(client != "b", &self.name)
    }

    pub(crate) fn set_clock(&self, at: u64) {
        self.clock.set(self.began + millis(at));
    }

    /// The limiter of a client; of the keys that clients share, that of the first.
    pub(crate) fn limiter(&self, client: &str) -> &RateLimiter {
        self.limiters.get(client).unwrap_or(&self.limiters["a"])
    }

    pub(crate) async fn settled(&self) {
        for store in &self.redis {
            store.settled().await;
        }
    }

    pub(crate) fn build_layers(&mut self, tiers: &[(&str, Limit)]) {
        let by_request = limit_by(|parts| wish(parts).limit.expect("a limit"));
        // Of this case alone.
        self.build("limit", Rule::new(&unique("limit"), by_request, user()));
        if !self.limit_is_in_code() {
            self.build("shared", Rule::shared(&self.name));
        }
        if !tiers.is_empty() {
            // Names of tiers are part of the program everywhere else.
            let leak = |name: &str| -> &'static str { Box::leak(name.to_owned().into_boxed_str()) };
            let tiers: Vec<_> = tiers
                .iter()
                .map(|(name, limit)| (leak(name), *limit))
                .collect();
            let by_tier = Tiers::new(tiers, |parts| wish(parts).tier.expect("a tier"));
            self.build("tiers", Rule::new(&unique("tiers"), by_tier, user()));
        }
    }

    fn build(&mut self, what: &'static str, mut rule: Rule) {
        // Tiers are known, and are too short for as many.
        if let (Some(slots), false) = (self.slots, what == "tiers") {
            rule = rule.slots(slots);
        }
        let layer = (self.layer)(
            rule.cost_by(|parts| wish(parts).permits)
                .algorithm(self.algorithm),
        );
        let inner = service_fn(serve);
        let service = layer
            .layer(inner)
            .map_response(|answer| answer.map(drop))
            .map_err(BoxError::from);
        self.services.insert(what, BoxCloneService::new(service));
    }

    pub(crate) async fn send(
        &self,
        limit: Option<Limit>,
        tier: Option<&str>,
        shared: bool,
        user: &str,
        permits: u32,
    ) -> Response<()> {
        let what = if shared {
            "shared"
        } else if tier.is_some() {
            "tiers"
        } else {
            "limit"
        };
        let tier = tier.map(|tier| -> &'static str { Box::leak(tier.to_owned().into_boxed_str()) });
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(Wish {
            permits,
            limit,
            tier,
            user: user.to_owned(),
        });
        let service = self.services[what].clone();
        service.oneshot(request).await.expect("an answer")
    }
}

fn user() -> impl KeyExtractor {
    FromExtension::by(|wish: &Wish| wish.user.clone())
}

fn wish(parts: &http::request::Parts) -> &Wish {
    parts.extensions.get().expect("a wish")
}
