//! Set-ups that would limit nothing, and would not show it: found when the layer is built.

use super::*;

fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(&MemoryStore::new())
}

fn rule() -> Rule {
    Limit::per_hour(1).by(PeerIp)
}

fn none() -> Vec<Rule> {
    Vec::new()
}

#[test]
fn a_layer_has_a_rule() {
    for ruleless in [
        builder(),
        builder().otherwise(none()),
        builder().on("/health", none()),
        builder().rules(Rules::new()),
        builder().rules(Rules::new().deny(Requests::on("/admin"))),
        builder().enabled(false),
    ] {
        let said = "there is no rule, so nothing would be limited: add `.otherwise(rule)`";
        mistake(ruleless.build(), ConfigErrorKind::LimitsNothing, said);
    }
    let exempts = builder().on("/health", none());
    for ruled in [exempts.otherwise(rule()), builder().on("/login", rule())] {
        assert!(ruled.build().is_ok());
    }
}

#[track_caller]
fn assert_unreachable(builder: RateLimitLayerBuilder, entry: &str, behind: &str) {
    let said = format!("the entry {entry:?} is never reached, as {behind:?} before it matches");
    mistake(builder.build(), ConfigErrorKind::LimitsNothing, &said);
}

/// The properties of the index have what reaches what.
#[test]
fn every_entry_is_reached() {
    let (login, all) = ("POST /login", "/{*rest}");
    for (first, second) in [(login, login), (all, login)] {
        // Also where the one before exempts.
        for rules in [vec![rule()], none()] {
            let table = Rules::new()
                .on(first, rules)
                .on_request(|_| false, rule())
                .on(second, rule());
            assert_unreachable(builder().rules(table), second, first);
        }
    }
    assert!(builder().on(login, rule()).on(all, rule()).build().is_ok());
    let calls = builder().on_grpc("a.B", rule()).on_grpc("a.B/C", rule());
    assert_unreachable(calls, "a.B/C", "a.B");
    // What closures match is not known.
    let closures = Rules::new()
        .on_request(|_| true, rule())
        .on_request(|_| true, rule());
    assert!(builder().rules(closures).on("/a", rule()).build().is_ok());
}

#[test]
fn the_rules_of_otherwise_are_not_lost() {
    let twice = builder().otherwise(rule()).otherwise(rule().named("other"));
    let said = "`otherwise` was called twice, and the second call would replace the rules of the \
                first: give all of them in one list";
    mistake(twice.build(), ConfigErrorKind::LimitsNothing, said);
    let list = builder().otherwise([rule(), rule().named("other")]);
    assert!(list.build().is_ok());
    let replaced = builder().otherwise(rule()).otherwise(none());
    let replaced = replaced.rules(Rules::new().otherwise(rule()));
    let said = "`rules` would replace the rules and lists that the builder has by now";
    mistake(replaced.build(), ConfigErrorKind::LimitsNothing, said);
}

#[test]
fn a_pattern_can_match() {
    for (pattern, said) in [
        ("FETCH /a", "not one of GET, HEAD, POST"),
        ("BREW /pot", "matched by `on_request`"),
        ("GET /a?b=c", "the query and the fragment"),
        ("/a//b", "two slashes stand for one"),
        ("//a", "two slashes stand for one"),
        ("/./a", "clients resolve"),
        ("/a/%2E%2e", "clients resolve"),
        ("/a%2fb", "some services read `%2F` as a slash"),
    ] {
        let built = builder().on(pattern, rule()).build();
        let text = built.as_ref().unwrap_err().to_string();
        assert!(text.contains(said), "{text}");
        mistake(built, ConfigErrorKind::Pattern, &format!("{pattern:?}"));
    }
    for method in [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "CONNECT",
        "OPTIONS",
        "TRACE",
        "PATCH",
        "QUERY",
        "PROPFIND",
        "REPORT",
        "VERSION-CONTROL",
    ] {
        let built = builder().on(&format!("{method} /a"), rule()).build();
        assert!(built.is_ok(), "{method}");
    }
}

#[test]
fn no_proxies_are_no_number_of_proxies() {
    let rules = || Rules::new().otherwise(rule());
    for hops in [1, 64] {
        let by = Limit::per_hour(1).by(ClientIp::hops(hops));
        assert!(builder().otherwise(by).build().is_ok(), "{hops}");
    }
    for hops in [0, 65] {
        let client = ClientIp::hops(hops);
        let listed = Requests::from_networks(client.clone(), ["10.0.0.0/8"]);
        let by = Limit::per_hour(1).by(client);
        for layer in [
            builder().otherwise(by),
            builder().rules(rules().deny(listed.clone())),
            builder().rules(rules().allow(listed)),
        ] {
            let said = format!(
                "1 to 64 proxies can be trusted, not {hops}: without a proxy count by `PeerIp`"
            );
            mistake(layer.build(), ConfigErrorKind::Network, &said);
        }
    }
}

#[test]
fn not_everybody_is_allowed() {
    for network in ["0.0.0.0/0", "::/0"] {
        let all = || Requests::from_networks(PeerIp, ["192.0.2.0/24", network]);
        let rules = || Rules::new().otherwise(rule());
        let built = builder().rules(rules().allow(all())).build();
        let said = format!(
            "{network:?} cannot be in a list of networks: it contains every address, \
             so nothing would be limited"
        );
        mistake(built, ConfigErrorKind::Network, &said);
        // A list that denies all requests leaves no limit out.
        assert!(builder().rules(rules().deny(all())).build().is_ok());
    }
    let every_path = || Requests::on("/{*path}");
    let rules = || Rules::new().otherwise(rule());
    let built = builder().rules(rules().allow(every_path())).build();
    let said = "every path but `/` would be allowed, so next to nothing would be limited";
    mistake(built, ConfigErrorKind::LimitsNothing, said);
    for rules in [
        rules().deny(every_path()),
        rules().allow(Requests::on("GET /{*path}")),
        rules().allow(Requests::on("/a/{*path}")),
    ] {
        assert!(builder().rules(rules).build().is_ok());
    }
    let near = Requests::from_networks(PeerIp, ["10.0.0.0/8", "::/1"]);
    let rules = Rules::new().otherwise(Limit::per_hour(1).by(Constant("all")));
    assert!(builder().rules(rules.allow(near)).build().is_ok());
}
