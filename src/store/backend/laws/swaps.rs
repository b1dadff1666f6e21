//! The law of a backend alone: [`swaps`] compares it with a map.

use std::{collections::HashMap, future::poll_fn, iter, pin::Pin, task::Poll};

use super::Random;
use crate::store::{
    backend::{Backend, Swap},
    random_id,
};

/// Names of limiters: any text is one, and case, order and length count.
const KEYS: [&str; 9] = [
    "a",
    "A",
    "b",
    "a:{b}",
    "a b",
    "ab",
    "\u{e9}\u{1f980}",
    "%",
    "a:{b}~:%2C",
];

/// Checks that a backend gets what was swapped in last, and swaps nothing but the old value: as a
/// map does, in 500 random steps, and by many at the same time.
///
/// Its keys are new, and are removed.
///
/// # Panics
///
/// If it does otherwise, or returns an error.
///
/// # Cancel safety
///
/// Dropping it ends the check, and may leave keys.
pub async fn swaps(backend: &impl Backend, seed: u64) {
    let (mut random, mut values) = (Random(seed), HashMap::new());
    let id = u128::from_be_bytes(random_id().expect("entropy").0);
    let keys = KEYS.map(|key| format!("{id:x}:{key}"));
    for step in 0..500 {
        let at = format!("seed {seed}, step {step}");
        let first = random.below(keys.len() as u64) as usize;
        let second = random.below(keys.len() as u64) as usize;
        let both = [first, second];
        let of = if first == second || step % 2 == 0 {
            &both[..1]
        } else {
            &both[..]
        };
        let of: Vec<_> = of.iter().map(|key| &*keys[*key]).collect();
        swap(backend, &of, &mut random, &mut values, &at).await;
        for key in &keys {
            let value = backend.get(key).await.expect("a value");
            let is_right = value.as_ref() == values.get(key);
            assert!(is_right, "{at}: {key:?} has another value by now");
        }
    }
    for key in &keys {
        let winners = winners(backend, key, values.get(key).map(Vec::as_slice)).await;
        let is_one = winners.len() == 1;
        assert!(
            is_one,
            "{} of many at the same time swap {key:?}",
            winners.len()
        );
        let (old, new) = (Some(&winners[0][..]), None);
        let removed = backend.swap(Swap { key, old, new }).await;
        let is_there = removed.expect("a swap");
        assert!(
            is_there,
            "{key:?} has another value than that of the winner"
        );
    }
}

/// Swaps the values of these keys, in the backend and in a map.
async fn swap(
    backend: &impl Backend,
    keys: &[&str],
    random: &mut Random,
    values: &mut HashMap<String, Vec<u8>>,
    at: &str,
) {
    let drawn = keys.iter().map(|key| {
        let old = random.old(values.get(*key));
        (*key, old, random.value())
    });
    let drawn: Vec<_> = drawn.collect();
    let swaps = drawn.iter().map(|(key, old, new)| Swap {
        key,
        old: old.as_deref(),
        new: new.as_deref(),
    });
    let swaps: Vec<_> = swaps.collect();
    let is_old = |swap: &Swap<'_>| values.get(swap.key).map(Vec::as_slice) == swap.old;
    let expected = swaps.iter().all(is_old);
    let swapped = match swaps[..] {
        [one] => Some(backend.swap(one).await.expect("a swap")),
        _ => backend.swap_all(&swaps).await.expect("swaps"),
    };
    assert!(
        swapped.is_none_or(|swapped| swapped == expected),
        "{at}, {keys:?}: swapped {swapped:?}, and it should have been {expected}"
    );
    for Swap { key, new, .. } in swaps.iter().filter(|_| swapped == Some(true)) {
        match new {
            Some(new) => drop(values.insert((*key).to_owned(), new.to_vec())),
            None => drop(values.remove(*key)),
        }
    }
}

/// Has eight swap the value of a key at the same time. Returns the values of those who did.
async fn winners(backend: &impl Backend, key: &str, old: Option<&[u8]>) -> Vec<Vec<u8>> {
    let news: Vec<_> = (0..8).map(|number| vec![number; 20]).collect();
    let swap = |new| backend.swap(Swap { key, old, new });
    let swaps = news.iter().map(|new| Some(Box::pin(swap(Some(new)))));
    let (mut swaps, mut won) = (swaps.collect::<Vec<_>>(), Vec::new());
    poll_fn(|cx| {
        for (swap, new) in iter::zip(&mut swaps, &news) {
            let Some(Poll::Ready(swapped)) = swap.as_mut().map(|it| Pin::as_mut(it).poll(cx))
            else {
                continue;
            };
            *swap = None;
            if swapped.expect("a swap") {
                won.push(new.clone());
            }
        }
        if swaps.iter().all(Option::is_none) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    won
}

impl Random {
    /// Returns a value, or none.
    fn value(&mut self) -> Option<Vec<u8>> {
        let length = [0, 15, 60, 5000][self.below(4) as usize];
        (length > 0).then(|| {
            iter::repeat_with(|| self.below(256) as u8)
                .take(length)
                .collect()
        })
    }

    /// Returns what a caller takes for the old value, which it mostly is.
    fn old(&mut self, old: Option<&Vec<u8>>) -> Option<Vec<u8>> {
        let mut old = old.cloned();
        match (self.below(8), &mut old) {
            (0, _) => self.value(),
            (1, Some(bytes)) => {
                let place = self.below(bytes.len() as u64) as usize;
                bytes[place] ^= 1;
                old
            }
            (2, Some(bytes)) => {
                bytes.pop();
                old
            }
            _ => old,
        }
    }
}
