//! Bad files: each is refused with the line, the field and what to do.

use proptest::prelude::*;

use super::{GOOD, file};

/// The line that is named of the good file after a change, and what is said of it.
fn told(from: &str, to: &str) -> (String, String) {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    let Err(error) = file().parse(&text) else {
        panic!("{to:?} was taken");
    };
    let said = error.to_string();
    assert!(!said.contains('\n'), "{said}");
    assert_eq!(error.kind(), tower_ratelimit::ConfigErrorKind::File);
    let place = error.place().expect("the place");
    assert_eq!(said, format!("{place}: {}", error.reason()));
    let (line, field) = place.split_once(", ").unwrap_or((place, ""));
    let line: usize = line.strip_prefix("line ").unwrap().parse().unwrap();
    let said = match field {
        "" => error.reason().to_owned(),
        field => format!("{field}: {}", error.reason()),
    };
    (text.lines().nth(line - 1).unwrap().to_owned(), said)
}

#[test]
fn each_mistake_is_named_with_its_line() {
    let mut wrong = Vec::new();
    for (from, to, line, expected) in [
        // No TOML.
        ("rate = \"5/1m\"", "rate = \"5/1m", "rate = \"5/1m", ""),
        ("[rules.login]", "[rules.login", "[rules.login", ""),
        (
            "[rules.account]",
            "[rules.login]",
            "[rules.login]",
            "duplicate key",
        ),
        // Fields.
        (
            "on-failure",
            "on_failure",
            "on_failure = \"deny\"",
            "rules.login.on_failure: there is no field \"on_failure\": did you mean `on-failure`?",
        ),
        (
            "headers =",
            "header =",
            "header = [\"legacy-delta\"]",
            "header: there is no field \"header\": did you mean `headers`?",
        ),
        (
            "[otherwise]",
            "[else]",
            "[else]",
            "else: there is no field \"else\", but `headers`, `keys`, `rules`, `on`, `otherwise`, `deny`, `allow`",
        ),
        (
            "route = \"POST /login\"",
            "path = \"POST /login\"",
            "path = \"POST /login\"",
            "on[2].path: there is no field \"path\"",
        ),
        (
            "trusted =",
            "trust =",
            "trust = [\"10.0.0.0/8\"]",
            "keys.client.trust: there is no field \"trust\": did you mean `trusted`?",
        ),
        (
            "digest = ",
            "\"di gest\" = ",
            "\"di gest\" = \"k1\"",
            "keys.token.\"di gest\": there is no field",
        ),
        // Types.
        (
            "cost = 10",
            "cost = 1.5",
            "cost = 1.5",
            "rules.export.cost: here stands a number with a fraction, and not a whole number",
        ),
        (
            "cost = 10",
            "cost = true",
            "cost = true",
            "rules.export.cost: here stands true or false, and not a whole number",
        ),
        (
            "by = \"client\"",
            "by = 7",
            "by = 7",
            "rules.login.by: here stands a whole number, and not a text",
        ),
        (
            "hide-headers = true",
            "hide-headers = \"yes\"",
            "hide-headers = \"yes\"",
            "rules.bulk.hide-headers: here stands a text, and not true or false",
        ),
        (
            "[[on]]\nroute = \"/health\"\nrules = []",
            "[on]\nroute = \"/health\"\nrules = []",
            "[[on]]",
            "",
        ),
        (
            "rate = \"5/1m\"",
            "rate = 5",
            "rate = 5",
            "rules.login.rate: here stands a whole number, and not a text",
        ),
        (
            "rate = \"5/1m\"",
            "rate = 1979-05-27",
            "rate = 1979-05-27",
            "rules.login.rate: here stands a time, and no field is one",
        ),
        (
            "[rules.login]",
            "[[rules.login]]",
            "[[rules.login]]",
            "rules.login: here stands a list, and not a table",
        ),
        (
            "[otherwise]",
            "[[otherwise]]",
            "[[otherwise]]",
            "otherwise: here stands a list, and not a table",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = [0.25, \"30s\", \"deny\"]",
            "on-failure = [0.25, \"30s\", \"deny\"]",
            "rules.account.on-failure: here stands a list, and not a table",
        ),
        (
            "ipv6-prefix = 64",
            "ipv6-prefix = 64\nservices = [\"a.B\"]",
            "services = [\"a.B\"]",
            "keys.client.services: it belongs to `from = \"route\"`",
        ),
        (
            "when = \"bulk\"\nrules = [\"bulk\"]",
            "when = \"bulk\"\nvalues = [\"a\"]\nrules = [\"bulk\"]",
            "values = [\"a\"]",
            "on[1].values: it belongs to `[[deny]]` and `[[allow]]`",
        ),
        (
            "values = [\"evil\"]",
            "values = [\"evil\"]\nrules = [\"bulk\"]",
            "rules = [\"bulk\"]",
            "deny[1].rules: it belongs to `[[on]]`",
        ),
        // Numbers: by the code that checks the builders'.
        (
            "\"5/1m\"",
            "\"0/1m\"",
            "rate = \"0/1m\"",
            "rules.login.rate: a limit takes 1 to 2^53 - 1 permits, not 0",
        ),
        (
            "\"5/1m\"",
            "\"5/0s\"",
            "rate = \"5/0s\"",
            "rules.login.rate: an interval is of whole milliseconds",
        ),
        (
            "\"5/1m\"",
            "\"5 per minute\"",
            "rate = \"5 per minute\"",
            "rules.login.rate: \"5 per minute\" is no rate: write permits, a slash and a time",
        ),
        (
            "keep-alive = \"2h\"",
            "keep-alive = \"30m\"",
            "keep-alive = \"30m\"",
            "rules.export.keep-alive: a keep-alive time of 1800s is shorter",
        ),
        (
            "keep-alive = \"2h\"",
            "keep-alive = \"2 hours\"",
            "keep-alive = \"2 hours\"",
            "rules.export.keep-alive: \"2 hours\" is no time",
        ),
        (
            "cost = 10",
            "cost = 0",
            "cost = 0",
            "rules.export.cost: rule \"export\" costs 0 permits",
        ),
        (
            "cost = 10",
            "cost = 101",
            "cost = 101",
            "rules.export.cost: rule \"export\" costs 101 permits",
        ),
        (
            "cost = 10",
            "cost = -1",
            "cost = -1",
            "rules.export.cost: -1 is out of range",
        ),
        (
            "cost = 10",
            "cost = 4294967296",
            "cost = 4294967296",
            "rules.export.cost: 4294967296 is out of range",
        ),
        (
            "cost = 10",
            "cost = 18446744073709551616",
            "cost = 18446744073709551616",
            "rules.export.cost: 18446744073709551616 is out of range",
        ),
        (
            "PUT = 5",
            "PUT = 21",
            "cost = { GET = 1, HEAD = 3, PUT = 21, OPTIONS = 0, otherwise = 2 }",
            "rules.files.cost.PUT: rule \"files\" costs 21 permits",
        ),
        (
            "PUT = 5",
            "put = 5",
            "cost = { GET = 1, HEAD = 3, put = 5, OPTIONS = 0, otherwise = 2 }",
            "rules.files.cost.put: methods are written in capitals; all other methods are `otherwise`",
        ),
        (
            "beta = \"30/1m\"",
            "beta = \"30\"",
            "beta = \"30\"",
            "rules.api.tiers.beta: \"30\" is no rate",
        ),
        (
            "beta = \"30/1m\"",
            "\"be ta\" = \"30/1m\"",
            "\"be ta\" = \"30/1m\"",
            "rules.api.tiers.\"be ta\": a rule's name has",
        ),
        // Names.
        (
            "tier-by = \"plan\"",
            "tier-by = \"plans\"",
            "tier-by = \"plans\"",
            "rules.api.tier-by: there is no chooser of tiers \"plans\": did you mean `plan`?",
        ),
        (
            "tier-by = \"plan\"\n",
            "",
            "[rules.api]",
            "rules.api: it lacks `tier-by`, as in `tier-by = \"plan\"`",
        ),
        (
            "cost = \"rows\"",
            "cost = \"row\"",
            "cost = \"row\"",
            "rules.rows.cost: there is no cost \"row\": did you mean `rows`?",
        ),
        (
            "charge-if = \"forbidden\"",
            "charge-if = \"fail\"",
            "charge-if = \"fail\"",
            "rules.account.charge-if: there is no outcome \"fail\"",
        ),
        (
            "digest = \"k1\"",
            "digest = \"k2\"",
            "digest = \"k2\"",
            "keys.token.digest: there is no secret \"k2\": did you mean `k1`?",
        ),
        (
            "\"user or shared\"",
            "\"users\"",
            "by = \"users\"",
            "rules.everybody.by: there is no key \"users\": did you mean `user`?",
        ),
        (
            "\"user or shared\"",
            "\"shared or user\"",
            "by = \"shared or user\"",
            "rules.everybody.by: `shared` stands at the end",
        ),
        (
            "\"user or shared\"",
            "\"shared\"",
            "by = \"shared\"",
            "rules.everybody.by: a key stands before",
        ),
        (
            "\"user or shared\"",
            "\"client-ip\"",
            "by = \"client-ip\"",
            "rules.everybody.by: `client-ip` must know your proxies",
        ),
        (
            "\"user or shared\"",
            "\"header:\"",
            "by = \"header:\"",
            "rules.everybody.by: something must follow `header:`",
        ),
        (
            "\"user or shared\"",
            "\"header:x y\"",
            "by = \"header:x y\"",
            "rules.everybody.by: \"x y\" is not a header's name",
        ),
        (
            "\"user or shared\"",
            "[]",
            "by = []",
            "rules.everybody.by: the list is empty",
        ),
        (
            "\"user or shared\"",
            "\"header:cookie\"",
            "by = \"header:cookie\"",
            "rules.everybody.by: the header \"cookie\" holds a credential",
        ),
        (
            "digest = \"k1\"",
            "",
            "by = [\"caller\", \"constant:login\"]",
            "rules.account.by: the header \"x-api-key\" holds a credential",
        ),
        (
            "plain = true",
            "plain = false",
            "by = \"seen or peer\"",
            "rules.hosted.by: the header \"x-api-key\" holds a credential",
        ),
        (
            "[keys.client]",
            "[keys.peer]",
            "[keys.peer]",
            "keys.peer: `peer` means something else",
        ),
        (
            "[keys.client]",
            "[keys.user]",
            "[keys.user]",
            "keys.user: the code has a key `user`",
        ),
        (
            "[keys.client]",
            "[keys.\"a b\"]",
            "[keys.\"a b\"]",
            "keys.\"a b\": a key's name has",
        ),
        (
            "[rules.login]",
            "[rules.\"log in\"]",
            "[rules.\"log in\"]",
            "rules.\"log in\": a rule's name has",
        ),
        (
            "algorithm = \"fixed-window\"",
            "algorithm = \"leaky\"",
            "algorithm = \"leaky\"",
            "rules.files.algorithm: there is no value \"leaky\", but `sliding-log`, `fixed-window`, `gcra`",
        ),
        (
            "lease = \"6s\"",
            "lease = \"7s\"",
            "lease = \"7s\"",
            "rules.rows.lease: \"rows\" cannot lease permits for 7s: it is longer than a tenth of the interval",
        ),
        (
            "lease = \"6s\"",
            "lease = \"6\"",
            "lease = \"6\"",
            "rules.rows.lease: \"6\" is no time",
        ),
        (
            "on-failure = \"deny\"",
            "on-failure = \"close\"",
            "on-failure = \"close\"",
            "rules.login.on-failure: there is no value \"close\", but `allow`, `deny`",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { local = 1.5 }",
            "on-failure = { local = 1.5 }",
            "rules.account.on-failure.local: the rule \"account\" decides by 1.5 of its limit when the store fails: it must be above 0 and 1 at most",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { local = 0 }",
            "on-failure = { local = 0 }",
            "rules.account.on-failure.local: the rule \"account\" decides by 0 of its limit",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { local = nan }",
            "on-failure = { local = nan }",
            "rules.account.on-failure.local: the rule \"account\" decides by NaN of its limit",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { local = \"all\" }",
            "on-failure = { local = \"all\" }",
            "rules.account.on-failure.local: here stands a text, and not a number",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { share = 0.25 }",
            "on-failure = { share = 0.25 }",
            "rules.account.on-failure.share: there is no field \"share\", but `local`, `for`, `then`",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { for = \"30s\", then = \"deny\" }",
            "on-failure = { for = \"30s\", then = \"deny\" }",
            "rules.account.on-failure: it lacks `local`, as in `local = 0.25`",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { local = 0.25, for = \"30s\" }",
            "on-failure = { local = 0.25, for = \"30s\" }",
            "rules.account.on-failure.for: it needs `then`, which says what comes after that time: `then = \"deny\"`",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { local = 0.25, then = \"deny\" }",
            "on-failure = { local = 0.25, then = \"deny\" }",
            "rules.account.on-failure.then: it needs `for`, which says after what time: `for = \"30s\"`",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { local = 0.25, for = \"30\", then = \"deny\" }",
            "on-failure = { local = 0.25, for = \"30\", then = \"deny\" }",
            "rules.account.on-failure.for: \"30\" is no time",
        ),
        (
            "on-failure = { local = 0.25, for = \"30s\", then = \"deny\" }",
            "on-failure = { local = 0.25, for = \"30s\", then = \"local\" }",
            "on-failure = { local = 0.25, for = \"30s\", then = \"local\" }",
            "rules.account.on-failure.then: there is no value \"local\", but `allow`, `deny`",
        ),
        (
            "[\"legacy-delta\"]",
            "[\"draft-11\", \"draft-6\"]",
            "headers = [\"draft-11\", \"draft-6\"]",
            "headers: two header styles write RateLimit-Policy",
        ),
        (
            "[\"legacy-delta\"]",
            "[\"draft-12\"]",
            "headers = [\"draft-12\"]",
            "headers[0]: there is no value \"draft-12\": did you mean `draft-11`?",
        ),
        // What belongs together, and what does not.
        (
            "by = \"client\"\non-failure",
            "on-failure",
            "[rules.login]",
            "rules.login: it lacks `by`",
        ),
        (
            "rate = \"5/1m\"\n",
            "",
            "[rules.login]",
            "rules.login: it lacks `rate`",
        ),
        (
            "shared = \"tenant:<key>\"",
            "shared = \"tenant\"",
            "[rules.tenant]",
            "rules.tenant: rule \"tenant\" has a key, but no `<key>`",
        ),
        (
            "shared = \"tenant:<key>\"",
            "shared = \"{<key>\"",
            "[rules.tenant]",
            "rules.tenant: \"{<key>\" cannot name a limiter",
        ),
        (
            "by = \"header:x-tenant\"\n",
            "",
            "[rules.tenant]",
            "rules.tenant: it lacks `by`",
        ),
        (
            "shared = \"tenant:<key>\"",
            "rate = \"1/s\"",
            "init = \"3/1m\"",
            "rules.tenant.init: it belongs to `shared`, which is not there",
        ),
        (
            "init = \"3/1m\"",
            "keep-alive = \"3m\"",
            "keep-alive = \"3m\"",
            "rules.tenant.keep-alive: it belongs to `init`, which is not there",
        ),
        (
            "rate = \"5/1m\"",
            "rate = \"5/1m\"\nshared = \"a\"",
            "[rules.login]",
            "rules.login: `rate`, `tiers` and `shared` exclude each other",
        ),
        (
            "shadow = true",
            "shadow = 1",
            "shadow = 1",
            "rules.tried.shadow: here stands a whole number, and not true or false",
        ),
        (
            "shadow = true",
            "shadow = true\nenforce-share = 5",
            "enforce-share = 5",
            "rules.tried.enforce-share: `shadow` says that",
        ),
        (
            "enforce-share = 10",
            "enforce-share = 101",
            "[rules.everybody]",
            "rules.everybody: ",
        ),
        (
            "enforce-share = 10",
            "enforce-share = 1000",
            "enforce-share = 1000",
            "rules.everybody.enforce-share: 1000 is out of range",
        ),
        (
            "wait = \"60s\"",
            "wait = \"long\"",
            "wait = \"long\"",
            "rules.patient.wait: \"long\" is no time",
        ),
        (
            "slots = 100",
            "slots = 9",
            "[rules.rest]",
            "rules.rest: \"rest\" cannot have 9 slots: an interval has 10 to 10000",
        ),
        (
            "slots = 100",
            "slots = -1",
            "slots = -1",
            "rules.rest.slots: ",
        ),
        (
            "algorithm = \"fixed-window\"",
            "algorithm = \"fixed-window\"\nslots = 100",
            "[rules.files]",
            "rules.files: \"files\" cannot have 100 slots: only a sliding log has slots",
        ),
        (
            "queue = 2",
            "queue = 0",
            "[rules.patient]",
            "rules.patient: ",
        ),
        // Lists.
        (
            "\"203.0.113.0/24\"",
            "\"203.0.113.1/24\"",
            "networks = [\"203.0.113.1/24\", \"2001:db8::1\"]",
            "deny[0].networks[0]: \"203.0.113.1/24\": it has bits",
        ),
        (
            "by = \"client\"\nnetworks",
            "by = \"caller\"\nnetworks",
            "by = \"caller\"",
            "deny[0].by: networks need an address",
        ),
        (
            "by = \"client\"\nnetworks",
            "networks",
            "[[deny]]",
            "deny[0]: it lacks `by`, as in `by = \"peer\"`",
        ),
        (
            "values = [\"evil\"]",
            "",
            "by = \"header:x-tenant\"",
            "deny[1].by: it belongs to `networks` or `values`",
        ),
        (
            "values = [\"evil\"]",
            "values = [\"evil\"]\nroute = \"/\"",
            "[[deny]]",
            "deny[1]: `networks`, `values` and what",
        ),
        (
            "values = [\"evil\"]",
            "value = [\"evil\"]",
            "value = [\"evil\"]",
            "deny[1].value: there is no field \"value\": did you mean `values`?",
        ),
        // Entries.
        (
            "\"/export/{id}\"",
            "\"/export/:id\"",
            "route = \"/export/:id\"",
            "on[5].route: \"/export/:id\" is not `/path` or `METHOD /path`: a parameter is written `{id}`",
        ),
        (
            "\"/export/{id}\"",
            "\"GET /export/{id}\"",
            "method = \"GET\"",
            "on[5].method: the route has a method, too",
        ),
        (
            "method = \"GET\"",
            "method = \"get\"",
            "method = \"get\"",
            "on[5].method: \"get\": methods are written in capitals",
        ),
        (
            "\"*.api.example.com\"",
            "\"*\"",
            "host = [\"api.example.com\", \"*\"]",
            "on[3].host[1]: \"*\" is no host",
        ),
        (
            "\"shop.v1.Orders\"\nrules = [\"orders\"]",
            "\"/shop.v1.Orders/Create\"\nrules = [\"orders\"]",
            "grpc = \"/shop.v1.Orders/Create\"",
            "on[4].grpc: ",
        ),
        (
            "when = \"bulk\"",
            "when = \"bulky\"",
            "when = \"bulky\"",
            "on[1].when: there is no condition \"bulky\": did you mean `bulk`?",
        ),
        (
            "when = \"bulk\"\n",
            "",
            "[[on]]",
            "on[1]: it says no `route`",
        ),
        (
            "when = \"bulk\"\nrules = [\"bulk\"]",
            "when = \"bulk\"",
            "[[on]]",
            "on[1]: it lacks `rules`",
        ),
        (
            "\"login\", \"account\"]",
            "\"login\", \"acount\"]",
            "rules = [\"login\", \"acount\"]",
            "on[2].rules[1]: there is no rule \"acount\": did you mean `account`?",
        ),
        (
            "\"login\", \"account\"]",
            "\"login\", \"login\"]",
            "rules = [\"login\", \"login\"]",
            "on[2].rules[1]: the rule \"login\" stands here twice",
        ),
        (
            "rules = [\"tenant\"]",
            "rules = []",
            "[rules.tenant]",
            "rules.tenant: no entry uses this rule",
        ),
    ] {
        let (at, said) = told(from, to);
        if at != line || !said.starts_with(expected) {
            wrong.push(format!(
                "{to:?}\n said {at}: {said}\n  not {line}: {expected}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that is about to be written is empty: it must not lift all limits.
#[test]
fn a_file_without_rules_is_refused() {
    for text in ["", "# nothing yet\n", "[rules]", "[otherwise]\nrules = []"] {
        let told = file().parse(text).unwrap_err().to_string();
        assert!(told.contains("there are no rules"), "{told}");
    }
}

fn pieces() -> impl Strategy<Value = String> {
    let words: Vec<&str> = GOOD
        .split_inclusive(['\n', ' ', '"', '=', '[', ']', '.', '/', ','])
        .collect();
    let odd = [
        "",
        "\u{0}",
        "\u{feff}",
        "é",
        "\r\n",
        "'''",
        "\"\"\"",
        "9223372036854775808",
        "0xff",
        "-1",
        "nan",
        "1e9",
        "1979-05-27T07:32:00Z",
        "{",
        "}",
        "[[",
        "]]",
        "\\u0000",
        "/s",
        "18446744073709551616/1d",
    ];
    let word = prop_oneof![
        4 => prop::sample::select(words).prop_map(str::to_owned),
        1 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn no_text_panics(text in pieces()) {
        let _ = file().parse(&text);
    }

    /// A good file with one piece of it replaced: deep enough to reach every reader of a value.
    #[test]
    fn no_change_panics(start in any::<prop::sample::Index>(), length in 0_usize..12, piece in pieces()) {
        let start = start.index(GOOD.len());
        // The file is plain ASCII.
        let (before, rest) = GOOD.split_at(start);
        let piece = &piece[..piece.char_indices().nth(length).map_or(piece.len(), |(at, _)| at)];
        let text = [before, piece, &rest[length.min(rest.len())..]].concat();
        if let Err(error) = file().parse(&text) {
            let told = error.to_string();
            prop_assert!(told.starts_with("line "), "{}", told);
            prop_assert!(!told.contains(['\n', '\r', '\0']), "{:?}", told);
        }
    }
}

#[test]
fn depth_is_bounded() {
    for text in [
        "[".repeat(100_000),
        "a = ".to_owned() + &"{a = ".repeat(100_000),
        "a.".repeat(100_000) + "a = 1",
    ] {
        file().parse(&text).unwrap_err();
    }
}
