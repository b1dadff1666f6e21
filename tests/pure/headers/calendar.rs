//! The fields of a limit by the calendar: `w` is the length of the window, `t` the seconds to the
//! turn.

use super::*;

#[tokio::test]
async fn fields_have_the_length_of_the_window_and_the_time_to_its_turn() {
    let (store, clock) = MemoryStore::builder().build_manual();
    for (text, seconds, window) in [
        ("3/day", 43_200, 86_400),
        ("3/day Europe/Berlin", 39_600, 90_000),
        ("3/week Europe/Berlin", 39_600, 7 * 86_400 + 3_600),
        ("3/month", 6 * 86_400 + 43_200, 31 * 86_400),
        ("3/month from 28", 2 * 86_400 + 43_200, 30 * 86_400),
    ] {
        let limit: Limit = text.parse().unwrap();
        let layer = RateLimitLayer::new(&store, by_key(limit).named(&unique("quota")));
        // Noon of a Sunday on which Berlin has 25 hours.
        clock.set(secs(1_792_929_600));
        for left in [2, 1, 0] {
            let answer = ask(&layer, get(&[])).await;
            let (policy, fields) = (answer.one("ratelimit-policy"), answer.one("ratelimit"));
            let (all, rest) = (format!(";q=3;w={window}"), format!(";r={left};t={seconds}"));
            assert!(policy.ends_with(&all), "{text}: {policy}");
            assert!(fields.ends_with(&rest), "{text}: {fields}");
        }
        let refused = ask(&layer, get(&[])).await;
        assert_eq!(refused.status, 429);
        assert_eq!(refused.one("retry-after"), seconds.to_string(), "{text}");
        clock.advance(secs(seconds));
        let answer = ask(&layer, get(&[])).await;
        assert!(answer.one("ratelimit").contains(";r=2;t="), "{text}");
    }
}
