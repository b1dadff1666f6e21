//! The grant of a request, by which its charges are corrected: [`Grant`]; and these charges:
//! [`Charges`].

use std::{
    iter,
    ops::{Deref, DerefMut},
    slice,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{limit_state::LimitState, source::Source};
use crate::{
    macros::opaque,
    sync::lock,
    values::{
        List,
        charge::{Charge, TakenFrom},
    },
};

/// The grant of a request: the state of its limits, and the permits that it took.
///
/// It is in the extensions of each request that a layer let pass and that a rule applied to. There
/// the handler sees what is left, and corrects the charge until the response's body has ended or
/// was dropped, so that a streamed response can be charged by what it really used: tokens, rows,
/// bytes. The last correction counts, and takes precedence over a [`Cost`](crate::Cost) and over
/// [`Rule::charge_if`](crate::Rule::charge_if). It also counts if the caller disconnects, or the
/// inner service fails.
///
/// If a request is charged less than it took, the rest is given back while it is still in use. If
/// it is charged more, the rest is debt: it counts from the end of the response, also beyond the
/// limit, is never refused, and no caller is admitted until enough of it has left the interval. A
/// limiter in Redis learns of it in the background. What cannot be sent within nine tenths of the
/// interval, or a minute, is lost, and [counted](crate::Health::lost_charges).
///
/// A place [in flight](crate::Limit::in_flight) comes back at the end, whatever was set; after an
/// upgrade that is when the last clone of the grant is dropped.
///
/// If several rules applied to the request, a number applies to each of them;
/// [`rule`](Self::rule) chooses one. If several layers let it pass, the grant is the innermost
/// one's, and [`layers`](Self::layers) has the others. A number is meant for all passes through the
/// innermost.
///
/// The grant of a [`RateLimiter`](crate::RateLimiter) belongs to no response: the limiter
/// [settles](crate::RateLimiter::settle) it.
///
/// Cloning is cheap: clones are the same grant.
///
/// # Example
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tower_ratelimit::{Grant, Limit, MemoryStore, RateLimitLayer, key::PeerIp};
///
/// async fn export(Extension(grant): Extension<Grant>) -> String {
///     let rows = vec!["one", "two", "three"];
///     grant.set(rows.len() as u32);
///     rows.join("\n")
/// }
///
/// let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_hour(1000).by(PeerIp).cost(10));
/// let app: Router = Router::new().route("/export", get(export)).layer(layer);
/// ```
#[derive(Clone, Debug)]
pub struct Grant {
    charges: Charges,
    source: Source,
    /// The one rule that it is narrowed to.
    rule: Option<Arc<str>>,
}

/// The permits to charge for one charge, and the party that decided it.
pub(crate) type LedgerEntry = (CorrectedBy, u32);

/// The party that decides on a charge. A later one of these takes precedence over an earlier one,
/// in whatever order they do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CorrectedBy {
    /// The request, by what it took
    Taken,
    /// The rule, by the response
    Rule,
    /// The response, for all charges
    Cost,
    Handler,
}

/// A request that a layer let pass by the grant.
struct Admitted {
    layer: LayerId,
    /// The address of the layer's store, which lives while the ledger is open.
    store: usize,
    /// What the charges are corrected to; `None` once the response is over. It has no entries
    /// before the first correction, as most requests see none.
    ledger: Mutex<Option<Vec<LedgerEntry>>>,
    /// The grant of the layer around that one.
    outer: Option<Grant>,
    /// Dropped with the last clone of the grant.
    held: OnceLock<Arc<dyn Send + Sync>>,
}

opaque!(Admitted);

impl Clone for Admitted {
    fn clone(&self) -> Self {
        Self {
            // The copy is a grant of its own, without corrections so far.
            ledger: Mutex::new(Some(Vec::new())),
            outer: self.outer.clone(),
            held: self.held.clone(),
            ..*self
        }
    }
}

/// Identifies a layer and its clones in this process, also after they are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerId(u64);

impl LayerId {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl Grant {
    /// Returns the limits that applied, the one closest to exhaustion first.
    ///
    /// Empty if no store answered: see [`source`](Self::source).
    pub fn limits(&self) -> impl Iterator<Item = LimitState<'_>> {
        LimitState::each(self.charges(), true)
    }

    /// Returns its charges, also those of shadow rules that had no room.
    pub(crate) fn charges(&self) -> &[Charge] {
        let all = &self.charges;
        let Some(rule) = &self.rule else { return all };
        let of_rule = all.iter().find(|it| it.compiled().name == *rule);
        of_rule.map_or(&[], slice::from_ref)
    }

    /// Returns those of its charges that took permits.
    pub(crate) fn taken(&self) -> impl Iterator<Item = &Charge> {
        self.charges().iter().filter(|charge| charge.took())
    }

    /// Returns where the decision was made.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Charges `permits` in all, whatever was taken or charged before; 0 gives all of it back.
    ///
    /// Returns false, and has no effect, if the response is over or the grant is a
    /// [`RateLimiter`](crate::RateLimiter)'s.
    pub fn set(&self, permits: u32) -> bool {
        self.correct_by_handler(|_| permits)
    }

    /// Charges `permits` more than was taken or set before, up to 2^32 - 1 in all.
    ///
    /// Returns false as [`set`](Self::set) does.
    pub fn add(&self, permits: u32) -> bool {
        self.correct_by_handler(|charged| charged.saturating_add(permits))
    }

    /// Returns the grant of one rule alone, by its [`LimitState::name`]; with tiers that is
    /// `<rule>.<tier>`.
    ///
    /// `None` if no such rule charged the request. If several layers charged rules of this name,
    /// the limit is the innermost one's, and a number applies to each.
    ///
    /// # Example
    ///
    /// ```
    /// # use tower_ratelimit::Grant;
    /// fn answered(grant: &Grant, tokens: u32) {
    ///     if let Some(grant) = grant.rule("tokens") {
    ///         grant.set(tokens);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<Self> {
        self.layers().find_map(|grant| {
            grant.has_charged(name).then(|| Self {
                rule: Some(name.into()),
                ..grant.clone()
            })
        })
    }

    /// Returns this grant, then that of the layer around, and so on. The grant of a
    /// [`RateLimiter`](crate::RateLimiter) is the only one.
    pub fn layers(&self) -> impl Iterator<Item = &Self> {
        iter::successors(Some(self), |grant| grant.outer())
    }

    /// Returns this grant, and those of the request's earlier passes through the same layer.
    pub(crate) fn passes(&self) -> impl Iterator<Item = &Self> {
        self.layers().filter(|grant| grant.layer() == self.layer())
    }

    fn layer(&self) -> Option<LayerId> {
        self.charges.admitted().map(|admitted| admitted.layer)
    }

    pub(crate) fn outer(&self) -> Option<&Self> {
        self.charges.admitted()?.outer.as_ref()
    }

    fn has_charged(&self, rule: &str) -> bool {
        self.taken().any(|charge| *charge.compiled().name == *rule)
    }

    fn correct_by_handler(&self, charge: impl Fn(u32) -> u32) -> bool {
        let rule = self.rule.as_deref();
        let correction = |it: &Charge, (by, permits): LedgerEntry| {
            // The handler adds to what was taken or set by itself, whatever others have set.
            let before = match by {
                CorrectedBy::Handler => permits,
                _ => it.permits,
            };
            let is_meant = rule.is_none_or(|rule| *it.compiled().name == *rule);
            is_meant.then(|| charge(before))
        };
        let meant = self.layers().filter(|grant| match rule {
            Some(rule) => grant.has_charged(rule),
            None => grant.layer() == self.layer(),
        });
        let mut counts = false;
        for grant in meant {
            counts |= grant.correct(CorrectedBy::Handler, correction);
        }
        counts
    }

    /// `charges` has that of the limit closest to exhaustion first.
    pub(crate) fn new(charges: Charges, source: Source) -> Self {
        let rule = None;
        Self {
            charges,
            source,
            rule,
        }
    }

    /// Returns a grant that took nothing.
    pub(crate) fn by_policy() -> Self {
        Self::new(Charges::default(), Source::FailurePolicy)
    }

    /// Returns the grant as that of a request which this layer lets pass, inside the layer of
    /// `outer`.
    pub(crate) fn admitted(mut self, layer: LayerId, store: usize, outer: Option<Self>) -> Self {
        let held = self.charges.0.get_or_insert_default();
        Arc::make_mut(held).admitted = Some(Admitted {
            layer,
            store,
            ledger: Mutex::new(Some(Vec::new())),
            outer,
            held: OnceLock::new(),
        });
        self
    }

    /// Returns the layer that let the request pass and the address of its store, until the response
    /// is over.
    pub(crate) fn given_by(&self) -> Option<(LayerId, usize)> {
        let admitted = self.charges.admitted()?;
        let is_open = lock(&admitted.ledger).is_some();
        is_open.then_some((admitted.layer, admitted.store))
    }

    /// Corrects those charges for which `permits` returns a number. It is called with the
    /// correction so far, and must not come back here. Returns false if the response is over.
    pub(crate) fn correct(
        &self,
        by: CorrectedBy,
        permits: impl Fn(&Charge, LedgerEntry) -> Option<u32>,
    ) -> bool {
        let Some(admitted) = self.charges.admitted() else {
            return false;
        };
        let mut open = lock(&admitted.ledger);
        let Some(entries) = open.as_mut() else {
            return false;
        };
        if entries.is_empty() {
            let taken = |charge: &Charge| (CorrectedBy::Taken, charge.permits);
            entries.extend(self.charges.iter().map(taken));
        }
        for (charge, entry) in self.charges.iter().zip(entries) {
            if entry.0 <= by
                && let Some(permits) = permits(charge, *entry)
            {
                *entry = (by, permits);
            }
        }
        true
    }

    /// Ends the corrections of its charges. Returns one entry per charge, or an empty list
    /// if none was corrected; `None` if they have ended before.
    pub(crate) fn close(&self) -> Option<Vec<LedgerEntry>> {
        lock(&self.charges.admitted()?.ledger).take()
    }

    /// Keeps something as long as there is a clone of the grant.
    pub(crate) fn hold(&self, held: Arc<dyn Send + Sync>) {
        if let Some(admitted) = self.charges.admitted() {
            let _ = admitted.held.set(held);
        }
    }

    /// Returns the charges, to change them. The grant is copied if it is shared already.
    pub(crate) fn charges_mut(&mut self) -> &mut [Charge] {
        &mut self.charges
    }

    /// Returns it as made by a share of the limits in this process.
    pub(crate) fn by_share(mut self) -> Self {
        for charge in self.charges_mut() {
            charge.taken_from = TakenFrom::Local;
        }
        self.source = Source::Local;
        self
    }
}

/// The charges of a request, each of another limiter: what its plan asks for, a store answers in
/// place, and its grant or refusal keeps until the response is over.
///
/// Copies share them until one of them is changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charges(Option<Arc<HeldCharges>>);

#[derive(Debug, Default)]
struct HeldCharges {
    charges: List<Charge>,
    admitted: Option<Admitted>,
}

impl Clone for HeldCharges {
    fn clone(&self) -> Self {
        let charges = match &self.charges[..] {
            // The usual case: `List`'s own clone would move it once more.
            [one] => List::from([one.clone()]),
            all => all.iter().cloned().collect(),
        };
        let admitted = self.admitted.clone();
        Self { charges, admitted }
    }
}

impl Charges {
    pub(crate) fn one(charge: Charge) -> Self {
        let charges = List::from([charge]);
        let admitted = None;
        Self(Some(Arc::new(HeldCharges { charges, admitted })))
    }

    pub(crate) fn push(&mut self, charge: Charge) {
        match &mut self.0 {
            None => *self = Self::one(charge),
            Some(held) => Arc::make_mut(held).charges.push(charge),
        }
    }

    /// Reserves room for so many in all, once there is one.
    pub(crate) fn reserve(&mut self, all: usize) {
        if let Some(held) = self.0.as_mut().filter(|held| held.charges.capacity() < all) {
            let held = &mut Arc::make_mut(held).charges;
            held.reserve_exact(all.saturating_sub(held.len()));
        }
    }

    /// Returns the request that a layer let pass by them.
    fn admitted(&self) -> Option<&Admitted> {
        self.0.as_ref()?.admitted.as_ref()
    }
}

impl Deref for Charges {
    type Target = [Charge];

    fn deref(&self) -> &[Charge] {
        self.0.as_ref().map_or(&[], |held| &held.charges)
    }
}

impl DerefMut for Charges {
    fn deref_mut(&mut self) -> &mut [Charge] {
        match &mut self.0 {
            None => &mut [],
            Some(held) => &mut Arc::make_mut(held).charges,
        }
    }
}

impl FromIterator<Charge> for Charges {
    fn from_iter<I: IntoIterator<Item = Charge>>(charges: I) -> Self {
        let charges = List::from_iter(charges);
        let admitted = None;
        Self((!charges.is_empty()).then(|| Arc::new(HeldCharges { charges, admitted })))
    }
}
