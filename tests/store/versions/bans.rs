//! Two versions whose rules ban by other terms: a ban is one for both, and so are the strikes.

use super::*;

/// The terms of a version: so many refusals within a time ban for another.
#[derive(Clone, Copy, Debug)]
struct Terms {
    after: u32,
    within: Duration,
    lasting: Duration,
}

const TERMS: [Option<Terms>; 3] = [
    None,
    Some(Terms {
        after: 3,
        within: HOUR,
        lasting: secs(2 * 3600),
    }),
    Some(Terms {
        after: 5,
        within: secs(10 * 3600),
        lasting: secs(5 * 3600),
    }),
];

/// A whole limit, which GCRA has when an hour is over, and no sooner.
const PERMITS: u32 = 5;

impl Terms {
    fn ban(self) -> Ban {
        let ban = Ban::after(self.after).within(self.within);
        ban.lasting(self.lasting)
    }
}

/// What both know of the caller.
#[derive(Default)]
struct Known {
    strikes: Vec<Duration>,
    until: Duration,
    bans: usize,
}

impl Known {
    fn strikes_since(&self, from: Duration) -> usize {
        self.strikes.iter().filter(|at| **at > from).count()
    }

    /// A version with these terms was refused, and no ban was in force. A version may forget
    /// strikes that it does not count itself: so the shorter time is counted in any case.
    fn refuse(&mut self, terms: Terms, now: Duration, is_banned: bool, shortest: Duration) {
        self.strikes.push(now);
        let after = terms.after as usize;
        let most = self.strikes_since(now - terms.within);
        let least = self.strikes_since(now - shortest);
        assert!(!is_banned || most >= after, "banned for {most} of {after}");
        assert!(
            is_banned || least < after,
            "not banned for {least} of {after}"
        );
        if is_banned {
            self.strikes.clear();
            (self.until, self.bans) = (now + terms.lasting, self.bans + 1);
        }
    }
}

/// All permits of an hour or a month are taken, and both go on to ask. Returns how many bans there
/// were.
async fn bans_by_both(
    shared: &mut Shared,
    terms: [Option<Terms>; 2],
    random: &mut Random,
) -> usize {
    let mut known = Known::default();
    let shortest = terms.iter().flatten().map(|it| it.within).min();
    for _ in 0..30 {
        let units = random.of(&[0, 0, 0, 1, 1, 2, 5]);
        if units > 0 {
            shared.pass(units * UNIT);
        }
        let by = random.place(2);
        let (now, before) = (shared.now, shared.states());
        let refusal = refused(shared.decide(by, PERMITS).await);
        assert_eq!(before, shared.states(), "changed by a refusal: {shared:?}");
        let is_banned = refusal.kind() == RefusalKind::Banned;
        match terms[by] {
            // What knows of no bans neither sees nor counts any.
            None => assert!(!is_banned, "{shared:?}"),
            Some(_) if now < known.until => {
                assert!(is_banned, "{shared:?}");
                let wait = refusal.retry_after().unwrap();
                assert!(now + wait + UNIT / 2 >= known.until, "{wait:?}: {shared:?}");
            }
            Some(terms) => known.refuse(terms, now, is_banned, shortest.unwrap()),
        }
    }
    known.bans
}

#[tokio::test]
async fn a_ban_by_one_version_is_one_for_the_other() {
    let (service, mut random) = (Service::new(), Random(seed()));
    let version = |kind| Version {
        kind,
        permits: PERMITS.into(),
        is_long: true,
    };
    let each = |of: [Kind; 2]| TERMS.map(|old| TERMS.map(|new| (of, [old, new])));
    let kinds = KINDS.map(|old| KINDS.map(|new| [old, new]));
    let all = kinds.as_flattened().iter().map(|pair| each(*pair));
    let mut number = 0;
    for (pair, terms) in all.flat_map(|each| each.into_iter().flatten()) {
        let bans = terms.map(|terms| terms.map(Terms::ban));
        let mut shared = Shared::new(&service, pair.map(version), bans);
        for by in [0, 1] {
            // Of a calendar and another kind, either has its own.
            if free(&shared.limiters[by]).await > 0 {
                assert!(shared.ask(by, PERMITS).await);
            }
        }
        number += bans_by_both(&mut shared, terms, &mut random).await;
    }
    // In most of the pairs with bans, of which there are 128.
    assert!(number > 64, "{number} bans");
}
