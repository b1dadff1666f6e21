//! Users of Redis with the needed permissions, and with fewer.

use kit::{
    permissions,
    resp::command_with_password,
    scene::*,
    traffic::{BY_REDIS, ask, service, service_with},
};
use tower_ratelimit::Error;

const LIMIT: Limit = Limit::per_hour(10);

/// Returns the permissions that the guide calls sufficient, and what it says of exact names: the
/// limiters of these tests have some.
fn enough() -> String {
    format!("{} ~{{ratelimit:*", permissions().join(" "))
}

fn allow(server: &RedisServer, rules: &str) {
    server.obeys(&format!("ACL SETUSER limiter {rules}"));
}

fn store(server: &RedisServer) -> RedisStoreBuilder {
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    // Every refusal is to be the script's.
    let store = hasty(url, secs(5)).deny_cache(Duration::ZERO);
    store.response_timeout(secs(5))
}

/// Everything that a store does: every script, and every branch of one that spells another command.
async fn everything(server: &RedisServer) -> Result<(), String> {
    server.cli(&["FLUSHALL"]);
    server.cli(&["SCRIPT", "FLUSH"]);
    let builder = store(server);
    let store = builder.clone().build().unwrap();
    store.ping().await.map_err(say)?;
    verbs(&store).await.map_err(say)?;
    let service = service(&store, LIMIT, FailurePolicy::Deny);
    expect(ask(&service).await, BY_REDIS)?;
    // The second of two is written in the first one's place.
    let rule = LIMIT.by(Constant("all")).named(&unique("rule"));
    let rule = rule.algorithm(Algorithm::Gcra);
    let service = service_with(&store, rule.on_failure(FailurePolicy::Deny));
    for _ in 0..2 {
        expect(ask(&service).await, BY_REDIS)?;
    }

    // Time by hand, so that entries expire when they should.
    let clock = ManualClock::new();
    let store = builder.client_clock(clock.clone()).build().unwrap();
    let name = unique("ratelimit:orders");
    let limiter = RateLimiter::new(&store, &name).unwrap();
    let limit = Limit::per_second(2);
    expect(limiter.try_set_rate(limit).await.map_err(say)?, true)?;
    expect(limiter.limit().await.map_err(say)?, Some(limit))?;
    let take = async |is_granted: bool| {
        let decision = limiter.try_acquire().await.map_err(say)?;
        expect(decision.is_allowed(), is_granted)
    };
    let (log, value) = (format!("{{{name}}}:permits"), format!("{{{name}}}:value"));
    take(true).await?;
    clock.advance(millis(500));
    take(true).await?;
    take(false).await?;
    // One of two has expired, then all.
    clock.advance(millis(500));
    take(true).await?;
    clock.advance(secs(5));
    expect(limiter.available_permits().await.map_err(say)?, 2)?;
    take(true).await?;
    // Counted again, from the log.
    server.cli(&["DEL", &value]);
    take(true).await?;
    take(false).await?;
    // It is unknown since when.
    server.cli(&["DEL", &log]);
    take(false).await?;

    // Given back, with the limit and without.
    clock.advance(secs(5));
    take(true).await?;
    for limited in [true, false] {
        let mut call = Box::pin(limiter.try_acquire());
        begin(call.as_mut()).await;
        soon(server, &["ZCARD", &log], "2", "not taken").await?;
        if !limited {
            server.cli(&["DEL", &name]);
        }
        drop(call);
        soon(server, &["ZCARD", &log], "1", "not given back").await?;
        soon(server, &["GET", &value], "1", "not credited").await?;
    }
    Ok(())
}

/// Calls that return their error, where requests meet a policy: the first ones of limiters that
/// count in each way, and the verbs that change them.
async fn verbs(store: &RedisStore) -> Result<(), Error> {
    for way in Way::STORED {
        let name = unique("ratelimit:verbs");
        let limiter = way.limiter(RateLimiter::new(store, &name).unwrap());
        let limit = LIMIT.keep_alive(Duration::from_secs(7200)).unwrap();
        limiter.try_set_rate(limit).await?;
        for _ in 0..2 {
            assert!(limiter.try_acquire().await?.is_allowed());
        }
        limiter.set_rate(LIMIT).await?;
        limiter.release(1).await?;
        limiter.available_permits().await?;
        limiter.repair().await?;
        limiter.update_rate(Limit::per_hour(4)).await?;
        limiter.expire(HOUR).await?;
        limiter.clear_expire().await?;
    }
    let name = unique("verbs");
    let quota = Limit::monthly(10).named(&name).single(store).unwrap();
    for limiter in [quota, Way::Gcra.limited(store, LIMIT).await] {
        for _ in 0..2 {
            assert!(limiter.try_acquire().await?.is_allowed());
        }
        limiter.release(1).await?;
        limiter.available_permits().await?;
        limiter.ban_for(HOUR).await?;
        limiter.banned_until().await?;
        assert!(limiter.unban().await?);
    }
    Ok(())
}

/// Waits until Redis answers so, for a short time: most of the runs below end in it.
async fn soon(server: &RedisServer, ask: &[&str], answer: &str, or: &str) -> Result<(), String> {
    let holds = until(or, async || server.cli(ask) == answer);
    let held = tokio::time::timeout(secs(3), holds).await;
    held.map(drop).map_err(|_| or.to_owned())
}

#[allow(clippy::needless_pass_by_value, reason = "of what is made in place")]
fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    (found == expected)
        .then_some(())
        .ok_or_else(|| format!("{found:?} instead of {expected:?}"))
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn say(error: Error) -> String {
    let source = std::error::Error::source(&error).map(ToString::to_string);
    format!("{:?}: {error}: {source:?}", error.kind())
}

#[tokio::test]
async fn the_permissions_in_the_readme_are_enough_and_none_too_many() {
    let server = RedisServer::start();
    allow(&server, &enough());
    everything(&server).await.unwrap();
    let enough = enough();
    // The script of our own format asks for the length of a log, and no limiter there has one yet.
    let needed = |rule: &&str| rule.starts_with('+') && *rule != "+strlen";
    for command in enough.split(' ').filter(needed) {
        let without: Vec<&str> = enough.split(' ').filter(|rule| *rule != command).collect();
        allow(&server, &without.join(" "));
        let missed = everything(&server).await;
        println!("without {command}: {missed:?}");
        let missed = missed.expect_err(command);
        let has_no_caller = match command {
            // Given back in the background.
            "+zrem" => missed == "not given back",
            "+incrby" | "+exists" => missed == "not credited",
            // Of requests alone: a policy decides them.
            "+setrange" => missed == "(503, FailurePolicy) instead of (200, Store)",
            _ => false,
        };
        assert!(
            has_no_caller || missed.starts_with("Rejected: ") && missed.contains("permission"),
            "without {command}: {missed}"
        );
    }
}

/// A server that does not know a script then gets it by EVAL, also for releases.
#[tokio::test]
async fn a_user_who_may_not_load_scripts_may_send_texts() {
    let server = RedisServer::start();
    allow(&server, &enough().replace("+script|load ", "+eval "));
    everything(&server).await.unwrap();
}

/// A script that may not call one command may have written for the first limiters of a list.
#[tokio::test]
async fn a_list_that_was_written_in_part_is_not_granted_when_it_is_asked_again() {
    let server = RedisServer::start();
    allow(&server, &enough());
    let store = store(&server).build().unwrap();
    let each = LIMIT.by(FromHeader::new("x-key")).named("each");
    let all = Limit::per_hour(500).by(Constant("all")).named("all");
    let rules = [each, all].map(|rule| rule.on_failure(FailurePolicy::Deny));
    let layer = layer_of(&store, rules);
    let ask = |key: usize| {
        let request = Request::builder().header("x-key", key);
        let (layer, request) = (layer.clone(), request.body(()).unwrap());
        async move { decide(&layer, request).await.is_allowed() }
    };
    assert!(ask(0).await);
    // The state of `all` is written over in part, and those of new keys whole, before it.
    allow(&server, &enough().replace("+setrange ", ""));
    let asked: JoinSet<_> = (1..=64).map(ask).collect();
    assert_eq!(asked.join_all().await, [false; 64]);
    allow(&server, &enough());
    let asked: JoinSet<_> = (101..=164).map(ask).collect();
    assert_eq!(asked.join_all().await, [true; 64]);
}

/// By a short command, and by one of more than ten arguments, which Redis does not read to its end.
#[tokio::test]
async fn a_missing_password_is_rejected() {
    let server = RedisServer::start();
    server.configure("requirepass", "secret");
    let store = patient(server.url()).build().unwrap();
    let is_rejected = |error: Error| {
        let (kind, message) = (error.kind(), say(error));
        assert_eq!(kind, ErrorKind::Rejected, "{message}");
        assert!(message.contains("Redis wants a password"), "{message}");
    };
    is_rejected(store.ping().await.unwrap_err());
    let limiter = RateLimiter::new(&store, "ratelimit:orders").unwrap();
    is_rejected(limiter.try_set_rate(LIMIT).await.unwrap_err());
    for _ in 0..20 {
        is_rejected(limiter.try_acquire().await.unwrap_err());
    }
    let health = store.health();
    assert_eq!(health.nodes[0].breaker, BreakerState::Closed);

    // As soon as there is none to give, or it is given, it works.
    let open = ["CONFIG", "SET", "requirepass", ""];
    let opened = command_with_password(server.port(), "secret", &open, LONG);
    assert_eq!(opened.unwrap().to_string(), "OK");
    until("it works again", async || {
        limiter.try_set_rate(LIMIT).await.is_ok()
    })
    .await;
    take(&limiter, 1).await;
}
