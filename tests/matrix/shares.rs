//! Checks the decisions of a process while the store cannot decide: by its share of the limit, no
//! more and no less.
//!
//! It goes by what the callers received. A decision was made at some time between request and
//! response, by a clock of whole milliseconds. So grants surely made within one interval less a
//! millisecond are within one interval for the process too, and grants that cannot have been made
//! within the time that it remembers are no reason to refuse.

use kit::scene::*;
use std::collections::BTreeMap;

use super::{
    answer::{Answer, By, Outcome},
    lanes::{Allowed, How, LANES, millis},
};

/// By how much two times in whole milliseconds are nearer to each other than they were.
const WHOLE_MILLISECOND: Duration = Duration::from_millis(1);

/// The responses of the lane with a share, by process and limiter.
#[derive(Debug, Default)]
pub struct Shares(BTreeMap<Limiter, Vec<Received>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Limiter {
    handle: usize,
    lane: usize,
    /// In the lane's list
    place: usize,
    user: Option<usize>,
}

/// One answer of the store or by the share.
#[derive(Clone, Copy, Debug)]
struct Received {
    sent: Duration,
    end: Duration,
    permits: i64,
    is_local: bool,
    is_granted: bool,
}

impl Shares {
    pub fn see(&mut self, answer: &Answer) {
        let (is_local, is_granted) = match answer.outcome {
            Outcome::Granted(By::Store) => (false, true),
            Outcome::Granted(By::Local) => (true, true),
            Outcome::Refused(By::Local, _) => (true, false),
            _ => return,
        };
        let lane = answer.lane();
        if lane.how != How::Local {
            return;
        }
        for (place, allowed) in lane.limits().enumerate() {
            let limiter = Limiter {
                handle: answer.handle,
                lane: answer.lane,
                place,
                user: allowed.by_user.then_some(answer.user),
            };
            self.0.entry(limiter).or_default().push(Received {
                sent: answer.sent,
                end: answer.sent + answer.took,
                permits: i64::from(answer.permits),
                is_local,
                is_granted,
            });
        }
    }

    /// Returns how many permits were granted by shares.
    ///
    /// # Panics
    ///
    /// If an interval has more of them than the share, including the store's grants before the
    /// outage, or if a caller was refused before the share was used.
    pub fn check(&mut self) -> u64 {
        let mut granted = 0;
        for (limiter, received) in &mut self.0 {
            let allowed = LANES[limiter.lane].limits().nth(limiter.place);
            let allowed = allowed.expect("a limit of the lane");
            received.sort_by_key(|answer| answer.sent);
            granted += History::new(received, allowed).check(limiter);
        }
        granted
    }
}

/// All responses that one process received for one limiter, in the order of the requests.
struct History<'a> {
    received: &'a [Received],
    allowed: Allowed,
    interval: Duration,
    /// The longest time from question to answer
    slowest: Duration,
}

impl<'a> History<'a> {
    fn new(received: &'a [Received], allowed: Allowed) -> Self {
        let slowest = received.iter().map(|answer| answer.end - answer.sent).max();
        Self {
            received,
            allowed,
            interval: millis(allowed.interval),
            slowest: slowest.unwrap_or_default(),
        }
    }

    fn check(&self, limiter: &Limiter) -> u64 {
        let share = self.allowed.share();
        let mut granted = 0;
        // Since when this process decides, and until when it surely did last.
        let mut outage: Option<(Duration, Duration)> = None;
        for answer in self.received.iter().filter(|answer| answer.is_local) {
            // What it had granted before is forgotten when nothing was asked of it for so long.
            let goes_on =
                outage.filter(|(_, last)| answer.sent < *last + self.interval + WHOLE_MILLISECOND);
            let (began, last) = goes_on.unwrap_or((answer.sent, answer.end));
            outage = Some((began, last.max(answer.end)));
            if answer.is_granted {
                let used = self.surely_used(answer, began);
                assert!(
                    used <= share,
                    "O3: {used} permits where a share has {share}, in an outage since {began:?}: {limiter:?}, {answer:?}"
                );
                granted += answer.permits.unsigned_abs();
            } else {
                let used = self.perhaps_used(answer);
                assert!(
                    used + answer.permits > share,
                    "O3: refused after {used} permits, and a share has {share}: {limiter:?}, {answer:?}"
                );
            }
        }
        granted
    }

    /// Returns the permits that this process knew of, and must have counted, within the interval
    /// that ends with this response: its own grants, and the store's before the outage began.
    /// Grants of the store during an outage are counted only up to the limit, so they are left out.
    fn surely_used(&self, answer: &Received, began: Duration) -> i64 {
        let from = (answer.end + WHOLE_MILLISECOND).saturating_sub(self.interval);
        let within = self.asked_between(from, answer.end);
        let surely = within.filter(|other| {
            if other.is_local {
                other.end <= answer.end
            } else {
                other.end <= began
            }
        });
        surely.map(|other| other.permits).sum()
    }

    /// Returns the permits that it may have counted. A grant of the store may count an eighth of
    /// the interval too long and, if permits of this process are in use, from the process's first
    /// decision after it.
    fn perhaps_used(&self, answer: &Received) -> i64 {
        let reach = self.interval * 2 + self.interval / 8 + WHOLE_MILLISECOND * 3;
        let from = answer.sent.saturating_sub(reach);
        let within = self.asked_between(from.saturating_sub(self.slowest), answer.end);
        let perhaps = within.filter(|other| other.end >= from);
        perhaps.map(|other| other.permits).sum()
    }

    /// The grants that were asked for in this time.
    fn asked_between(&self, from: Duration, to: Duration) -> impl Iterator<Item = &'a Received> {
        let first = self.received.partition_point(|answer| answer.sent < from);
        let asked = self.received[first..].iter();
        asked
            .take_while(move |answer| answer.sent <= to)
            .filter(|answer| answer.is_granted)
    }
}

/// The check itself can fail.
mod tests {
    use super::*;
    use crate::oracles::finds;

    const GRANTED: Outcome = Outcome::Granted(By::Local);
    const REFUSED: Outcome = Outcome::Refused(By::Local, None);
    const BY_STORE: Outcome = Outcome::Granted(By::Store);

    /// The lane's own: ten permits in 530 ms.
    const SHARE: usize = 10;

    /// The ms of request and response, and the response.
    type Timed = (u64, u64, Outcome);

    fn see(shares: &mut Shares, handle: usize, user: usize, (sent, end, outcome): Timed) {
        let lane = LANES.iter().position(|lane| lane.how == How::Local);
        shares.see(&Answer {
            handle,
            lane: lane.unwrap(),
            user,
            permits: 1,
            sent: Duration::from_millis(sent),
            took: Duration::from_millis(end - sent),
            budget: Duration::from_millis(250),
            outcome,
        });
    }

    /// Returns the responses to one user of a process.
    fn shares(answers: impl IntoIterator<Item = Timed>) -> Shares {
        let mut shares = Shares::default();
        for answer in answers {
            see(&mut shares, 0, 1, answer);
        }
        shares
    }

    fn times(count: usize, sent: u64, end: u64, outcome: Outcome) -> Vec<Timed> {
        vec![(sent, end, outcome); count]
    }

    /// All of it, which is used up in a ms.
    fn share(sent: u64) -> Vec<Timed> {
        times(SHARE, sent, sent + 1, GRANTED)
    }

    #[test]
    fn what_a_share_allows_is_no_fault() {
        for answers in [
            // A share in each interval.
            vec![share(1000), times(3, 1100, 1101, REFUSED), share(1530)],
            // Asked for in 530 ms: it may have been granted at the end of it.
            vec![
                times(SHARE, 1000, 1250, GRANTED),
                times(SHARE, 1250, 1531, GRANTED),
            ],
            // The store granted longer ago, or meanwhile.
            vec![
                times(SHARE, 1000, 1001, BY_STORE),
                share(1530),
                times(SHARE, 1600, 1601, BY_STORE),
                share(2061),
            ],
        ] {
            assert_eq!(shares(answers.concat()).check(), 2 * SHARE as u64);
        }
    }

    #[test]
    fn what_a_share_does_not_allow_is_found() {
        let granted = |count, sent| times(count, sent, sent + 1, GRANTED);
        let more = "O3: 11 permits";
        for (words, answers) in [
            (more, vec![share(1000), times(1, 1500, 1529, GRANTED)]),
            // With what the store granted before.
            (
                more,
                vec![times(4, 1000, 1001, BY_STORE), granted(SHARE - 3, 1400)],
            ),
            // In an outage after another.
            (
                more,
                vec![
                    share(1000),
                    times(SHARE, 1500, 1501, BY_STORE),
                    granted(1, 1600),
                ],
            ),
            (
                "O3: refused after 9 permits",
                vec![granted(SHARE - 1, 1000), times(1, 1100, 1101, REFUSED)],
            ),
        ] {
            finds(words, || shares(answers.concat()).check());
        }
    }

    #[test]
    fn processes_and_users_have_their_own() {
        let mut all = Shares::default();
        for (handle, user) in [(0, 1), (1, 1), (0, 2)] {
            for answer in share(1000) {
                see(&mut all, handle, user, answer);
            }
        }
        assert_eq!(all.check(), 3 * SHARE as u64);
    }
}
