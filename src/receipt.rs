//! The proof of what a grant took, by which it is settled: [`Receipt`].

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    compiled_limit::{CompiledLimit, ForRules, Limiter},
    limit::LimitSource,
    name::Name,
    observe::StateChange,
    sync::lock,
};

/// Identifies one acquire, before it is sent: its entry in the log carries these bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PermitId(pub(crate) [u8; 16]);

impl Hash for PermitId {
    /// Hashes two numbers in place of bytes, which is cheaper.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let id = u128::from_be_bytes(self.0);
        state.write_u64((id >> 64) as u64);
        state.write_u64(id as u64);
    }
}

impl PermitId {
    /// The id before a store has given one.
    pub(crate) const NONE: Self = Self([0; 16]);

    /// Returns the id of an extra charge. Ids are random, or count in their second half, so that no
    /// other is the same.
    pub(crate) fn for_more(self) -> Self {
        let mut id = self.0;
        id[8] ^= 0x80;
        Self(id)
    }

    /// Returns the id of another call for the same caller, while an earlier one may be in flight.
    pub(crate) fn for_next_call(self) -> Self {
        let mut id = self.0;
        if let Some(number) = id.first_chunk_mut() {
            *number = u32::from_le_bytes(*number).wrapping_add(1).to_le_bytes();
        }
        Self(id)
    }

    /// Returns the id of the permits that the same call fetches ahead.
    pub(crate) fn for_ahead(self) -> Self {
        let mut id = self.0;
        id[8] ^= 0x40;
        Self(id)
    }

    /// Returns the id of the refusals that the same call reports.
    pub(crate) fn for_strikes(self) -> Self {
        let mut id = self.0;
        id[8] ^= 0x20;
        Self(id)
    }

    /// Returns the id of a grant from the lease with this id, numbered from 1.
    pub(crate) fn for_grant(self, number: u64) -> Self {
        // Not the byte by which the ids above differ; a lease is over long before the others have
        // counted up.
        let counted = u128::from(number & u64::MAX >> 8);
        Self((u128::from_be_bytes(self.0) ^ counted).to_be_bytes())
    }
}

/// Proof of what one acquire took, to give back exactly that.
///
/// It is made before the acquire is sent, so that a caller that stops waiting for the answer can
/// still give back what was taken. Without [entries](crate::Algorithm) it can be used only after
/// the grant was received: with an [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) while
/// the window is open, by the calendar while its window is, with [slots](crate::RateLimiter::slots)
/// while the slot counts, and with [`Algorithm::Gcra`](crate::Algorithm::Gcra) while its permits
/// lie ahead. Of all clones of such a receipt, only the first refund counts.
#[derive(Clone)]
pub struct Receipt {
    pub(crate) limiter: Limiter,
    pub(crate) id: PermitId,
    pub(crate) permits: u32,
    /// The rules that were charged together, if there are several.
    pub(crate) rules: Option<ForRules>,
    /// The limit's interval; zero until the grant is received. An extra charge counts for at least
    /// as long, so it may be sent again within that time.
    pub(crate) interval: Duration,
    /// The time when it was made; `None` if the acquire was answered by then, and nothing of it is
    /// under way any more.
    pub(crate) made: Option<Instant>,
    /// The mark by which the algorithm finds the grant, if it has no entry of its own: known only
    /// after the grant was received, and used by the first of all copies that settles.
    pub(crate) taken: Option<(Taken, Settled)>,
    /// The origin of the permits, which settles them.
    pub(crate) taken_from: TakenFrom,
}

/// The theoretical arrival time after one grant: when all permits taken until then are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tat {
    /// In us since the epoch
    pub(crate) at: i64,
    /// The sum of all moves back so far, in us: a receipt finds by it what was given back since
    pub(crate) given: i64,
}

/// Permits that were fetched ahead, from which others are granted.
pub(crate) trait TakenAhead: Send + Sync {
    /// Takes back `permits` of one grant, and settles with the store what they change there.
    fn give_back(&self, permits: u32);
}

/// The lease that a grant is settled with.
#[derive(Clone)]
pub(crate) struct OfLease(Arc<dyn TakenAhead>, Settled);

impl OfLease {
    /// Gives `permits` back, for the first of all copies of a receipt that does.
    pub(crate) fn give_back(&self, permits: u32) {
        if permits > 0 && self.1.is_first() {
            self.0.give_back(permits);
        }
    }
}

/// The origin of permits, by the names of [`Source`](crate::Source).
#[derive(Clone)]
pub(crate) enum TakenFrom {
    /// The store
    Store,
    /// A lease of this process. The grant has no entry of its own
    Lease(OfLease),
    /// A share of the limit in this process, while the store failed. The store knows nothing of
    /// them
    Local,
    /// The same, and perhaps also the store, by a call that was sent after this moment and given up
    LocalAndStore(Option<Instant>),
}

/// Records whether a grant without an entry was settled. The copies of a receipt share it. It is
/// allocated with the first copy, because most grants are never settled.
#[derive(Default)]
pub(crate) struct Settled(OnceLock<Arc<AtomicBool>>);

impl Settled {
    fn is_first(&self) -> bool {
        !self.shared().swap(true, Ordering::Relaxed)
    }

    fn shared(&self) -> &Arc<AtomicBool> {
        self.0.get_or_init(Arc::default)
    }
}

impl Clone for Settled {
    fn clone(&self) -> Self {
        Self(Arc::clone(self.shared()).into())
    }
}

/// The mark by which an algorithm finds a grant that has no entry of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The window's last tick, by the store's clock
    Window(i64),
    /// The theoretical arrival time
    Tat(Tat),
    /// The end of the slot, in ticks since the epoch
    Slot(i64),
    /// The label of the calendar's window
    Date(i64),
    /// An estimate: what it took cannot be distinguished from what others took, and is not given
    /// back
    Estimate,
}

impl Receipt {
    /// Reports to the observers that it is settled at this many permits.
    pub(crate) fn report(&self, charged: u32) {
        self.of().observers.changed(&StateChange::Settled {
            rule: self.of().rule(),
            taken: self.permits,
            charged,
        });
    }

    pub(crate) fn name(&self) -> &Name {
        &self.limiter.name
    }

    /// Returns the limit that was charged.
    pub(crate) fn of(&self) -> &Arc<CompiledLimit> {
        &self.limiter.of
    }

    /// Returns whether `is` is true of one of its rules, with what that rule took.
    pub(crate) fn is_of(&self, is: impl Fn(&CompiledLimit, u32) -> bool) -> bool {
        match &self.rules {
            Some(rules) => rules.iter().any(|(of, permits)| is(of, *permits)),
            None => is(self.of(), self.permits),
        }
    }

    /// Returns the limit to write where an extra charge finds none.
    pub(crate) fn limit(&self) -> LimitSource {
        self.limiter.of.limit
    }

    /// Returns the receipt of an acquire that was granted by a limit of this interval.
    pub(crate) fn granted(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Returns whether the grant was received.
    pub(crate) fn was_granted(&self) -> bool {
        !self.interval.is_zero()
    }

    /// Returns whether a part of it is settled in this process.
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self.taken_from,
            TakenFrom::Local | TakenFrom::LocalAndStore(_)
        )
    }

    /// Returns the part that must be settled with the store, if any.
    pub(crate) fn of_store(self) -> Option<Self> {
        match self.taken_from {
            TakenFrom::Store | TakenFrom::Lease(_) => Some(self),
            TakenFrom::Local => None,
            TakenFrom::LocalAndStore(made) => Some(Self {
                taken_from: TakenFrom::Store,
                interval: Duration::ZERO,
                made,
                taken: None,
                ..self
            }),
        }
    }

    /// Returns the receipt of a grant from a lease.
    pub(crate) fn leased(self, taken_ahead: Arc<dyn TakenAhead>) -> Self {
        Self {
            taken_from: TakenFrom::Lease(OfLease(taken_ahead, Settled::default())),
            ..self
        }
    }

    /// Returns the permits that were requested.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns the receipt of a grant with this mark.
    #[cfg(all(test, inside))]
    pub(crate) fn taken(self, taken: Taken) -> Self {
        Self {
            taken: Some((taken, Settled::default())),
            ..self
        }
    }

    /// Returns the mark of the grant, to the first caller of all with a copy of the receipt.
    pub(crate) fn settle(&self) -> Option<Taken> {
        let (taken, settled) = self.taken.as_ref()?;
        settled.is_first().then_some(*taken)
    }
}

// Names hold identities, and who knows an id can give back its permits.
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

/// The charges of a grant's receipts, open for corrections until the response to its request is
/// over. It has no entries before the first correction, as most requests see none.
#[derive(Debug)]
pub(crate) struct Ledger(Mutex<Option<Vec<Correction>>>);

impl Default for Ledger {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

/// The permits to charge for one receipt, and the party that decided it.
pub(crate) type Correction = (CorrectedBy, u32);

/// The party that decides on a charge. A later one of these takes precedence over an earlier one,
/// in whatever order they do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CorrectedBy {
    /// The request, by what it took
    Taken,
    /// The rule, by the response
    Rule,
    /// The response, for all receipts
    Cost,
    /// The handler
    Handler,
}

// Of a copied grant, nothing is corrected.
impl Clone for Ledger {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Ledger {
    /// Closes it, and returns one entry per receipt, or none if none was corrected; `None` if it is
    /// not open.
    pub(crate) fn close(&self) -> Option<Vec<Correction>> {
        lock(&self.0).take()
    }

    pub(crate) fn is_open(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Corrects those receipts of its grant for which `permits` returns a number. It is called with
    /// the correction so far, and must not come back here. Returns false if it is not open.
    pub(crate) fn correct(
        &self,
        receipts: &[Receipt],
        by: CorrectedBy,
        permits: impl Fn(&Receipt, Correction) -> Option<u32>,
    ) -> bool {
        let mut open = lock(&self.0);
        let Some(entries) = open.as_mut() else {
            return false;
        };
        if entries.is_empty() {
            let taken = |receipt: &Receipt| (CorrectedBy::Taken, receipt.permits);
            entries.extend(receipts.iter().map(taken));
        }
        for (receipt, entry) in receipts.iter().zip(entries) {
            if entry.0 <= by
                && let Some(permits) = permits(receipt, *entry)
            {
                *entry = (by, permits);
            }
        }
        true
    }
}
