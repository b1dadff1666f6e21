//! Bans: a caller is banned for as many refusals as it takes and for no fewer, until they end.

use kit::scene::*;
use tower_ratelimit::Ban;

use super::world::{World, law};

const WITHIN: Duration = secs(100);
const CALLERS: [&str; 2] = ["ann", "bob"];

#[derive(Clone, Copy, Debug)]
struct Ask {
    pause: Duration,
    caller: usize,
    cost: u32,
}

/// How many refusals ban for how long, and requests.
type Input = (u32, Duration, Vec<Ask>);

fn input() -> impl Strategy<Value = Input> {
    let pause = prop_oneof![
        6 => 0_u64..3000,
        2 => 3000..40_000_u64,
        1 => proptest::sample::select(vec![WITHIN, secs(30), secs(300)])
            .prop_map(|time| u64::try_from(time.as_millis()).unwrap()),
    ];
    let ask = (
        pause,
        0..CALLERS.len(),
        prop_oneof![4 => Just(1), 1 => 1_u32..6],
    );
    let ask = ask.prop_map(|(pause, caller, cost)| Ask {
        pause: millis(pause),
        caller,
        cost,
    });
    let lasting = proptest::sample::select(vec![millis(1), secs(30), secs(300)]);
    (1_u32..6, lasting, proptest::collection::vec(ask, 1..80))
}

/// What the law knows of a caller.
#[derive(Clone, Debug, Default)]
struct Known {
    refused: Vec<Duration>,
    until: Duration,
}

impl Known {
    fn since(&self, from: Duration) -> usize {
        self.refused.iter().filter(|at| **at > from).count()
    }
}

/// Refusals that a process answers from memory may count for less time, by as long as it does so.
fn law<S: Store>(world: &World<S>, (after, lasting, asks): Input, from_memory: Duration) {
    let ban = Ban::after(after).within(WITHIN).lasting(lasting);
    let limit = Limit::new(3, secs(7));
    let rule = limit.by(FromHeader::new("x-key")).named(&unique("law"));
    let cost = |parts: &http::request::Parts| parts.headers["x-cost"].to_str().unwrap().parse();
    let rule = rule.cost_by(move |parts| cost(parts).unwrap()).ban(ban);
    world.run(async {
        let layer = layer_of(&world.store, rule);
        let mut known = [Known::default(), Known::default()];
        for Ask {
            pause,
            caller,
            cost,
        } in asks
        {
            world.advance(pause);
            let now = world.now();
            let fields = [("x-key", CALLERS[caller]), ("x-cost", &cost.to_string())];
            let decision = decide(&layer, asking("GET /", &fields)).await;
            let known = &mut known[caller];
            let is_banned = now < known.until;
            let Decision::Deny(refusal) = decision else {
                assert!(!is_banned, "admitted before {:?}: {known:?}", known.until);
                continue;
            };
            match refusal.kind() {
                RefusalKind::Banned if is_banned => {
                    let wait = refusal.retry_after().unwrap();
                    assert!(now + wait >= known.until, "{wait:?} at {now:?}: {known:?}");
                }
                RefusalKind::AboveRate => assert!(cost > 3 && !is_banned, "{known:?}"),
                kind => {
                    assert!(!is_banned, "{kind:?} at {now:?}: {known:?}");
                    known.refused.push(now);
                    let counted = known.since(now.saturating_sub(WITHIN));
                    let surely = known.since(now.saturating_sub(WITHIN - from_memory));
                    if kind == RefusalKind::Banned {
                        assert!(counted >= after as usize, "banned for {counted} of {after}");
                        known.refused.clear();
                        known.until = now + lasting;
                    } else {
                        assert_eq!(kind, RefusalKind::OverLimit);
                        assert!(
                            surely < after as usize,
                            "not banned for {surely} of {after}"
                        );
                    }
                }
            }
        }
    });
}

// A store of one's own repeats refusals for a second, and in Redis guards do for a minute.
law! {
    input(), |world, from_memory, input| law(world, input, from_memory);
    in_memory: 400 by [Duration::ZERO],
    in_a_store_of_ones_own: 400 by [SECOND],
    in_redis: 150 by [secs(60)],
    in_redissons_format: 150 by [secs(60)],
}
