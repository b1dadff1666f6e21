//! `ratelimit explain`, `diff` and `replay --rules`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use serde_json::{Value, json};

use crate::{Ran, assert_documented, check::FILES, file, ratelimit, support::random::Random};

fn path_of(name: &str, text: &str) -> String {
    let path = file(name, text.as_bytes());
    path.to_str().unwrap().to_owned()
}

fn object(arguments: &[&str], status: i32) -> Value {
    let ran = ratelimit(&[arguments, &["--json"]].concat(), b"");
    assert_eq!(ran.status, status, "{arguments:?}: {}", ran.said);
    let object = serde_json::from_str(&ran.output).unwrap();
    if arguments[0] != "replay" || arguments.contains(&"--rules") {
        assert_documented(&object);
    }
    object
}

/// The rules that a request meets with limit and cost, and the limiters.
fn met(arguments: &[&str], status: i32) -> Value {
    let object = object(&[&["explain"], arguments].concat(), status);
    let rules = object["rules"].as_array().unwrap().iter();
    let rules = rules.map(|it| json!([it["rule"], it["limit"], it["cost"]]));
    let limiters = object["limiters"].as_array().unwrap().iter();
    let limiters = limiters.map(|it| it.as_str().unwrap().strip_prefix("ratelimit:{"));
    json!([
        object["result"],
        rules.collect::<Vec<_>>(),
        limiters.collect::<Vec<_>>()
    ])
}

#[test]
fn every_file_of_rules_is_explained() {
    for path in FILES {
        let ran = ratelimit(&["explain", path, "--path", "/"], b"");
        assert!(matches!(ran.status, 0 | 1), "{}{}", ran.output, ran.said);
        assert!(!ran.output.is_empty());
    }
}

#[test]
fn a_request_meets_the_rules_of_the_examples() {
    let (limits, service) = ("examples/limits.toml", "examples/service.toml");
    for (arguments, status, expected) in [
        (
            vec![limits, "--path", "/"],
            0,
            json!(["allow", [["address", "5/10s", 1]], ["192.0.2.1}:address"]]),
        ),
        (
            vec![limits, "--path", "/plan", "--ip", "2001:db8::1"],
            0,
            json!([
                "allow",
                [["plan.free", "1/1m", 1]],
                ["2001%3Adb8%3A%3A%2F56}:plan.free"]
            ]),
        ),
        (
            vec![limits, "--path", "/plan", "--tier", "plan=paid"],
            0,
            json!([
                "allow",
                [["plan.paid", "3/1m", 1]],
                ["192.0.2.1}:plan.paid"]
            ]),
        ),
        (
            vec![limits, "--path", "/export?all"],
            0,
            json!(["allow", [["export", "25/1m", 10]], ["192.0.2.1}:export"]]),
        ),
        (
            vec![limits, "--path", "/data"],
            1,
            json!(["missing_key", [["key", "?", 0]], []]),
        ),
        (
            vec![limits, "--path", "/other"],
            0,
            json!(["no_rule", [], []]),
        ),
        (
            vec![
                service, "--path", "/export", "--cost", "rows=20", "--key", "user=ann",
            ],
            0,
            json!(["allow", [["rows", "100/1h", 20]], ["ann}:rows"]]),
        ),
        (
            vec![service, "--path", "/export", "--cost", "rows=101"],
            1,
            json!([
                "above_rate",
                [["rows", "100/1h", 101]],
                ["+1,192.0.2.1}:rows"]
            ]),
        ),
        (
            vec![
                service,
                "--path",
                "/x",
                "--ip",
                "127.0.0.1",
                "--header",
                "x-forwarded-for: 198.51.100.7",
            ],
            0,
            json!([
                "allow",
                [["api.free", "2/1m", 1], ["burst", "100/1s", 1]],
                ["+1,198.51.100.7}:api.free", "+1,198.51.100.7}:burst"]
            ]),
        ),
    ] {
        assert_eq!(met(&arguments, status), expected, "{arguments:?}");
    }
    let ran = ratelimit(
        &["explain", service, "--method", "POST", "--path", "/login"],
        b"",
    );
    assert!(
        ran.output.contains("\nlimiter ratelimit:{"),
        "{}",
        ran.output
    );
    assert!(
        ran.said.contains("the cost \"rows\", which is 1"),
        "{}",
        ran.said
    );
    // A digest stays one.
    let key = met(
        &[limits, "--path", "/data", "--header", "x-api-key: abc"],
        0,
    );
    assert!(key[2][0].as_str().unwrap().starts_with("k1."), "{key}");
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
    let explain = |more: &[&str], status| {
        object(
            &[&["explain", &rules, "--path", "/"], more].concat(),
            status,
        )
    };
    assert_eq!(explain(&[], 0)["rules"][0]["shadow"], true);
    assert_eq!(
        explain(&["--when", "beta=true"], 0)["rules"][0]["rule"],
        "beta"
    );
    assert_eq!(
        explain(&["--ip", "192.0.2.66"], 1)["result"],
        "denied_by_list"
    );
    assert_eq!(
        explain(&["--ip", "192.0.2.77"], 0)["result"],
        "allowed_by_list"
    );
    let strict = ratelimit(&["explain", &rules, "--path", "/", "--strict"], b"");
    assert_eq!(strict.status, 2, "{}", strict.output);
    let fixed = [
        "explain",
        &rules,
        "--path",
        "/",
        "--strict",
        "--when",
        "beta=false",
    ];
    let fixed = ratelimit(&fixed, b"");
    assert_eq!((fixed.status, fixed.said.as_str()), (0, ""));
}

/// A generated request: its time in ms, its caller, and whether it is a login.
type Sent = (u64, u64, bool);

const START: u64 = 1_791_640_536_000;

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

fn combined(sent: &[Sent]) -> String {
    let mut text = String::new();
    for (time, caller, login) in sent {
        let (seconds, millis) = (time / 1000, time % 1000);
        let request = if *login { "POST /login" } else { "GET /x" };
        writeln!(
            text,
            "10.0.0.{caller} - - [{seconds}.{millis:03}] \"{request} HTTP/1.1\" 200 5"
        )
        .unwrap();
    }
    text
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
        if grants
            .iter()
            .filter(|grant| **grant + interval > *time)
            .count()
            < permits
        {
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
        let object = object(&["diff", &old, &new, "--log", &log, "--show-keys"], 0);
        let (before, after) = (
            refused(&sent, (4, 10_000), (30, 10_000)),
            refused(&sent, (3, 20_000), (60, 30_000)),
        );
        let sums = [before.values().sum::<u64>(), after.values().sum()];
        assert_eq!(object["log"]["refused"], json!(sums), "seed {seed}");
        let mut callers = BTreeMap::new();
        for kind in ["newly_refused", "newly_let_through"] {
            for it in object["log"][kind].as_array().unwrap() {
                callers.insert(
                    it["caller"].as_str().unwrap().to_owned(),
                    (kind, &it["requests"]),
                );
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
            assert_eq!(
                shown,
                Some((kind, &json!(requests))),
                "seed {seed}: {caller}"
            );
        }
        assert!(callers.is_empty(), "seed {seed}: {callers:?}");
    }
}

#[test]
fn a_diff_names_what_changed_and_fails_where_it_should() {
    let old = path_of("before.toml", &by_path("4/10s", "60/1m"));
    let new = path_of(
        "after.toml",
        &by_path("1/10s", "60/60s").replace("api", "all"),
    );
    let ran = ratelimit(&["diff", &old, &new], b"");
    let expected = "item         field  old    new\n\
                    otherwise    rules  [api]  [all]\n\
                    rules.all    by     -      peer\n\
                    rules.all    rate   -      60/1m\n\
                    rules.api    by     peer   -\n\
                    rules.api    rate   60/1m  -\n\
                    rules.login  rate   4/10s  1/10s\n";
    assert_eq!(
        (ran.status, ran.output.as_str()),
        (0, expected),
        "{}",
        ran.said
    );
    // 60/60s is 60/1m.
    let same = path_of("same.toml", &by_path("4/10s", "60/60s"));
    assert_eq!(
        ratelimit(&["diff", &old, &same], b"").output,
        "The files mean the same.\n"
    );
    let sent = [(START, 1, true), (START, 1, true), (START, 2, true)];
    let log = path_of("refused.log", &combined(&sent));
    let fails = ["--log", &log, "--fail-on-newly-refused"];
    let ran = ratelimit(&[&["diff", &old, &new], &fails[..]].concat(), b"");
    assert_eq!(ran.status, 1, "{}", ran.said);
    assert!(
        ran.output.contains("Refused of 3 requests: 0 -> 1."),
        "{}",
        ran.output
    );
    assert!(
        ran.output.contains("Callers newly refused: 1\n"),
        "{}",
        ran.output
    );
    assert!(!ran.output.contains("10.0.0.1"), "{}", ran.output);
    let back = ratelimit(&[&["diff", &new, &old], &fails[..]].concat(), b"");
    assert_eq!(back.status, 0, "{}", back.said);
    assert!(
        back.output.contains("Callers newly let through: 1\n"),
        "{}",
        back.output
    );
}

#[test]
fn rules_refuse_as_plain_limits_do() {
    for (seed, algorithm) in ["sliding-log", "fixed-window", "gcra"]
        .into_iter()
        .enumerate()
    {
        let log = path_of(
            &format!("{algorithm}.log"),
            &combined(&traffic(seed as u64)),
        );
        let rules = format!(
            "[rules.all]\nrate = \"20/10s\"\nby = \"peer\"\nalgorithm = \"{algorithm}\"\n\
             [otherwise]\nrules = [\"all\"]\n"
        );
        let rules = path_of(&format!("{algorithm}.toml"), &rules);
        let by_rules = object(&["replay", &log, "--rules", &rules], 0);
        let by_limit = [
            "replay",
            &log,
            "--limit",
            "20/10s",
            "--algorithm",
            algorithm,
        ];
        let by_limit = object(&by_limit, 0);
        let (rule, candidate) = (&by_rules["rules"][0], &by_limit["candidates"][0]);
        assert_eq!(
            json!([rule["refused"], rule["refused"]]),
            candidate["refused"],
            "{algorithm}"
        );
        assert_eq!(
            json!([rule["callers"], rule["callers"]]),
            candidate["touched"],
            "{algorithm}"
        );
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
            "nginx" => json!({
                "time": time, "remote_addr": ip, "request": request, "status": status
            })
            .to_string(),
            "caddy" => json!({
                "ts": time, "status": status,
                "request": { "remote_ip": ip, "method": method, "uri": path },
            })
            .to_string(),
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
        let free = object(&["replay", &log, "--rules", &rules], 0);
        let expected = json!([
            row("login", "1/1m", 4, 1, 0, 1),
            row("api.free", "1/1m", 3, 1, 0, 1),
            row("trial", "1/1m", 3, 0, 2, 1),
        ]);
        assert_eq!(free["rules"], expected, "{format}");
        assert_eq!(
            (&free["requests"], &free["refused"]),
            (&json!(11), &json!(3)),
            "{format}"
        );
        let paid = object(
            &["replay", &log, "--rules", &rules, "--tier", "plan=paid"],
            0,
        );
        assert_eq!(
            paid["rules"][1],
            row("api.paid", "9/1m", 3, 0, 0, 0),
            "{format}"
        );
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
    let replayed = object(&["replay", &log, "--rules", &rules], 0);
    assert_eq!(replayed["rules"][0]["requests"], 4, "{replayed}");
    assert_eq!(
        (&replayed["refused"], &replayed["waiting"]),
        (&json!(0), &json!(2)),
        "{replayed}"
    );
    let words = ratelimit(&["replay", &log, "--rules", &rules], b"").output;
    assert!(words.contains("\n2 would wait for permits"), "{words}");
}

#[test]
fn a_diff_groups_addresses_as_rules_do() {
    let (loose, strict) = (by_path("9/1h", "9/1h"), by_path("9/1h", "1/1h"));
    let (old, new) = (
        path_of("loose.toml", &loose),
        path_of("strict.toml", &strict),
    );
    let text = "time,ip\n1791640536,2001:db8::1\n1791640536,[2001:db8::2]:80\n\
                1791640536,::ffff:192.0.2.1\n1791640536,192.0.2.1:443\n";
    let log = path_of("grouped.csv", text);
    let diff = object(&["diff", &old, &new, "--log", &log, "--show-keys"], 0);
    let shown = |caller: &str| json!({ "caller": caller, "requests": 1 });
    assert_eq!(
        diff["log"]["newly_refused"],
        json!([shown("192.0.2.1"), shown("2001:db8::/56")]),
    );
}

#[test]
fn fields_reach_rules_and_what_a_log_lacks_is_said() {
    let text = "[keys.app]\nfrom = \"header:x-app\"\n[rules.all]\nrate = \"1/1m\"\n\
                by = \"user or app\"\n[otherwise]\nrules = [\"all\"]\n";
    let rules = path_of("fields.toml", text);
    let log = path_of(
        "fields.csv",
        "time,app,login\n1791640536,a,\n1791640536,a,ann\n1791640536,a,\n",
    );
    let fields = ["--field", "x-app=app", "--field", "user=login"];
    let ran = ratelimit(
        &[&["replay", &log, "--rules", &rules], &fields[..]].concat(),
        b"",
    );
    assert_eq!(ran.status, 0, "{}", ran.said);
    assert!(
        ran.output.contains("\n1 of 3 requests refused.\n"),
        "{}",
        ran.output
    );
    for said in [
        "no addresses",
        "each request counts as GET",
        "one to /",
        "counts as 200",
    ] {
        assert!(ran.said.contains(said), "{said}: {}", ran.said);
    }
    let missing = ["replay", &log, "--rules", &rules, "--field", "x-app=apps"];
    let missing = ratelimit(&missing, b"");
    assert_eq!(missing.status, 2);
    assert!(
        missing.said.contains("no column \"apps\""),
        "{}",
        missing.said
    );
    // Whole seconds are too coarse for a second.
    let short = path_of("short.toml", &by_path("1/1s", "1/1s"));
    let log = path_of(
        "whole.log",
        "10.0.0.1 - - [1791640536] \"GET / HTTP/1.1\" 200 5\n",
    );
    let ran = ratelimit(&["diff", &short, &short, "--log", &log], b"");
    assert_eq!(
        ran.said.matches("the figures of \"api\"").count(),
        1,
        "{}",
        ran.said
    );
    let ran = ratelimit(&["replay", &log, "--rules", &short], b"");
    assert!(
        ran.said.contains("the figures of \"api\" are approximate"),
        "{}",
        ran.said
    );
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
    for arguments in [
        vec!["replay", &log, "--rules", &old],
        vec![
            "diff",
            &old,
            &new,
            "--log",
            &log,
            "--show-keys",
            "--by",
            "user",
        ],
        vec![
            "diff",
            &old,
            &new,
            "--log",
            &log,
            "--show-keys",
            "--by",
            "user",
            "--json",
        ],
        vec!["explain", &new, "--path", "/\u{1b}[2J"],
    ] {
        let Ran { output, said, .. } = ratelimit(&arguments, b"");
        let is_harmless = |text: &str| {
            text.chars()
                .all(|it| it == '\n' || !(it.is_control() || it == '\u{202e}'))
        };
        assert!(is_harmless(&output), "{arguments:?}: {output:?}");
        assert!(is_harmless(&said), "{arguments:?}: {said:?}");
    }
}

#[test]
fn mistakes_are_named() {
    let (limits, service) = ("examples/limits.toml", "examples/service.toml");
    for (arguments, said) in [
        (vec!["explain", limits], "--path"),
        (vec!["explain", limits, "--path", "a b"], "\"a b\""),
        (
            vec!["explain", limits, "--path", "/", "--method", "G T"],
            "\"G T\"",
        ),
        (
            vec!["explain", limits, "--path", "/", "--ip", "host"],
            "'host'",
        ),
        (
            vec!["explain", limits, "--path", "/", "--header", "x"],
            "'x'",
        ),
        (
            vec!["explain", limits, "--path", "/", "--key", "user=a"],
            "\"user\"",
        ),
        (vec!["check", service, "--tier", "plans=paid"], "\"plans\""),
        (
            vec!["check", service, "--tier", "plan=gold"],
            "\"free\", \"paid\"",
        ),
        (vec!["check", service, "--tier", "plan"], "'plan'"),
        (vec!["check", service, "--when", "beta=true"], "\"beta\""),
        (vec!["check", service, "--when", "beta=yes"], "'beta=yes'"),
        (vec!["check", service, "--cost", "row=2"], "\"row\""),
        (vec!["diff", limits], "<NEW>"),
        (vec!["diff", limits, "none.toml"], "none.toml"),
        (
            vec!["diff", limits, service, "--fail-on-newly-refused"],
            "--log",
        ),
        (
            vec!["diff", limits, service, "--log", "none.log"],
            "none.log",
        ),
        (vec!["replay", "none.log", "--rules", limits], "none.log"),
        (
            vec!["replay", "none.log", "--rules", limits, "--limit", "1/1s"],
            "--limit",
        ),
        (
            vec!["replay", "a.log", "--limit", "1/1s", "--tier", "plan=paid"],
            "--rules",
        ),
        (
            vec!["replay", "a.log", "--limit", "1/1s", "--field", "a=b"],
            "--rules",
        ),
        (vec!["replay", "--demo", "--rules", limits], "--demo"),
        (vec!["completions", "shell"], "'shell'"),
    ] {
        let ran = ratelimit(&arguments, b"");
        assert_eq!(ran.status, 2, "{arguments:?}: {}{}", ran.output, ran.said);
        assert!(ran.said.contains(said), "{arguments:?}: {}", ran.said);
    }
}
