//! The names of types: each stands for one thing, so that a reader need not ask which one it is.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// A name that each module has for a thing of its own, as everybody does.
const COMMON: &str = "State";

#[test]
fn no_type_name_stands_twice() {
    let command = Source::of("src/bin/ratelimit/main.rs");
    let files = Source::read().files.values().chain(command.files.values());
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for file in files {
        for name in &file.types {
            found.entry(name).or_default().insert(&file.path);
        }
    }
    assert!(found[&COMMON.to_owned()].len() > 1, "nothing is {COMMON}");
    found.retain(|name, files| files.len() > 1 && *name != COMMON);
    assert!(found.is_empty(), "{found:#?}");
}
