//! Finds the entry of the table for a request: the first that matches. A request whose path can be
//! read in several ways has one for each reading, so that no spelling of a path avoids a rule.
//!
//! Routes are stored as a tree of their segments, gRPC services and methods as a map. So a
//! request's path is split once, and the cost does not depend on the number of entries, except for
//! those without a route: hosts, methods and closures are tried one after the other, up to the
//! first match.
//!
//! A segment of a path can match two nodes, its text and a parameter, as in `/users/me` and
//! `/users/{id}`. Both are searched, because the entry that was written first counts, even if the
//! other is more exact. At worst each node of the tree is visited once.
//!
//! An entry that no request can reach, because an earlier one matches all its requests, limits
//! nothing and is refused. Each reload checks the table again, so the time of the check must be
//! linear in the table's length.

use std::{collections::HashMap, iter};

use http::{Method, request::Parts};

use super::{
    path::{call_of, canonical, is_plain, readings, with_other_end},
    pattern::{PathPattern, Pattern, Segment, full_path, includes, segments},
};
use crate::web::request::template;

/// The node at which all routes begin.
const ROOT: usize = 0;

/// The entries of a request: the first that matches for each reading of its path, `None` where none
/// does. Each is there once.
#[derive(Default)]
pub(crate) struct MatchedEntries {
    /// By the path as it was sent. Most requests have no other.
    pub(super) first: Option<usize>,
    pub(super) more: Vec<Option<usize>>,
}

impl MatchedEntries {
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<usize>> {
        iter::once(self.first).chain(self.more.iter().copied())
    }

    pub(super) fn add(&mut self, entry: Option<usize>) {
        if self.iter().all(|found| found != entry) {
            self.more.push(entry);
        }
    }
}

/// The patterns of a table in order, with a tree and a map to find them.
#[derive(Default)]
pub(crate) struct Index {
    patterns: Vec<Pattern>,
    nodes: Vec<RouteNode>,
    /// By the text in [`PathPattern::Grpc`].
    grpc: HashMap<String, Entries>,
    /// Patterns without a path, which are tried one by one.
    others: Vec<usize>,
    /// The length of the longest text in the tree or the map. A longer text is not hashed.
    longest: usize,
    /// Set if a route ends with a slash.
    has_slash: bool,
}

/// The common beginning of routes, up to one of their slashes.
#[derive(Default)]
struct RouteNode {
    texts: HashMap<String, usize>,
    one: Option<usize>,
    /// Entries whose routes end before this slash.
    ends: Entries,
    /// Entries whose routes have `{*rest}` behind it.
    rests: Entries,
}

/// The entries of one path, in the order of the table.
#[derive(Default)]
struct Entries {
    all: Vec<usize>,
    /// The entries without further conditions, with their methods: at most one for each method.
    plain: Vec<(Option<Method>, usize)>,
}

impl Entries {
    /// Returns an entry that matches all requests with this method here; `None` is any method.
    fn covers(&self, given: Option<&Method>) -> Option<usize> {
        let mut plain = self.plain.iter();
        let found = plain.find(|(method, _)| match (method, given) {
            (None, _) => true,
            (Some(method), Some(given)) => includes(method, given),
            (Some(_), None) => false,
        });
        found.map(|(_, entry)| *entry)
    }
}

impl Index {
    /// Creates the index of a table.
    ///
    /// # Errors
    ///
    /// Returns the first entry that is never reached, and the earlier one that matches its
    /// requests. Compares only paths: it is unknown which requests a closure matches.
    pub(super) fn new(patterns: Vec<Pattern>) -> Result<Self, (usize, usize)> {
        let mut index = Self::empty();
        for (entry, pattern) in patterns.iter().enumerate() {
            if let Some(earlier) = index.taken(pattern) {
                return Err((entry, earlier));
            }
            index.insert(entry, pattern);
        }
        index.patterns = patterns;
        Ok(index)
    }

    /// Creates the index of a single pattern.
    pub(super) fn one(pattern: Pattern) -> Self {
        let mut index = Self::empty();
        index.insert(0, &pattern);
        index.patterns.push(pattern);
        index
    }

    fn empty() -> Self {
        Self {
            nodes: vec![RouteNode::default()],
            ..Self::default()
        }
    }

    /// Returns the entries of a request.
    pub(super) fn find(&self, parts: &Parts) -> MatchedEntries {
        let mut search = self.search(parts);
        let more = Vec::new();
        let (template, path) = (template(&parts.extensions), full_path(parts));
        search.template(template, path);
        search.path(path);
        search.grpc(parts.uri.path());
        let first = search.or_other();
        let mut found = MatchedEntries { first, more };
        let has_end = self.has_slash || (path.len() > 1 && path.ends_with('/'));
        let is_plain = is_plain(path);
        // Without an entry of a path, no reading of it makes a difference.
        let has_paths = self.others.len() < self.patterns.len();
        if has_paths && (!is_plain || has_end || !self.grpc.is_empty()) {
            self.read_again(parts, template, (path, is_plain), &mut found);
        }
        found
    }

    /// Returns whether a request matches in some reading of its path.
    pub(super) fn may_match(&self, parts: &Parts) -> bool {
        self.find(parts).iter().any(|entry| entry.is_some())
    }

    /// Returns whether a request matches in each reading of its path.
    pub(super) fn matches(&self, parts: &Parts) -> bool {
        self.find(parts).iter().all(|entry| entry.is_some())
    }

    /// Adds the entries of the further readings of a path.
    #[cold]
    fn read_again(
        &self,
        parts: &Parts,
        template: Option<&str>,
        (path, is_plain): (&str, bool),
        found: &mut MatchedEntries,
    ) {
        // The route that serves the request is certain, and so is the entry that names it.
        if !is_plain && let Some(entry) = self.search(parts).template(template, path).hit() {
            found.add(Some(entry));
        }
        let has_compared = |unless: &str| template.is_some_and(|route| !route.contains(unless));
        // A route without a rest has compared the path as it was sent, all but its parameters.
        let compared = has_compared("{*");
        let others = if is_plain {
            Vec::new()
        } else {
            readings(path, compared)
        };
        for reading in &others {
            let mut search = self.search(parts);
            search.template(template, path).path(reading).grpc(reading);
            found.add(search.or_other());
        }
        if compared {
            // What a parameter holds may be a path of its own for the service: an entry shows it.
            if !is_plain && !has_compared("{") {
                for reading in readings(path, false) {
                    let entry = self.search(parts).path(&reading).hit();
                    entry.into_iter().for_each(|entry| found.add(Some(entry)));
                }
            }
            return;
        }
        // Most services read a path in none of these ways: an entry shows that this one may.
        for reading in iter::once(path).chain(others.iter().map(String::as_str)) {
            if reading.len() > 1 && (self.has_slash || reading.ends_with('/')) {
                let mut search = self.search(parts);
                // With a slash added, every path below is longer: only a route with one is meant.
                search.skips_rests = !reading.ends_with('/');
                let entry = search.path(&with_other_end(reading)).hit();
                entry.into_iter().for_each(|entry| found.add(Some(entry)));
            }
            if let Some(call) = call_of(reading) {
                let entry = self.search(parts).grpc(call).hit();
                entry.into_iter().for_each(|entry| found.add(Some(entry)));
            }
        }
    }

    fn search<'a>(&'a self, parts: &'a Parts) -> EntrySearch<'a> {
        EntrySearch {
            index: self,
            parts,
            found: self.patterns.len(),
            skips_rests: false,
            #[cfg(test)]
            steps: 0,
        }
    }

    fn insert(&mut self, entry: usize, pattern: &Pattern) {
        let (method, entries) = match &pattern.path {
            Some(PathPattern::Route(method, path)) => {
                self.has_slash |= path.len() > 1 && path.ends_with('/');
                (method.clone(), self.at(path))
            }
            Some(PathPattern::Grpc(path)) => {
                self.longest = self.longest.max(path.len());
                (None, self.grpc.entry(path.clone()).or_default())
            }
            None => return self.others.push(entry),
        };
        entries.all.push(entry);
        if pattern.conditions.is_empty() {
            entries.plain.push((method, entry));
        }
    }

    /// Returns the entries of a route.
    fn at(&mut self, route: &str) -> &mut Entries {
        let mut at = ROOT;
        for segment in segments(route).into_iter().flatten().flatten() {
            let new = self.nodes.len();
            let node = &mut self.nodes[at];
            at = match segment {
                Segment::Rest => return &mut self.nodes[at].rests,
                Segment::One => *node.one.get_or_insert(new),
                Segment::Text(text) => {
                    let text = canonical(text).into_owned();
                    self.longest = self.longest.max(text.len());
                    *node.texts.entry(text).or_insert(new)
                }
            };
            if at == new {
                self.nodes.push(RouteNode::default());
            }
        }
        &mut self.nodes[at].ends
    }

    /// Returns whether an entry matches every path but `/`.
    pub(super) fn has_every_path(&self) -> bool {
        self.covering(None, "/{*rest}").is_some()
    }

    /// Returns an entry that matches all requests of a pattern.
    fn taken(&self, pattern: &Pattern) -> Option<usize> {
        match pattern.path.as_ref()? {
            PathPattern::Route(method, path) => self.covering(method.as_ref(), path),
            PathPattern::Grpc(path) => {
                let service = path.rfind('/').and_then(|end| path.get(..=end))?;
                let mut paths = [service, path].into_iter();
                paths.find_map(|path| self.grpc.get(path)?.covers(None))
            }
        }
    }

    /// Returns an entry that matches all requests of a route.
    fn covering(&self, method: Option<&Method>, route: &str) -> Option<usize> {
        let segments: Vec<_> = segments(route).into_iter().flatten().flatten().collect();
        // Not recursive: the length of a path is bounded only by that of the file.
        let mut open = vec![(ROOT, segments.as_slice())];
        while let Some((at, segments)) = open.pop() {
            let node = &self.nodes[at];
            let Some((segment, tail)) = segments.split_first() else {
                match node.ends.covers(method) {
                    Some(entry) => return Some(entry),
                    None => continue,
                }
            };
            // Neither `{name}` nor `{*rest}` matches the empty segment after a last slash.
            let empty = *segment == Segment::Text("");
            if let Some(entry) = node.rests.covers(method).filter(|_| !empty) {
                return Some(entry);
            }
            let one = node.one.filter(|_| *segment != Segment::Rest && !empty);
            let text = match segment {
                Segment::Text(text) => node.texts.get(&*canonical(text)).copied(),
                Segment::One | Segment::Rest => None,
            };
            open.extend([one, text].into_iter().flatten().map(|next| (next, tail)));
        }
        None
    }
}

/// The search for one request.
struct EntrySearch<'a> {
    index: &'a Index,
    parts: &'a Parts,
    /// The first entry known to match; the number of entries if there is none.
    found: usize,
    /// Leaves out routes that end with `{*rest}`.
    skips_rests: bool,
    /// Counts the nodes and entries visited.
    #[cfg(test)]
    steps: usize,
}

impl<'a> EntrySearch<'a> {
    /// Returns the entry that was found, or an earlier one without a path.
    fn hit(&mut self) -> Option<usize> {
        let is_hit = self.found < self.index.patterns.len();
        is_hit.then(|| self.or_other()).flatten()
    }

    /// Returns the entry that was found, or one without a path if that comes before it.
    fn or_other(&mut self) -> Option<usize> {
        self.first_of(&self.index.others);
        Some(self.found).filter(|found| *found < self.index.patterns.len())
    }

    /// Searches the entries whose route is the one that serves the request, and those of a gRPC
    /// method or service whose route it is, whatever its prefix.
    fn template(&mut self, template: Option<&str>, path: &str) -> &mut Self {
        if let Some(template) = template {
            self.route(template);
            let mut slashes = template.rmatch_indices('/').map(|(at, _)| at);
            let ends = slashes.next().zip(slashes.next());
            let service = ends.and_then(|(end, start)| template.get(start..=end));
            if let Some(service) = service.filter(|_| !self.index.grpc.is_empty()) {
                let mut calls = call_of(path).into_iter().chain([path]);
                let call = calls.find(|call| call.starts_with(service));
                self.grpc(call.unwrap_or(service));
            }
        }
        self
    }

    fn route(&mut self, route: &str) {
        let mut at = self.node(ROOT);
        for segment in segments(route).into_iter().flatten() {
            let next = match segment {
                Ok(Segment::Text(text)) => {
                    let next = at.texts.get(text);
                    next.or_else(|| at.texts.get(&*canonical(text))).copied()
                }
                Ok(Segment::One) => at.one,
                Ok(Segment::Rest) => return self.first_of(&at.rests.all),
                Err(_) => None,
            };
            let Some(next) = next else { return };
            at = self.node(next);
        }
        self.first_of(&at.ends.all);
    }

    /// Searches the entries whose routes match a path.
    fn path(&mut self, path: &str) -> &mut Self {
        if let Some(path) = path.strip_prefix('/') {
            self.below(ROOT, Some(path));
        }
        self
    }

    /// Searches the entries whose routes match the path after the slash of a node; `None` if the
    /// path ends before that slash.
    fn below(&mut self, mut at: usize, mut rest: Option<&str>) {
        loop {
            let node = self.node(at);
            let Some(path) = rest else {
                return self.first_of(&node.ends.all);
            };
            if !path.is_empty() && !self.skips_rests {
                self.first_of(&node.rests.all);
            }
            if node.texts.is_empty() && node.one.is_none() {
                return;
            }
            let (segment, after) = match path.split_once('/') {
                Some((segment, after)) => (segment, Some(after)),
                None => (path, None),
            };
            let text = Some(segment).filter(|text| text.len() <= self.index.longest);
            let text = text.and_then(|text| node.texts.get(text));
            let one = node.one.filter(|_| !segment.is_empty());
            match (text, one) {
                (Some(text), Some(one)) => {
                    self.below(*text, after);
                    at = one;
                }
                (Some(text), None) => at = *text,
                (None, Some(one)) => at = one,
                (None, None) => return,
            }
            rest = after;
        }
    }

    /// Searches the entries of a gRPC method and of its service.
    fn grpc(&mut self, path: &str) -> &mut Self {
        if self.index.grpc.is_empty() {
            return self;
        }
        let service = path.match_indices('/').nth(1).map(|(end, _)| end + 1);
        for path in [Some(path), service.and_then(|end| path.get(..end))] {
            let path = path.filter(|path| path.len() <= self.index.longest);
            if let Some(entries) = path.and_then(|path| self.index.grpc.get(path)) {
                self.first_of(&entries.all);
            }
        }
        self
    }

    /// Takes the first of these entries that matches. All of them are for the request's path.
    fn first_of(&mut self, entries: &[usize]) {
        for entry in entries {
            if *entry >= self.found {
                return;
            }
            self.step();
            if self.index.patterns[*entry].matches_there(self.parts) {
                self.found = *entry;
            }
        }
    }

    fn node(&mut self, at: usize) -> &'a RouteNode {
        self.step();
        &self.index.nodes[at]
    }

    fn step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }
}

#[cfg(test)]
mod tests;
