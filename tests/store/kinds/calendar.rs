//! Limits by the calendar: each test is a line of their definition.

use super::*;
use tower_ratelimit::StartingOn;

const DAY: Duration = Duration::from_secs(86_400);

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// In the zone that it names, or in one whose windows do not end while a test runs.
fn named(store: &impl Store, name: &str, text: &str) -> RateLimiter {
    let limit = if text.contains(' ') {
        limit(text)
    } else {
        limit(&by_day(text))
    };
    limit.named(name).single(store).unwrap()
}

fn by_day(text: &str) -> String {
    format!("{text} {}", zone_by_day())
}

fn quota(store: &impl Store, text: &str) -> RateLimiter {
    named(store, &unique("quota"), text)
}

/// A quota in Redis, with what stands there.
fn stored(text: &str) -> (RateLimiter, Stored) {
    let limiter = quota(&redis_store().build().unwrap(), text);
    let key = calendar_key(limiter.name());
    (limiter, Stored { key })
}

struct Stored {
    key: String,
}

impl Stored {
    fn label_and_used(&self) -> (u64, i64) {
        let state = RedisServer::shared().command(&["GET", &self.key]);
        label_and_used(&state.into_bytes())
    }

    /// Counts under another label, in a window that ends in an hour.
    fn set_label(&self, label: u64) {
        let server = RedisServer::shared();
        let now = number_of_text(&server.cli(&["TIME"])) * 1000;
        let mut state = server.command(&["GET", &self.key]).into_bytes();
        state[..6].copy_from_slice(&label.to_le_bytes()[..6]);
        state[6..12].copy_from_slice(&(now + 3_600_000).to_le_bytes()[..6]);
        self.set(&state);
    }

    fn set(&self, state: &[u8]) {
        let command = [&b"SET"[..], self.key.as_bytes(), state, b"PX", b"7200000"];
        RedisServer::shared().command(&command);
    }
}

/// Returns the first number of a reply.
fn number_of_text(reply: &str) -> u64 {
    reply.lines().next().unwrap().parse().unwrap()
}

on_both_stores!(tiers_and_closures_choose_a_calendar,);

/// A day and a month of one key, in Redis: a refusal takes nothing, and so gives nothing back.
#[tokio::test]
async fn limits_by_the_calendar_go_in_one_call() {
    let server = RedisServer::start();
    let store = patient(server.url()).deny_cache(Duration::ZERO);
    let store = store.build().unwrap();
    let [day, month] = ["3/day", "5/month"].map(|text| {
        let keyed = limit(&by_day(text)).named(&unique("quota")).keyed(&store);
        keyed.unwrap().of("alice")
    });
    let both = RateLimiter::all([&day, &month]).unwrap();
    granted(both.try_acquire_many(1).await.unwrap());
    let calls = || server.calls_of("evalsha");
    let before = calls();
    let grant = granted(both.try_acquire_many(1).await.unwrap());
    refused(both.try_acquire_many(2).await.unwrap());
    assert_eq!(calls() - before, 2);
    assert_eq!((free(&day).await, free(&month).await), (1, 3));
    day.settle(&grant, 0);
    store.settled().await;
    assert_eq!((free(&day).await, free(&month).await), (2, 3));
}

async fn tiers_and_closures_choose_a_calendar(store: impl Settles) {
    let tiers = Tiers::new(
        [
            ("free", limit(&by_day("1/month"))),
            ("paid", Limit::per_hour(1)),
        ],
        |parts| match parts.headers.get("x-key") {
            Some(key) if key == "paid" => "paid",
            _ => "free",
        },
    );
    let found = limit_by(|parts| match parts.headers.get("x-key") {
        Some(key) if key == "paid" => Limit::per_hour(1),
        _ => limit(&by_day("1/month")),
    });
    let tiers = Rule::new(&unique("rule"), tiers, FromHeader::new("x-key"));
    for rule in [
        tiers,
        Rule::new(&unique("rule"), found, FromHeader::new("x-key")),
    ] {
        let layer = RateLimitLayer::new(&store, rule);
        for (key, is_by_hour) in [("free", false), ("paid", true)] {
            assert_eq!(send(&layer, key).await.status(), 200);
            let refused = send(&layer, key).await;
            let limit = decision_of(&refused).limits().next().unwrap();
            assert_eq!(limit.interval() == HOUR, is_by_hour, "{key}");
            // A log would refuse for 31 days, but in the first seconds of a month.
            let wait = limit.retry_after().unwrap();
            assert!(
                is_by_hour || wait < 31 * DAY - 2 * SECOND,
                "{key}: {wait:?}"
            );
        }
    }
}

#[test]
fn what_it_cannot_have_is_named() {
    let store = MemoryStore::new();
    let build = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let rule = || Rule::new("api", limit("5/month"), PeerIp);
    for (rule, says) in [
        (
            rule().lease(SECOND),
            "\"api\" cannot lease permits for 1s: a window of the calendar has no",
        ),
        (rule().slots(10), "rule \"api\" needs no slots"),
        (
            rule().algorithm(Algorithm::Gcra),
            "\"api\" counts 5/month by the calendar, for all clients together: leave the algorithm",
        ),
        (
            Rule::new("api", limit("5/month").per_client(), PeerIp),
            "\"api\" counts 5/month by the calendar, for all clients together: leave the algorithm",
        ),
        (
            Rule::new("api", Limit::per_hour(5), PeerIp).algorithm(Algorithm::Calendar),
            "\"api\" cannot count 5/1h by the calendar: only days, weeks and months",
        ),
        (
            Rule::shared("orders").or_init(limit("5/month")),
            "rule \"orders\" cannot share a limit by the calendar, as Java knows none",
        ),
        (rule().cost(6), "rule \"api\" costs 6 permits"),
    ] {
        let error = build(rule).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// The turn, by a clock that is moved. Until it, and a turn further for more than one window has.
#[tokio::test]
async fn a_wait_ends_at_the_turn() {
    let clock = ManualClock::new();
    clock.set(secs(1_792_926_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    // The Sunday whose last hour comes twice.
    let limiter = quota(&store, "2/day Europe/Berlin");
    let turn = 12 * HOUR;
    let grant = take(&limiter, 2).await;
    let too_short = limiter.try_acquire_for(1, turn - SECOND).await.unwrap();
    assert_eq!(refused(too_short).retry_after(), Some(turn));
    let waiting = ["first", "second"].map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.try_acquire_for(2, 2 * DAY).await.unwrap() })
    });
    until("both wait", async || clock.sleepers() > 0).await;
    let third = limiter.try_acquire_for(2, turn + DAY).await.unwrap();
    // Of windows that are not begun, the length of this one is taken: 25 hours.
    assert_eq!(refused(third).retry_after(), Some(turn + 2 * (DAY + HOUR)));
    let [first, second] = waiting;
    clock.advance(turn);
    granted(first.await.unwrap());
    // Of a window that is over.
    limiter.settle(&grant, 0);
    limiter.settle(&grant, 9);
    assert_eq!(free(&limiter).await, 0);
    until("the other waits", async || clock.sleepers() > 0).await;
    clock.advance(DAY);
    granted(second.await.unwrap());
}

#[tokio::test]
async fn labels_never_fall_and_the_key_ends_with_its_window() {
    let (limiter, stored) = stored("5/month");
    take(&limiter, 2).await;
    let (today, used) = stored.label_and_used();
    assert!(today % 100 == 1 && used == 2, "{today} {used}");
    // An older label is over, also for what was granted under it.
    stored.set_label(20_200_101);
    let grant = take(&limiter, 2).await;
    assert_eq!(stored.label_and_used(), (today, 2));
    take(&limiter, 1).await;
    // A newer one stays: it was made by a clock that was set back, or for another zone.
    stored.set_label(29_990_101);
    limiter.give_back(&grant);
    assert_eq!(free(&limiter).await, 2);
    take(&limiter, 1).await;
    assert_eq!(stored.label_and_used(), (29_990_101, 4));
    let wait = wait(&limiter, 2).await.unwrap();
    assert!(wait.abs_diff(HOUR) < 30 * SECOND, "{wait:?}");
    let left = RedisServer::shared().cli(&["PTTL", &stored.key]);
    let left = number_of_text(&left);
    assert!(left > 7_100_000 && left <= 7_200_000, "{left}");
}

/// Zones of one deployment may differ for a while: all of them count under the newest label.
#[tokio::test]
async fn another_zone_reopens_nothing() {
    let far = ["5/day Pacific/Kiritimati", "5/day Pacific/Pago_Pago"];
    let (name, prefix) = (unique("quota"), unique("far"));
    // Two processes: one could not have both.
    let store = || redis_store().prefix(&prefix).build().unwrap();
    let [ahead, behind] = far.map(|text| named(&store(), &name, text));
    take(&ahead, 4).await;
    take(&behind, 1).await;
    assert!(wait(&ahead, 1).await.is_some() && wait(&behind, 1).await.is_some());
}

/// One call, whatever the clock of the caller; a second one if it is a window off.
#[tokio::test]
async fn a_clock_that_is_off_costs_a_call_and_no_permit() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(SystemClock.now());
    let store = patient(server.url())
        .client_clock(clock.clone())
        .deny_cache(Duration::ZERO);
    let limiter = quota(&store.build().unwrap(), "9/day");
    take(&limiter, 1).await;
    for (off, calls) in [(DAY / 1000, 1), (30 * DAY, 2), (DAY / 1000, 1)] {
        clock.set(SystemClock.now() + off);
        let before = server.calls_of("evalsha");
        take(&limiter, 1).await;
        assert_eq!(server.calls_of("evalsha") - before, calls, "{off:?}");
    }
    clock.set(SystemClock.now() - 3 * DAY);
    take(&limiter, 1).await;
    assert_eq!(free(&limiter).await, 4);
}

#[test]
fn days_are_named_in_code_as_in_files() {
    let coded = Limit::weekly(5).starting_on(StartingOn::Sunday).unwrap();
    assert_eq!(coded, limit("5/week from sunday"));
    assert_eq!(
        Limit::monthly(5).starting_on(15).unwrap(),
        limit("5/month from 15")
    );
    let berlin = Limit::daily(5).in_zone("europe/berlin").unwrap();
    assert_eq!(berlin.to_string(), "5/day Europe/Berlin");
    assert_eq!(Limit::daily(5).in_zone("utc").unwrap(), Limit::daily(5));
}
