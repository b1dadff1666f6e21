//! The cost of a decision for Redis: one command, as the server itself sees it.

use crate::feed::Feed;
use crate::scene::*;

const LIMIT: Limit = Limit::per_hour(3);

fn patient(server: &RedisServer) -> RedisStore {
    // What a refusal costs is counted here.
    let store = crate::scene::patient(server.url()).deny_cache(Duration::ZERO);
    store.build().unwrap()
}

/// The commands that clients have sent, without their arguments.
fn commands(feed: &mut Feed, server: &RedisServer) -> Vec<String> {
    feed.until_now(server)
        .into_iter()
        .filter(|seen| !seen.by_script)
        .map(|mut seen| seen.words.swap_remove(0))
        .collect()
}

/// Returns whether the user's request was admitted; Redis decided that.
async fn ask(layer: &RateLimitLayer, user: &str) -> bool {
    let inner = service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let request = Request::builder().header("x-user", user).body(()).unwrap();
    let response = layer.layer(inner).oneshot(request).await.unwrap();
    let decision = response.extensions().get::<Decision>().unwrap();
    assert_eq!(decision.source(), Source::Store);
    decision.is_allowed()
}

#[tokio::test]
async fn a_layers_decision_is_one_command() {
    let server = RedisServer::start();
    let mut feed = Feed::open(&server);
    let rule = LIMIT.by(FromHeader::new("x-user"));
    let layer = RateLimitLayer::new(&patient(&server), rule.clone());

    // Setting the connection up takes what it takes; then the script is not there yet.
    assert!(ask(&layer, "ann").await);
    let first = commands(&mut feed, &server);
    let set_up = first.len() - 3;
    assert_eq!(first[set_up..], ["EVALSHA", "SCRIPT", "EVALSHA"]);
    assert!(
        first[..set_up].iter().all(|command| command == "CLIENT"),
        "{first:?}"
    );

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
        assert_eq!(ask(&layer, user).await, allowed);
        assert_eq!(commands(&mut feed, &server), ["EVALSHA"], "{user}");
    }

    // Another process, whose connection is new and whose script is known.
    let other = RateLimitLayer::new(&patient(&server), rule);
    assert!(ask(&other, "bob").await);
    let first = commands(&mut feed, &server);
    assert_eq!(first.len(), set_up + 1, "{first:?}");
    assert_eq!(first[set_up], "EVALSHA");

    server.cli(&["SCRIPT", "FLUSH"]);
    commands(&mut feed, &server);
    assert!(!ask(&layer, "bob").await);
    assert_eq!(
        commands(&mut feed, &server),
        ["EVALSHA", "SCRIPT", "EVALSHA"]
    );
    assert!(!ask(&layer, "bob").await);
    assert_eq!(commands(&mut feed, &server), ["EVALSHA"]);
}

#[tokio::test]
async fn a_limiters_decision_is_one_command() {
    let server = RedisServer::start();
    let store = patient(&server);
    let name = unique("orders");
    let limiter = RateLimiter::new(&store, &name).unwrap();
    assert!(limiter.try_set_rate(LIMIT).await.unwrap());
    assert!(limiter.try_acquire().await.unwrap().is_allowed());

    let mut feed = Feed::open(&server);
    for (permits, allowed) in [(1, true), (4, false), (2, false), (1, true), (1, false)] {
        let decision = limiter.try_acquire_many(permits).await.unwrap();
        assert_eq!(decision.is_allowed(), allowed, "{permits}");
        assert_eq!(commands(&mut feed, &server), ["EVALSHA"], "{permits}");
    }
    // Also a limiter without a limit.
    let unset = RateLimiter::new(&store, &unique("orders")).unwrap();
    assert!(unset.try_acquire().await.unwrap_err().is_not_initialized());
    assert_eq!(commands(&mut feed, &server), ["EVALSHA"]);
    limiter.limit().await.unwrap();
    assert_eq!(commands(&mut feed, &server), ["HMGET"]);
}

/// The entries that one call reads are bounded, however high its cost: all other calls wait
/// meanwhile.
#[tokio::test]
async fn a_large_cost_reads_no_more_than_a_page() {
    let server = RedisServer::start();
    let store = patient(&server);
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
    const SECRET: &str = "do not tell anybody about this one";
    let server = RedisServer::start();
    let mut feed = Feed::open(&server);
    let secret = Secret::new("k1", SECRET).unwrap();
    let key = FromHeader::credential("x-user").digest(&secret);
    let layer = RateLimitLayer::new(&patient(&server), LIMIT.by(key));
    assert!(ask(&layer, "hunter2").await);
    let seen = format!("{:?}", feed.until_now(&server));
    assert!(seen.contains("ratelimit:{k1."), "{seen}");
    assert!(
        !seen.contains("hunter2") && !seen.contains(SECRET),
        "{seen}"
    );
}

/// Every key that a script uses is declared, so that a Cluster can route it: the same five each
/// time.
#[tokio::test]
async fn scripts_touch_no_undeclared_key() {
    let server = RedisServer::start();
    let mut feed = Feed::open(&server);
    let layer = RateLimitLayer::new(&patient(&server), LIMIT.by(FromHeader::new("x-user")));
    for _ in 0..4 {
        ask(&layer, "ann").await;
    }
    let mut keys = Vec::new();
    let mut inner = 0;
    for seen in feed.until_now(&server) {
        if seen.words[0].starts_with("EVAL") {
            assert_eq!(seen.words[2], "5");
            keys = seen.words[3..8].to_vec();
        } else if seen.by_script && seen.words[0] != "TIME" {
            assert!(keys.contains(&seen.words[1]), "{seen:?}");
            inner += 1;
        }
    }
    assert!(inner > 8, "{inner}");
}
