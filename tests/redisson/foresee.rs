//! Predicts the reply and the state after a step, by each half of the model.

use super::{
    case::Op,
    model::{self, Caller, Generation, Outcome, Reply, State},
    ours::{self, Marks},
};

pub fn foresee_java(
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
        Op::Settle(_) => Reply::Done,
        Op::Available => state.java_available(caller),
        Op::TrySetRate(limit) => state.java_try_set_rate(generation, limit),
        Op::SetRate(limit) => state.java_set_rate(generation, caller, limit),
        Op::Set(limit, keep) => state.java_update_rate(caller, limit, *keep, false),
        Op::Update(limit, keep) => state.java_update_rate(caller, limit, *keep, true),
        Op::Release(permits) => state.java_release(caller, *permits),
        Op::Rename => model::java_rename(world, on),
        _ => foresee_both(state, caller, op),
    }
    .into()
}

pub fn foresee_ours(
    world: &mut [State; 2],
    on: usize,
    caller: &Caller,
    op: &Op,
    permits: i64,
    marks: &mut Marks,
) -> Outcome {
    let state = &mut world[on];
    match op {
        Op::Demand(_) | Op::Burst(_) | Op::Resend => {
            return state.our_acquire(caller, permits, marks);
        }
        Op::Settle(keep) => state.our_settle(caller, permits, *keep, marks),
        Op::Available => state.our_available(caller, marks),
        Op::TrySetRate(limit) => state.our_try_set_rate(&caller.client, limit, marks),
        Op::SetRate(limit) => state.our_set_rate(caller, limit, (false, false), marks),
        Op::Set(limit, keep) => state.our_set_rate(caller, limit, (*keep, false), marks),
        Op::Update(limit, keep) => state.our_set_rate(caller, limit, (*keep, true), marks),
        Op::Release(permits) => state.our_release(caller, *permits, marks),
        Op::Rename => ours::our_rename(world, on, &caller.client, marks),
        _ => foresee_both(state, caller, op),
    }
    .into()
}

/// The operations in which both behave the same.
fn foresee_both(state: &mut State, caller: &Caller, op: &Op) -> Reply {
    match op {
        Op::Config => state.config(),
        Op::Expire(ttl, condition) => state.expire(&caller.client, *ttl, *condition),
        Op::ClearExpire => state.clear_expire(&caller.client),
        Op::Life => state.life(),
        Op::Delete => state.delete(&caller.client),
        Op::Exists => Reply::Flag(state.limit.is_some()),
        _ => unreachable!("a step of its own: {op:?}"),
    }
}
