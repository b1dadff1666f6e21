//! `ratelimit replay`; its figures are held against an oracle in `tests/pure/replay.rs`.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

use crate::{Ran, contains, file, ratelimit, run, words};

/// Two callers; one sends three requests in a second.
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
    let candidates = json!([
        { "limit": "2/1s", "algorithm": "sliding-log", "touched": [1, 1], "refused": [1, 1] },
        { "limit": "1/1s", "algorithm": "sliding-log", "touched": [1, 1], "refused": [2, 2] },
    ]);
    let plain = by(plain.to_str().unwrap(), b"");
    let gzipped = by(gzipped.to_str().unwrap(), b"");
    let twice = by(twice.to_str().unwrap(), b"");
    for report in [&plain, &gzipped] {
        assert_eq!(report["candidates"], candidates);
    }
    for (report, requests) in [(&plain, 4), (&gzipped, 4), (&twice, 8)] {
        assert_eq!(report["requests"], requests);
        assert_eq!(report["callers"], 2);
        assert_eq!(report["smallest"][0]["verified"], true);
    }
    for input in [LOG.as_bytes(), &gzip] {
        let read = by("-", input);
        assert_eq!(read["candidates"], candidates);
        assert_eq!(read["smallest"][0]["permits"], json!([3, 3]));
        // It cannot be read again.
        assert_eq!(read["smallest"][0]["verified"], false);
    }
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
    for (column, callers) in [("user", 1), ("request", 4), ("9", 1)] {
        assert_eq!(with(&["--by", column])["callers"], callers, "{column}");
    }
    assert_eq!(with(&["--by", "user"])["without_caller"], 3);
    let shown = json!({ "caller": "192.0.2.1", "most": [3, 3] });
    assert_eq!(with(&["--show-keys"])["busiest"][0], shown);
    assert_ne!(with(&[])["busiest"][0]["caller"], "192.0.2.1");
    let all = with(&["--share", "100%"]);
    assert_eq!(all["smallest"][0]["permits"], json!([1, 1]));
    // The third request began before the second one ended, and all are of one second.
    let started = with(&["--columns", "duration=10", "--reorder", "0"]);
    assert_eq!(started["first_ms"], 1_791_640_536_000_i64);
    assert_eq!(started["late"], 0);
    assert_eq!(started["durations_subtracted"], true);
    let gcra = with(&["--algorithm", "gcra"]);
    assert_eq!(gcra["candidates"][0]["algorithm"], "gcra");
}

#[test]
fn too_many_unreadable_lines_are_no_good_answer() {
    let replay = |good: usize| -> Ran {
        let text = format!("{}broken\n", LOG.repeat(good));
        ratelimit(&words("replay - --limit 60/1m"), text.as_bytes())
    };
    let ran = replay(20);
    assert_eq!(ran.status, 1, "{}", ran.said);
    contains(&ran.output, "1 of 81 lines: unreadable.");
    contains(&ran.said, "line 81 is unreadable: broken");
    assert_eq!(replay(30).status, 0);
}

#[test]
fn the_demo_is_a_day_that_is_the_same_each_time() {
    let first = run("replay --demo --show-keys");
    let again = run("replay --demo --show-keys");
    assert_eq!(first.status, 0, "{}", first.said);
    assert_eq!(first.output, again.output);
    for part in [
        "limit   algorithm",
        "30/1m ",
        "(verified by runs of both)",
        "1ms apart",
    ] {
        contains(&first.output, part);
    }
    let readme = std::fs::read_to_string("README.md").unwrap();
    let (_, shown) = readme.split_once("$ ratelimit replay --demo\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    assert!(shown.contains("Smallest"), "{shown}");
    assert!(first.output.starts_with(shown), "{shown}\n{}", first.output);
    let json = object(&words("replay --demo --limit 5/1s"), b"");
    assert_eq!(json["unreadable"], 0);
    assert_eq!(json["candidates"].as_array().unwrap().len(), 1);
}

#[test]
fn a_log_alone_is_enough() {
    let path = file("alone.log", LOG.as_bytes());
    let ran = ratelimit(&["replay", path.to_str().unwrap()], b"");
    // Progress is for terminals.
    assert_eq!((ran.status, ran.said.as_str()), (0, ""));
    for limit in ["30/1m", "60/1m", "120/1m"] {
        contains(&ran.output, limit);
    }
    let assumed = "callers would have sent the same requests after a refusal";
    assert_eq!(ran.output.matches(assumed).count(), 1, "{}", ran.output);
}

#[test]
fn coarse_times_give_ranges_by_every_algorithm() {
    let lines = |second: u32| {
        format!("192.0.2.1 - - [10/Oct/2026:13:55:{second} +0000] \"GET / HTTP/1.1\" 200 5\n")
            .repeat(3)
    };
    let log: String = [10, 15, 20, 25].map(lines).concat();
    for algorithm in ["sliding-log", "fixed-window", "gcra"] {
        let arguments = ["replay", "-", "--limit", "4/10s", "--algorithm", algorithm];
        let json = object(&arguments, log.as_bytes());
        let [least, most] =
            [0, 1].map(|end| json["candidates"][0]["refused"][end].as_u64().unwrap());
        assert!(least < most, "{algorithm}: {json}");
        let busiest = &json["busiest"][0]["most"];
        assert_eq!(busiest, &json!([6, 9]), "{algorithm}: {json}");
        let page = ratelimit(&arguments, log.as_bytes()).output;
        contains(&page, "[$msec] in nginx");
        contains(&page, &format!("{least} to {most} (up to "));
        // Smaller ones are found beside a limit that touches nothing.
        let path = file("coarse.log", log.as_bytes());
        let line = format!(
            "replay '{}' --limit 4000/10s --algorithm {algorithm}",
            path.display()
        );
        let smallest = &object(&words(&line), b"")["smallest"][0];
        assert_eq!(smallest["verified"], true, "{algorithm}: {smallest}");
    }
}

/// What a proxy of 10.0.0.0/8 wrote counts, and nothing that a client wrote.
#[test]
fn clients_behind_proxies_are_distinguished_by_what_proxies_write() {
    let line = |peer: &str, forwarded: &str| {
        format!("{{\"ts\":1791640536.1,\"ip\":\"{peer}\",\"xff\":\"{forwarded}\"}}\n")
    };
    let log = [
        line("10.0.0.1", "192.0.2.1"),
        // It has invented what is to the left.
        line("10.0.0.1", "198.51.100.9, 192.0.2.1"),
        line("10.0.0.1:4711", "198.51.100.8,192.0.2.1, 10.0.0.2"),
        // No proxy of ours has written these.
        line("192.0.2.1", "198.51.100.7"),
        line("192.0.2.1", "-"),
        line("10.0.0.1", "2001:db8:0:1::1"),
        line("10.0.0.1", "2001:db8:0:2::2"),
        line("-", "198.51.100.7"),
    ];
    let log = log.concat();
    let by = |more| format!("replay - --limit 1/1m --show-keys --client-ip-from xff {more}");
    let json = object(&words(&by("--trusted 10.0.0.0/8")), log.as_bytes());
    let busiest = json!([
        { "caller": "192.0.2.1", "most": [5, 5] },
        { "caller": "2001:db8::/56", "most": [2, 2] },
    ]);
    assert_eq!(json["busiest"], busiest);
    assert_eq!(json["without_caller"], 1);
    for (more, part) in [
        ("--trusted 0.0.0.0/0", "trusts every address"),
        ("--trusted proxy", "cannot be a network"),
        ("", "--trusted <NETWORK>"),
        ("--trusted 10.0.0.0/8 --by ip", "cannot be used with"),
    ] {
        let ran = ratelimit(&words(&by(more)), log.as_bytes());
        assert_eq!(ran.status, 2, "{more}");
        contains(&ran.said, part);
    }
}

/// `tests/browser` opens it.
#[test]
fn a_report_is_one_file_that_needs_no_network() {
    let log = r#"{"ts":1791640536.1,"user":"<img src=//x onerror=alert(1)>&\""}
"#
    .repeat(3);
    let path = file("report.html", b"");
    let into = |path: &str| {
        let line = format!("replay - --by user --show-keys --limit 1/1s --html '{path}'");
        ratelimit(&words(&line), log.as_bytes())
    };
    let ran = into(path.to_str().unwrap());
    assert_eq!((ran.status, ran.said.as_str()), (0, ""));
    contains(&ran.output, "1/1s");
    let html = std::fs::read_to_string(&path).unwrap();
    for absent in ["://", "<img", "<script", "<link", "@import", "url("] {
        assert!(!html.contains(absent), "{absent}: {html}");
    }
    for part in [
        "default-src 'none'",
        "&lt;img src=//x onerror=alert(1)&gt;&amp;",
        "prefers-color-scheme:dark",
        "callers would have sent the same requests",
        "<td>2 (66.67 %)</td>",
    ] {
        contains(&html, part);
    }
    assert_eq!(html.matches("<svg ").count(), 2);
    let ran = into("/no/such/folder/x");
    assert_eq!(ran.status, 2);
    contains(&ran.said, "/no/such/folder/x: ");
}

/// The costs of rules and the other rules of a request count: the oracle is a replay of the file
/// with the limit that was found, and with one permit less.
#[test]
fn the_smallest_limits_of_rules_are_found() {
    let rules = |all: &str, dear: &str| {
        format!(
            "[rules.all]\nrate = \"{all}\"\nby = \"peer\"\n\
             [rules.dear]\nrate = \"{dear}\" # of five each\nby = \"peer\"\ncost = 5\n\
             [[on]]\nroute = \"/dear\"\nrules = [\"all\", \"dear\"]\n\
             [[on]]\nroute = \"/{{*rest}}\"\nrules = [\"all\"]\n"
        )
    };
    let line = |second: u32, caller: u32| {
        let path = if second.is_multiple_of(3) {
            "/dear"
        } else {
            "/x"
        };
        let time = 1_791_640_500 + second;
        format!("192.0.2.{caller} - - [{time}.{caller:03}] \"GET {path} HTTP/1.1\" 200 5\n")
    };
    // Caller n comes every n seconds.
    let lines = (0..300).flat_map(|second| {
        let callers = (1..41).filter(move |caller| second % caller == 0);
        callers.map(move |caller| line(second, caller))
    });
    let log = file("rules.log", lines.collect::<String>().as_bytes());
    let replay = |rules: &str, more: &[&str]| {
        let rules = file("smallest.toml", rules.as_bytes());
        let line = format!("replay '{}' --rules '{}'", log.display(), rules.display());
        object(&[&words(&line)[..], more].concat(), b"")
    };
    let found = replay(&rules("1000/1m", "1000/1m"), &["--share", "10%"]);
    let found = found["smallest"].as_array().unwrap();
    assert_eq!(found.len(), 2);
    for (place, found) in found.iter().enumerate() {
        let limit = found["limit"].as_str().unwrap();
        let (permits, _) = limit.split_once('/').unwrap();
        let less = permits.parse::<u64>().unwrap() - 1;
        assert!(less >= 4, "{found}");
        for (limit, expected) in [
            (limit, &found["touched"]),
            (&format!("{less}/1m"), &found["touched_by_one_less"]),
        ] {
            let rules = match place {
                0 => rules(limit, "1000/1m"),
                _ => rules("1000/1m", limit),
            };
            let row = &replay(&rules, &[])["rules"][place];
            assert_eq!(row["rule"], found["rule"]);
            assert_eq!(&row["callers"], expected, "{limit}: {row}");
        }
        // Fewer than a tenth of 40 callers.
        let touched = ["touched", "touched_by_one_less"].map(|it| found[it].as_u64().unwrap());
        assert!(touched[0] < 4 && touched[1] >= 4, "{found}");
        assert_eq!(found["callers"], 40);
    }
    let ran = run("replay - --rules limits.toml --share 1%");
    assert_eq!(ran.status, 2, "{}", ran.said);
}

/// Seven of 100 callers are not fewer than seven percent, though `0.07 * 100.0 > 7.0`.
#[test]
fn a_share_of_callers_is_exact() {
    let line = |caller: u32| {
        format!("192.0.2.{caller} - - [1791640500.{caller:03}] \"GET / HTTP/1.1\" 200 5\n")
    };
    let lines = (0..100).chain(0..7).map(line);
    let log = file("share.log", lines.collect::<String>().as_bytes());
    let rules = "[rules.all]\nrate = \"9/1m\"\nby = \"peer\"\n[otherwise]\nrules = [\"all\"]\n";
    let rules = file("share.toml", rules.as_bytes());
    let (log, rules) = (log.display(), rules.display());
    let line = format!("replay '{log}' --rules '{rules}' --share 7%");
    let found = &object(&words(&line), b"")["smallest"][0];
    assert_eq!(found["limit"], "2/1m", "{found}");
    assert_eq!(found["touched_by_one_less"], 7);
}
