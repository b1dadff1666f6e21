//! What the order of a rules file, its limits and its names mean for the commands on it.

use serde_json::{Value, json};

use crate::{
    contains, file,
    rules::{START, combined, met, object, path_of},
    run,
};

const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

/// A file whose entries and tiers stand in this order.
fn ordered(order: [usize; 3]) -> String {
    let entries = [
        "host = \"a.example\"",
        "method = \"GET\"",
        "when = \"beta\"",
    ];
    let tiers = ["free = \"1/1m\"", "paid = \"9/1m\"", "trial = \"2/1m\""];
    let tiers = order.map(|at| tiers[at]).join(", ");
    let rules = format!(
        "[rules.login]\nrate = \"5/1m\"\nby = \"peer\"\n[rules.api]\ntier-by = \"plan\"\n\
         tiers = {{ {tiers} }}\nby = \"peer\"\n[otherwise]\nrules = [\"api\"]\n"
    );
    let entry = |at: usize| format!("[[on]]\n{}\nrules = [\"login\"]\n", entries[at]);
    order.iter().fold(rules, |text, at| text + &entry(*at))
}

/// The first entry that matches counts, and the first tier stands for those that a rule lacks.
#[test]
fn a_diff_shows_what_stands_in_another_order() {
    for old in ORDERS {
        for new in ORDERS {
            let files = [("first.toml", old), ("second.toml", new)];
            let [first, second] = files.map(|(name, order)| path_of(name, &ordered(order)));
            let object = object(&format!("diff '{first}' '{second}'"), 0);
            let changes = object["changes"].as_array().unwrap();
            let of = |field: &str| {
                let of_field = changes.iter().filter(|it| it["field"] == field);
                of_field.cloned().collect::<Vec<Value>>()
            };
            let moved = (0..3).filter(|at| old[*at] != new[*at]).count();
            assert_eq!(of("position").len(), moved, "{object}");
            let first_tier = usize::from(old[0] != new[0]);
            assert_eq!(of("first tier").len(), first_tier, "{object}");
            assert_eq!(changes.len(), moved + first_tier, "{object}");
        }
    }
    // A new entry moves none.
    let rules = ordered([0, 1, 2]);
    let more = rules.replacen(
        "[[on]]",
        "[[on]]\nroute = \"/new\"\nrules = [\"login\"]\n[[on]]",
        1,
    );
    let (rules, more) = (path_of("without.toml", &rules), path_of("with.toml", &more));
    let object = object(&format!("diff '{rules}' '{more}'"), 0);
    let added = json!({ "item": "on route /new", "field": "rules", "old": null, "new": "[login]" });
    assert_eq!(object["changes"], json!([added]));
}

fn of_one_rule(rule: &str) -> String {
    format!("[rules.all]\n{rule}\nby = \"peer\"\n[otherwise]\nrules = [\"all\"]\n")
}

#[test]
fn a_diff_names_entries_of_lists_and_requests_that_would_wait() {
    let old = path_of("refuses.toml", &of_one_rule("rate = \"1/1s\""));
    let waits = of_one_rule("rate = \"1/1s\"\nwait = \"2500ms\"");
    let waits = waits + "[[deny]]\nby = \"peer\"\nnetworks = \"192.0.2.0/24\"\n";
    let new = path_of("waits.toml", &waits);
    let log = path_of(
        "two.log",
        &combined(&[(START, 1, false), (START, 1, false)]),
    );
    let diff = format!("diff '{old}' '{new}' --log '{log}'");
    let object = object(&diff, 0);
    let denied = json!({
        "item": "deny by peer, networks 192.0.2.0/24", "field": "entry", "old": null,
        "new": "present",
    });
    assert_eq!(object["changes"][0], denied);
    assert_eq!(object["log"]["refused"], json!([1, 0]));
    assert_eq!(object["log"]["waiting"], json!([0, 1]));
    contains(
        &run(&diff).output,
        "\nWould wait for permits, not counted further: 0 -> 1.\n",
    );
}

/// A log of whole seconds does not show what a limit of one second refuses.
#[test]
fn times_are_too_coarse_for_the_shortest_of_several_limits() {
    let rules = path_of("several.toml", &of_one_rule("rate = \"10/s and 500/h\""));
    let log = path_of("seconds.log", &combined(&[(START / 1000 * 1000, 1, false)]));
    let replayed = object(&format!("replay '{log}' --rules '{rules}'"), 0);
    assert_eq!(replayed["rules"][0]["approximate"], true, "{replayed}");
    let old = path_of("one.toml", &of_one_rule("rate = \"500/h\""));
    let ran = run(&format!(
        "diff '{old}' '{rules}' --log '{log}' --fail-on-newly-refused"
    ));
    assert_eq!(ran.status, 1, "{}", ran.said);
    contains(&ran.said, "the figures are approximate");
}

/// A file that is refused with a limit does not have it, and the other rules are searched for.
#[test]
fn a_smallest_limit_is_one_that_its_file_may_have() {
    let rules = "[rules.dear]\nrate = \"1000/1m\"\nby = \"peer\"\ncost = 20\n\
                 [rules.post]\nrate = \"1000/1m\"\nby = \"peer\"\ncost = { GET = 7, POST = 30 }\n\
                 [rules.both]\nrate = \"10/s and 500/h\"\nby = \"peer\"\n\
                 [rules.month]\nrate = \"10000/month Europe/Berlin\"\nby = \"peer\"\n\
                 [rules.plan]\ntiers = { free = \"90/1m\", paid = \"5/1s\" }\nby = \"peer\"\n\
                 tier-by = \"plan\"\n\
                 [otherwise]\nrules = [\"dear\", \"post\", \"both\", \"month\", \"plan\"]\n";
    let rules = path_of("costs.toml", rules);
    let sent = (1..=20).map(|caller| (START + caller, caller, false));
    let log = path_of("costs.log", &combined(&sent.collect::<Vec<_>>()));
    let replay = format!("replay '{log}' --rules '{rules}' --share 10%");
    let smallest = |rule: &str, limit: &str, less: Option<u64>| {
        json!({
            "rule": rule, "limit": limit, "callers": 20, "touched": 0, "touched_by_one_less": less,
        })
    };
    let expected = json!([
        smallest("dear", "20/1m", None),
        smallest("post", "30/1m", None),
        smallest("month", "1/month Europe/Berlin", Some(20)),
        smallest("plan.free", "1/1m", Some(20)),
    ]);
    assert_eq!(object(&replay, 0)["smallest"], expected);
    let paid = object(&format!("{replay} --tier plan=paid"), 0);
    assert_eq!(paid["smallest"][3], smallest("plan.paid", "1/1s", Some(20)));
    contains(&run(&replay).said, "no smallest limit of \"both\"");
}

#[test]
fn a_limit_by_the_calendar_is_shown_as_the_file_has_it() {
    for rate in ["10000/month Europe/Berlin", "7/week from sunday", "100/day"] {
        let rules = path_of("calendar.toml", &of_one_rule(&format!("rate = \"{rate}\"")));
        let shown = met(&format!("'{rules}' --path /x"));
        assert_eq!(shown[2], json!([["all", rate, 1]]));
    }
}

/// Derived names get the usual prefix of Redis; a name that the file gives is that in Redis.
#[test]
fn the_limiters_of_shared_rules_are_explained() {
    for (name, shown) in [
        ("orders", "orders"),
        ("memory-x", "memory-x"),
        ("memory:{all}:orders", "memory:{all}:orders"),
        ("user:<key>", "user:192.0.2.1"),
    ] {
        let by = if name.contains('<') {
            "by = \"peer\"\n"
        } else {
            ""
        };
        let rules = format!(
            "[rules.own]\nrate = \"5/1m\"\nby = \"peer\"\n\
             [rules.theirs]\nshared = \"{name}\"\ninit = \"9/1m\"\n{by}\
             [otherwise]\nrules = [\"own\", \"theirs\"]\n"
        );
        let path = path_of("shared.toml", &rules);
        let explained = object(&format!("explain '{path}' --path /"), 0);
        let expected = json!(["ratelimit:{192.0.2.1}:own", shown]);
        assert_eq!(explained["limiters"], expected);
    }
}

/// Only a router knows the route of a request: without one all of a method share a limiter.
#[test]
fn rules_by_the_route_say_that_no_router_is_there() {
    let by = |rule: &str, keys: &str| {
        format!("{keys}[rules.all]\nrate = \"5/1m\"\nby = {rule}\n[otherwise]\nrules = [\"all\"]\n")
    };
    let log = file(
        "routes.csv",
        b"ts,client_ip,path\n1791640536.001,192.0.2.1,/a\n",
    );
    for text in [
        by("\"route\"", ""),
        by("[\"peer\", \"route\"]", ""),
        by(
            "\"own\"",
            "[keys.own]\nfrom = \"route\"\nservices = \"shop.v1.Orders\"\n",
        ),
    ] {
        let rules = path_of("routes.toml", &text);
        let replayed = run(&format!("replay '{}' --rules '{rules}'", log.display()));
        assert_eq!(replayed.status, 1, "{}", replayed.said);
        contains(
            &replayed.said,
            "the log has no methods, which the rules ask for",
        );
        let explained = run(&format!("explain '{rules}' --path /a"));
        for said in [replayed.said, explained.said] {
            contains(&said, "only a router knows the route of a request");
        }
    }
}
