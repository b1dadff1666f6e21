//! The grant of a request, by which its charge is corrected: [`Grant`].

use std::{
    iter, slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{limit_state::LimitState, source::Source};
use crate::{
    list::List,
    macros::opaque,
    receipt::{CorrectedBy, Correction, Ledger, Receipt},
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
/// interval, or a minute, is lost, and [counted](crate::RedisStore::lost_charges).
///
/// If several rules applied to the request, a number is meant for each of them;
/// [`rule`](Self::rule) chooses one. If several layers let it pass, the grant is the innermost
/// one's, and [`layers`](Self::layers) has the others. A number is meant for all passes through the
/// innermost.
///
/// The grant of a [`RateLimiter`](crate::RateLimiter) belongs to no response: it is settled by its
/// [receipts](Self::receipts).
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
    given: Arc<Given>,
    /// The one rule that it is narrowed to.
    rule: Option<Arc<str>>,
}

/// The content of a grant.
#[derive(Clone, Debug)]
struct Given {
    limits: List<LimitState>,
    receipts: List<Receipt>,
    source: Source,
    admitted: Option<Admitted>,
}

/// A request that a layer let pass by the grant.
#[derive(Clone)]
struct Admitted {
    layer: LayerId,
    /// The address of the layer's store, which lives while the ledger is open.
    store: usize,
    ledger: Ledger,
    /// The grant of the layer around that one.
    outer: Option<Grant>,
}

opaque!(Admitted);

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
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitState> {
        self.states().iter().cloned()
    }

    pub(crate) fn states(&self) -> &[LimitState] {
        self.of_rule(&self.given.limits, LimitState::name)
    }

    /// Returns what was taken, one receipt per limiter.
    pub fn receipts(&self) -> &[Receipt] {
        self.of_rule(&self.given.receipts, rule_of)
    }

    /// Returns where the decision was made.
    pub fn source(&self) -> Source {
        self.given.source
    }

    /// Charges `permits` in all, whatever was taken or charged before.
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

    /// Charges nothing, so that all that was taken is given back.
    ///
    /// Returns false as [`set`](Self::set) does.
    pub fn refund(&self) -> bool {
        self.set(0)
    }

    /// Returns the grant of one rule alone, by its [`LimitState::name`]; with tiers that is
    /// `<rule>.<tier>`.
    ///
    /// `None` if no such rule charged the request. If several layers charged rules of this name,
    /// the limit is the innermost one's, and a number is meant for each.
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
                given: Arc::clone(&grant.given),
                rule: Some(name.into()),
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
        self.given.admitted.as_ref().map(|admitted| admitted.layer)
    }

    pub(crate) fn outer(&self) -> Option<&Self> {
        self.given.admitted.as_ref()?.outer.as_ref()
    }

    /// Returns the part of the rule that it is narrowed to, or else all.
    fn of_rule<'a, T>(&self, all: &'a [T], name: impl Fn(&T) -> &str) -> &'a [T] {
        let Some(rule) = &self.rule else { return all };
        let of_rule = all.iter().find(|it| *name(it) == **rule);
        of_rule.map_or(&[], slice::from_ref)
    }

    fn has_charged(&self, rule: &str) -> bool {
        self.receipts().iter().any(|it| rule_of(it) == rule)
    }

    fn correct_by_handler(&self, charge: impl Fn(u32) -> u32) -> bool {
        let rule = self.rule.as_deref();
        let correction = |receipt: &Receipt, (by, permits): Correction| {
            // The handler adds to what was taken or set by itself, whatever others have set.
            let before = match by {
                CorrectedBy::Handler => permits,
                _ => receipt.permits,
            };
            let is_meant = rule.is_none_or(|rule| rule_of(receipt) == rule);
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

    pub(crate) fn new(limits: List<LimitState>, receipts: List<Receipt>, source: Source) -> Self {
        Self {
            given: Arc::new(Given {
                limits,
                receipts,
                source,
                admitted: None,
            }),
            rule: None,
        }
    }

    /// Returns a grant that took nothing.
    pub(crate) fn by_policy() -> Self {
        Self::new(List::new(), List::new(), Source::FailurePolicy)
    }

    /// Returns the grant as that of a request which this layer lets pass, inside the layer of
    /// `outer`.
    pub(crate) fn admitted(mut self, layer: LayerId, store: usize, outer: Option<Self>) -> Self {
        Arc::make_mut(&mut self.given).admitted = Some(Admitted {
            layer,
            store,
            ledger: Ledger::default(),
            outer,
        });
        self
    }

    /// Returns the layer that let the request pass and the address of its store, until the response
    /// is over.
    pub(crate) fn given_by(&self) -> Option<(LayerId, usize)> {
        let admitted = self.given.admitted.as_ref()?;
        let is_open = admitted.ledger.is_open();
        is_open.then_some((admitted.layer, admitted.store))
    }

    /// Corrects the charge of those receipts for which `permits` returns a number. See
    /// [`Ledger::correct`].
    pub(crate) fn correct(
        &self,
        by: CorrectedBy,
        permits: impl Fn(&Receipt, Correction) -> Option<u32>,
    ) -> bool {
        let Given {
            receipts, admitted, ..
        } = &*self.given;
        let admitted = admitted.as_ref();
        admitted.is_some_and(|admitted| admitted.ledger.correct(receipts, by, permits))
    }

    /// Ends the corrections of its charge. See [`Ledger::close`].
    pub(crate) fn close(&self) -> Option<Vec<Correction>> {
        self.given.admitted.as_ref()?.ledger.close()
    }

    /// Returns the limits, to change them. The grant is copied if it is shared already.
    pub(crate) fn limits_mut(&mut self) -> &mut [LimitState] {
        &mut Arc::make_mut(&mut self.given).limits
    }

    /// Returns the receipts, to record where else permits were taken. The grant is copied if it is
    /// shared already.
    pub(crate) fn receipts_mut(&mut self) -> &mut [Receipt] {
        &mut Arc::make_mut(&mut self.given).receipts
    }

    /// Returns the receipts alone, to give them back.
    pub(crate) fn into_receipts(self) -> List<Receipt> {
        Arc::unwrap_or_clone(self.given).receipts
    }
}

fn rule_of(receipt: &Receipt) -> &str {
    &receipt.of().name
}
