//! Single cases as rows of steps, in `rows.toml`. Each step is held against the model, and says its
//! result.

use serde::Deserialize;

use super::{
    edges::{cannot_acquire, cannot_count, changes_nothing},
    slots::{log, plant_stray, settle},
    *,
};

/// The rows of `rows.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    of_a_log: Vec<Steps>,
    at_the_edge: Vec<Steps>,
    in_slots: Vec<Steps>,
    of_lives: Vec<Steps>,
    of_a_clients_lives: Vec<Steps>,
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
    way: Way,
    granted: Vec<(Sent, Option<Taken>)>,
}

/// How a row goes that says `by either` or `by each`: by which source of the limit, and whether the
/// permits left are wanted exactly.
#[derive(Clone, Copy, Debug)]
struct Way {
    source: &'static str,
    exact: bool,
}

impl Way {
    fn all_of(steps: &str) -> Vec<Self> {
        let by_each = steps.contains("by each");
        let sources: &[&'static str] = if by_each {
            &["stored", "init", "code"]
        } else {
            &["stored"]
        };
        let exact: &[bool] = if by_each || steps.contains("by either") {
            &[false, true]
        } else {
            &[false]
        };
        let of_source = |source| exact.iter().map(move |&exact| Self { source, exact });
        sources.iter().copied().flat_map(of_source).collect()
    }
}

impl Row {
    /// A row without a `rate` begins without a limit.
    fn new(rate_type: RateType, rate: Option<u64>, slots: Option<u32>, way: Way) -> Self {
        let mut pair = Pair::new(rate_type, Clock::Given(START));
        if let Some(rate) = rate {
            assert!(pair.try_set_rate(pair.limit(rate, 1000)));
        }
        Kind::note_in(&mut pair, slots);
        let how = slots.map_or(How::EXACT, |_| How::STORED);
        Self {
            pair,
            rate: rate.unwrap_or(0),
            how,
            way,
            granted: Vec::new(),
        }
    }

    /// `5` in a second; `5 kept` as a rule has it, so that its limiter vanishes; `5 long` in
    /// 1000 s, and vanishing as soon as it may.
    fn limit(&self, words: &[&str]) -> Limit {
        let rate = words[0].parse().unwrap();
        let limit = self.pair.limit(rate, 1000);
        match words.get(1) {
            Some(&"kept") => limit.for_request_key(),
            Some(&"long") => {
                let limit = self.pair.limit(rate, 1_000_000);
                limit.keep_alive(limit.interval()).unwrap()
            }
            _ => limit,
        }
    }

    /// How acquires are sent from now on: `stored`, `code 5` or `init 5`, perhaps `exactly`.
    fn by(&self, words: &[&str]) -> How {
        let (source, exact) = match words[0] {
            "either" => ("stored", self.way.exact),
            "each" => (self.way.source, self.way.exact),
            source => (source, words.ends_with(&["exactly"])),
        };
        let limit = match source {
            "code" => LimitSource::Code(self.limit(&words[1..])),
            "init" => LimitSource::StoreOrInit(self.limit(&words[1..])),
            _ => LimitSource::Store,
        };
        How {
            limit,
            rewrite: matches!(limit, LimitSource::Code(_)),
            exact,
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
                pair.grants(permits(1), how);
                let in_slot = pair
                    .granted
                    .last()
                    .filter(|_| pair.counting.slots().is_some());
                let taken = in_slot.map(|(_, taken)| *taken);
                self.granted.push((*pair.sent.last().unwrap(), taken));
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
                let run = run_of(pair, &words[1..]);
                pair.send_run(&run, how).unwrap();
            }
            // The model knows no life, and these rows look closer.
            "call" => {
                let sent = pair.unsent(permits(1));
                let [(script, command), _] = pair.commands(sent, how);
                pair.call(script, &command).unwrap();
            }
            "rate" => {
                let limit = self.limit(&words[1..]);
                self.pair.set_rate(limit, false, false);
            }
            "try" => {
                let limit = self.limit(&words[1..]);
                assert!(self.pair.try_set_rate(limit));
            }
            "again" => {
                let (sent, _) = self.granted[number(1) as usize];
                let answer = pair.send(sent, how).unwrap();
                assert_eq!(answer.verdict, Verdict::Granted);
                says(&answer, &words[2..]);
            }
            "back" => assert!(pair.give_back(self.granted[number(1) as usize].0)),
            verb @ ("settle" | "renew") => {
                let limit = match verb {
                    "settle" => LimitSource::Store,
                    _ => LimitSource::Code(pair.limit(self.rate, 1000).for_request_key()),
                };
                let (sent, taken) = self.granted[number(1) as usize];
                let taken = taken.expect("a row of slots");
                let credited = settle(pair, (sent, taken), permits(3), limit);
                let expected = words[5].parse().map_err(|_| ErrorKind::NotInitialized);
                assert_eq!(credited, expected);
            }
            "release" => pair.release(permits(1)),
            "slots" => Kind::note_in(pair, Some(permits(1)).filter(|slots| *slots > 0)),
            "value" | "lose" | "plant" | "foreign" | "redis" | "no" | "stray" | "expire" => {
                spoil(pair, &words);
            }
            time if time.starts_with('+') => pair.advance(time[1..].parse().unwrap()),
            _ => see(pair, how, &words),
        }
    }
}

/// Callers of one call, for so many permits each.
fn run_of(pair: &mut Pair, permits: &[&str]) -> Vec<(Sent, bool)> {
    let each = permits.iter().map(|permits| permits.parse().unwrap());
    each.map(|permits| (pair.unsent(permits), false)).collect()
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
            let [hash, value, log] = pair.all_keys();
            let words = words[1..].iter().map(|word| match *word {
                "{hash}" => &*hash,
                "{value}" => &*value,
                "{log}" => &*log,
                "''" => "",
                word => word,
            });
            pair.command(&words.collect::<Vec<_>>());
        }
        "expire" => {
            for key in pair.all_keys() {
                pair.command(&["PEXPIRE", &key, words[1]]);
            }
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
        "left" => assert_eq!(pair.model.state.value, words[1].parse().ok()),
        "entries" => assert_eq!(log(pair).len() as i64, number(1)),
        "free" => assert_eq!(pair.available(), Ok(number(1))),
        "cannot" if words[1] == "count" => cannot_count(pair),
        "cannot" if words[1] == "run" => {
            let run = run_of(pair, &words[2..]);
            let command = pair.run_command(&run, how);
            changes_nothing(pair, pair.scripts().acquire, &command);
        }
        "cannot" => cannot_acquire(pair, how),
        "in" => {
            let used: u32 = log(pair).iter().map(|(_, permits)| permits).sum();
            assert_eq!(used, words[2].parse::<u32>().unwrap());
        }
        "mortal" => assert!(pair.ttls().iter().all(|ttl| *ttl > 1000)),
        "lasting" => assert_eq!(pair.ttls(), [-1; 3]),
        "live" => {
            // A busy machine may take its time before it looks.
            let (ttls, life) = (pair.ttls(), number(1) - 10_000..=number(1));
            assert!(ttls.iter().all(|ttl| life.contains(ttl)), "{ttls:?}");
        }
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
fn every_row_goes_as_it_says() {
    let rows: Rows = toml::from_str(include_str!("rows.toml")).unwrap();
    let both = [RateType::Overall, RateType::PerClient];
    for (rows, rate_types, rate, slots) in [
        (&rows.of_a_log, &both[..], Some(10), None),
        (&rows.at_the_edge, &both[..1], Some(5), None),
        (&rows.in_slots, &both[..1], Some(20), Some(100)),
        (&rows.of_lives, &both[..], None, None),
        (&rows.of_a_clients_lives, &both[1..], None, None),
    ] {
        for Steps { name, steps } in rows {
            for rate_type in rate_types {
                for way in Way::all_of(steps) {
                    println!("{name}, {rate_type:?}, {way:?}: {steps}");
                    let mut row = Row::new(*rate_type, rate, slots, way);
                    steps.split(", ").for_each(|step| row.step(step));
                }
            }
        }
    }
}
