//! How an event of a history may be taken: when, or not at all. What a server showed of it says what is tried first.

use super::{
    recorded::{Counted, History},
    spec::Taken,
};

/// Ways to take events, the likeliest first. There can be very many, and few are looked at.
pub(super) type Ways<'a> = Box<dyn Iterator<Item = (usize, Taken)> + 'a>;

/// What a server showed of an event; the default: nothing. Of what reads alone nothing need be shown: it is tried at each
/// point of the order.
#[derive(Clone, Debug, Default)]
pub(super) struct Hint {
    /// Its place in the server's own order
    place: Option<usize>,
    time: Time,
}

/// When an event was carried out, by the clock that counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Time {
    /// Nobody knows. Not before the next event of which the time is known, as a guess
    #[default]
    Unknown,
    Exactly(i64),
    /// One of these, the likeliest first
    OneOf(Vec<i64>),
    /// Then, or a little earlier. The earliest time leaves most to those that follow
    UpTo(i64),
    Never,
}

impl Hint {
    pub(super) fn new(place: usize, time: Time) -> Self {
        Self {
            place: Some(place),
            time,
        }
    }

    pub(super) fn never() -> Self {
        Self {
            place: None,
            time: Time::Never,
        }
    }
}

/// What leads through a history.
#[derive(Clone, Copy)]
pub(super) struct Guide<'a> {
    pub(super) history: &'a History,
    pub(super) hints: &'a [Hint],
    /// Whether only that is tried which agrees with the hints.
    pub(super) strict: bool,
}

impl<'a> Guide<'a> {
    pub(super) fn hint(&self, event: usize) -> Option<&'a Hint> {
        self.hints.get(event)
    }

    /// The place of an event in the server's own order.
    pub(super) fn place(&self, event: usize) -> Option<usize> {
        self.hint(event)?.place
    }

    /// When an event was carried out at the latest.
    pub(super) fn latest(&self, event: usize) -> Option<i64> {
        match self.hint(event)?.time {
            Time::Exactly(time) | Time::UpTo(time) => Some(time),
            Time::OneOf(_) | Time::Unknown | Time::Never => None,
        }
    }

    /// How an event may be taken after what was taken at `now`, and before something that was by `latest`.
    pub(super) fn ways(self, now: i64, event: usize, latest: i64) -> Ways<'a> {
        let recorded = &self.history.events[event];
        let earliest = recorded.begun.at();
        let ended = recorded.ended.unwrap_or(self.history.end).at();
        if self.history.is_told_at_once(event) {
            // The store has no part in it, whatever the time is there.
            return Box::new(std::iter::once((event, Taken::At(earliest))));
        }
        let time = self.hint(event).map_or(&Time::Unknown, |hint| &hint.time);
        let agrees = move |at: &i64| match time {
            Time::Unknown => *at <= latest.max(now),
            Time::Exactly(time) => at == time,
            Time::OneOf(times) => times.contains(at),
            Time::UpTo(time) => at <= time,
            Time::Never => false,
        };
        let likely = match time {
            Time::OneOf(times) => times.as_slice(),
            _ => &[],
        };
        let skipped = self.history.may_be_skipped(event) && (*time == Time::Never || !self.strict);
        let never = skipped.then_some(Taken::Never);
        let strict = self.strict;
        // The rest comes last, if at all.
        let others = move |at: &i64| !strict && !agrees(at);
        let ways: Box<dyn Iterator<Item = Taken> + 'a> = match &self.history.clock {
            Counted::ByServer => {
                let possible = earliest.max(now)..=ended;
                let near = possible.clone().filter(agrees);
                Box::new(near.chain(possible.filter(others)).map(Taken::At))
            }
            Counted::ByHand(shown) => {
                let possible = move || {
                    let shown = shown.iter().copied();
                    shown.filter(move |at| (earliest..=ended).contains(at))
                };
                let likely = likely.iter().copied();
                let likely = likely.filter(move |at| possible().any(|shown| shown == *at));
                let near = possible().filter(agrees);
                let times = move || {
                    let near = likely.clone().chain(near.clone());
                    near.chain(possible().filter(others))
                };
                let later = move |at: i64| possible().filter(move |by| *by > at);
                let swept =
                    times().flat_map(move |at| later(at).map(move |by| Taken::Swept(at, by)));
                // Very many, where nothing is known of the time.
                let swept = (*time != Time::Unknown || !strict).then_some(swept);
                Box::new(times().map(Taken::At).chain(swept.into_iter().flatten()))
            }
        };
        Box::new(
            never
                .into_iter()
                .chain(ways)
                .map(move |taken| (event, taken)),
        )
    }
}
