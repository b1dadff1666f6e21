//! Calls of the limiter `a` by the script and by the twin.

use std::slice::from_ref;

use crate::{
    plan::NAMES,
    twin::{
        Id, Limit,
        call::{Call, Charge, Request, Row, Settled},
        keys::expire,
        log::Log,
        reply::{Group, Outcome},
        state::State,
    },
    world::{World, name},
};

pub struct Play {
    pub world: World,
    /// What the callers' clock says, in ms, if it counts
    pub now: i64,
    commands: u64,
}

impl Play {
    pub fn new() -> Self {
        Self {
            world: World::new(),
            now: 0,
            commands: 0,
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
        let bans = rows.iter().any(|row| matches!(row, Row::Ban(_)));
        let keys = if bans { &[0, NAMES][..] } else { &[0] };
        let reply = self.world.call(&call, keys);
        reply.unwrap_or_else(|it| panic!("{it}")).requests
    }

    /// Returns the id of the first caller of the last call.
    pub fn last(&self) -> Id {
        let command = self.commands.to_le_bytes();
        Id { command, place: 0 }
    }

    /// Returns the id of a caller of the last call.
    pub fn caller(&self, place: i64) -> Id {
        let call = Call {
            command: self.last().command,
            ..Call::default()
        };
        call.id(place)
    }

    pub fn one(&mut self, row: &Row, request: Request) -> Outcome {
        self.call(from_ref(row), &[request]).remove(0)
    }

    /// Asks for so many callers of so many permits each. Returns how many are granted, and how it
    /// stands.
    pub fn ask(&mut self, row: &Row, callers: u8, permits: i64) -> (i64, Group) {
        let outcome = self.one(row, of(callers, 0, Charge::of(1, 1, permits)));
        (granted(&outcome), group(&outcome))
    }

    /// Asks for callers of one permit each. Returns how many are granted.
    pub fn take(&mut self, row: &Row, callers: u8) -> i64 {
        self.ask(row, callers, 1).0
    }

    /// Settles what a caller took at so many permits.
    pub fn settle(&mut self, row: &Row, id: Id, permits: i64, was: i64) -> i64 {
        let mut charge = Charge::of(1, 1, permits);
        let (mark, given) = (0, 0);
        charge.settled = Some(Settled { was, mark, given });
        match self.one(row, again(id, charge)) {
            Outcome::Settled(freed) => freed,
            other => panic!("{other:?}"),
        }
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

/// One of each algorithm
pub fn kinds(rate: i64, interval: i64) -> [Row; 3] {
    let limit = Limit { interval, rate };
    [
        log(&[(rate, interval)]),
        Row::Gcra(limit),
        Row::Window(limit),
    ]
}

pub fn of(callers: u8, flags: u8, charge: Charge) -> Request {
    Request::of(callers, flags, vec![charge])
}

pub fn again(id: Id, charge: Charge) -> Request {
    let mut request = of(1, 0, charge);
    request.resent = Some(id);
    request
}

/// Returns how many callers were granted, and how the limiter stands.
fn decided(outcome: &Outcome) -> (i64, Group) {
    match outcome {
        Outcome::Decided(granted, charges, _) => (*granted, charges[0]),
        other => panic!("{other:?}"),
    }
}

pub fn granted(outcome: &Outcome) -> i64 {
    decided(outcome).0
}

pub fn group(outcome: &Outcome) -> Group {
    decided(outcome).1
}
