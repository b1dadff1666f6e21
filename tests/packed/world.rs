//! The same keys twice: in a Redis server, changed by the script, and here, changed by the twin.

use std::{
    fs,
    io::{BufReader, Write},
    net::TcpStream,
};

use crate::{
    plan::{self, NAMES, Preload, Step},
    twin::{
        Limit,
        call::{Call, Row},
        decide::decide,
        keys::{Keys, Stored, expire},
        log::{Log, Record, Span},
        reply::{Outcome, Reply},
        state::{Callers, State},
    },
};
use kit::{RedisServer, resp};

/// When a world begins, in us.
pub const START: i64 = 1_790_000_000_000_000;

pub struct World {
    redis: Redis,
    pub keys: Keys,
    /// The server's time in us, as both have it
    pub us: i64,
    /// The keys that were damaged since they were last written: a call finds them foreign or not,
    /// but what it makes of them is not defined.
    damaged: Vec<String>,
}

/// A server, a connection to it, and the hashes of the scripts: of that which decides all, and of
/// that for one caller by GCRA
struct Redis {
    server: RedisServer,
    stream: BufReader<TcpStream>,
    decide: Vec<u8>,
    lone: Vec<u8>,
}

/// What a call of the script has returned and left.
struct Played {
    sent: kit::Reply,
    /// The commands by which it wrote each key
    writes: Vec<String>,
    /// How many bytes it read
    read: usize,
    /// Type, value and TTL
    keys: Vec<(Vec<u8>, Vec<u8>, i64)>,
}

/// Returns the text of the script: each line `--- @include name` gives way to that file.
pub fn script(name: &str) -> String {
    let path = format!("{}/lua/packed/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let lines = text
        .lines()
        .map(|line| match line.split_once("--- @include ") {
            Some((_, name)) => script(name),
            None => format!("{line}\n"),
        });
    lines.collect()
}

/// Returns the name of a key by its number.
pub fn name(number: usize) -> String {
    let limiter = ["a", "b", "c"][number % NAMES];
    let ban = if number < NAMES { "" } else { ":ban" };
    format!("{{twin}}{limiter}~{ban}")
}

impl World {
    pub fn new() -> Self {
        let server = RedisServer::start();
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut world = Self {
            redis: Redis {
                server,
                stream: BufReader::new(stream),
                decide: Vec::new(),
                lone: Vec::new(),
            },
            keys: Keys::new(),
            us: START,
            damaged: Vec::new(),
        };
        let [decide, lone] = ["decide.lua", "gcra_lone.lua"].map(|name| {
            let text = include_str!("frame.lua").replace("--- the script", &script(name));
            let loaded = world.ask(&[b"SCRIPT", b"LOAD", text.as_bytes()]);
            loaded.into_bytes()
        });
        (world.redis.decide, world.redis.lone) = (decide, lone);
        world
    }

    /// Returns how often scripts have read a part of a string.
    pub fn reads(&self) -> u64 {
        self.redis.server.calls_of("getrange")
    }

    /// Begins again without keys.
    pub fn clear(&mut self) {
        self.ask(&[b"FLUSHALL"]);
        self.keys.clear();
        self.damaged.clear();
        self.us = START;
    }

    fn ask(&mut self, words: &[&[u8]]) -> kit::Reply {
        let stream = &mut self.redis.stream;
        stream.get_mut().write_all(&resp::packed(words)).unwrap();
        kit::Reply::read(stream).unwrap()
    }

    /// Plays a step on both sides. Returns what differs.
    pub fn play(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Call(plan) => {
                self.expire();
                let call = plan.at(self.us, &self.keys);
                return self.call(&call, &plan.keys).map(drop);
            }
            Step::Pass(us) => self.us = (self.us + us).max(1000),
            Step::Delete(key) => self.delete(&name(*key)),
            Step::Foreign(key, bytes) => self.damage(&name(*key), bytes.clone()),
            Step::Cut(key, parts) => {
                if let Some(mut bytes) = self.text(&name(*key)) {
                    bytes.truncate(bytes.len() * parts / 1000);
                    self.damage(&name(*key), bytes);
                }
            }
            Step::Mutate(key, parts, byte) => {
                if let Some(mut bytes) = self.text(&name(*key)).filter(|bytes| !bytes.is_empty()) {
                    // Most checks are of the last bytes.
                    let at = match parts {
                        ..500 => parts % 50,
                        _ => bytes.len() * parts / 1000,
                    };
                    let last = bytes.len() - 1;
                    bytes[last - at.min(last)] = *byte;
                    self.damage(&name(*key), bytes);
                }
            }
            Step::List(key) => {
                self.delete(&name(*key));
                self.ask(&[b"RPUSH", name(*key).as_bytes(), b"1"]);
                let list = Stored {
                    bytes: None,
                    expires: None,
                    writes: 0,
                };
                self.keys.insert(name(*key), list);
            }
            Step::Preload(key, preload) => {
                let log = preloaded(self.us / 1000, preload);
                let expires = Some(log.ends);
                self.damaged.retain(|damaged| *damaged != name(*key));
                self.store(&name(*key), State::Log(log).pack(), expires);
            }
        }
        Ok(())
    }

    fn text(&self, name: &str) -> Option<Vec<u8>> {
        self.keys.get(name)?.bytes.clone()
    }

    pub fn delete(&mut self, name: &str) {
        self.ask(&[b"DEL", name.as_bytes()]);
        self.keys.remove(name);
        self.damaged.retain(|damaged| damaged != name);
    }

    /// Puts a value in the place of a state.
    pub fn store(&mut self, name: &str, bytes: Vec<u8>, expires: Option<i64>) {
        self.ask(&[b"SET", name.as_bytes(), &bytes]);
        let bytes = Some(bytes);
        let stored = Stored {
            bytes,
            expires,
            writes: 0,
        };
        self.keys.insert(name.to_owned(), stored);
    }

    pub fn damage(&mut self, name: &str, bytes: Vec<u8>) {
        self.store(name, bytes, None);
        self.damaged.push(name.to_owned());
    }

    /// Removes the keys that have expired.
    fn expire(&mut self) {
        let before: Vec<_> = self.keys.keys().cloned().collect();
        expire(&mut self.keys, self.us.div_euclid(1000));
        for name in before {
            if !self.keys.contains_key(&name) {
                self.delete(&name);
            }
        }
    }

    /// Makes a call of keys by their numbers on both sides. Returns the reply, or what differs.
    pub fn call(&mut self, call: &Call, keys: &[usize]) -> Result<Reply, String> {
        self.expire();
        let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
        let (call, lone) = match call.lone_gcra() {
            Some((call, argument)) => (call, Some(argument)),
            None => (call.clone(), None),
        };
        let call = &call;
        let played = match lone {
            Some(argument) => {
                if self.is_usual(call, &names[0]) {
                    self.run(true, &argument, &names)?
                } else {
                    self.leave(&argument, &names)?;
                    self.run(false, &call.build(), &names)?
                }
            }
            None => self.run(false, &call.build(), &names)?,
        };
        let before = self.keys.clone();
        let reply = decide(call, &names, &mut self.keys, self.us);
        let met = self.damage_met(call, &names);
        let compared = if met.is_empty() {
            self.compare(&reply, call, &played, &names, &before)
        } else {
            compare_foreign(&reply, &played)
        };
        compared.map_err(|difference| {
            let states = |keys: &Keys| {
                let each = names.iter().map(|name| keys.get(name));
                let each = each.map(|it| it.map(|it| (it.state(), it.expires)));
                each.fold(String::new(), |text, it| format!("{text}\n  {it:?}"))
            };
            let (before, after, us) = (states(&before), states(&self.keys), self.us);
            let script = played
                .keys
                .iter()
                .fold(String::new(), |text, (kind, bytes, ttl)| {
                    let kind = String::from_utf8_lossy(kind);
                    format!("{text}\n  {kind} {:?} {ttl}", State::parse(bytes))
                });
            let (sent, outcomes) = (reply.sent(call), &reply.requests);
            format!(
                "{difference}\n{call:?}\nat {us} of {names:?}\nbefore {before}\n\
                 twin {outcomes:?}, {sent:?}{after}\nscript {:?}{script}",
                played.sent
            )
        })?;
        met.iter().for_each(|name| self.delete(name));
        Ok(reply)
    }

    /// Returns the keys that a call takes from, if one of them was damaged and is a state all the
    /// same.
    fn damage_met(&self, call: &Call, names: &[String]) -> Vec<String> {
        let charges = call.requests.iter().flat_map(|request| &request.charges);
        let keys = charges.flat_map(|it| [it.key, it.banning.map_or(it.key, |it| it.key)]);
        let met: Vec<_> = keys
            .map(|key| names[usize::from(key) - 1].clone())
            .collect();
        let is_state = |name: &String| self.keys.get(name).is_some_and(|it| it.state().is_ok());
        let is_met = |name: &String| self.damaged.contains(name) && is_state(name);
        if met.iter().any(is_met) {
            met
        } else {
            Vec::new()
        }
    }

    /// Has the script for one caller by GCRA leave a call to the other one, except where the key is
    /// no string, which makes it fail.
    fn leave(&mut self, argument: &[u8], names: &[String]) -> Result<(), String> {
        let stored = self.keys.get(&names[0]);
        if stored.is_some_and(|stored| stored.bytes.is_none()) {
            return Ok(());
        }
        let played = self.run(true, argument, names)?;
        if played.sent == kit::Reply::Nil && played.writes[0].is_empty() {
            Ok(())
        } else {
            Err(format!("not left to the other script: {:?}", played.sent))
        }
    }

    /// Whether the script for one caller by GCRA decides.
    fn is_usual(&self, call: &Call, name: &str) -> bool {
        let (Some(stored), Some(Row::Gcra(limit))) = (self.keys.get(name), call.row(1)) else {
            return true;
        };
        match stored.state() {
            Ok(State::Gcra(gcra)) => gcra.is_usual(*limit, call.now == 0, self.us),
            _ => false,
        }
    }

    fn run(&mut self, is_lone: bool, argument: &[u8], names: &[String]) -> Result<Played, String> {
        use kit::Reply::{Array, Bulk, Int};
        let numbers = [names.len() as i64, self.us / 1_000_000, self.us % 1_000_000];
        let numbers = numbers.map(|number| number.to_string());
        let Redis { lone, decide, .. } = &self.redis;
        let sha = if is_lone { lone } else { decide }.clone();
        let mut words: Vec<&[u8]> = vec![b"EVALSHA", &sha, numbers[0].as_bytes()];
        words.extend(names.iter().map(|name| name.as_bytes()));
        words.extend([argument, numbers[1].as_bytes(), numbers[2].as_bytes()]);
        let Array(mut parts) = self.ask(&words) else {
            return Err(format!("the script fails: {:?}", self.ask(&words)));
        };
        let keys = parts.split_off(2).into_iter().map(|key| match key {
            Array(key) => match &key[..] {
                [Bulk(kind), Bulk(value), Int(ttl)] => (kind.clone(), value.clone(), *ttl),
                _ => panic!("{key:?}"),
            },
            _ => panic!("{key:?}"),
        });
        let keys = keys.collect();
        let (Some(Array(writes)), Some(sent)) = (parts.pop(), parts.pop()) else {
            return Err("the frame fails".to_owned());
        };
        let mut writes: Vec<_> = writes.iter().map(ToString::to_string).collect();
        let read = writes.pop().and_then(|it| it.parse().ok()).unwrap();
        Ok(Played {
            sent,
            writes,
            read,
            keys,
        })
    }

    fn compare(
        &self,
        reply: &Reply,
        call: &Call,
        played: &Played,
        names: &[String],
        before: &Keys,
    ) -> Result<(), String> {
        let is_same = match &played.sent {
            kit::Reply::Bulk(text) => reply.sent(call) == lone_grant(text),
            // A refusal of one caller by GCRA.
            kit::Reply::Int(backlog) if call.tells => {
                let kit::Reply::Array(said) = reply.sent(call) else {
                    return Err("the script refuses".to_owned());
                };
                let backlog = kit::Reply::Int(*backlog);
                matches!(said[1], kit::Reply::Int(..0)) && said[2] == backlog
            }
            sent => reply.sent(call) == *sent,
        };
        if !is_same {
            return Err("the replies differ".to_owned());
        }
        if call.is_lone {
            check_cost(call, played, before.get(&names[0]))?;
        }
        for (place, name) in names.iter().enumerate() {
            let (kind, value, ttl) = &played.keys[place];
            let stored = self.keys.get(name);
            let is_same = match stored.map(|stored| &stored.bytes) {
                None => kind == b"none",
                Some(Some(bytes)) => kind == b"string" && bytes == value,
                Some(None) => kind == b"list",
            };
            if !is_same {
                return Err(format!("the bytes of {name} differ"));
            }
            // SET NX finds that an empty string is foreign, and DEL finds none.
            let is_empty = |it: &Stored| it.bytes.as_ref().is_some_and(Vec::is_empty);
            let may_write = stored != before.get(name) || stored.is_none_or(is_empty);
            let writes = &played.writes[place];
            if writes.split_whitespace().count() > usize::from(may_write) {
                return Err(format!("{name} is written for nothing, or twice: {writes}"));
            }
            if stored != before.get(name)
                && let Some(Ok(state)) = stored.map(Stored::state)
            {
                if state.pack() != *value {
                    return Err(format!("{state:?} is written in another way"));
                }
                let now = if call.now > 0 {
                    call.now
                } else {
                    self.us / 1000
                };
                check_length(&state, now)?;
            }
            let (expires, server) = (stored.and_then(|it| it.expires), self.us / 1000);
            let left = expires.map(|expires| expires - server);
            let is_kept = before.get(name).map(|it| it.expires) == Some(expires);
            let put_off = writes.split_once(':').map(|(_, ms)| ms.trim().parse());
            let is_right = match (put_off, *ttl) {
                (_, -2) => stored.is_none(),
                (Some(ms), _) if !stored.is_some_and(is_empty) => left == ms.ok(),
                // SETRANGE leaves the TTL as it is, and nothing else may be written without one.
                _ => (is_kept || left.is_none()) && !writes.contains("SET "),
            };
            if !is_right {
                return Err(format!(
                    "{name} lives for {ttl} ms, by the twin for {left:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Checks what a call of one caller costs: it reads a state few times for each limit.
fn check_cost(call: &Call, played: &Played, stored: Option<&Stored>) -> Result<(), String> {
    let limits = match call.row(1) {
        Some(Row::Log(limits)) => limits.len(),
        _ => 1,
    };
    let length = stored.and_then(|it| it.bytes.as_ref()).map_or(0, Vec::len);
    if played.read <= (4 * limits + 2) * length {
        return Ok(());
    }
    Err(format!("{} bytes read of {length}", played.read))
}

/// Checks that a log that was written keeps its bound. One in which nothing lives, and which no
/// script has written, may be as long as it was made: the next grant begins another.
fn check_length(state: &State, now: i64) -> Result<(), String> {
    let State::Log(log) = state else {
        return Ok(());
    };
    let (newest, longest) = (log.records.last(), log.spans.first());
    let lives = newest
        .zip(longest)
        .is_some_and(|(newest, longest)| newest.time > now - longest.interval);
    if lives && log.records.len() > 2000 * (log.spans.len() + 1) + 250 {
        return Err(format!("{} records", log.records.len()));
    }
    Ok(())
}

/// Returns what the script that decides all would say of a grant to one caller by GCRA.
fn lone_grant(text: &[u8]) -> kit::Reply {
    let (doubles, _) = text.as_chunks::<8>();
    let numbers: Vec<_> = doubles
        .iter()
        .map(|it| f64::from_le_bytes(*it) as i64)
        .collect();
    let numbers = [numbers[0], numbers[1] - numbers[0], numbers[2]];
    kit::Reply::Array(numbers.map(kit::Reply::Int).into())
}

/// Compares only how many requests are foreign.
fn compare_foreign(reply: &Reply, played: &Played) -> Result<(), String> {
    let outcomes = reply.requests.iter();
    let foreign = outcomes
        .filter(|outcome| **outcome == Outcome::Foreign)
        .count();
    let of_script = match &played.sent {
        kit::Reply::Array(parts) => parts
            .iter()
            .filter(|part| **part == kit::Reply::Nil)
            .count(),
        _ => 0,
    };
    let text = "a damaged state is foreign to one of them".to_owned();
    (foreign == of_script).then_some(()).ok_or(text)
}

/// Returns a log of single records in the last nine tenths of the interval.
fn preloaded(now: i64, preload: &Preload) -> Log {
    let Preload { limit, number, .. } = *preload;
    let Limit { interval, rate } = limit;
    let [from, returned] = preload.returned;
    let record = |place| Record {
        callers: Callers::of(plan::preloaded(place), 1),
        permits: if (from..from + returned).contains(&place) {
            0
        } else {
            preload.permits
        },
        time: (now - (number - place) * interval * 9 / (10 * number)).max(0),
    };
    let mut records: Vec<_> = (0..number).map(record).collect();
    if let Some(last) = records.last_mut().filter(|_| preload.has_slot) {
        last.callers = Callers::default();
        last.time = now + 1;
    }
    let span = Span {
        interval,
        rate,
        used: records.iter().map(|record| record.permits).sum(),
        start: 0,
        seen: now,
    };
    Log {
        spans: vec![span],
        records,
        ahead: Vec::new(),
        ends: now + 2 * interval,
    }
}
