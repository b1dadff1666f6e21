//! Bans as several processes see them, and what they cost: see `tests/web/tower/bans.rs` for what
//! they mean, and `tests/laws` for when they end, by either clock.

use kit::{Cluster, scene::*};
use tower_ratelimit::{
    Ban,
    observe::{Observer, StoreCall},
};

const MINUTE: Duration = secs(60);
/// For how long a process repeats what it knows: also by the time of a busy machine
const CAP: Duration = secs(30);

/// The number of calls that decide.
#[derive(Debug, Default)]
struct Calls(AtomicUsize);

impl Observer for Calls {
    fn called(&self, event: &StoreCall<'_>) {
        let decides = usize::from(event.callers > 0);
        self.0.fetch_add(decides, Ordering::SeqCst);
    }
}

/// A process with a rule of its own, whose cost is the path.
struct Instance {
    store: RedisStore,
    layer: RateLimitLayer,
    seen: Arc<Calls>,
}

impl Instance {
    fn new(store: RedisStoreBuilder, rule: Rule) -> Self {
        let seen = Arc::new(Calls::default());
        let store = store.observe(seen.clone()).build().unwrap();
        let cost = |parts: &http::request::Parts| parts.uri.path()[1..].parse().unwrap_or(1);
        let layer = layer_of(&store, rule.cost_by(cost));
        Self { store, layer, seen }
    }

    async fn ask(&self, cost: u32) -> Option<(RefusalKind, Source)> {
        let request = asking(&format!("GET /{cost}"), &[("x-key", "ann")]);
        let decision = decide(&self.layer, request).await;
        let source = decision.source();
        match decision {
            Decision::Allow(_) => None,
            Decision::Deny(refusal) => Some((refusal.kind(), source)),
        }
    }

    fn limiter(&self) -> RateLimiter {
        self.layer.limiter("api", ["ann"]).unwrap()
    }

    /// Returns how many calls there were since the last time.
    fn calls(&self) -> usize {
        self.seen.0.swap(0, Ordering::SeqCst)
    }
}

const OVER: Option<(RefusalKind, Source)> = Some((RefusalKind::OverLimit, Source::Store));
const OVER_AGAIN: Option<(RefusalKind, Source)> = Some((RefusalKind::OverLimit, Source::Cache));
const BANNED: Option<(RefusalKind, Source)> = Some((RefusalKind::Banned, Source::Store));
const BANNED_AGAIN: Option<(RefusalKind, Source)> = Some((RefusalKind::Banned, Source::Cache));
const BANNED_HERE: Option<(RefusalKind, Source)> = Some((RefusalKind::Banned, Source::Local));

fn rule(permits: u64, after: u32) -> Rule {
    let ban = Ban::after(after).within(MINUTE).lasting(15 * MINUTE);
    let rule = Limit::per_hour(permits).by(FromHeader::new("x-key"));
    rule.named("api").ban(ban)
}

/// Returns stores of two processes, and their clock.
fn two(rule: &Rule) -> (ManualClock, [Instance; 2]) {
    let (clock, prefix) = (ManualClock::new(), unique("bans"));
    let process = || {
        let store = shared_by_clock(&clock).prefix(&prefix).deny_cache(CAP);
        Instance::new(store, rule.clone())
    };
    let processes = [process(), process()];
    (clock, processes)
}

#[tokio::test]
async fn the_next_call_reports_refusals_from_memory() {
    let (_, [here, there]) = two(&rule(3, 6));
    assert_eq!(here.ask(3).await, None);
    assert_eq!(here.ask(1).await, OVER);
    assert_eq!(here.ask(1).await, OVER_AGAIN);
    assert_eq!(here.ask(1).await, OVER_AGAIN);
    // The other process knows of one so far.
    assert_eq!(there.ask(1).await, OVER);
    assert_eq!(here.ask(2).await, OVER);
    // That was the fifth.
    assert_eq!(there.ask(2).await, BANNED);
    assert_eq!(here.ask(3).await, BANNED);
}

/// Whatever it costs: a refusal that is cached is of one cost.
#[tokio::test]
async fn a_banned_flood_costs_two_calls_in_a_cap_at_most() {
    const CAPS: u32 = 10;
    let (clock, [here, _]) = two(&rule(10_000, 1));
    assert_eq!(here.ask(10_000).await, None);
    assert_eq!(here.ask(1).await, BANNED);
    here.calls();
    let began = Instant::now();
    for cost in 1..10_001 {
        clock.advance(CAP * CAPS / 10_000);
        assert_eq!(here.ask(cost).await.unwrap().0, RefusalKind::Banned);
    }
    let calls = here.calls();
    // Those in which it is asked, too.
    let caps = CAPS as usize + (began.elapsed().as_secs() / CAP.as_secs()) as usize;
    assert!((1..=2 * caps).contains(&calls), "{calls} calls in {caps}");
}

#[tokio::test]
async fn another_process_lifts_a_ban_within_a_cap() {
    let (clock, [here, there]) = two(&rule(9, 1));
    here.limiter().ban_for(MINUTE).await.unwrap();
    assert_eq!(here.ask(1).await, BANNED);
    assert!(there.limiter().unban().await.unwrap());
    assert_eq!(here.ask(1).await, BANNED_AGAIN);
    clock.advance(CAP);
    assert_eq!(here.ask(1).await, None);
    // Its own verb at once.
    here.limiter().ban_for(MINUTE).await.unwrap();
    assert_eq!(here.ask(1).await, BANNED);
    assert!(here.limiter().unban().await.unwrap());
    assert_eq!(here.ask(1).await, None);
}

/// Callers of a key that come together: the third refusal is the first that bans.
#[tokio::test]
async fn of_refusals_in_one_call_the_last_bans() {
    for redisson in [false, true] {
        let store = patient(RedisServer::shared().url()).prefix(&unique("bans"));
        let store = if redisson { store.redisson() } else { store };
        let here = Instance::new(store, rule(1, 3));
        let ask = || here.ask(1);
        let asked: [_; 5] = tokio::join!(ask(), ask(), ask(), ask(), ask()).into();
        let kinds = asked.map(|refused| refused.map(|(kind, _)| kind));
        let [over, banned] = [RefusalKind::OverLimit, RefusalKind::Banned].map(Some);
        assert_eq!(kinds, [None, over, over, banned, banned], "{redisson}");
    }
}

/// In Redisson's format no call for a ban names a key of ours.
#[tokio::test]
async fn a_user_of_redissons_keys_alone_is_banned() {
    let server = RedisServer::start();
    server.obeys("ACL SETUSER java on >secret ~java:{ann}:api ~java:{ann}:api:* +@all");
    let url = format!("redis://java:secret@{}/", server.address());
    let here = Instance::new(patient(url).prefix("java").redisson(), rule(10, 2));
    for (cost, refused) in [(10, None), (1, OVER), (2, BANNED)] {
        assert_eq!(here.ask(cost).await, refused, "{cost}");
    }
    assert!(here.limiter().unban().await.unwrap());
}

/// While one asks again, the others are refused from memory.
#[tokio::test]
async fn one_caller_asks_whether_a_ban_still_holds() {
    let (clock, [here, _]) = two(&rule(9, 1));
    here.limiter().ban_for(MINUTE).await.unwrap();
    assert_eq!(here.ask(1).await, BANNED);
    clock.advance(CAP);
    here.calls();
    let (first, second, third) = tokio::join!(here.ask(1), here.ask(2), here.ask(3));
    assert_eq!([first, second, third], [BANNED, BANNED_AGAIN, BANNED_AGAIN]);
    assert_eq!(here.calls(), 1);
}

#[tokio::test]
async fn a_known_ban_outlasts_an_outage_and_a_process_bans_by_itself() {
    let mut server = RedisServer::start();
    let clock = ManualClock::new();
    let store = patient(server.url()).client_clock(clock.clone());
    let here = Instance::new(store, rule(1, 2));
    here.limiter().ban_for(MINUTE).await.unwrap();
    assert_eq!(here.ask(1).await, BANNED);
    server.kill();
    for _ in 0..59 {
        clock.advance(SECOND);
        assert_eq!(here.ask(1).await, BANNED_AGAIN);
    }
    clock.advance(SECOND);
    // By the local share.
    assert_eq!(here.ask(1).await, None);
    let over_here = Some((RefusalKind::OverLimit, Source::Local));
    assert_eq!(here.ask(1).await, over_here);
    assert_eq!(here.ask(1).await, BANNED_HERE);
    clock.advance(15 * MINUTE - millis(1));
    assert_eq!(here.ask(1).await, BANNED_HERE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_several_hash_slots_bans_and_is_banned() {
    let cluster = Cluster::start();
    let per_key = |name: &str| Limit::per_hour(9).by(FromHeader::new("x-key")).named(name);
    let ban = Ban::after(1).within(MINUTE).lasting(MINUTE);
    let [here, there] = [0, 1].map(|_| {
        let store = patiently(RedisStore::cluster(cluster.urls()));
        let store = store.build().unwrap();
        let all = Limit::per_hour(50).by(Constant("all")).named("all");
        // Of two identities: two calls.
        let rules = [per_key("one"), per_key("two"), all];
        layer_of(&store, rules.map(|rule| rule.ban(ban)))
    });
    for number in 0..9 {
        let key = format!("caller-{number}");
        let ask =
            async |layer: &RateLimitLayer| decide(layer, asking("GET /", &[("x-key", &key)])).await;
        assert!(ask(&here).await.is_allowed());
        let two = here.limiter("two", [&key]).unwrap();
        two.ban_for(MINUTE).await.unwrap();
        assert_eq!(refused(ask(&there).await).kind(), RefusalKind::Banned);
        assert_eq!(refused(ask(&here).await).kind(), RefusalKind::Banned);
    }
}

#[tokio::test]
async fn where_redis_is_full_a_refusal_stands_and_counts_for_nothing() {
    let server = RedisServer::start();
    for redisson in [false, true] {
        let store = patient(server.url()).prefix(&unique("bans"));
        let store = if redisson { store.redisson() } else { store };
        let here = Instance::new(store, rule(10, 3));
        assert_eq!(here.ask(10).await, None);
        server.configure("maxmemory", "1");
        for cost in 1..=4 {
            assert_eq!(here.ask(cost).await, OVER, "{cost}");
        }
        server.configure("maxmemory", "0");
        for (cost, refused) in [(5, OVER), (6, OVER), (7, BANNED)] {
            assert_eq!(here.ask(cost).await, refused, "{cost}");
        }
    }
}

#[tokio::test]
async fn where_redis_is_full_a_ban_by_hand_fails() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let own = RateLimiter::of_rule(&store, "own").unwrap();
    for limiter in [own, RateLimiter::new(&store, "shared").unwrap()] {
        server.configure("maxmemory", "1");
        let error = limiter.ban_for(MINUTE).await.unwrap_err();
        assert!(error.to_string().contains("memory"), "{error}");
        server.configure("maxmemory", "0");
        assert_eq!(limiter.banned_until().await.unwrap(), None);
        limiter.ban_for(MINUTE).await.unwrap();
        assert!(limiter.banned_until().await.unwrap().is_some());
    }
}

/// Asks for 40 keys at once. Returns why each was refused, if it was.
async fn ask_at_once(layer: &RateLimitLayer) -> Vec<Option<RefusalKind>> {
    let asking = (0..40).map(|key| {
        let request = asking("GET /1", &[("x-key", &format!("key{key}"))]);
        let layer = layer.clone();
        tokio::spawn(async move { decide(&layer, request).await })
    });
    let asking: Vec<_> = asking.collect();
    let mut kinds = Vec::new();
    for asked in asking {
        kinds.push(match asked.await.unwrap() {
            Decision::Allow(_) => None,
            Decision::Deny(refusal) => Some(refusal.kind()),
        });
    }
    kinds
}

/// Callers of different keys share calls, and what is wrong with one key is that of its caller.
#[tokio::test]
async fn calls_for_different_keys_go_together() {
    let (_, [process, _]) = two(&rule(1, 2));
    let limiter = |key: usize| {
        let key = format!("key{key}");
        process.layer.limiter("api", [&*key]).unwrap()
    };
    // Nothing is known of a key of another type, and its caller is counted here.
    let wrong = limiter(7);
    RedisServer::shared().command(&["SET", &format!("{}~:ban", wrong.name()), "x"]);
    let (over, banned) = (RefusalKind::OverLimit, RefusalKind::Banned);
    for expected in [None, Some(over), Some(banned)] {
        let kinds = ask_at_once(&process.layer).await;
        let others = kinds.iter().enumerate().filter(|(key, _)| *key != 7);
        for (key, kind) in others {
            assert_eq!(*kind, expected, "{key}");
        }
        let calls = process.calls();
        assert!((2..12).contains(&calls), "{calls} calls of 40 callers");
    }
    assert!(limiter(3).banned_until().await.unwrap().is_some());
}

/// A call that reads many refusals would delay those beside it.
#[tokio::test]
async fn calls_that_read_much_go_alone() {
    let (_, [process, _]) = two(&rule(1, 101));
    let second = |name| Limit::per_hour(9).by(FromHeader::new("x-key")).named(name);
    let shadow = [rule(1, 3).named("list"), second("second").shadow()];
    let shadow = layer_of(&process.store, shadow);
    let list = [rule(1, 3).named("other"), second("third")];
    let list = layer_of(&process.store, list);
    for (layer, alone) in [(&process.layer, true), (&shadow, false), (&list, false)] {
        for expected in [None, Some(RefusalKind::OverLimit)] {
            assert_eq!(ask_at_once(layer).await, [expected; 40]);
            let calls = process.calls();
            assert!(if alone { calls == 40 } else { calls < 12 }, "{calls}");
        }
    }
}

/// A list whose shadow rule cannot be counted is asked again without it, and no other list is.
#[tokio::test]
async fn a_shadow_that_cannot_be_counted_costs_its_own_list_a_call() {
    let (_, [process, _]) = two(&rule(1, 3));
    let foreign = Limit::per_hour(9).by(FromHeader::new("x-key"));
    let layer = layer_of(
        &process.store,
        [rule(1, 3), foreign.named("foreign").shadow()],
    );
    let wrong = layer.limiter("foreign", ["key7"]).unwrap();
    RedisServer::shared().command(&["SET", &format!("{}~", wrong.name()), "not ours"]);
    for expected in [None, Some(RefusalKind::OverLimit)] {
        assert_eq!(ask_at_once(&layer).await, [expected; 40]);
        let calls = process.calls();
        assert!((2..14).contains(&calls), "{calls}");
    }
    // What a closure returns is not known when the layer is built.
    let several = limit_by(|_: &http::request::Parts| Limit::per_hour(9).and(Limit::per_minute(5)));
    let several = Rule::new("several", several, FromHeader::new("x-key"));
    let several = several.algorithm(Algorithm::Gcra).shadow();
    let layer = layer_of(&process.store, [rule(1, 3).named("kept"), several]);
    for expected in [None, Some(RefusalKind::OverLimit)] {
        assert_eq!(ask_at_once(&layer).await, [expected; 40]);
    }
}

/// The call that reports them is asked again without the shadow rule, and so are they.
#[tokio::test]
async fn refusals_from_memory_count_beside_a_shadow_that_cannot_be_counted() {
    let (_, [here, _]) = two(&rule(1, 4));
    let shadow = Limit::per_hour(9).by(FromHeader::new("x-key"));
    let layer = layer_of(&here.store, [rule(1, 4), shadow.named("shadow").shadow()]);
    let wrong = layer.limiter("shadow", ["ann"]).unwrap();
    RedisServer::shared().command(&["SET", &format!("{}~", wrong.name()), "not ours"]);
    let here = Instance { layer, ..here };
    assert_eq!(here.ask(1).await, None);
    assert_eq!(here.ask(1).await, OVER);
    assert_eq!(here.ask(1).await, OVER_AGAIN);
    assert_eq!(here.ask(1).await, OVER_AGAIN);
    assert_eq!(here.ask(1).await, BANNED);
}
