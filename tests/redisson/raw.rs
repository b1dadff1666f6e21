//! Reads the keys directly, without either client.

use std::collections::BTreeMap;

use redis::{Connection, Value};

use super::model::{Entry, Limit, Pair, State};
use kit::permits_of;

pub fn connect(url: &str) -> Connection {
    let client = redis::Client::open(url).unwrap();
    client.get_connection().unwrap()
}

pub fn companion(name: &str, suffix: &str, client: &str) -> String {
    let own = kit::companion(name, suffix);
    match client {
        "" => own,
        client => format!("{own}:{client}"),
    }
}

/// All keys of a name, and what is wrong with their form.
pub fn state(connection: &mut Connection, name: &str, clients: &[String]) -> Result<State, String> {
    let mut pipe = redis::pipe();
    pipe.cmd("HGETALL").arg(name).cmd("PTTL").arg(name);
    for client in clients {
        let (value, log) = (
            companion(name, "value", client),
            companion(name, "permits", client),
        );
        pipe.cmd("GET").arg(&value).cmd("PTTL").arg(&value);
        pipe.cmd("ZRANGE")
            .arg(&log)
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES")
            .cmd("PTTL")
            .arg(&log);
    }
    let replies: Vec<Value> = pipe
        .query(connection)
        .map_err(|error| format!("{name}: {error}"))?;
    let mut replies = replies.into_iter();
    let mut next = || replies.next().unwrap();
    let mut state = State {
        limit: limit(&read(next()), read(next()))?,
        pairs: BTreeMap::new(),
    };
    for client in clients {
        let value: Option<String> = read(next());
        let value = value
            .map(|value| {
                value
                    .parse()
                    .map_err(|_| format!("{name}: value is {value}"))
            })
            .transpose()?;
        let value_ttl = ttl(read(next()));
        let log: Vec<(Vec<u8>, f64)> = read(next());
        let log = log
            .into_iter()
            .map(|(member, score)| entry(member, score))
            .collect::<Result<_, _>>()?;
        state.pairs.insert(
            client.clone(),
            Pair {
                value,
                value_ttl,
                log,
                log_ttl: ttl(read(next())),
            },
        );
    }
    Ok(state)
}

/// Has every key vanish that has a time to live, as if that were over.
pub fn idle(connection: &mut Connection) {
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    for key in keys {
        let left: i64 = redis::cmd("PTTL").arg(&key).query(connection).unwrap();
        if left >= 0 {
            redis::cmd("DEL").arg(&key).exec(connection).unwrap();
        }
    }
}

fn read<T: redis::FromRedisValue>(reply: Value) -> T {
    redis::from_redis_value(reply).unwrap_or_else(|_| panic!("a key of another type"))
}

fn ttl(pttl: i64) -> Option<i64> {
    (pttl >= 0).then_some(pttl)
}

fn limit(fields: &BTreeMap<String, String>, pttl: i64) -> Result<Option<Limit>, String> {
    if fields.is_empty() {
        return Ok(None);
    }
    let number = |name: &str| match fields.get(name) {
        None => Ok(None),
        // Java reads the text: no sign, no point, no exponent.
        Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(text.parse().ok()),
        Some(text) => Err(format!("{name} is {text}")),
    };
    let needed = |name: &str| number(name)?.ok_or_else(|| format!("the hash lacks {name}"));
    if let Some(other) = fields
        .keys()
        .find(|name| !["rate", "interval", "type", "keepAliveTime"].contains(&name.as_str()))
    {
        return Err(format!("the hash has a field {other}"));
    }
    Ok(Some(Limit {
        rate: needed("rate")?,
        interval: needed("interval")?,
        per_client: match needed("type")? {
            0 => false,
            1 => true,
            other => return Err(format!("type is {other}")),
        },
        keep_alive: number("keepAliveTime")?,
        ttl: ttl(pttl),
    }))
}

fn entry(member: Vec<u8>, score: f64) -> Result<Entry, String> {
    if member.len() != 21 || member[0] != 16 || score.fract() != 0.0 {
        return Err(format!("not an entry: {member:02x?} at {score}"));
    }
    Ok(Entry {
        score: score as i64,
        permits: permits_of(&member).into(),
        member,
    })
}
