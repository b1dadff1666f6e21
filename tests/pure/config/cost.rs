//! What reading rules costs as their number grows.

#![allow(clippy::print_stdout, reason = "times are shown, and not asserted")]

use crate::scene::*;
use std::{fmt::Write, fs};

use super::file;

/// A file of so many rules, each with a route of its own.
fn distinct(rules: usize) -> String {
    let mut text = String::new();
    for rule in 0..rules {
        write!(text, "[rules.r{rule}]\nrate = '5/1m'\nby = 'peer'\n").unwrap();
        write!(text, "[[on]]\nroute = '/{rule}'\nrules = ['r{rule}']\n").unwrap();
    }
    text
}

/// A file of so many routes that share a rule.
fn routes(routes: usize) -> String {
    let mut text = "[rules.a]\nrate = '5/1m'\nby = 'peer'\n".to_owned();
    for route in 0..routes {
        write!(text, "[[on]]\nroute = '/{route}'\nrules = ['a']\n").unwrap();
    }
    text
}

/// A file of so many rules that meet every request.
fn together(rules: usize) -> String {
    let mut text = String::new();
    for rule in 0..rules {
        write!(text, "[rules.r{rule}]\nrate = '5/1m'\nby = 'peer'\n").unwrap();
    }
    text.push_str("[otherwise]\nrules = [");
    for rule in 0..rules {
        write!(text, "'r{rule}',").unwrap();
    }
    text.push_str("]\n");
    text
}

/// The processor time of this thread in nanoseconds, as Linux counts it.
fn processor_time() -> u64 {
    // Linux counts it whenever it schedules.
    thread::yield_now();
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// The least processor time that a layer of these rules took, of three tries in a thread of its
/// own.
fn least(text: &str) -> u64 {
    let build = || {
        let begin = processor_time();
        let rules = file().parse(text).unwrap();
        let layer = RateLimitLayer::builder(&MemoryStore::new())
            .rules(rules)
            .build()
            .unwrap();
        layer.reload(file().parse(text).unwrap()).unwrap();
        processor_time() - begin
    };
    thread::scope(|scope| scope.spawn(|| (0..3).map(|_| build()).min()).join())
        .unwrap()
        .unwrap()
}

/// Ten times as many rules cost ten times as much, and the logarithm that sorting takes.
#[test]
fn the_cost_of_a_file_grows_with_its_rules() {
    for (shape, text) in [
        ("rules with a route each", distinct as fn(usize) -> String),
        ("routes with one rule", routes),
        ("rules of one entry", together),
    ] {
        let (few, many) = (least(&text(1000)), least(&text(10_000)));
        let growth = many as f64 / few as f64;
        println!("{shape}: {few} ns for 1,000, {many} ns for 10,000: {growth:.1} times");
        // A quadratic step makes it a hundred; caches that no longer hold all of it make it some twelve.
        assert!(growth <= 20.0, "{shape}: {growth:.1} times");
    }
}
