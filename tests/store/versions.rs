//! Two versions of a service, as a rolling deploy has them, that take of one key in turns: every
//! pair of algorithms, limits and intervals, with a ban and without. That either counts what the
//! other has taken, and knows its bans, is in the histories of `tests/packed`, whose services have
//! several versions.
//!
//! Each version is a process: a store in memory is never that of two.

use kit::{
    calendar_key,
    random::{Random, seed},
    scene::*,
    state_key, windows,
};
use tower_ratelimit::Ban;

/// How a version counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Log,
    Window,
    Gcra,
    Calendar,
}

const KINDS: [Kind; 4] = [Kind::Log, Kind::Window, Kind::Gcra, Kind::Calendar];

/// The limit of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    kind: Kind,
    permits: u64,
    /// Of the two intervals of its kind, the longer
    is_long: bool,
}

impl Version {
    fn all() -> Vec<Self> {
        let of = |kind| {
            [(5, false), (5, true), (8, false), (8, true)].map(|(permits, is_long)| Self {
                kind,
                permits,
                is_long,
            })
        };
        KINDS.into_iter().flat_map(of).collect()
    }

    /// All, and each beside each.
    fn pairs() -> Vec<[Self; 2]> {
        let all = Self::all();
        let beside = |old: &Self| all.iter().map(|new| [*old, *new]).collect::<Vec<_>>();
        all.iter().flat_map(beside).collect()
    }

    fn limiter(self, store: &RedisStore, name: &str, ban: Option<Ban>) -> RateLimiter {
        let interval = match (self.kind, self.is_long) {
            (Kind::Calendar, false) => format!("day {}", zone_by_day()),
            (Kind::Calendar, true) => format!("month {}", zone_by_day()),
            (_, false) => "1h".to_owned(),
            (_, true) => "60h".to_owned(),
        };
        let limit: Limit = format!("{}/{interval}", self.permits).parse().unwrap();
        let limit = limit.named(name);
        let limit = match self.kind {
            Kind::Calendar => limit,
            Kind::Log => limit.algorithm(Algorithm::SlidingLog),
            Kind::Window => limit.algorithm(Algorithm::FixedWindow),
            Kind::Gcra => limit.algorithm(Algorithm::Gcra),
        };
        let limit = ban.into_iter().fold(limit, |limit, ban| limit.ban(ban));
        limit.single(store).unwrap()
    }

    /// Of a calendar, the longest.
    fn interval(self) -> Duration {
        match (self.kind, self.is_long) {
            (Kind::Calendar, false) => 24 * HOUR,
            (Kind::Calendar, true) => 31 * 24 * HOUR,
            (_, false) => HOUR,
            (_, true) => 60 * HOUR,
        }
    }

    /// The most that comes free of it within an interval in which it is taken: at the end of a
    /// window, or one permit after the other.
    fn returns(self) -> u64 {
        match self.kind {
            Kind::Log | Kind::Calendar => 0,
            Kind::Window | Kind::Gcra => self.permits,
        }
    }
}

/// Two processes of a service, whose limits count by the server's clock.
struct Service([RedisStore; 2]);

impl Service {
    fn new() -> Self {
        let prefix = unique("versions");
        let store = || {
            let store = shared_redis().prefix(&prefix);
            store.build().unwrap()
        };
        Self([store(), store()])
    }
}

/// Lets the server's clock jump, from the view of some keys.
const MOVE: &str = include_str!("../laws/move.lua");

/// Two versions and the key that they share.
struct Shared {
    pair: [Version; 2],
    limiters: [RateLimiter; 2],
    /// How much time has passed, as far as the test says
    now: Duration,
    /// When, how many, and by which
    grants: Vec<(Duration, i64, usize)>,
    /// What was done, for who reads of a failure
    history: String,
}

impl Shared {
    fn new(service: &Service, pair: [Version; 2], ban: Option<Ban>) -> Self {
        let name = unique("shared");
        let of = |number: usize| pair[number].limiter(&service.0[number], &name, ban);
        let limiters = [of(0), of(1)];
        assert_eq!(limiters[0].name(), limiters[1].name());
        Self {
            pair,
            limiters,
            // Longer than any interval.
            now: 100 * 24 * HOUR,
            grants: Vec::new(),
            history: String::new(),
        }
    }

    /// The keys of both.
    fn keys(&self) -> [String; 3] {
        let name = self.limiters[0].name();
        [
            state_key(name),
            calendar_key(name),
            format!("{}:ban", state_key(name)),
        ]
    }

    /// What the limits have in use.
    fn states(&self) -> Reply {
        let [state, calendar, _] = self.keys();
        RedisServer::shared().command(&["MGET", &state, &calendar])
    }

    /// Lets time pass, except for calendars.
    fn pass(&mut self, time: Duration) {
        let [state, _, ban] = self.keys();
        let by = time.as_millis().to_string();
        let server = RedisServer::shared();
        let passed = server.cli(&["EVAL", MOVE, "2", &state, &ban, &by]);
        assert_eq!(passed, "(nil)");
        self.now += time;
        self.history += &format!("{time:?} pass\n");
    }

    /// What was granted later than this.
    fn granted_since(&self, from: Duration) -> u64 {
        let later = self.grants.iter().filter(|grant| grant.0 > from);
        later.map(|grant| grant.1.unsigned_abs()).sum()
    }

    /// The most that was granted in such a time, by both or by one.
    fn most_in(&self, time: Duration, by: Option<usize>) -> u64 {
        let is_meant = |it: &&(Duration, i64, usize)| by.is_none_or(|by| it.2 == by);
        let grants = self.grants.iter().filter(is_meant);
        let fullest = windows(grants.map(|it| (it.0, it.1)), time)
            .into_iter()
            .max();
        fullest.unwrap_or(0).unsigned_abs()
    }

    /// A version asks. Returns whether it is granted. A refusal leaves what is in use as it is.
    async fn ask(&mut self, by: usize, permits: u32) -> bool {
        let before = self.states();
        let decision = self.limiters[by].try_acquire_many(permits).await;
        let decision = decision.unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(decision.source(), Source::Store);
        let is_allowed = decision.is_allowed();
        self.history += &format!("{by} asks for {permits}, granted: {is_allowed}\n");
        let Decision::Deny(refusal) = decision else {
            self.grants.push((self.now, permits.into(), by));
            return true;
        };
        assert_eq!(refusal.kind(), RefusalKind::OverLimit, "{self:?}");
        let longest = self.pair[0].interval().max(self.pair[1].interval());
        let wait = refusal.retry_after().unwrap();
        let is_right = !wait.is_zero() && wait <= longest + SECOND;
        assert!(is_right, "{wait:?}: {self:?}");
        assert_eq!(before, self.states(), "changed by a refusal: {self:?}");
        false
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}\n{}", self.pair, self.history)
    }
}

/// With bans that nobody gets, and without: such calls are carried out in another way.
fn bans() -> [Option<Ban>; 2] {
    [None, Some(Ban::after(1000))]
}

/// What is granted at one instant to two that ask in turns until both are refused, at least and at
/// most. Each has what the other has not taken: the greater limit in all.
fn at_one_instant([old, new]: [Version; 2]) -> [u64; 2] {
    let (more, both) = (old.permits.max(new.permits), old.permits + new.permits);
    match (old.kind == Kind::Calendar, new.kind == Kind::Calendar) {
        // A day and a month have the same label on the first of a month.
        (true, true) if old.is_long != new.is_long => [more, both],
        // Neither takes over what the other has in use.
        (true, false) | (false, true) => [both; 2],
        _ => [more; 2],
    }
}

#[tokio::test]
async fn at_one_instant_two_versions_have_the_greater_limit() {
    let service = Service::new();
    for pair in Version::pairs() {
        for ban in bans() {
            let mut shared = Shared::new(&service, pair, ban);
            let (mut turn, mut refused) = (0, 0);
            let [least, most] = at_one_instant(pair);
            while refused < 2 {
                let is_granted = shared.ask(turn % 2, 1).await;
                (turn, refused) = (turn + 1, if is_granted { 0 } else { refused + 1 });
                let granted = shared.granted_since(Duration::ZERO);
                assert!(granted <= most, "{granted} of {most}: {shared:?}");
            }
            let granted = shared.granted_since(Duration::ZERO);
            assert!(granted >= least, "{granted} of {least}: {shared:?}");
            assert!(shared.limiters[turn % 2].delete().await.unwrap());
            for (limiter, version) in shared.limiters.iter().zip(pair) {
                assert_eq!(free(limiter).await, version.permits, "deleted: {shared:?}");
            }
        }
    }
}

/// What passes between two requests: so that none is nearly as old as an interval, as a busy
/// machine lets more pass than that.
const UNIT: Duration = secs(13 * 60);

#[tokio::test]
async fn over_time_two_versions_have_no_more_than_both_limits() {
    let (service, mut random) = (Service::new(), Random(seed()));
    for pair in Version::pairs() {
        for ban in bans() {
            let mut shared = Shared::new(&service, pair, ban);
            for _ in 0..20 {
                let units = random.of(&[0, 0, 0, 0, 1, 1, 3, 5, 70, 277]);
                if units > 0 {
                    shared.pass(units * UNIT);
                }
                let by = random.place(2);
                shared.ask(by, random.of(&[1, 1, 2, 3])).await;
            }
            check_bounds(&shared);
            check_all_is_free(&mut shared).await;
        }
    }
}

/// In the shorter interval, both have the greater limit, and what comes free of it meanwhile. Of a
/// calendar and another kind, each has its own. What is used of a month is not of a day, whose
/// window both count in then.
fn check_bounds(shared: &Shared) {
    let [old, new] = shared.pair;
    let time = old.interval().min(new.interval());
    let both = shared.most_in(time, None);
    let each = [0, 1].map(|by| {
        let version = shared.pair[by];
        let most = version.permits + version.returns();
        (shared.most_in(time, Some(by)), most)
    });
    let greater = old.permits.max(new.permits);
    let is_right = match (old.kind == Kind::Calendar, new.kind == Kind::Calendar) {
        (true, true) if old.is_long != new.is_long => both <= 2 * greater,
        (true, true) | (false, false) => both <= greater + old.returns() + new.returns(),
        _ => each.iter().all(|(granted, most)| granted <= most),
    };
    assert!(is_right, "{both} in {time:?}, {each:?}: {shared:?}");
}

/// The longer interval later, whatever was granted is free again, but by the calendar.
async fn check_all_is_free(shared: &mut Shared) {
    let longest = (shared.pair.into_iter()).filter(|it| it.kind != Kind::Calendar);
    let Some(longest) = longest.map(Version::interval).max() else {
        return;
    };
    shared.pass(longest + SECOND);
    for number in [0, 1] {
        let version = shared.pair[number];
        if version.kind != Kind::Calendar {
            assert_eq!(
                free(&shared.limiters[number]).await,
                version.permits,
                "{shared:?}"
            );
        }
    }
}
