//! Row 33: a log with many more grants in an interval than it has records.

use kit::{OwnLog, monitor::time_of, scene::*, state_key};

use super::{
    clocks::SHIFT_OWN,
    record::UNRECORDED,
    stage::{EXACT, Scene, aside, patient},
};

const GRANTS: usize = 100_000;
/// Nothing expires before the test says so.
const INTERVAL: Duration = secs(600);
const MS: i64 = INTERVAL.as_millis() as i64;
/// By how much a merged grant may expire late
const LATE: i64 = MS / 1000;
/// A record has 22 bytes, and 2000 of them are merged by the next call, of at most 254 callers.
const MOST_BYTES: usize = 22 * (2000 + 254) + 100;
const TASKS: usize = 64;

/// When a caller asked, and when it was answered: ms, by the clock of the machine.
type Asked = [i64; 2];

/// The log under test, and the processes that share it.
struct Long<'s> {
    scene: &'s Scene,
    limiters: [RateLimiter; 2],
}

fn now() -> i64 {
    SystemClock.now().as_millis() as i64
}

impl Long<'_> {
    fn state(&self) -> Vec<u8> {
        let key = state_key(self.limiters[0].name());
        match aside(|| self.scene.server.command(&["GET", &key])) {
            // Nothing is granted yet.
            Reply::Nil => Vec::new(),
            state => state.into_bytes(),
        }
    }

    fn log(&self) -> OwnLog {
        OwnLog::of(&self.state()).expect("a log")
    }

    /// Lets so many ms pass, from the log's view.
    fn pass(&self, time: i64) {
        let (key, by) = (state_key(self.limiters[0].name()), (-time).to_string());
        let shifted = aside(|| self.scene.server.cli(&["EVAL", SHIFT_OWN, "1", &key, &by]));
        assert!(shifted.parse::<usize>().unwrap() > 0, "{shifted}");
    }

    /// All is granted, by both processes at once. Returns when, and the most bytes on the way.
    async fn fill(&self) -> (Vec<Asked>, usize) {
        let left = Arc::new(AtomicUsize::new(GRANTS));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (left, limiter) = (left.clone(), self.limiters[task % 2].clone());
            tasks.spawn(async move {
                let mut asked = Vec::new();
                let one = |left: usize| left.checked_sub(1);
                while left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one)
                    .is_ok()
                {
                    let began = now();
                    let grant = take(&limiter, 1).await;
                    assert_eq!(grant.source(), Source::Store);
                    asked.push([began, now()]);
                }
                asked
            });
        }
        let (mut all, mut most) = (Vec::new(), 0);
        while !tasks.is_empty() {
            match tokio::time::timeout(millis(20), tasks.join_next()).await {
                Ok(asked) => all.extend(asked.into_iter().flatten().flatten()),
                Err(_) => most = most.max(self.state().len()),
            }
        }
        (all, most.max(self.state().len()))
    }

    /// Each grant is in the log once, expires no sooner than it should, and late by a thousandth of
    /// the interval at most.
    fn check_times(&self, asked: &[Asked]) {
        let log = self.log();
        assert_eq!((log.mistake(), log.twice()), (None, None));
        assert_eq!(log.in_use(now(), MS), GRANTS as i64);
        assert!(
            log.records.iter().any(|it| it.is_merged()),
            "nothing is merged"
        );
        let mut asked_at: Vec<_> = asked.iter().map(|asked| asked[0]).collect();
        let mut answered_at: Vec<_> = asked.iter().map(|asked| asked[1]).collect();
        asked_at.sort_unstable();
        answered_at.sort_unstable();
        let until = |times: &[i64], time: i64| times.partition_point(|it| *it <= time) as i64;
        let mut sum = 0;
        for record in &log.records {
            let late = until(&answered_at, record.time - 1 - LATE);
            assert!(late <= sum, "{late} were granted, and {sum} expire in time");
            sum += record.permits;
            let asked = until(&asked_at, record.time);
            assert!(sum <= asked, "{sum} expire, and only {asked} had asked");
        }
    }

    /// Both are refused, until the first record expires. Returns how many ms that is.
    async fn check_refused(&self) -> i64 {
        let first = self.log().records[0].time;
        let mut longest = 0;
        for limiter in &self.limiters {
            let before = aside(|| time_of(&self.scene.server));
            let wait = wait(limiter, 1).await.expect("refused").as_millis() as i64;
            let after = aside(|| time_of(&self.scene.server));
            let right = first + MS - after..=first + MS - before;
            assert!(right.contains(&wait), "{wait} is not in {right:?}");
            longest = longest.max(wait);
        }
        longest
    }

    /// What is free is what the records say.
    async fn check_free(&self) {
        for limiter in &self.limiters {
            let free_before = GRANTS as i64 - self.log().in_use(now(), MS);
            let free = free(limiter).await as i64;
            let free_after = GRANTS as i64 - self.log().in_use(now(), MS);
            assert!((free_before..=free_after).contains(&free), "{free}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_33_a_log_of_100_000_grants() {
    let scene = Scene::begin("row 33").await;
    let (url, prefix) = (scene.server.url(), unique("long"));
    let limiters = [0; 2].map(|_| {
        let store = patient(RedisStore::builder(&url).prefix(&prefix));
        let limit = Limit::new(GRANTS as u64, INTERVAL).named(UNRECORDED);
        limit.single(&store).unwrap()
    });
    let long = Long {
        scene: &scene,
        limiters,
    };
    let began = Instant::now();
    let (asked, most) = long.fill().await;
    println!(
        "row 33: {GRANTS} grants in {:?}, {} records, {most} bytes at most",
        began.elapsed(),
        long.log().records.len()
    );
    assert!(most <= MOST_BYTES, "{most} bytes");
    long.check_times(&asked);
    let wait = long.check_refused().await;
    long.pass(wait / 2);
    long.check_refused().await;
    long.pass(wait - wait / 2);
    for limiter in &long.limiters {
        assert_eq!(take(limiter, 1).await.source(), Source::Store);
    }
    // A part of what was merged has expired.
    long.pass((asked.iter().map(|asked| asked[1]).max().unwrap() - asked[0][0]) / 2);
    long.check_free().await;
    long.pass(MS);
    for limiter in &long.limiters {
        assert_eq!(free(limiter).await, GRANTS as u64);
    }
    drop(long);
    scene.load.decided(2).await;
    scene.judge(EXACT).await;
}
