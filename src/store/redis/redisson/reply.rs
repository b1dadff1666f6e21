//! Reads the replies of the scripts. Pure.

use redis::Value;
use smallvec::SmallVec;

use crate::{
    algorithm::answer::{Answer, Changed, Verdict},
    store::redis::reply::{count, unreadable},
    values::{
        List,
        clock::Now,
        error::{Error, ErrorKind},
        limit::{RateType, StoredLimit, at_least_zero},
    },
};

/// Returns the answer to a caller whose own limit is in force: the permits left, and the ticks
/// until those asked for are free, until one more is, and until all are.
pub(super) fn answer_by(
    limit: &StoredLimit,
    verdict: Verdict,
    now: Now,
    [remaining, wait, next, reset]: [i64; 4],
) -> Answer {
    let answer = Answer {
        remaining,
        next,
        reset,
        ..Answer::new(limit, Changed::Nothing, now)
    };
    answer.for_caller(verdict, wait)
}

/// Reads the reply of an acquire, whatever the algorithm: an answer for each caller and limiter,
/// those of the first caller first.
pub(crate) fn read_answers(
    reply: &Value,
    limiters: usize,
    callers: usize,
) -> Result<List<Answer>, Error> {
    let numbers = numbers(reply)?;
    let &[1, now, ref rest @ ..] = &*numbers else {
        return Err(unreadable());
    };
    let (states, outcomes) = rest.split_at_checked(7 * limiters).ok_or_else(unreadable)?;
    let ((states, []), (outcomes, [])) = (states.as_chunks::<7>(), outcomes.as_chunks::<2>())
    else {
        return Err(unreadable());
    };
    if outcomes.len() != limiters * callers {
        return Err(unreadable());
    }
    let states = states.iter().cycle();
    let mut answers = List::new();
    for (&[status, wait], &[remaining, reset, rate, interval, changed, repaired, next]) in
        outcomes.iter().zip(states)
    {
        let limit = StoredLimit {
            rate,
            interval,
            ..StoredLimit::default()
        };
        let answer = Answer {
            remaining,
            next,
            reset,
            repaired,
            ..Answer::new(&limit, change(changed), Now::millis(now))
        };
        answers.push(answer.for_caller(verdict(status)?, wait));
    }
    Ok(answers)
}

fn verdict(status: i64) -> Result<Verdict, Error> {
    Ok(match status {
        1 => Verdict::Granted,
        0 => Verdict::Refused,
        2 => Verdict::AboveRate,
        _ => return Err(unreadable()),
    })
}

fn change(changed: i64) -> Changed {
    match changed {
        0 => Changed::Nothing,
        1 => Changed::Created,
        _ => Changed::Rewritten,
    }
}

/// Reads the second number of a reply that begins with a 1.
pub(crate) fn second(reply: &Value) -> Result<i64, Error> {
    match &*numbers(reply)? {
        [1, second, ..] => Ok(*second),
        _ => Err(unreadable()),
    }
}

/// Reads a reply of 0 or 1.
pub(crate) fn flag(reply: &Value) -> Result<bool, Error> {
    match count(reply)? {
        flag @ (0 | 1) => Ok(flag == 1),
        code => Err(script_error(code).unwrap_or_else(unreadable)),
    }
}

/// Reads the reply of HMGET rate interval type keepAliveTime.
pub(crate) fn stored_limit(reply: &Value) -> Result<Option<StoredLimit>, Error> {
    let is_text = |field: &Value| matches!(field, Value::BulkString(_) | Value::Nil);
    if !matches!(reply, Value::Array(fields) if fields.len() == 4 && fields.iter().all(is_text)) {
        return Err(unreadable());
    }
    let fields: (Option<i64>, Option<i64>, Option<String>, Option<i64>) =
        redis::from_redis_value_ref(reply).map_err(|_| ErrorKind::ForeignState)?;
    let (Some(rate), Some(interval), Some(rate_type), keep_alive) = fields else {
        return Ok(None);
    };
    Ok(Some(StoredLimit {
        rate,
        interval,
        rate_type: match &*rate_type {
            "1" => RateType::PerClient,
            _ => RateType::Overall,
        },
        keep_alive: at_least_zero(keep_alive.unwrap_or(0)),
    }))
}

/// Returns the numbers, or the error that a negative first number stands for.
pub(crate) fn numbers(reply: &Value) -> Result<ReplyNumbers, Error> {
    let numbers = match reply {
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::Int(number) => Some(*number),
                _ => None,
            })
            .collect(),
        Value::BulkString(text) => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.split(' ').map(|number| number.parse().ok()).collect()),
        _ => None,
    };
    let numbers: ReplyNumbers = numbers.ok_or_else(unreadable)?;
    match numbers.first().copied().and_then(script_error) {
        Some(error) => Err(error),
        None => Ok(numbers),
    }
}

/// The numbers of a reply. Those of a lone caller need no allocation: an acquire's begin with two,
/// then come seven of the limiter and two of the caller.
pub(crate) type ReplyNumbers = SmallVec<[i64; 2 + 7 + 2]>;

/// Returns the error that a script's first number stands for.
fn script_error(code: i64) -> Option<Error> {
    Some(match code {
        -1 => ErrorKind::NotInitialized.into(),
        -2 => ErrorKind::RateTypeDiffers.into(),
        -3 => Error::new(ErrorKind::ForeignState).detail("a grant that no Redisson wrote"),
        -4 => Error::new(ErrorKind::ForeignState).detail("a limit that cannot be counted with"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_are_not_ours_are_errors() {
        for reply in [
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(7); 11]),
            Value::Array(vec![Value::Int(1); 10]),
            Value::Array(vec![Value::Int(1); 13]),
            Value::Array(vec![Value::Nil; 10]),
            Value::BulkString(b"".to_vec()),
            Value::BulkString(b"1 7 0 1000 5 1000 0 0 0 0".to_vec()),
            Value::BulkString(b"1 7 0 1000 5 1000 0 0 0 0 many".to_vec()),
            Value::BulkString(b"1 7 0 1000 5 1000 0 0 0 0 \xff".to_vec()),
            Value::SimpleString("1 7 0 1000 5 1000 0 0 0 0 40".to_owned()),
        ] {
            assert_eq!(
                read_answers(&reply, 1, 1).unwrap_err().kind(),
                ErrorKind::Unavailable,
                "{reply:?}"
            );
        }
        for (code, kind) in [
            (-1, ErrorKind::NotInitialized),
            (-2, ErrorKind::RateTypeDiffers),
            (-3, ErrorKind::ForeignState),
            (-4, ErrorKind::ForeignState),
        ] {
            let reply = Value::Array(vec![Value::Int(code)]);
            assert_eq!(read_answers(&reply, 1, 1).unwrap_err().kind(), kind);
        }
    }
}
