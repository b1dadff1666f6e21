//! Proof of what was taken: [`Receipt`].

#[cfg(feature = "redis")]
use std::time::Instant;
use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    demand::{Labels, Limiter},
    limit::LimitSource,
    list::List,
    name::Name,
};

/// Identifies one acquire, before it is sent: its entry in the log carries these bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PermitId(pub(crate) [u8; 16]);

impl PermitId {
    /// Of what is not known to a store yet.
    pub(crate) const NONE: Self = Self([0; 16]);

    /// The id of what is charged in addition. Ids are random, or count in their second half: no other is the same.
    pub(crate) fn for_more(self) -> Self {
        let mut id = self.0;
        id[8] ^= 0x80;
        Self(id)
    }

    /// Returns the id of another call for the same caller, while an earlier one may be in flight.
    pub(crate) fn for_next_call(self) -> Self {
        let mut id = self.0;
        id[0] = id[0].wrapping_add(1);
        Self(id)
    }

    /// The id of what one call takes ahead beside this.
    #[cfg(feature = "redis")]
    pub(crate) fn for_ahead(self) -> Self {
        let mut id = self.0;
        id[8] ^= 0x40;
        Self(id)
    }

    /// The id of a grant out of what has this id: one of so many, counted from 1.
    #[cfg(feature = "redis")]
    pub(crate) fn for_grant(self, number: u64) -> Self {
        let mut id = self.0;
        let number = number.to_be_bytes();
        // Not the byte by which the ids above differ; a lease is over long before the others have counted up.
        for (byte, counted) in id.iter_mut().skip(9).zip(number.iter().skip(1)) {
            *byte ^= counted;
        }
        Self(id)
    }
}

/// Proof of what one acquire took, with which exactly that can be given back.
///
/// It is made before the acquire is sent, so that whoever stops waiting for an answer can give back all the same. That of
/// an [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) is of use only once the grant was heard, and while its window
/// is open, or the [slot](crate::RateLimiter::slots) counts; that of an [`Algorithm::Gcra`](crate::Algorithm::Gcra) only once it
/// was heard, and while its permits lie ahead. The clones of these give back once together.
#[derive(Clone)]
pub struct Receipt {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) labels: Arc<Labels>,
    pub(crate) id: PermitId,
    pub(crate) permits: u32,
    /// For how long an extra charge is known to count, and so may be sent again. Zero until the acquire was answered.
    #[cfg(feature = "redis")]
    pub(crate) interval: Duration,
    /// When it was made, unless the acquire was answered by then: nothing of it is under way any more.
    #[cfg(feature = "redis")]
    pub(crate) made: Option<Instant>,
    /// Where it was taken from, where no entry of its own says so. Known only once the grant was heard.
    pub(crate) once: Option<Once>,
    /// What it was taken out of, where that is no entry of its own.
    #[cfg(feature = "redis")]
    pub(crate) lease: Option<Arc<dyn TakenAhead>>,
    /// Where it was taken.
    #[cfg(feature = "redis")]
    pub(crate) place: Place,
}

/// When all that was taken is through, as one grant left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tat {
    /// In us since the epoch
    pub(crate) at: i64,
    /// By how much it was moved back up to now, in us: a receipt tells by it what was given back since
    pub(crate) given: i64,
}

/// Permits that were fetched ahead, out of which others are granted.
#[cfg(feature = "redis")]
pub(crate) trait TakenAhead: Send + Sync {
    /// Takes back `permits` of one grant, and settles with the store what they change there.
    ///
    /// `settle` must neither wait nor come back here.
    fn give_back(&self, grant: PermitId, permits: u32, settle: &mut dyn FnMut(Receipt, u32));
}

/// Where permits were taken.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the store
    Store,
    /// In this process while the store failed, which knows nothing of it
    Here,
    /// In this process, and perhaps in the store by a call that was sent after this moment and
    /// given up
    Both(Option<Instant>),
}

/// What a receipt can be settled by where a grant has no entry of its own.
pub(crate) struct Once {
    taken: Taken,
    /// Whether the grant was given back. No entry says so, as none is made: the copies of the
    /// receipt share it. Made with the first copy: most grants are never settled.
    settled: OnceLock<Arc<AtomicBool>>,
}

impl Once {
    fn settled(&self) -> &Arc<AtomicBool> {
        self.settled.get_or_init(Arc::default)
    }
}

impl Clone for Once {
    fn clone(&self) -> Self {
        Self {
            taken: self.taken,
            settled: Arc::clone(self.settled()).into(),
        }
    }
}

/// What a grant knows of where it was taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// The window's last tick, by the store's clock
    Window(i64),
    /// When all that was taken is through
    Tat(Tat),
    /// From a part of a log's interval, which ends then, in ticks since the epoch
    Slot(i64),
    /// From an estimate: what it took cannot be told from what others did, and is not given back
    Estimate,
}

impl Receipt {
    pub(crate) fn name(&self) -> &Name {
        &self.limiter.name
    }

    /// Returns the limit to write where an extra charge finds none.
    pub(crate) fn limit(&self) -> LimitSource {
        self.limiter.limit
    }

    /// The receipt of an acquire that was granted, by a limit of this interval.
    #[cfg_attr(
        not(feature = "redis"),
        allow(
            unused_mut,
            unused_variables,
            reason = "only what is sent is sent again"
        )
    )]
    pub(crate) fn granted(mut self, interval: Duration) -> Self {
        #[cfg(feature = "redis")]
        {
            self.interval = interval;
        }
        self
    }

    /// Whether a grant was heard.
    #[cfg(feature = "redis")]
    pub(crate) fn was_granted(&self) -> bool {
        !self.interval.is_zero()
    }

    /// The part of it that is to be settled with the store, if any.
    #[cfg(feature = "redis")]
    pub(crate) fn of_store(self) -> Option<Self> {
        match self.place {
            Place::Store => Some(self),
            Place::Here => None,
            Place::Both(made) => Some(Self {
                place: Place::Store,
                interval: Duration::ZERO,
                made,
                once: None,
                ..self
            }),
        }
    }

    /// The receipt of a grant out of a lease.
    #[cfg(feature = "redis")]
    pub(crate) fn leased(self, account: Arc<dyn TakenAhead>) -> Self {
        Self {
            lease: Some(account),
            ..self
        }
    }

    /// The permits that were asked for.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The receipt of a grant that was taken from there.
    pub(crate) fn taken(self, taken: Taken) -> Self {
        let settled = OnceLock::new();
        Self {
            once: Some(Once { taken, settled }),
            ..self
        }
    }

    /// Where it was taken from, for whoever asks first of all who hold the receipt: that one gives back.
    pub(crate) fn settle(&self) -> Option<Taken> {
        let once = self.once.as_ref()?;
        (!once.settled().swap(true, Ordering::Relaxed)).then_some(once.taken)
    }
}

// Names hold identities, and an id is as good as its permits.
impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt")
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitId(..)")
    }
}

/// What is to be charged in the end for each receipt of a grant, from when a request passes by it
/// until its answer is over.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Option<Corrections>>);

#[derive(Debug)]
pub(crate) struct Corrections {
    /// By the answer, for all receipts
    pub(crate) cost: Option<u32>,
    /// One for each receipt
    pub(crate) entries: List<Correction>,
}

/// What is to be charged for one rule in the place of what was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Correction {
    /// By the handler
    pub(crate) said: Option<u32>,
    /// By the rule
    pub(crate) judged: Option<u32>,
}

impl Ledger {
    /// Opens it for a grant of so many receipts.
    pub(crate) fn open(&self, receipts: usize) {
        *self.lock() = Some(Corrections {
            cost: None,
            entries: (0..receipts).map(|_| Correction::default()).collect(),
        });
    }

    /// Ends it, and returns what was written; `None` if it is not open.
    pub(crate) fn close(&self) -> Option<Corrections> {
        self.lock().take()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    /// Writes into it while it is open. `write` must not come back here.
    pub(crate) fn write<R>(&self, write: impl FnOnce(&mut Corrections) -> R) -> Option<R> {
        self.lock().as_mut().map(write)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Corrections>> {
        // What is behind the lock is whole between any two statements, so a panic elsewhere does
        // not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
