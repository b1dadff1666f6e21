//! Files that would limit nothing, and would not show it.

use super::file;

const RULE: &str = "[rules.all]\nrate = \"5/1m\"\nby = \"peer\"\n";

/// Returns the error for a file with one rule and this text.
fn error_of(text: &str) -> String {
    let text = format!("{RULE}{text}");
    match file().parse(&text) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

/// A file that is about to be written is empty: it must not lift all limits.
#[test]
fn a_file_has_rules() {
    for empty in [
        "",
        "# soon",
        "[rules]",
        "headers = []",
        "[otherwise]\nrules = []",
    ] {
        let error = file().parse(empty).unwrap_err().to_string();
        assert!(error.contains("there are no rules"), "{error}");
        assert!(error.contains("`[rules.api]`"), "{error}");
    }
}

#[test]
fn every_entry_is_reached() {
    const ALL: &str = "rules = [\"all\"]\n";
    let two = |first: &str, second: &str| {
        error_of(&format!("[[on]]\n{first}\n{ALL}[[on]]\n{second}\n{ALL}"))
    };
    for (first, second) in [
        ("route = \"POST /login\"", "route = \"POST /login\""),
        ("route = \"/users/{id}\"", "route = \"GET /users/me\""),
        ("grpc = \"a.B\"", "grpc = \"a.B/C\""),
        ("host = \"a.example\"", "host = [\"a.example\"]"),
        ("method = [\"GET\", \"PUT\"]", "method = [\"PUT\", \"GET\"]"),
        (
            "route = \"/a\"\nhost = \"b.example\"",
            "host = \"b.example\"\nroute = \"/a\"",
        ),
        ("when = \"bulk\"", "when = \"bulk\""),
    ] {
        let message = two(first, second);
        let line = 6 + first.lines().count();
        let expected = format!("line {line}, on[1]: it is never reached, as the entry in line 4 ");
        assert!(
            message.starts_with(&expected),
            "{first} {second}: {message}"
        );
    }
    for (first, second) in [
        ("route = \"POST /login\"", "route = \"/login\""),
        ("route = \"/a\"\nhost = \"b.example\"", "route = \"/a\""),
        ("when = \"bulk\"", "when = \"bulk\"\nroute = \"/a\""),
    ] {
        assert_eq!(two(first, second), "", "{first} {second}");
    }
}

#[test]
fn values_that_limit_nothing_are_named() {
    let otherwise = "[otherwise]\nrules = [\"all\"]\n";
    for (text, expected) in [
        (
            "[[on]]\nmethod = [\"GET\", \"FETCH\"]\nrules = [\"all\"]",
            "line 5, on[0].method[1]: \"FETCH\": the method is not one of GET, HEAD,",
        ),
        (
            "[[on]]\nroute = \"FETCH /a\"\nrules = [\"all\"]",
            "line 5, on[0].route: \"FETCH /a\" is not",
        ),
        (
            "[keys.client]\nfrom = \"client-ip\"\nhops = 0\n",
            "line 6, keys.client.hops: 1 to 64 proxies can be trusted, not 0: without a proxy",
        ),
        (
            "[[allow]]\nby = \"peer\"\nnetworks = [\"10.0.0.0/8\", \"::/0\"]\n",
            "line 6, allow[0].networks[1]: \"::/0\": it contains every address",
        ),
        (
            "[rules.free]\nrate = \"1/s\"\nby = \"peer\"\ncost = { GET = 0, otherwise = 0 }\n",
            "line 7, rules.free.cost: every method is free",
        ),
    ] {
        let message = error_of(&format!("{text}\n{otherwise}"));
        assert!(message.starts_with(expected), "{message}");
    }
}
