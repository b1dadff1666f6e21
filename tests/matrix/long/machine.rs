//! Whether a process grows: its memory, its open files, its connections.

use std::{fs, time::Duration};

use kit::proxy::Proxy;

/// What may come on top in the course of a run, whatever its length: allocators keep what was once
/// in use.
const GROWTH_KB: u64 = 12_000;

/// What was seen of this process, again and again.
#[derive(Debug, Default)]
pub struct Machine(Vec<Look>);

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    /// In kB; none where the system does not tell
    resident: Option<u64>,
    connections: usize,
}

impl Machine {
    pub fn look(&mut self, at: Duration, proxy: &Proxy) {
        self.0.push(Look {
            at,
            resident: resident(),
            connections: proxy.open_connections(),
        });
    }

    /// Memory at the end is that of the beginning, when caches were full.
    ///
    /// # Panics
    ///
    /// If not.
    pub fn check_flat(&self) {
        let last = self.0.last().expect("it was looked at").at;
        let median = |from: f64, to: f64| {
            let within = self.0.iter().filter(|seen| {
                let part = seen.at.as_secs_f64() / last.as_secs_f64();
                (from..=to).contains(&part)
            });
            let mut kilobytes: Vec<_> = within.filter_map(|seen| seen.resident).collect();
            kilobytes.sort_unstable();
            kilobytes.get(kilobytes.len() / 2).copied()
        };
        let most = self.0.iter().map(|seen| seen.connections).max();
        println!(
            "at most {} connections were open at the end of a round",
            most.unwrap_or(0)
        );
        if let (Some(first), Some(last)) = (median(0.2, 0.4), median(0.8, 1.0)) {
            println!("memory: {first} kB in the second fifth, {last} kB in the last");
            assert!(last <= first + GROWTH_KB, "memory grew from {first} kB");
        }
    }
}

/// The resident memory of this process in kB; nothing where there is no such file.
pub fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The check can fail.
mod tests {
    use super::*;

    fn grows_by(kilobytes: u64) -> Machine {
        let look = |second| Look {
            at: Duration::from_secs(second),
            resident: Some(10_000 + kilobytes * second),
            connections: 2,
        };
        Machine((0..=100).map(look).collect())
    }

    #[test]
    fn what_stays_as_it_is_passes() {
        grows_by(0).check_flat();
    }

    #[test]
    #[should_panic(expected = "memory grew")]
    fn what_grows_is_found() {
        grows_by(GROWTH_KB / 50).check_flat();
    }
}
