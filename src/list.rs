//! A list that is usually of one item, and then needs no allocation.

use std::ops::Deref;

#[derive(Clone, Debug)]
pub(crate) enum List<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> List<T> {
    pub(crate) const EMPTY: Self = Self::Many(Vec::new());

    pub(crate) fn one(item: T) -> Self {
        Self::One([item])
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}
