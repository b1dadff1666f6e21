//! The cost of a decision for Redis: one command, as the server itself sees it.

use kit::{
    monitor::{Feed, Seen},
    scene::*,
};
use tower_ratelimit::observe::Metrics;

const LIMIT: Limit = Limit::per_hour(3);

/// A store that asks Redis about each request: what a refusal costs is counted here, too.
fn asking(server: &RedisServer) -> RedisStore {
    let store = patient(server.url()).deny_cache(Duration::ZERO);
    store.build().unwrap()
}

/// The commands that clients have sent, without their arguments, and how many scripts have sent.
/// Scripts touch no key but the `keys` that their call declares, so that a Cluster can route it.
fn commands(feed: &mut Feed, server: &RedisServer, keys: usize) -> (Vec<String>, usize) {
    let (mut sent, mut inner, mut declared) = (Vec::new(), 0, Vec::new());
    for Seen {
        by_script,
        mut words,
        ..
    } in feed.until_now(server)
    {
        if by_script {
            assert!(
                words[0] == "TIME" || declared.contains(&words[1]),
                "{words:?}"
            );
            inner += 1;
            continue;
        }
        if words[0].starts_with("EVAL") {
            assert_eq!(words[2], keys.to_string());
            declared = words[3..3 + keys].to_vec();
        }
        sent.push(words.swap_remove(0));
    }
    (sent, inner)
}

/// Returns whether the user's request was admitted; Redis decided that.
async fn ask(layer: &RateLimitLayer, user: &str) -> bool {
    let decision = decide(layer, kit::scene::asking("GET /", &[("x-user", user)])).await;
    assert_eq!(decision.source(), Source::Store);
    decision.is_allowed()
}

/// One command, whatever counts and however many limits there are.
#[tokio::test]
async fn a_layers_decision_is_one_command() {
    let user = || LIMIT.by(FromHeader::new("x-user"));
    let many = Limit::per_hour(30);
    let list = vec![
        user().named("user"),
        many.by(FromHeader::new("x-user")).named("many").cost(3),
        many.by(Constant("all")).named("all"),
    ];
    for (what, keys, rules) in [
        ("a log", 1, vec![user()]),
        ("GCRA", 1, vec![user().algorithm(Algorithm::Gcra)]),
        ("a list", 3, list),
    ] {
        let server = RedisServer::start();
        let mut feed = Feed::open(&server);
        let layer = || layer_of(&asking(&server), rules.clone());
        let (first, other) = (layer(), layer());
        let mut touched = 0;
        let mut sent = || {
            let (sent, inner) = commands(&mut feed, &server, keys);
            touched += inner;
            sent
        };

        // Setting the connection up takes what it takes; then the script is not there yet.
        assert!(ask(&first, "ann").await, "{what}");
        let seen = sent();
        let set_up = seen.len() - 3;
        assert_eq!(seen[set_up..], ["EVALSHA", "SCRIPT", "EVALSHA"], "{what}");
        let is_client = |command: &String| command == "CLIENT";
        assert!(seen[..set_up].iter().all(is_client), "{what}: {seen:?}");

        // New keys, grants, refusals, more than was ever granted: one each.
        for (user, allowed) in [
            ("ann", true),
            ("ann", true),
            ("ann", false),
            ("bob", true),
            ("eve", true),
            ("bob", true),
            ("ann", false),
        ] {
            assert_eq!(ask(&first, user).await, allowed, "{what}: {user}");
            assert_eq!(sent(), ["EVALSHA"], "{what}: {user}");
        }

        // Another process, whose connection is new and whose script is known.
        assert!(ask(&other, "bob").await, "{what}");
        let seen = sent();
        assert_eq!(seen.len(), set_up + 1, "{what}: {seen:?}");
        assert_eq!(seen[set_up], "EVALSHA", "{what}");

        server.cli(&["SCRIPT", "FLUSH"]);
        sent();
        assert!(!ask(&first, "bob").await, "{what}");
        assert_eq!(sent(), ["EVALSHA", "SCRIPT", "EVALSHA"], "{what}");
        assert!(!ask(&first, "bob").await, "{what}");
        assert_eq!(sent(), ["EVALSHA"], "{what}");
        assert!(touched > 8, "{what}: {touched}");
    }
}

/// What is counted is known anyway: observed or not, scripts do the same, and read no more.
#[tokio::test]
async fn metrics_make_redis_do_no_more() {
    let done = async |observed: bool| {
        let server = RedisServer::start();
        let clock = ManualClock::new();
        let store = patient(server.url()).deny_cache(Duration::ZERO);
        let store = store.client_clock(clock.clone());
        let store = if observed {
            store.observe(Arc::new(Metrics::new()))
        } else {
            store.summary(None)
        };
        let in_redisson = store.clone().redisson().build().unwrap();
        let store = store.build().unwrap();
        let mut feed = Feed::open(&server);
        let own = Way::OWN.into_iter().map(|way| (way, &store));
        let stored = Way::STORED.into_iter().map(|way| (way, &in_redisson));
        for (place, (way, store)) in own.chain(stored).enumerate() {
            for counted in [true, false] {
                let rule = LIMIT.by(FromHeader::new("x-user"));
                let rule = way.rule(rule.named(&format!("{counted}-{place}")));
                let layer = RateLimitLayer::builder(store).otherwise(rule);
                let layer = layer.count_remaining(counted).build().unwrap();
                for user in ["ann", "ann", "bob", "ann", "ann", "ann"] {
                    let _ = ask(&layer, user).await;
                    clock.advance(secs(1000));
                }
            }
        }
        let seen = feed.until_now(&server).into_iter();
        seen.map(|seen| (seen.by_script, seen.words[0].clone()))
            .collect::<Vec<_>>()
    };
    let (observed, unobserved) = (done(true).await, done(false).await);
    assert!(unobserved.len() > 100, "{}", unobserved.len());
    assert_eq!(observed, unobserved);
}

#[tokio::test]
async fn a_limiters_decision_is_one_command() {
    let server = RedisServer::start();
    let store = asking(&server);
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    assert!(limiter.try_set_rate(LIMIT).await.unwrap());
    take(&limiter, 1).await;

    let mut feed = Feed::open(&server);
    let mut sent = || commands(&mut feed, &server, 5).0;
    for (permits, allowed) in [(1, true), (4, false), (2, false), (1, true), (1, false)] {
        let decision = limiter.try_acquire_many(permits).await.unwrap();
        assert_eq!(decision.is_allowed(), allowed, "{permits}");
        assert_eq!(sent(), ["EVALSHA"], "{permits}");
    }
    // Also a limiter without a limit.
    let unset = RateLimiter::new(&store, "unset").unwrap();
    fails(unset.try_acquire().await, ErrorKind::NotInitialized);
    assert_eq!(sent(), ["EVALSHA"]);
    limiter.limit().await.unwrap();
    assert_eq!(sent(), ["HMGET"]);
}

/// The entries that one call reads are bounded, however high its cost: all other calls wait
/// meanwhile.
#[tokio::test]
async fn a_large_cost_reads_no_more_than_a_page() {
    let server = RedisServer::start();
    let store = asking(&server);
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    assert!(limiter.try_set_rate(Limit::per_hour(1000)).await.unwrap());
    server.cli(&["SET", "{orders}:value", "499"]);
    let now = SystemClock.now().as_millis();
    // The first has expired.
    for (number, score) in std::iter::once(1).chain(vec![now; 500]).enumerate() {
        let member = format!("\u{10}{number:016}\u{1}\0\0\0");
        server.cli(&["ZADD", "{orders}:permits", &score.to_string(), &member]);
    }
    let layer = RateLimitLayer::builder(&store)
        .otherwise(Rule::shared("orders").cost(500))
        .count_remaining(false)
        .build()
        .unwrap();
    let mut feed = Feed::open(&server);
    assert!(ask(&layer, "ann").await);
    let mut pages = 0;
    for seen in feed.until_now(&server).iter().filter(|seen| seen.by_script) {
        if let [command, _, first, last, ..] = &*seen.words
            && command == "ZRANGE"
        {
            let [first, last] = [first, last].map(|rank| rank.parse::<i64>().unwrap());
            assert!(last - first <= 100, "{:?}", seen.words);
            pages += 1;
        }
    }
    assert!(pages > 0, "it looked for what has expired");
}

/// An observer of Redis sees a digest, and neither the credential nor the secret.
#[tokio::test]
async fn a_digested_credential_does_not_reach_redis() {
    const SECRET: &str = "a secret that is not for the server";
    let server = RedisServer::start();
    let mut feed = Feed::open(&server);
    let secret = Secret::new("k1", SECRET).unwrap();
    let key = FromHeader::credential("x-user").digest(&secret);
    let layer = RateLimitLayer::new(&asking(&server), LIMIT.by(key));
    assert!(ask(&layer, "hunter2").await);
    let seen = format!("{:?}", feed.until_now(&server));
    assert!(seen.contains("ratelimit:{k1."), "{seen}");
    assert!(
        !seen.contains("hunter2") && !seen.contains(SECRET),
        "{seen}"
    );
}
