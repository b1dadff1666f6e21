//! Figures of turns: what came back, what the server did for it, and what both sides' processors
//! took.

use std::{sync::Arc, time::Duration};

use crate::{
    contest::{User, users},
    database::{Database, busy},
    figures::median,
    peers::Entry,
    work::{Closed, Contestant, Latency, Open, Turn, Work},
};

/// Of one turn, and of several their medians. None where it is not to be had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    /// Of those asked, parts of one
    pub(crate) admitted: f64,
    pub(crate) failed: f64,
    pub(crate) commands: f64,
    pub(crate) server_micros: f64,
    pub(crate) own_micros: f64,
    pub(crate) latency: Latency,
}

impl Figures {
    pub(crate) fn median(turns: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(turns.iter().map(figure).collect());
        Self {
            per_second: of(|turn| turn.per_second),
            admitted: of(|turn| turn.admitted),
            failed: of(|turn| turn.failed),
            commands: of(|turn| turn.commands),
            server_micros: of(|turn| turn.server_micros),
            own_micros: of(|turn| turn.own_micros),
            latency: Latency::median(turns.iter().map(|turn| turn.latency)),
        }
    }
}

/// How long decisions take at an offered load, over several turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) rate: usize,
    pub(crate) median: Latency,
    /// The least of each: what a stall of the machine has not touched
    pub(crate) least: Latency,
    /// Of the command that took most of Redis' time, by its own account: median and least
    pub(crate) in_redis: [Latency; 2],
}

impl Load {
    /// Beyond this, half of a turn's calls wait for those before them: what is offered piles up.
    const PILED_UP: f64 = 10_000.0;

    pub(crate) fn kept_up(&self) -> bool {
        self.median.p50 <= Self::PILED_UP
    }

    /// Each turn has the latency that callers see, and that of Redis' own account.
    pub(crate) fn of(rate: usize, turns: &[[Latency; 2]]) -> Self {
        let seen = turns.iter().map(|turn| turn[0]);
        let in_redis = turns.iter().map(|turn| turn[1]);
        Self {
            rate,
            median: Latency::median(seen.clone()),
            least: Latency::least(seen),
            in_redis: [Latency::median(in_redis.clone()), Latency::least(in_redis)],
        }
    }
}

/// More decisions than any turn has time for; Java has no larger number.
const NO_END: u64 = i64::MAX as u64;

/// A contestant at a work, ready for its turns.
pub(crate) struct Side {
    pub(crate) entry: Entry,
    pub(crate) contestant: Arc<dyn Contestant>,
    label: String,
    users: Arc<[User]>,
    turns: usize,
}

impl Side {
    pub(crate) async fn new(entry: Entry, at: usize, work: &Work, database: &Database) -> Self {
        let limits = if entry.on_redis() {
            work.redis
        } else {
            work.process
        };
        let label = format!("work-{at}-{}", work.users);
        Self {
            contestant: entry.built(limits, &database.url(), &label).await,
            users: users(&label, work.users),
            entry,
            label,
            turns: 0,
        }
    }

    pub(crate) async fn turn(
        &mut self,
        work: &Work,
        time: Duration,
        database: &Database,
    ) -> Figures {
        self.turns += 1;
        let prefix = if work.fresh && work.users == 1 {
            format!("{}-{}", self.label, self.turns)
        } else {
            self.label.clone()
        };
        if work.fresh && work.users == 1 {
            self.users = users(&prefix, 1);
        }
        let (in_flight, most) = match (self.entry.on_redis(), work.users) {
            // A hot key's turn ends before its permits do.
            (true, 1) => (64, 50_000),
            (true, _) => (64, NO_END),
            (false, 1) => (2, 2_000_000),
            (false, _) => (2, NO_END),
        };
        let closed = Closed {
            prefix,
            users: Arc::clone(&self.users),
            costs: work.costs,
            in_flight,
            time,
            most,
        };
        let own = busy(self.contestant.process());
        let (server, commands) = (database.busy(), self.commands(database));
        let turn = Arc::clone(&self.contestant).closed(closed).await;
        let asked = turn.asked.max(1) as f64;
        Figures {
            per_second: asked / turn.seconds,
            admitted: turn.admitted as f64 / asked,
            failed: turn.failed as f64 / asked,
            commands: (self.commands(database) - commands) as f64 / asked,
            server_micros: (database.busy() - server).as_secs_f64() * 1e6 / asked,
            own_micros: (busy(self.contestant.process()) - own).as_secs_f64() * 1e6 / asked,
            latency: turn.latency,
        }
    }

    /// Each user once.
    pub(crate) async fn ask_all(&self) -> Turn {
        let closed = Closed {
            prefix: self.label.clone(),
            users: Arc::clone(&self.users),
            costs: &[1],
            in_flight: 50,
            time: Duration::from_secs(60),
            most: self.users.len() as u64,
        };
        Arc::clone(&self.contestant).closed(closed).await
    }

    pub(crate) async fn open(&self, rate: usize, time: Duration) -> Latency {
        let open = Open {
            prefix: self.label.clone(),
            users: Arc::clone(&self.users),
            rate,
            time,
        };
        Arc::clone(&self.contestant).open(open).await
    }

    /// A turn at an offered load: what callers see, and what Redis' own account has.
    pub(crate) async fn open_turn(
        &self,
        rate: usize,
        time: Duration,
        database: &Database,
    ) -> [Latency; 2] {
        // What others still send of their turns, such as leases that end, is none of this one's.
        tokio::time::sleep(Duration::from_millis(200)).await;
        database.cli(&["CONFIG", "RESETSTAT"]);
        let seen = self.open(rate, time).await;
        [seen, self.in_redis(database)]
    }

    /// Redis' own account of the command that took most of its time, of those that it has sent.
    fn in_redis(&self, database: &Database) -> Latency {
        let stats = database.cli(&["INFO", "all"]);
        let find = |start: String| stats.lines().find_map(|line| line.strip_prefix(&*start));
        let sent = self.entry.sends.iter().filter_map(|name| {
            let mut fields = find(format!("cmdstat_{name}:"))?.split(',');
            let micros = fields.find_map(|it| it.strip_prefix("usec=")?.parse::<u64>().ok())?;
            Some((micros, find(format!("latency_percentiles_usec_{name}:"))?))
        });
        Latency::of_redis(sent.max().unwrap_or_default().1)
    }

    /// Those that it has sent, and not those that its scripts have called.
    fn commands(&self, database: &Database) -> u64 {
        let stats = database.cli(&["INFO", "commandstats"]);
        let counted = match self.entry.counted {
            [] => self.entry.sends,
            counted => counted,
        };
        let calls = |line: &str| {
            let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let sent = counted.contains(&name);
            sent.then(|| fields.split(',').next()?.parse::<u64>().ok())?
        };
        stats.lines().filter_map(calls).sum()
    }
}

/// Bytes of a server, without the buffers of its connections.
pub(crate) fn memory(database: &Database) -> f64 {
    let about = database.cli(&["INFO", "memory"]);
    let of = |field| -> f64 {
        let mut lines = about.lines();
        let found = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap().trim().parse().unwrap()
    };
    of("used_memory") - of("mem_clients_normal")
}

/// Bytes of this process.
pub(crate) fn resident() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0
}
