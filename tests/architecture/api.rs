//! The public API as a file: a change of it shows in review.
//!
//! `TOWER_RATELIMIT_WRITE=1 cargo test --all-features --test architecture api` rewrites it.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
};

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, ItemImpl, Signature, TraitItem, Type, Visibility};

use crate::source::{Names, Source, is_aside, parse, paths};

const FILE: &str = "tests/architecture/api.txt";

/// What users can name: each item by the path that is shown to them, one line each.
struct Api<'a> {
    source: &'a Source,
    items: BTreeMap<&'a Names, Vec<Item>>,
    lines: BTreeSet<String>,
    /// Names under which users know the types whose `impl` blocks are listed.
    types: Vec<(Names, String)>,
}

#[test]
fn api_is_as_written() {
    let source = Source::read();
    let mut api = Api {
        source,
        items: source
            .files
            .iter()
            .map(|(module, file)| (module, parse(&file.path)))
            .collect(),
        lines: BTreeSet::new(),
        types: Vec::new(),
    };
    api.module(&Vec::new(), "");
    api.implementations();
    let found = api.lines.into_iter().collect::<Vec<_>>().join("\n") + "\n";
    if env::var_os("TOWER_RATELIMIT_WRITE").is_some() {
        fs::write(FILE, &found).unwrap();
    }
    let written = fs::read_to_string(FILE).unwrap_or_default();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (found, written) = (lines(&found), lines(&written));
    let new: Vec<_> = found.difference(&written).collect();
    let gone: Vec<_> = written.difference(&found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "the public API differs from {FILE}; rewrite it with TOWER_RATELIMIT_WRITE=1\n\
         new: {new:#?}\ngone: {gone:#?}"
    );
}

impl Api<'_> {
    fn line(&mut self, line: String) {
        self.lines.insert(line);
    }

    /// Lists what a module shows under a path.
    fn module(&mut self, module: &Names, shown: &str) {
        for item in &self.items[module].clone() {
            match item {
                Item::Use(item) if is_public(&item.vis) && !is_aside(&item.attrs) => {
                    for (path, name) in paths(&item.tree, &[]) {
                        assert_eq!(name.as_ref(), path.last(), "name what is public");
                        self.name(module, &path, shown);
                    }
                }
                Item::Mod(item)
                    if is_public(&item.vis)
                        && !is_aside(&item.attrs)
                        && !is_hidden(&item.attrs) =>
                {
                    let name = item.ident.to_string();
                    let inner = [&module[..], std::slice::from_ref(&name)].concat();
                    self.module(&inner, &format!("{shown}{name}::"));
                }
                _ => self.item(module, item, None, shown),
            }
        }
    }

    /// Lists the item behind a `pub use`.
    fn name(&mut self, module: &Names, path: &[String], shown: &str) {
        let name = path.last().unwrap();
        let Some(target) = self.source.files[module].imports.get(name) else {
            self.line(format!("{shown}pub use {}", path.join("::")));
            return;
        };
        if self.source.files.contains_key(target) {
            return self.module(&target.clone(), &format!("{shown}{name}::"));
        }
        let home = self.source.home(target);
        for item in &self.items[&home].clone() {
            self.item(&home, item, Some(target.last().unwrap()), shown);
        }
    }

    /// Lists an item, if it is public and has this name.
    fn item(&mut self, module: &Names, item: &Item, only: Option<&String>, shown: &str) {
        let (vis, name, attrs) = match item {
            Item::Struct(it) => (&it.vis, &it.ident, &it.attrs),
            Item::Enum(it) => (&it.vis, &it.ident, &it.attrs),
            Item::Trait(it) => (&it.vis, &it.ident, &it.attrs),
            Item::Type(it) => (&it.vis, &it.ident, &it.attrs),
            Item::Const(it) => (&it.vis, &it.ident, &it.attrs),
            Item::Fn(it) => (&it.vis, &it.sig.ident, &it.attrs),
            Item::Macro(it) => return self.pinned(module, it, only, shown),
            _ => return,
        };
        let wanted = only.is_none_or(|only| name == only);
        if !wanted || !is_public(vis) || is_aside(attrs) || is_hidden(attrs) {
            return;
        }
        let path = format!("{shown}{name}");
        let marks = marks(attrs);
        match item {
            Item::Struct(it) => {
                let fields = public_fields(&it.fields);
                let generics = text(&it.generics);
                self.line(format!("{path}: {marks}struct {name}{generics}{fields}"));
            }
            Item::Enum(it) => {
                self.line(format!("{path}: {marks}enum {name}{}", text(&it.generics)));
                for variant in &it.variants {
                    let mut variant = variant.clone();
                    variant.attrs.clear();
                    if let Fields::Named(named) = &mut variant.fields {
                        named.named.iter_mut().for_each(|field| field.attrs.clear());
                    }
                    self.line(format!("{path}::{}", text(&variant)));
                }
            }
            Item::Trait(it) => {
                let above = text(&it.supertraits);
                self.line(format!("{path}: trait {name}: {above}"));
                for item in &it.items {
                    if let TraitItem::Fn(method) = item
                        && !is_hidden(&method.attrs)
                    {
                        self.line(format!("{path}::{}", signature(&method.sig)));
                    }
                }
            }
            Item::Type(it) => {
                self.line(format!("{path}: type {name} = {}", text(&it.ty)));
            }
            Item::Const(it) => {
                self.line(format!("{path}: const {name}: {}", text(&it.ty)));
            }
            Item::Fn(it) => {
                self.line(format!("{shown}{}", signature(&it.sig)));
            }
            _ => {}
        }
        self.types
            .push(([&module[..], &[name.to_string()]].concat(), path));
    }

    /// Lists a type that `pin_project!` makes.
    fn pinned(&mut self, module: &Names, it: &syn::ItemMacro, only: Option<&String>, shown: &str) {
        let body = it.mac.tokens.to_string();
        for (kind, name) in ["struct", "enum"].into_iter().filter_map(|kind| {
            let (_, after) = body.split_once(&format!("pub {kind} "))?;
            Some((kind, after.split([' ', '<']).next()?.to_owned()))
        }) {
            if only.is_none_or(|only| *only == name) {
                let path = format!("{shown}{name}");
                self.line(format!("{path}: {kind} {name}"));
                self.types.push(([&module[..], &[name]].concat(), path));
            }
        }
    }

    /// Lists the methods and traits of the public types, wherever their `impl` blocks stand.
    fn implementations(&mut self) {
        for (module, items) in &self.items {
            for item in items {
                let opaque;
                let block = match item {
                    Item::Impl(block) => block,
                    Item::Macro(it) if it.mac.path.is_ident("opaque") => {
                        let of = &it.mac.tokens;
                        opaque = syn::parse_quote!(impl fmt::Debug for #of {});
                        &opaque
                    }
                    _ => continue,
                };
                if is_aside(&block.attrs) {
                    continue;
                }
                let Some(path) = self.shown_type(module, &block.self_ty) else {
                    continue;
                };
                let lines = implementation(block, &path);
                self.lines.extend(lines);
            }
        }
    }

    /// The path by which users know a type, if they do.
    fn shown_type(&self, module: &Names, of: &Type) -> Option<String> {
        let Type::Path(of) = of else { return None };
        let name = of.path.segments.last()?.ident.to_string();
        let imported = self.source.files[module].imports.get(&name);
        let home = match imported {
            Some(target) => self.source.home(target),
            None => module.clone(),
        };
        let full = [home, vec![name]].concat();
        let mut types = self.types.iter();
        types
            .find(|(of, _)| *of == full)
            .map(|(_, path)| path.clone())
    }
}

fn implementation(block: &ItemImpl, path: &str) -> Vec<String> {
    let generics = text(&block.generics);
    if let Some((_, of, _)) = &block.trait_ {
        let sealed = text(of).contains("Sealed");
        let line = format!(
            "{path}: impl{generics} {} for {}",
            text(of),
            text(&block.self_ty)
        );
        return if sealed { Vec::new() } else { vec![line] };
    }
    let mut lines = Vec::new();
    for item in &block.items {
        match item {
            ImplItem::Fn(method) if is_public(&method.vis) && !is_hidden(&method.attrs) => {
                lines.push(format!("{path}::{}", signature(&method.sig)));
            }
            ImplItem::Const(it) if is_public(&it.vis) && !is_hidden(&it.attrs) => {
                lines.push(format!("{path}::const {}: {}", it.ident, text(&it.ty)));
            }
            _ => {}
        }
    }
    lines
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    let mut all = attributes.iter().map(text);
    all.any(|attribute| attribute == "#[doc(hidden)]")
}

/// Derived traits and `non_exhaustive`, which are promises, too.
fn marks(attributes: &[Attribute]) -> String {
    let promises = ["derive", "non_exhaustive"];
    let kept = attributes
        .iter()
        .filter(|attribute| promises.iter().any(|name| attribute.path().is_ident(name)));
    kept.map(|attribute| text(attribute) + " ").collect()
}

fn public_fields(fields: &Fields) -> String {
    let public: Vec<_> = fields
        .iter()
        .filter(|field| is_public(&field.vis))
        .map(|field| {
            let name = field.ident.iter().map(|name| format!("{name}: "));
            name.chain([text(&field.ty)]).collect::<String>()
        })
        .collect();
    if public.is_empty() {
        String::new()
    } else {
        format!(" {{ {} }}", public.join(", "))
    }
}

fn signature(signature: &Signature) -> String {
    text(signature)
}

/// Tokens as one line, with spaces where people write them.
fn text(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ,", ","),
        ("& ", "&"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" :", ":"),
        ("' ", "'"),
        ("# [", "#["),
        (" ;", ";"),
    ] {
        text = text.replace(from, to);
    }
    text
}
