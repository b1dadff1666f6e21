//! Limits per client: whose keys are touched, and which stay behind.

use super::{
    world::Answer, world::Books, world::Keys, world::books, world::limiter, world::redis,
    world::store, world::take, world::unused,
};
use crate::scene::*;

const OURS: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
const THEIRS: &str = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";

struct Clients {
    clock: ManualClock,
    name: String,
    ours: RateLimiter,
    theirs: RateLimiter,
}

impl Clients {
    async fn limited(limit: Limit) -> Self {
        let clock = ManualClock::new();
        let name = unique("clients");
        let client = |id: &str| {
            let store = store()
                .client_clock(clock.clone())
                .client_id(id)
                .build()
                .unwrap();
            limiter(&store, &name)
        };
        let (ours, theirs) = (client(OURS), client(THEIRS));
        assert!(ours.try_set_rate(limit.per_client()).await.unwrap());
        Self {
            clock,
            name,
            ours,
            theirs,
        }
    }

    fn keys(&self, client: &str) -> Keys {
        Keys::of_client(&self.name, client)
    }

    fn books(&self, client: &str) -> Books {
        self.keys(client).books()
    }
}

// Section 8.8, 3: delete leaves the keys of other clients, because their ids are unknown. The same
// is intended here: they belong to another process. But the leftovers are neither admitted twice
// nor an error once the limit is set again.
#[tokio::test]
async fn deleting_leaves_other_clients_alone() {
    let clients = Clients::limited(Limit::per_second(5)).await;
    assert_eq!(take(&clients.ours, 2).await, Answer::Granted);
    assert_eq!(take(&clients.theirs, 5).await, Answer::Granted);
    assert_eq!(clients.books(OURS), books(3, &[(0, 2)]));
    assert_eq!(clients.books(THEIRS), books(0, &[(0, 5)]));
    assert_eq!(
        Keys::of(&clients.name).books(),
        unused(),
        "no shared part is used"
    );

    assert!(clients.ours.delete().await.unwrap());
    assert_eq!(clients.books(OURS), unused());
    assert_eq!(clients.books(THEIRS), books(0, &[(0, 5)]));
    assert_eq!(clients.keys(THEIRS).lives(), [-2, -1, -1]);

    let limit = Limit::per_second(5).per_client();
    assert!(clients.ours.try_set_rate(limit).await.unwrap());
    assert_eq!(take(&clients.theirs, 1).await, Answer::Wait(1000));
    clients.clock.advance(Duration::from_secs(1));
    assert_eq!(take(&clients.theirs, 5).await, Answer::Granted);
}

// Section 8.8, #3260, #6200 and others: the keys of ended instances stay for ever, because every
// start has another id. With a keep-alive time each client's keys expire by themselves.
#[tokio::test]
async fn keys_of_clients_that_ended_vanish_with_a_keep_alive_time() {
    let limit = Limit::per_second(5).keep_alive(Duration::from_secs(3600));
    let clients = Clients::limited(limit.unwrap()).await;
    assert_eq!(take(&clients.ours, 1).await, Answer::Granted);
    assert_eq!(take(&clients.theirs, 1).await, Answer::Granted);
    for client in [OURS, THEIRS] {
        let lives = clients.keys(client).lives();
        let fresh = 3_540_000..=3_600_000;
        assert!(lives.iter().all(|left| fresh.contains(left)), "{lives:?}");
    }
    // Deleting the limit does not take the end away from what stays.
    assert!(clients.ours.delete().await.unwrap());
    let [hash, value, log] = clients.keys(THEIRS).lives();
    assert_eq!(hash, -2);
    assert!(value > 0 && log > 0, "{value} {log}");
}

// An older Redisson that finds a lost log makes one without an end. Hash and value have one, by
// another client's calls and its own.
#[tokio::test]
async fn a_log_without_an_end_gets_one_again() {
    let limit = Limit::per_second(5).keep_alive(Duration::from_secs(3600));
    let clients = Clients::limited(limit.unwrap()).await;
    assert_eq!(take(&clients.ours, 1).await, Answer::Granted);
    let keys = clients.keys(OURS);
    assert_eq!(redis(&["PERSIST", &keys.log]), "1");
    assert_eq!(take(&clients.ours, 1).await, Answer::Granted);
    let lives = keys.lives();
    assert!(lives.iter().all(|left| *left > 0), "{lives:?}");
}

// Section 8.8, #4301, #6216: keys of single users never expire either, 272 bytes each. Keys made by
// rules always expire.
#[tokio::test]
async fn keys_that_rules_make_vanish() {
    for limit in [Limit::per_second(5), Limit::per_second(5).per_client()] {
        let prefix = unique("clients");
        let store = store().client_id(OURS).prefix(&prefix).build().unwrap();
        let rule = Rule::new("api", limit, FromHeader::new("user"));
        let inner = service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let request = Request::builder().header("user", "ann").body(String::new());
        let service = RateLimitLayer::new(&store, rule).layer(inner);
        let answer = service.oneshot(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        let name = format!("{prefix}:{{ann}}:api");
        let per_client = limit.rate_type() == tower_ratelimit::RateType::PerClient;
        let keys = if per_client {
            Keys::of_client(&name, OURS)
        } else {
            Keys::of(&name)
        };
        let lives = keys.lives();
        let fresh = 30_000..=60_000;
        assert!(lives.iter().all(|left| fresh.contains(left)), "{lives:?}");
    }
}

// Section 8.4: a rate that one client raises meets the old value of another client, with an empty
// log: the nil error, with every call.
#[tokio::test]
async fn a_rate_raised_by_one_client_is_no_error_to_another() {
    let clients = Clients::limited(Limit::per_second(5)).await;
    let theirs = clients.keys(THEIRS);
    theirs.plant_value("5");
    let raised = Limit::per_second(10).per_client();
    assert!(clients.ours.update_rate(raised).await.unwrap());
    assert_eq!(theirs.books(), books(5, &[]));
    assert_eq!(take(&clients.theirs, 6).await, Answer::Wait(1000));
    assert_eq!(theirs.books(), books(5, &[(0, 5)]));
    clients.clock.advance(Duration::from_secs(1));
    assert_eq!(take(&clients.theirs, 10).await, Answer::Granted);
}

// Section 4.4 and 1: after one client lowers the rate, another spends its old rest.
#[tokio::test]
async fn a_rate_lowered_by_one_client_holds_for_another() {
    let clients = Clients::limited(Limit::per_second(5)).await;
    assert_eq!(take(&clients.theirs, 1).await, Answer::Granted);
    let lowered = Limit::per_second(2).per_client();
    assert!(clients.ours.update_rate(lowered).await.unwrap());
    assert_eq!(clients.books(THEIRS), books(4, &[(0, 1)]));
    assert_eq!(take(&clients.theirs, 1).await, Answer::Granted);
    assert_eq!(take(&clients.theirs, 1).await, Answer::Wait(1000));
    assert_eq!(clients.books(THEIRS), books(0, &[(0, 1), (0, 1)]));
}

// Section 9, #1870: PER_CLIENT was compared as a number and never worked before 3.10.1. Here each
// client has its own permits.
#[tokio::test]
async fn each_client_has_its_own_permits() {
    let clients = Clients::limited(Limit::per_second(1)).await;
    assert_eq!(take(&clients.ours, 1).await, Answer::Granted);
    assert_eq!(take(&clients.theirs, 1).await, Answer::Granted);
    assert_eq!(take(&clients.ours, 1).await, Answer::Wait(1000));
    assert_eq!(clients.books(OURS), books(0, &[(0, 1)]));
    assert_eq!(clients.books(THEIRS), books(0, &[(0, 1)]));
    let hash = redis(&["HGET", &clients.name, "type"]);
    assert_eq!(hash, "1");
}
