//! All lines of a store, found by what their callers charge.

use std::{
    collections::{HashMap, hash_map::RandomState},
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{lock, queue::Queue};
use crate::{
    demand::Acquire,
    limit::{LimitSource, Slots},
    list::List,
    name::Name,
    receipt::{PermitId, Receipt},
    store::Listener,
};

/// More than there will be cores, so that callers of different limiters seldom meet.
const SHARDS: usize = 64;

/// How many lines a shard keeps for the next callers.
const SPARE: usize = 4;

/// The lines in which somebody stands. Callers of other limiters, or that go by other limits or slots or try out others, do
/// not share one.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Shared>);

struct Shared {
    shards: Box<[Mutex<Shard>]>,
    /// Of its own: names come from requests, and nobody may choose which ones share a shard.
    hasher: RandomState,
    /// How many wait, in all lines.
    waiting: AtomicUsize,
    gone: Gone,
}

#[derive(Default)]
struct Shard {
    lines: HashMap<Key, Entry>,
    /// Some that were taken away: most lines are of one caller, who is not to pay for one.
    spare: Vec<Arc<Queue>>,
}

struct Entry {
    queue: Arc<Queue>,
    /// Its callers are decided for in several calls.
    in_parts: bool,
}

/// What the callers of a line charge.
pub(crate) type Key = List<(Name, Option<Slots>, LimitSource, bool)>;

/// The callers that left while a call for them and for others was in flight, and whether what they may get was given back. Of
/// those who do not wait, only whoever dropped them knows whether it is to be.
pub(crate) type Gone = Mutex<HashMap<PermitId, bool>>;

impl Lines {
    /// Whether anybody waits for permits of these limiters who is not being asked for.
    #[cfg(feature = "redis")]
    pub(crate) fn is_waited_for(&self, acquire: &Acquire) -> bool {
        if self.0.waiting.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let key = key(acquire);
        let queue = lock(self.shard(&key))
            .lines
            .get(&key)
            .map(|entry| Arc::clone(&entry.queue));
        queue.is_some_and(|queue| queue.is_waited_in())
    }

    /// Notes that a receipt is given back. It may be that of a call which is still in flight for others.
    pub(crate) fn gives_back(&self, receipt: &Receipt) {
        let mut gone = lock(&self.0.gone);
        if !gone.is_empty()
            && let Some(given_back) = gone.get_mut(&receipt.id)
        {
            *given_back = true;
        }
    }

    pub(crate) fn gone(&self) -> &Gone {
        &self.0.gone
    }

    /// Has somebody enter the line of a key, which is made if there is none.
    pub(crate) fn enter<T>(
        &self,
        key: &Key,
        (waits, in_parts): (bool, bool),
        enter: impl FnOnce(&Queue) -> T,
    ) -> (Arc<Queue>, T) {
        if waits {
            self.0.waiting.fetch_add(1, Ordering::SeqCst);
        }
        let mut shard = lock(self.shard(key));
        let Shard { lines, spare } = &mut *shard;
        let Entry { queue, .. } = lines.entry(key.clone()).or_insert_with(|| Entry {
            queue: unused(spare),
            in_parts,
        });
        // With the shard locked, so that nobody finds the line empty and takes it away.
        let entered = enter(queue);
        (Arc::clone(queue), entered)
    }

    /// Notes that somebody has left a line, and takes it away if that was the `last` one.
    pub(crate) fn leave(&self, key: &Key, waits: bool, queue: &Arc<Queue>, last: bool) {
        if waits {
            self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        if !last {
            return;
        }
        // The driver knows the line, and the line the driver: the last one out ends both.
        let driver = {
            let mut shard = lock(self.shard(key));
            let (empty, driver) = queue.close_if_empty();
            // Another line may stand there by now.
            let there = shard.lines.get(key);
            if empty && there.is_some_and(|there| Arc::ptr_eq(&there.queue, queue)) {
                let gone = shard.lines.remove(key).map(|entry| entry.queue);
                let spared = SPARE.saturating_sub(shard.spare.len());
                shard.spare.extend(gone.into_iter().take(spared));
            }
            driver
        };
        drop(driver);
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        // The remainder is below SHARDS, whatever the width of usize.
        &self.0.shards[(self.0.hasher.hash_one(key) % SHARDS as u64) as usize]
    }
}

impl Listener for Lines {
    fn changed(&self, _: &Name) {}

    /// Asks again for those who wait for `name`.
    fn room(&self, name: &Name, undone: bool) {
        // Whoever begins to wait after this look asks after it, too.
        if self.0.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let waited_for = |key: &Key| key.iter().any(|(waited_for, ..)| waited_for == name);
        for shard in &self.0.shards {
            let queues: Vec<_> = lock(shard)
                .lines
                .iter()
                .filter(|(key, entry)| waited_for(key) && !(undone && entry.in_parts))
                .map(|(_, entry)| Arc::clone(&entry.queue))
                .collect();
            queues.iter().for_each(|queue| queue.nudge());
        }
    }
}

/// An empty line: a spare one, if nobody has a hand on it any more.
fn unused(spare: &mut Vec<Arc<Queue>>) -> Arc<Queue> {
    let free = |queue: &mut Arc<Queue>| Arc::get_mut(queue).is_some();
    let Some(place) = spare.iter_mut().position(free) else {
        return Arc::default();
    };
    let mut queue = spare.swap_remove(place);
    if let Some(unused) = Arc::get_mut(&mut queue) {
        *unused = Queue::default();
    }
    queue
}

/// The line in which a caller belongs.
pub(crate) fn key(acquire: &Acquire) -> Key {
    acquire
        .charges()
        .map(|charge| {
            let name = charge.name().clone();
            let slots = name.slots();
            (name, slots, charge.limit(), charge.shadow)
        })
        .collect()
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            waiting: AtomicUsize::new(0),
            gone: Mutex::default(),
        }
    }
}

// Keys hold identities.
impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: usize = self
            .0
            .shards
            .iter()
            .map(|shard| lock(shard).lines.len())
            .sum();
        write!(f, "Lines({lines})")
    }
}
