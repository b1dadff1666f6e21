//! Holds the boundaries between modules: which file may use which, from parsed `use` trees.

#![allow(
    clippy::panic,
    reason = "a test fails by panicking; clippy.toml reaches `#[test]` fns only"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, Item, UseTree, visit::Visit};

/// A path in the crate, without `crate`: `["store", "memory", "MemoryStore"]`.
type Names = Vec<String>;

/// What the files of `src` define and use, without their tests.
struct Source {
    files: BTreeMap<Names, File>,
}

struct File {
    path: PathBuf, // shown where a boundary is crossed
    /// What `use` gives a name here, for re-exports: the name, and what it stands for.
    imports: BTreeMap<String, Names>,
    /// Every path that begins in this crate.
    used: BTreeSet<Names>,
    /// Every path that begins in another.
    outside: BTreeSet<String>,
}

impl Source {
    fn read() -> Self {
        let mut source = Self {
            files: BTreeMap::new(),
        };
        source.add(Path::new("src/lib.rs"), Vec::new());
        source
    }

    fn add(&mut self, path: &Path, module: Names) {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut reader = Reader {
            module: module.clone(),
            children: parsed.items.iter().filter_map(child).collect(),
            nested: 0,
            file: File {
                path: path.to_owned(),
                imports: BTreeMap::new(),
                used: BTreeSet::new(),
                outside: BTreeSet::new(),
            },
        };
        reader.visit_file(&parsed);
        let below = match path.file_stem().and_then(|stem| stem.to_str()) {
            Some("lib" | "mod") => path.with_file_name(""),
            _ => path.with_extension(""),
        };
        for name in reader.children {
            let nested = below.join(&name).join("mod.rs");
            let file = if nested.exists() {
                nested
            } else {
                below.join(format!("{name}.rs"))
            };
            self.add(&file, [module.clone(), vec![name]].concat());
        }
        self.files.insert(module, reader.file);
    }

    /// The module in which the item of a path stands, behind all re-exports.
    fn home(&self, path: &[String]) -> Names {
        let mut length = path.len();
        while !self.files.contains_key(&path[..length]) {
            length -= 1;
        }
        let (module, rest) = path.split_at(length);
        let import = rest
            .first()
            .and_then(|name| self.files[module].imports.get(name));
        match import {
            Some(target) => self.home(&[target, &rest[1..]].concat()),
            None => module.to_vec(),
        }
    }

    /// Which modules each module uses, itself left out.
    fn uses(&self) -> BTreeMap<&Names, BTreeSet<Names>> {
        let of = |(module, file): (&'_ Names, &File)| {
            let homes = file.used.iter().map(|path| self.home(path));
            homes.filter(|home| home != module).collect::<BTreeSet<_>>()
        };
        self.files
            .iter()
            .map(|(module, file)| (module, of((module, file))))
            .collect()
    }
}

/// The name of a child module in a file of its own.
fn child(item: &Item) -> Option<String> {
    match item {
        Item::Mod(module) if module.content.is_none() && !is_aside(&module.attrs) => {
            Some(module.ident.to_string())
        }
        _ => None,
    }
}

/// Whether an item is compiled for tests or documents alone.
fn is_aside(attributes: &[Attribute]) -> bool {
    let conditions = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            syn::Meta::List(list) if list.path.is_ident("cfg") => Some(list.tokens.to_string()),
            _ => None,
        });
    conditions
        .map(|condition| condition.replace(' ', ""))
        .any(|condition| {
            let aside = ["test", "interleavings", "all(test", "any(doc"];
            aside.iter().any(|start| condition.starts_with(start))
        })
}

struct Reader {
    module: Names,
    children: BTreeSet<String>,
    /// How many modules deep inside the file.
    nested: usize,
    file: File,
}

impl Reader {
    /// Makes a path begin at the crate's root, or says of which crate it is.
    fn resolve(&self, path: &[String]) -> Option<Names> {
        let mut from = self.module.clone();
        let mut rest = path;
        loop {
            match rest.first()?.as_str() {
                "crate" => from.clear(),
                "self" => {}
                "super" => drop(from.pop()),
                _ => break,
            }
            rest = &rest[1..];
        }
        if rest.len() < path.len() {
            return Some([&from, rest].concat());
        }
        let first = rest.first()?;
        if self.children.contains(first) {
            return Some([&from, rest].concat());
        }
        let import = self.file.imports.get(first)?;
        Some([import, &rest[1..]].concat())
    }

    fn note(&mut self, path: &[String]) -> Option<Names> {
        let resolved = self.resolve(path);
        match &resolved {
            Some(inside) => drop(self.file.used.insert(inside.clone())),
            None => drop(self.file.outside.extend(path.first().cloned())),
        }
        resolved
    }

    fn tree(&mut self, tree: &UseTree, mut before: Names) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before);
            }
            UseTree::Group(group) => {
                group
                    .items
                    .iter()
                    .for_each(|tree| self.tree(tree, before.clone()));
            }
            UseTree::Glob(_) => drop(self.note(&before)),
            UseTree::Name(name) => self.import(before, &name.ident.to_string(), None),
            UseTree::Rename(name) => {
                let alias = name.rename.to_string();
                self.import(before, &name.ident.to_string(), Some(alias));
            }
        }
    }

    fn import(&mut self, mut path: Names, name: &str, alias: Option<String>) {
        if name != "self" {
            path.push(name.to_owned());
        }
        if let Some(inside) = self.note(&path)
            && self.nested == 0
            && let Some(name) = alias.or_else(|| path.last().cloned())
        {
            self.file.imports.insert(name, inside);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Use(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_aside(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        self.nested += 1;
        syn::visit::visit_item_mod(self, item);
        self.nested -= 1;
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A file that hands a name on does not depend on it: who imports the name does.
        let before = matches!(item.vis, syn::Visibility::Inherited);
        let used = (!before).then(|| self.file.used.clone());
        self.tree(&item.tree, Vec::new());
        if let Some(used) = used {
            self.file.used = used;
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if names.len() > 1 && names[0].chars().all(|c| c.is_lowercase() || c == '_') {
            self.note(&names);
        }
        syn::visit::visit_path(self, path);
    }
}

/// The groups of files that use each other in a circle.
fn circles(uses: &BTreeMap<&Names, BTreeSet<Names>>) -> Vec<BTreeSet<Names>> {
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
    let mut found: Vec<BTreeSet<Names>> = Vec::new();
    for (module, below) in &all {
        let circle = below.iter().filter(|other| all[other].contains(*module));
        let circle: BTreeSet<_> = circle.cloned().collect();
        if circle.contains(*module) && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

#[test]
fn no_circle() {
    let source = Source::read();
    let uses = source.uses();
    for circle in circles(&uses) {
        let names: Vec<_> = circle.iter().map(|m| m.join("::")).collect();
        eprintln!("{} files: {}", names.len(), names.join(" "));
    }
}

#[test]
fn edges() {
    let source = Source::read();
    for (m, us) in source.uses() {
        let u: Vec<_> = us.iter().map(|m| m.join("::")).collect();
        eprintln!("EDGE {} -> {}", m.join("::"), u.join(" "));
    }
}
