//! What a server's MONITOR shows of a history: which calls asked for permits, and for which
//! callers; in which order everything was carried out, and when.
//!
//! Found by the ids in the commands, and by nothing else of the scripts' arguments. That a call
//! was made, and for which callers, is part of the history. Order and times are hints: one that
//! is wrong, or missing, costs the search some time and changes no verdict.

use super::{
    steps::Caller,
    ways::{Hint, Time},
    *,
};
use crate::store::redis::{redisson::sliding_log::VERBS, script::Script};
use kit::monitor::{Seen, bytes_of};

/// By how much what is shown of a call can lie before it, in ms: some servers show when they began
/// to look for calls.
const SHOWN_BEFORE: i64 = 5;

/// Whether a call names the script, by hash or text.
fn is_named(script: &Script, said: &[u8]) -> bool {
    said == script.sha1.as_bytes() || said == script.text().as_bytes()
}

/// What was shown of some histories.
pub(crate) struct Shown<'a> {
    seen: &'a [Seen],
    /// By id and limiter, as one id stands for all that a list takes
    ids: HashMap<PermitId, Vec<(Name, Places)>>,
    /// Where permits were asked for, and by which ids
    calls: Vec<(usize, Vec<PermitId>)>,
    /// Where scripts wrote a rate
    changes: Vec<usize>,
    /// Where permits were counted
    counts: Vec<usize>,
}

/// Where the id of an acquire stands in what a server did.
#[derive(Debug, Default)]
struct Places {
    /// Where it was to be settled
    settled: Vec<usize>,
    /// Where it was added to a log, and with which score
    added: Option<(usize, i64)>,
    /// Where it was removed from a log
    removed: Option<usize>,
}

impl<'a> Shown<'a> {
    pub(crate) fn read<'h>(histories: impl Iterator<Item = &'h History>, seen: &'a [Seen]) -> Self {
        let mut names: HashMap<[u8; 12], Vec<Name>> = HashMap::new();
        for event in histories.flat_map(|history| &history.events) {
            if let What::Demand(demand, _) = &event.what {
                for charge in demand.charges() {
                    for id in [charge.id, charge.id.for_more()] {
                        let of_caller = names.entry(caller_of(id)).or_default();
                        of_caller.push(charge.name().clone());
                    }
                }
            }
        }
        let mut ids: HashMap<PermitId, Vec<(Name, Places)>> = HashMap::new();
        let (mut calls, mut changes, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        let all = seen;
        for (place, seen) in seen.iter().enumerate() {
            let words: Vec<_> = seen.words.iter().map(|word| bytes_of(word)).collect();
            let is = |verb: &[u8]| seen.by_script && words[0].eq_ignore_ascii_case(verb);
            if (is(b"HSET") || is(b"HSETNX")) && words.iter().any(|word| word == b"rate") {
                changes.push(place);
            }
            // A call of an unknown script runs none, and comes again.
            let ran = !seen.by_script && all.get(place + 1).is_some_and(|next| next.by_script);
            let verb = words.get(8).filter(|_| ran && is_named(&VERBS, &words[1]));
            if verb.is_some_and(|verb| verb == b"available") {
                counts.push(place);
            }
            let mut asked = Vec::new();
            for (word, bytes) in words.iter().enumerate() {
                let found = bytes.windows(16).filter_map(|id| id.try_into().ok());
                for id in found.map(PermitId) {
                    let Some(names) = names.get(&caller_of(id)) else {
                        continue;
                    };
                    let places = |name: &Name| (name.clone(), Places::default());
                    let of_names = ids.entry(id);
                    let of_names = of_names.or_insert_with(|| names.iter().map(places).collect());
                    let settles = verb.is_some_and(|verb| verb == b"settle");
                    if ran && !settles {
                        asked.push(id);
                    }
                    for (name, places) in of_names {
                        if !seen.by_script {
                            if settles && seen.words.contains(&name.as_str().to_owned()) {
                                places.settled.push(place);
                            }
                        } else if seen.words[1] != format!("{{{}}}:permits", name.as_str()) {
                            // Another limiter's log.
                        } else if is(b"ZREM") {
                            places.removed.get_or_insert(place);
                        } else if is(b"ZADD") && places.added.is_none() {
                            // Each member follows its score.
                            let score = std::str::from_utf8(&words[word - 1]).ok();
                            places.added =
                                score.and_then(|score| Some((place, score.parse().ok()?)));
                        }
                    }
                }
            }
            // One stands there once for each limiter.
            asked.dedup();
            if !asked.is_empty() {
                calls.push((place, asked));
            }
        }
        Self {
            seen,
            ids,
            calls,
            changes,
            counts,
        }
    }

    /// Tells a history of the calls that were seen; a hint for each of its steps.
    pub(crate) fn show(&self, history: &mut History) -> Vec<Hint> {
        let demands = history.events.iter().enumerate();
        let event_of: HashMap<_, _> = demands
            .filter_map(|(event, recorded)| match &recorded.what {
                What::Demand(demand, _) => Some((caller_of(demand.first().id), event)),
                What::Settle(..) | What::Manage(..) => None,
            })
            .collect();
        let events = |ids: &[PermitId]| -> Option<Vec<Asked>> {
            let asked = |id: &PermitId| Some((*event_of.get(&caller_of(*id))?, *id));
            ids.iter().map(asked).collect()
        };
        let calls = self.calls.iter();
        let (places, calls): (Vec<usize>, Vec<_>) = calls
            .filter_map(|(place, ids)| Some((*place, events(ids)?)))
            .unzip();
        history.see(&calls);
        let mut changes = self.changes.clone();
        let steps = history.steps.iter().enumerate();
        let hints = steps.map(|(step, Step { of, before, .. })| match of {
            Of::Call(callers) => match places.get(step) {
                Some(place) => Hint::new(*place, self.time_of_call(history, callers, *place)),
                None => Hint::never(),
            },
            Of::Event(event) => {
                let decides =
                    |caller: &Caller| caller.event == *event && caller.answer != Answer::GivenBack;
                let is_for = |step: &Step| match &step.of {
                    Of::Call(callers) => callers.iter().any(decides),
                    Of::Event(_) => false,
                };
                let last_call = history.steps[..calls.len()].iter().rposition(is_for);
                let event = &history.events[*event];
                let after = before.iter().filter_map(|before| places.get(*before)).max();
                let hint = match last_call {
                    // Refused in line by what that call said.
                    Some(call) if event.ended.is_some() => {
                        Some(Hint::new(places[call], Time::Unknown))
                    }
                    _ => self.hint(history, event, &mut changes),
                };
                match after {
                    // Sent before the call, which may have granted nothing.
                    Some(after) if hint.as_ref().is_some_and(|hint| hint.is_before(*after)) => {
                        Hint::new(*after, Time::Unknown)
                    }
                    _ => hint.unwrap_or_default(),
                }
            }
        });
        let mut hints: Vec<_> = hints.collect();
        self.show_counts(history, &mut hints);
        hints
    }

    /// When a call was carried out: the score of what it took, if it took anything.
    fn time_of_call(&self, history: &History, callers: &[Caller], place: usize) -> Time {
        let end = place + self.by_script(place);
        let score = callers.iter().find_map(|caller| {
            let What::Demand(demand, _) = &history.events[caller.event].what else {
                return None;
            };
            let places = self.places(caller.id, demand.first().name())?;
            let (added, score) = places.added?;
            (place..=end).contains(&added).then_some(score)
        });
        score.map_or_else(|| self.time(history, place), Time::Exactly)
    }

    fn places(&self, id: PermitId, name: &Name) -> Option<&Places> {
        let places = self.ids.get(&id)?;
        let of_name = places.iter().find(|(of, _)| of == name);
        of_name.map(|(_, places)| places)
    }

    fn hint(&self, history: &History, event: &Event, changes: &mut Vec<usize>) -> Option<Hint> {
        let place = match &event.what {
            What::Settle(receipt, keep) => {
                let more = *keep > receipt.permits;
                let id = if more {
                    receipt.id.for_more()
                } else {
                    receipt.id
                };
                let places = self.places(id, receipt.name())?;
                if let (true, Some((place, score))) = (more, places.added) {
                    return Some(Hint::new(place, Time::Exactly(score)));
                }
                // It may be sent more than once, also before what it gives back was taken: all but
                // one find nothing.
                let taken = places.added.map_or(0, |(place, _)| place);
                let mut late = places.settled.iter().filter(|settled| **settled > taken);
                let settled = late.next().or(places.settled.first()).copied();
                places.removed.or(settled)?
            }
            What::Manage(name, Op::SetRate { limit, .. } | Op::TrySetRate(limit), _) => {
                let is_it = |place: &usize| {
                    let words = &self.seen[*place].words;
                    // None that was set is as another.
                    let alive =
                        limit.keep_alive == 0 || words.contains(&limit.keep_alive.to_string());
                    words[1] == name.as_str() && alive
                };
                let change = changes.iter().position(is_it)?;
                changes.remove(change)
            }
            What::Demand(..) | What::Manage(..) => return None,
        };
        Some(Hint::new(place, self.time(history, place)))
    }

    /// Shows where permits were counted. The calls of one handle for one limiter look the same: any
    /// of them may belong to any event.
    fn show_counts(&self, history: &History, hints: &mut [Hint]) {
        let mut same_calls: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, step) in history.steps.iter().enumerate() {
            if let Of::Event(event) = &step.of
                && let Event { what, handle, .. } = &history.events[*event]
                && let What::Manage(name, Op::Available, _) = what
            {
                let key = format!("{{{}}}:value:{}", name.as_str(), client_id(*handle));
                same_calls.entry(key).or_default().push(index);
            }
        }
        for (key, steps) in same_calls {
            let counts = self.counts.iter().copied();
            let counts = counts.filter(|place| self.seen[*place].words.contains(&key));
            let places: Vec<_> = counts.collect();
            if places.len() == steps.len() {
                for (step, place) in steps.iter().zip(places) {
                    let time = self.time(history, place);
                    hints[*step] = Hint::new(place, time).shared_by(&steps);
                }
            }
        }
    }

    /// How much the script did whose call is at a place.
    fn by_script(&self, place: usize) -> usize {
        let by_script = self.seen[place + 1..]
            .iter()
            .take_while(|seen| seen.by_script);
        by_script.count()
    }

    /// When the command at a place was carried out, by the clock that counts.
    fn time(&self, history: &History, place: usize) -> Time {
        match &history.clock {
            Counted::ByServer => {
                // A script reads the time after what was shown before, and before the next call
                // begins.
                let seen = &self.seen;
                let call = seen[..=place].iter().rposition(|seen| !seen.by_script);
                let call = call.unwrap_or(place);
                let end = call + 1 + self.by_script(call);
                let read = (call..end).rfind(|line| seen[*line].words[0] == "TIME");
                let from = seen[read.map_or(call, |read| read - 1)].micros / 1000;
                let next = seen.get(end).map_or(i64::MAX, |next| next.micros / 1000);
                Time::Within(from, next.max(from + SHOWN_BEFORE))
            }
            // It is one of the arguments, where it matters.
            Counted::ByHand(shown) => {
                let call = self.seen[..=place].iter().rfind(|seen| !seen.by_script);
                let numbers = call.iter().flat_map(|call| &call.words);
                let numbers = numbers.filter_map(|word| word.parse().ok());
                let times: Vec<_> = numbers.filter(|number| shown.contains(number)).collect();
                if times.is_empty() {
                    Time::Unknown
                } else {
                    Time::OneOf(times)
                }
            }
        }
    }
}

/// What the ids of one caller have in common: all but the first four bytes, which count its calls.
fn caller_of(id: PermitId) -> [u8; 12] {
    let [_, _, _, _, rest @ ..] = id.0;
    rest
}

/// What each handle calls itself: it stands in the keys of its calls.
pub(crate) fn client_id(handle: usize) -> String {
    format!("handle-{handle}")
}
