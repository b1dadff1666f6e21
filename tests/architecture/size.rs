//! The sizes of the crate: `tests/run.sh --size` prints them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use syn::{spanned::Spanned, visit::Visit};

use crate::source::{Source, is_aside, parse};

/// Lines that are neither blank nor comments alone; of Rust, without what is compiled for tests.
fn product_lines(path: &Path, items: &[syn::Item]) -> usize {
    let text = fs::read_to_string(path).unwrap();
    let mut tests = BTreeSet::new();
    for item in items {
        let attributes = match item {
            syn::Item::Mod(it) => &it.attrs,
            syn::Item::Fn(it) => &it.attrs,
            syn::Item::Impl(it) => &it.attrs,
            syn::Item::Use(it) => &it.attrs,
            _ => continue,
        };
        if is_aside(attributes) {
            let span = item.span();
            tests.extend(span.start().line..=span.end().line);
        }
    }
    let lines = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| is_code(line, "//"));
    lines.filter(|(_, number)| !tests.contains(number)).count()
}

fn is_code(line: &str, comment: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with(comment)
}

fn lines_below(folder: &str, extension: &str, comment: &str) -> usize {
    let mut lines = 0;
    let mut next = vec![PathBuf::from(folder)];
    while let Some(path) = next.pop() {
        if path.is_dir() {
            let target = path.ends_with("target");
            let below = fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().path());
            next.extend(below.filter(|_| !target));
        } else if path.extension().is_some_and(|it| it == extension) {
            let text = fs::read_to_string(&path).unwrap();
            lines += text.lines().filter(|line| is_code(line, comment)).count();
        }
    }
    lines
}

/// Functions outside of tests, each with its lines of code.
#[derive(Default)]
struct Functions(Vec<(String, usize)>);

impl<'ast> Visit<'ast> for Functions {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Mod(it) if is_aside(&it.attrs) => {}
            syn::Item::Fn(it) if is_aside(&it.attrs) => {}
            _ => syn::visit::visit_item(self, item),
        }
    }

    fn visit_item_fn(&mut self, it: &'ast syn::ItemFn) {
        self.0.push((it.sig.ident.to_string(), height(&it.block)));
        syn::visit::visit_item_fn(self, it);
    }

    fn visit_impl_item_fn(&mut self, it: &'ast syn::ImplItemFn) {
        self.0.push((it.sig.ident.to_string(), height(&it.block)));
        syn::visit::visit_impl_item_fn(self, it);
    }
}

fn height(block: &syn::Block) -> usize {
    let span = block.span();
    span.end().line - span.start().line + 1
}

fn at(sorted: &[usize], percent: usize) -> usize {
    sorted[(sorted.len() - 1) * percent / 100]
}

#[test]
fn no_function_is_too_long_to_see() {
    let source = Source::read();
    let mut long = Vec::new();
    for file in source.files.values() {
        let mut functions = Functions::default();
        parse(&file.path)
            .iter()
            .for_each(|item| functions.visit_item(item));
        let found = functions.0.into_iter().filter(|(_, lines)| *lines > 60);
        long.extend(found.map(|(name, _)| format!("{}: {name}", file.path.display())));
    }
    long.sort();
    // To be split; no other may join them.
    let known = [
        "src/inspect/diagnose/report.rs: fmt",
        "src/inspect/diagnose/report.rs: fmt",
        "src/inspect/verify/report.rs: fmt",
        "src/store/memory/verbs.rs: manage_now",
        "src/store/redis/returns.rs: drain",
    ];
    assert_eq!(long, known);
}

/// Prints the sizes. Only functions have a bound, above.
#[test]
#[ignore = "prints: tests/run.sh --size"]
fn sizes() {
    let source = Source::read();
    let (mut modules, mut files): (BTreeMap<String, (usize, usize)>, _) = Default::default();
    let mut sizes = Vec::new();
    let mut longest = Functions::default();
    for (module, file) in &source.files {
        let items = parse(&file.path);
        let lines = product_lines(&file.path, &items);
        let name = match &module[..] {
            [] => "lib".to_owned(),
            [one] => one.clone(),
            [one, two, ..] => format!("{one}::{two}"),
        };
        let of = modules.entry(name).or_default();
        *of = (of.0 + 1, of.1 + lines);
        sizes.push(lines);
        let files: &mut Vec<(usize, String)> = &mut files;
        files.push((lines, file.path.display().to_string()));
        items.iter().for_each(|item| longest.visit_item(item));
    }
    sizes.sort_unstable();
    println!("lines without blanks and comments\n");
    for (module, (files, lines)) in &modules {
        println!("{lines:7}  {files:3} files  {module}");
    }
    let product: usize = sizes.iter().sum();
    let all = lines_below("src", "rs", "//");
    println!("{product:7}  {:3} files  product", sizes.len());
    println!("{:7}  tests in src", all - product);
    println!("{:7}  tests", lines_below("tests", "rs", "//"));
    println!("{:7}  Lua", lines_below("lua", "lua", "--"));
    println!("{:7}  median file, {} p90", at(&sizes, 50), at(&sizes, 90));
    files.sort();
    for (lines, path) in files.iter().rev().take(8) {
        println!("{lines:7}  {path}");
    }
    longest.0.sort_by_key(|(_, lines)| *lines);
    for (name, lines) in longest.0.iter().rev().take(8) {
        println!("{lines:7}  fn {name}");
    }
    way("admitted in memory", "way::admitted_in_memory");
    way("refused in memory", "way::refused_in_memory");
    way("admitted in Redis", "way::admitted_in_redis");
}

/// Counts the functions of `src` that one request passes: one of a build that inlines nothing, as
/// callgrind sees it.
fn way(what: &str, test: &str) {
    let file = std::env::temp_dir().join(format!("way-{}", std::process::id()));
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--toggle-collect=*one_request*",
        ])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--test-threads=1"])
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return println!("{what}: needs valgrind ({error})"),
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = fs::read_to_string(&file).unwrap();
    let _ = fs::remove_file(&file);
    let (mut files, mut functions) = (BTreeSet::new(), BTreeSet::new());
    let (mut names, mut place) = (BTreeMap::new(), String::new());
    for line in text.lines() {
        let named = ["fl=", "fi=", "fe=", "cfi=", "cfl="]
            .iter()
            .find_map(|it| line.strip_prefix(it));
        if let Some(rest) = named {
            let (id, name) = rest.split_once(' ').unwrap_or((rest, ""));
            let known = names
                .entry(id.to_owned())
                .or_insert_with(|| name.to_owned());
            place.clone_from(known);
        } else if let Some(rest) = line.strip_prefix("fn=")
            && let Some(at) = place.find("/src/").filter(|_| !place.contains("/.cargo/"))
            && place.starts_with(env!("CARGO_MANIFEST_DIR"))
        {
            files.insert(place[at..].to_owned());
            functions.insert((place.clone(), rest.split(' ').next().unwrap().to_owned()));
        }
    }
    println!(
        "{:7}  functions in {} files: {what}",
        functions.len(),
        files.len()
    );
}
