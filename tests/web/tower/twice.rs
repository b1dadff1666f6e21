//! Nested layers with the same rules: a request is charged once, unless both should charge.

use super::{extensions::watched, *};
use tower_ratelimit::Outcome;

fn always(store: &impl Store, rules: impl IntoRules) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(store).otherwise(rules);
    builder.always().build().unwrap()
}

/// Returns how many of these requests pass both layers before the first refusal.
async fn passed(outer: &RateLimitLayer, inner: &RateLimitLayer) -> usize {
    let service = outer.layer(inner.layer(Inner::default()));
    let mut passed = 0;
    loop {
        let answer = service.clone().oneshot(request("a")).await.unwrap();
        if answer.status() != 200 {
            assert_eq!(answer.status(), 429);
            return passed;
        }
        passed += 1;
        assert!(passed < 10, "neither layer charges");
    }
}

async fn equal_layers_charge_once(store: impl Store) {
    let build = |name: &str| layer_of(&store, by_key(3).named(name));
    assert_eq!(passed(&build("two"), &build("two")).await, 3);
    let (outer, inner) = (build("three"), build("three"));
    let service = build("three").layer(Inner::default());
    let service = outer.layer(inner.layer(service));
    for expected in [200, 200, 200, 429] {
        let answer = service.clone().oneshot(request("a")).await.unwrap();
        assert_eq!(answer.status(), expected);
        // The layers that let it pass have left no grant.
        let granted = usize::from(expected == 200);
        assert_eq!(decision_of(&answer).layers().count(), granted);
    }
}

on_both_stores!(equal_layers_charge_once);

#[tokio::test]
async fn rules_that_differ_are_charged_by_each() {
    let store = MemoryStore::new();
    // One limiter in all of them, so that each charge of it is seen.
    let on = |limiter: &str| Rule::shared(limiter).or_init(Limit::per_hour(6));
    let dear = on("cost").named("dear").cost(2);
    for (limiter, outer, inner, expected) in [
        ("same", on("same"), on("same"), 6),
        ("label", on("label"), on("label").named("other"), 3),
        ("cost", on("cost").named("cheap"), dear, 2),
        ("by", on("by").cost_by(|_| 1), on("by").cost_by(|_| 1), 3),
        ("fixed", on("fixed").cost_by(|_| 1), on("fixed"), 3),
        ("costly", on("costly").cost(2), on("costly").cost(2), 3),
        ("dearer", on("dearer").cost(1), on("dearer").cost(2), 2),
    ] {
        let (outer, inner) = (layer_of(&store, outer), layer_of(&store, inner));
        assert_eq!(passed(&outer, &inner).await, expected, "{limiter}");
    }
    let limiter = |store: &MemoryStore| layer_of(store, on("stores"));
    let (one, other) = (MemoryStore::new(), MemoryStore::new());
    assert_eq!(passed(&limiter(&one), &limiter(&other)).await, 6);
    for store in [&one, &other] {
        let limiter = RateLimiter::new(store, "stores").unwrap();
        assert_eq!(free(&limiter).await, 0, "each its own");
    }
}

/// An outer rule gives back what it charged for these responses: an inner one that has no such
/// condition, or another one, keeps its own.
#[tokio::test]
async fn what_an_outer_layer_gives_back_an_inner_one_charges() {
    let store = MemoryStore::new();
    let rule = |name: &str| by_key(3).named(name);
    let failures = |rule: Rule| rule.charge_if(|outcome| !outcome.is_success());
    assert_eq!(
        passed(
            &layer_of(&store, failures(rule("all"))),
            &layer_of(&store, rule("all"))
        )
        .await,
        2
    );
    let (outer, inner) = (
        failures(rule("other")),
        rule("other").charge_if(Outcome::is_success),
    );
    assert_eq!(
        passed(&layer_of(&store, outer), &layer_of(&store, inner)).await,
        2
    );
    // One condition, and an outer rule that keeps all, charge for both.
    let (outer, inner) = (rule("keeps"), failures(rule("keeps")));
    assert_eq!(
        passed(&layer_of(&store, outer), &layer_of(&store, inner)).await,
        3
    );
    let same = rule("same").charge_if(Outcome::is_success);
    assert_eq!(
        passed(&layer_of(&store, same.clone()), &layer_of(&store, same)).await,
        3
    );
}

/// Each layer may load the file for itself.
#[cfg(feature = "config")]
#[tokio::test]
async fn the_outcomes_of_a_file_are_the_same_in_each_layer() {
    let store = MemoryStore::new();
    for outcome in ["success", "failure"] {
        let text = format!(
            "[rules.{outcome}]\nrate = \"3/1h\"\nby = \"constant:all\"\n\
             charge-if = \"{outcome}\"\n[otherwise]\nrules = [\"{outcome}\"]\n"
        );
        let build = || {
            let rules = tower_ratelimit::RulesFile::new().parse(&text).unwrap();
            layer_by(&store, rules)
        };
        let (outer, inner) = (build(), build());
        let service = outer.layer(inner.layer(Inner::default()));
        let answer = service.oneshot(request("a")).await.unwrap();
        assert_eq!(answer.status(), 200);
        let limiter = inner.limiter(outcome, ["all"]).unwrap();
        assert_eq!(
            free(&limiter).await,
            2,
            "{outcome}: once, and not yet settled"
        );
        drop(answer);
    }
}

#[tokio::test]
async fn a_layer_can_charge_always() {
    let store = MemoryStore::new();
    let rule = |name: &str| by_key(4).named(name);
    let inner = always(&store, rule("inner"));
    assert_eq!(passed(&layer_of(&store, rule("inner")), &inner).await, 2);
    // What counts is what the inner one says.
    let outer = always(&store, rule("outer"));
    assert_eq!(passed(&outer, &layer_of(&store, rule("outer"))).await, 4);
    // Also of one layer and its clone.
    let both = always(&store, rule("both"));
    assert_eq!(passed(&both, &both.clone()).await, 2);
    let once = layer_of(&store, rule("once"));
    assert_eq!(passed(&once, &once.clone()).await, 4);
}

/// A new request with the extensions of one whose response is over.
#[tokio::test]
async fn a_charge_counts_until_its_answer_is_over() {
    let store = MemoryStore::new();
    let (seen, inner) = watched();
    let first = layer_of(&store, by_key(2)).layer(inner.clone());
    let second = layer_of(&store, by_key(2)).layer(inner);
    let answer = first.oneshot(request("a")).await.unwrap();
    let again = || {
        let mut request = request("a");
        let grant = seen.lock().unwrap().get::<Grant>().cloned();
        request.extensions_mut().insert(grant.unwrap());
        request
    };
    let open = second.clone().oneshot(again()).await.unwrap();
    assert!(open.extensions().get::<Decision>().is_none(), "not charged");
    drop((answer, open));
    for expected in [200, 429] {
        let answer = second.clone().oneshot(again()).await.unwrap();
        assert_eq!(answer.status(), expected);
        let grant = seen.lock().unwrap().get::<Grant>().cloned();
        assert_eq!(
            grant.unwrap().layers().count(),
            1,
            "what is over is forgotten"
        );
    }
}

/// A shadow rule that has not charged does not replace the enforced rule.
#[tokio::test]
async fn an_outer_shadow_rule_does_not_replace_an_inner_one() {
    let store = MemoryStore::new();
    let [tried, kept] = [by_key(2).shadow(), by_key(2)].map(|rule| layer_of(&store, rule));
    assert_eq!(passed(&tried, &kept).await, 2);
}
