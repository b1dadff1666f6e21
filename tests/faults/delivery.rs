//! Calls and settlements over a bad connection: what is sent again takes nothing twice, and what is
//! lost is counted.

use kit::{
    proxy::Proxy,
    scene::*,
    traffic::{is_free, take_by_redis},
};

/// A store behind a proxy.
struct Scene {
    server: RedisServer,
    proxy: Proxy,
    store: RedisStore,
}

impl Scene {
    fn new() -> Self {
        let (server, proxy) = Proxy::and_server();
        let store = patient(proxy.url()).build().unwrap();
        Self {
            server,
            proxy,
            store,
        }
    }

    /// A limiter that Redis knows already.
    async fn known(&self, limit: Limit) -> RateLimiter {
        let direct = patient(self.server.url()).build().unwrap();
        let direct = limited(&direct, limit).await;
        RateLimiter::new(&self.store, direct.name()).unwrap()
    }

    /// One of ten permits an hour, over a connection that is made.
    async fn limiter(&self) -> RateLimiter {
        let limiter = self.known(Limit::per_hour(10)).await;
        assert_eq!(free(&limiter).await, 10);
        limiter
    }

    /// The same, counted in each of the ways in which nothing tells one call from another.
    async fn undistinguished(&self) -> [(&str, RateLimiter); 2] {
        let window = self.limiter().await.algorithm(Algorithm::FixedWindow);
        let slots = self.limiter().await.slots(10).unwrap();
        [("window", window), ("slots", slots)]
    }

    /// Returns a limiter of a hundred permits, and the receipt for ten that are taken.
    async fn ten_taken(&self, interval: Duration) -> (RateLimiter, Grant) {
        let limiter = self.known(Limit::new(100, interval)).await;
        let grant = take_by_redis(&limiter, 10).await;
        (limiter, grant)
    }

    /// Loses the next reply; the calls are counted from now on.
    fn cut_reply(&self) -> u64 {
        self.server.cli(&["CONFIG", "RESETSTAT"]);
        self.proxy.cut_replies(1);
        self.proxy.replies_cut() + 1
    }

    /// Closes all connections, and lets no other be made.
    fn part(&self) {
        self.proxy.refuse(true);
        self.server.kill_clients();
        self.server.cli(&["CONFIG", "RESETSTAT"]);
    }
}

fn left(grant: &Grant) -> Option<u64> {
    grant.limits().next().unwrap().remaining()
}

/// One that took the last permits finds none left when it is sent again, but its own.
#[tokio::test]
async fn a_call_whose_reply_was_lost_is_resent_and_takes_nothing_twice() {
    let scene = Scene::new();
    let quota = || {
        Limit::monthly(10)
            .named(&unique("quota"))
            .single(&scene.store)
    };
    let gcra = || Way::Gcra.limited(&scene.store, Limit::per_hour(10));
    for (limiter, permits, expected) in [
        (scene.limiter().await, 4, 5),
        (scene.limiter().await, 9, 0),
        (quota().unwrap(), 4, 5),
        (quota().unwrap(), 9, 0),
        (gcra().await, 4, 5),
        (gcra().await, 9, 0),
    ] {
        take_by_redis(&limiter, 1).await;

        let cut = scene.cut_reply();
        let grant = take_by_redis(&limiter, permits).await;
        assert_eq!(scene.proxy.replies_cut(), cut, "{permits}");
        let called = scene.server.scripts_called();
        assert_eq!(called, 2, "{permits}: executed, and sent again");
        assert_eq!(left(&grant), Some(expected), "{permits}");
        assert_eq!(free(&limiter).await, expected, "{permits}");
        let more = limiter.try_acquire().await.unwrap();
        assert_eq!(more.is_allowed(), expected > 0, "{permits}");
    }
}

/// The call that is sent again finds that the shadow rule cannot be counted, so the enforced one is
/// asked for by itself. What the lost call may have taken is this caller's, and is not given back.
#[tokio::test]
async fn a_lost_reply_and_a_broken_shadow_rule_free_nothing() {
    let scene = Scene::new();
    let tried = unique("tried");
    let rule = |name: &str| {
        Limit::per_hour(10)
            .by(FromHeader::new("x-user"))
            .named(name)
    };
    let rules = [rule(&unique("kept")), rule(&tried).shadow()];
    let layer = layer_of(&scene.store, rules);
    let ask = async || {
        let decision = decide(&layer, asking("GET /", &[("x-user", "u")])).await;
        assert_eq!(decision.source(), Source::Store);
        decision
            .limits()
            .find(|limit| !limit.is_shadow())?
            .remaining()
    };
    assert_eq!(ask().await, Some(9));
    for key in scene.server.cli(&["KEYS", &format!("*{tried}*")]).lines() {
        scene.server.command(&["DEL", key]);
        scene.server.command(&["SADD", key, "something"]);
    }
    let cut = scene.cut_reply();
    assert_eq!(ask().await, Some(8));
    assert_eq!(scene.proxy.replies_cut(), cut);
    scene.store.close().await;
    assert_eq!(ask().await, Some(7));
}

/// The second and the third share a call. Each of them is asked for alone after it, and that is not
/// sent: what the call of both has taken is given back all the same.
#[tokio::test]
async fn a_shared_call_whose_reply_was_lost_costs_no_caller_with_an_error() {
    let scene = Scene::new();
    let orders = Limit::per_hour(10).named("orders").keyed(&scene.store);
    let orders = orders.unwrap();
    let limiters = ["a", "b", "c"].map(|key| orders.of(key));
    let [first, second, third] = &limiters;
    let ask = || async {
        tokio::join!(
            first.try_acquire(),
            second.try_acquire(),
            third.try_acquire()
        )
    };
    // The server learns the scripts.
    let (a, b, c) = ask().await;
    for answer in [a, b, c] {
        assert!(answer.unwrap().is_allowed());
    }
    let before = scene.server.scripts_called();
    scene.proxy.lose(false, true);
    let cut = async {
        let called = async || scene.server.scripts_called() == before + 2;
        until("both calls are carried out", called).await;
        scene.proxy.refuse(true);
        scene.proxy.reset();
    };
    let ((a, b, c), ()) = tokio::join!(ask(), cut);
    for answer in [a, b, c] {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    scene.proxy.refuse(false);
    scene.store.close().await;
    for limiter in &limiters {
        assert_eq!(free(limiter).await, 9);
    }
}

/// Redis does not recognize these calls when they come again, so they are sent once: a call whose
/// reply is lost has taken its permits, and is an error.
#[tokio::test]
async fn a_call_like_any_other_whose_reply_was_lost_is_not_resent() {
    let scene = Scene::new();
    for (way, limiter) in scene.undistinguished().await {
        take_by_redis(&limiter, 1).await;
        scene.cut_reply();
        let error = limiter.try_acquire_many(4).await.err();
        let kind = error.map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::Unavailable), "{way}");
        scene.store.close().await;
        assert_eq!(scene.server.scripts_called(), 1, "{way}");
        assert_eq!(free(&limiter).await, 5, "{way}");
    }
}

/// A receipt for such a call, if its reply is lost, may have been carried out. So it is never sent
/// again.
#[tokio::test]
async fn a_receipt_like_any_other_whose_reply_was_lost_is_not_resent() {
    let scene = Scene::new();
    let mut limiters = Vec::from(scene.undistinguished().await);
    let gcra = Way::Gcra.limited(&scene.store, Limit::per_hour(10)).await;
    limiters.push(("gcra", gcra));
    for ((way, limiter), lost) in limiters.iter().zip(1..) {
        let mut grants = Vec::new();
        for permits in [1, 2, 6] {
            grants.push(take_by_redis(limiter, permits).await);
        }
        // So that the server knows the script.
        limiter.give_back(&grants[0]);
        scene.store.close().await;
        assert_eq!(free(limiter).await, 2, "{way}");

        scene.cut_reply();
        limiter.give_back(&grants[1]);
        // Those that are to be sent again are waited for, too.
        scene.store.close().await;
        assert_eq!(scene.server.scripts_called(), 1, "{way}");
        assert_eq!(scene.store.health().lost_receipts, lost, "{way}");
        assert_eq!(free(limiter).await, 4, "{way}");
    }
}

#[tokio::test]
async fn a_settlement_whose_reply_was_lost_is_sent_again_and_counts_once() {
    let scene = Scene::new();
    for (kept, left) in [(0, 100), (3, 97), (25, 75), (250, -150)] {
        let (limiter, grant) = scene.ten_taken(HOUR).await;
        let cut = scene.cut_reply();
        limiter.settle(&grant, kept);
        scene.store.close().await;
        assert_eq!(scene.proxy.replies_cut(), cut, "settled at {kept}");
        let value = format!("{{{}}}:value", limiter.name());
        let value = scene.server.cli(&["GET", &value]);
        assert_eq!(value, left.to_string(), "settled at {kept}");
    }
    let store = &scene.store;
    assert_eq!(
        (store.health().lost_receipts, store.health().lost_charges),
        (0, 0)
    );
}

#[tokio::test]
async fn a_charge_is_kept_while_redis_is_away() {
    let scene = Scene::new();
    // So that the script is known.
    let (limiter, grant) = scene.ten_taken(HOUR).await;
    limiter.settle(&grant, 3);
    scene.store.close().await;
    let (limiter, grant) = scene.ten_taken(HOUR).await;
    scene.part();
    limiter.settle(&grant, 30);
    let closing = tokio::time::timeout(millis(50), scene.store.close());
    assert!(closing.await.is_err(), "nothing was sent yet");
    scene.proxy.refuse(false);
    scene.store.close().await;
    assert_eq!(scene.store.health().lost_charges, 0);
    let called = scene.server.scripts_called();
    assert_eq!(called, 1, "sent when it could be, and once");
    assert_eq!(free(&limiter).await, 70);
}

/// Its entry may have been there and gone, so that it would be charged twice.
#[tokio::test]
async fn a_charge_is_not_sent_again_later_than_its_interval() {
    let scene = Scene::new();
    let (limiter, grant) = scene.ten_taken(millis(1500)).await;
    scene.part();
    limiter.settle(&grant, 30);
    limiter.settle(&grant, 2);
    let store = &scene.store;
    until("it is lost", async || store.health().lost_charges == 1).await;
    scene.proxy.refuse(false);
    // What gives back may be sent at any time, and was not given up.
    store.close().await;
    assert_eq!(
        (store.health().lost_receipts, store.health().lost_charges),
        (0, 1)
    );
    is_free(&limiter, 100).await;
}
