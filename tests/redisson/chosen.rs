//! Sequences of steps that random ones contain too seldom.

use super::{
    case::{Actor, Case, HOUR, Op},
    model::{Condition, Generation, Limit},
};

impl Case {
    /// Returns those that are held against the model.
    pub fn fixed(generations: &[Generation]) -> Vec<Self> {
        let (java, rust) = (Actor::Java(0), Actor::Rust(0));
        let limit = |rate| Limit {
            rate,
            interval: 1000,
            keep_alive: Some(0),
            ..Limit::default()
        };
        let lively = |rate| Limit {
            keep_alive: Some(HOUR),
            ..limit(rate)
        };
        let case = |steps: &[(i64, Actor, Op)]| Self::of(steps, generations);
        let mut cases = vec![
            // An entry of no permits has expired, and nothing else has.
            case(&[
                (0, java, Op::TrySetRate(limit(5))),
                (0, java, Op::Demand(0)),
                (900, java, Op::Demand(1)),
                (1100, rust, Op::Demand(1)),
                (1100, java, Op::Demand(4)),
            ]),
            // More is in use than the limit allows.
            case(&[
                (0, rust, Op::TrySetRate(limit(5))),
                (0, java, Op::Demand(5)),
                (10, rust, Op::Update(limit(2), true)),
                (10, rust, Op::Available),
                (10, java, Op::Available),
                (10, java, Op::Demand(1)),
                (1000, java, Op::Demand(2)),
            ]),
            // Redisson's release credits what it leaves in the log: value is above the rate when
            // that expires.
            case(&[
                (0, java, Op::TrySetRate(limit(5))),
                (0, java, Op::Demand(3)),
                (900, java, Op::Demand(1)),
                (900, java, Op::Release(4)),
                (910, rust, Op::Update(limit(6), true)),
                (1001, java, Op::Available),
                (1001, rust, Op::Demand(1)),
                (1001, java, Op::Demand(6)),
            ]),
            // The entries are as many as the permits that seem to be in use, and hold more. All
            // of them have expired, or more than what counts.
            case(&[
                (0, java, Op::TrySetRate(limit(4))),
                (0, java, Op::Demand(1)),
                (0, java, Op::Demand(1)),
                (0, java, Op::Demand(2)),
                (0, java, Op::Release(1)),
                (2000, rust, Op::Demand(1)),
                (2000, java, Op::Demand(3)),
                (2000, java, Op::Demand(1)),
            ]),
            case(&[
                (0, java, Op::TrySetRate(limit(10))),
                (0, java, Op::Demand(1)),
                (0, java, Op::Demand(1)),
                (0, java, Op::Demand(3)),
                (500, java, Op::Demand(1)),
                (500, java, Op::Release(2)),
                (1000, rust, Op::Demand(1)),
                (1000, java, Op::Demand(8)),
                (1000, java, Op::Demand(1)),
            ]),
            // More is charged where what has expired is above the rate.
            case(&[
                (0, rust, Op::TrySetRate(limit(10))),
                (0, rust, Op::Demand(5)),
                (999, rust, Op::Demand(1)),
                (999, java, Op::Release(4)),
                (1001, rust, Op::Settle(5)),
                (1001, java, Op::Demand(5)),
                (1001, java, Op::Demand(1)),
            ]),
            // A time to live that is longer than the keep-alive time.
            case(&[
                (0, rust, Op::TrySetRate(lively(4))),
                (0, rust, Op::Demand(1)),
                (0, java, Op::Expire(2 * HOUR, Condition::Always)),
                (0, rust, Op::Demand(1)),
                (0, java, Op::Expire(2 * HOUR, Condition::Always)),
                (0, java, Op::Demand(1)),
            ]),
            // Value outlives log and hash.
            case(&[
                (0, java, Op::TrySetRate(lively(3))),
                (0, java, Op::Demand(1)),
                (900, java, Op::Demand(1)),
                (1000, java, Op::Available),
                (1000, Actor::Redis, Op::Idle),
                (1000, rust, Op::TrySetRate(limit(3))),
                (1000, java, Op::Demand(3)),
                (1000, java, Op::Demand(1)),
            ]),
            // Value is evicted, then the log.
            case(&[
                (0, rust, Op::TrySetRate(limit(5))),
                (0, java, Op::Demand(2)),
                (1, Actor::Redis, Op::LoseValue(false)),
                (1, rust, Op::Demand(4)),
                (2, java, Op::Demand(2)),
                (3, Actor::Redis, Op::LoseLog(false)),
                (3, rust, Op::Demand(2)),
                (4, java, Op::Demand(2)),
            ]),
            // Many have expired, and the newest has not.
            case(&[
                (0, java, Op::TrySetRate(limit(600))),
                (0, java, Op::Burst(250)),
                (1200, rust, Op::Demand(1)),
                (1200, java, Op::Available),
                (1200, rust, Op::Available),
            ]),
        ];
        // A limit per client starts with all permits, and the second Redisson still has the state
        // of the old rate.
        for (before, after, wanted) in [(2, 5, 3), (5, 2, 1)] {
            let of_each = |rate| Limit {
                per_client: true,
                ..limit(rate)
            };
            let second = Actor::Java(1);
            let mut steps = vec![
                (0, java, Op::TrySetRate(of_each(before))),
                (0, second, Op::Demand(1)),
                (1000, second, Op::Available),
                (1000, rust, Op::Delete),
                (1000, rust, Op::TrySetRate(of_each(after))),
            ];
            steps.extend((0..6).map(|_| (1000, second, Op::Demand(wanted))));
            cases.push(case(&steps));
        }
        // Redisson leaves value and log behind, and the limiter that gets their name must not
        // inherit them.
        let mut renamed = case(&[
            (0, java, Op::TrySetRate(limit(5))),
            (0, java, Op::Demand(2)),
            (0, java, Op::Rename),
            (0, rust, Op::Rename),
            (0, rust, Op::Demand(5)),
        ]);
        renamed.steps[3].on = 1;
        cases.push(renamed);
        cases
    }

    /// Java asks how much is left, which takes the TTL off `value`. Then Rust takes permits,
    /// and the limiter idles.
    pub fn idle(generations: &[Generation]) -> Vec<Self> {
        let (java, rust, redis) = (Actor::Java(0), Actor::Rust(0), Actor::Redis);
        let limit = |rate| Limit {
            rate,
            interval: 400,
            keep_alive: Some(HOUR),
            ..Limit::default()
        };
        // A value that stays has fewer permits than Redisson wants, or more than the new rate.
        [(3, 2, 3), (10, 1, 3)]
            .map(|(rate, taken, later)| {
                let mut steps = vec![
                    (0, java, Op::TrySetRate(limit(rate))),
                    (0, java, Op::Demand(1)),
                    // One entry has expired, and the other keeps the log.
                    (300, java, Op::Demand(1)),
                    (450, java, Op::Available),
                ];
                steps.extend((0..taken).map(|n| (451 + n, rust, Op::Demand(1))));
                steps.push((3900, redis, Op::Idle));
                steps.push((3900, java, Op::Exists));
                steps.push((3900, java, Op::TrySetRate(limit(later))));
                steps.extend((0..=later).map(|n| (3901 + n, java, Op::Demand(1))));
                Self {
                    is_peer: true,
                    ..Self::of(&steps, generations)
                }
            })
            .into()
    }
}
