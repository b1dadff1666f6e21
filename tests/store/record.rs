//! The history of each limiter, as the servers executed it, checked against the laws.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kit::{ledger::Ledger, monitor::Seen, permits_of};

/// One call, for the permits that it asks of the first of its limiters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// The server's clock, in whole milliseconds. Of a refusal the command before it, as `MONITOR`
    /// tells when a call is told, which may be later than it was decided
    pub at: i64,
    pub permits: i64,
    pub granted: bool,
}

/// A log, and a member that was asked for in it.
pub type Place = (String, Vec<u8>);

/// The calls, and what they have taken.
#[derive(Debug, Default)]
pub struct Record {
    pub grants: Ledger,
    /// By the id that all of a list carry: the members that were asked for
    lists: BTreeMap<Vec<u8>, BTreeSet<Place>>,
    /// The number of calls that came again after they had granted
    pub resent: usize,
    /// By the member that was asked for, in the order in which the server executed them
    calls: Vec<(Vec<u8>, Call)>,
    /// The first member of each script call
    firsts: HashSet<Vec<u8>>,
    /// When the command before was told
    before: i64,
    /// The last script, and the number of callers that it was called for
    script: Script,
    in_run: usize,
}

impl Record {
    /// Reads one command of a server, in its order.
    pub fn read(&mut self, seen: &Seen) {
        let words = seen.arguments();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match (seen.by_script, &*words) {
            (false, [b"EVALSHA" | b"EVAL", _, keys, rest @ ..]) => {
                let (keys, argv) = rest.split_at(number(keys) as usize);
                self.script = Script::of(keys, argv);
                if self.script == Script::Demand {
                    self.in_run = self.asked(keys, argv, self.before);
                }
            }
            (true, [b"ZADD", _, b"NX", entries @ ..]) => {
                let asked = self.calls.len().saturating_sub(self.in_run);
                for entry in entries.chunks(2) {
                    let mut run = self.calls[asked..].iter_mut();
                    if let Some((_, call)) = run.find(|(member, _)| member == entry[1]) {
                        (call.at, call.granted) = (number(entry[0]), true);
                    }
                }
                self.grants.read(seen);
            }
            (true, [b"ZADD", ..]) => panic!("no clock is wrong here: {:?}", seen.words),
            (true, [b"UNLINK", _, _]) if self.script == Script::SetRate => {
                self.grants.reset(&seen.words[2]);
            }
            _ => self.grants.read(seen),
        }
        self.before = seen.micros / 1000;
    }

    /// Returns how many callers a script is called for.
    fn asked(&mut self, keys: &[&[u8]], argv: &[&[u8]], at: i64) -> usize {
        let in_texts = is_in_texts(argv);
        // Two keys for each limiter are of the type that it does not have, unless the type is
        // known.
        let typed = in_texts && keys.len().is_multiple_of(3);
        let (width, log) = if typed { (3, 2) } else { (5, 3) };
        let limiters = keys.len() / width;
        let logs = keys.chunks(width).map(|keys| keys[log].to_vec());
        let logs: Vec<_> = logs
            .map(|log| String::from_utf8(log).expect("a name of these tests"))
            .collect();
        // See lua/sliding_log/acquire.lua and acquire_list.lua.
        let members: Vec<Vec<&[u8]>> = if in_texts && limiters == 1 {
            argv[1].chunks(21).map(|member| vec![member]).collect()
        } else if in_texts {
            vec![
                argv.chunks_exact(2)
                    .take(limiters)
                    .map(|it| it[1])
                    .collect(),
            ]
        } else {
            let callers = argv[2 + 5 * limiters..].chunks(1 + 3 * limiters);
            let callers = callers.map(|caller| caller[1..].chunks(3).map(|it| it[1]));
            callers.map(Iterator::collect).collect()
        };
        self.called(members.iter().map(|caller| caller[0]), at);
        for caller in &members {
            let mut asked = logs.iter().zip(caller);
            self.resent += usize::from(asked.any(|(log, member)| self.grants.holds(log, member)));
            for (log, member) in logs.iter().zip(caller) {
                let list = self.lists.entry(member[1..17].to_vec()).or_default();
                list.insert((log.clone(), member.to_vec()));
            }
        }
        members.len()
    }

    /// Records the permits and the member of each caller.
    fn called<'a>(&mut self, members: impl Iterator<Item = &'a [u8]>, at: i64) {
        let run: Vec<_> = members.collect();
        // The same again with the text of the script, where the hash was unknown.
        if !self.firsts.insert(run[0].to_owned()) {
            self.calls.retain(|(member, _)| !run.contains(&&**member));
        }
        for member in run {
            let call = Call {
                at,
                permits: permits_of(member).into(),
                granted: false,
            };
            self.calls.push((member.to_owned(), call));
        }
    }

    pub fn calls(&self) -> impl Iterator<Item = Call> {
        self.calls.iter().map(|(_, call)| *call)
    }

    /// The calls that were refused although there was room in a window, which is given here. A lost
    /// permit makes some.
    pub fn refused_in_vain(&self, rate: i64, window: i64) -> Vec<Call> {
        let mut grants: Vec<Call> = Vec::new();
        let mut refused = Vec::new();
        for call in self.calls() {
            if call.granted {
                grants.push(call);
                continue;
            }
            let within = grants.iter().rev().filter(|it| it.at > call.at - window);
            let used: i64 = within.map(|grant| grant.permits).sum();
            if used + call.permits <= rate {
                refused.push(call);
            }
        }
        refused
    }

    /// L1: no window of one interval, between two resets, has more than the rate.
    pub fn check_never_over(&self, log: &str, rate: i64, interval: i64) {
        let fullest = self.grants.fullest_window(log, interval);
        assert!(
            fullest <= rate,
            "{fullest} of {rate} in {interval} ms of {log}"
        );
    }

    /// Checks that each list is in all of its logs or in none, if they are younger than `since`;
    /// lists with a log in `reset` are skipped. `has` returns the score of a member in the logs
    /// now.
    ///
    /// Returns how many lists are whole.
    pub fn check_whole(
        &self,
        since: i64,
        reset: &BTreeSet<String>,
        has: &BTreeMap<Place, i64>,
    ) -> usize {
        let mut whole = 0;
        for list in self.lists.values() {
            if list.len() < 2 || list.iter().any(|(log, _)| reset.contains(log)) {
                continue;
            }
            let scores: Vec<_> = list.iter().filter_map(|place| has.get(place)).collect();
            // Expired entries are swept one log at a time.
            if scores.is_empty() || scores.iter().any(|score| **score <= since) {
                continue;
            }
            assert_eq!(scores.len(), list.len(), "charged in part: {list:?}");
            whole += 1;
        }
        whole
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Script {
    Demand,
    SetRate,
    #[default]
    Other,
}

impl Script {
    /// Recognized by its arguments: a verb's begin with its name, and an acquire has more than any
    /// verb of this test.
    fn of(keys: &[&[u8]], argv: &[&[u8]]) -> Self {
        match (keys.len(), argv) {
            (5, [b"set_rate", ..]) => Self::SetRate,
            (0, _) | (5, [b"settle", ..]) => Self::Other,
            (_, argv) if is_in_texts(argv) => Self::Demand,
            (5, argv) if argv.len() < 10 => Self::Other,
            _ => Self::Demand,
        }
    }
}

/// Returns whether each limit is one argument, which no verb of this test begins with.
fn is_in_texts(argv: &[&[u8]]) -> bool {
    let mut words = ["redis", "init ", "code ", "keep "].into_iter();
    argv.first()
        .is_some_and(|text| words.any(|word| text.starts_with(word.as_bytes())))
}

fn number(text: &[u8]) -> i64 {
    let text = std::str::from_utf8(text).expect("digits");
    text.parse().expect("a whole number")
}

/// The checks themselves can fail.
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_refused_in_vain_is_found() {
        let call = |at, permits, granted| Call {
            at,
            permits,
            granted,
        };
        let refusal = call(99, 50, false);
        let calls = [(0, 2), (60, 1), (100, 2), (159, 1)];
        let mut calls = calls.map(|(at, permits)| call(at, permits, true)).to_vec();
        calls.insert(2, refusal);
        let calls = calls.into_iter().map(|call| (Vec::new(), call));
        let record = Record {
            calls: calls.collect(),
            ..Record::default()
        };
        assert_eq!(record.refused_in_vain(52, 100), []);
        assert_eq!(record.refused_in_vain(53, 100), [refusal]);
        assert_eq!(record.refused_in_vain(51, 39), [refusal]);
    }

    #[test]
    #[should_panic(expected = "in part")]
    fn half_a_list_is_found() {
        let mut record = Record::default();
        let places = ["a", "b"].map(|log| (log.to_owned(), vec![1; 21]));
        let list = BTreeSet::from(places.clone());
        record.lists.insert(vec![1], list);
        let has = BTreeMap::from([(places[0].clone(), 10)]);
        record.check_whole(0, &BTreeSet::new(), &has);
    }
}
