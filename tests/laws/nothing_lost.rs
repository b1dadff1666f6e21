//! L5: when the last grant has expired, whatever was taken, abandoned or given back, all permits
//! are free; where keys were lost, an interval and a tenth after that was noticed.

use kit::scene::*;

use super::{
    kinds::{Lawful, WAYS},
    world::{MILLISECOND, NANOSECOND, World, check_in_redis, limit, nanos, take},
};

#[derive(Clone, Copy, Debug)]
enum Step {
    Pause(u64),
    Take(u32),
    /// Polled once and dropped: perhaps sent, and no caller receives the reply
    Abandon(u32),
    GiveBack(u32),
    Count,
    Lose(Loss),
}

/// The fate of keys on a server that runs out of memory, or by an operator or a Redisson client.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Value,
    Log,
    Limit,
    /// Redisson's: a call that was sent twice counts twice, but has one entry
    Permits(u32),
}

fn input() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    let loss = prop_oneof![
        Just(Loss::Value),
        Just(Loss::Log),
        Just(Loss::Limit),
        (1u32..5).prop_map(Loss::Permits),
    ];
    limit().prop_flat_map(move |limit| {
        let interval = nanos(limit.interval()) / MILLISECOND;
        let step = prop_oneof![
            3 => (0..=interval).prop_map(Step::Pause),
            6 => (1u32..5).prop_map(Step::Take),
            2 => (1u32..5).prop_map(Step::Abandon),
            2 => (1u32..5).prop_map(Step::GiveBack),
            1 => Just(Step::Count),
            1 => loss.clone().prop_map(Step::Lose),
        ];
        (Just(limit), proptest::collection::vec(step, 1..40))
    })
}

fn law<S: Store>(
    world: &World<S>,
    kind: Way,
    (limit, steps): (Limit, Vec<Step>),
    lose: impl Fn(&RateLimiter, Loss),
) {
    world.run(async {
        let limiter = world.limiter_of(kind, limit).await;
        for step in steps {
            match step {
                Step::Pause(time) => world.advance(millis(time)),
                Step::Take(permits) => {
                    let _ = take(&limiter, permits).await;
                }
                Step::Abandon(permits) => {
                    let call = pin!(limiter.try_acquire_many(permits));
                    let _ = call.poll(&mut Context::from_waker(Waker::noop()));
                }
                Step::GiveBack(permits) => {
                    let decision = limiter.try_acquire_many(permits).await.unwrap();
                    if let Decision::Allow(grant) = decision {
                        limiter.give_back(&grant);
                    }
                }
                Step::Count => drop(free(&limiter).await),
                Step::Lose(what) => {
                    lose(&limiter, what);
                    // Without a limit nothing is decided: its owner sets it again, unless it is in
                    // the code.
                    if !Way::OWN.contains(&kind) {
                        limiter.try_set_rate(limit).await.unwrap();
                    }
                }
            }
        }
        // The call that notices whatever happened.
        assert!(free(&limiter).await <= limit.permits());
        let late = match world.unit {
            MILLISECOND => limit.interval() / 10,
            _ => Duration::ZERO,
        };
        world.advance(kind.whole(limit) + late);
        assert_eq!(free(&limiter).await, limit.permits(), "{kind:?}");
        let all = u32::try_from(limit.permits()).unwrap();
        assert_eq!(take(&limiter, all).await, Ok(()));
    });
}

#[test]
fn in_memory() {
    let world = World::memory(NANOSECOND);
    // Its limiters lose nothing by themselves.
    for kind in WAYS {
        check(400, &input(), |input| law(&world, kind, input, |_, _| {}));
    }
}

#[test]
fn in_redis() {
    check_in_redis(250, &input(), |world, input| {
        law(world, Way::Log, input, |limiter, loss| {
            spoil(world.server_of(limiter), limiter, loss);
        });
    });
}

fn spoil(server: &RedisServer, limiter: &RateLimiter, loss: Loss) {
    let name = limiter.name();
    let (value, log) = (format!("{{{name}}}:value"), format!("{{{name}}}:permits"));
    match loss {
        Loss::Value => server.command(&["DEL", &value]),
        Loss::Log => server.command(&["DEL", &log]),
        Loss::Limit => server.command(&["DEL", name]),
        // Of a value that is there: a client that loses permits has counted.
        Loss::Permits(permits) if server.cli(&["EXISTS", &value]) == "1" => {
            server.command(&["DECRBY", &value, &permits.to_string()])
        }
        Loss::Permits(_) => return,
    };
}
