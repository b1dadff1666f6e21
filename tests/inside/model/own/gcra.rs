//! GCRA by the server's clock, which tells microseconds, and by another limit than before.

use super::{stage::Stage, *};
use crate::{
    algorithm::gcra::{Pace, State},
    store::redis::packed::{gcra, requests::Asked},
    values::{List, charge::Tat},
};

const TERMS: Terms = (40, 8);

fn by_gcra(clock: Option<i64>) -> Stage {
    Stage::new([Algorithm::Gcra; LIMITERS], [0; LIMITERS], clock)
}

/// The callers of a call, of so many permits each.
fn run<const N: usize>(stage: &mut Stage, terms: Terms, permits: [u32; N]) -> [Demand; N] {
    stage.sides[0].terms = terms;
    permits.map(|permits| {
        let mut demand = Demand::caller([stage.sides[0].charge(permits)], false);
        demand.identify(stage.id());
        demand
    })
}

fn state(stage: &mut Stage) -> Option<State> {
    let bytes = stage.state(0)?;
    Some(gcra::read(&bytes).unwrap())
}

/// A grant says when it was, and a refusal by how much it came too early: both must lie between two
/// looks at that clock, and what is stored must be what follows from them.
#[test]
fn it_counts_in_microseconds() {
    let mut stage = by_gcra(None);
    let pace = Pace::of(TERMS.0.cast_signed(), TERMS.1.cast_signed()).unwrap();
    let row = row(Algorithm::Gcra, TERMS);
    let (mut granted, mut refused, mut within_ms) = (0, 0, false);
    while granted < 200 || refused < 200 {
        let permits = 1 + u32::try_from((granted + refused) % 9).unwrap();
        let run = run(&mut stage, TERMS, [permits]);
        let asked = Asked {
            stamp: stamp(run[0].first().id, None),
            rows: List::from([row]),
            bans: None,
            again: false,
        };
        let stored = state(&mut stage);
        let before = stage.micros();
        // By both scripts in turns.
        let lone = asked.lone(&run).filter(|_| (granted + refused) % 2 > 0);
        let reply = stage.call(lone.as_ref().unwrap_or(&asked.command(&run)));
        let after = stage.micros();
        let reply = match lone {
            Some(_) => asked.read_lone(&reply, &run).unwrap().unwrap(),
            None => asked.read(&reply, &run).unwrap(),
        };
        let (now, answer) = (reply.now, reply.answers.unwrap().remove(0));
        let (cost, left) = (pace.cost(permits.into()), state(&mut stage));
        if answer.verdict == Verdict::Granted {
            granted += 1;
            let Some(Taken::Tat(Tat { at, .. })) = answer.taken else {
                panic!("{answer:?}");
            };
            assert!(left.is_none_or(|left| left.tat.at == at));
            let begun = stored.map_or(now, |stored| stored.tat.at.max(now));
            // Of a key that vanished meanwhile, and whose time was over then, nothing was left.
            assert_eq!(at, begun + cost);
            assert!(at - now <= pace.whole());
        } else {
            refused += 1;
            let due = |now| stored.unwrap().tat.at - now + cost - pace.whole();
            assert!((due(after)..due(before) + 1000).contains(&(answer.wait * 1000)));
            assert!(due(before) > 0);
            if lone.is_some() {
                // It does not say the time.
                continue;
            }
            assert!((due(now)..due(now) + 1000).contains(&(answer.wait * 1000)));
        }
        assert!((before..=after).contains(&now), "{before} {now} {after}");
        within_ms |= now % 1000 != 0;
    }
    assert!(within_ms);
}

/// A caller is refused by a state of another limit, and one behind it takes: the wait is then that
/// of their own limit.
#[test]
fn a_wait_is_by_the_limit_that_the_call_has_left() {
    let mut stage = by_gcra(Some(START));
    for (terms, permits, waits) in [
        ((1, 6_000_000), &[1][..], &[0][..]),
        ((3, 70_001), &[3, 1], &[46_668, 0]),
    ] {
        let run: Vec<_> = (permits.iter())
            .flat_map(|permits| run(&mut stage, terms, [*permits]))
            .collect();
        let asked = Asked {
            stamp: stamp(run[0].first().id, Some(START)),
            rows: List::from([row(Algorithm::Gcra, terms)]),
            bans: None,
            again: false,
        };
        let reply = stage.call(&asked.command(&run));
        let answers = asked.read(&reply, &run).unwrap().answers.unwrap();
        let said = answers.iter().map(|answer| answer.wait);
        assert_eq!(said.collect::<Vec<_>>(), waits);
    }
}
