//! The cost of reading rules as their number grows.

use std::ops::Range;

use kit::scene::*;

use super::file;

fn rule(name: usize) -> String {
    format!("[rules.r{name}]\nrate = '5/1m'\nby = 'peer'\n")
}

fn route(path: usize, rule: usize) -> String {
    format!("[[on]]\nroute = '/{path}'\nrules = ['r{rule}']\n")
}

/// A file of these rules, each with a route of its own.
fn distinct(rules: Range<usize>) -> String {
    rules.map(|name| rule(name) + &route(name, name)).collect()
}

/// A file of these routes, which share a rule.
fn routes(routes: Range<usize>) -> String {
    rule(0) + &routes.map(|path| route(path, 0)).collect::<String>()
}

/// A file of these rules, which meet every request.
fn together(rules: Range<usize>) -> String {
    let names = rules.clone().map(|name| format!("'r{name}',"));
    let otherwise = format!("[otherwise]\nrules = [{}]\n", names.collect::<String>());
    rules.map(rule).collect::<String>() + &otherwise
}

/// The processor time that layers of these files take, all kept until the last is made.
fn cost(files: &[String]) -> u64 {
    let store = MemoryStore::new();
    let begin = processor_time();
    let layers: Vec<_> = files
        .iter()
        .map(|text| {
            let rules = file().parse(text).unwrap();
            let layer = RateLimitLayer::builder(&store).rules(rules).build();
            let layer = layer.unwrap();
            layer.reload(file().parse(text).unwrap()).unwrap();
            layer
        })
        .collect();
    let cost = processor_time() - begin;
    drop(layers);
    cost
}

/// Ten times as many rules cost ten times as much, and the logarithm that sorting takes.
///
/// One large file is compared with ten small ones, which fill the same memory, so that caches slow
/// both equally. Other load on the machine only lengthens a turn, so the shortest of several is the
/// nearest to the work.
#[test]
fn the_cost_of_a_file_grows_with_its_rules() {
    for (shape, text) in [
        ("rules with a route each", distinct as fn(_) -> String),
        ("routes with one rule", routes),
        ("rules of one entry", together),
    ] {
        let small = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| text(1000 * n..1000 * (n + 1)));
        let large = [text(0..10_000)];
        let (mut few, mut many) = (u64::MAX, u64::MAX);
        let mut growth = f64::INFINITY;
        let mut turns = 0;
        // What is near the bound may be so by chance, and what is far beyond is not.
        while turns < 2 || (turns < 10 && growth > 12.0 && growth < 24.0) {
            few = few.min(cost(&small) / 10);
            many = many.min(cost(&large));
            growth = many as f64 / few as f64;
            turns += 1;
        }
        println!("{shape}: {few} ns for 1,000, {many} ns for 10,000: {growth:.1} times");
        // A quadratic step makes it a hundred.
        assert!(growth <= 12.0, "{shape}: {growth:.1} times");
    }
}
