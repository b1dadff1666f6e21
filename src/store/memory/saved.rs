//! A limiter as bytes, which a store of one's own keeps, and a file of
//! [`MemoryStore::save`](crate::MemoryStore::save).
//!
//! ```text
//! 6 bytes   when it may be forgotten, in ms since the epoch, big-endian; all ones for never
//! 1 byte    the version of all that follows
//! 8 bytes   the beginning of the SHA-256 of the name, a zero byte, and all other bytes of this
//! the rest  the limiter, and the ban of its caller with when it is forgotten, each if there is one
//! ```
//!
//! A value that was cut, changed, or moved to another name is recognised, and is no limiter.

use super::shard::{Held, KeptLimiter, NEVER};
use crate::{
    algorithm::{
        ban::Record,
        bytes::{Bytes, write_option},
    },
    values::{
        clock::{Now, TICKS},
        error::{Error, ErrorKind},
    },
};

const VERSION: u8 = 1;
/// The length of what stands in front of the limiter.
const HEAD: usize = 15;
/// For so long a value is kept beyond its time: clocks of processes differ.
const KEPT_MILLIS: i64 = 60_000;

/// Returns the bytes of what a name has; `None` if that says nothing any more.
pub(super) fn bytes_of(
    name: &str,
    limiter: Option<&KeptLimiter>,
    record: Option<&(Record, i64)>,
    now: Now,
) -> Option<Vec<u8>> {
    let limiter = limiter.filter(|limiter| !limiter.is_idle(now));
    let record = record.filter(|(_, end)| *end > now.tick);
    let ends = limiter.map(KeptLimiter::idle_at);
    let ends = ends.max(record.map(|(_, end)| *end))?;
    let mut bytes = vec![0; HEAD];
    let millis = match ends {
        NEVER => u64::MAX,
        ends => (ends / TICKS).saturating_add(KEPT_MILLIS).unsigned_abs(),
    };
    let millis = millis.min((1 << 48) - 1).to_be_bytes();
    bytes[..6].copy_from_slice(&millis[2..]);
    bytes[6] = VERSION;
    write_option(limiter, &mut bytes);
    write_option(record, &mut bytes);
    let check = check(name, &bytes);
    bytes[7..HEAD].copy_from_slice(&check);
    Some(bytes)
}

/// Returns what a name has, from its bytes.
///
/// # Errors
///
/// Returns an error of kind [`ForeignState`](ErrorKind::ForeignState) if these are others than
/// [`bytes_of`] has made for the name.
pub(super) fn held(name: &str, bytes: &[u8]) -> Result<Held, Error> {
    let foreign = |why| Error::new(ErrorKind::ForeignState).detail(why);
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Err(foreign("it is too short for a limiter"));
    };
    if head[6] != VERSION {
        return Err(foreign("it is no limiter, or that of a later version"));
    }
    if head[7..] != check(name, bytes) {
        return Err(foreign("it is no limiter, is damaged, or has another name"));
    }
    let mut rest = rest;
    let held = Held::read(&mut rest);
    held.filter(|_| rest.is_empty())
        .ok_or_else(|| foreign("it cannot be read"))
}

/// Returns the check of a name and of bytes, without their own check.
fn check(name: &str, bytes: &[u8]) -> [u8; 8] {
    let mut hash = hmac_sha256::Hash::new();
    for part in [name.as_bytes(), &[0], &bytes[..7], &bytes[HEAD..]] {
        hash.update(part);
    }
    let [a, b, c, d, e, f, g, h, ..] = hash.finalize();
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        limiter::RateLimiter,
        store::memory::MemoryStore,
        values::{
            clock::ManualClock,
            decision::Decision,
            limit::{Algorithm, Limit},
            name::Name,
        },
    };

    /// Does what can be done with a limiter that was read.
    fn decide_on(held: Held) {
        let store = MemoryStore::builder().clock(ManualClock::new()).build();
        let (name, now) = (Name::exact("k").unwrap(), store.shared.now());
        store.shared.shard(&name).put_held(&name, held, now);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let limiter = RateLimiter::new(&store, "k").unwrap();
            let all = [
                Algorithm::SlidingLog,
                Algorithm::FixedWindow,
                Algorithm::Gcra,
            ];
            for algorithm in all {
                let limiter = limiter.clone().algorithm(algorithm);
                let _ = limiter.available_permits().await;
                if let Ok(Decision::Allow(grant)) = limiter.try_acquire().await {
                    limiter.settle(&grant, 9);
                }
                let _ = limiter.try_acquire_many(4).await;
                let _ = limiter.release(2).await;
                let _ = limiter.update_rate(Limit::per_minute(5)).await;
                let _ = limiter.repair().await;
                let _ = limiter.time_to_live().await;
                let _ = limiter.banned_until().await;
            }
        });
        store.forget_idle();
        store.save(&mut Vec::new()).unwrap();
    }

    /// Whatever stands behind a check that is right is a limiter or is none, and no panic. What is
    /// read is written as it was.
    #[test]
    fn bytes_that_are_changed_with_their_check_are_read_or_refused() {
        let store = MemoryStore::builder().clock(ManualClock::new()).build();
        let good = |algorithm| {
            let keyed = Limit::per_hour(9).named("k").algorithm(algorithm);
            let limiter = keyed.keyed(&store).unwrap().of("a");
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            let taken = runtime.block_on(limiter.try_acquire_many(3)).unwrap();
            assert!(taken.is_allowed());
            let (name, shared) = (Name::known(limiter.name()), &store.shared);
            let (shard, now) = (shared.shard(&name), shared.now());
            let (limiter, record) = shard.held(&name);
            bytes_of(name.as_str(), limiter, record, now).unwrap()
        };
        let all = [
            Algorithm::SlidingLog,
            Algorithm::FixedWindow,
            Algorithm::Gcra,
        ]
        .map(good);
        let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
        proptest!(|(which in 0..3usize, changes in changes, cut in 0..9usize)| {
            let mut bytes = all[which].clone();
            bytes.truncate(bytes.len() - cut);
            for (at, byte) in changes {
                let at = HEAD + at.index(bytes.len() - HEAD);
                bytes[at] = byte;
            }
            let check = check("k", &bytes);
            bytes[7..HEAD].copy_from_slice(&check);
            let Ok((limiter, record)) = held("k", &bytes) else {
                return Ok(());
            };
            let mut again = Vec::new();
            write_option(limiter.as_ref(), &mut again);
            write_option(record.as_ref(), &mut again);
            prop_assert_eq!(&again, &bytes[HEAD..]);
            decide_on((limiter, record));
        });
    }

    /// The same, for the numbers of a ban and of a refusal: each alone may be right.
    #[test]
    fn a_ban_of_any_numbers_is_read_or_refused() {
        const MOST: i64 = 4_600_000_000_000_000_000;
        let present = MemoryStore::builder().clock(ManualClock::new()).build();
        let present = present.shared.now().tick;
        let ends = [
            -MOST,
            -1,
            0,
            present,
            present + 1_000_000,
            MOST,
            i64::MAX,
            i64::MIN,
        ];
        let numbers = || prop_oneof![prop::sample::select(ends.to_vec()), any::<i64>()];
        let levels = prop_oneof![Just(u32::MAX), any::<u32>()];
        proptest!(|(numbers in prop::array::uniform5(numbers()), level in levels)| {
            let [refused, until, forgotten, room, end] = numbers.map(i64::to_le_bytes);
            let mut bytes = vec![0; HEAD];
            bytes[6] = VERSION;
            // No limiter, but a record: of a refusal, and of a ban.
            bytes.extend([0, 1]);
            bytes.extend([&1_u64.to_le_bytes()[..], &refused, &[7; 16], &level.to_le_bytes()].concat());
            bytes.extend([&[1][..], &until, &level.to_le_bytes(), &forgotten, &room, &end].concat());
            let check = check("k", &bytes);
            bytes[7..HEAD].copy_from_slice(&check);
            if let Ok(read) = held("k", &bytes) {
                prop_assert!(read.1.is_some());
                decide_on(read);
            }
        });
    }
}
