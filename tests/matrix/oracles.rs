//! Eight oracles that must hold whatever the fault, written once.
//!
//! - O1: each request is answered within its budget, nothing panics, no task is left.
//! - O2: each request has one response, with its outcome and the source of the decision; the inner
//!   services receive the admitted ones.
//! - O3: while a master keeps its data, no interval has more grants of the store than the limit, by
//!   the server's clock; and callers received only real grants. A process grants no more than its
//!   share of a limit by itself: `shares.rs`. A caller that was not refused before is not banned:
//!   `bans.rs`. Under a label of the calendar no more is used than its limit.
//! - O4: a refusal's wait is above zero and no longer than the interval and the score offset; a
//!   caller that comes back to an idle key after it is admitted.
//! - O5: after the fault decisions come from the store again, with no restart.
//! - O6: attempts to connect are bounded.
//! - O7: when all has expired, the permits left are the limit.
//! - O8: observers see each request once, as it was answered.
//!
//! `Load::end` checks tasks, panics and the count of requests, `Load::decided` the end of a fault.

use super::{
    answer::{Answer, By, Outcome},
    bans::Bans,
    lanes::{How, LANES, Limiter, USERS},
    load::Ended,
    observed,
    shares::Shares,
};
use kit::{ledger::Ledger, scene::*, windows};
use std::fmt::Debug;

/// The delay that two busy cores may add to a budget. A real hang is longer.
pub const GRACE: Duration = Duration::from_secs(1);

/// The delay after its budget with which half of the requests may meet the policy, besides that
/// of the machine: a timer's and a task's turn.
const LATE: Duration = Duration::from_millis(200);

/// The attempts to connect that a handle may make in one second: the pauses between them double
/// from 20 ms to half a second.
const ATTEMPTS: usize = 12;

/// O1, O2 and O4 of answers, one after the other.
#[derive(Debug, Default)]
pub struct Tally {
    pub answers: u64,
    pub by_policy: u64,
    /// Decisions by policy that came `LATE`
    late: u64,
    /// Admitted responses through layers
    allowed_http: u64,
    /// The number of responses by milliseconds; the last counts all longer ones
    times: Vec<u64>,
    pub longest: Duration,
    /// By how much a wait may be longer where callers count by clocks that differ
    skew: Duration,
    /// The longest delay by the machine: of a thread that only slept, or of one that had work,
    /// within a second
    machine: Duration,
    /// Permits received by each lane, and by each user of it
    received: [[u64; USERS]; LANES.len()],
    shares: Shares,
    bans: Bans,
    /// What observers must have seen
    observed: observed::Counts,
}

/// The measurements so far.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub p99: Duration,
    pub longest: Duration,
}

impl Tally {
    /// Measures a load that has ended, with callers whose clocks differ by this much.
    ///
    /// # Panics
    ///
    /// If an answer came later than its budget allows, or announces a wait that none can be.
    pub fn of(ended: &Ended, skew: Duration) -> Self {
        let mut tally = Self {
            machine: ended.machine,
            skew,
            ..Self::default()
        };
        ended.answers.iter().for_each(|answer| tally.see(answer));
        tally
    }

    fn see(&mut self, answer: &Answer) {
        let lane = answer.lane();
        let overdue = answer.took.saturating_sub(answer.budget);
        // A task has more turns to wait for than a thread.
        let machine = self.machine * 2;
        let grace = GRACE + machine;
        assert!(
            overdue < grace,
            "O1: {} hung: {answer:?}, the machine late by {:?}",
            lane.name,
            self.machine
        );
        if let Outcome::Refused(by @ (By::Store | By::Cache | By::Local), wait)
        | Outcome::Banned(by, wait) = answer.outcome
        {
            let wait = wait.unwrap_or_default();
            // A caller that counts by its own clock reads it before its call leaves: one whose call
            // overtakes it may have read the time later, by what the call took.
            let apart = match self.skew {
                Duration::ZERO => Duration::ZERO,
                skew => skew + answer.took,
            };
            let longest = match by {
                By::Local => lane.longest_local_wait(),
                _ => lane.longest_wait() + apart,
            };
            // A caller at the end of its time in the queue may get a wait of zero: its time was
            // over, not the wait.
            let announced = !wait.is_zero() || lane.how == How::Waiter;
            assert!(
                announced && wait <= longest,
                "O4: {} is to wait {wait:?}: {answer:?}",
                lane.name
            );
        }
        self.answers += 1;
        self.by_policy += u64::from(answer.by_policy());
        self.late += u64::from(answer.by_policy() && overdue > LATE + machine);
        self.allowed_http += u64::from(lane.is_http() && answer.is_granted());
        self.received[answer.lane][answer.user] += answer.received();
        self.shares.see(answer);
        self.bans.see(answer);
        observed::count(&mut self.observed, answer);
        // The line is to be waited in: that is no delay.
        if lane.how != How::Waiter {
            let millis = answer.took.as_millis() as usize;
            self.times.resize(self.times.len().max(millis + 1), 0);
            self.times[millis] += 1;
            self.longest = self.longest.max(answer.took);
        }
    }

    pub fn measured(&self) -> Measured {
        let all: u64 = self.times.iter().sum();
        let (mut below, mut p99) = (0, 0);
        for (millis, count) in self.times.iter().enumerate() {
            below += count;
            if below * 100 >= all * 99 {
                p99 = millis as u64 + 1;
                break;
            }
        }
        Measured {
            p99: Duration::from_millis(p99),
            longest: self.longest,
        }
    }

    /// O1, of all: the budget is what bounds a decision, and not some other time.
    pub fn check_times(&self) {
        let (late, all) = (self.late, self.by_policy);
        assert!(
            late * 2 <= all || all < 20,
            "O1: {late} of {all} by policy were late"
        );
    }

    /// Checks O2: each request was answered once, the inner service has received the admitted ones,
    /// and observers have seen each once, as it was answered (O8).
    pub fn check_counts(&self, ended: &Ended) {
        assert!(ended.wrong.is_empty(), "O2: {:#?}", ended.wrong);
        assert_eq!(ended.answered, ended.sent, "O2: answered, and sent");
        assert_eq!(self.answers, ended.sent, "O2: counted, and sent");
        let passed = (ended.passed, self.allowed_http);
        assert_eq!(passed.0, passed.1, "O2: behind the layers, and let through");
        assert_eq!(ended.observed, self.observed, "O8: observed, and answered");
    }

    /// Checks O3 for decisions by a share of the limit. Returns the permits granted that way.
    pub fn check_shares(&mut self) -> u64 {
        self.shares.check()
    }

    /// Checks O3 for bans. Returns the number of requests that were refused by one.
    pub fn check_bans(&self, twice: bool) -> usize {
        self.bans.check(self.skew, 1 + usize::from(twice))
    }

    /// Checks the second half of O3: no caller received a grant that the server does not have, or
    /// that was given back.
    pub fn check_received<'a>(
        &self,
        ledger: &Ledger,
        limiters: impl IntoIterator<Item = &'a Limiter>,
    ) {
        for limiter in limiters {
            let received = match limiter.user {
                Some(user) => self.received[limiter.lane][user],
                None => self.received[limiter.lane].iter().sum(),
            };
            let kept = ledger.kept(&limiter.log());
            assert!(
                received as i64 <= kept,
                "O3: callers of {} received {received} permits, and {kept} were granted",
                limiter.name
            );
        }
    }
}

/// Checks O3: no window is fuller than its limit, unless data was lost in it. Returns the number of
/// grants.
pub fn never_over(ledger: &Ledger, limiters: &[Limiter]) -> i64 {
    for limiter in limiters {
        let (rate, interval) = (limiter.allowed.rate, limiter.allowed.interval);
        let fullest = ledger.fullest_window(&limiter.log(), interval);
        assert!(
            fullest <= rate,
            "O3: {fullest} of {rate} in {interval} ms of {}",
            limiter.name
        );
    }
    ledger.granted_permits()
}

/// Returns by how much one interval exceeded the limit after a data loss: the most of any limiter,
/// as a part of its limit.
pub fn over_admission(ledger: &Ledger, limiters: &[Limiter]) -> f64 {
    let over = limiters.iter().map(|limiter| {
        let (rate, interval) = (limiter.allowed.rate, limiter.allowed.interval);
        let fullest = ledger.fullest_window_of_all(&limiter.log(), interval);
        (fullest - rate).max(0) as f64 / rate as f64
    });
    over.fold(0.0, f64::max)
}

/// O6: the most connections that came within one second, against what so many handles may make.
///
/// A connection that the fault itself cut may be replaced at once: `cut` of them.
pub fn few_connections(came: &[Instant], handles: usize, cut: usize) -> usize {
    let each = came.iter().map(|at| (*at - came[0], 1));
    let most = windows(each, SECOND).into_iter().max().unwrap_or(0) as usize;
    let bound = handles * ATTEMPTS + cut;
    assert!(
        most <= bound,
        "O6: {most} of {bound} connections in a second"
    );
    most
}

/// Asserts that a check fails, in these words.
#[track_caller]
pub fn finds<T: Debug>(words: &str, check: impl FnOnce() -> T) {
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    let found = found.expect_err(words).downcast::<String>();
    let said = found.expect("a text");
    assert!(said.contains(words), "{said}");
}

/// Each oracle can fail.
mod tests {
    use super::*;
    use crate::answer::By;

    fn answer(took: u64, outcome: Outcome) -> Answer {
        Answer {
            handle: 0,
            lane: 0,
            user: 0,
            permits: 1,
            sent: Duration::ZERO,
            took: Duration::from_millis(took),
            budget: Duration::from_millis(250),
            outcome,
        }
    }

    fn ended(sent: u64, answered: u64, passed: u64) -> Ended {
        Ended {
            limiters: Vec::new(),
            answers: Vec::new(),
            sent,
            answered,
            passed,
            observed: observed::Counts::new(),
            lost_receipts: 0,
            machine: Duration::ZERO,
            wrong: std::collections::BTreeSet::new(),
        }
    }

    const BY_STORE: Outcome = Outcome::Granted(By::Store);
    const BY_POLICY: Outcome = Outcome::Refused(By::Policy, None);

    fn seen(answer: &Answer) -> Tally {
        let mut tally = Tally::default();
        tally.see(answer);
        tally
    }

    #[test]
    fn an_answer_that_none_can_be_is_found() {
        let [longest, of_share] = [LANES[0].longest_wait(), LANES[0].longest_local_wait()]
            .map(|wait| Some(wait + millis(1)));
        for (words, took, outcome) in [
            ("O1", 1251, BY_STORE),
            ("O4", 1, Outcome::Refused(By::Cache, Some(Duration::ZERO))),
            ("O4", 1, Outcome::Refused(By::Store, longest)),
            ("O4", 1, Outcome::Refused(By::Local, of_share)),
        ] {
            finds(words, || seen(&answer(took, outcome)));
        }
    }

    #[test]
    fn answers_that_all_come_late_are_found() {
        let mut tally = Tally::default();
        for _ in 0..30 {
            tally.see(&answer(500, BY_POLICY));
        }
        finds("O1: 30 of 30", || tally.check_times());
    }

    #[test]
    fn counts_that_differ_are_found() {
        for (words, outcome, ended) in [
            ("O2: answered", BY_STORE, ended(2, 1, 1)),
            ("O2: counted", BY_STORE, ended(2, 2, 1)),
            ("O2: behind", BY_POLICY, ended(1, 1, 1)),
            ("O8", BY_POLICY, ended(1, 1, 0)),
        ] {
            finds(words, || seen(&answer(1, outcome)).check_counts(&ended));
        }
    }

    #[test]
    fn a_grant_that_the_server_did_not_make_is_found() {
        let (tally, limiters) = (seen(&answer(1, BY_STORE)), Limiter::all("any"));
        finds("O3: callers", || {
            tally.check_received(&Ledger::default(), &limiters);
        });
    }

    #[test]
    fn a_storm_is_found() {
        let now = Instant::now();
        let came: Vec<_> = (0..30).map(|n| now + millis(n * 30)).collect();
        finds("O6", || few_connections(&came, 2, 2));
    }

    #[test]
    fn times_are_counted() {
        let mut tally = Tally::default();
        for took in 0..200 {
            tally.see(&answer(took / 2, BY_STORE));
        }
        let Measured { p99, longest } = tally.measured();
        assert_eq!((p99.as_millis(), longest.as_millis()), (99, 99));
    }
}
