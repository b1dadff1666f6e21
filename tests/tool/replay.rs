//! `ratelimit replay`; its figures are held against an oracle in `tests/pure/replay.rs`.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

use crate::{Ran, file, ratelimit};

/// Two callers, of which one asks for three things in a second.
const LOG: &str = r#"192.0.2.1 - - [10/Oct/2026:13:55:36.100 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl" 0.100
192.0.2.1 - - [10/Oct/2026:13:55:36.200 +0000] "GET /b HTTP/1.1" 200 5 "-" "curl" 0.100
192.0.2.1 - - [10/Oct/2026:13:55:36.900 +0000] "GET /c HTTP/1.1" 200 5 "-" "curl" 0.500
192.0.2.2 - ann [10/Oct/2026:13:55:37.000 +0000] "GET / HTTP/1.1" 200 5 "-" "curl" 0.001
"#;

fn object(arguments: &[&str], input: &[u8]) -> Value {
    let ran = ratelimit(&[arguments, &["--json"]].concat(), input);
    assert_eq!((ran.status, ran.said.as_str()), (0, ""));
    serde_json::from_str(&ran.output).unwrap()
}

#[test]
fn a_log_is_read_from_files_compressed_files_and_the_standard_input() {
    let plain = file("plain.log", LOG.as_bytes());
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(LOG.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    // As log rotation writes them, two in one.
    let twice = [&gzip[..], &gzip[..]].concat();
    let gzipped = file("access.log.gz", &gzip);
    let twice = file("twice.log.gz", &twice);
    let limit = ["--limit", "2/1s", "--limit", "1/1s"];
    let by = |path: &str, input: &[u8]| object(&[&["replay", path][..], &limit].concat(), input);
    let expected = json!([
        { "limit": "2/1s", "algorithm": "sliding-log", "touched": [1, 1], "refused": [1, 1] },
        { "limit": "1/1s", "algorithm": "sliding-log", "touched": [1, 1], "refused": [2, 2] },
    ]);
    let plain = by(plain.to_str().unwrap(), b"");
    let gzipped = by(gzipped.to_str().unwrap(), b"");
    let twice = by(twice.to_str().unwrap(), b"");
    for (report, requests) in [(&plain, 4), (&gzipped, 4), (&twice, 8)] {
        assert_eq!(report["requests"], requests);
        assert_eq!(report["callers"], 2);
        assert_eq!(report["smallest"][0]["verified"], true);
    }
    for input in [LOG.as_bytes(), &gzip] {
        let read = by("-", input);
        assert_eq!(read["candidates"], expected);
        assert_eq!(read["smallest"][0]["permits"], json!([3, 3]));
        // It cannot be read again.
        assert_eq!(read["smallest"][0]["verified"], false);
    }
    assert_eq!(plain["candidates"], expected);
    assert_eq!(gzipped["candidates"], expected);
    assert_eq!(plain["schema"], 1);
    assert_eq!(plain["first_ms"], 1_791_640_536_100_i64);
    assert_eq!(plain["resolution_us"], 100_000);
}

#[test]
fn settings_reach_the_replay() {
    let path = file("settings.log", LOG.as_bytes());
    let path = path.to_str().unwrap();
    let limit = ["replay", path, "--limit", "2/2s"];
    let with = |more: &[&str]| object(&[&limit[..], more].concat(), b"");
    let callers = |report: &Value| report["callers"].clone();
    assert_eq!(callers(&with(&["--by", "user"])), 1);
    assert_eq!(with(&["--by", "user"])["without_caller"], 3);
    assert_eq!(callers(&with(&["--by", "request"])), 4);
    assert_eq!(callers(&with(&["--by", "9"])), 1);
    let shown = with(&["--show-keys"]);
    assert_eq!(
        shown["busiest"][0],
        json!({ "caller": "192.0.2.1", "most": 3 })
    );
    let hidden = with(&[]);
    assert_ne!(hidden["busiest"][0]["caller"], "192.0.2.1");
    assert_eq!(
        with(&["--share", "100%"])["smallest"][0]["permits"],
        json!([1, 1])
    );
    // The third request began before the second one ended, and all are of one second.
    let started = with(&["--duration-field", "10", "--reorder", "0"]);
    assert_eq!(started["first_ms"], 1_791_640_536_000_i64);
    assert_eq!(
        (&started["late"], &started["durations_subtracted"]),
        (&json!(0), &json!(true))
    );
    let gcra = with(&["--algorithm", "gcra"]);
    assert_eq!(gcra["candidates"][0]["algorithm"], "gcra");
}

#[test]
fn too_many_unreadable_lines_are_no_good_answer() {
    let text = format!("{}broken\n", LOG.repeat(20));
    let path = file("broken.log", text.as_bytes());
    let arguments = ["replay", path.to_str().unwrap(), "--limit", "60/1m"];
    let Ran {
        output,
        said,
        status,
    } = ratelimit(&arguments, b"");
    assert_eq!(status, 1, "{said}");
    assert!(output.contains("1 of 81 lines: unreadable."), "{output}");
    assert!(said.contains("line 81 is unreadable: broken"), "{said}");
    let text = format!("{}broken\n", LOG.repeat(30));
    let path = file("fine.log", text.as_bytes());
    let arguments = ["replay", path.to_str().unwrap(), "--limit", "60/1m"];
    assert_eq!(ratelimit(&arguments, b"").status, 0);
}

#[test]
fn the_demo_is_a_day_that_is_the_same_each_time() {
    let first = ratelimit(&["replay", "--demo", "--show-keys"], b"");
    let again = ratelimit(&["replay", "--demo", "--show-keys"], b"");
    assert_eq!(first.status, 0, "{}", first.said);
    assert_eq!(first.output, again.output);
    for part in [
        "limit   algorithm",
        "30/1m ",
        "(verified by runs of both)",
        "1ms apart",
    ] {
        assert!(first.output.contains(part), "{part}: {}", first.output);
    }
    let readme = std::fs::read_to_string("README.md").unwrap();
    let (_, shown) = readme.split_once("$ ratelimit replay --demo\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    assert!(shown.contains("Smallest"), "{shown}");
    assert!(first.output.starts_with(shown), "{shown}\n{}", first.output);
    let json = object(&["replay", "--demo", "--limit", "5/1s"], b"");
    assert_eq!(json["unreadable"], 0);
    assert_eq!(json["candidates"].as_array().unwrap().len(), 1);
}
