//! The one argument of a call: keys, limits, and what it asks for.

use std::iter;

use super::{Id, Limit, ban::Terms, put, put_id, state, window::Dates};

/// The flags of a request.
pub const WAITS: u8 = 1;
pub const ASKS: u8 = 2;
pub const BANS: u8 = 4;
pub const REPORTS: u8 = 8;
const SETTLES: u8 = 16;

/// A call: requests that are decided in order.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The id of the first caller, from which those of the others are made; a call that is not
    /// lone says it in its request.
    pub command: [u8; 8],
    /// The time in ms; 0 stands for the server's clock.
    pub now: i64,
    /// Set if it is written in the short form: of one caller, key and row.
    pub is_lone: bool,
    /// Set if the reply begins with the time.
    pub tells: bool,
    /// Set if the reply says how many numbers each request has.
    pub counts: bool,
    pub rows: Vec<Row>,
    pub requests: Vec<Request>,
}

/// What a charge counts by, or bans by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// The longest interval first
    Log(Vec<Limit>),
    Gcra(Limit),
    Window(Limit),
    Calendar {
        rate: i64,
        dates: [Dates; 2],
    },
    Ban(Terms),
}

/// Charges that are granted together, for one caller or several.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub callers: u8,
    /// The caller, if it may have come before: it is alone
    pub resent: Option<Id>,
    pub flags: u8,
    pub charges: Vec<Charge>,
}

/// Permits of one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charge {
    /// The place of its key and of its row, from 1 on
    pub key: u8,
    pub row: u8,
    /// Set if it refuses none.
    pub is_shadow: bool,
    pub permits: i64,
    pub banning: Option<Banning>,
    pub ahead: Option<Ahead>,
    /// Set if its request settles what its caller took, and does nothing else.
    pub settled: Option<Settled>,
}

/// The ban of a charge.
#[derive(Clone, Copy, Debug, Default)]
pub struct Banning {
    pub key: u8,
    pub row: u8,
    /// The refusals that are reported, and how many ms ago the first of them was; by hand, for how
    /// long it bans
    pub carried: i64,
    pub age: i64,
}

/// Permits that are fetched ahead, for a time after so many ms.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    pub permits: i64,
    pub lead: i64,
}

/// What a caller took by its receipt: how many permits, and what the grant left behind it. Of GCRA,
/// TAT and what was given back; of windows, the label.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settled {
    pub was: i64,
    pub mark: i64,
    pub given: i64,
}

impl Settled {
    fn put(&self, bytes: &mut Vec<u8>) {
        put(bytes, self.was, 4);
        put(bytes, self.mark, 7);
        put(bytes, self.given, 7);
    }
}

impl Charge {
    pub fn of(key: u8, row: u8, permits: i64) -> Self {
        Self {
            key,
            row,
            permits,
            ..Self::default()
        }
    }
}

impl Request {
    pub fn of(callers: u8, flags: u8, charges: Vec<Charge>) -> Self {
        Self {
            callers,
            resent: None,
            flags,
            charges,
        }
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag > 0
    }

    /// Returns how many ids the call has for it.
    pub fn places(&self) -> i64 {
        let fetches = self.charges.iter().any(|charge| charge.ahead.is_some());
        let is_known = self.resent.is_some() || self.has(ASKS | BANS | REPORTS);
        i64::from(if is_known { 0 } else { self.callers }) + i64::from(fetches)
    }
}

impl Row {
    fn put(&self, bytes: &mut Vec<u8>) {
        let put_limit = |bytes: &mut Vec<u8>, limit: &Limit| {
            put(bytes, limit.interval, 6);
            put(bytes, limit.rate, 7);
        };
        match self {
            Self::Log(limits) => {
                bytes.extend([state::LOG, u8::try_from(limits.len()).unwrap_or(u8::MAX)]);
                limits.iter().for_each(|limit| put_limit(bytes, limit));
            }
            Self::Gcra(limit) => {
                bytes.push(state::GCRA);
                put_limit(bytes, limit);
            }
            Self::Window(limit) => {
                bytes.push(state::WINDOW);
                put_limit(bytes, limit);
            }
            Self::Calendar { rate, dates } => {
                bytes.push(state::CALENDAR);
                put(bytes, *rate, 7);
                let numbers = dates.iter().flat_map(|at| [at.label, at.start, at.end]);
                numbers.for_each(|number| put(bytes, number, 6));
            }
            Self::Ban(terms) => {
                bytes.push(state::BAN);
                put(bytes, terms.after, 4);
                let times = [terms.within, terms.first, terms.longest];
                times.iter().for_each(|time| put(bytes, *time, 6));
            }
        }
    }
}

impl Charge {
    fn put(&self, bytes: &mut Vec<u8>, id_ahead: Id) {
        let flags = u8::from(self.is_shadow)
            + 2 * u8::from(self.banning.is_some())
            + 4 * u8::from(self.ahead.is_some());
        bytes.extend([self.key, self.row, flags]);
        put(bytes, self.permits, 4);
        if let Some(banning) = self.banning {
            bytes.extend([banning.key, banning.row]);
            put(bytes, banning.carried, 4);
            put(bytes, banning.age, 6);
        }
        if let Some(ahead) = self.ahead {
            put(bytes, ahead.permits, 4);
            put(bytes, ahead.lead, 6);
            bytes.extend(id_ahead.command);
        }
        if let Some(settled) = self.settled {
            settled.put(bytes);
        }
    }
}

impl Call {
    /// Returns the id at a place among those of the call.
    pub fn id(&self, place: i64) -> Id {
        let mut command = self.command;
        let others = place.to_le_bytes();
        command
            .iter_mut()
            .rev()
            .zip(others)
            .for_each(|(byte, other)| *byte ^= other);
        Id { command, place: 0 }
    }

    /// Returns what the call settles, if it does nothing else.
    pub fn only_settles(&self) -> Option<(&Charge, Settled)> {
        let [request] = &self.requests[..] else {
            return None;
        };
        let charge = request.charges.first()?;
        let is_short = self.rows.len() == 1 && !self.tells && !self.counts;
        charge.settled.filter(|_| is_short).map(|it| (charge, it))
    }

    fn names_once(&self) -> bool {
        let charges = self.requests.iter().flat_map(|request| &request.charges);
        let bannings = |charge: &Charge| charge.banning.map(|banning| banning.key);
        let mut keys: Vec<_> = charges
            .flat_map(|charge| iter::once(charge.key).chain(bannings(charge)))
            .collect();
        keys.sort_unstable();
        keys.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// Writes the argument.
    pub fn build(&self) -> Vec<u8> {
        if let Some((charge, settled)) = self.only_settles() {
            let id = self.requests[0].resent.unwrap_or_default();
            let mut bytes = id.command.to_vec();
            put(&mut bytes, self.now, 6);
            bytes.push(255);
            self.rows[0].put(&mut bytes);
            put(&mut bytes, charge.permits, 4);
            settled.put(&mut bytes);
            return bytes;
        }
        // The first bytes of a call that is not lone are nobody's id.
        let first = if self.is_lone {
            self.command
        } else {
            [0xa5; 8]
        };
        let mut bytes = first.to_vec();
        put(&mut bytes, self.now, 6);
        if self.is_lone {
            bytes.push(0);
            self.rows.iter().for_each(|row| row.put(&mut bytes));
            put(&mut bytes, self.requests[0].charges[0].permits, 4);
            return bytes;
        }
        let rows = u8::try_from(self.rows.len()).unwrap_or(u8::MAX);
        // A call in which no key comes twice may say so.
        let says_once = self.names_once() && self.command[0].is_multiple_of(2);
        let tells = u8::from(self.tells) + 2 * u8::from(self.counts);
        bytes.extend([rows, tells + 4 * u8::from(says_once)]);
        self.rows.iter().for_each(|row| row.put(&mut bytes));
        let mut place = 0;
        for request in &self.requests {
            let charges = u8::try_from(request.charges.len()).unwrap_or(u8::MAX);
            let kind = [charges, request.flags];
            match request.resent {
                None => {
                    bytes.push(request.callers);
                    bytes.extend(kind);
                    let places = place..place + i64::from(request.callers);
                    places.for_each(|place| bytes.extend(self.id(place).command));
                }
                Some(id) if request.charges[0].settled.is_some() => {
                    bytes.extend([1, charges, SETTLES]);
                    bytes.extend(id.command);
                }
                Some(id) => {
                    bytes.push(0);
                    put_id(&mut bytes, id);
                    bytes.extend(kind);
                }
            }
            place += request.places();
            let ahead = self.id(place - 1);
            let each = request.charges.iter();
            each.for_each(|charge| charge.put(&mut bytes, ahead));
        }
        bytes
    }

    /// Returns the same as a call that is not lone and tells the time, and its argument for the
    /// script of one caller by GCRA.
    pub fn lone_gcra(&self) -> Option<(Self, Vec<u8>)> {
        let (true, [Row::Gcra(limit)]) = (self.is_lone, &self.rows[..]) else {
            return None;
        };
        let Limit { interval, rate } = *limit;
        let permits = self.requests[0].charges[0].permits;
        let emission = (interval * 1000 + rate - 1) / rate;
        let cost = permits * emission;
        let numbers = [
            self.now * 1000,
            cost,
            rate * emission - cost,
            interval,
            rate,
        ];
        let numbers = numbers.map(|number| (number as f64).to_le_bytes());
        let bytes = [&self.command[..], &[0, 1], numbers.as_flattened()].concat();
        let call = Self {
            is_lone: false,
            tells: true,
            ..self.clone()
        };
        Some((call, bytes))
    }

    /// Returns the row at a place.
    pub fn row(&self, place: u8) -> Option<&Row> {
        self.rows.get(usize::from(place).checked_sub(1)?)
    }
}
