//! Clocks that were wrong and are set right: what they have made is over an interval after it was
//! met.

use super::*;

const TEN: Duration = secs(10);

/// Puts the state of a limiter by hand where a server's clock that is fast by so much would have
/// left it.
fn plant(key: &str, permits: u64, interval: Duration, ahead: Duration) {
    let number = |number: u64, width: usize| number.to_le_bytes()[..width].to_vec();
    let now = RedisServer::shared().micros().cast_unsigned();
    let tat = now + u64::try_from(ahead.as_micros()).unwrap();
    let millis = u64::try_from(interval.as_millis()).unwrap();
    let state = [
        number(millis, 6),
        number(permits, 7),
        number(tat, 7),
        number(0, 7),
        number(tat, 7),
        vec![0; 40],
        vec![18, 183],
    ];
    let command = [
        &b"SET"[..],
        key.as_bytes(),
        &state.concat(),
        b"PX",
        b"7200000",
    ];
    RedisServer::shared().command(&command);
}

#[tokio::test]
async fn what_a_fast_server_has_made_is_set_back_by_the_call_that_meets_it() {
    type Meet = for<'a> fn(&'a RateLimiter) -> Pin<Box<dyn Future<Output = ()> + 'a>>;
    let meet: [Meet; 3] = [
        |limiter| Box::pin(async { assert!(wait(limiter, 5).await.unwrap() <= TEN) }),
        |limiter| Box::pin(async { assert_eq!(free(limiter).await, 0) }),
        |limiter| Box::pin(async { assert_eq!(limiter.release(1).await.unwrap(), 1) }),
    ];
    for meet in meet {
        let store = redis_store().build().unwrap();
        let limiter = Way::Gcra.limited(&store, Limit::new(5, TEN)).await;
        let key = state_key(limiter.name());
        plant(&key, 5, TEN, HOUR);
        meet(&limiter).await;
        assert!(ahead(&key) <= 10_000_000, "{}", ahead(&key));
        assert!(wait(&limiter, 5).await.unwrap() <= TEN);
    }
}

/// By the script that looks at no limit.
#[tokio::test]
async fn nor_does_it_outlast_an_interval_of_a_rules_limiter() {
    let prefix = unique("fast");
    let layer = Way::Gcra.layer(
        &redis_store().prefix(&prefix).build().unwrap(),
        Limit::new(5, TEN),
    );
    let key = format!("{prefix}:{{a}}:five~");
    plant(&key, 5, TEN, HOUR);
    let answer = send(&layer, "a").await;
    let refusal = refused(decision_of(&answer).clone());
    assert!(refusal.retry_after().unwrap() <= TEN / 5);
    assert!(ahead(&key) <= 10_000_000, "{}", ahead(&key));
}

/// Zero means the server's clock to a script.
#[tokio::test]
async fn a_clock_that_begins_at_zero_counts() {
    let clock = ManualClock::new();
    clock.set(Duration::ZERO);
    let store = redis_store().client_clock(clock.clone()).build().unwrap();
    let limiter = Way::Gcra.limited(&store, Limit::new(1, TEN)).await;
    take(&limiter, 1).await;
    clock.advance(millis(1));
    assert!(wait(&limiter, 1).await.unwrap() <= TEN);
    clock.advance(TEN);
    take(&limiter, 1).await;
}

/// A caller's clock proves nothing: one that is slow must not make room for one that is not.
#[tokio::test]
async fn a_slow_caller_makes_no_room_for_another() {
    let prefix = unique("slow");
    let clock = ManualClock::new();
    let slow = ManualClock::new();
    slow.set(clock.now() - HOUR);
    let store = |clock: &ManualClock| {
        let store = redis_store().prefix(&prefix);
        store.client_clock(clock.clone()).build().unwrap()
    };
    let limit = Limit::new(5, TEN).named("slow").algorithm(Algorithm::Gcra);
    let [limiter, other] =
        [&clock, &slow].map(|clock| limit.clone().single(&store(clock)).unwrap());
    take(&limiter, 5).await;
    assert!(wait(&other, 1).await.unwrap() > HOUR);
    assert_eq!(free(&other).await, 0);
    assert_eq!(free(&limiter).await, 0);
    assert_eq!(wait(&limiter, 1).await, Some(TEN / 5));
}

/// Returns how far the theoretical arrival time is ahead, in us.
fn ahead(key: &str) -> i64 {
    let script = "local time = redis.call('TIME') \
                  local tat = struct.unpack('<I7', redis.call('GET', KEYS[1]), 28) \
                  return tat - time[1] * 1000000 - time[2]";
    let ahead = RedisServer::shared().cli(&["EVAL", script, "1", key]);
    ahead.trim().parse().unwrap()
}
