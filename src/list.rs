//! A list that usually has one item, and then needs no allocation.

pub(crate) type List<T> = smallvec::SmallVec<[T; 1]>;
