//! A limiter in Redis beside the same limiter as pure functions, for any algorithm.

use std::time::Instant;

use redis::{Connection, FromRedisValue, RedisError};

use super::*;
use crate::{
    store::redis::{
        redisson::Scripts,
        script::{is_unknown_script, with_script},
    },
    values::charge::Charge,
};
use kit::{RedisServer, unique};

pub(crate) const CLIENT: &str = "7d9";
/// Where the given clock begins: a number of milliseconds as long as today's.
pub(crate) const START: i64 = 1_704_153_600_000;

/// What differs from one way to count to another: how its keys are read and held against the
/// model, and which scripts take and settle.
pub(crate) trait Kind: Clone + 'static {
    const ALGORITHM: Algorithm;
    /// Rates and intervals of the limits, the usual ones more often.
    const RATES: &'static [u64];
    const INTERVALS: &'static [u64];
    /// More permits than most limits have.
    const MANY: u32;

    /// Times that pass.
    fn moves() -> BoxedStrategy<i64>;

    fn new(rate_type: RateType) -> Self;

    /// The limit in the hash.
    fn limit(&self) -> Option<StoredLimit>;

    /// The limit that a verb counts by.
    fn in_force(&self) -> Option<StoredLimit> {
        self.limit()
    }

    /// Carries out a verb that writes no limit.
    fn verb<T>(&mut self, verb: impl FnOnce(&mut LimiterState) -> T) -> T;

    /// Carries out a verb that writes a limit.
    fn set<T>(&mut self, verb: impl FnOnce(&mut LimiterState) -> T) -> T {
        self.verb(verb)
    }

    fn available(&mut self, now: Now, id: PermitId) -> Result<i64, ErrorKind> {
        self.verb(|limiter| limiter.available(now, id))
    }

    /// Does what the loss of a key does to the model.
    fn lose(&mut self, key: Key);

    /// Has the model begin from what the keys hold, where a key can vanish by itself.
    fn read(_pair: &mut Pair<Self>) {}

    /// Holds the keys against the model.
    fn compare(pair: &mut Pair<Self>);

    /// Lets time pass where the clock is the server's, which cannot be moved.
    fn set_back(pair: &mut Pair<Self>, by: i64);

    /// Takes permits for callers of one call, by the script and by the model.
    fn acquire(pair: &mut Pair<Self>, run: &[(Sent, bool)], how: How);

    /// Settles one of the grants at `keep` permits.
    fn settle(pair: &mut Pair<Self>, which: Index, keep: u32, limit: LimitSource);

    /// Gives back what no call has sent.
    fn give_back_unsent(_pair: &mut Pair<Self>) {}

    /// Writes the value as `release`, an operator, or another algorithm does.
    fn drift(pair: &mut Pair<Self>, value: i64);

    /// Writes an entry of a log, as another writer or another algorithm does.
    fn plant(_pair: &mut Pair<Self>, _plant: Plant) {}

    /// Notes grants in slots from now on, or else one by one.
    fn note_in(_pair: &mut Pair<Self>, _slots: Option<u32>) {}
}

pub(crate) struct Pair<K = LimiterState<SlidingLog>> {
    connection: Connection,
    pub(crate) name: Name,
    pub(crate) counting: Counting,
    pub(crate) keys: [String; 5],
    pub(crate) rate_type: RateType,
    pub(crate) model: K,
    pub(crate) clock: Clock,
    pub(crate) lone: Lone,
    ids: u64,
    pub(crate) sent: Vec<Sent>,
    /// What receipts know of grants that are not found by their ids.
    pub(crate) granted: Vec<(Sent, Taken)>,
}

/// Which script decides for a lone caller. By a given clock the other one always does so, too, on a
/// copy of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lone {
    /// `sliding_log/acquire.lua`
    Own,
    /// `sliding_log/acquire_list.lua`
    Run,
}

/// Which branch of the scripts is tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Clock {
    /// The time is an argument
    Given(i64),
    /// The server's
    Server,
}

/// An acquire that was sent, and may be sent again or given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) id: PermitId,
    pub(crate) permits: u32,
    /// By how many ms it is to be scored ahead
    pub(crate) lead: i64,
}

/// How an acquire is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) limit: LimitSource,
    pub(crate) rewrite: bool,
    pub(crate) exact: bool,
}

impl How {
    /// By the stored limit, as it is.
    pub(crate) const STORED: Self = Self {
        limit: LimitSource::Store,
        rewrite: false,
        exact: false,
    };
    /// The same, and the permits left are wanted exactly.
    pub(crate) const EXACT: Self = Self {
        exact: true,
        ..Self::STORED
    };

    /// By a limit of the code, which may write it.
    pub(crate) fn code(limit: Limit) -> Self {
        Self {
            limit: LimitSource::Code(limit),
            rewrite: true,
            exact: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    Limit,
    Value,
    Log,
}

/// A grant of another writer, who also counts it (or does not: drift).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plant {
    /// One entry, or more than a page of them
    pub(crate) number: usize,
    pub(crate) generation: Generation,
    pub(crate) age: i64,
    pub(crate) permits: u32,
    pub(crate) counted: bool,
}

impl<K: Kind> Pair<K> {
    pub(crate) fn of_kind(rate_type: RateType, clock: Clock) -> Self {
        let name = Name::exact(&unique("model")).unwrap();
        Self {
            connection: connect(),
            keys: redisson::keys(&name, CLIENT),
            name,
            counting: Counting {
                algorithm: K::ALGORITHM,
                prefers_redisson: true,
                ..Counting::default()
            },
            rate_type,
            model: K::new(rate_type),
            clock,
            lone: Lone::Own,
            ids: 0,
            sent: Vec::new(),
            granted: Vec::new(),
        }
    }

    /// The same on a server of its own.
    pub(crate) fn on(mut self, server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        self.connection = client.get_connection().unwrap();
        self
    }

    pub(crate) fn limit(&self, rate: u64, interval: u64) -> Limit {
        let limit = Limit::new(rate, Duration::from_millis(interval));
        match self.rate_type {
            RateType::Overall => limit,
            RateType::PerClient => limit.per_client(),
        }
    }

    /// The time by the clock under test.
    pub(crate) fn now(&mut self) -> i64 {
        match self.clock {
            Clock::Given(now) => now,
            Clock::Server => self.micros() / 1000,
        }
    }

    /// The server's time.
    pub(crate) fn micros(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = self.ask(&["TIME"]);
        seconds * 1_000_000 + micros
    }

    /// Lets time pass, also backwards.
    pub(crate) fn advance(&mut self, by: i64) {
        match &mut self.clock {
            Clock::Given(now) => *now += by,
            Clock::Server => K::set_back(self, by),
        }
    }

    /// A millisecond by the clock under test.
    pub(crate) fn instant(&self, now: i64) -> Now {
        match self.clock {
            Clock::Given(_) => Now::millis(now).by_caller(true),
            Clock::Server => Now::millis(now),
        }
    }

    /// How the pure functions are asked: a limit of the code that rewrites no other is one that
    /// they make where there is none, if it is for the same clients.
    pub(crate) fn of_model(&self, how: How) -> How {
        let limit = match how.limit {
            LimitSource::Code(limit)
                if !how.rewrite && limit.stored().rate_type == self.rate_type =>
            {
                LimitSource::StoreOrInit(limit)
            }
            limit => limit,
        };
        How { limit, ..how }
    }

    /// The callers of a call.
    pub(crate) fn acquires(&self, run: &[(Sent, bool)], how: How) -> Vec<Demand> {
        let demands = run.iter().map(|(sent, waits)| Demand {
            wants_remaining: how.exact,
            ..Demand::caller([self.charge(*sent, how.limit)], *waits)
        });
        demands.collect()
    }

    pub(crate) fn compare(&mut self) {
        K::compare(self);
    }

    pub(crate) fn lose(&mut self, key: Key) {
        let place = &self.all_keys()[key as usize];
        self.command(&["DEL", place]);
        self.model.lose(key);
    }

    pub(crate) fn value_key(&self) -> String {
        self.keys[1 + usize::from(self.rate_type == RateType::PerClient)].clone()
    }

    pub(crate) fn log_key(&self) -> String {
        self.keys[3 + usize::from(self.rate_type == RateType::PerClient)].clone()
    }

    /// Hash, value and log.
    pub(crate) fn all_keys(&self) -> [String; 3] {
        [self.keys[0].clone(), self.value_key(), self.log_key()]
    }

    pub(crate) fn command(&mut self, command: &[&str]) -> Value {
        self.ask(command)
    }

    pub(crate) fn ask<T: FromRedisValue>(&mut self, command: &[&str]) -> T {
        ask(&mut self.connection, command)
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub(crate) fn call(&mut self, script: &Script, command: &Cmd) -> Result<Value, RedisError> {
        run_script(&mut self.connection, script, command)
    }

    /// Has a script carried out that answers with an error or a number, and maybe more.
    pub(crate) fn number(
        &mut self,
        script: &Script,
        command: &Cmd,
    ) -> (Value, Result<i64, ErrorKind>) {
        let reply = self.call(script, command).unwrap();
        let replied = redisson::reply::second(&reply).map_err(|error| error.kind());
        (reply, replied)
    }

    pub(crate) fn acquire_command(&self, sent: Sent, how: How) -> Cmd {
        self.run_command(&[(sent, false)], how)
    }

    pub(crate) fn run_command(&self, run: &[(Sent, bool)], how: How) -> Cmd {
        let callers = run.iter();
        let run: Vec<_> = callers
            .map(|(sent, waits)| Demand::caller([self.charge(*sent, how.limit)], *waits))
            .collect();
        let limiters = [(run[0].first(), how.rewrite)];
        let script = self.scripts().acquire;
        redisson::acquire_command(script, &limiters, &run, self.asks(how.exact))
    }

    pub(crate) fn charge(&self, sent: Sent, limit: LimitSource) -> Charge {
        Charge {
            id: sent.id,
            lead: sent.lead,
            // In slots, no grant is known again.
            made: self.counting.slots().is_none().then(Instant::now),
            ..Charge::new(self.limiter(limit), sent.permits)
        }
    }

    pub(crate) fn limiter(&self, limit: LimitSource) -> Limiter {
        let compiled = CompiledLimit {
            limit,
            counting: self.counting,
            ..CompiledLimit::with_defaults("model", true, false)
        };
        let (name, compiled) = (self.name.clone(), compiled.into());
        Limiter { name, compiled }
    }

    pub(crate) fn receipt(&self, sent: Sent, limit: LimitSource) -> Charge {
        self.charge(sent, limit).to_send()
    }

    /// Returns the scripts that count it.
    pub(crate) fn scripts(&self) -> &'static Scripts {
        redisson::scripts(self.counting).unwrap()
    }

    pub(crate) fn asks(&self, exact: bool) -> redisson::CallSettings<'static> {
        redisson::CallSettings {
            client_id: CLIENT,
            now: match self.clock {
                Clock::Given(now) => Some(now.cast_unsigned()),
                Clock::Server => None,
            },
            exact,
        }
    }

    pub(crate) fn stored_limit(&mut self) -> Option<StoredLimit> {
        let hash = self.keys[0].clone();
        let reply: Value = self.ask(&["HMGET", &hash, "rate", "interval", "type", "keepAliveTime"]);
        redisson::stored_limit(&reply).unwrap()
    }

    /// An acquire of so many permits that was not sent before.
    pub(crate) fn unsent(&mut self, permits: u32) -> Sent {
        Sent {
            id: self.new_id(),
            permits,
            lead: 0,
        }
    }

    /// Takes one of the grants that can be settled, or `none` where there are none: a charge needs
    /// no grant.
    pub(crate) fn grant(&mut self, which: Index, none: Taken) -> (Sent, Taken) {
        if self.granted.is_empty() {
            return (self.unsent(0), none);
        }
        let place = which.index(self.granted.len());
        self.granted.swap_remove(place)
    }

    /// PTTL of hash, value and log.
    pub(crate) fn ttls(&mut self) -> [i64; 3] {
        let mut pipeline = redis::pipe();
        for key in self.all_keys() {
            pipeline.cmd("PTTL").arg(key);
        }
        pipeline.query(&mut self.connection).unwrap()
    }

    /// An id in no particular order to the others, above those of older generations' members.
    pub(crate) fn new_id(&mut self) -> PermitId {
        self.ids += 1;
        let mixed = self.ids.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut id = [0; 16];
        id[0] = 0x20 | mixed.to_be_bytes()[0];
        id[1..9].copy_from_slice(&mixed.to_be_bytes());
        id[9..].copy_from_slice(&self.ids.to_be_bytes()[1..]);
        PermitId(id)
    }

    /// The number of the last id.
    pub(crate) fn last_id(&self) -> u64 {
        self.ids
    }
}

/// A connection to the server that tests share.
pub(crate) fn connect() -> Connection {
    let client = redis::Client::open(RedisServer::shared().url()).unwrap();
    client.get_connection().unwrap()
}

pub(crate) fn ask<T: FromRedisValue>(connection: &mut Connection, command: &[&str]) -> T {
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]).query(connection).unwrap()
}

pub(crate) fn run_script(
    connection: &mut Connection,
    script: &Script,
    command: &Cmd,
) -> Result<Value, RedisError> {
    let by_hash = with_script("EVALSHA", &script.sha1, command);
    match by_hash.query(connection) {
        Err(error) if is_unknown_script(&error) => script.whole(command).query(connection),
        reply => reply,
    }
}

/// Asserts that an answer is as expected. The end of a window is read from the TTL of a key, so it
/// may differ by up to `tolerance` ms, which have passed meanwhile.
pub(crate) fn assert_same(replied: &Answer, expected: &Answer, tolerance: i64) {
    let timeless = |answer: &Answer| Answer {
        wait: 0,
        next: 0,
        reset: 0,
        ..answer.clone()
    };
    assert_eq!(timeless(replied), timeless(expected));
    for (replied, expected) in [
        (replied.wait, expected.wait),
        (replied.next, expected.next),
        (replied.reset, expected.reset),
    ] {
        assert_eq!(replied == 0, expected == 0, "{replied} {expected}");
        assert_near(replied, expected, tolerance);
    }
}

pub(crate) fn assert_near(replied: i64, expected: i64, tolerance: i64) {
    let apart = (replied - expected).abs();
    assert!(apart <= tolerance, "{replied} {expected}");
}

/// The answers of the pure functions to callers of one limiter, at a time in milliseconds.
pub(crate) fn decide(
    limiter: &mut LimiterState,
    run: &[Demand],
    now: Now,
) -> Result<Vec<Answer>, ErrorKind> {
    decide_all(std::iter::once(limiter), run, now)
}

/// The same to callers of several limiters.
pub(crate) fn decide_all<'a>(
    limiters: impl Iterator<Item = &'a mut LimiterState>,
    run: &[Demand],
    now: Now,
) -> Result<Vec<Answer>, ErrorKind> {
    let mut answers = call::acquire(limiters, run, now)?;
    for answer in answers.iter_mut() {
        answer.now = Now::millis(answer.now.tick);
    }
    Ok(answers.to_vec())
}

/// The answers of a script to so many callers of so many limiters.
pub(crate) fn replied(
    reply: &Value,
    limiters: usize,
    callers: usize,
) -> Result<Vec<Answer>, ErrorKind> {
    let answers = redisson::read_answers(reply, limiters, callers);
    Ok(answers.map_err(|error| error.kind())?.to_vec())
}
