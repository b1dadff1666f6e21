//! Clocks that were wrong and are set right: what they have made is over an interval after it was
//! met.

use super::*;

const TEN: Duration = secs(10);

/// Puts the state of a limiter by hand where a server's clock that is fast by so much would have
/// left it.
fn plant(value: &str, permits: u32, interval: Duration, ahead: Duration) {
    let script = "local time = redis.call('TIME') \
                  local tat = time[1] * 1000000 + time[2] + ARGV[3] \
                  local value = struct.pack('<ddddd', ARGV[1], ARGV[2], tat, tat, 0) \
                  redis.call('SET', KEYS[1], value, 'PX', '7200000')";
    let millis = interval.as_millis().to_string();
    let (permits, ahead) = (permits.to_string(), ahead.as_micros().to_string());
    let arguments = ["EVAL", script, "1", value, &millis, &permits, &ahead];
    RedisServer::shared().command(&arguments);
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
        let value = key(limiter.name(), "value");
        plant(&value, 5, TEN, HOUR);
        meet(&limiter).await;
        assert!(ahead(&value) <= 10_000_000, "{}", ahead(&value));
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
    let value = format!("{prefix}:{{a}}:five:value");
    plant(&value, 5, TEN, HOUR);
    let answer = send(&layer, "a").await;
    let refusal = refused(decision_of(&answer).clone());
    assert!(refusal.retry_after().unwrap() <= TEN / 5);
    assert!(ahead(&value) <= 10_000_000, "{}", ahead(&value));
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
fn ahead(value: &str) -> i64 {
    let script = "local time = redis.call('TIME') \
                  local tat = struct.unpack('<d', redis.call('GET', KEYS[1]), 17) \
                  return tat - time[1] * 1000000 - time[2]";
    let ahead = RedisServer::shared().cli(&["EVAL", script, "1", value]);
    ahead.trim().parse().unwrap()
}
