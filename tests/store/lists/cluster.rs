//! A Redis Cluster: limits of one identity are one call, others one for each slot.

use kit::{Cluster, cluster::MASTERS, scene::*};

use super::world::{ask, left, refused_by};

fn patient(cluster: &Cluster) -> RedisStoreBuilder {
    patiently(RedisStore::cluster(cluster.urls()))
}

fn seconds(permits: u64) -> Limit {
    Limit::new(permits, secs(60))
}

async fn limiters<const N: usize>(
    store: &RedisStore,
    limits: [(String, u64); N],
) -> [RateLimiter; N] {
    let limiters = limits
        .clone()
        .map(|(name, _)| RateLimiter::new(store, &name).unwrap());
    for (limiter, (_, permits)) in limiters.iter().zip(limits) {
        assert!(limiter.try_set_rate(seconds(permits)).await.unwrap());
    }
    limiters
}

/// Returns how many scripts the masters have run.
fn scripts(cluster: &Cluster) -> u64 {
    let nodes = cluster.nodes[..MASTERS].iter();
    nodes.map(RedisServer::scripts_called).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_refusal_gives_back_the_earlier() {
    let cluster = Cluster::start();
    let store = patient(&cluster).build().unwrap();
    // The greatest cost for its limit goes first; here the limits are unknown, so the order of the
    // list holds.
    let limits = [(0, 9), (1, 9), (2, 2)];
    let limiters = limiters(
        &store,
        limits.map(|(node, permits)| (cluster.name_on(node), permits)),
    )
    .await;
    let all = RateLimiter::all(&limiters).unwrap();
    let granted = granted(all.try_acquire_many(2).await.unwrap());
    assert_eq!(permits_taken(&granted).len(), 3);
    assert_eq!(left(&limiters).await, [7, 7, 0]);
    let refusal = refused(all.try_acquire_each(&[3, 3, 1]).await.unwrap());
    assert_eq!(refused_by(&refusal)[0].0, limiters[2].name());
    assert_eq!(refusal.limits().count(), 3);
    assert_eq!(refusal.limits().nth(1).unwrap().remaining(), None);
    store.close().await;
    assert_eq!(left(&limiters).await, [7, 7, 0]);

    // An error of one, too.
    let unset = RateLimiter::new(&store, &unique("unset")).unwrap();
    let with_unset = RateLimiter::all([&limiters[0], &limiters[1], &unset]).unwrap();
    fails(with_unset.try_acquire().await, ErrorKind::NotInitialized);
    store.close().await;
    assert_eq!(left(&limiters).await, [7, 7, 0]);

    all.give_back(&granted);
    store.close().await;
    assert_eq!(left(&limiters).await, [9, 9, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_one_identity_are_one_call() {
    let cluster = Cluster::start();
    let store = patient(&cluster).build().unwrap();
    let by_user = |name| seconds(5).by(FromHeader::new("user")).named(name);
    let one = layer_of(&store, ["second", "minute", "hour"].map(by_user));
    let all = seconds(50).by(Constant("all")).named("all");
    let two = layer_of(&store, [by_user("user"), all]);
    // Loads both scripts everywhere.
    for number in 0..40 {
        let user = format!("first-{number}");
        assert_eq!(ask(&one, &[("user", &user)]).await.0, StatusCode::OK);
        assert_eq!(ask(&two, &[("user", &user)]).await.0, StatusCode::OK);
    }
    for (layer, calls) in [(&one, 1), (&two, 2)] {
        let before = scripts(&cluster);
        for number in 0..5 {
            let user = format!("user-{number}");
            let granted = granted(ask(layer, &[("user", &user)]).await.1);
            assert!(permits_taken(&granted).len() > 1);
        }
        assert_eq!(scripts(&cluster) - before, 5 * calls);
    }
}

/// A waiter calls again, and the releases of its earlier attempts do not take away its last grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_what_it_is_granted() {
    let cluster = Cluster::start();
    let store = patient(&cluster).build().unwrap();
    let names = [0, 1].map(|node| cluster.name_on(node));
    let [first, second] = limiters(&store, names.map(|name| (name, 9))).await;
    let all = RateLimiter::all([&first, &second]).unwrap();
    let held = granted(second.try_acquire_many(9).await.unwrap());
    let waiting = tokio::spawn({
        let all = all.clone();
        async move { all.acquire_many(5).await.unwrap() }
    });
    // Behind it, and with less to ask for: it does not overtake.
    until("the first has been refused", async || {
        cluster.node_of(first.name()).scripts_called() > 2
    })
    .await;
    let behind = tokio::spawn({
        let all = all.clone();
        async move { all.acquire_many(4).await.unwrap() }
    });
    let room = Limit::new(13, secs(60));
    assert!(second.update_rate(room).await.unwrap());
    // Four are free, which is enough for the one behind.
    until("nothing is on its way", async || {
        let closing = tokio::time::timeout(secs(30), store.close());
        closing
            .await
            .expect("it does not take and give back without end");
        free(&second).await == 4
    })
    .await;
    assert!(!waiting.is_finished());
    assert!(!behind.is_finished());
    second.give_back(&held);
    waiting.await.unwrap();
    behind.await.unwrap();
    store.close().await;
    assert_eq!(left(&[first, second]).await, [0, 4]);
}

/// One that leaves while a part of its list is under way has taken nothing in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_takes_nothing() {
    let mut cluster = Cluster::start();
    let store = patient(&cluster).build().unwrap();
    let names = [0, 1].map(|node| cluster.name_on(node));
    let limiters = limiters(&store, names.map(|name| (name, 9))).await;
    let all = RateLimiter::all(&limiters).unwrap();
    granted(all.try_acquire().await.unwrap());
    cluster.nodes[1].stop_process();
    let mut asking = Box::pin(all.try_acquire());
    begin(asking.as_mut()).await;
    until("it has the first", async || free(&limiters[0]).await == 7).await;
    settle().await;
    drop(asking);
    cluster.nodes[1].resume();
    store.close().await;
    assert_eq!(left(&limiters).await, [8, 8]);
}

/// A diagnosis goes to the node with the limiter's hash slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiters_are_diagnosed_wherever_they_are() {
    let cluster = Cluster::start();
    let store = patient(&cluster).build().unwrap();
    for node in 0..MASTERS {
        let [limiter] = limiters(&store, [(cluster.name_on(node), 9)]).await;
        take(&limiter, 4).await;
        let diagnosis = store.diagnose(limiter.name()).await.unwrap();
        assert_eq!(diagnosis.findings(), [], "{diagnosis}");
        let text = diagnosis.to_string();
        assert!(text.contains('9') && text.contains('5'), "{text}");
        let unset = store.diagnose(&cluster.name_on(node)).await.unwrap();
        assert_ne!(unset.findings(), [], "it has no limit");
    }
}
