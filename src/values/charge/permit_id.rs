//! The id of one request to a store: [`PermitId`].

use std::{
    cell::Cell,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
};

/// Identifies one acquire, before it is sent: its entry in a log carries these bytes, or in our own
/// format [eight](Self::short) made of them.
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
    /// Returns its halves, joined by XOR: ids that differ in one half alone differ in it.
    pub(crate) fn short(self) -> [u8; 8] {
        let mut short = [0; 8];
        for (at, byte) in self.0.iter().enumerate() {
            short[at % 8] ^= byte;
        }
        short
    }

    /// The id before a store has given one.
    pub(crate) const NONE: Self = Self([0; 16]);

    /// Returns an id for a store in this process: a random number of the thread, and a count.
    ///
    /// So no two are the same, also none of an earlier process whose store was saved, and threads
    /// write to no number that they share.
    pub(crate) fn next() -> Self {
        thread_local! {
            static NEXT: Cell<u128> = Cell::new(u128::from(RandomState::new().hash_one(())) << 64);
        }
        let id = NEXT.get();
        NEXT.set(id + 1);
        Self(id.to_be_bytes())
    }

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

    /// Returns the id of a grant from the lease with this id, numbered from 1.
    pub(crate) fn for_grant(self, number: u64) -> Self {
        // Not the byte by which the ids above differ; a lease is over long before the others have
        // counted up.
        let counted = u128::from(number & u64::MAX >> 8);
        Self((u128::from_be_bytes(self.0) ^ counted).to_be_bytes())
    }
}

// Who knows an id can give back its permits.
impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitId(..)")
    }
}
