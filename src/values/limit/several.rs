//! Several limits as one: `Limit::joined` checks that each can refuse, and [`Shorter`] are all but
//! the longest.

use super::{Limit, RateType};
use crate::values::clock::Millis;

/// The most limits of one name: the bytes of a log in Redis have room for so many.
pub(crate) const MOST_LIMITS: usize = 4;

/// One of the limits of a [`Limit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LimitPart {
    pub(crate) permits: u64,
    pub(crate) interval: Millis,
}

impl LimitPart {
    pub(super) const NONE: Self = Self {
        permits: 0,
        interval: 0,
    };
}

/// The limits of a [`Limit`] other than its longest, by falling intervals. A part without permits
/// stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shorter([LimitPart; MOST_LIMITS - 1]);

impl Shorter {
    pub(crate) const fn is_none(&self) -> bool {
        self.0[0].permits == 0
    }

    /// Returns them, the longest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = LimitPart> + Clone + use<> {
        self.0.into_iter().filter(|part| part.permits > 0)
    }
}

impl Limit {
    /// Returns each of the limits that [`and`](Self::and) has joined, the longest first; of any
    /// other, itself alone.
    ///
    /// ```
    /// use tower_ratelimit::Limit;
    ///
    /// let limit = Limit::per_second(10).and(Limit::per_hour(500));
    /// assert!(limit.each().eq([Limit::per_hour(500), Limit::per_second(10)]));
    /// ```
    pub fn each(&self) -> impl Iterator<Item = Self> + use<> {
        let of = *self;
        of.parts().map(move |part| Self {
            parts: Self::plain(part).parts,
            ..of
        })
    }

    /// Returns the numbers of each of its limits, the longest first: of most, of itself alone.
    pub(crate) fn parts(&self) -> impl DoubleEndedIterator<Item = LimitPart> + Clone + use<> {
        self.parts.into_iter().filter(|part| part.permits > 0)
    }

    pub(crate) fn shorter(&self) -> Shorter {
        let [_, shorter @ ..] = self.parts;
        Shorter(shorter)
    }

    /// Returns it in the form of `other`: of several limits, of places in flight, or by the
    /// calendar.
    pub(crate) fn like(self, other: &Self) -> Self {
        let (mut parts, in_flight) = (other.parts, other.in_flight);
        if other.calendar.is_some() {
            parts[0].permits = self.permits();
            return Self { parts, ..*other };
        }
        parts[0] = self.parts[0];
        Self {
            parts,
            in_flight,
            ..self
        }
    }

    /// Returns the most permits that a request can take: those of the shortest interval.
    pub(crate) fn most_permits(&self) -> u64 {
        let shortest = self.parts().next_back();
        shortest.map_or(0, |part| part.permits)
    }

    /// Returns the same with other permits in each interval.
    pub(crate) fn with_permits(mut self, other: impl Fn(u64) -> u64) -> Self {
        for part in self.parts.iter_mut().filter(|part| part.permits > 0) {
            part.permits = other(part.permits);
        }
        self
    }

    /// Returns a limit of all that two have, or why there is none.
    pub(crate) const fn joined(self, other: Self) -> Result<Self, &'static str> {
        let is_plain = self.is_plain() && other.is_plain();
        if !is_plain {
            return Err(
                "the calendar, places in flight, `per_client` and `keep_alive` do not combine with \
                 others: leave them out",
            );
        }
        let mut parts = [LimitPart::NONE; 2 * MOST_LIMITS];
        let mut number = 0;
        let mut index = 0;
        while index < 2 * MOST_LIMITS {
            let of = if index < MOST_LIMITS { self } else { other };
            let part = of.parts[index % MOST_LIMITS];
            if part.permits > 0 {
                // Behind those that are longer.
                let mut at = number;
                while at > 0 && parts[at - 1].interval < part.interval {
                    parts[at] = parts[at - 1];
                    at -= 1;
                }
                parts[at] = part;
                number += 1;
            }
            index += 1;
        }
        if number > MOST_LIMITS {
            return Err("at most four limits combine");
        }
        if let Some(reason) = needless(&parts, number) {
            return Err(reason);
        }
        let [longest, a, b, c, ..] = parts;
        let parts = [longest, a, b, c];
        Ok(Self { parts, ..self })
    }

    const fn is_plain(&self) -> bool {
        matches!(self.rate_type, RateType::Overall)
            && self.keep_alive.is_none()
            && self.calendar.is_none()
            && !self.in_flight
    }
}

/// Returns why one of these limits would never refuse a request that another one admits.
const fn needless(parts: &[LimitPart], number: usize) -> Option<&'static str> {
    let mut index = 0;
    while index < number {
        let long = parts[index];
        let mut other = index + 1;
        while other < number {
            let short = parts[other];
            if short.interval == long.interval {
                return Some("two of the limits have the same interval");
            }
            if short.permits >= long.permits {
                return Some(
                    "a limit of a shorter interval takes fewer permits: else the longer \
                     one alone limits",
                );
            }
            let fit = long.interval.div_ceil(short.interval) as u128;
            if long.permits as u128 >= fit * short.permits as u128 {
                return Some(
                    "a limit of a longer interval takes fewer permits than the shorter one \
                     allows in that time: else the shorter one alone limits",
                );
            }
            other += 1;
        }
        index += 1;
    }
    None
}
