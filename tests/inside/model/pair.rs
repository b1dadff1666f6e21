//! One limiter twice: in Redis, and as a [`Limiter`].

use std::ops::RangeInclusive;

use redis::{Connection, RedisError, Value};

use super::{
    members::{Generation, packed, unpacked},
    support::{RedisServer, unique},
};
use crate::store::redis::wire::{
    self,
    arguments::{Arguments, Word},
    script::{self, ACQUIRE, ACQUIRE_LIST, Script, is_unknown_script},
};
use crate::{
    algorithm::{
        answer::{Answer, Changed, Verdict},
        call::{self, Counts, Terms},
        sliding_log::{Entry, Limiter, Log},
    },
    clock::{Millis, Now},
    demand::{Acquire, Charge, Labels},
    error::ErrorKind,
    limit::{Limit, LimitSource, RateType, Slots, StoredLimit, ahead_of},
    name::Name,
    receipt::PermitId,
};

pub(crate) const CLIENT: &str = "7d9";
/// Where the given clock begins: a number of milliseconds as long as today's.
pub(crate) const START: i64 = 1_704_153_600_000;

pub(crate) struct Pair {
    connection: Connection,
    pub(crate) name: Name,
    pub(crate) keys: [String; 5],
    pub(crate) rate_type: RateType,
    pub(crate) model: Limiter,
    pub(crate) clock: Clock,
    lone: Lone,
    ids: u64,
    pub(crate) sent: Vec<Sent>,
}

/// Which script decides for a lone caller. By a given clock the other one always does so, too, on a copy of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lone {
    /// `acquire.lua`
    Own,
    /// `acquire_list.lua`
    Run,
}

/// Which branch of the scripts is tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Clock {
    /// The time is an argument
    Given(i64),
    /// The server's. It cannot be moved: the log is, the other way
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

/// What the keys hold.
#[derive(Debug, PartialEq)]
struct State {
    limit: Option<[Vec<u8>; 4]>,
    value: Option<i64>,
    /// Score, id, permits
    log: Vec<(i64, [u8; 16], u32)>,
    /// Keys of the other rate type
    others: i64,
}

impl Pair {
    pub(crate) fn new(rate_type: RateType, clock: Clock) -> Self {
        let client = redis::Client::open(RedisServer::shared().url()).unwrap();
        let name = Name::exact(&unique("model")).unwrap();
        Self {
            connection: client.get_connection().unwrap(),
            keys: wire::keys(&name, CLIENT),
            name,
            rate_type,
            model: Limiter::default(),
            clock,
            lone: Lone::Own,
            ids: 0,
            sent: Vec::new(),
        }
    }

    pub(crate) fn limit(&self, rate: u64, interval: u64) -> Limit {
        let limit = Limit::new(rate, std::time::Duration::from_millis(interval));
        match self.rate_type {
            RateType::Overall => limit,
            RateType::PerClient => limit.per_client(),
        }
    }

    pub(crate) fn through(self, lone: Lone) -> Self {
        Self { lone, ..self }
    }

    /// Notes grants in slots from now on, or else one by one.
    pub(crate) fn note_in(&mut self, slots: Option<u32>) {
        let slots = slots.map(|slots| Slots::try_new(slots, "model", std::iter::empty()).unwrap());
        self.name = self.name.clone().noted_in(slots);
        self.model.note_in(slots);
    }

    /// The time by the clock under test.
    pub(crate) fn now(&mut self) -> i64 {
        match self.clock {
            Clock::Given(now) => now,
            Clock::Server => {
                let time: (i64, i64) = self.ask(&["TIME"]);
                time.0 * 1000 + time.1 / 1000
            }
        }
    }

    /// Lets time pass, also backwards.
    pub(crate) fn advance(&mut self, by: i64) {
        if let Clock::Given(now) = &mut self.clock {
            *now += by;
            return;
        }
        self.set_back(by);
    }

    /// Sets all scores back.
    pub(crate) fn set_back(&mut self, by: i64) {
        let mut moved = Log::default();
        let scores: Vec<(Vec<u8>, i64)> =
            self.ask(&["ZRANGE", &self.log_key(), "0", "-1", "WITHSCORES"]);
        for (member, score) in scores {
            let mut zadd = redis::cmd("ZADD");
            zadd.arg(self.log_key()).arg(score - by).arg(member);
            zadd.query::<i64>(&mut self.connection).unwrap();
        }
        for entry in self.model.log.entries() {
            moved.insert(Entry {
                score: entry.score - by,
                ..*entry
            });
        }
        self.model.log = moved;
    }

    /// Sends an acquire that was not sent before.
    pub(crate) fn acquire(&mut self, permits: u32, how: How) -> Result<Answer, ErrorKind> {
        let sent = Sent {
            id: self.new_id(),
            permits,
            lead: 0,
        };
        self.sent.push(sent);
        self.send(sent, how)
    }

    pub(crate) fn send(&mut self, sent: Sent, how: How) -> Result<Answer, ErrorKind> {
        let run = [(sent, false)];
        if self.name.slots().is_some() {
            return self.send_run(&run, how).map(|answers| answers[0]);
        }
        let calls = [
            (&*ACQUIRE, self.acquire_arguments(sent, how)),
            (&*ACQUIRE_LIST, self.run_arguments(&run, how)),
        ];
        let [(script, arguments), (other, others)] = match self.lone {
            Lone::Own => calls,
            Lone::Run => {
                let [own, run] = calls;
                [run, own]
            }
        };
        let copy = matches!(self.clock, Clock::Given(_)).then(|| {
            let copies = self.copies();
            let reply = self.call(other, &others.on(copies.clone())).unwrap();
            (copies, reply)
        });
        let since = self.now();
        let reply = self.call(script, &arguments).unwrap();
        let until = self.now();
        let answer = self.read(&reply, sent, how);
        if let Some((copies, replied)) = copy {
            let run = self.read(&replied, sent, how);
            assert_eq!(answer, run, "one caller, and a run of one");
            let (own, others) = (self.raw(), self.raw_of(&copies));
            assert_eq!(own, others, "keys after one caller, and after a run of one");
        }
        let replied = answer.map(|answer| vec![answer]);
        self.replied(replied, &run, how, since..=until)
            .map(|answers| answers[0])
    }

    /// What a lone caller is told, by whichever script.
    fn read(&self, reply: &Value, sent: Sent, how: How) -> Result<Answer, ErrorKind> {
        let asks = self.asks(how.exact);
        wire::lone_answer(reply, &self.charge(sent, how), asks.now).map_err(|error| error.kind())
    }

    /// Sends a call of several callers; each with whether it waits in line.
    pub(crate) fn send_run(
        &mut self,
        run: &[(Sent, bool)],
        how: How,
    ) -> Result<Vec<Answer>, ErrorKind> {
        let arguments = self.run_arguments(run, how);
        let script = if self.name.slots().is_some() {
            &*script::slots::ACQUIRE
        } else {
            &*ACQUIRE_LIST
        };
        let since = self.now();
        let reply = self.call(script, &arguments).unwrap();
        let until = self.now();
        let replied = wire::answers(&reply, 1, run.len()).map_err(|error| error.kind());
        let replied = replied.map(|answers| answers.to_vec());
        self.replied(replied, run, how, since..=until)
    }

    /// Has the model answer the same, and compares. Where the reply does not tell its time, there must be one `within` the
    /// call at which the model answers so.
    fn replied(
        &mut self,
        replied: Result<Vec<Answer>, ErrorKind>,
        run: &[(Sent, bool)],
        how: How,
        within: RangeInclusive<i64>,
    ) -> Result<Vec<Answer>, ErrorKind> {
        let told = replied.as_ref().map_or(0, |answers| answers[0].now.tick);
        let within = if told == 0 { within } else { told..=told };
        let terms = Terms {
            rewrite: how.rewrite,
            resendable: self.name.slots().is_none(),
        };
        let callers: Vec<_> = run
            .iter()
            .map(|(sent, waits)| Acquire {
                remaining: how.exact,
                ..Acquire::of([self.charge(*sent, how)], *waits)
            })
            .collect();
        let (state, before) = (self.state(), self.model.clone());
        let until = *within.end();
        for now in within {
            self.model = before.clone();
            let instant = self.instant(now);
            let limiters = std::iter::once((&mut self.model as &mut dyn Counts, terms));
            let mut expected =
                call::acquire(limiters, &callers, instant).map(|answers| answers.to_vec());
            for answer in expected.iter_mut().flatten() {
                answer.now = Now::millis(answer.now.tick.min(told));
            }
            if now == until || (&replied, &state) == (&expected, &self.modelled()) {
                assert_eq!(replied, expected, "{terms:?} {callers:?}");
                break;
            }
        }
        self.compare();
        if let Ok(answers) = &replied {
            self.check_expiry(&answers[0]);
        }
        replied
    }

    /// A millisecond by the clock under test.
    pub(crate) fn instant(&self, now: i64) -> Now {
        match self.clock {
            Clock::Given(_) => Now::millis(now).given(),
            Clock::Server => Now::millis(now),
        }
    }

    pub(crate) fn lose_limit(&mut self) {
        self.command(&["DEL", &self.keys[0].clone()]);
        self.model.limit = None;
    }

    pub(crate) fn lose_value(&mut self) {
        self.command(&["DEL", &self.value_key()]);
        self.model.value = None;
    }

    pub(crate) fn lose_log(&mut self) {
        self.command(&["DEL", &self.log_key()]);
        self.model.log.clear();
    }

    pub(crate) fn set_value(&mut self, value: i64) {
        self.command(&["SET", &self.value_key(), &value.to_string()]);
        self.model.value = Some(value);
    }

    /// Puts a grant into the log that no acquire of ours made.
    pub(crate) fn plant(&mut self, generation: Generation, score: i64, permits: u32) -> Sent {
        let id = self.new_id();
        let (id, member) = packed(generation, id, self.ids, permits);
        let mut zadd = redis::cmd("ZADD");
        zadd.arg(self.log_key()).arg(score).arg(member);
        zadd.query::<i64>(&mut self.connection).unwrap();
        // As every Redisson does since 3.17.3, the first to pass on a life.
        let life: i64 = self.ask(&["PTTL", &self.keys[0].clone()]);
        if life > 0 {
            let (value, log) = (self.value_key(), self.log_key());
            self.command(&["PEXPIRE", &value, &life.to_string()]);
            self.command(&["PEXPIRE", &log, &life.to_string()]);
        }
        self.model.log.insert(Entry { score, permits, id });
        Sent {
            id,
            permits,
            lead: 0,
        }
    }

    pub(crate) fn value_key(&self) -> String {
        self.keys[1 + usize::from(self.rate_type == RateType::PerClient)].clone()
    }

    pub(crate) fn log_key(&self) -> String {
        self.keys[3 + usize::from(self.rate_type == RateType::PerClient)].clone()
    }

    pub(crate) fn command(&mut self, command: &[&str]) -> Value {
        self.ask(command)
    }

    pub(crate) fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> T {
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut self.connection)
            .unwrap()
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub(crate) fn call(
        &mut self,
        script: &Script,
        arguments: &Arguments,
    ) -> Result<Value, RedisError> {
        match script.command(arguments, false).query(&mut self.connection) {
            Err(error) if is_unknown_script(&error) => {
                script.command(arguments, true).query(&mut self.connection)
            }
            reply => reply,
        }
    }

    pub(crate) fn acquire_arguments(&self, sent: Sent, how: How) -> Arguments {
        self.run_arguments(&[(sent, false)], how)
    }

    pub(crate) fn run_arguments(&self, run: &[(Sent, bool)], how: How) -> Arguments {
        let charges: Vec<_> = run
            .iter()
            .map(|(sent, waits)| (self.charge(*sent, how), *waits))
            .collect();
        let limiters = charges[..1].iter();
        let limiters = limiters.map(|(charge, _)| (charge, how.rewrite));
        let callers = charges.iter();
        let callers = callers.map(|(charge, waits)| (std::iter::once(charge), *waits));
        wire::acquire(limiters, callers, self.asks(how.exact))
    }

    pub(crate) fn charge(&self, sent: Sent, how: How) -> Charge {
        Charge {
            id: sent.id,
            lead: sent.lead,
            ..Charge::named(
                self.name.clone(),
                how.limit,
                Labels::new("model", false, None),
                sent.permits,
            )
        }
    }

    pub(crate) fn asks(&self, exact: bool) -> wire::Ask<'static> {
        wire::Ask {
            client_id: CLIENT,
            now: match self.clock {
                Clock::Given(now) => Some(now.cast_unsigned()),
                Clock::Server => None,
            },
            exact,
        }
    }

    pub(crate) fn give_back_arguments(&self, sent: Sent, now: i64) -> Arguments {
        let receipt = self.receipt(sent, LimitSource::Store);
        wire::settle(&receipt, 0, CLIENT, Some(now.cast_unsigned()))
    }

    pub(crate) fn available_arguments(&self, id: PermitId, given: Option<Millis>) -> Arguments {
        Arguments::new(&self.keys, [wire::time(given), Word::from(id.0)])
    }

    pub(crate) fn set_rate_arguments(&self, limit: Limit) -> Arguments {
        Arguments::new(self.keys.clone(), wire::limit_fields(&limit.stored()))
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

    /// PTTL of hash, value and log.
    pub(crate) fn ttls(&mut self) -> [i64; 3] {
        let mut pipeline = redis::pipe();
        for key in [&self.keys[0], &self.value_key(), &self.log_key()] {
            pipeline.cmd("PTTL").arg(key);
        }
        pipeline.query(&mut self.connection).unwrap()
    }

    /// The keys as they stand, raw.
    pub(crate) fn raw(&mut self) -> Value {
        let keys = self.keys.clone();
        self.raw_of(&keys)
    }

    /// Copies of the keys, with their lives, under another name.
    fn copies(&mut self) -> [String; 5] {
        let name = Name::exact(&format!("{}.copy", self.name.as_str())).unwrap();
        let copies = wire::keys(&name, CLIENT);
        let mut pipeline = redis::pipe();
        pipeline.cmd("DEL").arg(&copies).ignore();
        for (key, copy) in self.keys.iter().zip(&copies) {
            pipeline.cmd("COPY").arg(key).arg(copy).ignore();
        }
        pipeline.query::<()>(&mut self.connection).unwrap();
        copies
    }

    fn raw_of(&mut self, keys: &[String; 5]) -> Value {
        let mut pipeline = redis::pipe();
        pipeline.cmd("HGETALL").arg(&keys[0]);
        for key in &keys[1..3] {
            pipeline.cmd("GET").arg(key);
        }
        for key in &keys[3..5] {
            pipeline
                .cmd("ZRANGE")
                .arg(key)
                .arg(0)
                .arg(-1)
                .arg("WITHSCORES");
        }
        pipeline.query(&mut self.connection).unwrap()
    }

    pub(crate) fn compare(&mut self) {
        assert_eq!(self.state(), self.modelled(), "keys, then model");
    }

    /// What the keys would hold if they were the model's.
    fn modelled(&self) -> State {
        State {
            limit: self.model.limit.map(|limit: StoredLimit| {
                wire::limit_fields(&limit).map(|field| field.as_ref().to_vec())
            }),
            value: self.model.value,
            log: (self.model.log.entries())
                .map(|entry| (entry.score, entry.id.0, entry.permits))
                .collect(),
            others: 0,
        }
    }

    fn state(&mut self) -> State {
        let others = match self.rate_type {
            RateType::Overall => [&self.keys[2], &self.keys[4]],
            RateType::PerClient => [&self.keys[1], &self.keys[3]],
        };
        let mut pipeline = redis::pipe();
        pipeline.cmd("HMGET").arg(&self.keys[0]).arg(&[
            "rate",
            "interval",
            "type",
            "keepAliveTime",
        ]);
        pipeline.cmd("GET").arg(self.value_key());
        pipeline
            .cmd("ZRANGE")
            .arg(self.log_key())
            .arg(&["0", "-1", "WITHSCORES"]);
        pipeline.cmd("EXISTS").arg(&others);
        type Read = ([Option<Vec<u8>>; 4], Option<i64>, Vec<(Vec<u8>, i64)>, i64);
        let (fields, value, log, others): Read = pipeline.query(&mut self.connection).unwrap();
        let [rate, interval, rate_type, keep_alive] = fields;
        State {
            limit: rate.map(|rate| {
                [
                    rate,
                    interval.unwrap(),
                    rate_type.unwrap(),
                    keep_alive.unwrap(),
                ]
            }),
            value,
            log: log
                .into_iter()
                .map(|(member, score)| {
                    let (id, permits) = unpacked(&member);
                    (score, id, permits)
                })
                .collect(),
            others,
        }
    }

    /// With a keep-alive time no key outlives the others, and none dies before its entries.
    fn check_expiry(&mut self, answer: &Answer) {
        if answer.verdict == Verdict::AboveRate && answer.changed == Changed::Nothing {
            return;
        }
        self.check_ttls();
        let limit = self.model.limit.unwrap();
        let ttls = self.ttls();
        if limit.keep_alive > 0 {
            assert!(!ttls.contains(&-1), "one key outlives the others: {ttls:?}");
        }
    }

    pub(crate) fn check_ttls(&mut self) {
        let limit = self.model.limit.unwrap();
        let [hash, value, log] = self.ttls();
        if limit.keep_alive == 0 {
            for ttl in [hash, value, log] {
                assert!(matches!(ttl, -2 | -1), "{ttl}");
            }
            return;
        }
        let least = limit.interval + ahead_of(limit.interval);
        for ttl in [hash, value, log] {
            // None where these tests have written a key.
            assert!(ttl < 0 || ttl >= least, "{ttl}");
        }
    }
}
