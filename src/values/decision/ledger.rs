//! The corrections of a grant's charges: [`Ledger`].

use std::sync::Mutex;

use crate::{sync::lock, values::charge::Charge};

/// The permits that a grant's charges are corrected to, until the response to its request is over.
/// It has no entries before the first correction, as most requests see none.
#[derive(Debug)]
pub(crate) struct Ledger(Mutex<Option<Vec<LedgerEntry>>>);

impl Default for Ledger {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
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

// Of a copied grant, nothing is corrected.
impl Clone for Ledger {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Ledger {
    /// Closes it, and returns one entry per charge, or none if none was corrected; `None` if it is
    /// not open.
    pub(crate) fn close(&self) -> Option<Vec<LedgerEntry>> {
        lock(&self.0).take()
    }

    pub(crate) fn is_open(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Corrects those charges of its grant for which `permits` returns a number. It is called with
    /// the correction so far, and must not come back here. Returns false if it is not open.
    pub(crate) fn correct(
        &self,
        charges: &[Charge],
        by: CorrectedBy,
        permits: impl Fn(&Charge, LedgerEntry) -> Option<u32>,
    ) -> bool {
        let mut open = lock(&self.0);
        let Some(entries) = open.as_mut() else {
            return false;
        };
        if entries.is_empty() {
            let taken = |charge: &Charge| (CorrectedBy::Taken, charge.permits);
            entries.extend(charges.iter().map(taken));
        }
        for (charge, entry) in charges.iter().zip(entries) {
            if entry.0 <= by
                && let Some(permits) = permits(charge, *entry)
            {
                *entry = (by, permits);
            }
        }
        true
    }
}
