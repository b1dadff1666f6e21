//! A step as the Java side does it.

use redis::{RedisError, Value};

use super::{
    case::Op,
    model::{Condition, Generation, Limit, Reply},
    oracle::{Answer, Oracle, Request},
};

pub fn client_id(oracle: &mut Oracle, instance: usize) -> String {
    oracle
        .ask(&Request::new("clientId").number("c", instance as i64))
        .expect("an id")
}

pub fn perform(
    oracle: &mut Oracle,
    instance: usize,
    names: &[String; 2],
    on: usize,
    now: i64,
    op: &Op,
) -> Reply {
    let generation = Generation::of(&oracle.version);
    let request = |verb: &str| {
        Request::new(verb)
            .text("name", &names[on])
            .number("c", instance as i64)
            .number("now", now)
    };
    let limit = |verb: &str, limit: &Limit| {
        // A version without keep-alive is asked for none.
        let keep_alive = if generation == Generation::KeepsAlive {
            limit.keep_alive
        } else {
            None
        };
        request(verb)
            .number("rate", limit.rate)
            .number("interval", limit.interval)
            .number("type", limit.per_client.into())
            .number("keepAlive", keep_alive.unwrap_or(0))
    };
    let request = match op {
        Op::Demand(permits) => request("tryAcquire").number("n", *permits),
        Op::Available => request("available"),
        Op::TrySetRate(wanted) => limit("trySetRate", wanted),
        Op::SetRate(wanted) => limit("setRate", wanted),
        Op::Set(wanted, keep) => limit("setRateArgs", wanted).number("keepState", (*keep).into()),
        Op::Update(wanted, keep) => limit("updateRate", wanted).number("keepState", (*keep).into()),
        Op::Release(permits) => request("release").number("n", *permits),
        Op::Config => request("config"),
        Op::Expire(ttl, condition) => {
            let verb = match condition {
                Condition::Always => "expire",
                Condition::IfSet => "expireIfSet",
                Condition::IfNotSet => "expireIfNotSet",
                Condition::IfGreater => "expireIfGreater",
                Condition::IfLess => "expireIfLess",
            };
            request(verb).number("ttl", *ttl)
        }
        Op::ClearExpire => request("clearExpire"),
        Op::Life => request("ttl"),
        Op::Delete => request("delete"),
        Op::Exists => request("exists"),
        Op::Rename => request("rename").text("to", &names[1 - on]),
        Op::Burst(_)
        | Op::Resend
        | Op::Settle(_)
        | Op::LoseValue(_)
        | Op::LoseLog(_)
        | Op::Idle => {
            unreachable!("done by the driver: {op:?}")
        }
    };
    let answer = oracle.ask(&request);
    reply(op, answer)
}

fn reply(op: &Op, answer: Answer) -> Reply {
    let text = match answer {
        Ok(text) => text,
        Err(message) => return thrown(&message),
    };
    let number = || text.parse::<i64>().ok();
    let reply = match (op, text.as_str()) {
        (Op::Demand(_), "true") => Some(Reply::Granted),
        (Op::Demand(_), "false") => Some(Reply::Denied),
        (_, "true") => Some(Reply::Flag(true)),
        (_, "false") => Some(Reply::Flag(false)),
        (_, "null") => Some(Reply::Done),
        (Op::Available, _) => number().map(Reply::Number),
        (Op::Life, _) => number().map(|ttl| Reply::Life(ttl.min(0))),
        (Op::Config, "0 0 0") => Some(Reply::Config(None)),
        (Op::Config, text) => {
            let numbers: Vec<i64> = text
                .split(' ')
                .filter_map(|number| number.parse().ok())
                .collect();
            match *numbers {
                [per_client, rate, interval] => {
                    Some(Reply::Config(Some((per_client == 1, rate, interval))))
                }
                _ => None,
            }
        }
        _ => None,
    };
    reply.unwrap_or(Reply::Other(text))
}

/// What Redisson threw, by the inner words alone: the rest depends on the versions of Redis and
/// Redisson.
fn thrown(message: &str) -> Reply {
    // Behind this Redisson quotes the command, whose script has all the messages in it.
    let words = message.split(" channel: ").next().unwrap_or(message);
    if words.contains("RateLimiter is not initialized") {
        Reply::NotInitialized
    } else if words.contains("exceed defined rate") {
        Reply::AboveRate
    } else if words.contains("arithmetic on a nil value") {
        Reply::NilArithmetic
    } else if words.contains("no such key") {
        Reply::NoSuchKey
    } else {
        Reply::Other(message.to_owned())
    }
}

/// The reply of Redisson's acquire script.
pub fn raw_reply(reply: Result<Value, RedisError>) -> Reply {
    match reply {
        Ok(Value::Nil) => Reply::Granted,
        Ok(Value::Int(_)) => Reply::Denied,
        Ok(other) => Reply::Other(format!("{other:?}")),
        Err(error) => thrown(&error.to_string()),
    }
}
