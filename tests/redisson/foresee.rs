//! Predicts the reply of Redisson and the state after a step.

use super::{
    case::Op,
    model::{self, Caller, Generation, Outcome, Reply, State},
};

pub fn foresee(
    world: &mut [State; 2],
    on: usize,
    generation: Generation,
    caller: &Caller,
    op: &Op,
    permits: i64,
) -> Outcome {
    let state = &mut world[on];
    match op {
        Op::Demand(_) | Op::Burst(_) | Op::Resend => {
            return state.java_acquire(generation, caller, permits);
        }
        // Redisson has no receipts.
        Op::Settle(_) => Reply::Done,
        Op::Available => state.java_available(caller),
        Op::TrySetRate(limit) => state.java_try_set_rate(generation, limit),
        Op::SetRate(limit) => state.java_set_rate(generation, caller, limit),
        Op::Set(limit, keep) => state.java_update_rate(caller, limit, *keep, false),
        Op::Update(limit, keep) => state.java_update_rate(caller, limit, *keep, true),
        Op::Release(permits) => state.java_release(caller, *permits),
        Op::Rename => model::java_rename(world, on),
        Op::Config => state.config(),
        Op::Expire(ttl, condition) => state.expire(&caller.client, *ttl, *condition),
        Op::ClearExpire => state.clear_expire(&caller.client),
        Op::Life => state.life(),
        Op::Delete => state.delete(&caller.client),
        Op::Exists => Reply::Flag(state.limit.is_some()),
        Op::LoseValue(_) | Op::LoseLog(_) | Op::Idle => unreachable!("done by the server: {op:?}"),
    }
    .into()
}
