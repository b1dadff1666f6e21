//! Rows 27 to 31: calls of many limiters that go together, and callers that come all at once. Each
//! counts what the others lose: nothing.

use kit::{OwnLog, monitor::time_of, proxy::Spoil, scene::*, state_key};
use std::{collections::HashMap, future::poll_fn};

use tokio::runtime::{self, Runtime};
use tower_ratelimit::Error;

use super::{
    guards::PATIENT,
    lanes::LANES,
    observed::CROWD as NAME,
    refusing::{allow, of_user},
    stage::{EXACT, FREE, Scene, aside},
};

/// As many as go together in one call.
pub const CROWD: usize = 64;
/// Nothing expires while a row is played.
pub const HOURLY: Limit = Limit::per_hour(1000);

pub type Asking = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>;

/// Limiters on a handle of the load, in our own format, whose calls go together; and the permits
/// that each has granted.
pub struct Crowd {
    pub limiters: Vec<RateLimiter>,
    granted: Vec<usize>,
}

impl Crowd {
    fn new(scene: &Scene, key: impl Fn(usize) -> &'static str, count: usize) -> Self {
        let keyed = HOURLY.named(NAME).keyed(&scene.load.handles[0]).unwrap();
        Self {
            limiters: (0..count).map(|it| keyed.of(unique(key(it)))).collect(),
            granted: vec![0; count],
        }
    }

    /// One caller more than a batch has: the first is sent alone, and the others as one batch, of
    /// which one is spoilt.
    pub async fn of_a_batch(scene: &mut Scene, key: impl Fn(usize) -> &'static str) -> Self {
        let mut crowd = Self::new(scene, key, 1 + CROWD);
        pause(scene).await;
        // The server learns the scripts.
        crowd.lose_nothing(scene, &[]).await;
        assert_eq!(crowd.lose_nothing(scene, &[]).await, 2, "no batch");
        crowd
    }

    /// Waits until nothing else is in use than what was granted.
    async fn keeps_what_was_granted(&self, scene: &Scene) {
        for (limiter, granted) in self.limiters.iter().zip(&self.granted) {
            let kept = async || aside(|| in_use(scene, limiter)) == *granted;
            until("nothing else is in use", kept).await;
        }
    }

    /// Asks each of them while the server stands still. The `spoilt` fail, and the others are
    /// granted. Returns how many scripts that took.
    async fn lose_nothing(&mut self, scene: &mut Scene, spoilt: &[(usize, ErrorKind)]) -> u64 {
        let before = scene.server.scripts_called();
        scene.server.stop_process();
        let asking = self
            .limiters
            .iter()
            .map(|limiter| tokio::spawn(asking(limiter)));
        let asking: Vec<_> = asking.collect();
        settle().await;
        scene.server.resume();
        for (place, answer) in asking.into_iter().enumerate() {
            let answer = answer.await.unwrap();
            scene.load.observed.less(Some(NAME), Some(&answer));
            match spoilt.iter().find(|(spoilt, _)| *spoilt == place) {
                Some((_, kind)) => assert_eq!(answer.unwrap_err().kind(), *kind, "{place}"),
                None => {
                    self.granted[place] += granted_by_store(&answer);
                    let in_use = in_use(scene, &self.limiters[place]);
                    assert_eq!(in_use, self.granted[place], "{place}");
                }
            }
        }
        scene.server.scripts_called() - before
    }
}

/// Returns the permits of a caller that must be granted some by the store.
#[track_caller]
pub fn granted_by_store(answer: &Result<Decision, Error>) -> usize {
    let of_store = |it: &Decision| it.is_allowed() && it.source() == Source::Store;
    assert!(answer.as_ref().is_ok_and(of_store), "{answer:?}");
    1
}

pub fn in_use(scene: &Scene, limiter: &RateLimiter) -> usize {
    in_use_at(scene, &state_key(limiter.name()))
}

/// Returns the permits in use of the log that is at a key.
pub fn in_use_at(scene: &Scene, key: &str) -> usize {
    match scene.server.command(&["GET", key]) {
        Reply::Nil => 0,
        state => {
            let log = OwnLog::of(&state.into_bytes()).expect("a log");
            let interval = HOURLY.interval().as_millis() as i64;
            log.in_use(time_of(&scene.server), interval) as usize
        }
    }
}

/// Pauses the load, and waits for what is given back.
pub async fn pause(scene: &Scene) {
    scene.load.idle(true).await;
    for handle in &scene.load.handles {
        handle.close().await;
    }
}

/// The lanes whose requests meet one limit: a list of several has several hash tags.
fn of_one_tag() -> Vec<usize> {
    let lanes = 0..LANES.len();
    lanes
        .filter(|lane| LANES[*lane].limits().count() == 1)
        .collect()
}

/// In turn while the load pauses, and goes in the same batches.
async fn lose_nothing_in_rounds(
    scene: &mut Scene,
    crowd: &mut Crowd,
    spoilt: &[(usize, ErrorKind)],
    scripts: std::ops::RangeInclusive<u64>,
) {
    // First the server learns the script of a caller that is asked alone: perhaps no lane sent it.
    crowd.lose_nothing(scene, spoilt).await;
    pause(scene).await;
    for _ in 0..3 {
        let called = crowd.lose_nothing(scene, spoilt).await;
        assert!(scripts.contains(&called), "{called} scripts");
        scene.load.idle(false).await;
        crowd.lose_nothing(scene, spoilt).await;
        scene.load.lanes_decided(&of_one_tag(), 1).await;
        pause(scene).await;
    }
    scene.load.idle(false).await;
}

/// The server refuses the whole batch.
#[tokio::test]
async fn row_27_a_key_that_is_forbidden() {
    const SPOILT: usize = 40;
    let server = RedisServer::start();
    allow(&server, ">secret", "~*", "");
    let mut scene =
        Scene::begin_on("row 27, forbidden", server, PATIENT, |url| of_user(&url)).await;
    let key = |place| match place {
        SPOILT => "forbidden",
        _ => "crowd",
    };
    let mut crowd = Crowd::of_a_batch(&mut scene, key).await;
    // By their hash tags; and those in Redisson's format.
    let all_but_one = "~matrix*:{[^f]* ~matrix*-orders ~matrix*-queue ~{matrix*";
    allow(&scene.server, ">secret", all_but_one, "");
    // Each of the others is asked alone; what is refused counts for no call.
    let (spoilt, alone) = ([(SPOILT, ErrorKind::Rejected)], CROWD as u64);
    lose_nothing_in_rounds(&mut scene, &mut crowd, &spoilt, alone..=alone).await;
    allow(&scene.server, ">secret", "~*", "");
    crowd.lose_nothing(&mut scene, &[]).await;
    drop(crowd);
    scene.judge(FREE).await;
}

/// The script finds what is wrong with each of them.
#[tokio::test]
async fn row_27_keys_of_another_type_and_foreign_states() {
    let mut scene = Scene::begin_with("row 27, types", &[], PATIENT).await;
    let mut crowd = Crowd::of_a_batch(&mut scene, |_| "spoilt").await;
    let [set, cut, later, absent] = [20, 30, 40, 50];
    let key = |place: usize| state_key(crowd.limiters[place].name());
    let del = |key: &str| assert_eq!(scene.server.cli(&["DEL", key]), "1");
    del(&key(set));
    scene.server.cli(&["SADD", &key(set), "a member"]);
    let edit = |edit: &str, place| {
        let edit = format!("local state = redis.call('GET', KEYS[1]) {edit}");
        scene.server.cli(&["EVAL", &edit, "1", &key(place)]);
    };
    edit("redis.call('SET', KEYS[1], string.sub(state, 1, -6))", cut);
    edit(
        "redis.call('SETRANGE', KEYS[1], #state - 2, '\\33\\183')",
        later,
    );
    // One that is absent has all permits.
    del(&key(absent));
    crowd.granted[absent] = 0;
    let foreign = [set, cut, later].map(|place| (place, ErrorKind::ForeignState));
    let before = foreign.map(|(place, _)| scene.server.cli(&["DUMP", &key(place)]));
    // The reply to all says which are foreign.
    let together = 2;
    lose_nothing_in_rounds(&mut scene, &mut crowd, &foreign, together..=together).await;
    let key = |place: usize| state_key(crowd.limiters[place].name());
    let after = foreign.map(|(place, _)| scene.server.cli(&["DUMP", &key(place)]));
    assert_eq!(before, after, "they stay as they are");
    for (place, _) in foreign {
        scene.server.cli(&["DEL", &key(place)]);
        crowd.granted[place] = 0;
    }
    crowd.lose_nothing(&mut scene, &[]).await;
    drop(crowd);
    scene.judge(FREE).await;
}

/// Replaces all connections of a load that pauses.
async fn refuse_mixed(scene: &Scene, refuse: bool) {
    scene.proxy.refuse_mixed_from_now(refuse);
    scene.proxy.reset();
    scene.disconnected().await;
}

/// As behind an endpoint that stands for a Cluster. A list that has two hash tags gets several
/// calls.
#[tokio::test]
async fn row_28_an_endpoint_that_refuses_mixed_hash_tags() {
    let mut scene = Scene::begin_with("row 28", &[], PATIENT).await;
    let mut crowd = Crowd::of_a_batch(&mut scene, |_| "mixed").await;
    refuse_mixed(&scene, true).await;
    // Once refused, no batch is sent any more. The refusal counts as a script of the proxy's.
    let alone = CROWD as u64 + 1;
    crowd.lose_nothing(&mut scene, &[]).await;
    assert_eq!(scene.proxy.refused_mixed(), 1);
    assert_eq!(crowd.lose_nothing(&mut scene, &[]).await, alone);
    assert_eq!(scene.proxy.refused_mixed(), 1);
    lose_nothing_in_rounds(&mut scene, &mut crowd, &[], alone..=alone).await;
    scene.load.idle(true).await;
    refuse_mixed(&scene, false).await;
    scene.load.idle(false).await;
    drop(crowd);
    let answers = scene.judge_cut(EXACT, 4).await;
    let lost: Vec<_> = answers.iter().filter(|it| it.by_policy()).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// Some callers leave while connections are cut before, amid and after a reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_29_a_connection_that_is_cut_in_the_midst_of_a_batch() {
    const LIMITERS: usize = 16;
    const ROUNDS: usize = 24;
    let scene = Scene::begin_with("row 29", &[], PATIENT).await;
    let mut crowd = Crowd::new(&scene, |_| "cut", LIMITERS);
    for round in 0..ROUNDS {
        cut_amid(&scene, &mut crowd, round).await;
        // What callers took that left a shared call may be given back after the others' answers.
        crowd.keeps_what_was_granted(&scene).await;
        // A call is sent again once: the next cut is not for those of this one.
        scene.load.idle(true).await;
        scene.load.idle(false).await;
        scene.load.decided(1).await;
    }
    drop(crowd);
    scene.judge_cut(FREE, ROUNDS).await;
}

/// Asks for all of a crowd, cuts a connection, and has some of the callers leave. Those that stay
/// are granted.
async fn cut_amid(scene: &Scene, crowd: &mut Crowd, round: usize) {
    let limiters = crowd.limiters.len();
    let leaves = |caller: usize| (caller * 7 + round).is_multiple_of(5);
    let mut callers = Vec::new();
    match round % 4 {
        0 => scene.proxy.cut_replies(1),
        1 => scene.proxy.spoil(1, Spoil::Reset(30)),
        2 => scene.proxy.spoil(1, Spoil::End(300)),
        _ => {}
    }
    for caller in 0..8 * limiters {
        let asking = asking(&crowd.limiters[caller % limiters]);
        let has_begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&has_begun);
        let caller_of = async move {
            begins.store(true, Ordering::SeqCst);
            asking.await
        };
        callers.push((tokio::spawn(caller_of), has_begun));
        if caller % 37 == round {
            settle().await;
        }
    }
    if round % 4 == 3 {
        scene.proxy.reset();
    }
    for (caller, (task, _)) in callers.iter().enumerate() {
        if leaves(caller) {
            task.abort();
        }
    }
    for (caller, (task, has_begun)) in callers.into_iter().enumerate() {
        match task.await {
            Ok(answer) => {
                crowd.granted[caller % limiters] += granted_by_store(&answer);
                scene.load.observed.less(Some(NAME), Some(&answer));
            }
            // A caller that was aborted had no answer yet.
            Err(aborted) => {
                assert!(aborted.is_cancelled() && leaves(caller));
                if has_begun.load(Ordering::SeqCst) {
                    scene.load.observed.less(Some(NAME), None);
                }
            }
        }
    }
}

/// Each has its own limit, there and here, whatever the others ask for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_30_a_burst_over_a_few_keys() {
    const BURST: usize = 20_000;
    const KEYS: usize = 200;
    const LIMIT: usize = 20;
    let scene = Scene::begin_with("row 30", &[], PATIENT).await;
    // The default deadline: what is given up at it is to be decided here.
    let store = RedisStore::builder(scene.server.url()).build().unwrap();
    let rule = Limit::per_hour(LIMIT as u64)
        .by(FromHeader::new("x-user"))
        .named(&unique("burst"));
    let service = RateLimitLayer::new(&store, rule).layer(service_fn(serve::<()>));
    let ask = |user: usize| {
        let service = service.clone();
        async move {
            let request = Request::builder().header("x-user", user.to_string());
            let Ok(answer) = service.oneshot(request.body(()).unwrap()).await;
            (user, answer.status(), decision_of(&answer).source())
        }
    };
    until("Redis decides", async || ask(KEYS).await.2 == Source::Store).await;
    let asked: JoinSet<_> = (0..BURST).map(|number| ask(number % KEYS)).collect();
    let (mut there, mut here) = (HashMap::new(), HashMap::new());
    for (user, status, source) in asked.join_all().await {
        if status != StatusCode::OK {
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            continue;
        }
        let granted = match source {
            Source::Store => &mut there,
            Source::Local => &mut here,
            other => panic!("{other:?}"),
        };
        *granted.entry(user).or_insert(0) += 1;
    }
    println!(
        "row 30: granted there {}, here {}",
        there.values().sum::<usize>(),
        here.values().sum::<usize>()
    );
    let mut all = there.values().chain(here.values());
    assert!(all.all(|granted| *granted <= LIMIT));
    // No caller is refused before its key has had the limit.
    for user in 0..KEYS {
        let granted = there.get(&user).unwrap_or(&0) + here.get(&user).unwrap_or(&0);
        assert!(granted >= LIMIT, "{user}: {granted}");
    }
    drop((service, store));
    scene.judge(FREE).await;
}

/// The callers of a runtime that is alive, and not driven, delay those of no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_31_a_runtime_that_is_not_driven() {
    let scene = Scene::begin_with("row 31", &[], PATIENT).await;
    let mut crowd = Crowd::new(&scene, |_| "driven", CROWD);
    let mut builder = runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let (idle, busy) = crowd.limiters.split_at(CROWD / 2);
    let mut left: Vec<_> = idle.iter().map(asking).collect();
    aside(|| poll_once_on(&runtime, &mut left));
    let answers: Vec<_> = busy.iter().map(|it| tokio::spawn(asking(it))).collect();
    for (place, answer) in answers.into_iter().enumerate() {
        let answer = answer.await.unwrap();
        scene.load.observed.less(Some(NAME), Some(&answer));
        crowd.granted[CROWD / 2 + place] += granted_by_store(&answer);
    }
    scene.load.decided(5).await;
    drop(left);
    (0..CROWD / 2).for_each(|_| scene.load.observed.less(Some(NAME), None));
    runtime.shutdown_background();
    // What was dropped is given back.
    crowd.keeps_what_was_granted(&scene).await;
    drop(crowd);
    scene.judge(FREE).await;
}

pub fn asking(limiter: &RateLimiter) -> Asking {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.try_acquire().await })
}

/// Polls each of them once on a runtime.
fn poll_once_on(runtime: &Runtime, left: &mut [Asking]) {
    let once = poll_fn(|context| {
        for asking in &mut *left {
            assert!(asking.as_mut().poll(context).is_pending());
        }
        Poll::Ready(())
    });
    // A runtime is not entered from within another one.
    thread::scope(|scope| scope.spawn(|| runtime.block_on(once)).join().unwrap());
}
