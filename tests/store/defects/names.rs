//! Names whose keys a Cluster would put apart. The real Cluster is tested elsewhere.

use super::{world::Keys, world::store};
use crate::scene::*;

// Section 1: with `a{b`, `a}b`, `{}x`, `x{}y` and the empty name every call of Redisson's fails
// with CROSSSLOT. They are refused when the limiter is built; names that work are not.
#[test]
fn names_that_break_a_cluster_are_refused_when_built() {
    let cluster = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let slots = |name: &str| {
        let keys = Keys::of(name);
        let client = Keys::of_client(name, "7d9");
        [keys.hash, keys.value, client.value, keys.log, client.log]
            .map(|key| cluster.cli(&["CLUSTER", "KEYSLOT", &key]))
    };
    let store = store().build().unwrap();
    for name in ["a{b", "a}b", "{}x", "x{}y", "x{}y{z}", ""] {
        let slots = slots(name);
        assert!(
            slots.iter().any(|slot| *slot != slots[0]),
            "{name:?}: {slots:?}"
        );
        let said = format!("{name:?} cannot name a limiter: ");
        mistake(RateLimiter::new(&store, name), ConfigErrorKind::Name, &said);
    }
    for name in [
        "orders",
        "svc{tenant1}:api",
        "{a}{b}",
        "a}b{c}",
        "ключ/限流 é",
        "a b\n\"\\",
    ] {
        let slots = slots(name);
        assert!(
            slots.iter().all(|slot| *slot == slots[0]),
            "{name:?}: {slots:?}"
        );
        assert_eq!(RateLimiter::new(&store, name).unwrap().name(), name);
    }
}
