//! The law of a backend alone: [`swaps`] compares it with a map.

use std::{collections::HashMap, iter};

use super::Random;
use crate::store::{
    backend::{Backend, Swap, opened::all},
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
    for (pair, number) in keys.windows(2).zip(0..) {
        race(backend, [&pair[0], &pair[1]], &mut values, number).await;
    }
    for key in &keys {
        let old = values.get(key).map(Vec::as_slice);
        let removed = backend
            .swap(Swap {
                key,
                old,
                new: None,
            })
            .await;
        assert!(removed.expect("a swap"), "{key:?} has another value by now");
    }
}

/// Has four swap both values, and eight one of them, at the same time: of all that come after
/// another on a key, none does.
async fn race(
    backend: &impl Backend,
    keys: [&str; 2],
    values: &mut HashMap<String, Vec<u8>>,
    number: u8,
) {
    let news: Vec<_> = (0..12).map(|new| vec![12 * number + new; 20]).collect();
    let olds = keys.map(|key| values.get(key).cloned());
    let swap = |which: usize, new| Swap {
        key: keys[which],
        old: olds[which].as_deref(),
        new: Some(new),
    };
    let attempts = news.iter().zip(0..).map(|(new, number)| match number {
        0..4 => vec![swap(0, &new[..]), swap(1, new)],
        _ => vec![swap(number % 2, &new[..])],
    });
    let attempts: Vec<_> = attempts.collect();
    let swapped = all(attempts.iter().map(async |swaps| match swaps[..] {
        [one] => backend.swap(one).await.expect("a swap"),
        _ => backend.swap_all(swaps).await.expect("swaps") == Some(true),
    }));
    let swapped = swapped.await;
    let done: Vec<_> = attempts
        .iter()
        .zip(swapped)
        .filter_map(|(swaps, swapped)| swapped.then_some(swaps))
        .flatten()
        .collect();
    for key in keys {
        let mut winners = done.iter().filter(|swap| swap.key == key);
        if let Some(new) = winners.next().and_then(|swap| swap.new) {
            values.insert(key.to_owned(), new.to_vec());
        }
        let more = winners.count();
        assert_eq!(
            more, 0,
            "so many more than one at the same time swap {key:?}"
        );
        let value = backend.get(key).await.expect("a value");
        let is_right = value.as_ref() == values.get(key);
        assert!(
            is_right,
            "{key:?} has another value than that of who swapped it"
        );
    }
    assert!(
        !done.is_empty(),
        "none of many at the same time swaps {keys:?}"
    );
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
                let index = self.below(bytes.len() as u64) as usize;
                bytes[index] ^= 1;
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
