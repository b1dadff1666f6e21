//! A day of requests that is made up, the same one each time.

use std::io::{self, Read};

/// In ms: 2026-01-01.
const MIDNIGHT: u64 = 1_767_225_600_000;
const DAY: u64 = 86_400_000;
const CALLERS: u64 = 2000;

/// The lines of the day, in the combined format with milliseconds.
///
/// Few callers send most of the requests, nights are quieter than days, and a few callers come in
/// bursts.
pub(crate) struct Demo {
    random: u64,
    /// Since midnight, in ms.
    time: u64,
    /// The caller that comes in a burst, and its requests that are still to come.
    burst: (u64, u64),
    line: Vec<u8>,
    read: usize,
}

impl Demo {
    pub(crate) fn new() -> Self {
        Self {
            random: 7,
            time: 0,
            burst: (0, 0),
            line: Vec::new(),
            read: 0,
        }
    }

    /// Returns a number below another one: SplitMix64, the same on every machine.
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn next_line(&mut self) {
        let caller = if self.burst.1 > 0 {
            self.burst.1 -= 1;
            self.time += self.below(120);
            self.burst.0
        } else {
            // The hours from the quietest one, at four in the morning.
            let hour = (self.time / 3_600_000 + 20) % 24;
            let pause = 700 + 7000 / (1 + hour.min(24 - hour));
            self.time += self.below(pause);
            // Zipf's law: as many requests come from callers 1 to 10 as from 10 to 100.
            let share = self.below(1 << 20) as f64 / f64::from(1 << 20);
            let caller = (CALLERS as f64).powf(share) as u64;
            if self.below(3000) == 0 {
                self.burst = (self.below(CALLERS), 50 + self.below(250));
            }
            caller
        };
        self.line.clear();
        self.read = 0;
        if self.time >= DAY {
            return;
        }
        let seconds = self.time / 1000;
        let line = format!(
            "198.18.{}.{} - - [{}.{:03}] \"GET /demo HTTP/1.1\" 200 512 \"-\" \"demo\"\n",
            caller / 256,
            caller % 256,
            MIDNIGHT / 1000 + seconds,
            self.time % 1000,
        );
        self.line.extend_from_slice(line.as_bytes());
    }
}

impl Read for Demo {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read == self.line.len() && self.time < DAY {
            self.next_line();
        }
        let mut rest = self.line.get(self.read..).unwrap_or_default();
        let read = rest.read(buffer)?;
        self.read += read;
        Ok(read)
    }
}
