//! A list that usually has one item, and then needs no allocation.

use std::{
    hash::{Hash, Hasher},
    ops::{Deref, DerefMut},
};

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

    pub(crate) fn push(&mut self, item: T) {
        match self {
            Self::Many(many) if many.is_empty() => *self = Self::one(item),
            Self::Many(many) => many.push(item),
            Self::One(_) => {
                if let Self::One([first]) = std::mem::replace(self, Self::EMPTY) {
                    *self = Self::Many(vec![first, item]);
                }
            }
        }
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self::EMPTY
    }
}

// Compares the items, whichever variant holds them.
impl<T: PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for List<T> {}

impl<T: Hash> Hash for List<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        let Some(first) = items.next() else {
            return Self::EMPTY;
        };
        match items.next() {
            None => Self::one(first),
            Some(second) => {
                let mut many = Vec::with_capacity(2 + items.size_hint().0);
                many.extend([first, second]);
                many.extend(items);
                Self::Many(many)
            }
        }
    }
}

impl<T> From<List<T>> for Vec<T> {
    fn from(list: List<T>) -> Self {
        match list {
            List::One(one) => one.into(),
            List::Many(many) => many,
        }
    }
}

impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Self::One([one]) => (Some(one), Vec::new()),
            Self::Many(many) => (None, many),
        };
        one.into_iter().chain(many)
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

impl<T> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}
