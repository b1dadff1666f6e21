//! A request that passes one layer again, as when a router gives it to itself: it meets the rules
//! that it was not charged for.

use super::*;
use kit::observed::Observed;

use axum::{
    Extension, Router,
    body::Body,
    response::{IntoResponse, Response as Answer},
    routing::any as on_any,
};
use std::{collections::BTreeSet, sync::OnceLock};

/// Returns a router behind a layer that takes a segment off a path and gives the request to itself
/// again: by its fallback, and by a route of its own for those below `/4`.
fn stripping(layer: RateLimitLayer, routes: Router) -> Router {
    let whole: Arc<OnceLock<Router>> = Arc::default();
    let again = Arc::clone(&whole);
    let strip = move |mut request: Request<Body>| {
        let router = again.get().cloned().unwrap();
        let (_, rest) = request.uri().path()[1..].split_once('/').unwrap();
        *request.uri_mut() = format!("/{rest}").parse().unwrap();
        router.oneshot(request)
    };
    let routes = routes.route("/4/{*rest}", on_any(strip.clone()));
    let router = routes.fallback(strip).layer(layer);
    whole.set(router.clone()).unwrap();
    router
}

fn router(store: &MemoryStore, rules: Rules, route: &str) -> Router {
    let layer = RateLimitLayer::builder(store).rules(rules).build();
    let routes = Router::new().route(route, on_any(async || "inner"));
    stripping(layer.unwrap(), routes)
}

async fn ask(router: &Router, line: &str) -> Answer {
    let request = asking(line, &[("x-key", "a")]).map(Body::from);
    router.clone().oneshot(request).await.unwrap()
}

#[tokio::test]
async fn a_list_is_met_by_each_pass() {
    let rules = Rules::new().deny(Requests::on("/admin"));
    let router = router(&MemoryStore::new(), rules.otherwise(by_key(9)), "/admin");
    for line in ["GET /admin", "GET /en/admin", "GET /en/4/admin"] {
        assert_eq!(ask(&router, line).await.status(), 403, "{line}");
    }
}

/// Sends a request twice through one layer. In between, `change` is done to it.
async fn twice(layer: &RateLimitLayer, change: impl Fn(&mut HeaderMap) + Clone) {
    let inner = layer.layer(Inner::default());
    let service = layer.layer(service_fn(move |mut request: Request<String>| {
        change(request.headers_mut());
        inner.clone().oneshot(request)
    }));
    assert_eq!(status(&service, request("a")).await, 200);
}

#[tokio::test]
async fn a_key_that_changed_is_another_limiter_and_one_that_is_gone_is_not_missed() {
    for (becomes, left) in [(Some("a"), [2, 3]), (Some("b"), [2, 2]), (None, [2, 3])] {
        let layer = layer_of(&MemoryStore::new(), by_key(3).named("rule"));
        let change = |headers: &mut HeaderMap| {
            headers.remove("x-key");
            if let Some(key) = becomes {
                headers.insert("x-key", key.parse().unwrap());
            }
        };
        twice(&layer, change).await;
        for (key, left) in ["a", "b"].into_iter().zip(left) {
            let limiter = layer.limiter("rule", [key]).unwrap();
            assert_eq!(free(&limiter).await, left, "{key} of {becomes:?}");
        }
    }
}

#[tokio::test]
async fn what_was_decided_is_not_decided_again() {
    let seen = Observed::by(|decided| {
        let rules = decided.rules.iter();
        rules
            .map(|rule| rule.rule.unwrap().to_owned())
            .collect::<Vec<_>>()
    });
    // The shadow rule has no room from the second request on.
    let [all, tried] = [by_key(9).named("all"), by_key(1).named("tried").shadow()];
    let rules = Rules::new().on("/b", [by_key(9).named("b"), all.clone(), tried.clone()]);
    let rules = rules.on("/c", Vec::<Rule>::new()).otherwise([all, tried]);
    let layer = RateLimitLayer::builder(&MemoryStore::new()).rules(rules);
    let layer = layer.observe(seen.clone()).build().unwrap();
    let hello = || on_any(async || "hello");
    let routes = Router::new().route("/a", hello());
    let router = stripping(layer, routes.route("/b", hello()).route("/c", hello()));
    for (line, decided) in [
        ("GET /x/x/a", &[&["all", "tried"][..]][..]),
        ("GET /x/x/a", &[&["all", "tried"]]),
        ("GET /x/b", &[&["all", "tried"], &["b"]]),
        ("GET /x/c", &[&["all", "tried"]]),
        ("GET /c", &[&[]]),
    ] {
        let answer = ask(&router, line).await;
        assert_eq!(answer.status(), 200, "{line}");
        let policies = answer.headers().get_all("ratelimit-policy").iter();
        let shown = decided.iter().filter(|rules| !rules.is_empty()).count();
        assert_eq!(policies.count(), shown, "{line}");
        assert_eq!(seen.take(), decided, "{line}");
    }
}

#[cfg(feature = "config")]
#[tokio::test]
async fn rules_of_a_reload_between_the_passes_are_met_if_they_are_new() {
    let layer = layer_of(&MemoryStore::new(), by_key(9).named("kept"));
    let reloaded = layer.clone();
    let reload = |_: &mut HeaderMap| {
        let rules = [by_key(5).named("kept"), by_key(9).named("new")];
        reloaded.reload(Rules::new().otherwise(rules)).unwrap();
    };
    twice(&layer, reload).await;
    for (rule, left) in [("kept", 8), ("new", 8)] {
        let limiter = layer.limiter(rule, ["a"]).unwrap();
        assert_eq!(free(&limiter).await, left, "{rule}");
    }
}

/// A rule of the tables below.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    cost: u32,
    /// The cost is found by a closure.
    by_request: bool,
    shadow: bool,
    /// It counts in the limiter of all rules that do.
    shared: bool,
}

const ENOUGH: u64 = 1000;
const NAMES: [&str; 5] = ["r0", "r1", "r2", "r3", "r4"];

impl Drawn {
    fn rule(self, name: &str) -> Rule {
        let rule = if self.shared {
            Rule::shared("walk").or_init(Limit::per_hour(ENOUGH))
        } else {
            Limit::per_hour(ENOUGH).by(Constant("all"))
        };
        let rule = if self.by_request {
            rule.cost_by(move |_| self.cost)
        } else {
            rule.cost(self.cost)
        };
        // Where enforced rules count, a shadow rule adds nothing.
        let rule = rule.named(name);
        if self.shadow && !self.shared {
            rule.shadow()
        } else {
            rule
        }
    }
}

fn drawn() -> impl Strategy<Value = Drawn> {
    (1..4_u32, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(cost, by_request, shadow, shared)| Drawn {
            cost,
            by_request,
            shadow,
            shared,
        },
    )
}

/// What is charged for a request in the end.
#[derive(Clone, Copy, Debug)]
enum Corrected {
    No,
    Refund,
    Cost(u32),
}

/// Asks for this path, whose segments are entries of the table, and compares what each rule is
/// charged.
async fn walk(pool: [Drawn; 5], table: &[BTreeSet<usize>; 4], path: &[usize], to: Corrected) {
    if table.iter().all(BTreeSet::is_empty) {
        // No layer has such a table.
        return;
    }
    let store = MemoryStore::new();
    let rules_of = |entry: &BTreeSet<usize>| -> Vec<Rule> {
        entry.iter().map(|at| pool[*at].rule(NAMES[*at])).collect()
    };
    let [first, second, third, rest] = table;
    let mut rules = Rules::new().otherwise(rules_of(rest));
    for (at, entry) in [first, second, third].into_iter().enumerate() {
        rules = rules.on(&format!("/{at}/{{*rest}}"), rules_of(entry));
    }
    let layer = layer_by(&store, rules);
    let end = on_any(async move |grant: Option<Extension<Grant>>| {
        match (to, grant) {
            (Corrected::Refund, Some(grant)) => _ = grant.set(0),
            (Corrected::Cost(cost), _) => return Extension(Cost(cost)).into_response(),
            _ => {}
        }
        "end".into_response()
    });
    let router = stripping(layer.clone(), Router::new().route("/end", end));
    let segments: Vec<_> = path.iter().map(|at| format!("/{at}")).collect();
    let answer = ask(&router, &format!("GET {}/end", segments.concat())).await;
    assert_eq!(answer.status(), 200);
    drop(answer);

    let entries = path.iter().chain([&3]).map(|at| &table[(*at).min(3)]);
    let met: BTreeSet<usize> = entries.flatten().copied().collect();
    let charged = |at: usize| match to {
        Corrected::No => u64::from(pool[at].cost),
        Corrected::Refund => 0,
        Corrected::Cost(cost) => u64::from(cost),
    };
    let shared = |at: &usize| pool[*at].shared;
    for at in (0..NAMES.len()).filter(|at| !shared(at)) {
        let limiter = layer.limiter(NAMES[at], ["all"]);
        let left = match limiter {
            Ok(limiter) => free(&limiter).await,
            Err(_) => ENOUGH,
        };
        let expected = if met.contains(&at) { charged(at) } else { 0 };
        assert_eq!(ENOUGH - left, expected, "{}", NAMES[at]);
    }
    // A correction sets the charge of all rules of a pass together.
    if let Corrected::No | Corrected::Refund = to {
        let limiter = RateLimiter::new(&store, "walk").unwrap();
        let free = limiter.available_permits().await.unwrap_or(ENOUGH);
        let expected: u64 = met.iter().copied().filter(shared).map(charged).sum();
        assert_eq!(ENOUGH - free, expected, "shared");
    }
}

proptest! {
    /// Each rule that a pass meets is charged once, and none is skipped.
    #[test]
    fn every_rule_on_the_way_is_charged_once(
        pool in prop::array::uniform5(drawn()),
        table in prop::array::uniform4(prop::collection::btree_set(0..5_usize, 0..4)),
        path in prop::collection::vec(0..5_usize, 0..5),
        to in prop_oneof![Just(Corrected::No), Just(Corrected::Refund), (0..9_u32).prop_map(Corrected::Cost)],
    ) {
        runtime().block_on(walk(pool, &table, &path, to));
    }
}
