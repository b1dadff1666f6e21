//! The command `ratelimit`, run as users run it.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

mod bans;
mod check;
mod columns;
mod diff;
mod formats;
mod limiters;
mod order;
mod replay;
mod rules;
mod users;

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;

/// What the command printed, what it said, and its exit status.
struct Ran {
    output: String,
    said: String,
    status: i32,
}

/// The command, with nothing of this process's surroundings.
fn tool() -> Command {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_ratelimit"));
    for name in ["REDIS_URL", "REDIS_PASSWORD", "COLUMNS"] {
        tool.env_remove(name);
    }
    tool
}

fn ratelimit(arguments: &[&str], input: &[u8]) -> Ran {
    let mut child = tool()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    // It may end before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("it ends");
    Ran {
        output: String::from_utf8(output.stdout).expect("text"),
        said: String::from_utf8(output.stderr).expect("text"),
        status: output.status.code().expect("it ended by itself"),
    }
}

/// Splits a line into arguments, as a shell does: at blanks outside single quotes.
fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').zip([false, true].into_iter().cycle());
    let words = parts.flat_map(|(part, quoted)| {
        if quoted {
            vec![part]
        } else {
            part.split_whitespace().collect()
        }
    });
    words.collect()
}

/// Runs the command without input.
fn run(line: &str) -> Ran {
    ratelimit(&words(line), b"")
}

#[track_caller]
fn contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in: {text}");
}

/// Asserts that the documents name each member of what `--json` prints.
fn assert_documented(value: &Value) {
    let text = include_str!("../../src/docs/command.md");
    let (_, section) = text.split_once("\n## JSON\n").expect("a section");
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            assert!(
                section.contains(&format!("`{name}`")),
                "{name} is not documented"
            );
            assert_documented(value);
        }),
        Value::Array(values) => values.iter().for_each(assert_documented),
        _ => {}
    }
}

/// A file for one test.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, bytes).expect("a file");
    path
}

#[test]
fn mistakes_are_named() {
    for (line, said) in [
        ("", "Usage: ratelimit"),
        ("unknown", "'unknown'"),
        ("replay", "<LOG>"),
        ("replay access.log --demo", "--demo"),
        ("replay access.log --limit 60", "'60'"),
        ("replay access.log --limit 60/1m --share 2", "'2'"),
        ("replay --demo --limit '10/s and 500/h'", "`--rules`"),
        ("replay access.log --reorder long", "'long'"),
        ("replay access.log --columns duration=t:h", "`h`"),
        ("replay access.log --columns times=3", "`time`"),
        ("replay there/is/no.log --limit 60/1m", "there/is/no.log"),
        ("ban ann --for 0 --redis redis://127.0.0.1/", "'0'"),
        ("watch ann --every 0 --redis redis://127.0.0.1/", "'0'"),
        ("watch ann --count 0 --redis redis://127.0.0.1/", "'0'"),
        ("check", "<FILE>"),
        ("check there/is/no.toml", "there/is/no.toml"),
        ("explain LIMITS", "--path"),
        ("explain LIMITS --path 'a b'", "\"a b\""),
        ("explain LIMITS --path / --method 'G T'", "\"G T\""),
        ("explain LIMITS --path / --ip host", "'host'"),
        ("explain LIMITS --path / --header x", "'x'"),
        ("explain LIMITS --path / --key user=a", "\"user\""),
        ("check SERVICE --tier plans=paid", "\"plans\""),
        ("check SERVICE --tier plan=gold", "\"free\", \"paid\""),
        ("check SERVICE --tier plan", "'plan'"),
        ("check SERVICE --when beta=true", "\"beta\""),
        ("check SERVICE --when beta=yes", "'beta=yes'"),
        ("check SERVICE --cost row=2", "\"row\""),
        ("diff LIMITS", "<NEW>"),
        ("diff LIMITS none.toml", "none.toml"),
        ("diff LIMITS SERVICE --fail-on-newly-refused", "--log"),
        ("diff LIMITS SERVICE --log none.log", "none.log"),
        ("replay none.log --rules LIMITS", "none.log"),
        ("replay none.log --rules LIMITS --limit 1/1s", "--limit"),
        ("replay a.log --limit 1/1s --tier plan=paid", "--rules"),
        ("replay a.log --limit 1/1s --field a=b", "--rules"),
        ("replay --demo --rules LIMITS", "--demo"),
        ("completions shell", "'shell'"),
    ] {
        let line = line.replace("LIMITS", "examples/server/limits.toml");
        let ran = run(&line.replace("SERVICE", "examples/service.toml"));
        assert_eq!((ran.status, ran.output.as_str()), (2, ""), "{line}");
        contains(&ran.said, said);
    }
}

/// The commands, as the help lists them.
fn commands() -> Vec<String> {
    let help = run("-h").output;
    let (_, listed) = help.split_once("Commands:\n").expect("a list");
    let names = listed.lines().take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.split_whitespace().next());
    // It is no command of ours, and has no help.
    let names = names.filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn every_help_fits_a_screen() {
    let commands = commands();
    assert!(commands.len() > 12, "{commands:?}");
    assert_eq!(run("--version").status, 0);
    for command in [""].into_iter().chain(commands.iter().map(String::as_str)) {
        for (option, lines, columns) in [("-h", 24, 80), ("--help", usize::MAX, 100)] {
            let ran = run(&format!("{command} {option}"));
            assert_eq!(ran.status, 0, "{command} {option}");
            let help = ran.output;
            let widest = help.lines().map(|line| line.chars().count()).max();
            let size = (help.lines().count(), widest.unwrap_or(0));
            assert!(
                size.0 <= lines && size.1 <= columns,
                "{command} {size:?}:\n{help}"
            );
        }
    }
}

#[test]
fn every_help_has_an_example_and_says_how_it_ends() {
    for command in commands() {
        let help = run(&format!("{command} --help")).output;
        contains(&help, "Example");
        contains(&help, &format!("`ratelimit {command} "));
        if command != "completions" {
            contains(&help, "Exits with 0 ");
        }
        if help.contains("--redis") {
            contains(&help.replace('\n', " "), "with 3 if Redis cannot be asked");
        }
    }
    contains(
        &run("--help").output,
        "Exits with 0 if all is well, with 1 ",
    );
}

#[test]
fn shells_complete() {
    let script = run("completions bash").output;
    assert!(script.contains("_ratelimit") && script.contains("--fail-on-newly-refused"));
}

#[test]
fn nothing_is_coloured() {
    for (name, value) in [("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")] {
        for line in [
            "--help",
            "unknown",
            "check examples/service.toml",
            "explain examples/service.toml --path /",
            "replay --demo",
        ] {
            let ran = tool().args(words(line)).env(name, value).output();
            let ran = ran.expect("the command runs");
            let printed = [ran.stdout, ran.stderr].concat();
            assert!(!printed.is_empty() && !printed.contains(&0x1b), "{line}");
        }
    }
}
