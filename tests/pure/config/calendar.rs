//! Limits by the calendar in a file.

use super::{bad::all_are_named, *};

const QUOTA: &str = r#"[rules.quota]
rate = "3/month Europe/Berlin from 15"
by = "peer"

[otherwise]
rules = ["quota"]
"#;

fn layer(store: &MemoryStore, text: &str) -> RateLimitLayer {
    let rules = RulesFile::new().parse(text).unwrap();
    layer_by(store, rules)
}

#[tokio::test]
async fn a_file_says_period_zone_and_first_day() {
    let (store, clock) = MemoryStore::builder().build_manual();
    clock.set(secs(1_792_926_000));
    let layer = layer(&store, QUOTA);
    let get = || request("GET", "/", &[]);
    for left in [2, 1, 0, 0] {
        assert_eq!(met(&layer, get()).await, one("quota", 3, left));
    }
    // The 15th of November begins in Berlin. A clock that is set back changes nothing.
    for (at, left) in [(1_794_697_199, 0), (1_794_697_200, 2), (1_794_697_199, 1)] {
        clock.set(secs(at));
        assert_eq!(met(&layer, get()).await, one("quota", 3, left), "{at}");
    }
}

#[test]
fn mistakes_are_named_with_their_line() {
    all_are_named(QUOTA, "quota");
    let text = QUOTA.replace("rate =", "shared = \"a\"\ninit =");
    let text = text.replace("by = \"peer\"\n", "");
    let error = RulesFile::new().parse(&text).unwrap_err().to_string();
    let said = "cannot share a limit by the calendar";
    assert!(error.contains(said), "{error}");
}
