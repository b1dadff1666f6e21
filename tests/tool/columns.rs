//! What cannot be read of a log is named, with the option that settles it, and no gate passes on
//! it.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::{Ran, assert_documented, contains, file, ratelimit, run, words};

fn path_of(name: &str, text: &str) -> String {
    let path = file(name, text.as_bytes());
    path.to_str().unwrap().to_owned()
}

/// So many lines, in each of which `{n}` is its number and `{t}` its second.
fn lines(count: u64, line: &str) -> String {
    let line = |number: u64| {
        let second = 1_791_640_536 + number / 10;
        let line = line.replace("{n}", &number.to_string());
        line.replace("{t}", &second.to_string()) + "\n"
    };
    (0..count).map(line).collect()
}

fn replay(log: &str, more: &str) -> Ran {
    let line = format!("replay - --limit 30/1m --json {more}");
    ratelimit(&words(&line), log.as_bytes())
}

fn object(log: &str, more: &str) -> Value {
    let ran = replay(log, more);
    assert_eq!((ran.status, ran.said.as_str()), (0, ""), "{log:.200}");
    serde_json::from_str(&ran.output).unwrap()
}

#[track_caller]
fn refused_with(log: &str, more: &str, parts: &str) {
    let ran = replay(log, more);
    assert_eq!((ran.status, ran.output.as_str()), (2, ""), "{}", ran.said);
    parts
        .split(" | ")
        .for_each(|part| contains(&ran.said, part));
}

/// Columns that do not hold what their names say in 95 % of the lines.
#[test]
fn a_column_that_is_something_else_is_an_error_that_says_what_stands_where() {
    // Names in place of addresses, as Apache looks them up.
    let named = |percent: u64| {
        let line = |host: &str| format!("{host} - - [{{t}}] \"GET / HTTP/1.1\" 200 5");
        let addresses = lines(200 - 2 * percent, &line("192.0.2.{n}"));
        lines(2 * percent, &line("crawl-{n}.example")) + &addresses
    };
    let said = "ip=1, which holds an address in 188 of 200 lines | \"crawl-0.example\"";
    refused_with(&named(6), "", said);
    let callers = |percent, more| object(&named(percent), more)["callers"].clone();
    assert_eq!(callers(5, ""), 200);
    assert_eq!(callers(100, "--by 1"), 200);
    // A duration whose name is `time`, a day alone, a time of day, a status.
    for (time, shown) in [
        ("0.029", "0.029"),
        ("\"2026-11-26\"", "2026-11-26"),
        ("\"09:59:56\"", "09:59:56"),
        ("200", "200"),
        ("20261126095956", "20261126095956"),
    ] {
        let line = r#"{"time":TIME,"ip":"192.0.2.{n}","began":{t}.5}"#;
        let log = lines(30, &line.replace("TIME", time));
        let found = "time=time, which holds a time with its day in 0 of 30";
        refused_with(&log, "", &format!("{found} | {shown}"));
        refused_with(&log, "", "`--columns ip=ip,time=began");
        assert_eq!(object(&log, "--columns time=began")["requests"], 30);
    }
    let log = "time,ip,status\n1791640536,192.0.2.1,OK\n";
    let said = "status=status, which holds a status in 0 of 1 lines | \"OK\"";
    refused_with(log, "", said);
    assert_eq!(object(log, "--columns status=-")["requests"], 1);
    let number = r#"192.0.2.1 - - [{t}] 0.005 "GET / HTTP/1.1" 200 5"#;
    for (line, more, said) in [
        (
            r#"{"ts":{t},"ip":"-"}"#,
            "",
            "ip=ip, which says nothing in 30 of 30 lines; no column holds an address",
        ),
        (
            r#"192.0.2.1 - - [{t}] "GET / HTTP/1.1" 200 5"#,
            "--by user",
            "no request has a caller",
        ),
        // A number in the place of the request.
        (
            number,
            "",
            "request=5, which holds a request line in 0 of 30 | request=6",
        ),
    ] {
        refused_with(&lines(30, line), more, said);
    }
    let log = lines(30, number);
    assert_eq!(object(&log, "--columns request=6,status=7")["invalid"], 0);
}

#[test]
fn a_log_without_addresses_or_times_is_an_error() {
    let no_time = "no column holds a time with its day";
    for (line, said) in [
        (
            "GET /orders 200 5.123 ms - 10",
            "no column \"time\" | no column holds an address",
        ),
        (
            r#"INFO:     192.0.2.{n}:54321 - "GET / HTTP/1.1" 200 OK"#,
            no_time,
        ),
        ("192.0.2.{n} 09:59:56 POST /orders 200", no_time),
    ] {
        refused_with(&lines(30, line), "", said);
    }
    // What is hostile stays harmless.
    let log = lines(30, "\u{1b}[2J - - [{t}] \"GET / HTTP/1.1\" 200 5");
    let ran = replay(&log, "");
    assert_eq!(ran.status, 2);
    assert!(!ran.said.contains('\u{1b}'), "{}", ran.said);
}

/// Servers write a dash or raw bytes where a client sent no request.
#[test]
fn lines_that_are_no_requests_are_left_out() {
    let mut log = lines(100, r#"192.0.2.{n} - - [{t}] "GET / HTTP/1.1" 200 5"#);
    for line in [
        r#""-" 408"#,
        r#""\x16\x03\x01\x02\x00\x01" 400"#,
        r#""\x16\x03 \x01 HTTP" 400"#,
        r#""" 400"#,
        r#""hello" 400"#,
        r#""get / HTTP/1.1" 400"#,
        r#""GET  HTTP/1.1" 400"#,
    ] {
        writeln!(log, "198.51.100.7 - - [1791640540] {line} 0").unwrap();
    }
    let report = object(&log, "");
    let figures = ["requests", "invalid", "callers", "unreadable"].map(|it| &report[it]);
    assert_eq!(figures, [100, 7, 100, 0]);
    let page = ratelimit(&["replay", "-"], log.as_bytes()).output;
    contains(&page, "7 of 107 lines: no valid requests, and left out.");
    let rules = path_of(
        "no_requests.toml",
        "[rules.all]\nrate = \"1/1h\"\nby = \"peer\"\n[otherwise]\nrules = [\"all\"]\n",
    );
    let log = path_of("no_requests.log", &log);
    let ran = run(&format!("replay '{log}' --rules '{rules}'"));
    contains(&ran.said, "7 of 107 lines: no valid requests, and left out");
    contains(&ran.output, "0 of 100 requests refused");
}

/// Caddy writes header fields as lists, and each element is a line of the field.
#[test]
fn fields_that_are_lists_are_their_lines() {
    let log = |forwarded: Value| {
        let headers = json!({ "X-Forwarded-For": forwarded });
        let request = json!({ "remote_ip": "10.0.0.1", "uri": "/", "headers": headers });
        let line = json!({ "ts": "{t}", "number": "{n}", "request": request }).to_string();
        lines(60, &line.replace("\"{t}\"", "{t}"))
    };
    let one = log(json!(["192.0.2.{n}"]));
    let two = log(json!(["198.51.100.{n}", "192.0.2.{n}"]));
    let column = "request.headers.X-Forwarded-For";
    let from = format!("--client-ip-from {column} --trusted 10.0.0.0/8");
    for log in [&one, &two] {
        let report = object(log, &format!("{from} --show-keys"));
        assert_eq!(report["callers"], 60);
        let caller = report["busiest"][0]["caller"].as_str().unwrap();
        assert!(caller.starts_with("192.0.2."), "{caller}");
        assert_eq!(report["columns"]["forwarded"], column);
    }
    assert_eq!(object(&one, &format!("--by {column}"))["callers"], 60);
    assert_eq!(object(&one, "--columns ip=request.remote_ip")["callers"], 1);
    // Bare, it is not known which is meant; a column without addresses is no answer.
    let bare = format!("`--client-ip-from {column} --trusted NETWORK`");
    refused_with(&one, "", &bare);
    let wrong = from.replace(column, "request.uri");
    refused_with(
        &one,
        &wrong,
        "forwarded=request.uri, which holds addresses in 0 of 60",
    );
}

#[test]
fn durations_have_units_and_exponents() {
    // Each began half a second before it was written.
    for (duration, more) in [
        ("0.5", "duration=took"),
        ("5e-1", "duration=took"),
        ("5.0E2", "duration=took:ms"),
        ("500", "duration=took:ms"),
        ("500000", "duration=took:us"),
        ("500000000", "duration=took:ns"),
        ("\"500ms\"", "duration=took"),
        ("\"0.5s\"", "duration=took:ms"),
        ("\"500000\u{b5}s\"", "duration=took"),
        ("[\"500ms\"]", "duration=took"),
    ] {
        let log = format!("{{\"ts\":1791640536.75,\"ip\":\"192.0.2.1\",\"took\":{duration}}}\n");
        let report = object(&log, &format!("--columns {more}"));
        assert_eq!(report["first_ms"], 1_791_640_536_250_u64, "{duration}");
        assert_eq!(report["columns"]["duration"], "took");
    }
    let tiny = "{\"ts\":1791640536.75,\"ip\":\"192.0.2.1\",\"took\":0.000004}\n";
    assert_eq!(
        object(tiny, "--columns duration=took")["first_ms"],
        1_791_640_536_749_u64
    );
    let log = "{\"ts\":1791640536.75,\"ip\":\"192.0.2.1\",\"took\":\"long\"}\n";
    refused_with(
        log,
        "--columns duration=took",
        "duration=took, which holds a duration in 0",
    );
    // One that was named and says nothing is no column that the log may lack.
    refused_with(
        &log.replace("long", "-"),
        "--columns duration=took",
        "duration=took, which says nothing in 1 of 1 lines",
    );
}

/// One rule of each kind: what it asks for, the column that shows it, and the option.
const NEEDS: &str = r#"
    host = "api.example" | by = "peer" | hosts | --columns host=w
    method = "POST" | by = "peer" | methods | --columns method=w
    route = "POST /" | by = "peer" | methods | --columns method=w
    route = "/w" | by = "peer" | paths | --columns path=w
    grpc = "shop.v1.Orders" | by = "peer" | "content-type" | --field content-type=w
    route = "/" | by = "header:x-app" | "x-app" | --field x-app=w
    route = "/" | by = "user or peer" | "user" | --field user=w
    route = "/" | by = "client" | "x-forwarded-for" | --field x-forwarded-for=w
    route = "/" | charge-if = "failure"; by = "peer" | status | --columns status=w
"#;

#[test]
fn no_gate_passes_on_a_log_that_lacks_what_rules_ask_for() {
    for (at, row) in NEEDS.trim().lines().enumerate() {
        let row: Vec<_> = row.trim().split(" | ").collect();
        let [on, rule, lacks, option] = row[..] else {
            panic!("{row:?}");
        };
        let rule = rule.replace("; ", "\n");
        let rules = |rate: &str| {
            format!(
                "[keys.client]\nfrom = \"client-ip\"\ntrusted = [\"10.0.0.0/8\"]\n[rules.one]\n\
                 rate = \"{rate}\"\n{rule}\n[rules.other]\nrate = \"900/1h\"\nby = \"peer\"\n\
                 [[on]]\n{on}\nrules = [\"one\"]\n[otherwise]\nrules = [\"other\"]\n"
            )
        };
        let [old, new] = [("old", "900/1h"), ("new", "3/1h")]
            .map(|(name, rate)| path_of(&format!("{name}{at}.toml"), &rules(rate)));
        let value = match lacks {
            "hosts" => "api.example",
            "methods" => "POST",
            "paths" => "/w",
            "status" => "500",
            "\"content-type\"" => "application/grpc",
            _ => "192.0.2.9",
        };
        let (method, path) = match lacks {
            "\"content-type\"" => ("POST", "/shop.v1.Orders/Get"),
            _ => ("GET", "/"),
        };
        let mut line = json!({ "ts": "{t}", "ip": "10.0.0.9", "w": value });
        for (name, text, what) in [
            ("method", method, "methods"),
            ("path", path, "paths"),
            ("status", "200", "status"),
        ] {
            if lacks != what {
                line[name] = text.into();
            }
        }
        let log = lines(40, &line.to_string().replace("\"{t}\"", "{t}"));
        let log = path_of(&format!("needs{at}.log"), &log);
        let diff = format!("diff '{old}' '{new}' --log '{log}' --json");
        let gate = format!("{diff} --fail-on-newly-refused --columns ip=ip");
        let lacking = run(&gate);
        assert_eq!(lacking.status, 1, "{lacks}: {}", lacking.said);
        contains(&lacking.said, &format!("the log has no {lacks}"));
        contains(&lacking.said, option.split('=').next().unwrap());
        let replayed = run(&format!("replay '{log}' --rules '{new}' --columns ip=ip"));
        assert_eq!(replayed.status, 1, "{lacks}: {}", replayed.said);
        // With the column, the gate says what is so.
        let with = run(&format!("{diff} {option} --columns ip=ip"));
        assert_eq!(with.status, 0, "{lacks}: {}", with.said);
        let object: Value = serde_json::from_str(&with.output).unwrap();
        assert_eq!(
            object["log"]["newly_refused"][0]["requests"], 37,
            "{lacks}: {object}"
        );
        let with = run(&format!("{gate} {option}"));
        assert_eq!(with.status, 1, "{lacks}: {}", with.said);
        contains(&with.said, "the new file refuses callers");
    }
}

#[test]
fn a_gate_needs_requests_callers_and_fine_times() {
    let rules = |rate: &str| {
        format!("[rules.all]\nrate = \"{rate}\"\nby = \"peer\"\n[otherwise]\nrules = [\"all\"]\n")
    };
    let old = path_of("gate_old.toml", &rules("900/5s"));
    let new = path_of("gate_new.toml", &rules("901/5s"));
    let gate = |new: &str, log: &str| {
        let log = path_of("gate.log", log);
        let diff = format!("diff '{old}' '{new}' --log '{log}'");
        run(&format!("{diff} --fail-on-newly-refused"))
    };
    let line = |ip: &str, time: &str| format!("{ip} - - [{time}] \"GET / HTTP/1.1\" 200 5\n");
    let fine = line("192.0.2.1", "1791640536.125");
    let ran = gate(&new, &fine);
    assert_eq!((ran.status, ran.said.as_str()), (0, ""));
    contains(&ran.output, "\nColumns: ip=1,time=4,request=5");
    let coarse = line("192.0.2.1", "1791640536");
    let named = fine.repeat(96) + &line("host.example", "1791640536.125").repeat(4);
    for (new, log, status, said) in [
        (&new, "", 1, "the log has no requests"),
        (&new, &*coarse, 1, "the figures are approximate"),
        (&old, &*coarse, 0, "approximate"),
        (
            &new,
            &fine
                .replace("192.0.2.1", "-")
                .repeat(2)
                .replacen('-', "192.0.2.1", 1),
            1,
            "1 of 2 requests",
        ),
        // A name is no address that a rule could count by.
        (&new, &*named, 1, "4 of 100 requests have no address"),
    ] {
        let ran = gate(new, log);
        assert_eq!(ran.status, status, "{said}: {}", ran.said);
        contains(&ran.said, said);
    }
}

#[test]
fn columns_are_said_before_the_first_figure_and_in_every_output() {
    let line = r#"{"ts":{t},"x<y":"192.0.2.{n}","request":"GET / HTTP/2.0"}"#;
    let log = lines(30, line);
    let html = file("columns.html", b"");
    let line = format!("replay - --columns ip=x<y --html '{}'", html.display());
    let ran = ratelimit(&words(&line), log.as_bytes());
    let expected = "Columns: ip=x<y,time=ts,request=request\n30 requests of 30 callers\n";
    assert!(ran.output.starts_with(expected), "{}", ran.output);
    let page = std::fs::read_to_string(html).unwrap();
    contains(
        &page,
        ">\nColumns: ip=x&lt;y,time=ts,request=request<p>30 requests",
    );
    let columns = &object(&log, "--columns ip=x<y")["columns"];
    assert_eq!(
        columns,
        &json!({ "ip": "x<y", "time": "ts", "request": "request" })
    );
    assert_documented(columns);
}
