//! Single cases as rows of steps, in `rows.toml`. Each step is held against the model, and says its
//! result.

use serde::Deserialize;

use super::{
    edges::{cannot_acquire, cannot_count},
    members::Generation,
    pair::{Clock, How, Key, Pair, START},
    slots::{Slotted, granted, log, plant_stray, settle},
};
use crate::{
    algorithm::answer::{Answer, Changed, Verdict},
    error::ErrorKind,
    limit::{LimitSource, RateType},
};

/// The rows of `rows.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    of_a_log: Vec<Steps>,
    at_the_edge: Vec<Steps>,
    in_slots: Vec<Steps>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    name: String,
    steps: String,
}

/// A limiter, and what was granted of it.
struct Row {
    pair: Pair,
    rate: u64,
    how: How,
    /// Whether a row that goes `by either` wants the permits left exactly
    exact: bool,
    granted: Vec<Slotted>,
}

impl Row {
    fn new(rate_type: RateType, rate: u64, slots: Option<u32>) -> Self {
        let mut pair = Pair::new(rate_type, Clock::Given(START));
        assert!(pair.try_set_rate(pair.limit(rate, 1000)));
        pair.note_in(slots);
        let how = slots.map_or(How::EXACT, |_| How::STORED);
        let granted = Vec::new();
        Self {
            pair,
            rate,
            how,
            exact: false,
            granted,
        }
    }

    /// How acquires are sent from now on: `stored`, `code 5` or `init 5`, perhaps `exactly`.
    fn by(&self, words: &[&str]) -> How {
        let given = |rate: &str| self.pair.limit(rate.parse().unwrap(), 1000);
        let limit = match *words {
            ["code", rate, ..] => LimitSource::Code(given(rate)),
            ["init", rate, ..] => LimitSource::StoreOrInit(given(rate)),
            _ => LimitSource::Store,
        };
        How {
            limit,
            rewrite: matches!(limit, LimitSource::Code(_)),
            exact: words.ends_with(&["exactly"]) || words == ["either"] && self.exact,
        }
    }

    fn step(&mut self, step: &str) {
        if let Some((times, step)) = step.split_once("x ")
            && let Ok(times) = times.parse::<usize>()
        {
            return (0..times).for_each(|_| self.step(step));
        }
        let words: Vec<_> = step.split_whitespace().collect();
        if words[0] == "by" {
            self.how = self.by(&words[1..]);
            return;
        }
        let (pair, how) = (&mut self.pair, self.how);
        let number = |place: usize| words[place].parse::<i64>().unwrap();
        let permits = |place: usize| words[place].parse::<u32>().unwrap();
        match words[0] {
            "take" => {
                let answer = pair.grants(permits(1), how);
                let slotted = granted(pair, Ok(answer));
                let (sent, end) = (*pair.sent.last().unwrap(), 0);
                self.granted.push(slotted.unwrap_or(Slotted { sent, end }));
            }
            "refuse" => {
                let wait = pair.refuses(permits(1), how);
                assert!(words.len() == 2 || wait == number(3), "{wait}");
            }
            "ask" => {
                let answer = pair.acquire(permits(1), how).unwrap();
                let is_granted = answer.verdict == Verdict::Granted;
                assert_eq!(is_granted, words[2] == "granted", "{answer:?}");
                says(&answer, &words[3..]);
            }
            "never" => {
                let answer = pair.acquire(permits(1), how).unwrap();
                assert_eq!(answer.verdict, Verdict::AboveRate);
            }
            "run" => {
                let run = pair.unsent_run([1, 2, 3, 4].map(permits));
                pair.send_run(&run, how).unwrap();
            }
            "rate" => pair.set_rate(pair.limit(number(1).unsigned_abs(), 1000), false, false),
            "again" => {
                let sent = self.granted[number(1) as usize].sent;
                let answer = pair.send(sent, how).unwrap();
                assert_eq!(answer.verdict, Verdict::Granted);
                says(&answer, &words[2..]);
            }
            "back" => assert!(pair.give_back(self.granted[number(1) as usize].sent)),
            verb @ ("settle" | "renew") => {
                let limit = match verb {
                    "settle" => LimitSource::Store,
                    _ => LimitSource::Code(pair.limit(self.rate, 1000).for_request_key()),
                };
                let which = self.granted[number(1) as usize];
                let credited = match pair.name.slots() {
                    Some(_) => settle(pair, which, permits(3), limit),
                    None => pair.settle(which.sent, permits(3), limit),
                };
                let expected = words[5].parse().map_err(|_| ErrorKind::NotInitialized);
                assert_eq!(credited, expected);
            }
            "release" => pair.release(permits(1)),
            "slots" => pair.note_in(Some(permits(1)).filter(|slots| *slots > 0)),
            "value" | "lose" | "plant" | "foreign" | "redis" | "no" | "stray" => {
                spoil(pair, &words);
            }
            time if time.starts_with('+') => pair.advance(time[1..].parse().unwrap()),
            _ => see(pair, how, &words),
        }
    }
}

/// Does to the keys what another writer, another release or an operator may do.
fn spoil(pair: &mut Pair, words: &[&str]) {
    let number = |place: usize| words[place].parse::<i64>().unwrap();
    let permits = |place: usize| words[place].parse::<u32>().unwrap();
    match words[0] {
        "value" => pair.set_value(number(1)),
        "lose" => {
            let keys = [
                ("limit", Key::Limit),
                ("value", Key::Value),
                ("log", Key::Log),
            ];
            let lost = |name: &str| ["all", name].contains(&words[1]);
            let lost = keys.into_iter().filter(|(name, _)| lost(name));
            lost.for_each(|(_, key)| pair.lose(key));
        }
        "plant" => {
            let generation = match words[1] {
                "8" => Generation::Bytes8,
                "13" => Generation::Bytes13,
                "20" => Generation::Bytes20,
                _ => Generation::Bytes21,
            };
            pair.plant(generation, START + number(3), permits(5));
        }
        "foreign" => {
            let (log, score) = (pair.log_key(), (START + number(3)).to_string());
            pair.command(&["ZADD", &log, &score, words[1]]);
        }
        "redis" => {
            let hash = pair.keys[0].clone();
            let words = words[1..].iter().map(|word| match *word {
                "{hash}" => &*hash,
                "''" => "",
                word => word,
            });
            pair.command(&words.collect::<Vec<_>>());
        }
        "no" => {
            let value = pair.value_key();
            pair.command(&["SET", &value, words[2]]);
            pair.model.state.value = None;
        }
        "stray" => plant_stray(pair, START + number(1), permits(3), START + number(5)),
        other => panic!("{other}"),
    }
}

/// Asserts what stands in the keys, or what cannot be done with them.
fn see(pair: &mut Pair, how: How, words: &[&str]) {
    let number = |place: usize| words[place].parse::<i64>().unwrap();
    match words[0] {
        "left" => assert_eq!(pair.model.state.value, Some(number(1))),
        "entries" => assert_eq!(log(pair).len() as i64, number(1)),
        "free" => assert_eq!(pair.available(), Ok(number(1))),
        "cannot" if words[1] == "count" => cannot_count(pair),
        "cannot" => cannot_acquire(pair, how),
        "in" => {
            let used: u32 = log(pair).iter().map(|(_, permits)| permits).sum();
            assert_eq!(used, words[2].parse::<u32>().unwrap());
        }
        "mortal" => assert!(pair.ttls().iter().all(|ttl| *ttl > 1000)),
        "log" => {
            let entries = log(pair).into_iter();
            let entries = entries.map(|(score, permits)| format!("{score}:{permits}"));
            assert_eq!(entries.collect::<Vec<_>>(), words[1..]);
        }
        other => panic!("{other}"),
    }
}

/// Asserts what an answer says besides its verdict.
fn says(answer: &Answer, words: &[&str]) {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let found = match *word {
            "rewritten" => {
                assert_eq!(answer.changed, Changed::Rewritten);
                continue;
            }
            "left" => answer.remaining,
            "next" => answer.next,
            "reset" => answer.reset,
            other => panic!("{other}"),
        };
        assert_eq!(found.to_string(), **words.next().unwrap(), "{word}");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "it names the row that fails")]
fn every_row_goes_as_it_says() {
    let rows: Rows = toml::from_str(include_str!("rows.toml")).unwrap();
    for (rows, rate_type, rate, slots) in [
        (&rows.of_a_log, RateType::Overall, 10, None),
        (&rows.of_a_log, RateType::PerClient, 10, None),
        (&rows.at_the_edge, RateType::Overall, 5, None),
        (&rows.in_slots, RateType::Overall, 20, Some(100)),
    ] {
        for Steps { name, steps } in rows {
            for exact in [false, true] {
                if exact && !steps.contains("by either") {
                    continue;
                }
                println!("{name}, {rate_type:?}, exact {exact}: {steps}");
                let mut row = Row::new(rate_type, rate, slots);
                row.exact = exact;
                steps.split(", ").for_each(|step| row.step(step));
            }
        }
    }
}
