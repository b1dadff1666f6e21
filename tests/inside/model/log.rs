//! A sliding log in Redis and as a [`Limiter`]: its entries, how long its keys live, and its two
//! scripts for a lone caller.

use std::ops::RangeInclusive;

use redis::{Arg, ToRedisArgs};

use super::{
    members::{packed, unpacked},
    *,
};
use crate::{
    algorithm::{limiter::Counter as _, sliding_log::Log},
    store::redis::redisson::sliding_log::{self, ACQUIRE, ACQUIRE_LIST},
    values::limit::{Slots, ahead_of},
};

/// Times around which something happens with the intervals below.
const MOVES: [i64; 16] = [
    0, 1, 1, 3, 7, 50, 99, 100, 101, 900, 999, 1000, 1001, 3000, -1, -40,
];

impl Kind for LimiterState<SlidingLog> {
    const ALGORITHM: Algorithm = Algorithm::SlidingLog;
    const RATES: &'static [u64] = &[5, 5, 5, 5, 5, 5, 1, 3, 10];
    const INTERVALS: &'static [u64] = &[1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 100, 3000];
    const MANY: u32 = 30;

    fn moves() -> BoxedStrategy<i64> {
        proptest::sample::select(&MOVES[..]).boxed()
    }

    fn new(_rate_type: RateType) -> Self {
        Self::default()
    }

    fn limit(&self) -> Option<StoredLimit> {
        self.limit
    }

    fn verb<T>(&mut self, verb: impl FnOnce(&mut LimiterState) -> T) -> T {
        verb(self)
    }

    fn lose(&mut self, key: Key) {
        match key {
            Key::Limit => self.limit = None,
            Key::Value => self.state.value = None,
            Key::Log => self.state.log.clear(),
        }
    }

    fn compare(pair: &mut Pair) {
        assert_eq!(pair.state(), pair.modelled(), "keys, then model");
    }

    /// Sets all scores back.
    fn set_back(pair: &mut Pair, by: i64) {
        let mut moved = Log::default();
        let log = pair.log_key();
        let scores: Vec<(Vec<u8>, i64)> = pair.ask(&["ZRANGE", &log, "0", "-1", "WITHSCORES"]);
        for (member, score) in scores {
            pair.add_member(score - by, &member);
        }
        for entry in pair.model.state.log.entries() {
            moved.insert(Entry {
                score: entry.score - by,
                ..*entry
            });
        }
        pair.model.state.log = moved;
    }

    fn acquire(pair: &mut Pair, run: &[(Sent, bool)], how: How) {
        let _ = pair.send_run(run, how);
    }

    /// Settles one of all that were sent, also if it was refused or is lost by now, or one of those
    /// that were granted in slots.
    fn settle(pair: &mut Pair, which: Index, keep: u32, limit: LimitSource) {
        let place = which.index(pair.sent.len() + pair.granted.len());
        let Some(sent) = pair.sent.get(place).copied() else {
            let granted = pair.granted[place - pair.sent.len()];
            let _ = slots::settle(pair, granted, keep, limit);
            return;
        };
        if pair.settle(sent, keep, limit).is_ok() {
            let again = pair.settle(sent, keep, limit);
            // By the server's clock its interval may be over meanwhile, and a charge counts once
            // more.
            let is_over = keep > sent.permits && pair.clock == Clock::Server;
            assert!(is_over || again == Ok(0), "settled twice: {again:?}");
        } else {
            assert!(keep > sent.permits, "giving back never fails");
        }
    }

    fn give_back_unsent(pair: &mut Pair) {
        let unsent = pair.unsent(2);
        assert!(!pair.give_back(unsent));
    }

    /// Half of them agree by the number of entries, whatever these hold.
    fn drift(pair: &mut Pair, value: i64) {
        let entries = i64::try_from(pair.model.state.log.entries().count()).unwrap();
        let rate = pair.model.limit.map(|limit| limit.rate);
        let by_chance = rate.filter(|_| value % 2 == 0).map(|rate| rate - entries);
        pair.set_value(by_chance.unwrap_or(value));
    }

    fn plant(pair: &mut Pair, plant: Plant) {
        let score = pair.now() - plant.age;
        for _ in 0..plant.number {
            pair.plant(plant.generation, score, plant.permits);
        }
        if let (true, Some(value)) = (plant.counted, pair.model.state.value) {
            pair.set_value(value - i64::from(plant.permits));
        }
    }

    fn note_in(pair: &mut Pair, slots: Option<u32>) {
        let new = |slots| Slots::try_new(slots, "model", true, std::iter::empty()).unwrap();
        let slots = slots.map(new);
        pair.counting.slots = slots;
        pair.model.state.count_by(pair.counting);
    }
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
        Self::of_kind(rate_type, clock)
    }

    /// By a given clock, and without a limit.
    pub(crate) fn overall() -> Self {
        Self::new(RateType::Overall, Clock::Given(START))
    }

    /// The same with so many permits in 1000 ms.
    pub(crate) fn with_rate(rate: u64) -> Self {
        let mut pair = Self::overall();
        assert!(pair.try_set_rate(pair.limit(rate, 1000)));
        pair
    }

    pub(crate) fn through(mut self, lone: Lone) -> Self {
        self.lone = lone;
        self
    }

    /// Sends an acquire that was not sent before.
    pub(crate) fn acquire(&mut self, permits: u32, how: How) -> Result<Answer, ErrorKind> {
        let sent = self.unsent(permits);
        self.sent.push(sent);
        self.send(sent, how)
    }

    pub(crate) fn send(&mut self, sent: Sent, how: How) -> Result<Answer, ErrorKind> {
        let answers = self.send_run(&[(sent, false)], how);
        answers.map(|answers| answers[0].clone())
    }

    /// The answers to callers, by any script.
    fn read(
        &self,
        reply: &Value,
        run: &[(Sent, bool)],
        how: How,
    ) -> Result<Vec<Answer>, ErrorKind> {
        let run = self.acquires(run, how);
        let answers = sliding_log::brief_answers(reply, &run, self.asks(how.exact));
        Ok(answers.map_err(|error| error.kind())?.to_vec())
    }

    /// The call of the cheaper script for callers with equal demands.
    pub(crate) fn brief_command(&self, run: &[(Sent, bool)], how: How) -> Option<Cmd> {
        let (demands, asks) = (self.acquires(run, how), self.asks(how.exact));
        let limiters = [(demands[0].first(), how.rewrite)];
        let brief = (self.scripts().brief)(&demands, &limiters, asks);
        brief.map(|(call, _)| call.command)
    }

    /// The calls of either script for a lone caller.
    pub(crate) fn commands(&self, sent: Sent, how: How) -> [(&'static Script, Cmd); 2] {
        let run = [(sent, false)];
        let brief = self.brief_command(&run, how).unwrap();
        [
            (&ACQUIRE, brief),
            (&ACQUIRE_LIST, self.run_command(&run, how)),
        ]
    }

    /// Sends a call of several callers; each with whether it waits in line.
    pub(crate) fn send_run(
        &mut self,
        run: &[(Sent, bool)],
        how: How,
    ) -> Result<Vec<Answer>, ErrorKind> {
        let general = (self.scripts().acquire, self.run_command(run, how));
        let brief = self.brief_command(run, how).map(|it| (&ACQUIRE, it));
        let (own, other) = match (self.lone, brief) {
            (Lone::Own, Some(brief)) => (brief, Some(general)),
            (Lone::Run, brief) | (_, brief @ None) => (general, brief),
        };
        let copy = other.filter(|_| matches!(self.clock, Clock::Given(_)));
        let copy = copy.map(|(script, command)| {
            let copies = self.copies();
            (
                copies.clone(),
                self.call(script, &on(&command, &self.keys, &copies))
                    .unwrap(),
            )
        });
        let (script, command) = own;
        let since = self.now();
        let reply = self.call(script, &command).unwrap();
        let until = self.now();
        let answers = self.read(&reply, run, how);
        if let Some((copies, replied)) = copy {
            assert_eq!(answers, self.read(&replied, run, how), "by either script");
            assert_eq!(self.raw(), self.raw_of(&copies), "keys after either script");
        }
        self.replied(answers, run, how, since..=until)
    }

    /// Takes permits that must be granted.
    #[track_caller]
    pub(crate) fn grants(&mut self, permits: u32, how: How) -> Answer {
        let answer = self.acquire(permits, how).unwrap();
        assert_eq!(answer.verdict, Verdict::Granted, "{answer:?}");
        answer
    }

    /// Asks for permits that must be refused; for how long.
    #[track_caller]
    pub(crate) fn refuses(&mut self, permits: u32, how: How) -> i64 {
        let answer = self.acquire(permits, how).unwrap();
        assert_eq!(answer.verdict, Verdict::Refused, "{answer:?}");
        answer.wait
    }

    /// Has the model answer the same, and compares. Where the reply does not tell its time, there
    /// must be one `within` the call at which the model answers so.
    fn replied(
        &mut self,
        replied: Result<Vec<Answer>, ErrorKind>,
        run: &[(Sent, bool)],
        how: How,
        within: RangeInclusive<i64>,
    ) -> Result<Vec<Answer>, ErrorKind> {
        let stated = replied.as_ref().map_or(0, |answers| answers[0].now.tick);
        let within = if stated == 0 { within } else { stated..=stated };
        let demands = self.acquires(run, self.of_model(how));
        let (state, before) = (self.state(), self.model.clone());
        let until = *within.end();
        for now in within {
            self.model = before.clone();
            let instant = self.instant(now);
            let mut expected = decide(&mut self.model, &demands, instant);
            for answer in expected.iter_mut().flatten() {
                answer.now = Now::millis(answer.now.tick.min(stated));
            }
            if now == until || (&replied, &state) == (&expected, &self.modelled()) {
                assert_eq!(replied, expected, "{how:?} {run:?}");
                break;
            }
        }
        self.compare();
        if let Ok(answers) = &replied {
            self.check_expiry(&answers[0]);
            let granted = answers.iter().zip(run);
            let granted = granted.filter(|(answer, _)| answer.verdict == Verdict::Granted);
            let slots = self.counting.slots();
            self.granted
                .extend(granted.filter_map(|(answer, (sent, _))| {
                    let end = slots?.end(answer.now.tick, answer.interval);
                    Some((*sent, Taken::Slot(end)))
                }));
        }
        replied
    }

    pub(crate) fn set_value(&mut self, value: i64) {
        self.command(&["SET", &self.value_key(), &value.to_string()]);
        self.model.state.value = Some(value);
    }

    /// Puts a grant into the log that no acquire of ours made.
    pub(crate) fn plant(&mut self, generation: Generation, score: i64, permits: u32) -> Sent {
        let id = self.new_id();
        let (id, member) = packed(generation, id, self.last_id(), permits);
        self.add_member(score, &member);
        // As every Redisson does since 3.17.3, the first to pass on a life.
        let life: i64 = self.ask(&["PTTL", &self.keys[0].clone()]);
        if life > 0 {
            let (value, log) = (self.value_key(), self.log_key());
            self.command(&["PEXPIRE", &value, &life.to_string()]);
            self.command(&["PEXPIRE", &log, &life.to_string()]);
        }
        self.model.state.log.insert(Entry { score, permits, id });
        Sent {
            id,
            permits,
            lead: 0,
        }
    }

    /// How many were added: none, if it is there.
    pub(crate) fn add_member(&mut self, score: i64, member: &[u8]) -> i64 {
        let mut zadd = redis::cmd("ZADD");
        zadd.arg(self.log_key()).arg(score).arg(member);
        zadd.query(self.connection()).unwrap()
    }

    /// The keys as they stand, raw.
    pub(crate) fn raw(&mut self) -> Value {
        let keys = self.keys.clone();
        self.raw_of(&keys)
    }

    /// Copies of the keys, with their lives, under another name.
    fn copies(&mut self) -> [String; 5] {
        let name = Name::exact(&format!("{}.copy", self.name.as_str())).unwrap();
        let copies = redisson::keys(&name, CLIENT);
        let mut pipeline = redis::pipe();
        pipeline.cmd("DEL").arg(&copies).ignore();
        for (key, copy) in self.keys.iter().zip(&copies) {
            pipeline.cmd("COPY").arg(key).arg(copy).ignore();
        }
        pipeline.query::<()>(self.connection()).unwrap();
        copies
    }

    fn raw_of(&mut self, keys: &[String; 5]) -> Value {
        let mut pipeline = redis::pipe();
        pipeline.cmd("HGETALL").arg(&keys[0]);
        for key in &keys[1..3] {
            pipeline.cmd("GET").arg(key);
        }
        for key in &keys[3..5] {
            let range = ["0", "-1", "WITHSCORES"];
            pipeline.cmd("ZRANGE").arg(key).arg(&range);
        }
        pipeline.query(self.connection()).unwrap()
    }

    /// What the keys would hold if they were the model's.
    fn modelled(&self) -> State {
        State {
            limit: self.model.limit.map(|limit: StoredLimit| {
                (redisson::format::fields(&limit).to_redis_args())
                    .try_into()
                    .unwrap()
            }),
            value: self.model.state.value,
            log: (self.model.state.log.entries())
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
        let fields = ["rate", "interval", "type", "keepAliveTime"];
        pipeline.cmd("HMGET").arg(&self.keys[0]).arg(&fields);
        pipeline.cmd("GET").arg(self.value_key());
        let range = ["0", "-1", "WITHSCORES"];
        pipeline.cmd("ZRANGE").arg(self.log_key()).arg(&range);
        pipeline.cmd("EXISTS").arg(&others);
        type Read = ([Option<Vec<u8>>; 4], Option<i64>, Vec<(Vec<u8>, i64)>, i64);
        let (fields, value, log, others): Read = pipeline.query(self.connection()).unwrap();
        let [rate, interval, rate_type, keep_alive] = fields;
        State {
            limit: rate.map(|rate| {
                let others = [interval, rate_type, keep_alive].map(Option::unwrap);
                let [interval, rate_type, keep_alive] = others;
                [rate, interval, rate_type, keep_alive]
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

/// The same command on other keys in place of its own.
fn on(command: &Cmd, own: &[String; 5], others: &[String; 5]) -> Cmd {
    let mut copy = Cmd::new();
    for argument in command.args_iter() {
        let Arg::Simple(bytes) = argument else {
            panic!("{command:?}");
        };
        let place = own.iter().position(|key| key.as_bytes() == bytes);
        copy.arg(place.map_or(bytes, |place| others[place].as_bytes()));
    }
    copy
}
