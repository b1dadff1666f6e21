//! The boundaries: which module may name which. A list of exceptions must have no entry too many.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{File, Names, Source};

/// Plain values, and what any file may use: these import nothing but each other.
const VALUES: [&str; 3] = ["values", "macros", "sync"];

fn is_in(module: &[String], places: &[&str]) -> bool {
    let module = module.join("::");
    let inside = |place: &&str| {
        module
            .strip_prefix(*place)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    places.iter().any(inside)
}

/// The modules that `breaks` names, each with what it names.
fn broken(breaks: impl Fn(&Names, &File) -> Vec<String>) -> BTreeMap<String, Vec<String>> {
    let source = Source::read();
    let all = source.files.iter().filter(|(module, _)| !module.is_empty());
    let broken = all.map(|(module, file)| (module.join("::"), breaks(module, file)));
    broken.filter(|(_, what)| !what.is_empty()).collect()
}

fn outside(file: &File, crates: impl Fn(&str) -> bool) -> Vec<String> {
    let named = file.outside.iter().filter(|path| crates(&path[0]));
    named.map(|path| path.join("::")).collect()
}

#[test]
fn only_web_knows_requests() {
    let broken = broken(|module, file| {
        // What users write tests with knows responses.
        if is_in(module, &["web", "testing"]) {
            return Vec::new();
        }
        let mut named = outside(file, |name| {
            ["http", "http_body", "axum", "tonic"].contains(&name) || name.starts_with("tower")
        });
        let web = file
            .used
            .iter()
            .filter(|path| path.first().is_some_and(|it| it == "web"));
        named.extend(web.map(|path| path.join("::")));
        named
    });
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn only_its_store_knows_redis() {
    let places = ["store::redis", "inspect"];
    let named = broken(|module, file| {
        if is_in(module, &places) {
            Vec::new()
        } else {
            outside(file, |name| ["redis", "deadpool_redis"].contains(&name))
        }
    });
    assert!(named.is_empty(), "{named:#?}");
}

/// Each could go without the other.
#[test]
fn the_two_formats_in_redis_do_not_know_each_other() {
    for [one, other] in [["packed", "redisson"], ["redisson", "packed"]] {
        let [one, other] = [one, other].map(|format| format!("store::redis::{format}"));
        let of_other = strangers(&[&one], |it| !is_in(it, &[&other]));
        assert_eq!(of_other, []);
    }
}

/// The modules outside of the store's that have parts for the feature `redis` alone: fewer each
/// time.
#[test]
fn what_is_compiled_for_redis_alone() {
    let places = ["store::redis", "inspect"];
    let asks = broken(|module, file| match file.asks_for_redis {
        1.. if !is_in(module, &places) => vec![file.asks_for_redis.to_string()],
        _ => Vec::new(),
    });
    let asks: BTreeSet<_> = asks.keys().map(String::as_str).collect();
    let known = BTreeSet::from([
        // The line in the log is a Redis store's.
        "sinks",
        "store",
        "values::observe",
        "values::observe::observed_rule",
    ]);
    assert_eq!(asks, known);
}

/// Returns what the modules in these places use and do not know.
fn strangers(places: &[&str], known: impl Fn(&Names) -> bool) -> Vec<(String, String)> {
    let uses = Source::read().uses().into_iter();
    let inside = uses.filter(|(module, _)| !module.is_empty() && is_in(module, places));
    let named = inside.flat_map(|(module, used)| {
        let others = used.into_iter().filter(|other| !known(other));
        others.map(|other| (module.join("::"), other.join("::")))
    });
    named.collect()
}

#[test]
fn values_know_values_alone() {
    assert_eq!(strangers(&VALUES, |it| is_in(it, &VALUES)), []);
}

#[test]
fn counting_knows_values_alone() {
    let known = |it: &Names| is_in(it, &VALUES) || is_in(it, &["algorithm"]);
    assert_eq!(strangers(&["algorithm"], known), []);
}

#[test]
fn what_the_command_needs_is_values_and_counting() {
    let known = |it: &Names| is_in(it, &VALUES) || is_in(it, &["algorithm", "command"]);
    assert_eq!(strangers(&["command"], known), []);
}

#[test]
fn guards_know_no_store() {
    let known =
        |it: &Names| is_in(it, &VALUES) || is_in(it, &["store::guard"]) || it.join("::") == "store";
    assert_eq!(strangers(&["store::guard"], known), []);
}

#[test]
fn one_module_reads_the_clock() {
    let places = ["values::clock", "store::redis::transport"];
    let broken = broken(|module, file| {
        if file.reads_clock && !is_in(module, &places) {
            vec!["now".to_owned()]
        } else {
            Vec::new()
        }
    });
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Files that use each other in a circle: a `mod.rs` and its children where the child needs a type
/// of it, and what is still to be taken apart.
#[test]
fn no_circle_but_these() {
    let source = Source::read();
    let found = circles(&source.uses());
    let found: BTreeSet<String> = found
        .iter()
        .map(|circle| {
            let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
            names.join(" ")
        })
        .collect();
    let known = [
        // A log's entries are those of slots where a limit has them.
        "algorithm::sliding_log algorithm::sliding_log::slots",
        // Those that wait and those that do not are the parts of an outbox.
        "store::guard::outbox store::guard::outbox::command store::guard::outbox::waits",
        // A file is read entry by entry, each with what the user has registered.
        "web::rules_file web::rules_file::entries web::rules_file::keys web::rules_file::rule_fields",
    ];
    assert_eq!(found, BTreeSet::from(known.map(str::to_owned)));
}

#[test]
fn no_circle_in_the_command() {
    let command = Source::of("src/bin/ratelimit/main.rs");
    assert!(command.files.len() > 20, "{}", command.files.len());
    assert_eq!(circles(&command.uses()), BTreeSet::new());
}

/// Returns the groups of files that use each other in a circle.
fn circles(uses: &BTreeMap<&Names, BTreeSet<Names>>) -> BTreeSet<BTreeSet<Names>> {
    let reached = |from: &Names| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&Names> = uses[from].iter().collect();
        while let Some(module) = next.pop() {
            if seen.insert(module.clone()) {
                next.extend(&uses[module]);
            }
        }
        seen
    };
    let all: BTreeMap<&Names, BTreeSet<Names>> = uses.keys().map(|m| (*m, reached(m))).collect();
    let of = |(module, below): (&&Names, &BTreeSet<Names>)| {
        let circle = below.iter().filter(|other| all[other].contains(*module));
        let circle: BTreeSet<_> = circle.cloned().collect();
        circle.contains(*module).then_some(circle)
    };
    all.iter().filter_map(of).collect()
}
