//! Tests what is remembered of callers that limits ban.

use super::{super::bans::BanState, *};
use crate::values::limit::Ban;

const WITHIN: Duration = Duration::from_secs(1);

fn bans() -> (Bans, ManualClock) {
    let clock = ManualClock::new();
    (
        Bans::new(100, CAP, Some(Arc::new(clock.clone())), false),
        clock,
    )
}

/// A demand of a limit with a ban, which is its own.
fn asks_for(name: &str) -> Demand {
    let mut ask = one(name);
    let ban = Ban::after(3).within(WITHIN).lasting(WITHIN);
    ask.charges[0].limiter.compiled = Arc::new(CompiledLimit {
        ban: Some(ban),
        ..CompiledLimit::with_defaults(name, true, false)
    });
    ask
}

/// The first caller of a call may have been granted before another one of the same limiter was
/// banned.
#[test]
fn a_ban_is_told_as_one_whatever_its_call_told_first() {
    let (bans, clock) = bans();
    let (first, later) = (asks_for("a"), asks_for("a"));
    let asked = bans.ask(&first);
    clock.advance(Duration::from_millis(50));
    let mut granted = spent(first.first(), CAP);
    granted.standing.remaining = Some(1);
    granted.standing.refused = false;
    granted.standing.wait = None;
    let found = BanState {
        left: 500,
        back: 700,
        strikes: 3,
    };
    bans.learn(&first, &asked, &[found], &[granted]);
    clock.advance(Duration::from_millis(100));
    let BanLookup::Banned(refusal) = bans.find(&later, true) else {
        panic!("it is banned");
    };
    let wait = Some(Duration::from_millis(600));
    assert_eq!(refusal.retry_after, wait);
    let Charge { standing, .. } = &refusal.charges[0];
    assert!(
        standing.banned
            && standing.refused
            && Arc::ptr_eq(refusal.charges[0].compiled(), later.first().compiled())
    );
    assert_eq!((standing.remaining, standing.wait), (None, wait));
}

#[test]
fn a_refusal_counts_for_as_long_as_its_ban_says() {
    for (age, counts) in [(WITHIN - Duration::from_millis(1), 1), (WITHIN, 0)] {
        let (bans, clock) = bans();
        let ask = asks_for("a");
        bans.count(&ask, &mut refusal(&ask, CAP));
        clock.advance(age);
        let carried = bans.ask(&ask).carried[0];
        assert_eq!(carried.number, counts, "{age:?}");
        // It is reported once.
        assert_eq!(bans.ask(&ask).carried[0].number, 0);
    }
}

/// Of a command that was not carried out, the next one reports what it would have.
#[test]
fn refusals_of_a_call_that_was_not_sent_count_from_when_they_were() {
    let (bans, clock) = bans();
    let ask = asks_for("a");
    bans.count(&ask, &mut refusal(&ask, CAP));
    clock.advance(WITHIN / 2);
    let unsent = bans.ask(&ask);
    bans.count(&ask, &mut refusal(&ask, CAP));
    bans.put_back(&ask, &unsent);
    let carried = bans.ask(&ask).carried[0];
    assert_eq!(carried.number, 2);
    assert_eq!(u128::from(carried.age), (WITHIN / 2).as_millis());
    // Also if nothing came meanwhile, and not for longer.
    bans.put_back(&ask, &unsent);
    clock.advance(WITHIN / 2);
    assert_eq!(bans.ask(&ask).carried[0].number, 0);
}
