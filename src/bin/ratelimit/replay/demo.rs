//! The access log of `replay --demo`: a made-up day, the same in each run.

use std::io::Write;

/// In ms: 2026-01-01.
const MIDNIGHT: u64 = 1_767_225_600_000;
const DAY: u64 = 86_400_000;
const CALLERS: u64 = 2000;

/// Returns the lines of the day, in the combined format with milliseconds.
///
/// Few callers send most of the requests, nights are quieter than days, and a few callers come in
/// bursts.
pub(crate) fn day() -> Vec<u8> {
    let (mut lines, mut random, mut time) = (Vec::new(), SplitMix64(7), 0);
    // The caller that comes in a burst, and its requests that are still to come.
    let mut burst = (0, 0);
    loop {
        let caller = if burst.1 > 0 {
            burst.1 -= 1;
            time += random.below(120);
            burst.0
        } else {
            // The hours from the quietest one, at four in the morning.
            let hour = (time / 3_600_000 + 20) % 24;
            time += random.below(700 + 7000 / (1 + hour.min(24 - hour)));
            // Zipf's law: as many requests come from callers 1 to 10 as from 10 to 100.
            let share = random.below(1 << 20) as f64 / f64::from(1 << 20);
            if random.below(3000) == 0 {
                burst = (random.below(CALLERS), 50 + random.below(250));
            }
            (CALLERS as f64).powf(share) as u64
        };
        if time >= DAY {
            return lines;
        }
        let (block, host) = (caller / 256, caller % 256);
        let (second, part) = (MIDNIGHT / 1000 + time / 1000, time % 1000);
        // Writing into memory cannot fail.
        let _ = writeln!(
            lines,
            "198.18.{block}.{host} - - [{second}.{part:03}] \"GET /demo HTTP/1.1\" 200 512 \"-\" \
             \"demo\"",
        );
    }
}

/// SplitMix64, the same on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    /// Returns a number below another one.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
