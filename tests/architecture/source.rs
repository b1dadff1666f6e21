//! The files of `src` and what they use, from their syntax.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use syn::{Attribute, Item, UseTree, visit::Visit};

/// A path in the crate, without `crate`: `["store", "memory", "MemoryStore"]`.
pub(crate) type Names = Vec<String>;

/// What the files of `src` define and use, without their tests.
pub(crate) struct Source {
    pub(crate) files: BTreeMap<Names, File>,
}

pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// What `use` gives a name here, for re-exports: the name, and what it stands for.
    pub(crate) imports: BTreeMap<String, Names>,
    /// The types, traits and aliases that stand here, also inside of functions.
    pub(crate) types: BTreeSet<String>,
    /// Every path that begins in this crate.
    pub(crate) used: BTreeSet<Names>,
    /// Every path that begins in another.
    pub(crate) outside: BTreeSet<Names>,
    pub(crate) reads_clock: bool,
    /// How many attributes ask for the feature `redis`.
    pub(crate) asks_for_redis: usize,
}

impl Source {
    /// Reads those of the library once for all tests: the syntax is parsed in a second or two.
    pub(crate) fn read() -> &'static Self {
        static SOURCE: OnceLock<Source> = OnceLock::new();
        SOURCE.get_or_init(|| Self::of("src/lib.rs"))
    }

    /// Reads the files of a crate, from its root on.
    pub(crate) fn of(root: &str) -> Self {
        let mut source = Self {
            files: BTreeMap::new(),
        };
        source.add(Path::new(root), Vec::new());
        source
    }

    fn add(&mut self, path: &Path, module: Names) {
        let items = parse(path);
        let mut reader = Reader {
            module: module.clone(),
            children: items.iter().filter_map(child).collect(),
            nested: 0,
            file: File {
                path: path.to_owned(),
                imports: BTreeMap::new(),
                types: BTreeSet::new(),
                used: BTreeSet::new(),
                outside: BTreeSet::new(),
                reads_clock: false,
                asks_for_redis: 0,
            },
        };
        items.iter().for_each(|item| reader.visit_item(item));
        let below = match path.file_stem().and_then(|stem| stem.to_str()) {
            Some("lib" | "main" | "mod") => path.with_file_name(""),
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
    pub(crate) fn home(&self, path: &[String]) -> Names {
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
    pub(crate) fn uses(&self) -> BTreeMap<&Names, BTreeSet<Names>> {
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

/// Returns the items of a file. Syntax stays on its thread, so each test parses what it reads.
pub(crate) fn parse(path: &Path) -> Vec<Item> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    parsed.items
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
pub(crate) fn is_aside(attributes: &[Attribute]) -> bool {
    conditions(attributes).any(|condition| {
        let aside = ["test", "fleet", "interleavings", "all(test", "any(doc"];
        aside.iter().any(|start| condition.starts_with(start))
    })
}

/// The conditions of an item, without blanks.
fn conditions(attributes: &[Attribute]) -> impl Iterator<Item = String> {
    let cfgs = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            syn::Meta::List(list) if list.path.is_ident("cfg") => Some(list.tokens.to_string()),
            _ => None,
        });
    cfgs.map(|condition| condition.replace(' ', ""))
}

/// The attributes of an item of a kind that may be aside.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Use(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        _ => &[],
    }
}

/// The name of a type, trait or alias; of those in a macro such as `pin_project!` the names behind
/// their keywords. One that is compiled without a feature stands in for that with it.
fn type_names(item: &Item) -> Vec<String> {
    if conditions(attributes(item)).any(|condition| condition.starts_with("not(feature")) {
        return Vec::new();
    }
    match item {
        Item::Struct(item) => vec![item.ident.to_string()],
        Item::Enum(item) => vec![item.ident.to_string()],
        Item::Trait(item) => vec![item.ident.to_string()],
        Item::Type(item) => vec![item.ident.to_string()],
        Item::Macro(item) if item.ident.is_none() => {
            let body = item.mac.tokens.to_string();
            let words: Vec<_> = body.split_whitespace().collect();
            let is_type = |pair: &&[&str]| ["struct", "enum"].contains(&pair[0]);
            let pairs = words.windows(2).filter(is_type);
            pairs.map(|pair| pair[1].to_owned()).collect()
        }
        _ => Vec::new(),
    }
}

/// The paths of a `use`, each with the name that it gives, if it gives one.
pub(crate) fn paths(tree: &UseTree, before: &[String]) -> Vec<(Names, Option<String>)> {
    let with = |name: &syn::Ident| {
        if name == "self" {
            before.to_vec()
        } else {
            [before, &[name.to_string()]].concat()
        }
    };
    match tree {
        UseTree::Path(path) => {
            let before = [before, &[path.ident.to_string()]].concat();
            paths(&path.tree, &before)
        }
        UseTree::Group(group) => {
            let trees = group.items.iter();
            trees.flat_map(|tree| paths(tree, before)).collect()
        }
        UseTree::Glob(_) => vec![(before.to_vec(), None)],
        UseTree::Name(name) => {
            let path = with(&name.ident);
            vec![(path.clone(), path.last().cloned())]
        }
        UseTree::Rename(name) => vec![(with(&name.ident), Some(name.rename.to_string()))],
    }
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
            None => drop(self.file.outside.insert(path.to_vec())),
        }
        resolved
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_aside(attributes(item)) {
            self.file.types.extend(type_names(item));
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
        for (path, name) in paths(&item.tree, &[]) {
            if let Some(inside) = self.note(&path)
                && self.nested == 0
                && let Some(name) = name
            {
                self.file.imports.insert(name, inside);
            }
        }
        if let Some(used) = used {
            self.file.used = used;
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("cfg")
            && list.tokens.to_string().contains("feature = \"redis\"")
        {
            self.file.asks_for_redis += 1;
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if names.ends_with(&["Instant".to_owned(), "now".to_owned()])
            || names.ends_with(&["SystemTime".to_owned(), "now".to_owned()])
        {
            self.file.reads_clock = true;
        }
        if names.len() > 1 && names[0].chars().all(|c| c.is_lowercase() || c == '_') {
            self.note(&names);
        }
        syn::visit::visit_path(self, path);
    }
}
