//! The requests of the load: one lane for each way to use a limiter.

use super::guards::SHARE;
use kit::{calendar_key, companion, scene::*, state_key};
use tower_ratelimit::Ban;

/// A way to use a limiter, and the limit. No two lanes have the same limit, so that a mixed-up
/// response is noticed.
#[derive(Debug)]
pub struct Lane {
    pub name: &'static str,
    pub how: How,
    limits: &'static [Allowed],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// A layer of one rule, or of several, whose requests fail that way
    Layer(FailurePolicy),
    /// A layer that takes permits ahead
    Leased(FailurePolicy),
    /// A layer that goes on by a share of the limit, in this process
    Local,
    /// A layer that bans the one user who sends most of the requests
    Banning(FailurePolicy),
    /// `RateLimiter::try_acquire_many`, of one to three permits
    Limiter,
    /// The same of up to a thousand permits, which are soon used up for the day: a refusal that is
    /// cached is for one number of permits, so that the store goes on deciding
    Calendar,
    /// `RateLimiter::try_acquire_for`, one permit
    Waiter,
}

/// One limit of a lane.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    pub rate: i64,
    /// In milliseconds
    pub interval: i64,
    /// Set if each user has a limiter of its own
    pub by_user: bool,
}

const DAY: i64 = 86_400_000;

pub const USERS: usize = 4;

/// The ban of the lane that has one: by so many refusals, within this time, and for as long: longer
/// than its limit has its callers wait, so that the wait tells when the ban began.
pub const STRIKES: u32 = 20;
pub const BANNED: Duration = Duration::from_millis(700);

pub fn ban() -> Ban {
    Ban::after(STRIKES)
        .within(BANNED)
        .lasting(BANNED)
        .status(403)
}

const fn allowed(rate: i64, interval: i64, by_user: bool) -> Allowed {
    Allowed {
        rate,
        interval,
        by_user,
    }
}

const fn lane(name: &'static str, how: How, limits: &'static [Allowed]) -> Lane {
    Lane { name, how, limits }
}

pub const LANES: [Lane; 9] = [
    lane(
        "door",
        How::Layer(FailurePolicy::Deny),
        &[allowed(47, 500, false)],
    ),
    lane(
        "gate",
        How::Layer(FailurePolicy::Allow),
        &[allowed(13, 400, true)],
    ),
    lane(
        "both",
        How::Layer(FailurePolicy::Deny),
        &[allowed(41, 450, false), allowed(14, 480, true)],
    ),
    lane(
        "rush",
        How::Leased(FailurePolicy::Deny),
        &[allowed(120, 500, false)],
    ),
    lane("orders", How::Limiter, &[allowed(59, 470, false)]),
    lane("queue", How::Waiter, &[allowed(29, 300, false)]),
    lane("half", How::Local, &[allowed(21, 530, true)]),
    lane(
        "bans",
        How::Banning(FailurePolicy::Deny),
        &[allowed(37, 510, true)],
    ),
    lane("quota", How::Calendar, &[allowed(100_000, DAY, false)]),
];

impl Lane {
    pub fn limits(&self) -> impl Iterator<Item = Allowed> {
        self.limits.iter().copied()
    }

    /// The longest wait that can be announced: a score may lead by a tenth of the interval.
    pub fn longest_wait(&self) -> Duration {
        let longest = self.limits().map(|limit| limit.interval + limit.ahead());
        let ban = if self.bans() { BANNED } else { Duration::ZERO };
        // The reply is younger than the millisecond that the server counted by.
        ban.max(millis(longest.max().unwrap_or_default())) + millis(1)
    }

    /// Returns the longest wait that this process announces by itself: without score offsets, and
    /// with nothing on its way.
    pub fn longest_local_wait(&self) -> Duration {
        let longest = self.limits().map(|limit| limit.interval).max();
        millis(longest.unwrap_or_default())
    }

    /// Returns the failure policy of requests behind a layer.
    pub fn policy(&self) -> Option<FailurePolicy> {
        match self.how {
            How::Layer(policy) | How::Leased(policy) | How::Banning(policy) => Some(policy),
            How::Local => Some(FailurePolicy::Local(SHARE)),
            How::Limiter | How::Calendar | How::Waiter => None,
        }
    }

    pub fn bans(&self) -> bool {
        matches!(self.how, How::Banning(_))
    }

    pub fn is_http(&self) -> bool {
        self.policy().is_some()
    }
}

impl Allowed {
    pub fn limit(self) -> Limit {
        Limit::new(self.rate as u64, millis(self.interval))
    }

    /// The same number for a day, in UTC.
    pub fn daily(self) -> Limit {
        Limit::daily(self.rate as u64)
    }

    /// The permits and the interval, as decisions have them.
    pub fn said(self) -> (u64, Duration) {
        (self.rate as u64, millis(self.interval))
    }

    /// Returns the permits that one process has while the store cannot decide.
    pub fn share(self) -> i64 {
        (self.rate as f64 * SHARE) as i64
    }

    /// By how much a score may lead its grant.
    pub fn ahead(self) -> i64 {
        self.interval / 10
    }
}

/// One limiter in Redis.
#[derive(Clone, Debug)]
pub struct Limiter {
    pub name: String,
    pub lane: usize,
    /// Whose it is, if it is one user's
    pub user: Option<usize>,
    pub allowed: Allowed,
}

impl Limiter {
    /// All that a load uses under this prefix.
    pub fn all(prefix: &str) -> Vec<Self> {
        let mut all = Vec::new();
        for (index, lane) in LANES.iter().enumerate() {
            for (place, allowed) in lane.limits().enumerate() {
                let users = if allowed.by_user { USERS } else { 1 };
                for user in 0..users {
                    let user = allowed.by_user.then_some(user);
                    let name = match rule(lane, place) {
                        Some(rule) => format!("{prefix}:{{{}}}:{rule}", identity(user)),
                        None => format!("{prefix}-{}", lane.name),
                    };
                    all.push(Self {
                        name,
                        lane: index,
                        user,
                        allowed,
                    });
                }
            }
        }
        all
    }

    pub fn is_calendar(&self) -> bool {
        LANES[self.lane].how == How::Calendar
    }

    /// Returns whether its limit is in the code, and its state one string in our own format. The
    /// others are in Redisson's.
    pub fn in_own_format(&self) -> bool {
        !matches!(LANES[self.lane].how, How::Limiter | How::Waiter)
    }

    /// Returns whether it is a sliding log in our own format.
    pub fn is_own_log(&self) -> bool {
        self.in_own_format() && !self.is_calendar()
    }

    /// Returns what counts the grants: a log, or the state of a calendar.
    pub fn log(&self) -> String {
        if !self.in_own_format() {
            companion(&self.name, "permits")
        } else if self.is_calendar() {
            calendar_key(&self.name)
        } else {
            state_key(&self.name)
        }
    }

    /// The permits left, of a limiter in Redisson's format.
    pub fn value(&self) -> String {
        companion(&self.name, "value")
    }

    /// Returns the limiter, through a store that has the prefix of the load.
    pub fn open(&self, store: &RedisStore) -> RateLimiter {
        if !self.is_own_log() {
            return RateLimiter::new(store, &self.name).unwrap();
        }
        let (_, rule) = self.name.rsplit_once(':').expect("the name of a rule");
        let keyed = self.allowed.limit().named(rule).keyed(store).unwrap();
        let limiter = keyed.of(identity(self.user));
        assert_eq!(limiter.name(), self.name);
        limiter
    }
}

/// The name of a lane's rule at this place in its list, or of its limit without HTTP.
pub fn rule(lane: &Lane, place: usize) -> Option<String> {
    match lane.how {
        How::Calendar => Some(lane.name.to_owned()),
        _ => lane.is_http().then(|| format!("{}-{place}", lane.name)),
    }
}

pub fn identity(user: Option<usize>) -> String {
    user.map_or_else(|| "all".to_owned(), |user| format!("user{user}"))
}

pub fn millis(millis: i64) -> Duration {
    Duration::from_millis(millis as u64)
}
