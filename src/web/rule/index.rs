//! Finds the entry of the table for a request: the first that matches.
//!
//! Routes are stored as a tree of their segments, gRPC services and methods as a map. So a
//! request's path is split once, and the cost does not depend on the number of entries, except for
//! those without a route: hosts, methods and closures are tried one after the other, up to the
//! first match.
//!
//! A segment can lead two ways if a node has both its text and a parameter, as in `/users/me` and
//! `/users/{id}`. Both are searched, because the entry written first counts, and not the more exact
//! one. At worst each node of the tree is visited once.

use std::{collections::HashMap, fmt};

use http::request::Parts;

use super::pattern::{Pattern, Place, Segment, full_path, segments};
use crate::web::request::template;

/// The node at which all routes begin.
const ROOT: usize = 0;

/// The patterns of a table in order, with a tree and a map to find them.
pub(super) struct Index {
    patterns: Vec<Pattern>,
    nodes: Vec<Node>,
    /// By the text in [`Place::Grpc`].
    grpc: HashMap<String, Vec<usize>>,
    /// Patterns without a place, which are tried one by one.
    others: Vec<usize>,
    /// The length of the longest text in the tree or the map. A longer text is not hashed.
    longest: usize,
}

/// The common beginning of routes, up to one of their slashes. Entries are in the order of the
/// table.
#[derive(Default)]
struct Node {
    texts: HashMap<String, usize>,
    one: Option<usize>,
    /// Entries whose routes end before this slash.
    ends: Vec<usize>,
    /// Entries whose routes have `{*rest}` behind it.
    rests: Vec<usize>,
}

impl Index {
    pub(super) fn new(patterns: Vec<Pattern>) -> Self {
        let mut index = Self {
            patterns: Vec::new(),
            nodes: vec![Node::default()],
            grpc: HashMap::new(),
            others: Vec::new(),
            longest: 0,
        };
        for (entry, pattern) in patterns.iter().enumerate() {
            match pattern.place() {
                Place::Route(segments) => index.insert(segments, entry),
                Place::Grpc(path) => {
                    index.longest = index.longest.max(path.len());
                    index.grpc.entry(path.to_owned()).or_default().push(entry);
                }
                Place::Anywhere => index.others.push(entry),
            }
        }
        index.patterns = patterns;
        index
    }

    /// Returns the index of the first entry that matches.
    pub(super) fn find(&self, parts: &Parts) -> Option<usize> {
        let mut search = Search {
            index: self,
            parts,
            found: self.patterns.len(),
            #[cfg(test)]
            steps: 0,
        };
        search.run();
        (search.found < self.patterns.len()).then_some(search.found)
    }

    fn insert(&mut self, route: &[Segment], entry: usize) {
        let mut at = ROOT;
        for segment in route {
            let new = self.nodes.len();
            let node = &mut self.nodes[at];
            at = match segment {
                Segment::Rest => return node.rests.push(entry),
                Segment::One => *node.one.get_or_insert(new),
                Segment::Text(text) => {
                    self.longest = self.longest.max(text.len());
                    *node.texts.entry(text.clone()).or_insert(new)
                }
            };
            if at == new {
                self.nodes.push(Node::default());
            }
        }
        self.nodes[at].ends.push(entry);
    }
}

/// The search for one request.
struct Search<'a> {
    index: &'a Index,
    parts: &'a Parts,
    /// The first entry known to match; the number of entries if there is none.
    found: usize,
    /// Counts the nodes and entries visited.
    #[cfg(test)]
    steps: usize,
}

impl<'a> Search<'a> {
    fn run(&mut self) {
        // Most tables of a few rules have no places at all.
        if self.index.others.len() < self.index.patterns.len() {
            if let Some(route) = template(&self.parts.extensions) {
                self.route(route);
            }
            if let Some(path) = full_path(self.parts).strip_prefix('/') {
                self.path(ROOT, Some(path));
            }
            self.grpc(self.parts.uri.path());
        }
        for entry in &self.index.others {
            if *entry >= self.found {
                return;
            }
            self.step();
            if self.index.patterns[*entry].matches(self.parts) {
                self.found = *entry;
            }
        }
    }

    /// Searches the entries whose route is the one that serves the request.
    fn route(&mut self, route: &str) {
        let mut at = self.node(ROOT);
        for segment in segments(route).into_iter().flatten() {
            let next = match segment {
                Ok(Segment::Text(text)) => at.texts.get(text).copied(),
                Ok(Segment::One) => at.one,
                Ok(Segment::Rest) => return self.first_of(&at.rests),
                Err(_) => None,
            };
            let Some(next) = next else { return };
            at = self.node(next);
        }
        self.first_of(&at.ends);
    }

    /// Searches the entries whose routes match the path after the slash of a node; `None` if the
    /// path ends before that slash.
    fn path(&mut self, mut at: usize, mut rest: Option<&str>) {
        loop {
            let node = self.node(at);
            let Some(path) = rest else {
                return self.first_of(&node.ends);
            };
            if !path.is_empty() {
                self.first_of(&node.rests);
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
                    self.path(*text, after);
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
    fn grpc(&mut self, path: &str) {
        if self.index.grpc.is_empty() {
            return;
        }
        let service = path.match_indices('/').nth(1).map(|(end, _)| end + 1);
        for path in [Some(path), service.and_then(|end| path.get(..end))] {
            let path = path.filter(|path| path.len() <= self.index.longest);
            if let Some(entries) = path.and_then(|path| self.index.grpc.get(path)) {
                self.first_of(entries);
            }
        }
    }

    /// Takes the first of these entries that matches. All of them are for the request's place.
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

    fn node(&mut self, at: usize) -> &'a Node {
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

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.patterns).finish()
    }
}

#[cfg(test)]
mod tests;
