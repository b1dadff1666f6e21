//! The limit of the address comes before that of the claimed identity: above the first, no caller
//! can invent names.

use kit::{Cluster, scene::*};

use super::{keys, patient, request};

const PERMITS: u64 = 3;
const FLOOD: usize = 60;

fn by_address() -> Rule {
    Limit::per_hour(PERMITS).by(PeerIp).named("address")
}

/// Less than the address may, so that it is the likelier to refuse.
fn by_identity() -> Rule {
    Limit::per_hour(1)
        .by(FromHeader::new("x-id"))
        .named("identity")
}

/// One address claims another identity with each request.
async fn flood(layer: &RateLimitLayer) {
    for number in 0..FLOOD as u64 {
        let id = format!("made-up-{number}");
        let answer = send(layer, request("192.0.2.1", "x-id", id.as_bytes())).await;
        let expected = if number < PERMITS {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(answer.status(), expected, "{number}");
    }
}

/// Returns how many of the invented names have a key.
fn known<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> usize {
    let mut known: Vec<_> = servers
        .into_iter()
        .flat_map(keys)
        .filter_map(|(name, ttl)| {
            assert!(ttl > 0, "{name} stays");
            let (_, made_up) = name.split_once("{made-up-")?;
            Some(made_up.split('}').next()?.to_owned())
        })
        .collect();
    known.sort();
    known.dedup();
    known.len()
}

/// If limits take one call each, because one counts in another way or is in another slot, that of
/// the address comes first, whatever its place in the list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_calls_the_addresss_is_the_first() {
    let secret = Secret::new("k1", [7; 32]).unwrap();
    let digested = Limit::per_hour(PERMITS)
        .by(PeerIp.digest(&secret))
        .named("address");
    for rules in [
        [by_identity().algorithm(Algorithm::Gcra), by_address()],
        [
            by_address(),
            by_identity().algorithm(Algorithm::FixedWindow),
        ],
        [by_identity(), digested.algorithm(Algorithm::Gcra)],
    ] {
        let server = RedisServer::start();
        flood(&layer_of(&patient(&server), rules)).await;
        assert_eq!(known([&server]), PERMITS as usize);
    }
    let cluster = Cluster::start();
    let store = patiently(RedisStore::cluster(cluster.urls()));
    let store = store.build().unwrap();
    flood(&layer_of(&store, [by_identity(), by_address()])).await;
    assert_eq!(known(&cluster.nodes), PERMITS as usize);
}

/// One call reads all limits, but a caller that another limit refuses creates no keys.
#[tokio::test]
async fn in_one_call_a_refusal_makes_nothing_of_the_identitys() {
    let server = RedisServer::start();
    let store = patient(&server);
    flood(&layer_of(&store, [by_identity(), by_address()])).await;
    assert_eq!(known([&server]), PERMITS as usize);
    // The last of them has its whole limit yet, from another address.
    let last = format!("made-up-{}", FLOOD - 1);
    let request = || request("192.0.2.2", "x-id", last.as_bytes());
    for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let answer = send(&layer_of(&store, [by_identity(), by_address()]), request()).await;
        assert_eq!(answer.status(), expected);
    }
}

/// Existing state in Redisson's format stays, even if it is no complete limit.
#[tokio::test]
async fn keys_of_others_are_not_removed() {
    let server = RedisServer::start();
    let store = kit::scene::patient(server.url()).redisson();
    let store = store.build().unwrap();
    let layer = layer_of(&store, [by_identity(), by_address()]);
    flood(&layer).await;
    // In Redisson keys of single users never expire (#4301, #6216).
    assert_eq!(known([&server]), PERMITS as usize);
    let of = |id: &str| format!("ratelimit:{{{id}}}:identity");
    server.cli(&["HSET", &of("part"), "rate", "1"]);
    server.cli(&["HSET", &of("other"), "colour", "1"]);
    for (id, field) in [("part", "rate"), ("made-up-0", "rate"), ("other", "colour")] {
        let kept = || server.cli(&["HGET", &of(id), field]);
        assert_eq!(kept(), "1", "{id}");
        let answer = send(&layer, request("192.0.2.1", "x-id", id.as_bytes())).await;
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(kept(), "1", "{id}");
    }
}
