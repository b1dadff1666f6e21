//! A real Redis Cluster of three masters: where keys are, what is lost with a master, and which
//! calls are sent only once.

mod once;

use super::cannot_be_read;
use kit::{
    Cluster,
    cluster::MASTERS,
    companion,
    scene::*,
    topologies::connected,
    traffic::{grants, is_free},
};
use tower_ratelimit::Error;

const LIMIT: Limit = Limit::per_hour(10);

fn patient(cluster: &Cluster) -> RedisStore {
    patiently(RedisStore::cluster(cluster.urls()))
        .build()
        .unwrap()
}

/// A limiter whose limit is set.
async fn limiter(store: &RedisStore, name: &str) -> RateLimiter {
    let limiter = RateLimiter::new(store, name).unwrap();
    assert!(limiter.try_set_rate(LIMIT).await.unwrap());
    limiter
}

/// One on each master.
async fn one_each(store: &RedisStore, cluster: &Cluster) -> Vec<RateLimiter> {
    let mut limiters = Vec::new();
    for node in 0..MASTERS {
        limiters.push(limiter(store, &cluster.name_on(node)).await);
    }
    limiters
}

fn is_granted(decision: Result<Decision, Error>) -> bool {
    match decision {
        Ok(decision) => {
            assert_eq!(decision.source(), Source::Store);
            matches!(decision, Decision::Allow(_))
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

/// Each node is sent the script, while another is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_who_may_send_no_texts_load_them_where_they_are_needed() {
    let mut cluster = Cluster::start();
    for node in &cluster.nodes {
        node.obeys("ACL SETUSER default -eval");
    }
    let store = patient(&cluster);
    let limiters = one_each(&store, &cluster).await;
    cluster.nodes[MASTERS - 1].stop_process();
    for (node, limiter) in limiters[..MASTERS - 1].iter().enumerate() {
        // What must not run twice takes another way.
        let once = Way::Gcra.named(&store, &cluster.name_on(node), LIMIT).await;
        assert!(is_granted(once.try_acquire().await));

        let grant = take(limiter, 4).await;
        limiter.give_back(&grant);
        is_free(limiter, 10).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_stays_in_its_slot() {
    let cluster = Cluster::start();
    let store = patient(&cluster);
    let (one, other) = (cluster.name_on(0), cluster.name_on(1));
    let tagged = limiter(&store, &format!("a{{{one}}}")).await;
    assert!(is_granted(tagged.try_acquire_many(4).await));

    fails(
        tagged.rename(&format!("b{{{other}}}")).await,
        ErrorKind::OtherSlot,
    );
    // Two slots of one master are two slots.
    let near = loop {
        let name = cluster.name_on(0);
        if cluster.slot(&name) != cluster.slot(&one) {
            break name;
        }
    };
    fails(tagged.rename(&near).await, ErrorKind::OtherSlot);
    assert_eq!(free(&tagged).await, 6);

    let renamed = tagged.rename(&format!("b{{{one}}}")).await.unwrap();
    assert_eq!(free(&renamed).await, 6);
    assert!(!tagged.exists().await.unwrap());
}

/// The five keys that Redisson's own scripts take: RedissonObject.suffixName.
fn redisson_keys(name: &str) -> Vec<String> {
    let companions = ["value", "value:client", "permits", "permits:client"];
    let companions = companions.map(|suffix| companion(name, suffix));
    [vec![name.to_owned()], companions.to_vec()].concat()
}

/// Shows what the check of names is for, and that it refuses no more than it must. With the names
/// that are refused every call of Redisson's fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_break_a_cluster_are_refused() {
    let cluster = Cluster::start();
    let store = patient(&cluster);
    let eval = |name: &str| {
        let mut command = vec!["EVAL".to_owned(), "return 1".to_owned(), "5".to_owned()];
        command.extend(redisson_keys(name));
        let node = &cluster.nodes[cluster.master_of(name)];
        node.command(&command)
    };
    for name in ["", "a{b", "a}b", "{}x", "x{}y", "x{}y{z}", "a}{b"] {
        let said = format!("{name:?} cannot name a limiter: ");
        mistake(RateLimiter::new(&store, name), ConfigErrorKind::Name, &said);
        let reply = eval(name).to_string();
        assert!(reply.starts_with("(error) CROSSSLOT"), "{name}: {reply}");
    }
    for name in [
        "orders",
        "svc{tenant1}:api",
        "{a}{b}",
        "a}b{c}",
        "a:value",
        "ключ/限流 é",
        "a b\n\"\\",
    ] {
        assert_eq!(eval(name), Reply::Int(1), "{name}");
        let limiter = limiter(&store, name).await;
        assert_eq!(limiter.name(), name);
        assert!(is_granted(limiter.try_acquire().await));
        assert!(limiter.delete().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_traffic() {
    let cluster = Cluster::start();
    let store = patient(&cluster);
    let limiter = limiter(&store, &cluster.name_on(0)).await;
    assert!(is_granted(limiter.try_acquire_many(4).await));
    assert_eq!(limiter.release(1).await.unwrap(), 1);

    let slot = cluster.slot(limiter.name());
    // The keys of limits per client do not exist here, so Redis treats each command as one whose
    // keys are half moved.
    let unavailable = async || {
        fails(limiter.try_acquire().await, ErrorKind::Unavailable);
        fails(limiter.release(1).await, ErrorKind::Unavailable);
    };
    cluster.begin_move(slot, 0, 1);
    unavailable().await;
    cluster.move_keys(slot, 0, 1);
    unavailable().await;
    cluster.end_move(slot, 0, 1);
    // The slot is there: MOVED, which certainly did not run.
    assert_eq!(limiter.release(2).await.unwrap(), 2);
    assert!(is_granted(limiter.try_acquire().await));
    assert_eq!(free(&limiter).await, 8);
}

/// Turns the keys whose names contain this into sets, which no limiter is. Returns how many.
fn spoil(cluster: &Cluster, part: &str) -> usize {
    let mut spoilt = 0;
    for node in &cluster.nodes[..MASTERS] {
        for key in node.cli(&["KEYS", &format!("*{part}*")]).lines() {
            node.command(&["DEL", key]);
            node.command(&["SADD", key, "something"]);
            spoilt += 1;
        }
    }
    spoilt
}

/// A request is in two hash slots. What the first has taken is not given back because a shadow rule
/// next to an enforced one, in the second, cannot be counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_shadow_rule_frees_no_other_slot() {
    let cluster = Cluster::start();
    let store = patient(&cluster);
    let tried = unique("tried");
    let by = |header, permits| Limit::per_hour(permits).by(FromHeader::new(header));
    let layer = layer_of(
        &store,
        [
            by("x-address", 3).named(&unique("address")),
            by("x-user", 1000).named(&unique("user")),
            by("x-user", 1000).named(&tried).shadow(),
        ],
    );
    let ask = async || {
        let request = asking("GET /", &[("x-address", "a"), ("x-user", "u")]);
        let decision = decide(&layer, request).await;
        assert_eq!(decision.source(), Source::Store, "{decision:?}");
        decision.is_allowed()
    };
    assert!(ask().await);
    assert!(spoil(&cluster, &tried) > 0);
    for admitted in [true, true, false] {
        assert_eq!(ask().await, admitted);
        store.close().await;
    }
}

/// There is a breaker for each 512 hash slots: that of a silent master keeps calls from it and from
/// no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_master_costs_its_own_slots_only() {
    let mut cluster = Cluster::start();
    // The other masters reply within this time, even on a busy machine.
    let deadline = secs(5);
    let store = RedisStore::cluster(cluster.urls()).deadline(deadline);
    let store = store.response_timeout(deadline).breaker(2).build().unwrap();
    let store = connected(store).await;
    // At the border of two masters, a breaker is for slots of both.
    let limiters = loop {
        let limiters = one_each(&store, &cluster).await;
        let group = |limiter: &RateLimiter| cluster.slot(limiter.name()) / 512;
        let [first, second, third] = [0, 1, 2].map(|node| group(&limiters[node]));
        if first != second && second != third {
            break limiters;
        }
    };
    for limiter in &limiters {
        // More permits than a test takes.
        limiter.set_rate(Limit::per_hour(1_000_000)).await.unwrap();
    }
    let slot = |limiter: &RateLimiter| u16::try_from(cluster.slot(limiter.name())).unwrap();
    let slots: Vec<_> = limiters.iter().map(slot).collect();
    let breaker = |limiter: usize| {
        let health = store.health();
        let mut nodes = health.nodes.iter();
        let node = nodes.find(|node| node.slots.as_ref().unwrap().contains(&slots[limiter]));
        node.unwrap().breaker
    };
    assert!(store.health().is_well());
    block_in_place(|| {
        cluster.fails_the_silent(true);
        cluster.nodes[2].stop_process();
    });
    let stopped = Instant::now();
    // Also for longer than the other masters take to notice.
    while stopped.elapsed() < secs(4) || breaker(2) == BreakerState::Closed {
        let beside = async {
            for (place, limiter) in limiters[..2].iter().enumerate() {
                assert!(is_granted(limiter.try_acquire().await));
                assert_eq!(breaker(place), BreakerState::Closed);
            }
        };
        let (failed, ()) = tokio::join!(limiters[2].try_acquire(), beside);
        let kind = failed.unwrap_err().kind();
        let failed = matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
        assert!(failed, "{kind:?}");
        // Where nothing keeps it, a call is given up much later.
        assert!(stopped.elapsed() < deadline * 20, "it stays closed");
    }
    let health = store.health();
    let open = health.nodes.iter();
    let open = open.filter(|node| node.breaker != BreakerState::Closed);
    assert_eq!((open.count(), health.nodes.len()), (1, 32), "{health:?}");
    // A list of both is not asked for in part: nothing is taken that would have to be given back.
    let both = RateLimiter::all([&limiters[0], &limiters[2]]).unwrap();
    if breaker(2) == BreakerState::Open {
        assert!(both.try_acquire().await.is_err());
    }
    block_in_place(|| cluster.nodes[2].resume());
    let healed = grants(&limiters[2]).await;
    println!("its decisions come from Redis again after {healed:?}");
    assert_eq!(breaker(2), BreakerState::Closed);
}

#[test]
fn bad_addresses_are_refused() {
    for addresses in [
        vec![],
        vec!["http://a:6379"],
        vec!["unix:///tmp/redis"],
        vec!["redis://:secret@a:6379", "redis://:two@b:6379"],
    ] {
        cannot_be_read(RedisStore::cluster(addresses));
    }
}
