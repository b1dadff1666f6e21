//! Every link of a document leads somewhere: relative ones, anchors, and those to docs.rs.
//!
//! rustdoc checks paths of items, and no anchor of another page.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use crate::house::read;
use kit::files;

const DOCS: &str = "https://docs.rs/tower-ratelimit/latest/tower_ratelimit";
const SOURCE: &str = "https://docs.rs/crate/tower-ratelimit/latest/source/";

/// What links may lead to.
struct Places {
    /// The anchors of each document.
    anchors: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Anchors in documentation of items.
    of_items: BTreeSet<String>,
    /// Types, traits, functions and modules, with their modules.
    items: BTreeSet<String>,
    packaged: BTreeSet<String>,
}

#[test]
fn every_link_leads_somewhere() {
    let places = Places::read();
    let mut faults = Vec::new();
    let mut seen = 0;
    for document in places.anchors.keys() {
        for link in links(document, &read(document)) {
            seen += 1;
            if let Err(fault) = places.check(document, &link) {
                faults.push(format!("{} links to {link}: {fault}", document.display()));
            }
        }
    }
    let sources = ["src", "examples"]
        .map(|folder| files(folder, "rs"))
        .concat();
    for source in sources {
        for link in mentions(&read(&source)) {
            seen += 1;
            if let Err(fault) = places.check(&source, &link) {
                faults.push(format!("{} links to {link}: {fault}", source.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen > 250, "{seen}");
}

/// People look for a crate by these, and crates.io searches the README.
#[test]
fn the_words_that_people_search_for_occur() {
    let readme = read("README.md").to_lowercase();
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "429 too many requests, api key, brute force, burst, distributed, leaky bucket, \
                 middleware, per ip, per user, quota, rate limiter, rate limiting, retry-after, \
                 sliding window, throttles, throttling, token bucket";
    for word in words.split(", ") {
        assert!(readme.contains(word), "README.md does not say {word:?}");
    }
}

/// Each question that the recipes list is answered by ten lines at most, which rustdoc compiles and
/// runs; and each recipe answers one.
#[test]
fn each_question_is_answered_in_ten_lines() {
    let recipes = read("src/docs/recipes.md");
    let (_, table) = recipes.split_once("\n| you ask |").expect("the table");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut answers = BTreeSet::new();
    for row in rows {
        let (_, link) = row.split_once("](").expect(row);
        let (link, _) = link.split_once(')').expect(row);
        let (page, anchor) = link.split_once('#').expect(row);
        let page = page.strip_prefix("crate::docs::").unwrap_or("recipes");
        let examples = lines_of_examples(&read(format!("src/docs/{page}.md")), anchor);
        assert!(
            !examples.is_empty(),
            "{page}#{anchor} has no code that runs"
        );
        for lines in examples {
            assert!(lines <= 10, "{page}#{anchor} shows {lines} lines");
        }
        answers.insert(anchor.to_owned());
    }
    let sections = prose(&recipes);
    let sections = sections.lines().filter(|line| line.starts_with("## "));
    for anchor in anchors_of(sections) {
        assert!(answers.contains(&anchor), "the table lacks #{anchor}");
    }
}

/// Returns how many lines each example of a section shows, of those that run.
fn lines_of_examples(page: &str, anchor: &str) -> Vec<usize> {
    let (mut examples, mut is_in_section, mut fence) = (Vec::new(), false, None);
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            let runs = is_in_section && fence.is_none() && matches!(language, "" | "rust");
            fence = fence.is_none().then_some(runs);
            examples.extend(runs.then_some(0));
        } else if let Some(runs) = fence {
            let is_hidden = line == "#" || line.starts_with("# ");
            if let Some(lines) = examples.last_mut().filter(|_| runs && !is_hidden) {
                *lines += usize::from(!line.trim().is_empty());
            }
        } else if let Some(begun) = anchors_of([line].into_iter()).next() {
            is_in_section = begun == anchor;
        }
    }
    examples
}

impl Places {
    fn read() -> Self {
        let documents = ["README", "CHANGELOG", "CONTRIBUTING", "SECURITY"];
        let documents = documents.map(|name| PathBuf::from(format!("{name}.md")));
        let below = [".github", "benches", "examples", "lua", "src", "tests"];
        let below = below.map(|folder| files(folder, "md")).concat();
        let anchors = documents.into_iter().chain(below).map(|document| {
            let anchors = anchors(&prose(&read(&document)));
            (document, anchors)
        });
        let of_items = files("src", "rs").into_iter().flat_map(|source| {
            let text = read(source);
            let lines = text.lines().map(str::trim_start);
            let docs = lines.filter_map(|line| {
                line.strip_prefix("///")
                    .or_else(|| line.strip_prefix("//!"))
            });
            anchors_of(docs.map(str::trim_start)).collect::<Vec<_>>()
        });
        let api = read("tests/architecture/api.txt");
        let api = ["async ", "const ", "fn "]
            .into_iter()
            .fold(api, |api, it| api.replace(it, ""));
        let names = api
            .lines()
            .filter_map(|line| line.split([' ', '(', '<']).next());
        let items = names.flat_map(|name| {
            let name = name.trim_end_matches(':');
            let ends = name.match_indices("::").map(|(at, _)| &name[..at]);
            ends.chain([name]).map(str::to_owned).collect::<Vec<_>>()
        });
        let output = Command::new(env!("CARGO"))
            .args(["package", "--list", "--allow-dirty", "--offline"])
            .output()
            .expect("cargo runs");
        let packaged = String::from_utf8_lossy(&output.stdout);
        Self {
            anchors: anchors.collect(),
            of_items: of_items.collect(),
            items: items.collect(),
            packaged: packaged.lines().map(str::to_owned).collect(),
        }
    }

    fn check(&self, document: &Path, link: &str) -> Result<(), String> {
        let (place, anchor) = link
            .split_once('#')
            .map_or((link, None), |(it, a)| (it, Some(a)));
        if let Some(page) = link
            .strip_prefix(DOCS)
            .or_else(|| link.strip_prefix("crate"))
        {
            return self.check_page(page.trim_start_matches(['/', ':']));
        }
        if let Some(file) = place.strip_prefix(SOURCE) {
            return self.check_packaged(file);
        }
        if place.starts_with("https://") {
            return Ok(());
        }
        if place.is_empty() {
            return self.check_anchor(document, anchor);
        }
        if is_published(document) {
            return Err("readers of docs.rs have no files: give the address there".into());
        }
        let folder = document.parent().expect("a folder");
        let target: PathBuf = folder.join(place).components().collect();
        if !target.exists() {
            return Err("there is no such file".into());
        }
        anchor.map_or(Ok(()), |_| self.check_anchor(&target, anchor))
    }

    /// Checks what stands behind the crate's name: a page, an item, or an anchor of the README.
    fn check_page(&self, link: &str) -> Result<(), String> {
        let (path, anchor) = link
            .split_once('#')
            .map_or((link, None), |(it, a)| (it, Some(a)));
        let path = path
            .trim_end_matches('/')
            .trim_end_matches(".html")
            .replace('/', "::");
        let page = path.strip_prefix("docs::");
        let document = match page {
            Some(page) => PathBuf::from(format!("src/docs/{page}.md")),
            None if path.is_empty() => PathBuf::from("README.md"),
            None => {
                let parts = path
                    .split("::")
                    .map(|part| part.rsplit('.').next().unwrap_or(part));
                let item = parts.collect::<Vec<_>>().join("::");
                let is_known = self.items.contains(&item);
                return match anchor {
                    _ if !is_known => Err("there is no such item".into()),
                    Some(anchor) if !self.of_items.contains(anchor) => {
                        Err("no item has such a heading".into())
                    }
                    _ => Ok(()),
                };
            }
        };
        if !self.anchors.contains_key(&document) {
            return Err("there is no such page".into());
        }
        anchor.map_or(Ok(()), |_| self.check_anchor(&document, anchor))
    }

    fn check_packaged(&self, file: &str) -> Result<(), String> {
        let is_packaged = self.packaged.contains(file);
        is_packaged
            .then_some(())
            .ok_or_else(|| "it is not in the package".into())
    }

    fn check_anchor(&self, document: &Path, anchor: Option<&str>) -> Result<(), String> {
        let anchors = self.anchors.get(document).ok_or("it is no document")?;
        match anchor {
            Some(anchor) if anchors.contains(anchor) => Ok(()),
            _ => Err("it has no such heading".into()),
        }
    }
}

/// Returns whether docs.rs and crates.io show the document, away from the files beside it.
fn is_published(document: &Path) -> bool {
    document == Path::new("README.md") || document.starts_with("src")
}

/// Returns the text without code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

fn anchors(prose: &str) -> BTreeSet<String> {
    anchors_of(prose.lines()).collect()
}

/// Returns the anchors that GitHub and rustdoc make of headings.
fn anchors_of<'a>(lines: impl Iterator<Item = &'a str>) -> impl Iterator<Item = String> {
    let mut met = BTreeMap::new();
    lines
        .filter_map(|line| {
            line.trim_start_matches('#')
                .strip_prefix(' ')
                .filter(|_| line.starts_with('#'))
        })
        .map(move |heading| {
            let heading = heading.to_lowercase();
            let kept = heading
                .chars()
                .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
            let anchor: String = kept.map(|it| if it == ' ' { '-' } else { it }).collect();
            let times = met.entry(anchor.clone()).or_insert(0);
            *times += 1;
            if *times == 1 {
                anchor
            } else {
                format!("{anchor}-{}", *times - 1)
            }
        })
}

/// Returns what a document links to; a name in brackets is replaced by what it stands for.
fn links(document: &Path, text: &str) -> BTreeSet<String> {
    let text = prose(text);
    let mut names = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, target)) = line.strip_prefix('[').and_then(|it| it.split_once("]: ")) {
            let twice = names.insert(name.to_lowercase(), target.to_owned());
            assert!(twice.is_none(), "{}: [{name}] twice", document.display());
        }
    }
    let mut links: BTreeSet<_> = names.values().cloned().collect();
    for (at, _) in text.match_indices("](") {
        let (target, _) = text[at + 2..].split_once(')').expect("an end");
        links.insert(target.to_owned());
    }
    let flat = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .to_lowercase();
    for (at, _) in flat.match_indices("][") {
        let (name, _) = flat[at + 2..].split_once(']').expect("an end");
        assert!(
            names.contains_key(name),
            "{}: what is [{name}]?",
            document.display()
        );
    }
    for name in names.keys() {
        let uses = flat.matches(&format!("[{name}]")).count();
        assert!(
            uses > 1,
            "{}: nothing links to [{name}]",
            document.display()
        );
    }
    links.extend(mentions(&text).filter(|link| link.starts_with("https")));
    links
}

/// Returns the addresses on docs.rs and the pages that a text names.
fn mentions(text: &str) -> impl Iterator<Item = String> {
    let ends = |it: char| it.is_whitespace() || ")\"'`,;>]".contains(it);
    [DOCS, SOURCE, "crate::docs::"]
        .into_iter()
        .flat_map(move |begin| {
            text.match_indices(begin).map(move |(at, _)| {
                let rest = &text[at..];
                let link = &rest[..rest.find(ends).unwrap_or(rest.len())];
                link.trim_end_matches(['.', ':']).to_owned()
            })
        })
}
