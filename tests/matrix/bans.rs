//! Checks bans by what callers were answered: a banned caller was refused before, as often as its
//! rule says.
//!
//! The refusals of all processes count, wherever they were answered from. A ban that begins with a
//! request was filled by it, or by another of the same call. When a ban began follows from the
//! wait. A call that was answered by the failure policy may be under way: a server that paused
//! carries it out later, and its refusal counts.

use crate::scene::*;
use std::collections::BTreeMap;

use super::{
    answer::{Answer, By, Outcome},
    lanes::{BANNED, STRIKES},
};

/// By how much clocks of whole milliseconds may be apart.
const SLACK: Duration = Duration::from_millis(5);

/// For how long after its caller was answered a call may be under way: no row keeps one up longer.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// The refusals of each user of each lane that bans.
#[derive(Debug, Default)]
pub struct Bans(BTreeMap<(usize, usize), Refusals>);

#[derive(Debug, Default)]
struct Refusals {
    /// When asked for, and when answered
    over: Vec<[Duration; 2]>,
    /// When the ban began, at the earliest and at the latest
    banned: Vec<[Duration; 2]>,
}

impl Bans {
    pub fn see(&mut self, answer: &Answer) {
        if !answer.lane().bans() {
            return;
        }
        let user = self.0.entry((answer.lane, answer.user)).or_default();
        let times = [answer.sent, answer.sent + answer.took];
        match answer.outcome {
            Outcome::Refused(By::Store | By::Cache, _) => user.over.push(times),
            Outcome::Refused(By::Policy, _) => user.over.push([times[0], times[1] + UNDER_WAY]),
            Outcome::Banned(_, wait) => {
                let since =
                    |time: Duration| (time + wait.unwrap_or_default()).saturating_sub(BANNED);
                user.banned.push(times.map(since));
            }
            _ => {}
        }
    }

    /// Returns how many requests were refused by a ban, of callers whose clocks may differ.
    ///
    /// # Panics
    ///
    /// If a caller was banned that had not been refused often enough.
    pub fn check(&self, skew: Duration) -> usize {
        for (user, Refusals { over, banned }) in &self.0 {
            for &[first, last] in banned {
                let reach = BANNED + SLACK + skew;
                let counts = |times: &&[Duration; 2]| {
                    times[1] + reach >= first && times[0] <= last + SLACK + skew
                };
                let strikes = over.iter().filter(counts).count() + 1;
                assert!(
                    strikes >= STRIKES as usize,
                    "O3: banned at {first:?} after {strikes} refusals: {user:?}"
                );
            }
        }
        self.0.values().map(|user| user.banned.len()).sum()
    }
}

/// The check itself can fail.
mod tests {
    use super::*;
    use crate::lanes::{LANES, Lane};

    /// Returns a user's answers, each with the ms of its request.
    fn bans(answers: impl IntoIterator<Item = (u64, Outcome)>) -> Bans {
        let mut bans = Bans::default();
        for (sent, outcome) in answers {
            bans.see(&Answer {
                handle: 0,
                lane: LANES.iter().position(Lane::bans).unwrap(),
                user: 1,
                permits: 1,
                sent: millis(sent),
                took: millis(1),
                budget: millis(250),
                outcome,
            });
        }
        bans
    }

    fn refused(times: u32) -> impl Iterator<Item = (u64, Outcome)> {
        (0..times).map(|_| (1000, Outcome::Refused(By::Cache, None)))
    }

    const BANNED: (u64, Outcome) = (1100, Outcome::Banned(By::Store, Some(super::BANNED)));

    #[test]
    fn the_last_of_the_refusals_is_a_ban() {
        let answers = refused(STRIKES - 1).chain([BANNED]);
        assert_eq!(bans(answers).check(Duration::ZERO), 1);
    }

    #[test]
    #[should_panic(expected = "O3: banned at 1.1s after 19 refusals")]
    fn a_ban_that_comes_too_early_is_found() {
        bans(refused(STRIKES - 2).chain([BANNED])).check(Duration::ZERO);
    }

    #[test]
    fn calls_under_way_are_refused_later() {
        let unheard = |at: u64| (at, Outcome::Refused(By::Policy, None));
        let answers = (1..STRIKES).map(|_| unheard(50)).chain([BANNED]);
        assert_eq!(bans(answers).check(Duration::ZERO), 1);
        let answers = (1..STRIKES).map(|_| unheard(1200)).chain([BANNED]);
        let early = std::panic::catch_unwind(|| bans(answers).check(Duration::ZERO));
        early.expect_err("calls that are sent after the ban do not count");
        let late = (4000, BANNED.1);
        let answers = (1..STRIKES).map(|_| unheard(50)).chain([late]);
        let late = std::panic::catch_unwind(|| bans(answers).check(Duration::ZERO));
        late.expect_err("calls that are no longer under way do not count");
    }

    #[test]
    #[should_panic(expected = "O3: banned at 9s after 1 refusals")]
    fn a_ban_for_what_is_forgotten_is_found() {
        let late = (9000, Outcome::Banned(By::Store, Some(super::BANNED)));
        bans(refused(STRIKES).chain([late])).check(Duration::ZERO);
    }
}
