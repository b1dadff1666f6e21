//! Rows 4 to 7, 12, 21 and 24: what happens on the way to a server.

use kit::{
    monitor::Control,
    proxy::{Proxy, Spoil},
    scene::*,
    scripted::ScriptedServer,
    sentinel::wait_for_replica,
};
use tower_ratelimit::Error;

use super::{
    guards::{BUDGET, PATIENT, guarded},
    load::Load,
    observed::CROWD,
    oracles::Tally,
    record::Record,
    stage::{EXACT, Expected, FREE, Scene, Stage, UNKNOWN, UNSEEN, aside, set},
};

/// Every reply is delayed by this time. Beyond the budget the policy decides, which is no refusal
/// of the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_04_replies_that_take_their_time() {
    let scene = Scene::begin("row 4").await;
    for (even, odd) in [(1, 1), (10, 10), (100, 100), (20, 120)] {
        let millis = Duration::from_millis;
        scene.proxy.delay(millis(even), millis(odd));
        scene.load.decided(5).await;
    }
    scene.proxy.delay_every_reply(Duration::from_millis(600));
    scene.load.met_policy(5).await;
    let too_slow = scene.load.now();
    scene.load.met_policy(20).await;
    let until = scene.load.now();
    scene.proxy.delay_every_reply(Duration::ZERO);

    let answers = scene.judge(EXACT).await;
    let late = (answers.iter()).filter(|answer| {
        answer.sent > too_slow && answer.sent + answer.took < until && answer.by_store()
    });
    assert_eq!(late.count(), 0, "decided by a store that was too slow");
}

/// Nothing ends, and nothing arrives: only silence tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_05_connections_that_fall_silent() {
    let scene = Scene::begin("row 5").await;
    for (requests, replies) in [(true, true), (true, false), (false, true)] {
        let before = scene.proxy.connections();
        scene.proxy.lose(requests, replies);
        scene.load.met_policy(2).await;
        scene.healed().await;
        reconnected(&scene, before).await;
    }
    scene.judge(EXACT).await;
}

/// Waits for a connection of each handle, after those `before`: of two handles one may have it
/// earlier, and decide for all lanes.
async fn reconnected(scene: &Scene, before: usize) {
    let each_has = async || scene.proxy.connections() >= before + 2;
    until("each handle has another", each_has).await;
}

/// An answer to another's request would be found: no two lanes have the same limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_06_replies_that_are_torn_or_nonsense() {
    const EACH: usize = 6;
    let scene = Scene::begin("row 6").await;
    for how in [
        Spoil::Reset(0),
        Spoil::Reset(3),
        Spoil::End(3),
        Spoil::End(17),
        Spoil::Garbage,
    ] {
        let before = scene.proxy.spoiled();
        for _ in 0..EACH {
            scene.proxy.spoil(1, how);
            scene.load.decided(1).await;
        }
        assert!(scene.proxy.spoiled() > before, "{how:?}");
        scene.healed().await;
    }
    scene.proxy.drip(true);
    scene.load.decided(10).await;
    scene.proxy.drip(false);
    scene.judge_cut(EXACT, 6 * EACH).await;
}

/// The service starts without Redis: one handle finds a server that disconnects, one a closed port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_07_a_server_that_is_not_there_at_first() {
    let mut server = aside(RedisServer::start);
    let direct = RedisStore::builder(server.url());
    aside(|| server.kill());
    let proxy = Proxy::start(server.address());
    let urls = [proxy.url(), server.url()];
    let open = |handle: usize| RedisStore::builder(&urls[handle]);
    let stage = Stage::begin("row 7, no server", &[], open, direct, BUDGET);
    stage.load.met_policy(100).await;
    let attempts = proxy.came();
    aside(|| server.restart());
    stage.healed().await;
    super::oracles::few_connections(&attempts, 1, 0);
    stage.judge(UNSEEN, &[&server]).await;
}

/// There is nothing to heal: what counts is what it costs meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_07_a_name_that_does_not_resolve() {
    let nowhere = RedisStore::builder("redis://redis.invalid:6379/");
    let handles = vec![guarded(nowhere, BUDGET)];
    let record = Record::begin();
    let load = Load::start(handles, &unique("matrix"), BUDGET, 7, record.book());
    load.met_policy(100).await;
    let ended = load.end().await;
    let mut tally = Tally::of(&ended, Duration::ZERO);
    assert_eq!(tally.by_policy, tally.answers);
    tally.check_times();
    tally.check_counts(&ended);
    assert!(tally.check_shares() > 0, "nothing was granted by a share");
    println!(
        "row 7, no name: {} answers, {:?}",
        tally.answers,
        tally.measured()
    );
}

/// The address leads to something other than Redis: it disconnects, speaks another protocol, or is
/// silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_07_an_address_that_leads_elsewhere() {
    let scene = Scene::begin("row 7, elsewhere").await;
    let strangers = [
        ScriptedServer::stranger(None),
        ScriptedServer::stranger(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
        ScriptedServer::stranger(Some(b"")),
    ];
    for stranger in strangers {
        scene.proxy.switch(stranger.address());
        scene.proxy.reset();
        scene.load.met_policy(30).await;
        scene.proxy.switch(scene.server.address());
        // What says nothing is still listened to.
        scene.proxy.reset();
        scene.healed().await;
    }
    scene.judge_cut(EXACT, 8).await;
}

/// The address leads to another master, and open connections lead to one that is now a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_12_an_address_that_leads_to_another_master() {
    let mut scene = Scene::begin("row 12").await;
    let other = aside(RedisServer::start);
    scene.watch(&other);
    let follows = |master: &RedisServer| format!("REPLICAOF 127.0.0.1 {}", master.port());
    aside(|| {
        other.obeys(&follows(&scene.server));
        wait_for_replica(&other);
    });
    scene.load.decided(3).await;
    let before = scene.proxy.connections();
    aside(|| {
        other.obeys("REPLICAOF NO ONE");
        scene.server.obeys(&follows(&other));
        scene.proxy.switch(other.address());
    });
    scene.healed().await;
    reconnected(&scene, before).await;

    // The last grants of the old master may be forgotten: at most its limit, and as much again by
    // the new.
    scene.judge_elsewhere(&other, UNKNOWN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_connections_that_the_server_closes() {
    let scene = Scene::begin_with("row 21, killed", &[], PATIENT).await;
    for _ in 0..5 {
        let before = scene.proxy.connections();
        assert!(scene.server.kill_clients() >= 2);
        scene.load.decided(3).await;
        reconnected(&scene, before).await;
        // A call is sent once more, not twice: none is to meet the next kill, too.
        scene.load.idle(true).await;
        scene.load.idle(false).await;
    }
    scene.healed().await;
    // A call that is lost with its connection is sent again at once, so no decision is lost.
    scene.judge_cut(FREE, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_a_server_that_takes_no_more_connections() {
    let scene = Scene::begin("row 21, full").await;
    let mut control = Control::open(&scene.server);
    // The one who reads along, and this one.
    assert_eq!(control.cli(&["CONFIG", "SET", "maxclients", "2"]), "OK");
    scene.proxy.reset();
    scene.load.met_policy(30).await;
    assert_eq!(control.cli(&["CONFIG", "SET", "maxclients", "1000"]), "OK");
    drop(control);
    scene.judge_cut(EXACT, 2).await;
}

/// Connections that were idle for a while are closed when they are needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_a_server_that_closes_idle_connections() {
    let scene = Scene::begin_with("row 21, idle", &[], PATIENT).await;
    scene.server.configure("timeout", "1");
    for _ in 0..2 {
        scene.load.idle(true).await;
        scene.disconnected().await;
        scene.load.idle(false).await;
        scene.load.decided(3).await;
    }
    scene.judge_cut(FREE, 4).await;
}

/// Every request is carried out twice. In Redisson's format it takes once; in our own it is in use
/// twice, as only what we send again says so: never too much is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_24_requests_that_are_delivered_twice() {
    let scene = Scene::begin("row 24").await;
    scene.proxy.double_from_now(true);
    scene.proxy.reset();
    let before = scene.proxy.doubled();
    takes_once(&scene).await;
    scene.load.decided(30).await;
    let doubled = scene.proxy.doubled();
    assert!(doubled > before + 30, "{doubled}");
    scene.proxy.double_from_now(false);
    scene.proxy.reset();
    scene.healed().await;
    let twice = Expected {
        twice: true,
        ..EXACT
    };
    scene.judge_cut(twice, 4).await;
}

/// Nothing expires meanwhile: what is free tells how often was taken, in either format.
async fn takes_once(scene: &Scene) {
    let (limit, store) = (Limit::per_hour(100), &scene.load.handles[0]);
    let hourly = RateLimiter::new(store, &unique("hourly")).unwrap();
    set(&hourly, limit).await;
    let observed = &scene.load.observed;
    takes_ten(&hourly, 1, |decision| observed.less(None, Some(decision))).await;
    let hourly = limit.named(CROWD).single(store).unwrap();
    let see = |decision: &_| observed.less(Some(CROWD), Some(decision));
    takes_ten(&hourly, 2, see).await;
}

/// Takes ten permits of 100, one by one, each at most so many `times`.
async fn takes_ten(hourly: &RateLimiter, times: u64, see: impl Fn(&Result<Decision, Error>)) {
    let began = Instant::now();
    let mut granted = 0;
    while granted < 10 {
        let decision = hourly.try_acquire().await;
        see(&decision);
        granted += u64::from(decision.is_ok_and(|it| it.is_allowed()));
        assert!(began.elapsed() < LONG, "{granted} granted");
    }
    // Grants whose replies were lost are given back.
    until("what is left of 100 is what was not granted", async || {
        let left = hourly.available_permits().await;
        left.is_ok_and(|left| (100 - times * granted..=100 - granted).contains(&left))
    })
    .await;
}
