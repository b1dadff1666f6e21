//! The history of one limiter, as its server saw it, checked against the laws.

use std::collections::{HashSet, VecDeque};

use crate::feed::Seen;

/// Calls in the order in which the server executed them.
#[derive(Debug)]
pub struct History {
    pub calls: Vec<Call>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// The server's clock, in whole milliseconds
    pub at: i64,
    pub permits: i64,
    pub granted: bool,
}

impl History {
    /// Reads the calls of the acquire script. A grant is the entry that the script adds to the log,
    /// scored with the time of the grant.
    pub fn read(seen: &[Seen]) -> Self {
        let mut calls: Vec<(String, Call)> = Vec::new();
        // How many callers the last script was called for, and the first ones of all.
        let mut in_run = 0;
        let mut firsts = HashSet::new();
        for seen in seen {
            let words: Vec<&str> = seen.words.iter().map(String::as_str).collect();
            match (seen.by_script, &*words) {
                // EVALSHA, hash, 5, five keys, time, exactly, whose, four of the limit, and for
                // each caller: waits, permits, member, shadow: see
                // lua/sliding_log/acquire_list.lua.
                (false, ["EVALSHA" | "EVAL", _, "5", rest @ ..]) => {
                    let Some([.., "", _, _, _, _, _, _]) = rest.get(..12) else {
                        continue;
                    };
                    let (callers, []) = rest[12..].as_chunks::<4>() else {
                        continue;
                    };
                    // The same again with the text of the script, where the hash was unknown.
                    let [[_, _, first, _], ..] = callers else {
                        continue;
                    };
                    if !firsts.insert((*first).to_owned()) {
                        let again = |member: &String| {
                            let mut run = callers.iter();
                            run.any(|[_, _, asked, _]| asked == member)
                        };
                        calls.retain(|(member, _)| !again(member));
                    }
                    in_run = callers.len();
                    for [_, permits, member, _] in callers {
                        let call = Call {
                            at: seen.micros / 1000,
                            permits: permits.parse().unwrap(),
                            granted: false,
                        };
                        calls.push(((*member).to_owned(), call));
                    }
                }
                (true, ["ZADD", _, "NX", score, member]) => {
                    let asked = calls.len().saturating_sub(in_run);
                    let mut run = calls[asked..].iter_mut();
                    let call = run.find(|(asked, _)| asked == member);
                    let (_, call) = call.expect("a script grants what was asked of it");
                    call.at = score.parse().unwrap();
                    call.granted = true;
                }
                (true, ["ZADD", ..]) => panic!("nothing needs to be healed: {words:?}"),
                _ => {}
            }
        }
        Self {
            calls: calls.into_iter().map(|(_, call)| call).collect(),
        }
    }

    pub fn granted(&self) -> i64 {
        self.grants().map(|call| call.permits).sum()
    }

    pub fn asked(&self) -> i64 {
        self.calls.iter().map(|call| call.permits).sum()
    }

    pub fn millis(&self) -> i64 {
        match (self.calls.first(), self.calls.last()) {
            (Some(first), Some(last)) => last.at - first.at,
            _ => 0,
        }
    }

    /// Returns the most permits granted in any window of this length: law L1 compares it with the
    /// rate.
    pub fn fullest_window(&self, interval: i64) -> i64 {
        let mut grants: Vec<_> = self.grants().collect();
        grants.sort_by_key(|call| call.at);
        let (mut fullest, mut sum) = (0, 0);
        let mut window = VecDeque::new();
        for grant in grants {
            window.push_back(grant);
            sum += grant.permits;
            while let Some(first) = window
                .front()
                .filter(|first| first.at + interval <= grant.at)
            {
                sum -= first.permits;
                window.pop_front();
            }
            fullest = fullest.max(sum);
        }
        fullest
    }

    /// The calls that were refused although there was room even in a window longer than the
    /// limit's, which is given here. A lost permit makes some.
    pub fn refused_in_vain(&self, rate: i64, window: i64) -> Vec<Call> {
        let mut grants: Vec<Call> = Vec::new();
        let mut refused = Vec::new();
        for &call in &self.calls {
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
        for call in &self.calls {
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

    fn grants(&self) -> impl Iterator<Item = Call> {
        self.calls.iter().copied().filter(|call| call.granted)
    }
}

/// The check itself can fail.
#[test]
fn a_window_that_is_too_full_is_found() {
    let grant = |at, permits| Call {
        at,
        permits,
        granted: true,
    };
    let refusal = Call {
        granted: false,
        ..grant(99, 50)
    };
    let history = History {
        calls: vec![
            grant(0, 2),
            grant(60, 1),
            refusal,
            grant(100, 2),
            grant(159, 1),
        ],
    };
    assert_eq!(history.fullest_window(100), 4, "from 60 to 159");
    assert_eq!(history.fullest_window(99), 3);
    assert_eq!(history.fullest_window(1000), 6);
    assert_eq!(history.ideal(3, 100), 5);
    assert_eq!(history.granted(), 6);
    assert_eq!(history.refused_in_vain(52, 100), []);
    assert_eq!(history.refused_in_vain(53, 100), [refusal]);
    assert_eq!(history.refused_in_vain(51, 39), [refusal]);
}
