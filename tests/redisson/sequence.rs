//! Drives Java and Rust through a case in turn. Each step of Rust is done by Redisson, too, on a
//! copy of the keys: answers and keys differ where Rust deviates alone.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
};

use redis::{Connection, RedisResult, Value};

use super::{
    case::{Actor, Case, Op, Step},
    deviations::{self, Asked, Deviation, Tally},
    java_side,
    model::{Caller, Generation, Reply, State},
    oracle::{JavaClock, Oracle},
    raw,
    rust_side::{self, RustSide},
};
use kit::{
    RedisServer,
    monitor::{Feed, Seen},
    random::shrink,
    unique,
};

/// The second of January 2024, UTC.
const BEGINNING: i64 = 1_704_153_600_000;

/// The instance of the newest Redisson that does what Rust does.
const REFERENCE: usize = 2;

/// All that the cases of a run share.
pub struct Stage {
    server: RedisServer,
    connection: Connection,
    feed: Feed,
    oracles: Vec<Oracle>,
    generations: Vec<Generation>,
    /// Client ids of the two instances of each version
    java_ids: Vec<[String; 2]>,
    /// Which version is the newest, and the client id of the instance that does what Rust does
    reference: (usize, String),
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
        let generations: Vec<_> = versions.iter().map(|it| Generation::of(it)).collect();
        let mut newest = generations.iter();
        let newest = newest.position(|it| *it == Generation::KeepsAlive);
        let newest = newest.expect("a version that can do all that Rust does");
        let id = java_side::client_id(&mut oracles[newest], REFERENCE);
        Self {
            connection: raw::connect(&server.url()),
            feed: Feed::open(&server),
            generations,
            reference: (newest, id),
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

    /// Runs a case; the state of its keys is gone afterwards. A failure says in which step, and
    /// how.
    fn run(&mut self, case: &Case) -> Result<(), (usize, String)> {
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
            play.step(step).map_err(|what| (number, what))?;
            play.stage.steps += 1;
            if case.is_peer {
                play.peer_is_well(step).map_err(|what| (number, what))?;
            }
        }
        Ok(())
    }

    /// Runs a case and fails with what went wrong: the shortest sequence that does, and how to see
    /// it again.
    pub fn must_pass(&mut self, case: &Case) {
        if let Err(failure) = self.run(case) {
            let of = |steps: Vec<Step>| Case {
                steps,
                ..case.clone()
            };
            let play = |fewer: &[Step]| self.run(&of(fewer.to_vec()));
            let (steps, (step, what)) = shrink(case.steps.clone(), failure, play);
            panic!(
                "after {} steps: {what}\nin step {step} of\n{:?}\nagain: TOWER_RATELIMIT_SEED={} TOWER_RATELIMIT_STEPS=1",
                self.steps,
                of(steps),
                case.seed
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
            return self.look();
        };
        for n in 0..count {
            let at = step.at + n;
            let op = Op::Demand(1);
            self.single(&Step { at, op, ..*step })?;
        }
        self.look()
    }

    fn single(&mut self, step: &Step) -> Result<(), String> {
        let number = match step.actor {
            Actor::Java(instance) => instance,
            Actor::Rust(instance) => 2 + instance,
            Actor::Redis => {
                self.lose(step);
                return Ok(());
            }
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

        let reply = if let Actor::Java(instance) = step.actor {
            if let Some(sent) = &resent {
                java_side::raw_reply(self.resend(sent))
            } else {
                let oracle = &mut self.stage.oracles[self.case.versions[instance]];
                java_side::perform(oracle, instance, &self.names, on, caller.now, &step.op)
            }
        } else {
            let as_java = self.by_java(on, &caller, &step.op, permits)?;
            let reply = if let Some(sent) = &resent {
                rust_side::raw_reply(&self.resend(sent))
            } else {
                let step = Step { on, ..step.clone() };
                let rust = self.stage.rust(&caller.client);
                rust.perform(self.case, &self.names, &step, caller.now)
            };
            let asked = Asked {
                before: &self.world[on],
                caller: &caller,
                op: &step.op,
                permits,
                in_slots: self.case.slots.is_some(),
            };
            let at_work = asked.deviations(&reply);
            self.explain(&reply, as_java, &at_work)?;
            reply
        };
        if matches!(step.op, Op::Demand(_)) && reply != Reply::NoPermits {
            if reply == Reply::Granted {
                self.granted[number] = Some((on, permits));
            }
            let is_known = self.case.slots.is_none() || number < 2;
            if let Some(sent) = is_known.then(|| self.last_sent(on, caller.now, permits)) {
                self.sent[number] = sent.or(self.sent[number].take());
            }
        }
        self.last_reply = Some(reply);
        Ok(())
    }

    /// Has Redisson do on copies of the keys what Rust is about to do. Returns its reply, and what
    /// the copies hold then, as if they were Rust's.
    fn by_java(
        &mut self,
        on: usize,
        caller: &Caller,
        op: &Op,
        permits: i64,
    ) -> Result<(Reply, [State; 2]), String> {
        // Redisson has no receipts.
        if matches!(op, Op::Settle(_)) {
            return Ok((Reply::Done, self.world.clone()));
        }
        let copies = [0, 1].map(|_| unique("copy"));
        let (newest, reference) = self.stage.reference.clone();
        let mut own = self.clients();
        own.retain(|client| *client != caller.client);
        own.push(caller.client.clone());
        let mut others = own.clone();
        *others.last_mut().expect("the caller") = reference.clone();
        let mut copying = redis::pipe();
        for (name, copy) in self.names.iter().zip(&copies) {
            copying.cmd("COPY").arg(name).arg(copy).ignore();
            for (own, other) in own.iter().zip(&others) {
                for suffix in ["value", "permits"] {
                    let from = raw::companion(name, suffix, own);
                    let to = raw::companion(copy, suffix, other);
                    copying.cmd("COPY").arg(from).arg(to).ignore();
                }
            }
        }
        let () = copying.query(&mut self.stage.connection).unwrap();
        let op = match op {
            Op::Resend => &Op::Demand(permits),
            op => op,
        };
        let oracle = &mut self.stage.oracles[newest];
        let reply = java_side::perform(oracle, REFERENCE, &copies, on, caller.now, op);
        let connection = &mut self.stage.connection;
        let mut read = |copy: &String| {
            let mut state = raw::state(connection, copy, &others)?;
            let of_caller = state.pairs.remove(&reference).expect("it is read");
            state.pairs.insert(caller.client.clone(), of_caller);
            Ok::<_, String>(state)
        };
        let states = [read(&copies[0])?, read(&copies[1])?];
        let mut removing = redis::cmd("DEL");
        for copy in &copies {
            removing.arg(copy);
            for (client, suffix) in others
                .iter()
                .flat_map(|it| [(it, "value"), (it, "permits")])
            {
                removing.arg(raw::companion(copy, suffix, client));
            }
        }
        removing.exec(connection).unwrap();
        Ok((reply, states))
    }

    /// Goes on from what Rust has left. It may differ from what Redisson has said and left only in
    /// what these deviations may change.
    fn explain(
        &mut self,
        reply: &Reply,
        (said, mut left): (Reply, [State; 2]),
        at_work: &BTreeSet<Deviation>,
    ) -> Result<(), String> {
        let found = self.read()?;
        let before = mem::replace(&mut self.world, found);
        for (place, left) in left.iter_mut().enumerate() {
            left.learn(&before[place], &self.world[place]);
        }
        let differences = deviations::differences((reply, &self.world), (&said, &left));
        let unexplained = deviations::unexplained(&differences, at_work);
        if !unexplained.is_empty() {
            return Err(format!(
                "Rust differs from Redisson in {unexplained:?}, which no deviation explains \
                 (at work: {at_work:?})\n  Rust: {reply:?} {:?}\n  Redisson: {said:?} {left:?}",
                self.world
            ));
        }
        self.stage.tally.count(&differences, at_work);
        Ok(())
    }

    /// Whose keys there may be: everybody's, which have no id, and each client's.
    fn clients(&self) -> Vec<String> {
        let mut clients = vec![String::new()];
        clients.extend(self.clients.iter().take(3).cloned());
        clients
    }

    /// What the keys of both names hold.
    fn read(&mut self) -> Result<[State; 2], String> {
        let clients = self.clients();
        let mut read = |name: &String| raw::state(&mut self.stage.connection, name, &clients);
        Ok([read(&self.names[0])?, read(&self.names[1])?])
    }

    /// There are no keys but those that are read.
    fn look(&mut self) -> Result<(), String> {
        self.world = self.read()?;
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query(&mut self.stage.connection)
            .unwrap();
        let known: usize = self.world.iter().map(State::keys).sum();
        if keys.len() != known {
            return Err(format!("{:?} have not all of {keys:?}", self.world));
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
    fn lose(&mut self, step: &Step) {
        let (suffix, own) = match step.op {
            Op::Idle => return raw::idle(&mut self.stage.connection),
            Op::LoseValue(own) => ("value", own),
            Op::LoseLog(own) => ("permits", own),
            _ => unreachable!("no other step is the server's"),
        };
        let client = if own { &*self.clients[0] } else { "" };
        let key = raw::companion(&self.names[step.on], suffix, client);
        let mut removing = redis::cmd("DEL");
        removing.arg(key);
        removing.exec(&mut self.stage.connection).unwrap();
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

    fn resend(&mut self, sent: &Sent) -> RedisResult<Value> {
        let mut command = redis::Cmd::new();
        for argument in &sent.arguments {
            command.arg(argument.as_slice());
        }
        command.query(&mut self.stage.connection)
    }
}
