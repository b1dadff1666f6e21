//! Calls of the limiter `a`, and of others beside it, by the script and by the twin.

use std::slice::from_ref;

use crate::{
    twin::{
        Id, Limit,
        ban::Terms,
        call::{Banning, Call, Charge, Request, Row, Settled},
        keys::expire,
        log::Log,
        reply::{Group, Outcome, Refusal},
        state::State,
    },
    world::{World, name},
};

/// Calls name all keys: limiters `a`, `b` and `c`, and their bans.
const KEYS: [usize; 6] = [0, 1, 2, 3, 4, 5];

pub struct Play {
    pub world: World,
    commands: u64,
    /// What the callers' clock says, in ms, if it counts
    pub now: i64,
    /// The grants that `ask` has seen: when, in ms, and how many permits
    pub grants: Vec<(i64, i64)>,
}

impl Play {
    pub fn new() -> Self {
        Self {
            world: World::new(),
            commands: 0,
            now: 0,
            grants: Vec::new(),
        }
    }

    pub fn pass(&mut self, ms: i64) {
        self.world.us += 1000 * ms;
    }

    /// Returns the server's time in ms.
    pub fn ms(&self) -> i64 {
        self.world.us / 1000
    }

    pub fn call(&mut self, rows: &[Row], requests: &[Request]) -> Vec<Outcome> {
        self.commands += 1;
        let call = Call {
            command: self.commands.to_le_bytes(),
            now: self.now,
            rows: rows.to_vec(),
            requests: requests.to_vec(),
            ..Call::default()
        };
        let settles = requests[0].charges[0].settled.is_some();
        let keys = if settles { &KEYS[..1] } else { &KEYS };
        let reply = self.world.call(&call, keys);
        reply.unwrap_or_else(|it| panic!("{it}")).requests
    }

    /// Returns the id of the first caller of the last call.
    pub fn last(&self) -> Id {
        let command = self.commands.to_le_bytes();
        Id { command, place: 0 }
    }

    /// Returns the id of a caller of the last call, which had one request by this row.
    pub fn caller(&self, row: &Row, place: i64) -> Id {
        let call = Call {
            command: self.last().command,
            ..Call::default()
        };
        match row {
            Row::Log(_) => call.id(place),
            _ => self.last().plus(place),
        }
    }

    pub fn one(&mut self, rows: &[Row], request: Request) -> Outcome {
        self.call(rows, &[request]).remove(0)
    }

    /// Asks for so many callers of so many permits each. Returns how many are granted, and how it
    /// stands.
    pub fn ask(&mut self, row: &Row, callers: u8, permits: i64) -> (i64, Group) {
        let outcome = self.one(from_ref(row), of(callers, 0, &[charge(1, permits)]));
        let granted = granted(&outcome);
        self.grants.push((self.ms(), granted * permits));
        (granted, group(&outcome, 0))
    }

    /// Asks for callers of one permit each. Returns how many are granted.
    pub fn take(&mut self, row: &Row, callers: u8) -> i64 {
        self.ask(row, callers, 1).0
    }

    /// Settles at so many permits.
    pub fn settle(&mut self, row: &Row, id: Id, permits: i64, settled: Settled) -> i64 {
        let mut charge = charge(1, permits);
        charge.settled = Some(settled);
        match self.one(from_ref(row), again(id, 0, charge)) {
            Outcome::Settled(freed) => freed,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the permits that were granted after an instant.
    pub fn since(&self, instant: i64) -> i64 {
        let live = self.grants.iter().rev();
        let live = live.take_while(|(at, _)| *at > instant);
        live.map(|(_, permits)| permits).sum()
    }

    /// Returns the log, an empty one if there is none.
    pub fn log(&mut self) -> Log {
        expire(&mut self.world.keys, self.world.us / 1000);
        match self.world.keys.get(&name(0)).map(|it| it.state()) {
            Some(Ok(State::Log(log))) => log,
            _ => Log::default(),
        }
    }
}

pub fn log(limits: &[(i64, i64)]) -> Row {
    let limits = limits.iter().copied();
    Row::Log(
        limits
            .map(|(rate, interval)| Limit { interval, rate })
            .collect(),
    )
}

pub fn gcra(rate: i64, interval: i64) -> Row {
    Row::Gcra(Limit { interval, rate })
}

pub fn window(rate: i64, interval: i64) -> Row {
    Row::Window(Limit { interval, rate })
}

/// One of each algorithm
pub fn kinds(rate: i64, interval: i64) -> [Row; 3] {
    let log = log(&[(rate, interval)]);
    [log, gcra(rate, interval), window(rate, interval)]
}

/// A ban of a second after so many refusals in a minute, and of three at most
pub fn terms(after: i64) -> Terms {
    Terms::of([after, 60_000, 1000, 3000])
}

/// Charges a limiter, by the row of the same number.
pub fn charge(key: u8, permits: i64) -> Charge {
    Charge::of(key, key, permits)
}

/// Charges the first limiter, with its ban by the second row.
pub fn with_ban(permits: i64, carried: i64, age: i64) -> Charge {
    let (mut charge, key, row) = (charge(1, permits), 4, 2);
    charge.banning = Some(Banning {
        key,
        row,
        carried,
        age,
    });
    charge
}

pub fn of(callers: u8, flags: u8, charges: &[Charge]) -> Request {
    Request::of(callers, flags, charges.to_vec())
}

pub fn again(id: Id, flags: u8, charge: Charge) -> Request {
    let mut request = of(1, flags, &[charge]);
    request.resent = Some(id);
    request
}

/// Returns how many callers were granted, how the limiters stand, and their bans.
pub fn decided(outcome: &Outcome) -> (i64, &[Group], &[[i64; 3]]) {
    match outcome {
        Outcome::Decided(granted, charges, bans) => (*granted, charges, bans),
        other => panic!("{other:?}"),
    }
}

pub fn granted(outcome: &Outcome) -> i64 {
    decided(outcome).0
}

pub fn group(outcome: &Outcome, place: usize) -> Group {
    decided(outcome).1[place]
}

/// Returns the first ban.
pub fn ban(outcome: &Outcome) -> [i64; 3] {
    decided(outcome).2[0]
}

pub fn wait(group: Group) -> Option<i64> {
    match group.refusal {
        Some(Refusal::Full { wait, .. }) => wait,
        _ => None,
    }
}
