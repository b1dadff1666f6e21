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

/// The turn, by a clock that is moved. Until it, and a turn further for more than one window has.
#[tokio::test]
async fn a_wait_ends_at_the_turn() {
    let (store, clock) = MemoryStore::builder().build_manual();
    clock.set(secs(1_792_926_000));
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

/// Zones of one deployment may differ for a while: all of them count under the newest label.
#[tokio::test]
async fn another_zone_reopens_nothing() {
    let far = ["5/day Pacific/Kiritimati", "5/day Pacific/Pago_Pago"];
    let (name, prefix) = (unique("quota"), unique("far"));
    // Two processes: one could not have both.
    let store = || shared_redis().prefix(&prefix).build().unwrap();
    let [ahead, behind] = far.map(|text| named(&store(), &name, text));
    take(&ahead, 4).await;
    take(&behind, 1).await;
    assert!(wait(&ahead, 1).await.is_some() && wait(&behind, 1).await.is_some());
}

/// Two versions of a service, of which one counts by the calendar, have a key each.
#[tokio::test]
async fn a_limiter_is_deleted_by_whichever_version() {
    let prefix = unique("versions");
    let store = || shared_redis().prefix(&prefix).build().unwrap();
    let of = |text: &str| limit(text).named("api").single(&store()).unwrap();
    let both = [of(&by_day("5/day")), of("5/1h")];
    for deletes in &both {
        for limiter in &both {
            take(limiter, 5).await;
        }
        assert!(deletes.delete().await.unwrap());
        assert_eq!((free(&both[0]).await, free(&both[1]).await), (5, 5));
    }
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
