//! The keys that rules make, of all clients together or of each.

use super::world::{Keys, store};
use crate::scene::*;

const OURS: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

// Section 8.8, #4301, #6216: keys of single users never expire either, 272 bytes each. Keys made by
// rules always expire.
#[tokio::test]
async fn keys_that_rules_make_vanish() {
    for limit in [Limit::per_second(5), Limit::per_second(5).per_client()] {
        let prefix = unique("clients");
        let store = store().client_id(OURS).prefix(&prefix).build().unwrap();
        let rule = Rule::new("api", limit, FromHeader::new("user"));
        let request = Request::builder().header("user", "ann").body(());
        let layer = RateLimitLayer::new(&store, rule);
        let answer = send(&layer, request.unwrap()).await;
        assert_eq!(answer.status(), 200);
        let name = format!("{prefix}:{{ann}}:api");
        let per_client = limit.rate_type() == tower_ratelimit::RateType::PerClient;
        let keys = if per_client {
            Keys::of_client(&name, OURS)
        } else {
            Keys::of(&name)
        };
        let lives = keys.lives();
        let fresh = 30_000..=60_000;
        assert!(lives.iter().all(|left| fresh.contains(left)), "{lives:?}");
    }
}
