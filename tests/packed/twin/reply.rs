//! The reply of a call: how each request was decided, as numbers.

use std::iter;

use super::{
    Limit, MOST,
    call::{Call, Row},
};

/// The first number of a group that is no wait: refused by a ban, and no window holds now.
const BANNED: i64 = -(MOST - 1);
const NO_WINDOW: i64 = -(MOST - 2);

/// What a call is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// In us, if it asks for the time
    pub time: Option<i64>,
    pub requests: Vec<Outcome>,
}

/// What a request is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A state is foreign.
    Foreign,
    /// Neither window of a calendar holds now.
    NoWindow,
    /// How many of its callers were granted, of one alone if all enforced charges had room; and of
    /// each charge with a ban: ms until it ends, ms until the caller may come back, and how many
    /// refusals count
    Decided(i64, Vec<Group>, Vec<[i64; 3]>),
    /// The permits that are free again; below zero, those charged
    Settled(i64),
}

/// What a charge is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Set if there is room for some.
    pub room: Option<Standing>,
    /// Set if there is none for some.
    pub refusal: Option<Refusal>,
    /// By several limits, of each: the permits left, the ms until there is one more, and those
    /// until there is room, the greatest number if there never is
    pub each: [Option<[i64; 3]>; 4],
    /// Whether permits were fetched ahead, if that was asked for
    pub ahead: Option<bool>,
}

/// How a limiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The permits left, and the ms until there is one more
    Left { left: i64, next: i64 },
    /// Of GCRA: the backlog in us, and what was given back
    Backlog { backlog: i64, given: i64 },
}

/// Why a charge has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A ban in force refuses it.
    Banned,
    Full {
        /// Ms until there is room; `None` if more is asked for than the rate
        wait: Option<i64>,
        standing: Standing,
        /// Of a log: ms until nothing is in use
        reset: i64,
    },
}

impl Row {
    /// Returns the limits of a group with room, which tells how each stands.
    fn limits(&self) -> Vec<Limit> {
        match self {
            Self::Log(limits) => limits.clone(),
            Self::Gcra(limit) | Self::Window(limit) => vec![*limit],
            Self::Calendar {
                rate,
                dates: [a, b],
            } => {
                let interval = a.end.max(b.end) - a.start.min(b.start);
                vec![Limit {
                    interval,
                    rate: *rate,
                }]
            }
            Self::Ban(_) => Vec::new(),
        }
    }
}

impl Standing {
    fn put(self, Limit { interval, rate }: Limit, numbers: &mut Vec<i64>) {
        match self {
            Self::Backlog { backlog, given } => numbers.extend([backlog, given]),
            // Left below zero would read as a refusal.
            Self::Left { left, next } => {
                let (left, next) = (left.max(0), next.min(interval));
                // Not one number where it would pass the greatest that a script counts.
                if (rate + 1).saturating_mul(interval + 1) <= MOST {
                    numbers.push(left * (interval + 1) + next);
                } else {
                    numbers.extend([left, next]);
                }
            }
        }
    }
}

impl Refusal {
    fn put(self, row: &Row, numbers: &mut Vec<i64>) {
        let Self::Full {
            wait,
            standing,
            reset,
        } = self
        else {
            return numbers.push(BANNED);
        };
        numbers.push(-wait.unwrap_or(MOST));
        match standing {
            Standing::Left { left, .. } => {
                numbers.push(left);
                numbers.extend(matches!(row, Row::Log(_)).then_some(reset));
            }
            Standing::Backlog { backlog, given } => numbers.extend([backlog, given]),
        }
    }
}

impl Reply {
    /// Returns the reply to a call as it is sent: a number, or an array of them and of nils.
    pub fn sent(&self, call: &Call) -> kit::Reply {
        let mut parts = Vec::new();
        parts.extend(self.time.map(kit::Reply::Int));
        for (outcome, request) in self.requests.iter().zip(&call.requests) {
            let mut numbers = Vec::new();
            match outcome {
                Outcome::Foreign => {}
                Outcome::NoWindow => numbers.push(NO_WINDOW),
                Outcome::Settled(freed) if call.only_settles().is_some() => {
                    return kit::Reply::Int(*freed);
                }
                Outcome::Settled(freed) => numbers.push(*freed),
                Outcome::Decided(granted, charges, bans) => {
                    numbers.extend((request.callers > 1).then_some(*granted));
                    for (group, charge) in charges.iter().zip(&request.charges) {
                        if let Some(row) = call.row(charge.row) {
                            group.put(row, &mut numbers);
                        }
                    }
                    numbers.extend(bans.iter().flatten());
                }
            }
            let one = match (&*numbers, call.rows.first()) {
                ([number], Some(Row::Log(_) | Row::Window(_))) => Some(*number),
                _ => None,
            };
            if let Some(one) = one.filter(|one| call.is_lone && *one >= 0) {
                return kit::Reply::Int(one);
            }
            let is_foreign = *outcome == Outcome::Foreign;
            let length = numbers.len() + usize::from(is_foreign);
            parts.extend(call.counts.then_some(kit::Reply::Int(length as i64)));
            parts.extend(numbers.into_iter().map(kit::Reply::Int));
            parts.extend(is_foreign.then_some(kit::Reply::Nil));
        }
        kit::Reply::Array(parts)
    }
}

impl Group {
    fn put(&self, row: &Row, numbers: &mut Vec<i64>) {
        let each = || self.each.into_iter().flatten();
        if let Some(standing) = self.room {
            let of_each = each().map(|[left, next, _]| Standing::Left { left, next });
            let one = iter::once(standing).filter(|_| each().next().is_none());
            let standings = of_each.chain(one).zip(row.limits());
            standings.for_each(|(standing, limit)| standing.put(limit, numbers));
        }
        if let Some(refusal) = self.refusal {
            refusal.put(row, numbers);
            if refusal != Refusal::Banned {
                numbers.extend(each().flat_map(|[left, _, wait]| [left, wait]));
            }
        }
        numbers.extend(self.ahead.map(i64::from));
    }
}
