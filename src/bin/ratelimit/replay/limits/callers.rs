//! The callers of a log, each with a number: [`Callers`].

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
};

use crate::access_log::{counted_as, says_nothing, shown_caller};

/// The number of characters of a caller's text that are kept: a digest replaces the rest of a
/// longer one.
const LONGEST: usize = 128;

#[derive(Default)]
pub(super) struct Callers {
    numbers: HashMap<Box<str>, u32>,
    secret: RandomState,
    /// The requests without a caller.
    pub(super) missing: u64,
}

impl Callers {
    /// Returns the number of a caller, if there is one.
    pub(super) fn number(&mut self, caller: Option<&str>) -> Option<u32> {
        let caller = caller.map(str::trim);
        let Some(caller) = caller.filter(|caller| !says_nothing(caller)) else {
            self.missing += 1;
            return None;
        };
        let caller = match counted_as(caller) {
            Cow::Borrowed(caller) => self.cut(caller),
            address => address,
        };
        if let Some(number) = self.numbers.get(&*caller) {
            return Some(*number);
        }
        let number = u32::try_from(self.numbers.len()).ok()?;
        self.numbers.insert(caller.into(), number);
        Some(number)
    }

    fn cut<'c>(&self, caller: &'c str) -> Cow<'c, str> {
        if caller.len() <= LONGEST {
            return Cow::Borrowed(caller);
        }
        let start: String = caller.chars().take(LONGEST).collect();
        let digest = self.secret.hash_one(caller);
        Cow::Owned(format!("{start}..{digest:016x}"))
    }

    pub(super) fn count(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Returns the text of the caller with a number, or a digest of it. Each call looks at all.
    pub(super) fn name_of(&self, number: u32, show_keys: bool) -> String {
        let found = self.numbers.iter().find(|(_, it)| **it == number);
        let shown = found.map(|(caller, _)| shown_caller(caller, show_keys, &self.secret));
        shown.unwrap_or_default()
    }
}
