//! Replacing the rules of a layer while it serves.

use super::*;
use http::request::Parts;
use tower_ratelimit::{HeaderStyle, key::FromParts};

fn all(permits: u64) -> Rule {
    Limit::per_minute(permits).by(PeerIp).named("all")
}

fn rules(permits: u64) -> Rules {
    Rules::new().otherwise(all(permits))
}

/// Returns whether an answer has the fields of draft-6, and of draft-11.
fn has_fields(answer: &Response<()>) -> [bool; 2] {
    ["ratelimit-limit", "ratelimit"].map(|name| answer.headers().contains_key(name))
}

fn get() -> Request<String> {
    request("GET", "/", &[])
}

async fn what_was_counted_stays(store: impl Store) {
    let layer = layer_by(&store, rules(3));
    for left in [2, 1, 0] {
        assert_eq!(met(&layer, get()).await, one("all", 3, left));
    }
    assert_eq!(send(&layer, get()).await.status(), 429);
    // A clone that serves already is the same layer.
    let serving = layer.clone();
    layer.reload(rules(5)).unwrap();
    assert_eq!(met(&serving, get()).await, one("all", 5, 1));
    assert_eq!(met(&serving, get()).await, one("all", 5, 0));
    assert_eq!(send(&serving, get()).await.status(), 429);
    // The same rules again are no change.
    layer.reload(rules(5)).unwrap();
    assert_eq!(send(&serving, get()).await.status(), 429);
    // Another name counts from zero.
    layer
        .reload(Rules::new().otherwise(all(9).named("other")))
        .unwrap();
    assert_eq!(met(&serving, get()).await, one("other", 9, 8));
    layer.reload(rules(5)).unwrap();
    assert_eq!(send(&serving, get()).await.status(), 429);
}

on_both_stores!(what_was_counted_stays);

#[tokio::test]
async fn bad_rules_change_nothing() {
    let store = MemoryStore::new();
    let layer = layer_by(&store, rules(3));
    let on = |pattern| Rules::new().on(pattern, all(7));
    let both = [HeaderStyle::Draft6, HeaderStyle::Draft11];
    let too_dear = "rule \"all\" costs 8 permits";
    let unreached = "\"/login\" is never reached, as \"/{*rest}\" before it";
    for (bad, expected) in [
        (on("/a").on("login", all(7)), "\"login\" is not `/path`"),
        (on("/a").otherwise(all(7).cost(8)), too_dear),
        (on("/a").otherwise(all(8)), "two rules are named \"all\""),
        (rules(7).headers(both), "two header styles"),
        (Rules::new(), "there is no rule"),
        (Rules::new().on("/a", Vec::new()), "there is no rule"),
        (on("/{*rest}").on("/login", all(7)), unreached),
    ] {
        let error = layer.reload(bad).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(met(&layer, get()).await, one("all", 3, 2));
    // Nor do they keep the names that they would have had.
    let kept = RateLimitLayer::builder(&store).rules(rules(7)).build();
    assert!(is_duplicate(&kept.unwrap_err()));
    let same = RateLimitLayer::builder(&store).rules(rules(3)).build();
    assert!(same.is_ok());
}

fn is_duplicate(error: &ConfigError) -> bool {
    error.kind() == ConfigErrorKind::Duplicate
        && error
            .reason()
            .starts_with("a rule of another layer on this store, or a `Limit::named`, is named")
}

/// Names are the layer's as long as it has the rules, and no longer.
#[tokio::test]
async fn names_go_with_the_rules() {
    let store = MemoryStore::new();
    let builder = || RateLimitLayer::builder(&store);
    let build = |permits| builder().rules(rules(permits)).build();
    let (first, second) = (build(3).unwrap(), build(3).unwrap());
    // The other one counts in the same place, by the old limit.
    assert!(is_duplicate(&first.reload(rules(5)).unwrap_err()));
    assert_eq!(met(&first, get()).await, one("all", 3, 2));
    drop(second);
    first.reload(rules(5)).unwrap();
    assert!(is_duplicate(&build(3).unwrap_err()));
    assert!(build(5).is_ok());
    first
        .reload(Rules::new().otherwise(all(9).named("other")))
        .unwrap();
    assert!(build(3).is_ok());
}

/// A request keeps the rules that it met until it is decided, and a layer's own rules are never in
/// its way.
#[tokio::test]
async fn a_request_may_be_decided_by_rules_of_several_reloads_ago() {
    let reloads = Arc::new(Mutex::new(None::<RateLimitLayer>));
    let during = Arc::clone(&reloads);
    // The key is looked for while the request has the rules.
    let key = FromParts(move |_: &Parts| {
        if let Some(layer) = during.lock().unwrap().take() {
            for permits in 4..8 {
                layer.reload(rules(permits)).unwrap();
            }
        }
        Some("all")
    });
    let by_key = Limit::per_minute(3).by(key).named("reloads");
    let layer = layer_by(
        &MemoryStore::new(),
        Rules::new().otherwise([all(3), by_key]),
    );
    *reloads.lock().unwrap() = Some(layer.clone());
    assert_eq!(met(&layer, get()).await.len(), 2);
    assert_eq!(met(&layer, get()).await, one("all", 7, 5));
}

/// A file that is read again makes the same rules, whatever its keys consist of.
#[test]
fn a_file_is_the_same_rules_each_time_it_is_read() {
    let header = String::from("x-user");
    let user =
        FromParts(move |parts: &Parts| Some(parts.headers.get(&header)?.as_bytes().to_vec()));
    let secret = Secret::new("k1", "s".repeat(32)).unwrap();
    let file = RulesFile::new().key("user", user).secret(&secret);
    for (key, by) in [
        ("", "\"header:x-tenant or skip\""),
        ("", "\"peer or user or shared\""),
        ("", "[\"user\", \"route\"]"),
        ("", "\"user or skip\""),
        (
            "[keys.digested]\nfrom = \"user\"\ndigest = \"k1\"",
            "\"digested\"",
        ),
    ] {
        let read = |rate: &str| {
            let rule = format!("[rules.all]\nrate = \"{rate}\"\nby = {by}");
            let text =
                format!("{key}\n{rule}\n[[on]]\nroute = \"/{{*rest}}\"\nrules = [\"all\"]\n");
            file.parse(&text).unwrap()
        };
        let store = MemoryStore::new();
        let build = |rate| RateLimitLayer::builder(&store).rules(read(rate)).build();
        let (first, second) = (build("3/1m").unwrap(), build("3/1m").unwrap());
        first.reload(read("3/1m")).unwrap();
        second.reload(read("3/1m")).unwrap();
        let other = build("4/1m").unwrap_err().to_string();
        assert!(other.contains("and differs in limit, key"), "{by}: {other}");
    }
}

#[tokio::test]
async fn fields_change_with_the_rules() {
    let builder = RateLimitLayer::builder(&MemoryStore::new()).rules(rules(9));
    let layer = builder.headers([HeaderStyle::Draft6]).build().unwrap();
    let fields = async || has_fields(&send(&layer, get()).await);
    assert_eq!(fields().await, [true, false]);
    let newer = rules(9).headers([HeaderStyle::Draft11]);
    layer.reload(newer).unwrap();
    assert_eq!(fields().await, [false, true]);
    layer.reload(rules(9).headers([])).unwrap();
    assert_eq!(fields().await, [false, false]);
    // Rules that do not choose take the builder's.
    layer.reload(rules(9)).unwrap();
    assert_eq!(fields().await, [true, false]);
}

/// A request that waits while the rules are replaced is answered by the rules that it met, in their
/// header fields.
#[cfg(feature = "test-util")]
#[tokio::test]
async fn a_request_that_waits_keeps_its_rules_and_fields() {
    let (store, clock) = MemoryStore::builder().build_manual();
    let limit = Limit::new(1, Duration::from_secs(10)).by(PeerIp);
    let old = limit.named("old").wait(Duration::from_secs(15));
    let old = Rules::new().otherwise(old).headers([HeaderStyle::Draft6]);
    let layer = layer_by(&store, old);
    let shown = |answer: &Response<()>| {
        let limit = decision_of(answer).limits().next().unwrap();
        (limit.name().to_owned(), has_fields(answer))
    };
    assert_eq!(send(&layer, get()).await.status(), 200);
    let waiting = layer.clone();
    let waiting = tokio::spawn(async move { send(&waiting, get()).await });
    until("it waits", async || clock.sleepers() > 0).await;
    let new = rules(3).headers([HeaderStyle::Draft11]);
    layer.reload(new).unwrap();
    let answer = send(&layer, get()).await;
    assert_eq!(shown(&answer), ("all".to_owned(), [false, true]));
    clock.advance(Duration::from_secs(10));
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(shown(&answer), ("old".to_owned(), [true, false]));
}

/// Requests during reloads meet one table or the other: all rules of the one or all of the other,
/// and the header fields of the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_sees_one_table() {
    let styles = [("red", HeaderStyle::Draft6), ("blue", HeaderStyle::Draft11)];
    let tables = styles.map(|(color, style)| {
        let rule = |n: u64| {
            let limit = Limit::new(1_000_000_000 + n, Duration::from_secs(60));
            limit.by(Constant("all")).named(&format!("{color}-{n}"))
        };
        Rules::new()
            .on("/", [rule(1), rule(2), rule(3)])
            .headers([style])
    });
    let store = MemoryStore::new();
    let layer = layer_by(&store, tables[0].clone());
    let enough = Arc::new(AtomicUsize::new(0));
    let mut asking = JoinSet::new();
    for _ in 0..3 {
        let (layer, enough) = (layer.clone(), Arc::clone(&enough));
        asking.spawn(async move {
            let mut seen = [0, 0];
            while seen.contains(&0) || enough.load(Ordering::Relaxed) < 500 {
                let answer = send(&layer, get()).await;
                let limits = decision_of(&answer).limits();
                let mut met: Vec<_> = limits.map(|limit| limit.name().to_owned()).collect();
                met.sort();
                let place = ["red", "blue"]
                    .iter()
                    .position(|color| met == [1, 2, 3].map(|n| format!("{color}-{n}")));
                let place = place.unwrap_or_else(|| panic!("{met:?}"));
                assert_eq!(has_fields(&answer), [place == 0, place == 1], "{met:?}");
                seen[place] += 1;
                tokio::task::yield_now().await;
            }
        });
    }
    let turn = tokio::spawn(async move {
        for round in 0.. {
            layer.reload(tables[round % 2].clone()).unwrap();
            enough.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    in_time(async {
        asking.join_all().await;
    })
    .await;
    turn.abort();
}

/// The error has line and field also for a check that only the store can make.
#[tokio::test]
async fn an_error_found_by_the_store_has_the_line() {
    let store = MemoryStore::new();
    let layer = layer_by(&store, rules(3));
    let text = "[rules.all]\nrate = '4/1m'\nby = 'peer'\n[otherwise]\nrules = ['all']";
    let parsed = file().parse(text).unwrap();
    let built = RateLimitLayer::builder(&store)
        .rules(parsed.clone())
        .build();
    let error = built.unwrap_err();
    let expected = "line 1, rules.all: a rule of another layer on this store";
    assert!(error.to_string().starts_with(expected), "{error}");
    layer.reload(parsed).unwrap();
    assert_eq!(met(&layer, get()).await, one("all", 4, 3));
}
