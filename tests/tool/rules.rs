//! `ratelimit explain`, `diff` and `replay --rules`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::{self, File},
    io::Write as _,
    process::Command,
    thread,
};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Ran, assert_documented, check::FILES, contains, file, run};
use kit::random::Random;

pub(crate) fn path_of(name: &str, text: &str) -> String {
    let path = file(name, text.as_bytes());
    path.to_str().unwrap().to_owned()
}

pub(crate) fn object(line: &str, status: i32) -> Value {
    let ran = run(&format!("{line} --json"));
    assert_eq!(ran.status, status, "{line}: {}", ran.said);
    let object = serde_json::from_str(&ran.output).unwrap();
    if !line.starts_with("replay") || line.contains("--rules") {
        assert_documented(&object);
    }
    object
}

/// The command's status, the rules that a request meets with limit and cost, and the limiters.
pub(crate) fn met(line: &str) -> Value {
    let ran = run(&format!("explain {line} --json"));
    let object: Value = serde_json::from_str(&ran.output).expect(&ran.said);
    assert_documented(&object);
    let rules = object["rules"].as_array().unwrap().iter();
    let rules = rules.map(|it| json!([it["rule"], it["limit"], it["cost"]]));
    let limiters = object["limiters"].as_array().unwrap().iter();
    let limiters = limiters.map(|it| it.as_str().unwrap().strip_prefix("ratelimit:{"));
    let (rules, limiters): (Vec<_>, Vec<_>) = (rules.collect(), limiters.collect());
    json!([ran.status, object["result"], rules, limiters])
}

#[test]
fn every_file_of_rules_is_explained() {
    for path in FILES {
        let ran = run(&format!("explain {path} --path /"));
        assert!(matches!(ran.status, 0 | 1), "{}{}", ran.output, ran.said);
        assert!(!ran.output.is_empty());
    }
}

/// A request to one of the examples, see `explained.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explained {
    line: String,
    meets: String,
}

#[test]
fn a_request_meets_the_rules_of_the_examples() {
    let text = include_str!("explained.toml");
    let mut rows: BTreeMap<String, Vec<Explained>> = toml::from_str(text).unwrap();
    for Explained { line, meets } in rows.remove("request").unwrap() {
        let expected: Value = serde_json::from_str(&meets).unwrap();
        assert_eq!(met(&format!("examples/{line}")), expected, "{line}");
    }
    let ran = run("explain examples/service.toml --method POST --path /login");
    contains(&ran.output, "\nlimiter ratelimit:{");
    contains(&ran.said, "the cost \"rows\", which is 1");
    // A digest stays one.
    let data = "examples/server/limits.toml --path /data --header 'x-api-key: abc'";
    let key = met(data);
    assert!(key[3][0].as_str().unwrap().starts_with("k1."), "{key}");
    assert_eq!(key[0], 0);
}

#[test]
fn lists_shadows_and_conditions_are_explained() {
    let text = r#"
        [rules.api]
        rate = "1/1s"
        by = "peer"
        shadow = true
        [rules.beta]
        rate = "9/1s"
        by = "peer"
        [[on]]
        when = "beta"
        rules = ["beta"]
        [otherwise]
        rules = ["api"]
        [[deny]]
        by = "peer"
        values = ["192.0.2.66"]
        [[allow]]
        by = "peer"
        values = ["192.0.2.77"]
    "#;
    let rules = path_of("lists.toml", text);
    let line = |more: &str| format!("explain '{rules}' --path / {more}");
    let explain = |more, status| object(&line(more), status);
    assert_eq!(explain("", 0)["rules"][0]["shadow"], true);
    let beta = explain("--when beta=true", 0);
    assert_eq!(beta["rules"][0]["rule"], "beta");
    let denied = explain("--ip 192.0.2.66", 1);
    assert_eq!(denied["result"], "denied_by_list");
    let allowed = explain("--ip 192.0.2.77", 0);
    assert_eq!(allowed["result"], "allowed_by_list");
    // Where a list decides, no limiter counts.
    for decided in [denied, allowed] {
        assert_eq!(decided["limiters"], json!([]), "{decided}");
    }
    let strict = run(&line("--strict"));
    assert_eq!(strict.status, 2, "{}", strict.output);
    let fixed = run(&line("--strict --when beta=false"));
    assert_eq!((fixed.status, fixed.said.as_str()), (0, ""));
}

/// Rules of which one counts in our own format alone, and another in Redisson's: the error is that
/// of the format that a service has if it names none.
#[test]
fn rules_of_both_formats_are_refused_as_in_our_own() {
    let text = r#"
        [rules.several]
        rate = "6/1m and 10/1h"
        by = "peer"
        [rules.slots]
        rate = "9/1m"
        by = "peer"
        slots = 100
        [otherwise]
        rules = ["several", "slots"]
    "#;
    let rules = path_of("both-formats.toml", text);
    let ran = run(&format!("explain '{rules}' --path /"));
    assert_eq!(ran.status, 2, "{}", ran.output);
    contains(&ran.said, "rules.slots: ");
}

/// A generated request: its time in ms, its caller, and whether it is a login.
pub(crate) type Sent = (u64, u64, bool);

pub(crate) const START: u64 = 1_791_640_536_000;

fn traffic(seed: u64) -> Vec<Sent> {
    let mut random = Random(seed);
    let mut time = START;
    let mut sent = Vec::new();
    while sent.len() < 2000 {
        time += random.below(200);
        let most = 1 + random.below(40);
        let caller = random.below(most);
        for _ in 0..1 + random.below(20) / 16 * random.below(12) {
            sent.push((time, caller, random.one_in(4)));
        }
    }
    sent
}

pub(crate) fn combined(sent: &[Sent]) -> String {
    let line = |(time, caller, login): &Sent| {
        let (seconds, millis) = (time / 1000, time % 1000);
        let request = if *login { "POST /login" } else { "GET /x" };
        format!("10.0.0.{caller} - - [{seconds}.{millis:03}] \"{request} HTTP/1.1\" 200 5\n")
    };
    sent.iter().map(line).collect()
}

fn by_path(login: &str, others: &str) -> String {
    format!(
        "[rules.login]\nrate = \"{login}\"\nby = \"peer\"\n[rules.api]\nrate = \"{others}\"\n\
         by = \"peer\"\n[[on]]\nroute = \"POST /login\"\nrules = [\"login\"]\n[otherwise]\n\
         rules = [\"api\"]\n"
    )
}

/// By caller, the requests that a sliding log refuses: each grant is kept and counted.
fn refused(sent: &[Sent], login: (usize, u64), others: (usize, u64)) -> BTreeMap<u64, u64> {
    let mut grants = BTreeMap::<(u64, bool), Vec<u64>>::new();
    let mut refused = BTreeMap::new();
    for (time, caller, is_login) in sent {
        let (permits, interval) = if *is_login { login } else { others };
        let grants = grants.entry((*caller, *is_login)).or_default();
        let live = grants.iter().filter(|grant| **grant + interval > *time);
        if live.count() < permits {
            grants.push(*time);
        } else {
            *refused.entry(*caller).or_default() += 1;
        }
    }
    refused
}

#[test]
fn a_diff_with_a_log_agrees_with_an_oracle() {
    for seed in 0..6 {
        let sent = traffic(seed);
        let log = path_of(&format!("diff{seed}.log"), &combined(&sent));
        let old = path_of("old.toml", &by_path("4/10s", "30/10s"));
        let new = path_of("new.toml", &by_path("3/20s", "60/30s"));
        let diff = format!("diff '{old}' '{new}' --log '{log}' --show-keys");
        let object = object(&diff, 0);
        let before = refused(&sent, (4, 10_000), (30, 10_000));
        let after = refused(&sent, (3, 20_000), (60, 30_000));
        let sums = [before.values().sum::<u64>(), after.values().sum()];
        assert_eq!(object["log"]["refused"], json!(sums), "seed {seed}");
        let mut callers = BTreeMap::new();
        for kind in ["newly_refused", "newly_let_through"] {
            for it in object["log"][kind].as_array().unwrap() {
                let caller = it["caller"].as_str().unwrap().to_owned();
                callers.insert(caller, (kind, &it["requests"]));
            }
        }
        let all: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        for caller in all {
            let of = |refused: &BTreeMap<u64, u64>| refused.get(caller).copied().unwrap_or(0);
            let (kind, requests) = match [of(&before), of(&after)] {
                [0, new] => ("newly_refused", new),
                [old, 0] => ("newly_let_through", old),
                _ => continue,
            };
            let shown = callers.remove(&format!("10.0.0.{caller}"));
            let expected = Some((kind, &json!(requests)));
            assert_eq!(shown, expected, "seed {seed}: {caller}");
        }
        assert!(callers.is_empty(), "seed {seed}: {callers:?}");
    }
}

#[test]
fn a_diff_names_what_changed_and_fails_where_it_should() {
    let old = path_of("before.toml", &by_path("4/10s", "60/1m"));
    let text = by_path("1/10s", "60/60s").replace("api", "all");
    let new = path_of("after.toml", &text);
    let ran = run(&format!("diff '{old}' '{new}'"));
    let expected = "item         field  old    new\n\
                    otherwise    rules  [api]  [all]\n\
                    rules.all    by     -      peer\n\
                    rules.all    rate   -      60/1m\n\
                    rules.api    by     peer   -\n\
                    rules.api    rate   60/1m  -\n\
                    rules.login  rate   4/10s  1/10s\n";
    assert_eq!(ran.status, 0, "{}", ran.said);
    assert_eq!(ran.output, expected);
    // 60/60s is 60/1m.
    let same = path_of("same.toml", &by_path("4/10s", "60/60s"));
    let ran = run(&format!("diff '{old}' '{same}'"));
    assert_eq!(ran.output, "The files mean the same.\n");
    let sent = [(START, 1, true), (START, 2, true), (START + 7, 1, true)];
    let log = path_of("refused.log", &combined(&sent));
    let fails = format!("--log '{log}' --fail-on-newly-refused");
    let ran = run(&format!("diff '{old}' '{new}' {fails}"));
    assert_eq!(ran.status, 1, "{}", ran.said);
    contains(&ran.output, "Refused of 3 requests: 0 -> 1.");
    contains(&ran.output, "Callers newly refused: 1\n");
    assert!(!ran.output.contains("10.0.0.1"), "{}", ran.output);
    let back = run(&format!("diff '{new}' '{old}' {fails}"));
    assert_eq!(back.status, 0, "{}", back.said);
    contains(&back.output, "Callers newly let through: 1\n");
}

#[test]
fn rules_refuse_as_plain_limits_do() {
    for (seed, algorithm) in (0..).zip(["sliding-log", "fixed-window", "gcra"]) {
        let text = combined(&traffic(seed));
        let log = path_of(&format!("{algorithm}.log"), &text);
        let rules = format!(
            "[rules.all]\nrate = \"20/10s\"\nby = \"peer\"\nalgorithm = \"{algorithm}\"\n\
             [otherwise]\nrules = [\"all\"]\n"
        );
        let rules = path_of(&format!("{algorithm}.toml"), &rules);
        let by_rules = object(&format!("replay '{log}' --rules '{rules}'"), 0);
        let limit = format!("--limit 20/10s --algorithm {algorithm}");
        let by_limit = object(&format!("replay '{log}' {limit}"), 0);
        let (rule, candidate) = (&by_rules["rules"][0], &by_limit["candidates"][0]);
        for (found, expected) in [("refused", "refused"), ("callers", "touched")] {
            let range = json!([rule[found], rule[found]]);
            assert_eq!(range, candidate[expected], "{algorithm}");
        }
        assert_eq!(by_rules["requests"], by_limit["requests"]);
        assert!(rule["refused"].as_u64() > Some(0) && rule["approximate"] == false);
    }
}

/// Rules of all kinds, on requests that the log formats below have.
const KINDS: &str = r#"
    [rules.login]
    rate = "1/1m"
    by = "peer"
    charge-if = "failure"
    [rules.api]
    tier-by = "plan"
    tiers = { free = "1/1m", paid = "9/1m" }
    by = "peer"
    [rules.trial]
    rate = "1/1m"
    by = "peer"
    shadow = true
    [[on]]
    route = "POST /login"
    rules = ["login"]
    [[on]]
    route = "/trial"
    rules = ["trial"]
    [otherwise]
    rules = ["api"]
    [[deny]]
    by = "peer"
    values = ["10.0.0.66"]
"#;

/// By request: address, method, path and status.
const REQUESTS: [(&str, &str, &str, u16); 11] = [
    ("10.0.0.1", "POST", "/login", 200),
    ("10.0.0.1", "POST", "/login", 200),
    ("10.0.0.1", "POST", "/login", 401),
    ("10.0.0.1", "POST", "/login", 200),
    ("10.0.0.1", "GET", "/x", 200),
    ("10.0.0.1", "GET", "/x?a=b", 200),
    ("10.0.0.2", "GET", "/x", 500),
    ("10.0.0.2", "GET", "/trial", 200),
    ("10.0.0.2", "GET", "/trial", 200),
    ("10.0.0.2", "GET", "/trial", 200),
    ("10.0.0.66", "GET", "/x", 403),
];

fn in_format(format: &str) -> String {
    let mut text = match format {
        "csv" => "ts,status,path,method,client_ip\n".to_owned(),
        _ => String::new(),
    };
    for (number, (ip, method, path, status)) in REQUESTS.iter().enumerate() {
        let time = format!("{}.{number:03}", START / 1000);
        let request = format!("{method} {path} HTTP/1.1");
        let line = match format {
            "csv" => format!("{time},{status},{path},{method},{ip}"),
            "nginx" => {
                json!({ "time": time, "remote_addr": ip, "request": request, "status": status })
                    .to_string()
            }
            "caddy" => {
                let request = json!({ "remote_ip": ip, "method": method, "uri": path });
                json!({ "ts": time, "status": status, "request": request }).to_string()
            }
            _ => format!("{ip} - - [{time}] \"{request}\" {status} 5 \"-\" \"curl\""),
        };
        writeln!(text, "{line}").unwrap();
    }
    text
}

#[test]
fn rules_of_all_kinds_count_in_every_format() {
    let rules = path_of("kinds.toml", KINDS);
    let row = |name, limit, requests, refused, shadow, callers| {
        json!({
            "rule": name, "limit": limit, "requests": requests, "refused": refused,
            "shadow_refused": shadow, "without_key": 0, "callers": callers, "approximate": false,
        })
    };
    for format in ["combined", "csv", "nginx", "caddy"] {
        let log = path_of(&format!("{format}.log"), &in_format(format));
        let replay = format!("replay '{log}' --rules '{rules}'");
        let free = object(&replay, 0);
        let expected = json!([
            row("login", "1/1m", 4, 1, 0, 1),
            row("api.free", "1/1m", 3, 1, 0, 1),
            row("trial", "1/1m", 3, 0, 2, 1),
        ]);
        assert_eq!(free["rules"], expected, "{format}");
        assert_eq!(free["requests"], 11, "{format}");
        assert_eq!(free["refused"], 3, "{format}");
        let paid = object(&format!("{replay} --tier plan=paid"), 0);
        let expected = row("api.paid", "9/1m", 3, 0, 0, 0);
        assert_eq!(paid["rules"][1], expected, "{format}");
    }
}

#[test]
fn requests_that_would_wait_are_counted_and_take_nothing() {
    let text = "[rules.all]\nrate = \"1/1s\"\nby = \"peer\"\nwait = \"2500ms\"\nqueue = 9\n\
                [otherwise]\nrules = [\"all\"]\n";
    let rules = path_of("wait.toml", text);
    // Of three at once, two would wait. A second later one passes, as they have taken nothing.
    let mut sent = vec![(START, 1, false); 3];
    sent.push((START + 1000, 1, false));
    let log = path_of("wait.log", &combined(&sent));
    let replay = format!("replay '{log}' --rules '{rules}'");
    let replayed = object(&replay, 0);
    assert_eq!(replayed["rules"][0]["requests"], 4, "{replayed}");
    assert_eq!(replayed["refused"], 0, "{replayed}");
    assert_eq!(replayed["waiting"], 2, "{replayed}");
    contains(&run(&replay).output, "\n2 would wait for permits");
    // A lower limit would refuse none either: all others would wait, as no run fills a queue.
    let searched = run(&format!("{replay} --share 1%"));
    contains(&searched.said, "no smallest limit of \"all\"");
    assert!(!searched.output.contains("smallest"), "{}", searched.output);
}

#[test]
fn a_diff_groups_addresses_as_rules_do() {
    let old = path_of("loose.toml", &by_path("9/1h", "9/1h"));
    let new = path_of("strict.toml", &by_path("9/1h", "1/1h"));
    let text = "time,ip,request\n1791640536,2001:db8::1,GET / HTTP/2.0\n\
                1791640536,[2001:db8::2]:80,GET / HTTP/2.0\n\
                1791640536,::ffff:192.0.2.1,GET / HTTP/2.0\n\
                1791640536,192.0.2.1:443,GET / HTTP/2.0\n";
    let log = path_of("grouped.csv", text);
    let diff = object(
        &format!("diff '{old}' '{new}' --log '{log}' --show-keys"),
        0,
    );
    let shown = |caller: &str| json!({ "caller": caller, "requests": 1 });
    let both = json!([shown("192.0.2.1"), shown("2001:db8::/56")]);
    assert_eq!(diff["log"]["newly_refused"], both);
}

#[test]
fn fields_reach_rules_and_what_a_log_lacks_is_said() {
    let text = "[keys.app]\nfrom = \"header:x-app\"\n[rules.all]\nrate = \"1/1m\"\n\
                by = \"user or app\"\n[otherwise]\nrules = [\"all\"]\n";
    let rules = path_of("fields.toml", text);
    let text = "time,app,login\n1791640536,a,\n1791640536,a,ann\n1791640536,a,\n";
    let log = path_of("fields.csv", text);
    let replay = format!("replay '{log}' --rules '{rules}'");
    let ran = run(&format!("{replay} --field x-app=app --field user=login"));
    assert_eq!(ran.status, 0, "{}", ran.said);
    contains(&ran.output, "\n1 of 3 requests refused.\n");
    for said in [
        "no addresses",
        "each request counts as GET",
        "one to /",
        "counts as 200",
    ] {
        contains(&ran.said, said);
    }
    let missing = run(&format!("{replay} --field x-app=apps"));
    assert_eq!(missing.status, 2);
    contains(&missing.said, "no column \"apps\"");
    // Whole seconds are too coarse for a second.
    let short = path_of("short.toml", &by_path("1/1s", "1/1s"));
    let text = "10.0.0.1 - - [1791640536] \"GET / HTTP/1.1\" 200 5\n";
    let log = path_of("whole.log", text);
    let said = run(&format!("diff '{short}' '{short}' --log '{log}'")).said;
    assert_eq!(said.matches("the figures of \"api\"").count(), 1, "{said}");
    let said = run(&format!("replay '{log}' --rules '{short}'")).said;
    contains(&said, "the figures of \"api\" are approximate");
}

#[test]
fn nothing_hostile_reaches_the_terminal() {
    let rules = by_path("1/1m", "1/1m");
    let old = path_of("hostile.toml", &rules);
    let other = rules.replace("POST /login", "POST /\\u202e\\u001b[2Jlogin");
    let new = path_of("hostile2.toml", &other);
    let mut log = String::new();
    for _ in 0..3 {
        log.push_str("\u{1b}[2J\u{202e} - - [1791640536.000] \"GET /\u{1b}]0;x HTTP/1.1\" 200 5\n");
        log.push_str("10.0.0.1 - \u{1b}c [1791640536.000] \"GET / HTTP/1.1\" \u{1b}7 5\n");
    }
    log.push_str("\u{1b}[31mbroken\n");
    let log = path_of("hostile.log", &log);
    let diff = format!("diff '{old}' '{new}' --log '{log}' --show-keys --by user");
    for line in [
        format!("replay '{log}' --rules '{old}'"),
        format!("{diff} --json"),
        diff,
        format!("explain '{new}' --path /\u{1b}[2J"),
    ] {
        let Ran { output, said, .. } = run(&line);
        let is_harmless = |text: &str| {
            text.chars()
                .all(|it| it == '\n' || !(it.is_control() || it == '\u{202e}'))
        };
        assert!(is_harmless(&output), "{line:?}: {output:?}");
        assert!(is_harmless(&said), "{line:?}: {said:?}");
    }
}

/// What is written to a log while it is read counts in none of its readings.
#[cfg(unix)]
#[test]
fn a_log_that_grows_is_read_to_the_same_line_each_time() {
    let line = |minute: u32| {
        format!("1.2.3.4 - - [01/Jan/2026:00:{minute:02}:00 +0000] \"GET / HTTP/1.1\" 200 1\n")
    };
    let text = move |minutes: u32| (0..minutes).map(line).collect::<String>();
    let rules = "[rules.api]\nrate = \"1/1h\"\nby = \"peer\"\n[otherwise]\nrules = [\"api\"]\n";
    let rules = path_of("growing.toml", rules);
    let grown = file("grown.log", text(9).as_bytes());
    let log = grown.with_file_name("growing.log");
    let _ = fs::remove_file(&log);
    let made = Command::new("mkfifo").arg(&log).status();
    assert!(made.expect("mkfifo runs").success());
    let line = format!("replay '{}' --rules '{rules}' --share 50%", log.display());
    let writer = thread::spawn(move || {
        // It is opened as soon as the first reading has opened it: all further ones open the other.
        let mut first = File::create(&log).expect("a pipe");
        fs::rename(grown, log).expect("the log grows");
        first.write_all(text(2).as_bytes()).expect("a reader");
    });
    let smallest = &object(&line, 0)["smallest"][0];
    assert_eq!(smallest["limit"], "2/1h", "{smallest}");
    writer.join().expect("it has written");
}

/// A log does not show for how long a request was in flight: a replay says so, and is no answer.
#[test]
fn places_in_flight_are_shown_and_not_replayed() {
    let flights = |places: u32| {
        let rules = format!(
            "[rules.render]\nrate = \"{places} in flight / 90s\"\nby = \"peer\"\n\
             [rules.all]\nrate = \"2/1h\"\nby = \"peer\"\n\
             [otherwise]\nrules = [\"render\", \"all\"]\n"
        );
        path_of(&format!("flights{places}.toml"), &rules)
    };
    let (rules, log) = (flights(1), path_of("flights.log", &in_format("combined")));
    let met = met(&format!("'{rules}' --path /x"));
    let limits = json!([["render", "1 in flight/90s", 1], ["all", "2/1h", 1]]);
    assert_eq!((&met[1], &met[2]), (&json!("allow"), &limits));
    let ran = run(&format!("replay '{log}' --rules '{rules}' --share 1%"));
    contains(
        &ran.said,
        "\"render\", which counts what is in flight, refuses nothing",
    );
    assert!(!ran.output.contains("render   1/90s"), "{}", ran.output);
    let ran = run(&format!("replay '{log}' --limit '4 in flight/30s'"));
    contains(&ran.said, "replay a rate");
    let ran = run(&format!("diff '{rules}' '{}'", flights(2)));
    contains(&ran.output, "1 in flight/90s  2 in flight/90s");
}
