//! What a server's MONITOR shows of the events of a history: in which order they were carried out, and when.
//!
//! Found by the ids in the commands, and by nothing else of the scripts' arguments: a hint that is wrong, or missing,
//! costs the search some time and changes no verdict.

use std::{collections::HashMap, time::Duration};

use super::super::script::{AVAILABLE, SETTLE};
use super::{
    feed::Seen,
    record::{Event, Told, What},
    recorded::{Counted, History},
    ways::{Hint, Time},
};
use crate::{
    decision::PermitId,
    name::Name,
    store::{Charge, Op},
};

/// By how much what is shown of a call can lie before it, in ms: servers show when they began to look for calls.
const SHOWN_BEFORE: f64 = 5.0;

/// What was shown of some histories.
pub(super) struct Shown<'a> {
    seen: &'a [Seen],
    /// By id and limiter, as one id stands for all that a list takes
    ids: HashMap<PermitId, Vec<(Name, Places)>>,
    /// Where scripts wrote a rate
    changes: Vec<usize>,
    /// Where permits were counted
    counts: Vec<usize>,
}

/// Where the id of an acquire stands in what a server did.
#[derive(Debug, Default)]
struct Places {
    /// Where it was asked for
    asked: Vec<usize>,
    /// Where it was settled, if it was there
    settled: Vec<usize>,
    /// Where it was added to a log, and with which score
    added: Option<(usize, i64)>,
    /// Where it was removed from a log, or would have been
    removed: Vec<usize>,
}

impl<'a> Shown<'a> {
    pub(super) fn read<'h>(histories: impl Iterator<Item = &'h History>, seen: &'a [Seen]) -> Self {
        let mut ids: HashMap<PermitId, Vec<(Name, Places)>> = HashMap::new();
        for event in histories.flat_map(|history| &history.events) {
            if let What::Acquire(acquire, _) = &event.what {
                for Charge { id, name, .. } in acquire.charges() {
                    for id in [*id, id.for_more()] {
                        let places = (name.clone(), Places::default());
                        ids.entry(id).or_default().push(places);
                    }
                }
            }
        }
        let (mut changes, mut counts) = (Vec::new(), Vec::new());
        let all = seen;
        for (place, seen) in seen.iter().enumerate() {
            let words: Vec<_> = seen.words.iter().map(|word| unescaped(word)).collect();
            let is = |verb: &[u8]| seen.by_script && words[0].eq_ignore_ascii_case(verb);
            if (is(b"HSET") || is(b"HSETNX")) && words.iter().any(|word| word == b"rate") {
                changes.push(place);
            }
            if !seen.by_script
                && words
                    .get(1)
                    .is_some_and(|script| AVAILABLE.is_named(script))
            {
                counts.push(place);
            }
            for (word, bytes) in words.iter().enumerate() {
                let found = bytes.windows(16).filter_map(|id| id.try_into().ok());
                for id in found.map(PermitId) {
                    for (name, places) in ids.get_mut(&id).into_iter().flatten() {
                        if !seen.by_script {
                            // A call of an unknown script runs none.
                            let ran = all.get(place + 1).is_some_and(|next| next.by_script);
                            if !ran || !seen.words.iter().any(|word| word == name.as_str()) {
                                // It comes again, or is another limiter's.
                            } else if SETTLE.is_named(&words[1]) {
                                places.settled.push(place);
                            } else {
                                places.asked.push(place);
                            }
                        } else if seen.words[1] != format!("{{{}}}:permits", name.as_str()) {
                            // Another limiter's log.
                        } else if is(b"ZREM") {
                            places.removed.push(place);
                        } else if is(b"ZADD") && places.added.is_none() {
                            // Each member follows its score.
                            let score = std::str::from_utf8(&words[word - 1]).ok();
                            places.added =
                                score.and_then(|score| Some((place, score.parse().ok()?)));
                        }
                    }
                }
            }
        }
        Self {
            seen,
            ids,
            changes,
            counts,
        }
    }

    /// A hint for each event of a history.
    pub(super) fn hints(&self, history: &History) -> Vec<Hint> {
        let mut changes = self.changes.clone();
        let events = history.events.iter();
        let hints = events.map(|event| self.hint(history, event, &mut changes));
        hints.map(Option::unwrap_or_default).collect()
    }

    fn places(&self, id: PermitId, name: &Name) -> Option<&Places> {
        let places = self.ids.get(&id)?;
        let of_name = places.iter().find(|(of, _)| of == name);
        of_name.map(|(_, places)| places)
    }

    fn hint(&self, history: &History, event: &Event, changes: &mut Vec<usize>) -> Option<Hint> {
        let begun = millis(event.begun.wall) - SHOWN_BEFORE;
        let ended = millis(event.ended.unwrap_or(history.end).wall);
        let within = |place: &&usize| (begun..=ended).contains(&self.seen[**place].at);
        let place = match &event.what {
            What::Acquire(acquire, told) => {
                let places = self.places(acquire.first.id, &acquire.first.name)?;
                if let Some((place, score)) = places.added {
                    return Some(Hint::new(place, Time::Exactly(score)));
                }
                let is_open = event.ended.is_none();
                match told {
                    _ if is_open => return Some(Hint::never()),
                    Told::Decision { decision, .. } if !decision.is_allowed() => {
                        let place = places.asked.iter().rfind(within).copied()?;
                        // Of several callers of one call it is told what all have left.
                        let time = self.time(history, event, place);
                        return Some(Hint::new(self.last_of(place), time));
                    }
                    _ => return None,
                }
            }
            // Nothing to do.
            What::Settle(receipt, keep) if *keep == receipt.permits => return None,
            What::Settle(receipt, keep) => {
                let more = *keep > receipt.permits;
                let id = if more {
                    receipt.id.for_more()
                } else {
                    receipt.id
                };
                let places = self.places(id, &receipt.name)?;
                if let (true, Some((place, score))) = (more, places.added) {
                    return Some(Hint::new(place, Time::Exactly(score)));
                }
                // It may be sent more than once: what comes later finds nothing. What found nothing may have come first.
                let removed = places.removed.iter().find(within).copied();
                let settled = || places.settled.iter().find(within).copied();
                removed.or_else(settled)?
            }
            What::Manage(name, Op::SetRate { limit, .. } | Op::TrySetRate(limit), _) => {
                let is_it = |place: &usize| {
                    let words = &self.seen[*place].words;
                    // None that was set is as another.
                    let alive =
                        limit.keep_alive == 0 || words.contains(&limit.keep_alive.to_string());
                    words[1] == name.as_str() && alive
                };
                let change = changes
                    .iter()
                    .position(|place| within(&place) && is_it(place))?;
                changes.remove(change)
            }
            What::Manage(name, ..) => {
                let key = format!("{{{}}}:value:{}", name.as_str(), client_id(event.handle));
                let is_it = |place: &&usize| self.seen[**place].words.contains(&key);
                let mut counts = self.counts.iter().filter(within).filter(is_it);
                // Which of several it was nobody can tell.
                match (counts.next(), counts.next()) {
                    (Some(place), None) => *place,
                    _ => return None,
                }
            }
        };
        Some(Hint::new(place, self.time(history, event, place)))
    }

    /// The last that the script did whose call is at a place.
    fn last_of(&self, place: usize) -> usize {
        let by_script = self.seen[place + 1..]
            .iter()
            .take_while(|seen| seen.by_script);
        place + by_script.count()
    }

    /// When the command at a place was carried out, by the clock that counts.
    fn time(&self, history: &History, event: &Event, place: usize) -> Time {
        match &history.clock {
            Counted::ByServer => {
                // A script reads the time at some moment before the next call begins.
                let next = self.seen[place + 1..].iter().find(|seen| !seen.by_script);
                Time::UpTo(next.map_or(i64::MAX, |next| next.at as i64))
            }
            // It is one of the arguments.
            Counted::ByHand(shown) => {
                let numbers = self.seen[place].words.iter();
                let numbers = numbers.filter_map(|word| word.parse().ok());
                let times = numbers.filter(|number| shown.contains(number));
                Time::OneOf(times.chain([event.begun.at()]).collect())
            }
        }
    }
}

/// What each handle calls itself: it stands in the keys of its calls.
pub(super) fn client_id(handle: usize) -> String {
    format!("handle-{handle}")
}

/// The bytes of a word as MONITOR shows it.
fn unescaped(word: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, left) = match (first, after) {
            (b'\\', [b'x', high, low, left @ ..]) => {
                let digit = |digit: &u8| char::from(*digit).to_digit(16).unwrap_or(0) as u8;
                (digit(high) << 4 | digit(low), left)
            }
            (b'\\', [escaped, left @ ..]) => {
                let byte = match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    other => *other,
                };
                (byte, left)
            }
            _ => (*first, after),
        };
        bytes.push(byte);
        rest = left;
    }
    bytes
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[test]
fn words_are_bytes_again() {
    assert_eq!(unescaped(r#"a\x00\xffb\\\"\r\n"#), b"a\x00\xffb\\\"\r\n");
}
