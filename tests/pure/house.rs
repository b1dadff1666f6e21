//! Keeps the tree of dependencies light, files short, and documents complete.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde::Deserialize;

use kit::files;

#[test]
fn no_file_is_too_long_to_see() {
    let long: Vec<_> = [files("src", "rs"), files("lua", "lua")]
        .concat()
        .into_iter()
        .filter(|file| read(file).lines().count() > 600)
        .collect();
    assert!(long.is_empty(), "split these: {long:?}");
}

/// rustfmt breaks code, and leaves comments as they are.
#[test]
fn no_comment_is_too_wide_to_see() {
    let sources = ["src", "tests", "examples", "benches"].map(|folder| files(folder, "rs"));
    let mut wide = Vec::new();
    for file in [sources.concat(), files("lua", "lua")].concat() {
        let text = read(&file);
        let comments = text.lines().zip(1..).filter(|(line, _)| {
            let line = line.trim_start();
            line.starts_with("//") || line.starts_with("--")
        });
        let found = comments.filter(|(line, _)| line.chars().count() > 100);
        wide.extend(found.map(|(_, number)| format!("{}:{number}", file.display())));
    }
    assert!(wide.is_empty(), "break these: {wide:?}");
}

#[test]
fn the_tree_stays_light() {
    let memory = crates(&["--no-default-features"]);
    assert!(memory.len() <= 25, "{}: {memory:?}", memory.len());
    let config = crates(&["--no-default-features", "--features", "config"]);
    // Seven of them are serde's, five for the build alone.
    assert!(config.len() <= 31, "{}: {config:?}", config.len());
    // By the lock file, which has IDNA without ICU: `cargo update -p idna_adapter --precise 1.1.0`
    // after each `cargo update`.
    let default = crates(&[]);
    assert!(default.len() <= 55, "{}: {default:?}", default.len());
    let topologies = "redis,cluster,sentinel";
    let redis = crates(&["--features", topologies]);
    let others = redis.len() - 1;
    assert!(others <= 60, "{others}: {redis:?}");
    // Frameworks are for users to bring.
    for heavy in ["tower", "hyper", "axum", "tonic", "toml"] {
        assert!(!redis.contains(heavy), "{heavy} is a normal dependency");
    }
    let metrics = crates(&["--no-default-features", "--features", "metrics"]);
    let added: Vec<_> = metrics.difference(&memory).collect();
    assert_eq!(added, ["metrics", "rapidhash", "rustversion"]);
    // On top of the sixty: TLS needs its own crates.
    let tls = crates(&["--features", &format!("{topologies},tls")]);
    let added: Vec<_> = tls.difference(&redis).collect();
    let calendar = crates(&["--no-default-features", "--features", "calendar"]);
    let readme = read("README.md");
    for claim in [
        format!("the crate brings {} others", memory.len() - 1),
        format!("and with it 73: {} of them remain", default.len() - 1),
        format!("`tls` adds {}", added.len()),
        format!("`calendar` {}.", calendar.difference(&memory).count()),
    ] {
        assert!(
            readme.contains(&claim),
            "README.md should say: {claim}: {added:?}"
        );
    }
}

/// A new user waits for what the first command of the README builds: of the server, which is a
/// package of its own, and of nothing that tests need.
#[test]
fn the_first_command_stays_light() {
    assert!(read("README.md").contains("\ncargo run -p server\n"));
    let built = crates_by("normal,build", &["-p", "server"]);
    assert!(built.len() <= 90, "{}: {built:?}", built.len());
    assert!(built.contains("redis"), "{built:?}");
}

/// A first page is read in some minutes, and what programs read first leaves room for their work.
#[test]
fn the_first_pages_are_short() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= 1700, "{words} words");
    let lines = read("llms.txt").lines().count();
    assert!(lines <= 60, "{lines} lines");
}

/// `--servers` runs each server that the README names, and so does CI.
#[test]
fn the_servers_of_the_readme_are_tested() {
    let readme = read("README.md").replace('\n', " ");
    let claim = "All tests run on Redis 7.0; those of what servers differ in also run on ";
    let (_, named) = readme.split_once(claim).expect(claim);
    let (named, _) = named.split_once(". ").expect("the end of the sentence");
    // "Redis 6.2 and 8.2 and on Valkey 8.1 and 9.1"
    let mut engine = "";
    let mut claimed = BTreeSet::new();
    for word in named.split(' ') {
        match word {
            "Redis" => engine = "redis",
            "Valkey" => engine = "valkey",
            "and" | "on" => {}
            version => {
                claimed.insert(format!("{engine}-{version}"));
            }
        }
    }
    let list = |file: &str, before: &str, after: char| -> BTreeSet<String> {
        let text = read(file);
        let (_, list) = text.split_once(before).expect(before);
        let (list, _) = list.split_once(after).expect("its end");
        let servers = list.split(',').map(|server| server.trim().to_owned());
        servers.collect()
    };
    let before = "--servers)\n            servers=";
    assert_eq!(list("tests/run.sh", before, '\n'), claimed);
    assert_eq!(list(".github/workflows/ci.yml", "server: [", ']'), claimed);
}

/// `benches/goals` measures other crates too. They are in its own lockfile, and in nothing
/// published.
#[test]
fn the_peers_stay_outside() {
    let lock = read("Cargo.lock");
    for peer in ["governor", "tower_governor"] {
        let entry = format!("name = \"{peer}\"");
        assert!(!lock.contains(&entry), "{peer} is a dependency");
        assert!(read("benches/goals/Cargo.lock").contains(&entry), "{peer}");
    }
    let output = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline"])
        .output()
        .expect("cargo runs");
    let listed = String::from_utf8_lossy(&output.stdout);
    assert!(listed.contains("src/lib.rs"), "{listed}");
    assert!(!listed.contains("benches/"), "{listed}");
    let is_test = |file: &str| file.starts_with("tests/");
    assert!(!listed.lines().any(is_test), "{listed}");
}

/// The ways of a request and of a change in CONTRIBUTING.md are those in the code.
#[test]
fn each_function_on_the_way_stands_in_its_file() {
    let page = read("CONTRIBUTING.md");
    let section = |title: &str| {
        let (_, section) = page.split_once(&format!("\n## {title}\n")).expect(title);
        section.split("\n## ").next().expect("its text")
    };
    let request = section("One request through the code");
    let change = section("One change of a rule");
    let mut rows = 0;
    let lines = request.lines().chain(change.lines());
    for row in lines.filter_map(|line| line.strip_prefix("| `")) {
        let [function, _, file, ..] = row.split('`').collect::<Vec<_>>()[..] else {
            panic!("no file: {row}");
        };
        let (of, name) = function.rsplit_once("::").unwrap_or(("", function));
        let text = read(format!("src/{file}"));
        let words = text.split(|it: char| !it.is_alphanumeric() && it != '_');
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        let is_there = words.windows(2).any(|two| two == ["fn", name]);
        assert!(is_there, "{function} is not in {file}");
        assert!(
            of.is_empty() || words.contains(&of),
            "{of} is not in {file}"
        );
        rows += 1;
    }
    assert!(rows > 40, "{rows}");
}

/// The library has the same dependencies where it is tried in every order, and in a fleet, as
/// elsewhere.
#[test]
fn the_library_has_the_same_dependencies_in_packages_of_its_own() {
    let dependencies = |manifest: &str| {
        let manifest: toml::Table = read(manifest).parse().expect("a manifest");
        manifest["dependencies"]
            .as_table()
            .expect("a table")
            .clone()
    };
    let ours = dependencies("Cargo.toml");
    let theirs = ["tests/interleavings/Cargo.toml", "benches/fleet/Cargo.toml"].map(dependencies);
    for (name, theirs) in theirs.into_iter().flatten() {
        if ["libc", "loom", "rand", "rand_distr"].contains(&&*name) {
            continue;
        }
        let version = |requirement: &toml::Value| {
            let version = requirement.get("version").unwrap_or(requirement);
            version.as_str().map(str::to_owned)
        };
        let ours = ours.get(&name).and_then(version);
        assert!(ours.is_some(), "{name} is no dependency");
        assert_eq!(version(&theirs), ours, "{name}");
    }
}

#[test]
fn every_script_says_what_it_takes_and_gives() {
    let table = read("lua/README.md");
    for file in files("lua", "lua") {
        let text = read(&file);
        let header: String = text
            .lines()
            .take_while(|line| line.starts_with("--"))
            .collect();
        let below = file.strip_prefix("lua").expect("a file of the folder");
        let name = below.to_str().expect("a path");
        // The others of its folder are parts of it.
        let is_packed = below.starts_with("packed");
        if is_packed && !below.ends_with("decide.lua") {
            continue;
        }
        assert!(header.contains("KEYS"), "{name}: say which keys there are");
        // Each verb says it for itself, if it is not the same for every algorithm.
        for verb in text.split("\nfunction verbs.").skip(1) {
            let (verb, _) = verb.split_once('(').expect("its arguments");
            let row = format!("| `{verb}` |");
            assert!(table.contains(&row), "lua/README.md lacks {verb}");
            let described = format!(".\nfunction verbs.{verb}(");
            assert!(text.contains(&described), "{name}: say what {verb} does");
        }
        let is_part = ["lib", "entries.lua", "state.lua"];
        if below
            .iter()
            .any(|part| is_part.iter().any(|name| part == *name))
        {
            continue;
        }
        for part in ["ARGV", "Reply", "Redisson"] {
            // Limiters of our own have nothing to do with it.
            let is_needed = part != "Redisson" || !is_packed;
            assert!(
                !is_needed || header.contains(part),
                "{name}: its header lacks {part}"
            );
        }
        assert!(
            table.contains(&format!("| `{name}` |")),
            "lua/README.md lacks {name}"
        );
    }
}

/// Nothing can be built there.
#[test]
fn scripts_of_benches_say_what_they_take_without_a_build() {
    for script in ["fleet", "goals", "goals --instructions", "peers"] {
        let (script, options) = script.split_once(' ').unwrap_or((script, ""));
        let mut help = Command::new(format!("benches/{script}.sh"));
        help.args(options.split_whitespace()).arg("--help");
        let help = help.env("CARGO_TARGET_DIR", "/dev/null/none").output();
        let text = String::from_utf8(help.unwrap().stdout).unwrap();
        assert!(
            text.contains("--write") || text.contains("--quick"),
            "{text}"
        );
    }
}

/// Each verb of `RateLimiter` is in the parity table, and nothing else is. Verbs that Redisson
/// lacks have a row that begins with `none`.
#[test]
fn the_parity_table_is_complete() {
    let all_of = read("src/limiter/all_of.rs");
    let (begins_all, _) = all_of.split_once("impl AllOf").expect("its methods");
    let source = ["ban", "mod", "permits", "rate", "time_to_live"]
        .map(|file| read(format!("src/limiter/{file}.rs")))
        .concat();
    let source = source + begins_all;
    let verbs: BTreeSet<_> = source
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("pub "))
        .filter_map(|line| {
            line.strip_prefix("async fn ")
                .or_else(|| line.strip_prefix("fn "))
        })
        .filter_map(|line| line.split(['(', '<']).next())
        .filter(|name| *name != "new")
        .map(str::to_owned)
        .collect();
    let page = read("src/docs/redisson.md");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `") || line.starts_with("| none |"));
    let listed: BTreeSet<_> = rows
        .filter_map(|row| row.split('|').nth(3))
        .flat_map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter(|name| !name.contains("::"))
        .collect();
    assert_eq!(verbs, listed);
}

#[test]
fn the_readme_knows_every_feature() {
    let readme = read("README.md");
    let manifest: toml::Table = read("Cargo.toml").parse().expect("a manifest");
    let features = manifest["features"].as_table().expect("features");
    let named: BTreeSet<_> = features
        .keys()
        // What begins with `_` turns on what several features need.
        .filter(|name| *name != "default" && !name.starts_with('_'))
        .cloned()
        .collect();
    let (_, section) = readme.split_once("\n## Features\n").expect("the section");
    let listed: BTreeSet<_> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(named, listed);
}

/// A row of the fault matrix: see `tests/matrix/rows.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    fault: String,
    played: Vec<String>,
    #[serde(default)]
    also: Vec<(String, String)>,
}

/// Each of the 34 faults has its tests, each test of the matrix its row, and the page has them all.
#[test]
fn the_fault_matrix_is_whole() {
    let mut played = BTreeSet::new();
    for file in files("tests/matrix", "rs") {
        let text = read(&file);
        let tests = text.split("async fn row_").skip(1);
        played.extend(tests.filter_map(|rest| Some(format!("row_{}", rest.split('(').next()?))));
    }
    let page = read("tests/matrix/README.md");
    let list: BTreeMap<String, Vec<Row>> = toml::from_str(&read("tests/matrix/rows.toml")).unwrap();
    assert_eq!(list["row"].len(), 34);
    for (row, number) in list["row"].iter().zip(1..) {
        let prefix = format!("row_{number:02}");
        assert!(!row.played.is_empty(), "{prefix}");
        for test in &row.played {
            assert!(test.starts_with(&prefix), "{test} is not of {prefix}");
            assert!(played.remove(test), "there is no {test}");
        }
        for (file, test) in &row.also {
            let text = read(file);
            let found = [format!("fn {test}("), format!("name = \"{test}\"")];
            assert!(
                found.iter().any(|it| text.contains(it)),
                "{file} lacks {test}"
            );
        }
        let line = format!("| {number} | {} |", row.fault);
        let listed = page.lines().find(|listed| listed.starts_with(&line));
        let listed = listed.unwrap_or_else(|| panic!("tests/matrix/README.md lacks {line}"));
        assert!(
            listed.contains(&format!("--test matrix {prefix}")),
            "{listed}"
        );
    }
    assert!(played.is_empty(), "of no row: {played:?}");
}

/// Each stack that the page calls tested has a module with a test, is of the version that stands in
/// the lock file, and its lines on the page are those of the module.
#[test]
fn each_tested_stack_has_its_module() {
    let flat = |code: &str| code.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let page = read("src/docs/stacks.md");
    let (tested, _) = page.split_once("\n## Not tried\n").expect("the section");
    let modules = read("examples/stacks/src/lib.rs");
    let modules = modules.lines().filter_map(|it| it.strip_prefix("pub mod "));
    let mut modules: BTreeSet<_> = modules.map(|it| it.trim_end_matches(';')).collect();
    let lock = read("examples/stacks/Cargo.lock");
    let mut sections = tested.split("\n## ");
    let table = sections.next().expect("the table");
    let mut sections: BTreeMap<_, _> = sections.filter_map(|it| it.split_once('\n')).collect();
    for row in table.lines().filter_map(|line| line.strip_prefix("| [")) {
        let (stack, version) = row.split_once("](#").expect(row);
        let version = version.split(" | ").nth(1).expect(row);
        let locked = format!("name = \"{stack}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&locked), "{stack} {version} is not locked");
        let module = stack.replace('-', "_");
        assert!(modules.remove(&*module), "there is no module {module}");
        let source = read(format!("examples/stacks/src/{module}.rs"));
        assert!(source.contains("#[tokio::test]"), "{module} has no test");
        let section = sections.remove(stack).expect(stack);
        let mut blocks = section.split("\n```").skip(1).step_by(2).peekable();
        assert!(blocks.peek().is_some(), "{stack} has no lines");
        let source = flat(&source);
        for block in blocks {
            let (_, block) = block.split_once('\n').expect("its lines");
            assert!(source.contains(&flat(block)), "{module} lacks: {block}");
        }
    }
    assert!(sections.is_empty(), "not in the table: {sections:?}");
    assert!(modules.is_empty(), "not on the page: {modules:?}");
}

/// The crates of the normal tree, ourselves included.
fn crates(arguments: &[&str]) -> BTreeSet<String> {
    crates_by("normal", arguments)
}

fn crates_by(edges: &str, arguments: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree", "--edges", edges, "--prefix", "none", "--format", "{p}",
        ])
        .args(arguments)
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
