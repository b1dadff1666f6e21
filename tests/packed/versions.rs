//! Two versions of a service, as a rolling deploy has them, that take of one key in turns: every
//! pair of algorithms, limits and intervals, with a ban that nobody gets and without. Those by the
//! calendar have a key of their own.

use crate::{
    play::{Play, group, kinds, of},
    twin::{
        ban::Terms,
        call::{ASKS, Banning, Charge, Row},
        reply::{Refusal, Standing},
    },
    world::name,
};
use kit::{
    random::{Random, seed},
    windows,
};

const HOUR: i64 = 3_600_000;

#[derive(Clone, Debug)]
struct Version {
    row: Row,
    rate: i64,
    interval: i64,
    /// The most that comes free of it within an interval in which it is taken: one permit after the
    /// other, or at the end of a window
    returns: i64,
}

/// Two versions, and the key that they share.
struct Shared<'p> {
    play: &'p mut Play,
    pair: [Version; 2],
    bans: bool,
    /// When, and how many
    grants: Vec<(i64, i64)>,
}

fn each_pair(mut check: impl FnMut(Shared<'_>)) {
    let mut play = Play::new();
    let limits = [(5, HOUR), (5, 60 * HOUR), (8, HOUR), (8, 60 * HOUR)];
    let all = limits.into_iter().flat_map(|(rate, interval)| {
        let rows = kinds(rate, interval).into_iter().zip([0, rate, rate]);
        rows.map(move |(row, returns)| Version {
            row,
            rate,
            interval,
            returns,
        })
    });
    let all: Vec<_> = all.collect();
    for (old, new) in all
        .iter()
        .flat_map(|old| all.iter().map(move |new| (old, new)))
    {
        for bans in [false, true] {
            play.world.clear();
            check(Shared {
                play: &mut play,
                pair: [old.clone(), new.clone()],
                bans,
                grants: Vec::new(),
            });
        }
    }
}

impl Shared<'_> {
    /// A version asks. Returns whether it is granted. A refusal leaves what is in use as it is.
    fn ask(&mut self, by: usize, permits: i64) -> bool {
        let mut rows = vec![self.pair[by].row.clone()];
        let mut charge = Charge::of(1, 1, permits);
        if self.bans {
            rows.push(Row::Ban(Terms::of([1000; 4])));
            let (key, row) = (2, 2);
            charge.banning = Some(Banning {
                key,
                row,
                ..Banning::default()
            });
        }
        let state = |play: &Play| play.world.keys.get(&name(0)).map(|it| it.bytes.clone());
        let before = state(self.play);
        let outcome = self.play.call(&rows, &[of(1, 0, charge)]).remove(0);
        let Some(refusal) = group(&outcome).refusal else {
            self.grants.push((self.play.ms(), permits));
            return true;
        };
        let longest = self.pair[0].interval.max(self.pair[1].interval) + 1000;
        let is_right = matches!(refusal, Refusal::Full { wait: Some(wait), .. } if 0 < wait && wait <= longest);
        assert!(is_right, "{refusal:?}: {self:?}");
        assert_eq!(before, state(self.play), "changed by a refusal: {self:?}");
        false
    }

    fn is_free(&mut self, by: usize) -> bool {
        let Version { row, rate, .. } = self.pair[by].clone();
        let asked = self.play.one(&row, of(1, ASKS, Charge::of(1, 1, 1)));
        match group(&asked).room {
            Some(Standing::Left { left, .. }) => left == rate,
            Some(Standing::Backlog { backlog, .. }) => backlog == 0,
            None => false,
        }
    }
}

impl std::fmt::Debug for Shared<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, bans {}: {:?}", self.pair, self.bans, self.grants)
    }
}

/// Two that ask in turns until both are refused: each has what the other has not taken.
#[test]
fn at_one_instant_two_versions_have_the_greater_limit() {
    each_pair(|mut shared| {
        let (mut turn, mut refused) = (0, 0);
        while refused < 2 {
            refused = if shared.ask(turn % 2, 1) {
                0
            } else {
                refused + 1
            };
            turn += 1;
        }
        let most = shared.pair[0].rate.max(shared.pair[1].rate);
        assert_eq!(shared.grants.len() as i64, most, "{shared:?}");
    });
}

/// In the shorter interval, both have the greater limit, and what comes free of it meanwhile. The
/// longer interval later, whatever was granted is free again.
#[test]
fn over_time_two_versions_have_no_more_than_both_limits() {
    let mut random = Random(seed());
    each_pair(|mut shared| {
        for _ in 0..20 {
            let units = random.of(&[0, 0, 0, 0, 1, 1, 3, 5, 70, 277]);
            shared.play.pass(units * 13 * 60_000);
            let by = random.place(2);
            shared.ask(by, random.of(&[1, 1, 2, 3]));
        }
        let [old, new] = shared.pair.clone();
        let (short, long) = (
            old.interval.min(new.interval),
            old.interval.max(new.interval),
        );
        let fullest = windows(shared.grants.iter().copied(), short)
            .into_iter()
            .max();
        let most = old.rate.max(new.rate) + old.returns + new.returns;
        assert!(fullest <= Some(most), "{fullest:?} of {most}: {shared:?}");
        shared.play.pass(long + 1000);
        assert!(shared.is_free(0) && shared.is_free(1), "{shared:?}");
    });
}
