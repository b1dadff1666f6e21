//! Tests that the check tries every command and compiles every text of the scripts.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::*;
use crate::inspect::diagnose::DIAGNOSE;

/// Returns the words in capitals that follow `before`.
fn words<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let words = text.split(before).skip(1);
    let words = words.filter_map(|rest| rest.split_once('\'').map(|(word, _)| word));
    words
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()))
        .collect()
}

#[test]
fn every_command_of_the_scripts_is_tried() {
    let tried = words(VERIFY.text(), "{ '");
    let mut called: BTreeSet<_> = scripts()
        .flat_map(|script| words(script.text(), "call('"))
        .collect();
    assert!(called.len() > 20, "{called:?}");
    // `RateLimiter::delete` alone needs it, and no script.
    assert!(called.insert("DEL"));
    assert_eq!(tried, called);
}

const INCLUDE: &str = "--- @include ";

fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

/// Reads a file. None has a text or comment in brackets: lines of these may not be dropped.
fn read(file: &str) -> String {
    let text = fs::read_to_string(lua().join(file)).unwrap();
    assert!(!text.contains("[[") && !text.contains("[="), "{file}");
    text
}

/// Joins a script as its lines say, with what they name for slots or without. What a line names
/// comes before the script, or after it if that line is the last.
fn join(file: &str, slots: bool, joined: &mut Vec<String>) {
    if joined.iter().any(|known| known == file) {
        return;
    }
    let text = read(file);
    let mut includes: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix(INCLUDE))
        .collect();
    let ends = |include: &str| text.trim_end().ends_with(&format!("\n{INCLUDE}{include}"));
    let after = includes.pop_if(|include| ends(include));
    for include in includes {
        match include.split_once(", ") {
            None => join(include, false, joined),
            Some((include, "with slots")) if slots => join(include, false, joined),
            Some(_) => {}
        }
    }
    joined.push(file.to_owned());
    if let Some(after) = after {
        join(after, false, joined);
    }
}

/// Joins a script whose lines name the fragments that stand there.
fn fragments(file: &str) -> String {
    let text = read(file);
    let lines = text.lines().map(|line| match line.split_once(INCLUDE) {
        Some((_, name)) => fragments(&format!("packed/{name}")),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Returns what is sent of a text.
fn sent(text: &str) -> String {
    Script::new("", text).text().to_owned()
}

/// Finds the files that say what they reply: the scripts. The others are parts of them.
fn find_scripts(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let below = path.strip_prefix(lua()).unwrap().to_str().unwrap();
        if path.is_dir() && !path.ends_with("lib") {
            find_scripts(&path, found);
        } else if path.extension().is_some_and(|end| end == "lua") {
            let text = read(below);
            let mut header = text.lines().take_while(|line| line.starts_with("--"));
            if header.any(|line| line.contains("Reply")) {
                found.push(below.to_owned());
            }
        }
    }
}

#[test]
fn scripts_are_joined_as_they_say() {
    let mut files = Vec::new();
    find_scripts(&lua(), &mut files);
    let mut texts: BTreeSet<_> = scripts().map(Script::text).collect();
    texts.extend([VERIFY.text(), DIAGNOSE.text()]);
    let mut said = BTreeSet::new();
    for file in &files {
        if file.starts_with("packed/") {
            let text = sent(&fragments(file));
            assert!(texts.contains(&*text), "no script is {file}");
            said.insert(text);
            continue;
        }
        for slots in [false, true] {
            let mut joined = Vec::new();
            join(file, slots, &mut joined);
            let text = sent(&joined.iter().map(|file| read(file)).collect::<String>());
            assert!(texts.contains(&*text), "no script is {joined:?}");
            said.insert(text);
        }
    }
    assert_eq!(
        said.len(),
        texts.len(),
        "some script is not said in {files:?}"
    );
}

/// More bytes than the longest script has: each server keeps them, and so may its replicas.
const SIZE: usize = 70_000;

#[test]
fn scripts_are_sent_without_comments_and_indentation() {
    let written = "-- Why.\n\nif x then\n  -- How.\n  return '--' -- so\nend\n";
    assert_eq!(sent(written), "if x then\nreturn '--' -- so\nend\n");
    let texts: Vec<_> = scripts().chain([&*VERIFY, &*DIAGNOSE]).collect();
    for script in &texts {
        for line in script.text().lines() {
            let is_kept = !line.starts_with("--") && !line.starts_with([' ', '\t']);
            assert!(is_kept && !line.is_empty(), "{line}");
        }
    }
    let decide = texts.iter().map(|script| script.text().len()).max();
    assert!(decide.is_some_and(|size| size < SIZE), "{decide:?}");
}
