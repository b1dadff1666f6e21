//! A log whose grants are noted in slots: random histories, beside callers that note each grant,
//! and single cases.

use super::*;
use crate::store::redis::redisson::{format::member, slots};

type Limiter = LimiterState<SlidingLog>;

pub(crate) fn note_in() -> impl Strategy<Value = Step> {
    let often = [
        None,
        Some(10),
        Some(10),
        Some(100),
        Some(1000),
        Some(10_000),
    ];
    proptest::sample::select(often.to_vec()).prop_map(Step::NoteIn)
}

fn slot_step() -> impl Strategy<Value = Step> {
    let settle = (any::<Index>(), 0u32..30, whose::<Limiter>());
    prop_oneof![
        20 => step::<Limiter>(),
        3 => note_in(),
        5 => settle.prop_map(|(which, keep, whose)| Step::Settle { which, keep, whose }),
    ]
}

/// Settles what was taken in a slot; how many permits were credited, below zero: charged.
pub(crate) fn settle(
    pair: &mut Pair,
    (sent, taken): (Sent, Taken),
    keep: u32,
    limit: LimitSource,
) -> Result<i64, ErrorKind> {
    if keep == sent.permits {
        return Ok(0);
    }
    if pair.counting.slots().is_none() {
        // Callers with such a receipt count in slots.
        Limiter::note_in(pair, Some(10));
    }
    let id = pair.new_id();
    let receipt = pair.receipt(Sent { id, ..sent }, limit);
    let given = pair.given_to_settle(sent, keep);
    let known = receipt.clone().marked(taken);
    let call = (slots::SCRIPTS.settle)(&known, keep, pair.asks_at(given)).unwrap();
    let by_model = |model: &mut Limiter, now| model.settle(&receipt, Some(taken), keep, now);
    pair.settled(&call, (sent, keep), given, by_model)
}

/// A limiter with slots of 10 ms: `rate` in 1000 ms.
fn with_limit(rate: u64) -> Pair {
    let mut pair = Pair::with_rate(rate);
    Limiter::note_in(&mut pair, Some(100));
    pair
}

/// Score and permits of each entry.
pub(crate) fn log(pair: &Pair) -> Vec<(i64, u32)> {
    let entries = pair.model.state.log.entries();
    entries
        .map(|entry| (entry.score - START, entry.permits))
        .collect()
}

#[test]
fn a_limiter_that_is_never_exhausted_keeps_as_many_entries_as_slots() {
    let mut pair = with_limit(1_000_000);
    for step in 0i64..500 {
        pair.grants(1, How::STORED);
        pair.advance(1 + step % 17);
        assert!(log(&pair).len() <= 102, "{}", log(&pair).len());
    }
    assert!(log(&pair).len() > 50);
}

/// A slot's entry that was set back to another score.
pub(crate) fn plant_stray(pair: &mut Pair, end: i64, permits: u32, score: i64) {
    let mut id = *b"slot:\0\0\0\0\0\0\0\0\0\0\0";
    id[8..].copy_from_slice(&end.to_be_bytes());
    let id = PermitId(id);
    assert_eq!(pair.add_member(score, &member(id, permits)), 1);
    pair.model.state.log.insert(Entry { score, permits, id });
    let value = pair.model.state.value.unwrap();
    pair.set_value(value - i64::from(permits));
}

// Found by random histories, once in many: the slot's entry was set back, so the grant goes under
// the caller's own id, and that id has such an entry from before.
#[test]
fn what_is_taken_twice_under_one_id_is_in_the_log_twice() {
    let mut pair = with_limit(10);
    Limiter::note_in(&mut pair, None);
    pair.advance(1);
    pair.acquire(2, How::STORED).unwrap();
    pair.acquire(1, How::STORED).unwrap();
    let again = *pair.sent.last().unwrap();
    Limiter::note_in(&mut pair, Some(100));
    pair.grants(1, How::STORED);
    for taken in 1..4 {
        Limiter::set_back(&mut pair, 1);
        pair.send(again, How::STORED).unwrap();
        let log = log(&pair);
        assert_eq!(log.len(), 3 + taken, "{log:?}");
        assert_eq!(pair.available(), Ok(6 - taken as i64));
    }
}

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn a_history(
        rate_type in rate_type(4),
        clock in clock(),
        steps in proptest::collection::vec(slot_step(), 1..50),
    ) {
        let mut pair = Pair::new(rate_type, clock);
        Limiter::note_in(&mut pair, Some(10));
        live(pair, steps);
    }
}
