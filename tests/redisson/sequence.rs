//! Drives Java and Rust through a case in turn and holds answers and keys against the model after
//! each step: Java's are as foreseen, and Rust's differ from Redisson's where it deviates alone.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
};

use redis::{Connection, Value};

use super::{
    case::{Actor, Case, Op, Step},
    deviations::{self, Asked, Deviation, Tally},
    foresee::foresee,
    java_side,
    model::{Caller, Generation, Outcome, Reply, State},
    oracle::{JavaClock, Oracle},
    raw,
    rust_side::RustSide,
};
use kit::{
    RedisServer,
    monitor::{Feed, Seen},
    unique,
};

/// The second of January 2024, UTC.
const BEGINNING: i64 = 1_704_153_600_000;

/// All that the cases of a run share.
pub struct Stage {
    server: RedisServer,
    connection: Connection,
    feed: Feed,
    oracles: Vec<Oracle>,
    generations: Vec<Generation>,
    /// Client ids of the two instances of each version
    java_ids: Vec<[String; 2]>,
    /// Rust actors by client id
    rust: HashMap<String, RustSide>,
    marks: u64,
    pub tally: Tally,
    /// Steps so far
    pub steps: u64,
}

/// What an actor last sent to take permits.
#[derive(Clone)]
struct Sent {
    arguments: Vec<Vec<u8>>,
    on: usize,
    now: i64,
    permits: i64,
    member: Vec<u8>,
}

/// Where a case went wrong, and how.
#[derive(Debug)]
pub struct Failure {
    pub step: usize,
    pub what: String,
}

impl Stage {
    pub fn new(versions: &[String]) -> Self {
        let server = RedisServer::start();
        let mut oracles: Vec<_> = versions
            .iter()
            .map(|version| Oracle::start(version, server.port(), JavaClock::Fake))
            .collect();
        let java_ids = oracles
            .iter_mut()
            .map(|oracle| [0, 1].map(|c| java_side::client_id(oracle, c)))
            .collect();
        Self {
            connection: raw::connect(&server.url()),
            feed: Feed::open(&server),
            generations: versions
                .iter()
                .map(|version| Generation::of(version))
                .collect(),
            oracles,
            java_ids,
            rust: HashMap::new(),
            marks: 0,
            tally: Tally::default(),
            steps: 0,
            server,
        }
    }

    pub fn generations(&self) -> &[Generation] {
        &self.generations
    }

    /// Runs a case; the state of its keys is gone afterwards.
    pub fn run(&mut self, case: &Case) -> Result<(), Failure> {
        redis::cmd("FLUSHDB").exec(&mut self.connection).unwrap();
        self.monitor_until_now();
        let (before, behind) = case.names;
        let names = [0, 1].map(|_| format!("{before}{}{behind}", unique("x")));
        let java = [0, 1].map(|instance| self.java_ids[case.versions[instance]][instance].clone());
        let rust = ["rust-0".to_owned(), java[0].clone()];
        let mut play = Play {
            stage: self,
            case,
            names,
            clients: [
                java[0].clone(),
                java[1].clone(),
                rust[0].clone(),
                rust[1].clone(),
            ],
            world: Default::default(),
            sent: Default::default(),
            granted: Default::default(),
            last_reply: None,
        };
        for (number, step) in case.steps.iter().enumerate() {
            play.step(step)
                .map_err(|what| Failure { step: number, what })?;
            play.stage.steps += 1;
            if case.is_peer {
                play.peer_is_well(step)
                    .map_err(|what| Failure { step: number, what })?;
            }
        }
        Ok(())
    }

    /// Runs a case and fails with what went wrong: the shortest sequence that does, and how to see
    /// it again.
    pub fn must_pass(&mut self, case: &Case) {
        if let Err(failure) = self.run(case) {
            let (case, failure) = shrink(self, case.clone(), failure);
            panic!(
                "after {} steps: {}\nin step {} of\n{case:?}\nagain: TOWER_RATELIMIT_SEED={} TOWER_RATELIMIT_STEPS=1",
                self.steps, failure.what, failure.step, case.seed
            );
        }
    }

    fn monitor_until_now(&mut self) -> Vec<Seen> {
        self.marks += 1;
        let mark = format!("mark {}", self.marks);
        redis::cmd("ECHO")
            .arg(&mark)
            .exec(&mut self.connection)
            .unwrap();
        self.feed.until(&mark)
    }

    fn rust(&mut self, client: &str) -> &mut RustSide {
        let url = self.server.url();
        self.rust
            .entry(client.to_owned())
            .or_insert_with(|| RustSide::new(&url, client))
    }
}

/// One case under way.
struct Play<'a> {
    stage: &'a mut Stage,
    case: &'a Case,
    names: [String; 2],
    /// Of Java 0 and 1 and Rust 0 and 1
    clients: [String; 4],
    world: [State; 2],
    sent: [Option<Sent>; 4],
    /// The name that each took of last, and how many permits
    granted: [Option<(usize, i64)>; 4],
    last_reply: Option<Reply>,
}

impl Play<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let Op::Burst(count) = step.op else {
            self.single(step)?;
            return self.compare();
        };
        for n in 0..count {
            let at = step.at + n;
            let op = Op::Demand(1);
            self.single(&Step { at, op, ..*step })?;
        }
        self.compare()
    }

    fn single(&mut self, step: &Step) -> Result<(), String> {
        let number = match step.actor {
            Actor::Java(instance) => instance,
            Actor::Rust(instance) => 2 + instance,
            Actor::Redis => return self.lose(step),
        };
        let resent = match &step.op {
            Op::Resend => match self.sent[number].clone() {
                None => return Ok(()),
                resent => resent,
            },
            _ => None,
        };
        let (on, permits) = match (&resent, &step.op) {
            (Some(sent), _) => (sent.on, sent.permits),
            (None, Op::Demand(permits)) => (step.on, *permits),
            (None, Op::Settle(keep)) => match self.granted[number] {
                Some((on, permits)) if permits != *keep => (on, permits),
                _ => return Ok(()),
            },
            _ => (step.on, 0),
        };
        let caller = Caller {
            client: self.clients[number].clone(),
            now: resent
                .as_ref()
                .map_or(BEGINNING + step.at + self.case.skews[number], |sent| {
                    sent.now
                }),
            member: resent.as_ref().map(|sent| sent.member.clone()),
        };

        // What Redisson would do, before it happens.
        let generation = match step.actor {
            Actor::Java(instance) => self.stage.generations[self.case.versions[instance]],
            _ => Generation::KeepsAlive,
        };
        let before = self.world[on].clone();
        let foreseen = foresee(&mut self.world, on, generation, &caller, &step.op, permits);

        let real = match (&resent, step.actor) {
            (Some(sent), actor) => self.resend(sent, matches!(actor, Actor::Java(_))),
            (None, Actor::Java(instance)) => {
                let oracle = &mut self.stage.oracles[self.case.versions[instance]];
                java_side::perform(oracle, instance, &self.names, on, caller.now, &step.op)
            }
            (None, _) => {
                let (step, rust) = (
                    &Step { on, ..step.clone() },
                    self.stage.rust(&caller.client),
                );
                rust.perform(self.case, &self.names, step, caller.now)
            }
        };
        self.last_reply = Some(real.reply.clone());
        if matches!(step.actor, Actor::Rust(_)) {
            let asked = Asked {
                before: &before,
                caller: &caller,
                op: &step.op,
                permits,
                in_slots: self.case.slots.is_some(),
            };
            self.explain((&real, &foreseen), &asked.deviations(&real.reply))?;
        } else if !real.agrees_with(&foreseen) {
            return Err(format!("answer: foreseen {foreseen:?}, got {real:?}"));
        }
        if matches!(step.op, Op::Demand(_)) && real.reply != Reply::NoPermits {
            if real.reply == Reply::Granted {
                self.granted[number] = Some((on, permits));
            }
            let is_known = self.case.slots.is_none() || number < 2;
            if let Some(sent) = is_known.then(|| self.last_sent(on, caller.now, permits)) {
                self.sent[number] = sent.or(self.sent[number].take());
            }
        }
        Ok(())
    }

    /// Goes on from what Rust has left. It may differ from what Redisson would have said and left
    /// only in what these deviations may change.
    fn explain(
        &mut self,
        (real, foreseen): (&Outcome, &Outcome),
        at_work: &BTreeSet<Deviation>,
    ) -> Result<(), String> {
        let found = self.read()?;
        let mut as_java = mem::replace(&mut self.world, found);
        for (foreseen, found) in as_java.iter_mut().zip(&self.world) {
            raw::learn(foreseen, found);
        }
        let differences = deviations::differences((real, &self.world), (foreseen, &as_java));
        let unexplained = deviations::unexplained(&differences, at_work);
        if !unexplained.is_empty() {
            return Err(format!(
                "Rust differs from Redisson in {unexplained:?}, which no deviation explains \
                 (at work: {at_work:?})\n  Rust: {real:?} {:?}\n  Redisson: {foreseen:?} {as_java:?}",
                self.world
            ));
        }
        self.stage.tally.count(&differences, at_work);
        Ok(())
    }

    /// What the keys of both names hold.
    fn read(&mut self) -> Result<[State; 2], String> {
        let mut clients = vec![String::new()];
        clients.extend(self.clients.iter().take(3).cloned());
        let mut read = |name: &String| raw::state(&mut self.stage.connection, name, &clients);
        Ok([read(&self.names[0])?, read(&self.names[1])?])
    }

    fn compare(&mut self) -> Result<(), String> {
        let (found, mut keys) = (self.read()?, 0);
        for (model, real) in self.world.iter_mut().zip(found) {
            raw::compare(model, real)?;
            keys += model.keys();
        }
        let found: usize = redis::cmd("DBSIZE")
            .query(&mut self.stage.connection)
            .unwrap();
        if found != keys {
            let all: Vec<String> = redis::cmd("KEYS")
                .arg("*")
                .query(&mut self.stage.connection)
                .unwrap();
            return Err(format!("foreseen {keys} keys, found {all:?}"));
        }
        Ok(())
    }

    /// The promise to a Java peer that does nothing but take permits, whatever Rust does beside it.
    fn peer_is_well(&self, step: &Step) -> Result<(), String> {
        if self.last_reply == Some(Reply::NilArithmetic) {
            return Err(format!("Redisson throws: {step:?}"));
        }
        let state = &self.world[0];
        let books = state.limit.as_ref().zip(state.pairs.get(""));
        match books.and_then(|(limit, pair)| Some((limit.rate, pair.value? + pair.sum()))) {
            Some((rate, books)) if rate != books => {
                Err(format!("permits left and in use are {books}, not {rate}"))
            }
            _ => Ok(()),
        }
    }

    /// The key that a step makes the server lose.
    fn lose(&mut self, step: &Step) -> Result<(), String> {
        let (suffix, own) = match step.op {
            Op::Idle => {
                raw::idle(&mut self.stage.connection);
                self.world.iter_mut().for_each(State::idle);
                return Ok(());
            }
            Op::LoseValue(own) => ("value", own),
            Op::LoseLog(own) => ("permits", own),
            _ => unreachable!("no other step is the server's"),
        };
        let client = if own {
            self.clients[0].clone()
        } else {
            String::new()
        };
        let key = raw::companion(&self.names[step.on], suffix, &client);
        redis::cmd("DEL")
            .arg(key)
            .exec(&mut self.stage.connection)
            .unwrap();
        if let Some(pair) = self.world[step.on].pairs.get_mut(&client) {
            if suffix == "value" {
                pair.value = None;
            } else {
                pair.log.clear();
            }
            pair.tidy();
        }
        Ok(())
    }

    /// The acquire that has just been executed, from MONITOR.
    fn last_sent(&mut self, on: usize, now: i64, permits: i64) -> Option<Sent> {
        let seen = self.stage.monitor_until_now();
        let arguments = seen.into_iter().rfind(Seen::is_script)?.arguments();
        if arguments.get(3).map(Vec::as_slice) != Some(self.names[on].as_bytes()) {
            return None;
        }
        let member = match arguments
            .iter()
            .find(|argument| argument.len() == 21 && argument[0] == 16)
        {
            Some(member) => member.clone(),
            // Java sends the random bytes alone.
            None => [&[16], &arguments[10][..], &(permits as u32).to_le_bytes()].concat(),
        };
        Some(Sent {
            arguments,
            on,
            now,
            permits,
            member,
        })
    }

    fn resend(&mut self, sent: &Sent, java: bool) -> Outcome {
        let mut command = redis::Cmd::new();
        for argument in &sent.arguments {
            command.arg(argument.as_slice());
        }
        let reply = command.query::<Value>(&mut self.stage.connection);
        if java {
            java_side::raw_outcome(reply)
        } else {
            super::rust_side::raw_outcome(&reply)
        }
    }
}

/// Leaves out steps as long as what is left still fails.
fn shrink(stage: &mut Stage, mut case: Case, mut failure: Failure) -> (Case, Failure) {
    case.steps.truncate(failure.step + 1);
    let tally = mem::take(&mut stage.tally);
    let mut size = case.steps.len() / 2;
    while size > 0 {
        let mut from = 0;
        while from < case.steps.len() {
            let mut smaller = case.clone();
            smaller
                .steps
                .drain(from..(from + size).min(case.steps.len()));
            match stage.run(&smaller) {
                Err(still) => {
                    smaller.steps.truncate(still.step + 1);
                    (case, failure) = (smaller, still);
                }
                Ok(()) => from += size,
            }
        }
        size /= 2;
    }
    stage.tally = tally;
    (case, failure)
}
