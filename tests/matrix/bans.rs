//! Checks bans by what callers were answered: a banned caller was refused before, as often as its
//! rule says.
//!
//! The refusals of all processes count, wherever they were answered from. When a ban began follows
//! from the wait. A request that was under way then may have filled it, or have been refused
//! before. A call that was answered by the failure policy may be under way: a server that paused
//! carries it out later, and its refusal counts. Of a call that arrives twice, and not from us,
//! each refusal counts, and the caller gets the second answer.

use kit::scene::*;
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
    /// The same of those that were banned by a ban that began meanwhile
    met: Vec<[Duration; 2]>,
    /// When the ban began, at the earliest and at the latest
    banned: Vec<[Duration; 2]>,
    /// The longest call: what is remembered of a reply may be that much older or younger.
    slowest: Duration,
}

impl Bans {
    pub fn see(&mut self, answer: &Answer) {
        if !answer.lane().bans() {
            return;
        }
        let user = self.0.entry((answer.lane, answer.user)).or_default();
        let times = [answer.sent, answer.sent + answer.took];
        if let Outcome::Refused(By::Store, _) | Outcome::Banned(By::Store, _) = answer.outcome {
            user.slowest = user.slowest.max(answer.took);
        }
        match answer.outcome {
            Outcome::Refused(By::Store | By::Cache, _) => user.over.push(times),
            Outcome::Refused(By::Policy, _) => user.over.push([times[0], times[1] + UNDER_WAY]),
            Outcome::Banned(by, wait) => {
                let since =
                    |time: Duration| (time + wait.unwrap_or_default()).saturating_sub(BANNED);
                let began = times.map(since);
                if by == By::Store && times[0] <= began[1] + SLACK {
                    user.met.push(times);
                }
                user.banned.push(began);
            }
            _ => {}
        }
    }

    /// Returns how many requests were refused by a ban, of callers whose clocks may differ, and
    /// each of whose calls has arrived so many `times` at most.
    ///
    /// # Panics
    ///
    /// If a caller was banned that had not been refused often enough.
    pub fn check(&self, skew: Duration, times: usize) -> usize {
        for (user, refusals) in &self.0 {
            let Refusals {
                over, met, banned, ..
            } = refusals;
            for &[first, last] in banned {
                let reach = BANNED + SLACK + skew + refusals.slowest;
                let counts = |times: &&[Duration; 2]| {
                    times[1] + reach >= first && times[0] <= last + SLACK + skew
                };
                // One that filled it need not have been seen.
                let filled = met.iter().filter(counts).count().max(1);
                let strikes = times * (over.iter().filter(counts).count() + filled);
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
    use crate::{
        lanes::{LANES, Lane},
        oracles::finds,
    };

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

    /// It is answered from memory as soon as that ban is known.
    const KNOWN: (u64, Outcome) = (1102, Outcome::Banned(By::Cache, Some(millis(699))));

    /// A ban of 700 ms that begins at 400 has half a second behind it.
    const MET: (u64, Outcome) = (900, Outcome::Banned(By::Store, Some(millis(200))));

    #[test]
    fn the_last_of_the_refusals_is_a_ban() {
        let answers = refused(STRIKES - 1).chain([BANNED]);
        assert_eq!(bans(answers).check(Duration::ZERO, 1), 1);
    }

    #[test]
    fn a_ban_without_its_refusals_is_found() {
        let late = |at: u64| (at, BANNED.1);
        let earlier = || {
            let refused = refused(STRIKES - 1).map(|(_, outcome)| (300, outcome));
            refused.chain([late(400)])
        };
        let by_policy =
            |at: u64| (1..STRIKES).map(move |_| (at, Outcome::Refused(By::Policy, None)));
        let answers = by_policy(50).chain([BANNED]);
        assert_eq!(bans(answers).check(Duration::ZERO, 1), 1, "refused later");
        let answers = refused(STRIKES - 2).chain([BANNED; 2]);
        assert_eq!(bans(answers).check(Duration::ZERO, 1), 2, "delivered twice");
        let half = |refusals| bans(refused(refusals).chain([BANNED]));
        assert_eq!(half(STRIKES / 2 - 1).check(Duration::ZERO, 2), 1);
        let words = "O3: banned at 1.1s after 18 refusals";
        finds(words, || half(STRIKES / 2 - 2).check(Duration::ZERO, 2));
        for (bans, words) in [
            // It comes too early, or for what is forgotten.
            (bans(refused(STRIKES - 2).chain([BANNED])), "1.1s after 19"),
            (bans(refused(STRIKES).chain([late(9000)])), "9s after 1"),
            // What an earlier ban refuses fills none, and neither does what memory refuses.
            (
                bans(refused(STRIKES - 2).chain([BANNED, KNOWN])),
                "1.1s after 19",
            ),
            (
                bans(
                    earlier()
                        .chain(refused(STRIKES - 2))
                        .chain([MET, late(1200)]),
                ),
                "1.2s after 19",
            ),
            // Calls that are sent after it, and such as are no longer under way, do not count.
            (bans(by_policy(1200).chain([BANNED])), "1.1s after 1"),
            (bans(by_policy(50).chain([late(4000)])), "4s after 1"),
        ] {
            let words = format!("O3: banned at {words} refusals");
            finds(&words, || bans.check(Duration::ZERO, 1));
        }
    }
}
