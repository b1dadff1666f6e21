//! Checks bans by what callers were answered: a banned caller was refused before, as often as its
//! rule says.
//!
//! The refusals of all processes count, wherever they were answered from. A ban that begins with a
//! request was filled by it, or by another of the same call.

use crate::scene::*;
use std::collections::BTreeMap;

use super::{
    answer::{Answer, By, Outcome},
    lanes::{BANNED, STRIKES, WITHIN},
};

/// The refusals and bans of each user of each lane that bans: when asked for, and when answered.
#[derive(Debug, Default)]
pub struct Bans(BTreeMap<(usize, usize), Refusals>);

#[derive(Debug, Default)]
struct Refusals {
    over: Vec<[Duration; 2]>,
    banned: Vec<[Duration; 2]>,
}

impl Bans {
    pub fn see(&mut self, answer: &Answer) {
        if !answer.lane().bans() {
            return;
        }
        let user = self.0.entry((answer.lane, answer.user)).or_default();
        let refusals = match answer.outcome {
            Outcome::Refused(By::Store | By::Cache, _) => &mut user.over,
            Outcome::Banned(..) => &mut user.banned,
            _ => return,
        };
        refusals.push([answer.sent, answer.sent + answer.took]);
    }

    /// Returns how many requests were refused by a ban, of callers whose clocks may differ.
    ///
    /// # Panics
    ///
    /// If a caller was banned that had not been refused often enough.
    pub fn check(&self, skew: Duration) -> usize {
        for (user, Refusals { over, banned }) in &self.0 {
            for &[sent, end] in banned {
                // A process learns of a ban as late as it is answered.
                let reach = WITHIN + BANNED + skew + (end - sent) + SECOND / 10;
                let counts = |times: &&[Duration; 2]| times[1] + reach >= sent && times[0] <= end;
                let strikes = over.iter().filter(counts).count() + 1;
                assert!(
                    strikes >= STRIKES as usize,
                    "O3: banned at {sent:?} after {strikes} refusals: {user:?}"
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

    const BANNED: (u64, Outcome) = (1100, Outcome::Banned(By::Store, None));

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
    #[should_panic(expected = "O3: banned at 9s after 1 refusals")]
    fn a_ban_for_what_is_forgotten_is_found() {
        let late = (9000, Outcome::Banned(By::Store, None));
        bans(refused(STRIKES).chain([late])).check(Duration::ZERO);
    }
}
