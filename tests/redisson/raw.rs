//! The keys as they are, read past both clients, and the commands as the server sees them.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};

use redis::{Connection, Value};

use super::model::{Entry, Limit, Pair, State};

pub fn connect(url: &str) -> Connection {
    let client = redis::Client::open(url).unwrap();
    client.get_connection().unwrap()
}

pub fn companion(name: &str, suffix: &str, client: &str) -> String {
    let own = if name.contains('{') {
        format!("{name}:{suffix}")
    } else {
        format!("{{{name}}}:{suffix}")
    };
    if client.is_empty() {
        own
    } else {
        format!("{own}:{client}")
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
    let permits = u32::from_le_bytes(member[17..].try_into().unwrap());
    Ok(Entry {
        score: score as i64,
        permits: permits.into(),
        member: Some(member),
    })
}

/// Longest time that a step takes, for the comparison of times to live.
const ELAPSED: i64 = 60_000;

/// Compares what was foreseen with what is, and learns the random bytes of new entries.
pub fn compare(model: &mut State, real: &State) -> Result<(), String> {
    let same_ttl = |model: Option<i64>, real: Option<i64>| match (model, real) {
        (Some(model), Some(real)) => (model - ELAPSED..=model).contains(&real),
        (model, real) => model == real,
    };
    let fields = |state: &State| {
        state.limit.as_ref().map(|limit| {
            (
                limit.rate,
                limit.interval,
                limit.per_client,
                limit.keep_alive,
            )
        })
    };
    if fields(model) != fields(real) {
        return Err(format!(
            "hash: foreseen {:?}, found {:?}",
            model.limit, real.limit
        ));
    }
    let hash_ttl = |state: &State| state.limit.as_ref().and_then(|limit| limit.ttl);
    if !same_ttl(hash_ttl(model), hash_ttl(real)) {
        return Err(format!(
            "TTL of the hash: foreseen {:?}, found {:?}",
            hash_ttl(model),
            hash_ttl(real)
        ));
    }
    for (client, found) in &real.pairs {
        let foreseen = model.pairs.entry(client.clone()).or_default();
        let differ = |what: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
            Err(format!(
                "{what} of client {client:?}: foreseen {a:?}, found {b:?}"
            ))
        };
        if foreseen.value != found.value {
            return differ("value", &foreseen.value, &found.value);
        }
        adopt(foreseen, found)?;
        if !same_ttl(foreseen.value_ttl, found.value_ttl) {
            return differ("TTL of value", &foreseen.value_ttl, &found.value_ttl);
        }
        if !same_ttl(foreseen.log_ttl, found.log_ttl) {
            return differ("TTL of the log", &foreseen.log_ttl, &found.log_ttl);
        }
    }
    Ok(())
}

/// Entries whose bytes are known must be there byte for byte; new ones by score and permits.
fn adopt(foreseen: &mut Pair, found: &Pair) -> Result<(), String> {
    let error = format!(
        "log: foreseen {}, found {}",
        spelled(foreseen),
        spelled(found)
    );
    let mut left: Vec<&Entry> = found.log.iter().collect();
    let mut take = |fits: &dyn Fn(&Entry) -> bool| {
        let place = left.iter().position(|entry| fits(entry))?;
        Some(left.remove(place))
    };
    for known in foreseen.log.iter().filter(|entry| entry.member.is_some()) {
        if take(&|entry| entry == known).is_none() {
            return Err(error);
        }
    }
    for new in foreseen
        .log
        .iter_mut()
        .filter(|entry| entry.member.is_none())
    {
        match take(&|entry| (entry.score, entry.permits) == (new.score, new.permits)) {
            Some(entry) => new.member = entry.member.clone(),
            None => return Err(error),
        }
    }
    foreseen.sort();
    if left.is_empty() { Ok(()) } else { Err(error) }
}

/// (score, permits) of each entry.
fn spelled(pair: &Pair) -> String {
    let entries: Vec<_> = pair
        .log
        .iter()
        .map(|entry| (entry.score, entry.permits))
        .collect();
    format!("{entries:?}")
}

/// A command as the server executed it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Microseconds since the epoch, by the server's clock
    pub at: i64,
    /// `127.0.0.1:port`, or `lua` for what a script does
    pub from: String,
    pub arguments: Vec<Vec<u8>>,
}

impl Seen {
    pub fn verb(&self) -> &[u8] {
        self.arguments.first().map_or(b"", |verb| verb)
    }

    pub fn is_script(&self) -> bool {
        self.from != "lua" && matches!(self.verb(), b"EVAL" | b"EVALSHA")
    }
}

/// Everything that the server executes, in the order in which it does.
#[derive(Debug)]
pub struct Monitor(BufReader<TcpStream>);

impl Monitor {
    pub fn start(port: u16) -> Self {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.write_all(b"*1\r\n$7\r\nMONITOR\r\n").unwrap();
        let mut monitor = Self(BufReader::with_capacity(1 << 20, stream));
        assert_eq!(monitor.line(), b"+OK");
        monitor
    }

    /// What was executed before this mark, which the caller has sent with ECHO.
    pub fn until(&mut self, mark: &str) -> Vec<Seen> {
        let mut seen = Vec::new();
        loop {
            let one = self.next();
            if one.verb() == b"ECHO" && one.arguments[1] == mark.as_bytes() {
                return seen;
            }
            seen.push(one);
        }
    }

    pub fn next(&mut self) -> Seen {
        let line = self.line();
        parse(&line)
            .unwrap_or_else(|| panic!("not a line of MONITOR: {}", String::from_utf8_lossy(&line)))
    }

    fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.0
            .read_until(b'\n', &mut line)
            .expect("MONITOR goes on");
        line.truncate(line.len().saturating_sub(2));
        line
    }
}

/// `+1700000000.000001 [0 127.0.0.1:4711] "GET" "a\x00b"`
fn parse(line: &[u8]) -> Option<Seen> {
    let line = line.strip_prefix(b"+")?;
    let space = line.iter().position(|byte| *byte == b' ')?;
    let at = std::str::from_utf8(&line[..space])
        .ok()?
        .replace('.', "")
        .parse()
        .ok()?;
    let end = line.iter().position(|byte| *byte == b']')?;
    let from = std::str::from_utf8(&line[space + 2..end]).ok()?;
    let from = from.split_once(' ')?.1.to_owned();
    let mut arguments = Vec::new();
    let mut bytes = line[end + 1..].iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'"' {
            continue;
        }
        let mut argument = Vec::new();
        loop {
            match bytes.next()? {
                b'"' => break,
                b'\\' => argument.push(match bytes.next()? {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    b'x' => {
                        let digits = [bytes.next()?, bytes.next()?];
                        u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                    }
                    other => other,
                }),
                other => argument.push(other),
            }
        }
        arguments.push(argument);
    }
    Some(Seen {
        at,
        from,
        arguments,
    })
}

#[test]
fn a_line_of_monitor_is_read() {
    let seen =
        parse(br#"+1795260027.787762 [0 127.0.0.1:40714] "EVAL" "a\"\\b" "\x00\xff]\n""#).unwrap();
    assert_eq!(seen.at, 1_795_260_027_787_762);
    assert_eq!(seen.from, "127.0.0.1:40714");
    assert_eq!(
        seen.arguments,
        [
            b"EVAL".to_vec(),
            b"a\"\\b".to_vec(),
            b"\x00\xff]\n".to_vec()
        ]
    );
    assert_eq!(parse(br#"+1.000001 [0 lua] "TIME""#).unwrap().from, "lua");
}
