//! How a step of a history may be taken: when, or not at all. What a server showed of it says what
//! is tried first.

use super::{spec::Taken, *};

/// Ways to take steps, the likeliest first. There can be very many, and few are looked at.
pub(crate) type Ways<'a> = Box<dyn Iterator<Item = (usize, Taken)> + 'a>;

/// What a server showed of a step; the default: nothing. Of what reads alone nothing need be shown:
/// it is tried at each point of the order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hint {
    /// Its place in the server's own order
    place: Option<usize>,
    time: Time,
    /// The steps, if there are several, that places like this one belong to, in an unknown
    /// order
    shared_by: Vec<usize>,
}

/// When a step was carried out, by the clock that counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Time {
    /// Unknown; as a guess, not before the next step whose time is known
    #[default]
    Unknown,
    Exactly(i64),
    /// One of these, the likeliest first
    OneOf(Vec<i64>),
    /// Not before, and not after. The earliest time leaves most to those that follow
    Within(i64, i64),
    Never,
}

impl Hint {
    pub(crate) fn new(place: usize, time: Time) -> Self {
        Self {
            place: Some(place),
            time,
            shared_by: Vec::new(),
        }
    }

    /// One of the hints of these steps, whose places come in this order.
    pub(crate) fn shared_by(self, steps: &[usize]) -> Self {
        Self {
            shared_by: steps.to_vec(),
            ..self
        }
    }

    pub(crate) fn is_before(&self, place: usize) -> bool {
        self.place.is_some_and(|own| own < place)
    }

    pub(crate) fn never() -> Self {
        Self {
            time: Time::Never,
            ..Self::default()
        }
    }
}

/// What leads through a history.
#[derive(Clone, Copy)]
pub(crate) struct Guide<'a> {
    pub(crate) history: &'a History,
    pub(crate) hints: &'a [Hint],
    /// Whether only that is tried which agrees with the hints.
    pub(crate) strict: bool,
}

impl<'a> Guide<'a> {
    /// What was shown of a step: where it shares its hint, of the first place that is left when
    /// some are `taken`.
    pub(crate) fn hint(&self, step: usize, taken: &[bool]) -> Option<&'a Hint> {
        let own = self.hints.get(step)?;
        let before = own.shared_by.iter().filter(|step| taken[**step]);
        let first_left = own.shared_by.get(before.count());
        first_left.map_or(Some(own), |step| self.hints.get(*step))
    }

    /// The place of a step in the server's own order.
    pub(crate) fn place(&self, step: usize, taken: &[bool]) -> Option<usize> {
        self.hint(step, taken)?.place
    }

    /// What comes before a step was carried out by then.
    pub(crate) fn earliest(&self, step: usize) -> Option<i64> {
        match self.hints.get(step)?.time {
            Time::Exactly(time) | Time::Within(time, _) => Some(time),
            Time::OneOf(_) | Time::Unknown | Time::Never => None,
        }
    }

    /// How a step may be taken after what was taken at `now`, and before something that was by
    /// `latest`.
    pub(crate) fn ways(self, now: i64, step: usize, taken: &[bool], latest: i64) -> Ways<'a> {
        let possible = &self.history.steps[step];
        let (earliest, ended) = (*possible.times.start(), *possible.times.end());
        if let Of::Event(event) = possible.of
            && is_repeated_at_once(&self.history.events[event])
        {
            // The store has no part in it, whatever the time is there.
            return Box::new(std::iter::once((step, Taken::At(earliest))));
        }
        let hint = self.hint(step, taken);
        let time = hint.map_or(&Time::Unknown, |hint| &hint.time);
        let agrees = move |at: &i64| match time {
            Time::Unknown => *at <= latest.max(now),
            Time::Exactly(time) => at == time,
            Time::OneOf(times) => times.contains(at),
            Time::Within(from, to) => (from..=to).contains(&at),
            Time::Never => false,
        };
        let strict = self.strict;
        let skipped = possible.may_be_skipped && (*time == Time::Never || !strict);
        let never = skipped.then_some(Taken::Never);
        let possible = move || -> Box<dyn Iterator<Item = i64> + 'a> {
            match &self.history.clock {
                Counted::ByServer => Box::new(earliest.max(now)..=ended),
                Counted::ByHand(shown) => {
                    let shown = shown.iter().copied();
                    Box::new(shown.filter(move |at| (earliest..=ended).contains(at)))
                }
            }
        };
        let likely = match time {
            Time::OneOf(times) => times.as_slice(),
            _ => &[],
        };
        let likely = likely.iter().copied();
        let likely = likely.filter(move |at| possible().any(|possible| possible == *at));
        let near = possible().filter(agrees);
        // The rest comes last, if at all.
        let others = possible().filter(move |at| !strict && !agrees(at));
        let times = likely.chain(near).chain(others).map(Taken::At);
        let ways = never.into_iter().chain(times);
        Box::new(ways.map(move |taken| (step, taken)))
    }
}
