//! The history of each limiter, as the servers executed it, checked against the laws.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use crate::{
    feed::{Seen, bytes_of},
    support::windows,
};

/// One entry that was written to a log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The server's time in ms
    pub score: i64,
    pub permits: i64,
    pub given_back: bool,
}

/// One call, for the permits that it asks of the first of its limiters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// The server's clock, in whole milliseconds
    pub at: i64,
    pub permits: i64,
    pub granted: bool,
}

/// The logs of limiters, each from one reset to the next.
#[derive(Debug, Default)]
pub struct Record {
    /// By log; of each reset the entries by their member
    logs: BTreeMap<String, Vec<BTreeMap<String, Entry>>>,
    /// By the id that all of a list carry: the members that were asked for, each with its log
    lists: BTreeMap<String, BTreeSet<(String, String)>>,
    /// The number of calls that came again after they had granted
    pub resent: usize,
    /// By the member that was asked for, in the order in which the server executed them
    calls: Vec<(String, Call)>,
    /// The first member of each script call
    firsts: HashSet<String>,
}

impl Record {
    /// Reads what a server executed, in its order.
    pub fn read(&mut self, seen: &[Seen]) {
        let mut script = Script::Other;
        // How many callers the last script was called for.
        let mut in_run = 0;
        for seen in seen {
            let words: Vec<&str> = seen.words.iter().map(String::as_str).collect();
            match (seen.by_script, &*words) {
                (false, ["EVALSHA" | "EVAL", _, keys, rest @ ..]) => {
                    let (keys, argv) = rest.split_at(keys.parse().unwrap());
                    script = Script::of(keys, argv);
                    if script == Script::Acquire {
                        in_run = self.asked(keys, argv, seen.micros / 1000);
                    }
                }
                (true, ["ZADD", log, "NX", entries @ ..]) => {
                    let asked = self.calls.len().saturating_sub(in_run);
                    for entry in entries.chunks(2) {
                        let (score, member) = (entry[0].parse().unwrap(), entry[1]);
                        let mut run = self.calls[asked..].iter_mut();
                        if let Some((_, call)) = run.find(|(asked, _)| asked == member) {
                            (call.at, call.granted) = (score, true);
                        }
                        // Resent: what stands there stays.
                        let entry = self.epoch(log).get(member);
                        if entry.is_none_or(|entry| entry.given_back) {
                            self.granted(log, score, member);
                        }
                    }
                }
                (true, ["ZADD", log, score, member]) => {
                    self.granted(log, score.parse().unwrap(), member);
                }
                (true, ["ZADD", ..]) => panic!("no clock is wrong here: {words:?}"),
                (true, ["ZREM", log, member]) if script == Script::GiveBack => {
                    let epochs = self.logs.get_mut(*log).into_iter().flatten();
                    for entry in epochs.filter_map(|epoch| epoch.get_mut(*member)) {
                        entry.given_back = true;
                    }
                }
                (true, ["UNLINK", _, log]) if script == Script::SetRate => {
                    self.logs
                        .entry((*log).to_owned())
                        .or_default()
                        .push(BTreeMap::new());
                }
                _ => {}
            }
        }
    }

    /// Returns how many callers a script is called for.
    fn asked(&mut self, keys: &[&str], argv: &[&str], at: i64) -> usize {
        let in_texts = is_in_texts(argv);
        // Two keys for each limiter are of the type that it does not have, unless the type is
        // known.
        let typed = in_texts && keys.len().is_multiple_of(3);
        let (width, log) = if typed { (3, 2) } else { (5, 3) };
        let limiters = keys.len() / width;
        let logs: Vec<_> = keys
            .chunks(width)
            .map(|keys| keys[log].to_owned())
            .collect();
        // See lua/sliding_log/acquire.lua, acquire_several.lua and acquire_list.lua.
        let members: Vec<Vec<String>> = if in_texts && limiters == 1 {
            members_in(argv[1]).into_iter().map(|it| vec![it]).collect()
        } else if in_texts {
            let each = argv.chunks_exact(2).take(limiters);
            vec![each.map(|it| it[1].to_owned()).collect()]
        } else {
            let callers = argv[2 + 5 * limiters..].chunks(1 + 3 * limiters);
            let members =
                |caller: &[&str]| caller[1..].chunks(3).map(|it| it[1].to_owned()).collect();
            callers.map(members).collect()
        };
        self.called(members.iter().map(|caller| &*caller[0]), at);
        let in_run = members.len();
        for caller in members {
            let held = logs.iter().zip(&caller).any(|(log, member)| {
                let epoch = self.logs.get(log).and_then(|epochs| epochs.last());
                epoch.is_some_and(|epoch| epoch.contains_key(member))
            });
            self.resent += usize::from(held);
            for (log, member) in logs.iter().zip(caller) {
                let list = self.lists.entry(id_of(&member)).or_default();
                list.insert((log.clone(), member));
            }
        }
        in_run
    }

    /// Notes the permits and the member of each caller.
    fn called<'a>(&mut self, members: impl Iterator<Item = &'a str>, at: i64) {
        let run: Vec<_> = members.collect();
        // The same again with the text of the script, where the hash was unknown.
        if !self.firsts.insert(run[0].to_owned()) {
            self.calls.retain(|(member, _)| !run.contains(&&**member));
        }
        for member in run {
            let call = Call {
                at,
                permits: permits_of(member),
                granted: false,
            };
            self.calls.push((member.to_owned(), call));
        }
    }

    fn granted(&mut self, log: &str, score: i64, member: &str) {
        let entry = Entry {
            score,
            permits: permits_of(member),
            given_back: false,
        };
        let before = self.epoch(log).insert(member.to_owned(), entry);
        let taken_twice = before.is_some_and(|before| !before.given_back);
        assert!(!taken_twice, "{member} of {log} is taken twice");
    }

    fn epoch(&mut self, log: &str) -> &mut BTreeMap<String, Entry> {
        let epochs = self.logs.entry(log.to_owned()).or_default();
        if epochs.is_empty() {
            epochs.push(BTreeMap::new());
        }
        epochs.last_mut().unwrap()
    }

    pub fn calls(&self) -> impl Iterator<Item = Call> {
        self.calls.iter().map(|(_, call)| *call)
    }

    /// The calls that were refused although there was room even in a window longer than the
    /// limit's, which is given here. A lost permit makes some.
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

    /// Returns the permits that a perfect limiter would have granted to the same calls.
    pub fn ideal(&self, rate: i64, interval: i64) -> i64 {
        let (mut free, mut granted) = (rate, 0);
        let mut log = VecDeque::new();
        for call in self.calls() {
            while let Some((_, permits)) = log.front().filter(|(at, _)| at + interval <= call.at) {
                free += permits;
                log.pop_front();
            }
            if call.permits <= free {
                free -= call.permits;
                granted += call.permits;
                log.push_back((call.at, call.permits));
            }
        }
        granted
    }

    /// The logs that anything was written to.
    pub fn logs(&self) -> impl Iterator<Item = &str> {
        self.logs.keys().map(String::as_str)
    }

    /// L1: no window of one interval, between two resets, has more than the rate.
    pub fn check_never_over(&self, log: &str, rate: i64, interval: i64) {
        for epoch in self.logs.get(log).into_iter().flatten() {
            let mut grants: Vec<_> = epoch.values().filter(|entry| !entry.given_back).collect();
            grants.sort_by_key(|entry| entry.score);
            let grants = grants.iter().map(|entry| (entry.score, entry.permits));
            for permits in windows(grants, interval) {
                assert!(
                    permits <= rate,
                    "{permits} of {rate} in {interval} ms of {log}"
                );
            }
        }
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
        has: &BTreeMap<(String, String), i64>,
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

    /// Permits that were granted and not given back.
    pub fn kept(&self, log: &str) -> i64 {
        let entries = self.logs.get(log).into_iter().flatten();
        let entries = entries.flat_map(BTreeMap::values);
        let kept = entries.filter(|entry| !entry.given_back);
        kept.map(|entry| entry.permits).sum()
    }

    pub fn granted_permits(&self) -> i64 {
        let entries = self.logs.values().flatten().flat_map(BTreeMap::values);
        entries.map(|entry| entry.permits).sum()
    }

    pub fn given_back(&self) -> usize {
        let entries = self.logs.values().flatten().flat_map(BTreeMap::values);
        entries.filter(|entry| entry.given_back).count()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Script {
    Acquire,
    GiveBack,
    SetRate,
    Other,
}

impl Script {
    /// Recognized by its arguments: a verb's begin with its name, and an acquire has more than any
    /// verb of this test.
    fn of(keys: &[&str], argv: &[&str]) -> Self {
        match (keys.len(), argv) {
            (5, ["settle", ..]) => Self::GiveBack,
            (5, ["set_rate", ..]) => Self::SetRate,
            (_, argv) if is_in_texts(argv) => Self::Acquire,
            (5, argv) if argv.len() < 10 => Self::Other,
            (0, _) => Self::Other,
            _ => Self::Acquire,
        }
    }
}

/// Returns whether each limit is one argument, which no verb of this test begins with.
fn is_in_texts(argv: &[&str]) -> bool {
    let mut words = ["redis", "init ", "code ", "keep "].into_iter();
    argv.first()
        .is_some_and(|text| words.any(|word| text.starts_with(word)))
}

/// Members that stand one after the other, each as MONITOR escapes it.
fn members_in(mut members: &str) -> Vec<String> {
    let mut bytes = Vec::new();
    while !members.is_empty() {
        let (byte, rest) = members.split_at(match members.as_bytes() {
            [b'\\', b'x', ..] => 4,
            [b'\\', ..] => 2,
            _ => 1,
        });
        bytes.push(byte);
        members = rest;
    }
    bytes.chunks(21).map(<[&str]>::concat).collect()
}

/// The bytes of a member.
fn of_member(member: &str) -> [u8; 21] {
    let bytes = bytes_of(member);
    bytes.try_into().expect("a member has 21 bytes")
}

fn permits_of(member: &str) -> i64 {
    let bytes = of_member(member);
    i64::from(u32::from_le_bytes(bytes[17..].try_into().unwrap()))
}

fn id_of(member: &str) -> String {
    let bytes = of_member(member);
    bytes[1..17]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The members of a log with their scores, spelled as MONITOR would.
pub fn spelled(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'\\' | b'"' => text.extend(['\\', char::from(*byte)]),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            7 => text.push_str("\\a"),
            8 => text.push_str("\\b"),
            0x20..0x7f => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// The checks themselves can fail.
mod tests {
    use super::*;

    fn member(id: u8, permits: u8) -> String {
        let mut bytes = vec![0x10];
        bytes.extend([id; 16]);
        bytes.extend([permits, 0, 0, 0]);
        spelled(&bytes)
    }

    fn record(entries: &[(&str, i64, u8, u8)]) -> Record {
        let mut record = Record::default();
        for (log, score, id, permits) in entries {
            record.granted(log, *score, &member(*id, *permits));
        }
        record
    }

    #[test]
    fn every_byte_is_read_as_it_was() {
        for byte in 0..=255 {
            assert_eq!(of_member(&member(byte, byte))[3], byte);
            assert_eq!(permits_of(&member(byte, byte)), i64::from(byte));
        }
    }

    #[test]
    fn a_full_window_passes() {
        record(&[("a", 0, 1, 2), ("a", 99, 2, 1), ("a", 100, 3, 2)]).check_never_over("a", 3, 100);
    }

    #[test]
    #[should_panic(expected = "4 of 3")]
    fn a_window_that_is_too_full_is_found() {
        record(&[("a", 0, 1, 2), ("a", 99, 2, 2)]).check_never_over("a", 3, 100);
    }

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
        let calls = calls.into_iter().map(|call| (String::new(), call));
        let record = Record {
            calls: calls.collect(),
            ..Record::default()
        };
        assert_eq!(record.ideal(3, 100), 5);
        assert_eq!(record.refused_in_vain(52, 100), []);
        assert_eq!(record.refused_in_vain(53, 100), [refusal]);
        assert_eq!(record.refused_in_vain(51, 39), [refusal]);
    }

    #[test]
    #[should_panic(expected = "in part")]
    fn half_a_list_is_found() {
        let mut record = Record::default();
        let places = ["a", "b"].map(|log| (log.to_owned(), member(1, 1)));
        record
            .lists
            .insert("1".to_owned(), BTreeSet::from(places.clone()));
        let has = BTreeMap::from([(places[0].clone(), 10)]);
        record.check_whole(0, &BTreeSet::new(), &has);
    }
}
