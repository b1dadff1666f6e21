//! The calls of a fleet as the server executed them, and what they came to.

use std::{
    fmt,
    sync::mpsc::{Receiver, channel},
    thread,
};

use crate::ours::Ask;
use kit::{
    monitor::{Feed, Seen},
    permits_of, windows,
};

/// One call as the server executed it.
#[derive(Debug)]
pub(super) struct Call {
    /// Microseconds since the epoch, by the server
    pub(super) arrived: i64,
    pub(super) java: bool,
    /// What the caller stamped it with
    pub(super) now: i64,
    pub(super) asks: Vec<Ask>,
    /// Score and member of what was granted
    pub(super) granted: Vec<(i64, Vec<u8>)>,
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
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(java, java_permits), (rust, rust_permits)] = self.granted;
        write!(
            f,
            "{} calls; Java {java} grants of {java_permits}, Rust {rust} of {rust_permits}; latest arrival after its \
             stamp: Java {:.1} ms, Rust {:.1} ms; fullest whole interval {}",
            self.calls,
            self.lag[0] as f64 / 1000.0,
            self.lag[1] as f64 / 1000.0,
            self.fullest,
        )
    }
}

impl Figures {
    pub(super) fn of(calls: &[Call], interval: i64) -> Self {
        let mut figures = Self {
            calls: calls.len(),
            fullest: fullest(calls, interval * 1000),
            ..Self::default()
        };
        for call in calls {
            let side = usize::from(!call.java);
            for (score, member) in &call.granted {
                figures.granted[side].0 += 1;
                figures.granted[side].1 += i64::from(permits_of(member));
                figures.lag[side] = figures.lag[side].max(call.arrived - score * 1000);
            }
        }
        figures
    }
}

/// The most permits that arrived within so many microseconds.
pub(super) fn fullest(calls: &[Call], length: i64) -> i64 {
    let granted = |call: &Call| {
        call.granted
            .iter()
            .map(|(_, it)| i64::from(permits_of(it)))
            .sum::<i64>()
    };
    let arrivals = calls.iter().map(|call| (call.arrived, granted(call)));
    windows(arrivals, length).into_iter().max().unwrap_or(0)
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
            let seen = feed.next_seen();
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
/// the limit in a text, all members in one, time, exact; or time, exact, source, four fields of a
/// limit, and for each caller waits, permits, member, shadow.
pub(super) fn call(seen: &Seen) -> Call {
    let arguments = seen.arguments();
    let rest = &arguments[3 + number(&arguments[2]).unwrap() as usize..];
    let is_text = number(&rest[0]).is_none();
    let java = rest.len() == 3 && !is_text;
    let (now, asks) = if java {
        let permits = number(&rest[0]).unwrap();
        let member = [&[16], &rest[2][..], &(permits as u32).to_le_bytes()].concat();
        (&rest[1], vec![(permits, Some(member))])
    } else if let [_, members, now, ..] = rest
        && is_text
    {
        let members = members.chunks(21);
        let asks = members.map(|it| (permits_of(it).into(), Some(it.to_vec())));
        (now, asks.collect())
    } else {
        let callers = rest[7..].chunks(4);
        let asks = callers.map(|caller| (number(&caller[1]).unwrap(), Some(caller[2].clone())));
        (&rest[0], asks.collect())
    };
    Call {
        arrived: seen.micros,
        java,
        now: number(now).expect("stamped by its caller"),
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
