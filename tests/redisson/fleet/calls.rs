//! What a fleet was granted, as the server executed it, and what it came to.

use std::{
    fmt,
    sync::mpsc::{Receiver, channel},
    thread,
};

use kit::{companion, monitor::Feed, permits_of, windows};

/// What was seen of a run.
#[derive(Debug, Default)]
pub(super) struct Watched {
    calls: usize,
    grants: Vec<Grant>,
}

#[derive(Debug)]
struct Grant {
    /// Microseconds since the epoch, by the server
    arrived: i64,
    /// What its caller stamped it with, in ms
    stamp: i64,
    permits: i64,
    java: bool,
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
    pub(super) fn of(seen: &Watched, interval: i64) -> Self {
        let mut figures = Self {
            calls: seen.calls,
            fullest: seen.fullest(interval * 1000),
            ..Self::default()
        };
        for grant in &seen.grants {
            let side = usize::from(!grant.java);
            figures.granted[side].0 += 1;
            figures.granted[side].1 += grant.permits;
            figures.lag[side] = figures.lag[side].max(grant.arrived - grant.stamp * 1000);
        }
        figures
    }
}

impl Watched {
    /// The most permits that arrived within so many microseconds.
    pub(super) fn fullest(&self, length: i64) -> i64 {
        let arrivals = self.grants.iter().map(|it| (it.arrived, it.permits));
        windows(arrivals, length).into_iter().max().unwrap_or(0)
    }
}

/// Gathers what is granted of a name until a mark of that name.
pub(super) fn watch(mut feed: Feed, name: &str) -> Receiver<Watched> {
    let (sender, receiver) = channel();
    let (name, log) = (name.to_owned(), companion(name, "permits"));
    thread::spawn(move || {
        let (mut watched, mut arrived) = (Watched::default(), 0);
        loop {
            let seen = feed.next_seen();
            if seen.words == ["ECHO", &name] {
                // Fails only if the test has failed.
                let _ = sender.send(watched);
                return;
            }
            if !seen.by_script {
                watched.calls += usize::from(seen.is_script());
                arrived = seen.micros;
            } else if seen.words[0].eq_ignore_ascii_case("ZADD") && seen.words[1] == log {
                // Java: key, score, member; ours has NX before the scores, and XX where it repairs.
                let is_ours = ["NX", "XX"].contains(&&*seen.words[2]);
                let arguments = seen.arguments();
                for entry in arguments[2 + usize::from(is_ours)..].chunks(2) {
                    let stamp = std::str::from_utf8(&entry[0]).unwrap();
                    watched.grants.push(Grant {
                        arrived,
                        stamp: stamp.parse().unwrap(),
                        permits: permits_of(&entry[1]).into(),
                        java: !is_ours,
                    });
                }
            }
        }
    });
    receiver
}

#[test]
fn windows_begin_with_each_grant() {
    let grants = [(0, 1), (5, 2), (10, 4), (11, 8)];
    assert_eq!(windows(grants.into_iter(), 10), [3, 14, 12, 8]);
    assert_eq!(windows(grants.into_iter(), 11), [7, 14, 12, 8]);
}
