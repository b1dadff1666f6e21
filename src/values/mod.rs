//! What the other modules of the crate tell each other: limits, charges, decisions, names, errors,
//! times, and the events that observers receive. These import nothing but each other.

pub(crate) mod charge;
pub(crate) mod clock;
pub(crate) mod compiled_limit;
pub(crate) mod decision;
pub(crate) mod demand;
pub(crate) mod error;
pub(crate) mod failure_policy;
pub(crate) mod limit;
pub(crate) mod name;
pub(crate) mod observe;

/// A list that usually has one item, and then needs no allocation.
pub(crate) type List<T> = smallvec::SmallVec<[T; 1]>;
