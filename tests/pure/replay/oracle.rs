//! Generated logs, and the decisions of limits on them by definition.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use tower_ratelimit::{Algorithm, Limit};

use kit::random::Random;

/// In us: a midnight, and the first line some hours later.
const MIDNIGHT: i64 = 1_767_225_600_000_000;
const START: i64 = MIDNIGHT + 21 * 3_600_000_000;
const REORDER: i64 = 60_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    Combined,
    /// The same, written at the end of a request, with its duration
    Timed,
    Json,
    Csv,
}

/// A line: its time in us, and its caller.
pub(super) struct Log {
    lines: Vec<(i64, u64)>,
    /// In ms: how fine its times are written.
    resolution: i64,
}

impl Log {
    /// Callers by Zipf's law, bursts, equal times, and lines that are out of order, some too far.
    pub(super) fn generate(random: &mut Random, resolution: i64) -> Self {
        let callers = 20 + random.below(100);
        let mut time = START;
        let mut lines = Vec::new();
        while lines.len() < 3000 {
            time += match random.below(20) {
                0 => random.within(0, 120_000_000),
                1..5 => 0,
                _ => random.within(0, 400_000),
            } / 1000
                * 1000;
            // The rank of a caller falls with how often it comes.
            let share = 1.0 - random.below(1 << 20) as f64 / f64::from(1 << 20);
            let caller = (callers as f64).powf(1.0 - share) as u64;
            let burst = if random.one_in(50) {
                random.below(60)
            } else {
                1
            };
            for _ in 0..burst {
                time += random.below(2) as i64 * 7000;
                lines.push((time, caller));
            }
            if random.one_in(100) {
                // Far from its place, maybe too far.
                let late = time - random.within(0, 90_000) * 1000;
                lines.push((late, caller));
            }
        }
        // What is near may stand in any order.
        for place in 1..lines.len() {
            if random.one_in(3) {
                let other = place - random.place(place.min(5)) - 1;
                lines.swap(place, other);
            }
        }
        Self { lines, resolution }
    }

    fn written(&self, time: i64) -> i64 {
        time - time.rem_euclid(self.resolution * 1000)
    }

    /// The lines, each with whether it comes too late by the times that are written.
    fn marked(&self) -> Vec<(i64, u64, bool)> {
        let mut newest = i64::MIN;
        let mark = |(time, caller): &(i64, u64)| {
            let written = self.written(*time);
            let late = written < newest.saturating_sub(REORDER);
            if !late {
                newest = newest.max(written);
            }
            (*time, *caller, late)
        };
        self.lines.iter().map(mark).collect()
    }

    pub(super) fn in_time(&self) -> Vec<(i64, u64)> {
        let lines = self.marked().into_iter().filter(|(_, _, late)| !late);
        let mut lines: Vec<_> = lines.map(|(time, caller, _)| (time, caller)).collect();
        lines.sort_unstable();
        lines
    }

    pub(super) fn late(&self) -> u64 {
        self.marked().iter().filter(|(_, _, late)| *late).count() as u64
    }

    pub(super) fn callers(&self) -> BTreeMap<u64, Vec<i64>> {
        let mut callers: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (time, caller) in self.in_time() {
            callers.entry(caller).or_default().push(time);
        }
        callers
    }

    /// How many unreadable lines are among them: one behind each thousand.
    pub(super) fn unreadable(&self) -> u64 {
        (self.lines.len() as u64).div_ceil(1000)
    }

    pub(super) fn text(&self, format: Format) -> String {
        let mut text = match format {
            Format::Csv => "when,time,ip\n".to_owned(),
            Format::Combined | Format::Timed | Format::Json => String::new(),
        };
        for (number, (time, caller)) in self.lines.iter().enumerate() {
            let written = self.written(*time);
            let address = format!("10.0.{}.{}", caller / 256, caller % 256);
            line(&mut text, format, written, &address, number as i64);
            if number % 1000 == 0 {
                text.push_str("out of space\n");
            }
        }
        text
    }
}

fn line(text: &mut String, format: Format, time: i64, address: &str, number: i64) {
    let millis = number * 37 % 5000;
    let time = match format {
        Format::Timed => time + millis * 1000,
        Format::Combined | Format::Json | Format::Csv => time,
    };
    let (second, part) = (time / 1_000_000, time % 1_000_000 / 1000);
    // The log is of less than a day or two.
    let (day, of_day) = (1 + (time - MIDNIGHT) / 86_400_000_000, second % 86_400);
    let clock = format!(
        "{:02}:{:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    );
    let common = format!(
        "{address} - - [{day:02}/Jan/2026:{clock}.{part:03} +0000] \"GET /{number} HTTP/1.1\" 200"
    );
    let written = match format {
        Format::Combined => writeln!(text, "{common} 5 \"-\" \"curl\""),
        Format::Timed => {
            let (whole, part) = (millis / 1000, millis % 1000);
            writeln!(text, "{common} 5 \"-\" \"curl\" {whole}.{part:03}")
        }
        Format::Json => {
            writeln!(
                text,
                "{{\"remote_addr\":\"{address}\",\"ts\":{second}.{part:03}}}"
            )
        }
        Format::Csv => {
            writeln!(
                text,
                "{number},2026-01-{day:02}T{clock}.{part:03}Z,\"{address}\""
            )
        }
    };
    written.unwrap();
}

/// The callers that a limit touches, and the requests that it refuses.
pub(super) fn figures(
    callers: &BTreeMap<u64, Vec<i64>>,
    algorithm: Algorithm,
    limit: Limit,
) -> (u64, u64) {
    let refused = callers
        .values()
        .map(|times| refused(times, algorithm, limit));
    refused.fold((0, 0), |(touched, all), refused| {
        (touched + u64::from(refused > 0), all + refused)
    })
}

fn refused(times: &[i64], algorithm: Algorithm, limit: Limit) -> u64 {
    let interval = limit.interval().as_micros() as i64;
    let permits = limit.permits() as i64;
    let mut grants: Vec<i64> = Vec::new();
    let (mut window_ends, mut in_window) = (i64::MIN, 0);
    let emission = (interval + permits - 1) / permits;
    let mut arrival = i64::MIN;
    let mut refused = 0;
    for time in times {
        let granted = match algorithm {
            Algorithm::SlidingLog => {
                let newest = grants.iter().rev();
                let live = newest.take_while(|grant| **grant > time - interval);
                (live.count() as i64) < permits
            }
            Algorithm::FixedWindow => {
                if *time >= window_ends {
                    (window_ends, in_window) = (time + interval, 0);
                }
                in_window += 1;
                in_window <= permits
            }
            Algorithm::Gcra => {
                let next = arrival.max(*time) + emission;
                let fits = next - time <= permits * emission;
                arrival = if fits { next } else { arrival };
                fits
            }
            _ => panic!("a new algorithm needs an oracle"),
        };
        if granted {
            grants.push(*time);
        } else {
            refused += 1;
        }
    }
    refused
}

/// The largest number of requests of one caller in one interval.
pub(super) fn busiest(callers: &BTreeMap<u64, Vec<i64>>, interval: Duration) -> u64 {
    let most = |times: &Vec<i64>| {
        let untouched = |permits: &u64| {
            let limit = Limit::new(*permits, interval);
            refused(times, Algorithm::SlidingLog, limit) == 0
        };
        (1..).find(untouched).unwrap()
    };
    callers.values().map(most).max().unwrap()
}
