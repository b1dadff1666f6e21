//! The stage of a row: servers, handles under load, and the oracles at its end.

use kit::{monitor::Watch, proxy::Proxy, random::Random, scene::*};
use std::{collections::BTreeMap, ops::Deref, ops::DerefMut};

use tokio::{runtime::Handle, runtime::RuntimeFlavor};

use super::{
    after::{all_is_free, losses_are_noticed, waits_are_kept},
    answer::Answer,
    guards::{BUDGET, guarded},
    lanes::Limiter,
    load::Load,
    oracles::{self, Tally},
    random::seed,
    record::{Record, UNRECORDED},
};

/// The number of handles, which stand for as many processes.
const HANDLES: usize = 2;

/// The decisions that each lane must have before the fault, and after it.
const STEADY: u64 = 5;

/// A load, and who reads along what the servers do for it.
#[derive(Debug)]
pub struct Stage {
    pub row: &'static str,
    pub load: Load,
    pub record: Record,
    watches: Vec<Watch>,
    /// Past whatever stands in the way
    pub direct: RedisStore,
    /// How many connections each server had before the load, by its port
    connected: BTreeMap<u16, usize>,
    /// That of the load's limiters
    prefix: String,
    /// Of the load's seed
    pub random: Random,
    budget: Duration,
}

/// The results that a row expects.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Set if the ledger has all grants. A server that dies may have made some that it did not send
    pub all_seen: bool,
    /// Set if no interval exceeds the limit unless data was lost
    pub exact: bool,
    /// The excess over the limit in one interval, as a part of it, after a data loss
    pub over: f64,
    /// Set if a log may be lost while a banned user does not ask for it: its permits count as used
    /// from the next call on
    pub logs_lost: bool,
    /// Set if the fault may cost decisions at all
    pub by_policy: bool,
    /// The delay until all permits are free, if scores are ahead of the server's clock
    pub late: Duration,
    /// The difference of the clocks of callers that count by their own: a wait may be longer by as
    /// much
    pub skew: Duration,
    /// Set if calls come twice, and not from us: a log in our own format knows only what we say was
    /// sent before
    pub twice: bool,
}

/// The expectation of all rows without their own.
pub const EXACT: Expected = Expected {
    all_seen: true,
    exact: true,
    over: 0.0,
    logs_lost: false,
    by_policy: true,
    late: Duration::ZERO,
    skew: Duration::ZERO,
    twice: false,
};

/// The expectation where no request may notice.
pub const FREE: Expected = Expected {
    by_policy: false,
    ..EXACT
};

/// The expectation where a server may have made grants that no caller received, nor the ledger.
pub const UNSEEN: Expected = Expected {
    all_seen: false,
    ..EXACT
};

/// The same where it has lost all data.
pub const FROM_ZERO: Expected = Expected {
    over: 1.0,
    ..UNSEEN
};

/// The expectation where permits in use are not known: one more limit in the interval.
pub const UNKNOWN: Expected = Expected {
    exact: false,
    over: 1.0,
    ..EXACT
};

/// The expectation where grants that were not replicated are forgotten, and may be made again: a
/// limit of the old master, and one of the new. A master without a replica forgets everything.
pub const FORGOTTEN: Expected = Expected {
    exact: false,
    ..FROM_ZERO
};

impl Stage {
    /// Begins the load, whether or not there is a server to decide. Each handle is opened in its
    /// own way.
    pub fn begin(
        row: &'static str,
        servers: &[&RedisServer],
        open: impl Fn(usize) -> RedisStoreBuilder,
        direct: RedisStoreBuilder,
        budget: Duration,
    ) -> Self {
        let (record, prefix, seed) = (Record::begin(), unique("matrix"), seed());
        let connected = |server: &&RedisServer| (server.port(), server.connected());
        let connected = aside(|| servers.iter().map(connected).collect());
        let watches = servers.iter().map(|server| record.watch(server)).collect();
        let handles = (0..HANDLES).map(|handle| guarded(open(handle), budget));
        let load = Load::start(handles.collect(), &prefix, budget, seed, record.book());
        Self {
            row,
            load,
            record,
            watches,
            direct: patient(direct.prefix(&prefix)),
            connected,
            prefix,
            random: Random(seed),
            budget,
        }
    }

    /// Begins the record of a server again, which has come back.
    pub fn came_back(&mut self, server: &RedisServer, with_data: bool) {
        for watch in self.watches.drain(..) {
            watch.catch_up();
        }
        if with_data {
            self.record.find_again(server, &self.load.limiters);
        } else {
            self.record.data_lost();
        }
        self.watch(server);
    }

    /// Reads along what another server does, too.
    pub fn watch(&mut self, server: &RedisServer) {
        self.watches.push(self.record.watch(server));
    }

    /// Waits until the store decides for all of the load.
    pub async fn steady(self) -> Self {
        self.load.decided(STEADY).await;
        self
    }

    /// Checks O5: waits until the store decides for all lanes again. Returns the time since the end
    /// of the fault.
    pub async fn healed(&self) -> Duration {
        let took = self.load.decided(STEADY).await;
        println!(
            "{}: decisions come from the store again after {took:?}",
            self.row
        );
        // Again, with requests that were sent when all was well.
        self.load.decided(STEADY).await;
        took
    }

    /// Checks O6 by how many connections have carried a call, as counted by the servers, while so
    /// many were lost.
    pub fn used_few_connections(&self, lost: usize) {
        let watches = self.watches.iter();
        let seen: usize = watches.map(|it| aside(|| it.catch_up())).sum();
        println!("{}: {seen} connections were used", self.row);
        // Each handle has one, on a Cluster one to each node; the connection that checks as many.
        // One that a busy machine keeps silent for the response timeout is replaced.
        let silent = self.load.machine().as_millis() as usize / 500;
        let most = (HANDLES + 1) * 2 * 6 * (1 + silent) + lost;
        assert!(seen <= most, "O6: {seen} connections");
    }

    /// Waits until all is well, ends the load, and asks all oracles. The answers, for what else a
    /// row says of them.
    ///
    /// `servers` have the data by now, and the first of them has the clock.
    pub async fn judge(self, expected: Expected, servers: &[&RedisServer]) -> Vec<Answer> {
        let row = self.row;
        self.healed().await;
        let ended = self.load.end().await;
        // Not before: its connection has a task.
        waits_are_kept(&self.direct).await;
        let mut tally = Tally::of(&ended, expected.skew);
        tally.check_times();
        tally.check_counts(&ended);
        let by_share = tally.check_shares();
        let banned = tally.check_bans(expected.twice);
        for watch in &self.watches {
            aside(|| watch.catch_up());
        }
        let ledger = self.record.ledger();
        assert!(!ledger.logs().any(|log| log.contains(UNRECORDED)));
        ledger.check_books(expected.twice);
        if expected.exact {
            oracles::never_over(&ledger, &ended.limiters);
        }
        if expected.all_seen {
            // A calendar that was evicted shows nowhere.
            // Of a grant that is there twice, a settlement leaves its permits in either place.
            let shows = |it: &&Limiter| {
                if it.is_own_log() {
                    !expected.twice
                } else {
                    expected.exact || !it.is_calendar()
                }
            };
            tally.check_received(&ledger, ended.limiters.iter().filter(shows));
        }
        let over = oracles::over_admission(&ledger, &ended.limiters);
        let granted = ledger.granted_permits();
        assert!(
            granted > 0 || self.watches.is_empty(),
            "nothing was granted"
        );
        assert!(over <= expected.over, "O3: {over} of {}", expected.over);
        if !expected.by_policy {
            assert_eq!(tally.by_policy, 0, "decided by policy");
        }
        let late = expected.late + expected.skew;
        if expected.logs_lost {
            losses_are_noticed(&self.direct, &ended.limiters).await;
        }
        all_is_free(&self.direct, &ended.limiters, late, servers).await;
        drop(self.direct);
        for server in servers {
            let before = self.connected.get(&server.port()).copied().unwrap_or(0);
            let closed = async || aside(|| server.connected()) <= before;
            until("connections without an owner are closed", closed).await;
        }
        let measured = tally.measured();
        println!(
            "{row}: {} answers, {} by policy; p99 {:?}, longest {:?} of {:?}, the machine late by {:?}; {granted} permits granted, \
             {by_share} more by shares, {banned} requests banned, {:.2} of a limit too many where {:.2} may be; {} receipts lost",
            tally.answers,
            tally.by_policy,
            measured.p99,
            measured.longest,
            self.budget,
            ended.machine,
            over,
            expected.over,
            ended.lost_receipts,
        );
        ended.answers
    }
}

/// A stage of one server behind a proxy.
#[derive(Debug)]
pub struct Scene {
    pub server: RedisServer,
    pub proxy: Proxy,
    stage: Stage,
}

impl Scene {
    pub async fn begin(row: &'static str) -> Self {
        Self::begin_with(row, &[], BUDGET).await
    }

    pub async fn begin_with(row: &'static str, args: &[&str], budget: Duration) -> Self {
        let server = aside(|| RedisServer::start_with(args));
        Self::begin_on(row, server, budget, RedisStore::builder).await
    }

    /// With handles that are opened in a way of the row's own, by the address of the proxy.
    pub async fn begin_on(
        row: &'static str,
        server: RedisServer,
        budget: Duration,
        open: impl Fn(String) -> RedisStoreBuilder,
    ) -> Self {
        let proxy = Proxy::start(server.address());
        let direct = RedisStore::builder(server.url());
        let stage = Stage::begin(row, &[&server], |_| open(proxy.url()), direct, budget);
        Self {
            server,
            proxy,
            stage: stage.steady().await,
        }
    }

    /// Waits until no connection is open.
    pub async fn disconnected(&self) {
        let closed = async || self.proxy.open_connections() == 0;
        until("they are closed", closed).await;
    }

    /// Restarts the server, and admits no client before the recorder is connected.
    pub fn restart(&mut self, with_data: bool) {
        aside(|| {
            let refusing = self.proxy.refuse(true);
            self.server.restart();
            self.stage.came_back(&self.server, with_data);
            self.proxy.refuse(refusing);
        });
    }

    pub async fn judge(self, expected: Expected) -> Vec<Answer> {
        self.judge_cut(expected, 0).await
    }

    /// The same after the fault itself has cut so many connections in a second.
    pub async fn judge_cut(self, expected: Expected, cut: usize) -> Vec<Answer> {
        let Self {
            server,
            proxy,
            stage,
        } = self;
        judge_on(&server, &proxy, stage, expected, cut).await
    }

    /// The same where another server has the data in the end.
    pub async fn judge_elsewhere(mut self, other: &RedisServer, expected: Expected) -> Vec<Answer> {
        let direct = RedisStore::builder(other.url()).prefix(&self.stage.prefix);
        self.stage.direct = patient(direct);
        judge_on(other, &self.proxy, self.stage, expected, 2).await
    }
}

async fn judge_on(
    server: &RedisServer,
    proxy: &Proxy,
    stage: Stage,
    expected: Expected,
    cut: usize,
) -> Vec<Answer> {
    let row = stage.row;
    // Those that come until then count, too.
    stage.healed().await;
    let most = oracles::few_connections(&proxy.came(), HANDLES, cut);
    println!("{row}: at most {most} connections in a second");
    stage.judge(expected, &[server]).await
}

impl Deref for Scene {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Stage {
        &mut self.stage
    }
}

/// Sets a limit while calls may fail.
pub async fn set(limiter: &RateLimiter, limit: Limit) {
    let is_set = async || limiter.try_set_rate(limit).await.is_ok();
    until("the limit is set", is_set).await;
}

/// Does what blocks, and lets other threads take over what this one had to do, if there are others.
pub fn aside<T>(what: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => what(),
        _ => block_in_place(what),
    }
}

/// A store whose answers a busy machine does not turn into failures, and which asks each time.
pub fn patient(store: RedisStoreBuilder) -> RedisStore {
    let store = patiently(store).deny_cache(Duration::ZERO);
    store.build().unwrap()
}
