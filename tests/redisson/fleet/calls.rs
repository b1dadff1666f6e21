//! The calls of a fleet as the server executed them, and what they came to.

use std::{
    fmt,
    sync::mpsc::{Receiver, channel},
    thread,
};

use crate::support::windows;
use crate::{
    feed::{Feed, Seen},
    ours::Ask,
};

/// One call as the server executed it.
#[derive(Debug)]
pub(super) struct Call {
    /// Microseconds since the epoch, by the server
    pub(super) arrived: i64,
    pub(super) java: bool,
    /// What the caller stamped it with; `None` where the server's clock counts
    pub(super) now: Option<i64>,
    pub(super) asks: Vec<Ask>,
    /// Score and member of what was granted
    pub(super) granted: Vec<(i64, Vec<u8>)>,
}

/// Permits that were granted together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) arrived: i64,
    /// The score, in microseconds
    pub(super) stamp: i64,
    pub(super) permits: i64,
    pub(super) java: bool,
}

/// What a run came to.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) calls: usize,
    /// Grants and permits, of Java and of Rust
    pub(super) granted: [(usize, i64); 2],
    /// Longest time from stamp to arrival, microseconds, of Java and of Rust
    pub(super) lag: [i64; 2],
    /// Permits of the fullest window of the whole interval
    pub(super) fullest: i64,
    /// Windows of the whole interval with more than the rate
    pub(super) over: usize,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(java, java_permits), (rust, rust_permits)] = self.granted;
        write!(
            f,
            "{} calls; Java {java} grants of {java_permits}, Rust {rust} of {rust_permits}; latest arrival after its \
             stamp: Java {:.1} ms, Rust {:.1} ms; fullest whole interval {}, {} over",
            self.calls,
            self.lag[0] as f64 / 1000.0,
            self.lag[1] as f64 / 1000.0,
            self.fullest,
            self.over,
        )
    }
}

pub(super) fn count(calls: &[Call], rate: i64, interval: i64) -> Figures {
    let grants = grants(calls);
    let mut figures = Figures {
        calls: calls.len(),
        ..Figures::default()
    };
    for grant in &grants {
        let side = usize::from(!grant.java);
        figures.granted[side].0 += 1;
        figures.granted[side].1 += grant.permits;
        figures.lag[side] = figures.lag[side].max(grant.arrived - grant.stamp);
    }
    // Where the server stamps, its own milliseconds are what an interval is counted in.
    let by_server = calls.iter().any(|call| call.now.is_none());
    let times = grants.iter().map(|grant| {
        (
            if by_server {
                grant.stamp
            } else {
                grant.arrived
            },
            grant.permits,
        )
    });
    let windows = windows(times, interval * 1000);
    figures.fullest = windows.iter().copied().max().unwrap_or(0);
    figures.over = windows.iter().filter(|permits| **permits > rate).count();
    figures
}

pub(super) fn grants(calls: &[Call]) -> Vec<Grant> {
    let grants = calls.iter().flat_map(|call| {
        call.granted.iter().map(|(score, member)| Grant {
            arrived: call.arrived,
            stamp: score * 1000,
            permits: i64::from(u32::from_le_bytes(member[17..].try_into().unwrap())),
            java: call.java,
        })
    });
    grants.collect()
}

/// Gathers the calls on a name until a mark of that name.
pub(super) fn watch(mut feed: Feed, name: &str) -> Receiver<Vec<Call>> {
    let (sender, receiver) = channel();
    let name = name.to_owned();
    thread::spawn(move || {
        let mut calls: Vec<Call> = Vec::new();
        // A call that has begun, and whether its script has run: a server that does not know it yet
        // does nothing.
        let mut current: Option<(Call, bool)> = None;
        loop {
            let seen = feed.next();
            if seen.by_script {
                if let Some((call, ran)) = &mut current {
                    *ran = true;
                    if seen.words[0].eq_ignore_ascii_case("ZADD") {
                        grant(call, &seen);
                    }
                }
                continue;
            }
            calls.extend(current.take().filter(|(_, ran)| *ran).map(|(call, _)| call));
            if seen.words == ["ECHO", &name] {
                // Fails only if the test has failed.
                let _ = sender.send(calls);
                return;
            }
            if seen.is_script() && seen.words[3] == name {
                current = Some((call(&seen), false));
            }
        }
    });
    receiver
}

pub(super) fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// EVALSHA, hash, the number of keys, the keys, and then: Java permits, time, random bytes; ours
/// time, exact, source, four fields of a limit, and either the permits of each caller and their
/// members, or for each caller waits, permits, member, shadow.
pub(super) fn call(seen: &Seen) -> Call {
    let arguments = seen.arguments();
    let rest = &arguments[3 + number(&arguments[2]).unwrap() as usize..];
    let java = rest.len() == 3;
    let (now, asks) = if java {
        let permits = number(&rest[0]).unwrap();
        let member = [&[16], &rest[2][..], &(permits as u32).to_le_bytes()].concat();
        (number(&rest[1]), vec![(permits, Some(member))])
    } else if let [now, .., permits, members] = rest
        && rest.len() == 9
    {
        let permits = number(permits).unwrap();
        let asks = members
            .chunks(21)
            .map(|member| (permits, Some(member.to_vec())));
        (number(now), asks.collect())
    } else {
        let callers = rest[7..].chunks(4);
        let asks = callers.map(|caller| (number(&caller[1]).unwrap(), Some(caller[2].clone())));
        (number(&rest[0]), asks.collect())
    };
    Call {
        arrived: seen.micros,
        java,
        now,
        asks,
        granted: Vec::new(),
    }
}

pub(super) fn grant(call: &mut Call, seen: &Seen) {
    // Java: key, score, member; ours has NX before the scores, and XX where it repairs.
    let arguments = seen.arguments();
    let flag = usize::from(number(&arguments[2]).is_none());
    for entry in arguments[2 + flag..].chunks(2) {
        let (score, member) = (&entry[0], &entry[1]);
        let mut asks = call.asks.iter();
        if asks.any(|(_, asked)| asked.as_ref() == Some(member)) {
            call.granted.push((number(score).unwrap(), member.clone()));
        }
    }
}

#[test]
fn windows_begin_with_each_grant() {
    let grants = [(0, 1), (5, 2), (10, 4), (11, 8)];
    assert_eq!(windows(grants.into_iter(), 10), [3, 14, 12, 8]);
    assert_eq!(windows(grants.into_iter(), 11), [7, 14, 12, 8]);
}
