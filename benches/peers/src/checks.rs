//! Correctness, in the same run: what each contestant does where it matters.

use std::{
    env,
    future::poll_fn,
    panic,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    time::{Duration, Instant},
};

use tokio::{
    process::Command,
    task::{JoinSet, yield_now},
    time::sleep,
};
use tower::{Service, limit::ConcurrencyLimit};

use crate::{
    contest::{Answer, Limit, Slow, User, limit, request, users},
    database::Database,
    peers::{Entry, Promise, State},
    work::{Closed, Contestant},
};

const HOURLY: &[Limit] = &[limit(1, 3600)];
const TWENTY: &[Limit] = &[limit(20, 3600)];

/// How far the wrong clock is ahead: `clock.c` says so, too.
const AHEAD: &str = "120 s";

/// Returns the most requests that were certainly admitted in one interval, and whether that is what
/// is promised. Two instances are asked; on Redis they share their state. One request comes first,
/// and a flood when most of an interval is over.
pub(crate) async fn over(entry: &Entry, url: &str) -> (usize, bool) {
    const LIMIT: Limit = limit(50, 1);
    let mut instances = vec![entry.built(&[LIMIT], url, "over").await];
    if entry.on_redis() {
        instances.push(entry.built(&[LIMIT], url, "over").await);
    }
    let users = users(&format!("over-{}", entry.label()), 2);
    for instance in &instances {
        // What comes with a first request, connections and scripts, is over.
        instance.ask(&users[1], 1).await;
    }
    let admitted = Arc::new(Mutex::new(Vec::new()));
    let began = Instant::now();
    if !entry.keyed {
        sleep(LIMIT.interval() + Duration::from_millis(50)).await;
    }
    let first = instances[0].ask(&users[0], 1).await;
    if first == Answer::Admitted {
        admitted.lock().unwrap().push((began, Instant::now()));
    }
    sleep(Duration::from_millis(850)).await;
    let end = Instant::now() + Duration::from_millis(1300);
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let (instance, users) = (
            Arc::clone(&instances[task % instances.len()]),
            Arc::clone(&users),
        );
        let admitted = Arc::clone(&admitted);
        tasks.spawn(async move {
            while Instant::now() < end && admitted.lock().unwrap().len() < 2000 {
                let began = Instant::now();
                if instance.ask(&users[0], 1).await == Answer::Admitted {
                    admitted.lock().unwrap().push((began, Instant::now()));
                }
                yield_now().await;
            }
        });
    }
    tasks.join_all().await;
    let admitted = admitted.lock().unwrap();
    // Asked and answered within one interval: decided in it, however long answers take. Less one
    // millisecond, as clocks of Redis and Java are read in whole ones.
    let interval = LIMIT.interval() - Duration::from_millis(1);
    let within = |(from, _): &(Instant, Instant)| {
        let inside = |(asked, answered): &&(Instant, Instant)| {
            *asked >= *from && *answered < *from + interval
        };
        admitted.iter().filter(inside).count()
    };
    let most = admitted.iter().map(within).max().unwrap_or(0);
    let promised = match entry.promise {
        Promise::Interval => LIMIT.permits as usize,
        Promise::Bucket | Promise::Window => 2 * LIMIT.permits as usize,
        Promise::Estimate => usize::MAX,
    };
    (most, most <= promised)
}

/// Refusals whose wait was followed to the letter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    pub(crate) announced: usize,
    /// Refused again
    pub(crate) early: usize,
    /// The longest that a permit was free before it was said to be, in seconds
    pub(crate) late: f64,
}

pub(crate) async fn waits(entry: &Entry, url: &str) -> Waits {
    const LIMIT: Limit = limit(2, 4);
    let count = if entry.keyed { 12 } else { 1 };
    let label = format!("wait-{}", entry.label());
    let (follow, watch) = (
        users(&format!("{label}-f"), count),
        users(&format!("{label}-w"), count),
    );
    let following = entry.built(&[LIMIT], url, &label).await;
    // Without keys the one that watches must not share the count.
    let watching = if entry.keyed {
        Arc::clone(&following)
    } else {
        entry.built(&[LIMIT], url, &label).await
    };
    let mut tasks = JoinSet::new();
    for at in 0..count {
        let (following, watching) = (Arc::clone(&following), Arc::clone(&watching));
        let (follow, watch) = (Arc::clone(&follow), Arc::clone(&watch));
        tasks.spawn(async move {
            let (follow, watch) = (&follow[at], &watch[at]);
            sleep(Duration::from_millis(170 * at as u64)).await;
            for _ in 0..LIMIT.permits {
                following.ask(follow, 1).await;
                watching.ask(watch, 1).await;
                sleep(Duration::from_millis(90)).await;
            }
            sleep(Duration::from_millis(70 * at as u64)).await;
            let Answer::Refused(Some(wait)) = following.ask(follow, 1).await else {
                return None;
            };
            let refused = Instant::now();
            let freed = async {
                while watching.ask(watch, 1).await != Answer::Admitted
                    && refused.elapsed().as_secs() < 9
                {
                    sleep(Duration::from_millis(25)).await;
                }
                refused.elapsed()
            };
            let followed = async {
                sleep(wait).await;
                following.ask(follow, 1).await
            };
            let (freed, followed) = tokio::join!(freed, followed);
            Some((
                followed != Answer::Admitted,
                wait.as_secs_f64() - freed.as_secs_f64(),
            ))
        });
    }
    let mut waits = Waits::default();
    for (early, late) in tasks.join_all().await.into_iter().flatten() {
        waits.announced += 1;
        waits.early += usize::from(early);
        waits.late = waits.late.max(late);
    }
    waits
}

/// What follows when the server has closed all connections: of calls 50 ms apart, each for a new
/// user with one permit an hour, who asks twice.
pub(crate) async fn dropped(entries: &[Entry], database: &Database) -> Vec<String> {
    let mut all = Vec::new();
    for entry in entries {
        let contestant = entry.built(HOURLY, &database.url(), "dropped").await;
        let users = users(&format!("dropped-{}", entry.label()), 60);
        for user in &users[40..] {
            contestant.ask(user, 1).await;
        }
        all.push((contestant, users));
    }
    database.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let mut said = Vec::new();
    let mut tasks = JoinSet::new();
    for (at, (contestant, users)) in all.into_iter().enumerate() {
        tasks.spawn(async move { (at, after_drop(&*contestant, &users[..40]).await) });
    }
    said.extend(tasks.join_all().await);
    said.sort_unstable();
    said.into_iter().map(|(_, said)| said).collect()
}

async fn after_drop(contestant: &dyn Contestant, users: &[User]) -> String {
    let (mut failed, mut unlimited, mut last) = (0, 0, None);
    for (at, user) in users.iter().enumerate() {
        let answers = [contestant.ask(user, 1).await, contestant.ask(user, 1).await];
        let right = answers[0] == Answer::Admitted && matches!(answers[1], Answer::Refused(_));
        failed += answers
            .iter()
            .filter(|answer| **answer == Answer::Failed)
            .count();
        unlimited += usize::from(answers == [Answer::Admitted; 2]);
        if !right {
            last = Some(at);
        }
        sleep(Duration::from_millis(50)).await;
    }
    let calls = 2 * users.len();
    match last {
        None => String::from("nothing is noticed"),
        Some(at) if at + 10 < users.len() => {
            format!("{failed} of {calls} fail, {unlimited} pass unlimited, then as before")
        }
        Some(_) if unlimited > failed => String::from("limits nothing any more"),
        Some(_) => format!("{failed} of {calls} calls fail, to the end"),
    }
}

/// How many of ten callers who leave at once, after their call was sent, are charged.
pub(crate) async fn left(entry: &Entry, url: &str) -> Option<usize> {
    if entry.state == State::Process {
        return None;
    }
    let contestant = entry.built(TWENTY, url, "left").await;
    let users = users(&format!("left-{}", entry.label()), 2);
    contestant.ask(&users[1], 1).await;
    for _ in 0..10 {
        let mut call = contestant.ask(&users[0], 1);
        poll_fn(|context| {
            let _ = call.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
        sleep(Duration::from_millis(5)).await;
    }
    sleep(Duration::from_millis(300)).await;
    Some(20_usize.saturating_sub(admitted(&*contestant, &users[0], 25).await))
}

/// Around a service that serves one request at a time: whether it works at all, and whether
/// requests that are refused reach it.
pub(crate) async fn inner(entry: &Entry, url: &str) -> String {
    let contestant = entry.built(&[limit(4, 3600)], url, "inner").await;
    let calls = Arc::new(AtomicU64::new(0));
    let slow = Slow {
        calls: Arc::clone(&calls),
        takes: Duration::from_millis(10),
    };
    let Some(service) = contestant.around(ConcurrencyLimit::new(slow, 1)) else {
        return String::from("–");
    };
    let users = users(&format!("inner-{}", entry.label()), 1);
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (mut service, request) = (service.clone(), request(&users[0], 1));
        tasks.spawn(async move {
            let Ok(()) = poll_fn(|context| service.poll_ready(context)).await;
            service.call(request).await
        });
    }
    let (mut panicked, mut admitted) = (0, 0);
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok(Answer::Admitted)) => admitted += 1,
            Ok(_) => {}
            Err(_) => panicked += 1,
        }
    }
    match (panicked, admitted, calls.load(Relaxed)) {
        (0, 4, 4) => String::from("works"),
        (0, 4, calls) => format!("works; {} refused requests reach it", calls - 4),
        (0, admitted, _) => format!("{admitted} of 4 admitted"),
        (panicked, ..) => format!("{panicked} of 8 requests panic"),
    }
}

/// A second process whose clock is ahead: how many it is admitted of a limit that is used up, and
/// whether what it uses up is free again in time.
pub(crate) async fn clock(entry: &Entry, url: &str) -> Option<(String, String)> {
    env::var_os("PEERS_CLOCK").filter(|_| entry.state == State::Redis)?;
    let (minute, short) = (limit(20, 60), limit(20, 2));
    let name = entry.label();
    let used_up = entry.built(&[minute], url, "clock-a").await;
    let user = users(&format!("clock-a-{name}"), 1);
    for _ in 0..20 {
        used_up.ask(&user[0], 1).await;
    }
    let more = elsewhere(entry, url, minute, "clock-a", &format!("clock-a-{name}")).await?;
    elsewhere(entry, url, short, "clock-b", &format!("clock-b-{name}")).await?;
    sleep(Duration::from_millis(3500)).await;
    let after = entry.built(&[short], url, "clock-b").await;
    let user = users(&format!("clock-b-{name}"), 1);
    let free = match after.ask(&user[0], 1).await {
        Answer::Admitted => "free in time",
        _ => "refused for longer",
    };
    Some((format!("{more} of 20 more"), free.to_owned()))
}

/// Twenty calls by a process whose clock is ahead; how many were admitted.
async fn elsewhere(
    entry: &Entry,
    url: &str,
    limit: Limit,
    label: &str,
    user: &str,
) -> Option<String> {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ask", entry.name, url, label])
        .args([&limit.permits.to_string(), &limit.seconds.to_string(), user])
        .env("LD_PRELOAD", env::var_os("PEERS_CLOCK")?)
        .stderr(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}: the process {AHEAD} ahead has failed",
        entry.name
    );
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// In that other process.
pub(crate) async fn ask(entry: &Entry, url: &str, label: &str, limit: Limit, user: &str) -> usize {
    let contestant = entry.built(&[limit], url, label).await;
    let user = users(user, 1);
    admitted(&*contestant, &user[0], 20).await
}

/// How many of so many calls, one after the other, are admitted.
async fn admitted(contestant: &dyn Contestant, user: &User, calls: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += usize::from(contestant.ask(user, 1).await == Answer::Admitted);
    }
    admitted
}

/// A log or count of so many permits that all expire, and so many keys.
pub(crate) struct Expiry {
    entry: Entry,
    hot: Arc<dyn Contestant>,
    many: Arc<dyn Contestant>,
    name: String,
    keys: usize,
}

impl Expiry {
    pub(crate) const SECONDS: u64 = 20;

    pub(crate) async fn begin(entry: &Entry, database: &Database, keys: usize) -> Self {
        let url = database.url();
        let limit = |permits| [limit(permits, Self::SECONDS)];
        let name = entry.label();
        let begun = Self {
            entry: *entry,
            hot: entry.built(&limit(20_000), &url, "expiry-hot").await,
            many: entry.built(&limit(1), &url, "expiry-many").await,
            name,
            keys,
        };
        let spend = |contestant: &Arc<dyn Contestant>, prefix: String, count, most| {
            let closed = Closed {
                users: users(&prefix, count),
                prefix,
                costs: &[1],
                in_flight: if entry.on_redis() { 50 } else { 2 },
                time: Duration::from_secs(Self::SECONDS / 2),
                most,
            };
            Arc::clone(contestant).closed(closed)
        };
        spend(&begun.hot, format!("expiry-hot-{}", begun.name), 1, 20_000).await;
        if entry.keyed {
            spend(
                &begun.many,
                format!("expiry-many-{}", begun.name),
                keys,
                keys as u64,
            )
            .await;
        }
        begun
    }

    /// Returns the milliseconds of the dearest of a hundred calls when all has expired, and the
    /// bytes that each idle key still takes in Redis.
    pub(crate) async fn end(self, database: &Database) -> (f64, Option<f64>) {
        let held = self.entry.on_redis().then(|| {
            let pattern = format!("*expiry-many-{}-*", self.name);
            // Memory of the keys, added up by the server.
            let script = "local at, sum = '0', 0 repeat local found = redis.call('SCAN', at, \
                'MATCH', ARGV[1], 'COUNT', 1000) at = found[1] for _, key in ipairs(found[2]) do \
                sum = sum + (redis.call('MEMORY', 'USAGE', key) or 0) end until at == '0' return sum";
            let sum = database.cli(&["EVAL", script, "0", &pattern]);
            sum.trim().parse::<f64>().unwrap() / self.keys as f64
        });
        let user = users(&format!("expiry-hot-{}", self.name), 1);
        let mut dearest = Duration::ZERO;
        for _ in 0..100 {
            let began = Instant::now();
            self.hot.ask(&user[0], 1).await;
            dearest = dearest.max(began.elapsed());
        }
        (dearest.as_secs_f64() * 1e3, held)
    }
}

/// Panics of peers are counted, and not printed.
pub(crate) fn quiet_panics() {
    panic::set_hook(Box::new(|about| {
        let ours = about
            .location()
            .is_some_and(|at| at.file().starts_with("src/"));
        if ours {
            eprintln!("{about}");
        }
    }));
}
