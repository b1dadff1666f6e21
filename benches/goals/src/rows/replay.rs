//! A replay of a million lines.

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, BufWriter, Write},
    path::PathBuf,
    process::{self, Command},
};

use tower_ratelimit::{Algorithm, Limit};

use super::Pace;
use crate::{
    access_log::Rows,
    database,
    limits::{self, Replay},
    row::{Contest, Goal::AtMost, Rounds, Row, figure},
};
use kit::random::Random;

const LINES: u64 = 1_000_000;
const CALLERS: u64 = 50_000;
/// In ms: 2026-01-01, and how far two lines are apart at most.
const MIDNIGHT: u64 = 1_767_225_600_000;
const APART: u64 = 80;

pub(super) fn row(pace: Pace) -> Row {
    Row {
        name: String::from("replay of 1,000,000 lines"),
        parameters: format!(
            "combined format in {} hours, {CALLERS} callers, one limit of 60 per minute, its \
             smallest found and verified by a second reading; a process of its own",
            LINES * APART / 2 / 3_600_000
        ),
        beside: "a reading of the lines",
        needs: &[],
        rounds: Rounds::of(0, pace.pick(5, 1)),
        figures: vec![
            figure("s of processor", AtMost(3.0)),
            figure("MB of memory at its peak", AtMost(64.0)),
        ],
        begin: Box::new(|| Box::new(Log::write())),
    }
}

struct Log(PathBuf);

impl Log {
    /// Half of the requests come from all callers equally, and half by Zipf's law.
    fn write() -> Self {
        let path = env::temp_dir().join(format!("tower-ratelimit-goals-{}.log", process::id()));
        let mut log = BufWriter::new(File::create(&path).unwrap());
        let (mut random, mut time) = (Random(7), MIDNIGHT);
        for line in 0..LINES {
            time += random.below(APART);
            let share = random.below(1 << 20) as f64 / f64::from(1 << 20);
            let caller = match line % 2 {
                0 => line / 2 % CALLERS,
                _ => (CALLERS as f64).powf(share) as u64,
            };
            let (second, part) = (time / 1000 - MIDNIGHT / 1000, time % 1000);
            let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
            writeln!(
                log,
                "10.1.{}.{} - - [01/Jan/2026:{hour:02}:{minute:02}:{second:02}.{part:03} +0000] \
                 \"GET /orders/{line}?page=2 HTTP/1.1\" 200 5120 \"-\" \"Mozilla/5.0 (X11)\"",
                caller / 256,
                caller % 256,
            )
            .unwrap();
        }
        log.flush().unwrap();
        Self(path)
    }

    fn read(&self, how: &str) -> [f64; 2] {
        let mut reading = Command::new(env::current_exe().unwrap());
        let output = reading.arg(how).arg(&self.0).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let figures: Vec<_> = text.split(' ').map(|it| it.parse().unwrap()).collect();
        figures.try_into().unwrap()
    }
}

impl Contest for Log {
    fn ours(&mut self) -> Vec<f64> {
        self.read("replay").into()
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        self.read("lines").map(Some).into()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // It is a temporary file, which may stay.
        let _ = fs::remove_file(&self.0);
    }
}

/// Reads a log in this process, and prints the seconds of processor and the MB that it took.
pub(crate) fn read(path: &str, replayed: bool) {
    let open = || File::open(path).map(|file| BufReader::with_capacity(1 << 16, file));
    if replayed {
        let replay = Replay {
            rows: Rows::of(["ip"]),
            limits: vec![(Algorithm::SlidingLog, Limit::per_minute(60))],
            share: 0.001,
            show_keys: false,
        };
        let report = replay.run(|| open().map(Some), limits::first).unwrap();
        assert_eq!((report.read.requests, report.callers), (LINES, CALLERS));
        assert!(report.smallest[0].verified);
    } else {
        let (mut log, mut line, mut lines) = (open().unwrap(), Vec::new(), 0);
        while log.read_until(b'\n', &mut line).unwrap() > 0 {
            lines += 1;
            line.clear();
        }
        assert_eq!(lines, LINES);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: f64 = peak
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    let busy = database::busy(process::id()).as_secs_f64();
    print!("{busy} {}", peak * 1024.0 / 1e6);
}
