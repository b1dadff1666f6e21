//! The memory of a replay, counted by this binary's allocator.

use std::io::{BufReader, Read, Result, Write};

use tower_ratelimit::{Algorithm, Limit};

use crate::{
    ALONE,
    access_log::Rows,
    allocations::ALLOCATOR,
    limits::{self, Replay},
};

/// In one hour each; three hours later come others.
const CALLERS: usize = 2000;
const GRANTS: usize = 72;
const HOURS: usize = 3;
/// For the key and the numbers of each caller, and for lines that may still be put in order.
const IDLE: usize = 80;
const APART: usize = 100_000;

fn in_use() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// A log that is made while it is read, and looks at the memory in use for each line.
#[derive(Default)]
struct Log {
    lines: usize,
    line: Vec<u8>,
    read: usize,
    most: usize,
}

impl Read for &mut Log {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.most = self.most.max(in_use());
        if self.read == self.line.len() && self.lines < HOURS * GRANTS * CALLERS {
            let (hour, within) = (
                self.lines / (GRANTS * CALLERS),
                self.lines % (GRANTS * CALLERS),
            );
            let caller = hour * CALLERS + within % CALLERS;
            let millis = hour * 10_800_000 + within * 3_600_000 / (GRANTS * CALLERS);
            let (second, part) = (1_791_640_536 + millis / 1000, millis % 1000);
            self.line.clear();
            writeln!(
                self.line,
                "c{caller} - - [{second}.{part:03}] \"GET / HTTP/1.1\" 200 5"
            )?;
            (self.lines, self.read) = (self.lines + 1, 0);
        }
        let read = (&self.line[self.read..]).read(buffer)?;
        self.read += read;
        Ok(read)
    }
}

/// 200 bytes and 8 for each grant of a caller that asked for something in the last interval, and
/// no more than its key and its number of one that is idle.
#[tokio::test]
async fn a_replay_holds_the_callers_of_an_interval() {
    let _alone = ALONE.lock().await;
    let before = in_use();
    let mut log = Log::default();
    let mut once = Some(BufReader::new(&mut log));
    let replay = Replay {
        rows: Rows::of(["1"]),
        limits: vec![(Algorithm::SlidingLog, Limit::per_hour(GRANTS as u64))],
        share: 0.001,
        show_keys: false,
    };
    let report = replay.run(|| Ok(once.take()), limits::first).unwrap();
    assert_eq!(report.callers, (HOURS * CALLERS) as u64);
    assert_eq!(report.candidates[0].touched, [0, 0]);
    let active = CALLERS * (200 + 8 * GRANTS);
    let most = log.most - before;
    let of_each = most / CALLERS;
    println!("{most} bytes at most, {of_each} for each active caller of {GRANTS} grants");
    assert!(most <= active + HOURS * CALLERS * IDLE + APART, "{most}");
    // They are dropped within an interval and a half.
    assert_eq!(report.most_active, CALLERS as u64);
}
