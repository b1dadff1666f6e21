//! The format of a file of cases.

use serde::Deserialize;

use kit::scene::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) case: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) algorithm: Option<String>,
    pub(super) limit: Option<Numbers>,
    /// The rate and the interval, as a Redisson since 3.38.0 writes them.
    pub(super) java: Option<(String, String)>,
    #[serde(default)]
    pub(super) per_client: bool,
    #[serde(default)]
    pub(super) tiers: Vec<Tier>,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tier {
    pub(super) name: String,
    pub(super) permits: u64,
    pub(super) interval: u64,
}

/// Permits, an interval and, where there is one, a keep-alive time.
pub(super) type Numbers = Vec<u64>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Step {
    pub(super) at: Option<u64>,
    #[serde(default = "first")]
    pub(super) client: String,
    #[serde(default = "first")]
    pub(super) user: String,
    /// How the caller of this step counts, where it is not as the case does.
    pub(super) algorithm: Option<String>,
    pub(super) slots: Option<u32>,

    pub(super) take: Option<u32>,
    pub(super) within: Option<u64>,
    pub(super) by: Option<Numbers>,
    pub(super) tier: Option<String>,
    pub(super) shared: bool,
    pub(super) acquire: Option<u32>,
    pub(super) available: Option<u64>,
    pub(super) release: Option<u32>,
    /// Which grant of the case, and at how many permits.
    pub(super) settle: Option<(usize, u32)>,
    pub(super) repair: Option<i64>,
    pub(super) try_set: Option<Numbers>,
    pub(super) set: Option<Numbers>,
    pub(super) set_or_update: Option<Numbers>,
    pub(super) update: Option<Numbers>,
    pub(super) reset: Option<Numbers>,
    pub(super) expire: Option<u64>,
    pub(super) expire_sooner: Option<u64>,
    pub(super) clear_expire: bool,
    pub(super) delete: bool,
    pub(super) redis: Option<Vec<String>>,
    pub(super) plant: Vec<(i64, u32)>,

    pub(super) allow: Option<Allow>,
    pub(super) deny: Option<Deny>,
    pub(super) wait: Option<u64>,
    pub(super) refused: bool,
    pub(super) never: bool,
    pub(super) error: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) released: Option<u64>,
    pub(super) done: Option<bool>,
    pub(super) stored: Option<Numbers>,
    pub(super) not_stored: bool,
    pub(super) exists: Option<bool>,
    pub(super) life: Option<String>,
    pub(super) fields: Option<String>,
    pub(super) value: Option<i64>,
    pub(super) log: Option<Vec<(i64, u32)>>,
    pub(super) unused: bool,
    pub(super) lives: Option<[i64; 3]>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct Allow {
    pub(super) remaining: u64,
    pub(super) reset: u64,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct Deny {
    pub(super) wait: u64,
    pub(super) remaining: u64,
    pub(super) reset: u64,
}

/// The maximum of an interval: with this many milliseconds, no slot is longer than one.
pub(super) const MOST_SLOTS: u32 = 10_000;

impl Case {
    /// The algorithms that it counts by, besides the default.
    fn algorithms(&self) -> impl Iterator<Item = &str> {
        let of_steps = self.steps.iter().map(|step| &step.algorithm);
        let all = std::iter::once(&self.algorithm).chain(of_steps);
        all.filter_map(|algorithm| algorithm.as_deref())
    }

    /// In Redis a window ends by the server's clock, which stands for no case.
    pub(super) fn runs_in_redis(&self) -> bool {
        let stands = self.steps.iter().all(|step| step.at.is_none());
        stands || !self.algorithms().any(|it| it == "FixedWindow")
    }

    /// Returns whether its results are the same with as many slots as there can be.
    pub(super) fn runs_in_slots(&self) -> bool {
        let has_slots = self.steps.iter().any(|step| step.slots.is_some());
        self.algorithms().next().is_none() && !has_slots && self.longest() <= MOST_SLOTS.into()
    }

    /// The longest interval that is counted by, in milliseconds.
    fn longest(&self) -> u64 {
        let limits = |step: &Step| {
            let set = [&step.try_set, &step.set, &step.set_or_update];
            let changed = [&step.by, &step.update, &step.reset];
            [set, changed]
                .concat()
                .into_iter()
                .flatten()
                .map(|limit| limit[1])
                .max()
        };
        let steps = self.steps.iter().filter_map(limits);
        let limits = steps.chain(self.limit.iter().map(|limit| limit[1]));
        let tiers = self.tiers.iter().map(|tier| tier.interval);
        limits.chain(tiers).max().unwrap_or(0)
    }
}

/// Returns the algorithm of this name.
pub(super) fn algorithm(name: &str) -> Algorithm {
    match name {
        "SlidingLog" => Algorithm::SlidingLog,
        "FixedWindow" => Algorithm::FixedWindow,
        "Gcra" => Algorithm::Gcra,
        other => panic!("no algorithm {other}"),
    }
}

fn first() -> String {
    String::from("a")
}

/// Returns the limit that is written as numbers.
pub(super) fn limit_of(numbers: &Numbers, per_client: bool) -> Limit {
    let limit = Limit::new(numbers[0], millis(numbers[1]));
    let limit = match numbers.get(2) {
        Some(life) => limit.keep_alive(millis(*life)).expect("a keep-alive time"),
        None => limit,
    };
    if per_client {
        limit.per_client()
    } else {
        limit
    }
}
