//! The sizes of the crate: `tests/run.sh --size` prints them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::RangeInclusive,
    path::Path,
    process::Command,
};

use syn::{spanned::Spanned, visit::Visit};

use crate::source::{Source, attributes, is_aside, parse};

/// Lines that are neither blank nor comments alone; of Rust, without what is compiled for tests.
fn product_lines(path: &Path, items: &[syn::Item]) -> usize {
    let text = fs::read_to_string(path).unwrap();
    let mut tests = BTreeSet::new();
    for item in items.iter().filter(|item| is_aside(attributes(item))) {
        let span = item.span();
        tests.extend(span.start().line..=span.end().line);
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
    let texts = kit::files(folder, extension).into_iter();
    let texts = texts.map(|path| fs::read_to_string(path).unwrap());
    let lines = |text: String| text.lines().filter(|line| is_code(line, comment)).count();
    texts.map(lines).sum()
}

/// Functions outside of tests.
#[derive(Default)]
struct Functions(Vec<Function>);

struct Function {
    name: String,
    /// Its lines of code, without its head
    height: usize,
    /// The lines of its file, from its head on
    lines: RangeInclusive<usize>,
}

impl Functions {
    fn of(items: &[syn::Item]) -> Vec<Function> {
        let mut functions = Self::default();
        items.iter().for_each(|item| functions.visit_item(item));
        functions.0
    }

    fn push(&mut self, head: &syn::Signature, block: &syn::Block) {
        self.0.push(Function {
            name: head.ident.to_string(),
            height: height(block),
            lines: head.span().start().line..=block.span().end().line,
        });
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_aside(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, it: &'ast syn::ItemFn) {
        self.push(&it.sig, &it.block);
        syn::visit::visit_item_fn(self, it);
    }

    fn visit_impl_item_fn(&mut self, it: &'ast syn::ImplItemFn) {
        self.push(&it.sig, &it.block);
        syn::visit::visit_impl_item_fn(self, it);
    }

    fn visit_trait_item_fn(&mut self, it: &'ast syn::TraitItemFn) {
        if let Some(block) = &it.default {
            self.push(&it.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, it);
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
    let (source, command) = (Source::read(), Source::of("src/bin/ratelimit/main.rs"));
    let mut long = Vec::new();
    for file in source.files.values().chain(command.files.values()) {
        let functions = Functions::of(&parse(&file.path)).into_iter();
        let found = functions.filter(|function| function.height > 60);
        long.extend(found.map(|it| format!("{}: {}", file.path.display(), it.name)));
    }
    long.sort();
    assert!(long.is_empty(), "split these: {long:?}");
}

/// Prints the sizes. Only functions have a bound, above.
#[test]
#[ignore = "prints: tests/run.sh --size"]
fn sizes() {
    let source = Source::read();
    let (mut modules, mut files): (BTreeMap<String, (usize, usize)>, _) = Default::default();
    let mut sizes = Vec::new();
    let mut longest = Vec::new();
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
        longest.extend(Functions::of(&items));
    }
    sizes.sort_unstable();
    println!("lines without blanks and comments\n");
    for (module, (files, lines)) in &modules {
        println!("{lines:7}  {files:3} files  {module}");
    }
    let product: usize = sizes.iter().sum();
    let all = lines_below("src", "rs", "//");
    println!("{product:7}  {:3} files  product", sizes.len());
    let command = Source::of("src/bin/ratelimit/main.rs");
    let command = command.files.values();
    let command = command.map(|file| product_lines(&file.path, &parse(&file.path)));
    let command: usize = command.sum();
    println!("{command:7}  command, also product");
    println!("{:7}  tests in src", all - product - command);
    println!("{:7}  tests", lines_below("tests", "rs", "//"));
    println!("{:7}  Lua", lines_below("lua", "lua", "--"));
    println!("{:7}  median file, {} p90", at(&sizes, 50), at(&sizes, 90));
    files.sort();
    for (lines, path) in files.iter().rev().take(8) {
        println!("{lines:7}  {path}");
    }
    longest.sort_by_key(|function| function.height);
    for function in longest.iter().rev().take(8) {
        println!("{:7}  fn {}", function.height, function.name);
    }
    way("admitted in memory", "way::admitted_in_memory");
    way("refused in memory", "way::refused_in_memory");
    way("admitted in Redis", "way::admitted_in_redis");
}

/// Prints how many functions of `src` one request passes: one of a build that inlines nothing, as
/// callgrind sees it. Counts those that stand in a file by name; closures and what is derived are
/// parts of the others.
fn way(what: &str, test: &str) {
    let text = match calls(test) {
        Ok(text) => text,
        Err(error) => return println!("{what}: needs valgrind ({error})"),
    };
    let passed = passed(&text);
    assert!(
        !passed.is_empty(),
        "this build lacks line numbers: CARGO_PROFILE_DEV_DEBUG"
    );
    let longer: Vec<_> = passed.iter().filter(|(_, height)| **height > 3).collect();
    let files = |places: &mut dyn Iterator<Item = &Place>| {
        places.map(|(path, _)| path).collect::<BTreeSet<_>>().len()
    };
    println!(
        "{:7}  functions in {} files: {what}; {} in {} of more than three lines",
        passed.len(),
        files(&mut passed.keys()),
        longer.len(),
        files(&mut longer.iter().map(|(place, _)| *place))
    );
}

/// A file of `src`, and the line that a function begins in.
type Place = (String, usize);

/// What callgrind writes of a test's one request: full names, and lines that count from the file's
/// first.
fn calls(test: &str) -> std::io::Result<String> {
    let file = std::env::temp_dir().join(format!("way-{}", std::process::id()));
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--toggle-collect=*one_request*",
            "--compress-strings=no",
            "--compress-pos=no",
        ])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe()?)
        .args([test, "--exact", "--ignored", "--test-threads=1"])
        .output()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = fs::read_to_string(&file);
    fs::remove_file(&file)?;
    text
}

/// Returns the functions in a text of callgrind, each with its height.
fn passed(text: &str) -> BTreeMap<Place, usize> {
    let home = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
    let mut parsed: BTreeMap<&str, Vec<Function>> = BTreeMap::new();
    let mut passed = BTreeMap::new();
    let (mut path, mut name) = (None, "");
    for line in text.lines() {
        // The file of the function itself. `fi=` and `fe=` name that of a part that came in by
        // inlining or from a macro, `cfi=` and `cfl=` that of a function which is called.
        if let Some(file) = line.strip_prefix("fl=") {
            path = file.strip_prefix(home);
        } else if let Some(function) = line.strip_prefix("fn=") {
            name = function;
        } else if let Some(path) = path
            && let Some(at) = line.split(' ').next().and_then(|it| it.parse().ok())
        {
            let functions = parsed
                .entry(path)
                .or_insert_with(|| Functions::of(&parse(&Path::new("src").join(path))));
            let within = functions.iter().filter(|it| it.lines.contains(&at));
            if let Some(it) = within.max_by_key(|it| *it.lines.start())
                && !name.contains("{closure")
            {
                passed.insert((path.to_owned(), *it.lines.start()), it.height);
            }
            // Only the first line, where the function begins.
            name = "{closure";
        }
    }
    passed
}

#[test]
fn only_functions_with_a_name_are_passed() {
    let here = |path: &str| format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    let source = fs::read_to_string("src/values/clock.rs").unwrap();
    let functions = Functions::of(&parse(Path::new("src/values/clock.rs")));
    let [first, second] = [&functions[0], &functions[1]];
    let derive = source.lines().position(|it| it.starts_with("#[derive"));
    let text = [
        format!("fl={}", here("src/values/clock.rs")),
        format!("fn=first\n{} 5", first.lines.start()),
        // A call, and lines from elsewhere.
        format!(
            "cfi={}\ncfn=other\ncalls=1 9\n{} 7",
            here("src/values/name.rs"),
            second.lines.start()
        ),
        format!(
            "fi={}\n1 3\nfe={}",
            here("src/values/name.rs"),
            here("src/values/clock.rs")
        ),
        format!("fn=second::{{{{closure}}}}\n{} 5", second.lines.start()),
        format!("fn=derived\n{} 5", derive.unwrap() + 1),
        format!(
            "fl=/elsewhere/src/values/clock.rs\nfn=foreign\n{} 1",
            second.lines.start()
        ),
    ];
    let found = passed(&text.join("\n"));
    let place = ("values/clock.rs".to_owned(), *first.lines.start());
    assert_eq!(found, BTreeMap::from([(place, first.height)]));
}
