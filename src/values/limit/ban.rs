//! The terms by which a rule bans callers: [`Ban`].

use std::time::Duration;

use super::whole_millis;
use crate::values::error::{ConfigError, bail};

/// The most refusals that a ban can wait for: each of them is kept for as long as it counts.
const MOST_STRIKES: u32 = 10_000;

/// Bans a caller for a time, once it was refused too often.
///
/// A refusal counts if the limit of the rule has no room, whatever the request costs. Refusals for
/// other reasons do not count. A banned caller is refused as
/// [`RefusalKind::Banned`](crate::RefusalKind::Banned). Its requests are not counted, so asking
/// does not prolong its ban.
///
/// Units: whole milliseconds, at least one and at most a century; 1 to 10 000 refusals. Anything
/// else is a [`ConfigError`] when the layer is built.
///
/// # Example
///
/// ```
/// use std::time::Duration;
///
/// use tower_ratelimit::{Ban, Limit, key::PeerIp};
///
/// let minute = Duration::from_secs(60);
/// let ban = Ban::after(10).within(minute).lasting(15 * minute).doubling_to(24 * 60 * minute);
/// let login = Limit::per_minute(5).by(PeerIp).named("login").ban(ban);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it bans no caller until a rule has it"]
pub struct Ban {
    pub(crate) after: u32,
    within: Duration,
    lasting: Duration,
    doubling_to: Option<Duration>,
    pub(crate) status: u16,
}

impl Ban {
    /// Bans a caller at this refusal, counted [within](Self::within) a time.
    ///
    /// With [`charge_if`](crate::Rule::charge_if), requests under way hold permits too: choose more
    /// than the number of requests that an honest caller makes at once.
    pub fn after(refusals: u32) -> Self {
        Self {
            after: refusals,
            within: Duration::from_secs(60),
            lasting: Duration::from_secs(15 * 60),
            doubling_to: None,
            status: 429,
        }
    }

    /// Sets for how long a refusal counts. Default: a minute.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Sets how long a ban lasts. Default: 15 minutes.
    pub fn lasting(mut self, time: Duration) -> Self {
        self.lasting = time;
        self
    }

    /// Doubles each further ban of a caller, up to this time. A caller that was not
    /// banned for as long as its last ban lasted starts again with the first. Default: each ban
    /// lasts as long as the first.
    pub fn doubling_to(mut self, longest: Duration) -> Self {
        self.doubling_to = Some(longest);
        self
    }

    /// Sets the HTTP status of a banned request, from 400 to 499. Default: 429. In gRPC it is
    /// RESOURCE_EXHAUSTED in any case, and a client that follows its pushback does not retry.
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Checks that callers can be banned by it. Those of a limit that also `leases` cannot be.
    pub(crate) fn check(&self, rule: &str, leases: bool) -> Result<(), ConfigError> {
        if !(1..=MOST_STRIKES).contains(&self.after) {
            bail!(Rule: "rule {rule:?} bans after 1 to {MOST_STRIKES} refusals, not {}", self.after);
        }
        let times = [
            ("counts refusals", Some(self.within)),
            ("bans", Some(self.lasting)),
            ("doubles bans", self.doubling_to),
        ];
        for (what, time) in times {
            if let Some(time) = time.filter(|time| whole_millis(*time).is_none()) {
                bail!(Rule: "rule {rule:?} {what} for whole milliseconds, at least one and at most \
                    a century, not {time:?}");
            }
        }
        if let Some(longest) = self.doubling_to.filter(|longest| *longest < self.lasting) {
            bail!(Rule: "rule {rule:?} doubles bans of {:?} up to {longest:?}, which is shorter",
                self.lasting);
        }
        if !(400..=499).contains(&self.status) {
            bail!(Rule: "rule {rule:?} answers a banned request with a status from 400 to 499, not \
                {}", self.status);
        }
        if leases {
            bail!(Rule: "rule {rule:?} leases permits and bans callers: a leased permit does not \
                reach the store, so choose one of the two");
        }
        Ok(())
    }

    /// Returns in milliseconds for how long a refusal counts, how long the first ban lasts, and the
    /// longest.
    pub(crate) fn millis(&self) -> [i64; 3] {
        let longest = self.doubling_to.unwrap_or(self.lasting);
        let millis = |time| whole_millis(time).unwrap_or(1).cast_signed();
        [self.within, self.lasting, longest].map(millis)
    }
}
