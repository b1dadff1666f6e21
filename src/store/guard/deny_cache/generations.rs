//! How often something was changed under a name, so that what was learnt before is known to be old.
//!
//! A refusal is on its way while other calls change its limiter, and reaches this process after them. So it is not
//! looked up and removed when something changes: it carries the generations that it was asked in, and counts while they
//! last. Nothing has to be done in the right order for that.

use std::sync::OnceLock;

use crate::{
    list::List,
    name::Name,
    sync::atomic::{AtomicU32, Ordering},
};

/// Names share them: a change then makes old what stands under another name, too, which costs that one a call. With
/// half as many as there are refusals at most, that is two others in the mean.
///
/// One where every order of steps is tried: which names share a place would else differ each time.
const GENERATIONS: usize = if cfg!(interleavings) { 1 } else { 1 << 16 };

/// Changes, counted by name.
///
/// A count that has gone through all 2^32 seems not to have changed: that takes more calls than one process makes while a
/// refusal stands.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    /// Made by the first call, as a store may be set up in several steps.
    counts: OnceLock<Box<[AtomicU32]>>,
}

/// The generations of some names at one moment.
#[derive(Debug)]
pub(crate) struct Seen(List<(usize, u32)>);

impl Generations {
    /// What changed up to now. To be called before the call is sent that tells how things are.
    pub(crate) fn see<'a>(&self, names: impl Iterator<Item = &'a Name>) -> Seen {
        let seen = names.map(|name| {
            let place = Self::place(name);
            (place, self.at(place))
        });
        Seen(seen.collect())
    }

    /// Makes old what was seen of this name. To be called when the change was heard of, and before anybody else hears
    /// of it.
    pub(crate) fn changed(&self, name: &Name) {
        if let Some(count) = self.counts().get(Self::place(name)) {
            count.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether nothing has changed since.
    pub(crate) fn is_current(&self, seen: &Seen) -> bool {
        seen.0.iter().all(|(place, then)| self.at(*place) == *then)
    }

    fn at(&self, place: usize) -> u32 {
        let count = self.counts().get(place);
        count.map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// By its text alone: however its permits are counted, it is the same keys.
    fn place(name: &Name) -> usize {
        // The lowest bits, of which there are enough on every machine.
        name.text().seeded_hash() as usize % GENERATIONS
    }

    fn counts(&self) -> &[AtomicU32] {
        self.counts.get_or_init(|| {
            let counts = std::iter::repeat_with(AtomicU32::default);
            counts.take(GENERATIONS).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    fn name(text: &str) -> Name {
        Name::exact(text).unwrap()
    }

    #[test]
    fn any_change_after_the_look_makes_it_old() {
        let generations = Generations::default();
        let (a, b) = (name("a"), name("b"));
        // Of hashes that collide there is nothing to see.
        assert_ne!(Generations::place(&a), Generations::place(&b));
        generations.changed(&a);
        let seen = generations.see([&a].into_iter());
        let both = generations.see([&b, &a].into_iter());
        assert!(generations.is_current(&seen));
        generations.changed(&b);
        assert!(generations.is_current(&seen));
        assert!(!generations.is_current(&both));
        generations.changed(&name("a").counted_by(Algorithm::FixedWindow));
        assert!(!generations.is_current(&seen));
    }
}
