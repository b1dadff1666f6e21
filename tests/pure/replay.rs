//! Compares replays with an oracle that keeps every grant and counts.

mod oracle;

use std::{io, time::Duration};

use tower_ratelimit::{Algorithm, Limit};

use self::oracle::{Format, Log};
use crate::{
    access_log::Rows,
    limits::{self, CountedLimit, Replay, Report},
};
use kit::random::Random;

fn run(replay: &Replay, text: &str) -> Result<Report, String> {
    replay.run(|| Ok(Some(text.as_bytes())), limits::first)
}

/// Counts by a column, with the usual settings.
fn by(column: &str, limits: &[CountedLimit]) -> Replay {
    Replay {
        rows: Rows::of([column]),
        limits: limits.to_vec(),
        share: 0.001,
        show_keys: true,
    }
}

fn limit(permits: u64, millis: u64) -> Limit {
    Limit::new(permits, Duration::from_millis(millis))
}

const FORMATS: [Format; 4] = [Format::Combined, Format::Timed, Format::Json, Format::Csv];
const ALGORITHMS: [Algorithm; 3] = [
    Algorithm::SlidingLog,
    Algorithm::FixedWindow,
    Algorithm::Gcra,
];

/// Draws so many limits, of one of these intervals each, for a replay to count by.
fn limits(random: &mut Random, number: usize, most: u64, intervals: &[u64]) -> Vec<CountedLimit> {
    let draw = |_| {
        let interval = random.of(intervals);
        let limit = limit(1 + random.below(most), interval);
        (random.of(&ALGORITHMS), limit)
    };
    (0..number).map(draw).collect()
}

/// The settings that read what a log writes.
fn settings(format: Format, limits: &[CountedLimit]) -> Replay {
    let mut replay = by("ip", limits);
    if matches!(format, Format::Timed) {
        let (column, place) = ("duration".to_owned(), "10".to_owned());
        replay.rows.places.push((column, place, 1_000_000_000));
    }
    replay.share = 0.05;
    replay
}

#[test]
fn figures_are_those_of_the_oracle() {
    for seed in 0..24 {
        let mut random = Random(seed);
        let format = FORMATS[random.place(FORMATS.len())];
        let log = Log::generate(&mut random, 1);
        let limits = limits(&mut random, 5, 40, &[1000, 10_000, 60_000, 300_000]);
        let report = run(&settings(format, &limits), &log.text(format)).unwrap();
        let row = format!("seed {seed}, {format:?}");
        assert_eq!(report.read.requests, log.in_time().len() as u64, "{row}");
        assert_eq!(report.read.late, log.late(), "{row}");
        assert_eq!(report.read.unreadable, log.unreadable(), "{row}");
        let callers = log.callers();
        assert_eq!(report.callers, callers.len() as u64, "{row}");
        for ((algorithm, limit), found) in limits.iter().zip(&report.candidates) {
            let (touched, refused) = oracle::figures(&callers, *algorithm, *limit);
            let row = format!("{row}: {algorithm:?} {limit}");
            assert_eq!(found.touched, [touched; 2], "{row}");
            assert_eq!(found.refused, [refused; 2], "{row}");
        }
        for found in &report.smallest {
            let by = |permits| {
                let limit = Limit::new(permits, found.interval);
                oracle::figures(&callers, found.algorithm, limit).0
            };
            let few = |permits| by(permits) == 0 || by(permits) * 20 < report.callers;
            let smallest = (1..).find(|permits| few(*permits)).unwrap();
            let row = format!("{row}: {:?} in {:?}", found.algorithm, found.interval);
            assert_eq!(found.permits, Some([smallest; 2]), "{row}");
            assert!(found.verified, "{row}");
            assert_eq!(found.touched, [by(smallest); 2], "{row}");
            if smallest > 1 {
                let less = by(smallest - 1);
                assert_eq!(found.touched_by_one_less, [less; 2], "{row}");
            }
        }
        let most = oracle::busiest(&callers, limits[0].1.interval());
        assert_eq!(report.busiest[0].most, [most; 2], "{row}");
        // The figures over time are parts of these.
        let moments = &report.moments;
        let count = moments.len();
        assert!((60..=120).contains(&count), "{row}: {count}");
        let requests: u64 = moments.iter().map(|it| it.requests).sum();
        assert_eq!(requests, report.read.requests, "{row}");
        for (place, candidate) in report.candidates.iter().enumerate() {
            let refused: u64 = moments.iter().map(|it| it.refused[place][0]).sum();
            assert_eq!(refused, candidate.refused[0], "{row}");
        }
        let from = moments.iter().rfind(|it| it.requests > 0).unwrap().from_ms;
        let until = from + moments[1].from_ms - moments[0].from_ms;
        let last = report.read.last_ms.unwrap();
        assert!((from..until).contains(&last), "{row}");
    }
}

/// The log has whole seconds, and the oracle counts by the times that these were cut from.
#[test]
fn ranges_of_coarse_times_hold_the_truth() {
    for seed in 0..48 {
        let mut random = Random(1000 + seed);
        let log = Log::generate(&mut random, 1000);
        let limits = limits(&mut random, 4, 12, &[500, 1000, 2000, 10_000]);
        let report = run(&settings(Format::Csv, &limits), &log.text(Format::Csv)).unwrap();
        assert_eq!(report.read.resolution, Duration::from_secs(1));
        let callers = log.callers();
        let holds = |[least, most]: [u64; 2], truth| (least..=most).contains(&truth);
        for ((algorithm, limit), found) in limits.iter().zip(&report.candidates) {
            let (touched, refused) = oracle::figures(&callers, *algorithm, *limit);
            let row = format!("seed {seed}, {algorithm:?}: {touched}, {refused}, {found:?}");
            assert!(holds(found.touched, touched), "{row}");
            assert!(holds(found.refused, refused), "{row}");
        }
        for found in &report.smallest {
            let few = |permits| {
                let limit = Limit::new(permits, found.interval);
                let (touched, _) = oracle::figures(&callers, found.algorithm, limit);
                touched == 0 || touched * 20 < report.callers
            };
            let smallest = (1..).find(|permits| few(*permits)).unwrap();
            let row = format!("seed {seed}: {smallest}, {found:?}");
            assert!(holds(found.permits.unwrap(), smallest), "{row}");
            assert!(found.verified, "{row}");
        }
        let most = oracle::busiest(&callers, limits[0].1.interval());
        let [_, at_most] = report.busiest[0].most;
        let least = report.busiest.iter().map(|it| it.most[0]).max().unwrap();
        assert!(holds([least, at_most], most), "seed {seed}: {most}");
    }
}

#[test]
fn addresses_count_as_peers_do() {
    let line = |caller: &str| format!("{{\"ts\":\"2026-01-01T00:00:00Z\",\"who\":\"{caller}\"}}\n");
    let all = [
        // One customer's.
        "2001:db8:0:1::1",
        "2001:db8:0:2::2",
        "[2001:db8:0:3::3]:443",
        // One peer's.
        "192.0.2.1",
        "192.0.2.1:8080",
        "::ffff:192.0.2.1",
        " 192.0.2.1 ",
        " [::ffff:192.0.2.1]:80 ",
        // Two names that are no addresses, and nothing.
        "abba",
        "cafe:1",
        "-",
        "",
    ];
    let text: String = all.iter().map(|caller| line(caller)).collect();
    let mut replay = by("who", &[(Algorithm::SlidingLog, Limit::per_minute(1))]);
    let report = run(&replay, &text).unwrap();
    assert_eq!((report.callers, report.without_caller), (4, 2));
    let busiest = report.busiest.iter();
    let busiest: Vec<_> = busiest.map(|it| (it.caller.as_str(), it.most[1])).collect();
    let peers = [("192.0.2.1", 5), ("2001:db8::/56", 3)];
    assert_eq!(
        busiest,
        [&peers[..], &[("abba", 1), ("cafe:1", 1)]].concat()
    );
    // Nothing of a key is shown unless it is wanted.
    replay.show_keys = false;
    let shown = format!("{:?}", run(&replay, &text).unwrap());
    for key in ["192.0.2.1", "abba"] {
        assert!(!shown.contains(key), "{shown}");
    }
}

/// Memory does not grow with what callers invent.
#[test]
fn long_callers_are_cut_and_distinguished() {
    let long = "x".repeat(10_000);
    let line = |end: u32| format!("{{\"ts\":1700000000.1,\"agent\":\"{long}{end}\"}}\n");
    let text: String = [1, 2, 2].map(line).concat();
    let replay = by("agent", &[(Algorithm::SlidingLog, Limit::per_minute(9))]);
    let report = run(&replay, &text).unwrap();
    let most = report.busiest.iter().map(|it| it.most[0]);
    assert_eq!(most.collect::<Vec<_>>(), [2, 1]);
    let longest = report.busiest.iter().map(|it| it.caller.len()).max();
    assert!(longest < Some(200), "{longest:?}");
}

#[test]
fn unreadable_lines_are_counted_and_shown_harmlessly() {
    let good = "192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 2\n";
    let long = "x".repeat(100_000);
    let text = format!("{good}\u{1b}[2Jbroken\n\n{good}{long}\n{good}3\n4\n{good}");
    let replay = by("ip", &[(Algorithm::SlidingLog, Limit::per_hour(3))]);
    let report = run(&replay, &text).unwrap();
    let read = &report.read;
    assert_eq!((read.lines, read.unreadable, read.requests), (8, 4, 4));
    assert_eq!(read.lost(), 0.5);
    let samples: Vec<_> = read.samples.iter().map(|(line, _)| *line).collect();
    assert_eq!(samples, [2, 5, 7]);
    assert_eq!(read.samples[0].1, "\\u{1b}[2Jbroken");
    assert_eq!(read.samples[1].1.len(), 100);
    let time = Some(971_211_336_000);
    assert_eq!((read.first_ms, read.last_ms), (time, time));
    assert_eq!(report.candidates[0].touched, [1, 1]);
    assert_eq!(report.candidates[0].refused, [1, 1]);
}

/// A duration of any size is one, or its line is unreadable, next to any time.
#[test]
fn no_duration_is_too_long() {
    let line = |time: &str, took: &str| {
        format!("{{\"ts\":\"{time}T00:00:00Z\",\"ip\":\"192.0.2.1\",\"took\":\"{took}\"}}\n")
    };
    let times = ["0001-01-02", "1969-12-31", "2026-01-01", "9999-12-29"];
    let longest = format!("{}us", i64::MAX);
    let lines =
        times.map(|time| ["5us", "720000h", "3000000000s", &longest].map(|took| line(time, took)));
    let mut replay = by("ip", &[(Algorithm::SlidingLog, Limit::per_minute(1))]);
    replay.rows.reorder = Duration::MAX;
    let (column, place) = ("duration".to_owned(), "took".to_owned());
    replay.rows.places.push((column, place, 1));
    for first in lines.iter().flatten() {
        for second in lines.iter().flatten() {
            // Durations that are none in half of the lines are an error, in words.
            match run(&replay, &format!("{first}{second}")) {
                Ok(Report { read, .. }) => assert_eq!(read.requests + read.late, 2, "{read:?}"),
                Err(error) => assert!(error.contains("holds a duration in"), "{error}"),
            }
        }
    }
}

#[test]
fn a_log_that_is_read_once_is_not_verified() {
    let text = "time,who\n1700000000.001,a\n1700000000.002,a\n1700000000.003,b\n";
    let minute = Limit::per_minute(1);
    let both = [Algorithm::SlidingLog, Algorithm::Gcra].map(|algorithm| (algorithm, minute));
    let replay = by("who", &both);
    let mut opened = false;
    let once = || Ok((!std::mem::replace(&mut opened, true)).then_some(text.as_bytes()));
    let report = replay.run(once, limits::first).unwrap();
    let [log, gcra] = &report.smallest[..] else {
        panic!("{report:?}")
    };
    assert_eq!((&log.permits, log.verified), (&Some([2, 2]), false));
    assert_eq!((&gcra.permits, gcra.verified), (&None, false));
    // Lines that are written meanwhile change nothing.
    let grown = format!("{text}1700000000.004,a\n1700000000.005,a\n");
    let mut readings = 0;
    let growing = || {
        readings += 1;
        let text = if readings == 1 { text } else { &grown };
        Ok(Some(text.as_bytes()))
    };
    let report = replay.run(growing, limits::first).unwrap();
    assert!(report.smallest.iter().all(|it| it.verified), "{report:?}");
    assert_eq!(report.smallest[1].permits, Some([2, 2]));
}

#[test]
fn errors_say_what_would_be_right() {
    let combined = "192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 2\n";
    let minute = [(Algorithm::SlidingLog, Limit::per_minute(1))];
    let too_fast = [(Algorithm::Gcra, limit(2_000_000, 1000))];
    for (replay, text, part) in [
        (by("ip", &[]), combined, "1 to 16 limits, not 0"),
        (
            by("tenant", &minute),
            combined,
            "no column \"tenant\": it has ip,",
        ),
        (
            by("user", &minute),
            "time,ip\n",
            "no column \"user\": it has time, ip",
        ),
        (
            by("ip", &minute),
            "what\n",
            "line 1 of the log: it is neither JSON",
        ),
        (
            by("ip", &too_fast),
            "time,ip\n1700000000.001,a\n",
            "more than one in each microsecond",
        ),
    ] {
        let error = run(&replay, text).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    // Nothing to read is no error: a day may have had no request.
    let replay = by("ip", &minute);
    let report = run(&replay, "").unwrap();
    assert_eq!((report.read.lines, report.read.requests), (0, 0));
    assert_eq!(report.smallest[0].permits, None);
    let gone = || Err::<Option<&[u8]>, _>(io::Error::other("gone"));
    let error = replay.run(gone, limits::first).unwrap_err();
    assert_eq!(error, "the log cannot be read: gone");
}
