//! Random histories: steps that can be played from any instant, so that a history that fails can
//! be cut shorter.

use crate::{
    twin::{
        Id, LATEST, Limit, MOST,
        ban::Terms,
        call::{ASKS, Ahead, BANS, Banning, Call, Charge, REPORTS, Request, Row, Settled, WAITS},
        keys::Keys,
        state::State,
        window::Dates,
    },
    world::{START, name},
};
use kit::random::Random;

/// A step of a history.
#[derive(Clone, Debug)]
pub enum Step {
    Call(Plan),
    /// Time that passes, in us; below zero, the server's clock is set back.
    Pass(i64),
    Delete(usize),
    /// The state is cut to so many thousandths.
    Cut(usize, usize),
    /// Another value in place of a state
    Foreign(usize, Vec<u8>),
    /// A list in place of a state
    List(usize),
    /// A byte of a state is changed: at so many thousandths, from its end if it is small.
    Mutate(usize, usize, u8),
    /// A log in place of a state
    Preload(usize, Preload),
}

/// A log of many single records.
#[derive(Clone, Copy, Debug)]
pub struct Preload {
    pub limit: Limit,
    pub number: i64,
    /// Of each record, but of so many from a place on, which were given back whole
    pub permits: i64,
    pub returned: [i64; 2],
    /// Set if the last is a slot.
    pub has_slot: bool,
}

/// A row, where dates depend on when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sketch {
    Row(Row),
    /// Windows of so many ms, shifted by as many
    Calendar {
        rate: i64,
        length: i64,
        shift: i64,
    },
}

impl Sketch {
    fn at(&self, present: i64) -> Row {
        let (rate, length, shift) = match self {
            Self::Row(row) => return row.clone(),
            Self::Calendar {
                rate,
                length,
                shift,
            } => (*rate, *length, *shift),
        };
        let dates = |label: i64| Dates {
            label,
            start: (label * length - shift).max(0),
            end: ((label + 1) * length - shift).max(0),
        };
        // A row that is late by two windows holds now no longer.
        let late = if shift % 10 == 9 { 2 } else { 0 };
        let label = ((present + shift).div_euclid(length) - late).max(0);
        let dates = [dates(label), dates(label + 1)];
        Row::Calendar { rate, dates }
    }
}

/// A call, without its time.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By how many ms the caller's clock is ahead of the server's, if it counts by its own
    ahead: Option<i64>,
    /// The keys that it names, by their numbers
    pub keys: Vec<usize>,
    rows: Vec<Sketch>,
    call: Call,
}

impl Plan {
    /// Returns the call as it is sent at the server's time in us. Receipts differ by what they have
    /// from the states that they are of.
    pub fn at(&self, server_us: i64, keys: &Keys) -> Call {
        let server = server_us.div_euclid(1000);
        let now = self
            .ahead
            .map_or(0, |ahead| (server + ahead).clamp(1, LATEST));
        let present = if now == 0 { server } else { now };
        let rows = self.rows.iter().map(|sketch| sketch.at(present)).collect();
        let mut call = Call {
            now,
            rows,
            ..self.call.clone()
        };
        let charges = call
            .requests
            .iter_mut()
            .flat_map(|request| &mut request.charges);
        for charge in charges {
            let Some(settled) = &mut charge.settled else {
                continue;
            };
            let stored = keys.get(&name(self.keys[usize::from(charge.key) - 1]));
            let (mark, given) = match stored.map(|stored| stored.state()) {
                Some(Ok(State::Gcra(gcra))) => (gcra.tat, gcra.given),
                Some(Ok(State::Window(window) | State::Calendar(window))) => (window.label, 0),
                _ => (present, 0),
            };
            settled.mark = (settled.mark + mark).clamp(0, MOST);
            settled.given = (given - settled.given).clamp(0, MOST);
        }
        call
    }
}

/// How many limiters there are; their bans have the numbers behind theirs.
pub const NAMES: usize = 3;

/// Returns the caller of a grant of a log that is made.
pub fn preloaded(place: i64) -> Id {
    let call = Call {
        command: *b"preload!",
        ..Call::default()
    };
    call.id(place)
}

/// What a service asks of its limiters, in a version of it: the row of each, and behind them those
/// of their bans, if it has any.
type Version = Vec<Sketch>;

/// Makes a history.
pub struct Maker {
    random: Random,
    versions: Vec<Version>,
    /// Whose clocks count: 0 the server's, 1 the callers', 2 both
    clocks: u64,
    /// By how much callers' clocks may be off, in ms; at most, any time that the format holds
    off: i64,
    commands: u64,
    /// Callers of earlier calls, with their requests
    sent: Vec<(Id, Request)>,
    /// Settlements that were sent
    settled: Vec<Request>,
}

const INTERVALS: [i64; 9] = [1, 7, 100, 250, 1000, 1001, 1500, 10_000, 60_000];
/// The longest interval
const CENTURY: i64 = 36_525 * 24 * 3_600_000;

impl Maker {
    pub fn history(seed: u64, length: usize) -> Vec<Step> {
        let mut random = Random(seed);
        let versions = (0..1 + random.below(4)).map(|_| version(&mut random));
        let mut maker = Self {
            versions: versions.collect(),
            clocks: random.below(3),
            off: random.of(&[0, 0, 20, 3_000, 3_600_000, LATEST]),
            commands: 0,
            sent: Vec::new(),
            settled: Vec::new(),
            random,
        };
        // Histories of today, and at both ends of what the format holds.
        let begin = 1000 * maker.random.of(&[0, 0, 2, LATEST - 100_000]);
        let begins = (begin > 0).then(|| Step::Pass(begin - START));
        begins
            .into_iter()
            .chain((0..length).map(|_| maker.step()))
            .collect()
    }

    fn step(&mut self) -> Step {
        let random = &mut self.random;
        let key = random.place(NAMES + NAMES);
        match random.below(100) {
            0..62 => Step::Call(self.call()),
            62..91 => Step::Pass(self.pass()),
            91 | 92 => Step::Delete(key),
            93 => Step::Cut(key, random.place(1000)),
            94 => Step::Foreign(key, foreign(random)),
            95 => Step::List(key),
            96 | 97 => Step::Mutate(key, random.place(1000), random.below(256) as u8),
            _ => Step::Preload(random.place(NAMES), preload(random)),
        }
    }

    fn pass(&mut self) -> i64 {
        let random = &mut self.random;
        let interval = 1000 * random.of(&INTERVALS);
        match random.below(20) {
            0..3 => random.within(0, 999),
            3..6 => 1000,
            6..9 => random.within(0, 20_000),
            9..14 => random.within(0, interval),
            14 => interval - 1000,
            15 => interval,
            16 => interval + 1000,
            17 => interval * random.within(2, 5),
            18 if self.clocks == 0 => -random.within(0, interval),
            _ if self.clocks == 0 && random.percent(20) => -3_600_000_000,
            _ => random.within(0, 100_000),
        }
    }

    fn call(&mut self) -> Plan {
        let (random, off) = (&mut self.random, self.off);
        let version = random.place(self.versions.len());
        let by_server = self.clocks == 0 || self.clocks == 2 && random.percent(50);
        let ahead = (!by_server).then(|| match random.below(4) {
            0 | 1 => 0,
            2 => random.within(-off, off),
            _ => random.of(&[-off, off]),
        });
        self.commands += 1;
        let command = self
            .commands
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .to_le_bytes();
        let mut call = Call {
            command,
            is_lone: random.percent(35),
            tells: random.percent(20),
            counts: random.percent(20),
            ..Call::default()
        };
        let (mut keys, mut rows) = ((0..2 * NAMES).collect(), self.versions[version].clone());
        let settles = random.percent(20);
        if settles && call.is_lone && !self.sent.is_empty() {
            let mut request = self.settlement();
            let charge = &mut request.charges[0];
            let number = usize::from(charge.key) - 1;
            (keys, rows) = (vec![number], vec![rows.swap_remove(number)]);
            (charge.key, charge.row) = (1, 1);
            (call.is_lone, call.tells, call.counts) = (false, false, false);
            call.requests = vec![request];
        } else if call.is_lone {
            let number = random.place(NAMES);
            let permits = permits(random, &rows[number]);
            // Those of other kinds that are alone are written as any call.
            call.is_lone = match &rows[number] {
                Sketch::Row(Row::Log(_)) => true,
                Sketch::Row(Row::Gcra(limit)) => permits <= limit.rate,
                _ => false,
            };
            let request = Request::of(1, 0, vec![charge(number, permits)]);
            self.note(&call, 0, &request, &rows);
            (keys, rows) = (vec![number], vec![rows.swap_remove(number)]);
            (call.tells, call.counts) = (false, false);
            call.requests = vec![Request::of(1, 0, vec![charge(0, permits)])];
        } else {
            let mut places = 0;
            for _ in 0..self.random.of(&[1, 1, 1, 2, 2, 3, 5]) {
                if !self.sent.is_empty() && (settles || self.random.percent(10)) {
                    let settlement = self.settlement();
                    call.requests.push(settlement);
                    continue;
                }
                let request = self.request(&rows);
                if places + request.places() <= 250 {
                    self.note(&call, places, &request, &rows);
                    places += request.places();
                    call.requests.push(request);
                }
            }
        }
        Plan {
            ahead,
            keys,
            rows,
            call,
        }
    }

    /// Remembers the callers of a request, which may come again.
    fn note(&mut self, call: &Call, place: i64, request: &Request, rows: &[Sketch]) {
        let asks = request.has(ASKS | BANS | REPORTS);
        let row = &rows[usize::from(request.charges[0].row) - 1];
        let has_log = matches!(row, Sketch::Row(Row::Log(_)));
        for caller in 0..i64::from(if asks { 0 } else { request.callers }) {
            let fresh = if has_log {
                call.id(place + caller)
            } else {
                call.id(place).plus(caller)
            };
            let id = request.resent.unwrap_or(fresh);
            self.sent.push((id, request.clone()));
        }
    }

    fn request(&mut self, rows: &[Sketch]) -> Request {
        let random = &mut self.random;
        // Mostly one of the last callers.
        let most = random.of(&[5, 5, usize::MAX]);
        let recent = &self.sent[self.sent.len().saturating_sub(most)..];
        if random.percent(30) && !recent.is_empty() {
            let (id, request) = random.of(recent);
            return self.again(rows, id, request);
        }
        let number = random.of(&[1, 1, 1, 2, 3]);
        let flags = match random.below(20) {
            0..2 => ASKS,
            2 => BANS,
            3 => REPORTS,
            _ => u8::from(random.percent(25)) * WAITS,
        };
        let is_one = number > 1 || flags > WAITS;
        let callers = random.of(if is_one { &[1] } else { &[1, 1, 2, 3, 9, 64] });
        let first = random.place(NAMES);
        let charges = (first..first + number).map(|name| {
            let number = name % NAMES;
            let mut charge = charge(number, permits(random, &rows[number]));
            charge.is_shadow = random.percent(if number == 1 { 8 } else { 30 });
            equip(random, &mut charge, rows);
            charge.ahead = charge.ahead.filter(|_| flags <= WAITS);
            charge
        });
        let mut request = Request::of(callers, flags, charges.collect());
        if flags == REPORTS {
            let known = self.sent.last().map_or(preloaded(0), |(id, _)| *id);
            request.resent = Some(self.random.of(&[known, preloaded(0)]));
        }
        request
    }

    /// Sends the request of a caller again.
    fn again(&mut self, rows: &[Sketch], id: Id, mut request: Request) -> Request {
        (request.callers, request.resent) = (1, Some(id));
        for charge in &mut request.charges {
            charge.is_shadow = false;
            equip(&mut self.random, charge, rows);
        }
        request
    }

    /// Settles what a caller took of a limiter, mostly one of the last, or does so again.
    fn settlement(&mut self) -> Request {
        let random = &mut self.random;
        let most = random.of(&[5, 5, usize::MAX]);
        let recent = &self.settled[self.settled.len().saturating_sub(most)..];
        if random.percent(25) && !recent.is_empty() {
            return random.of(recent);
        }
        let recent = &self.sent[self.sent.len().saturating_sub(most)..];
        let (id, request) = random.of(recent);
        let id = if random.percent(10) {
            preloaded(random.within(0, 3000))
        } else {
            id
        };
        let took = random.of(&request.charges);
        let was = took.permits;
        let permits = random.of(&[0, 0, 0, was / 2, was - 1, was, was + 1, 2 * was]);
        let number = usize::from(took.key) - 1;
        let mut charge = charge(number, permits.min(u32::MAX.into()));
        let mark = random.of(&[0, 0, 0, 1, -1, 5000, -5000, 1_000_000, MOST]);
        let given = random.of(&[0, 0, 0, 1000, 100_000]);
        charge.settled = Some(Settled { was, mark, given });
        let mut settlement = Request::of(1, 0, vec![charge]);
        settlement.resent = Some(Id { place: 0, ..id });
        self.settled.push(settlement.clone());
        settlement
    }
}

/// Charges a limiter: its row has the same place as its key.
fn charge(number: usize, permits: i64) -> Charge {
    let place = u8::try_from(number + 1).unwrap();
    Charge::of(place, place, permits)
}

/// Gives a charge its ban, if the rows have some, and what it fetches ahead.
fn equip(random: &mut Random, charge: &mut Charge, rows: &[Sketch]) {
    let place = charge.key + u8::try_from(NAMES).unwrap();
    let has_ban = rows.len() > NAMES && random.percent(70);
    charge.banning = has_ban.then(|| Banning {
        key: place,
        row: place,
        carried: random.within(-12, 4).max(0),
        age: random.of(&[1, 50, 999, 1000, 5000]),
    });
    let is_log = matches!(&rows[usize::from(charge.row) - 1], Sketch::Row(Row::Log(_)));
    let fetches = random.percent(if is_log { 20 } else { 3 });
    let (permits, lead) = (random.within(1, 3), random.of(&[1, 5, 25, 100, 1000, 6000]));
    charge.ahead = fetches.then_some(Ahead { permits, lead });
}

fn preload(random: &mut Random) -> Preload {
    let interval = random.of(&[1000, 1001, 10_000, 60_000]);
    let rate = random.of(&[2003, 6000, LARGE]);
    let number = random.of(&[1, 9, 300, 1998, 1999, 2000, 2990, 2999, 3000, 4000, 5001]);
    Preload {
        limit: Limit { interval, rate },
        number,
        permits: random.of(&[1, 1, MOST_PERMITS]),
        returned: [
            random.within(0, number) * random.within(0, 1),
            random.of(&[0, 0, 99, 101, number]),
        ],
        has_slot: random.percent(40),
    }
}

/// A limit of several callers who want all that a caller can, and so much
const LARGE: i64 = 10 * MOST_PERMITS;
const MOST_PERMITS: i64 = (1 << 32) - 1;

fn permits(random: &mut Random, row: &Sketch) -> i64 {
    let is_large = matches!(row, Sketch::Row(Row::Log(limits)) if limits[0].rate >= LARGE)
        || matches!(row, Sketch::Row(Row::Window(limit)) if limit.rate >= LARGE);
    match random.below(40) {
        _ if is_large && random.percent(70) => random.of(&[3_000_000_000, MOST_PERMITS]),
        0..30 => 1,
        30..36 => random.within(1, 3),
        36..38 => random.within(1, 12),
        38 => 1000,
        _ => MOST_PERMITS,
    }
}

fn rate(random: &mut Random) -> i64 {
    match random.below(20) {
        0..15 => random.within(1, 12),
        15..17 => random.within(60, 130),
        17 => random.of(&[1100, 3000, 7000, LARGE]),
        18 => 1 << random.within(30, 52),
        _ => MOST - random.within(0, 2),
    }
}

fn version(random: &mut Random) -> Version {
    let mut rows: Version = (0..NAMES).map(|_| sketch(random)).collect();
    for _ in 0..if random.percent(60) { NAMES } else { 0 } {
        let (after, first) = (random.within(1, 6), random.of(&[1, 100, 1000]));
        let within = random.of(&[100, 1000, 60_000]);
        let terms = [after, within, first, first * random.of(&[1, 4, 1000])];
        rows.push(Sketch::Row(Row::Ban(Terms::of(terms))));
    }
    rows
}

fn sketch(random: &mut Random) -> Sketch {
    let intervals = (0..3).map(|_| match random.below(50) {
        0 => CENTURY,
        _ => random.of(&INTERVALS),
    });
    let mut intervals: Vec<i64> = intervals.collect();
    intervals.sort_unstable_by(|one, other| other.cmp(one));
    intervals.dedup();
    let (interval, rate_of_one) = (random.of(&intervals), rate(random));
    let limit = |rate| Limit { interval, rate };
    Sketch::Row(match random.below(10) {
        0..5 => {
            intervals.truncate(random.of(&[1, 1, 1, 2, 3]));
            let is_large = random.percent(15);
            let limits = intervals.into_iter().map(|interval| {
                let rate = if is_large { LARGE } else { rate(random) };
                Limit { interval, rate }
            });
            Row::Log(limits.collect())
        }
        5 | 6 => {
            let most = (interval * 1000 / random.within(1, 3)).max(1);
            Row::Gcra(limit(rate_of_one.min(most)))
        }
        7 | 8 => Row::Window(limit(rate_of_one)),
        _ => {
            let length = interval.max(100);
            return Sketch::Calendar {
                rate: rate_of_one,
                length,
                shift: random.within(0, length),
            };
        }
    })
}

/// Returns bytes that are no state, or hardly one.
fn foreign(random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<_> = (0..random.below(130))
        .map(|_| random.below(256) as u8)
        .collect();
    match random.below(6) {
        0 => bytes.clear(),
        1 => bytes = vec![0x11, 0xB7],
        2 => bytes = b"{\"permits\": 5}".to_vec(),
        // A later version
        3 => bytes.extend([0x21, 0xB7]),
        _ => bytes.extend([16 + random.below(7) as u8, 0xB7]),
    }
    bytes
}
