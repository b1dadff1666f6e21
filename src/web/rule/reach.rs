//! Finds entries of a table that no request can reach, because an earlier one matches all their
//! requests.
//!
//! The first entry that matches counts, so the rules of an unreachable entry limit nothing.
//! Patterns are kept in a tree. Each reload checks the table anew, so the time of the check must be
//! linear in the table's length, not quadratic.

use std::collections::HashMap;

use http::Method;

use super::{
    Rule,
    pattern::{PathPattern, Pattern, Segment, counts_as},
};
use crate::error::ConfigError;

/// The text of an entry, the pattern read from it, and its rules.
pub(crate) type Entry = (String, Result<Pattern, ConfigError>, Vec<Rule>);

/// Returns the first entry that is never reached, and the earlier one that takes its requests.
///
/// Compares only patterns: it is unknown which requests a closure matches.
pub(crate) fn first_unreached(entries: &[Entry]) -> Option<(&Entry, &Entry)> {
    let mut tree = Tree::default();
    entries.iter().enumerate().find_map(|(place, entry)| {
        let earlier = tree.add(place, entry.1.as_ref().ok()?)?;
        Some((entry, entries.get(earlier)?))
    })
}

/// The patterns added so far.
#[derive(Default)]
struct Tree<'a> {
    /// From a node to the next one, by a text, or by `{name}` (`None`). The root is 0.
    steps: HashMap<(usize, Option<&'a str>), usize>,
    /// The methods and entries of routes that end at a node, or whose `{*rest}` begins there.
    ends: HashMap<(usize, End), Vec<Owner<'a>>>,
    /// The entries of gRPC paths; the path of a whole service ends with its slash.
    grpc: HashMap<&'a str, usize>,
}

/// The method of a pattern, and its entry.
type Owner<'a> = (Option<&'a Method>, usize);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum End {
    Here,
    Rest,
}

impl<'a> Tree<'a> {
    /// Adds a pattern. If an earlier entry matches all its requests, returns that entry.
    fn add(&mut self, place: usize, pattern: &'a Pattern) -> Option<usize> {
        let earlier = self.taken(pattern);
        if earlier.is_none() {
            match pattern {
                Pattern::Path(path) => self.insert(place, path),
                Pattern::Grpc { path, .. } => drop(self.grpc.insert(path, place)),
                // They take only some of the requests that their parts match.
                Pattern::All(_) | Pattern::Predicate(_) => {}
            }
        }
        earlier
    }

    /// Returns an earlier entry that matches all requests of a pattern.
    fn taken(&self, pattern: &Pattern) -> Option<usize> {
        match pattern {
            Pattern::Path(path) => self.covering(path),
            Pattern::Grpc { path, .. } => {
                let service = path.rfind('/').and_then(|end| path.get(..=end));
                let whole = service.and_then(|service| self.grpc.get(service));
                whole.or_else(|| self.grpc.get(path.as_str())).copied()
            }
            // All parts must match, so an entry that takes all requests of one part takes all of
            // this one's.
            Pattern::All(all) => all.iter().find_map(|one| self.taken(one)),
            Pattern::Predicate(_) => None,
        }
    }

    fn insert(&mut self, place: usize, path: &'a PathPattern) {
        let (mut node, mut end) = (0, End::Here);
        for segment in &path.segments {
            let by = match segment {
                Segment::Text(text) => Some(text.as_str()),
                Segment::One => None,
                Segment::Rest => {
                    end = End::Rest;
                    break;
                }
            };
            let next = self.steps.len() + 1;
            node = *self.steps.entry((node, by)).or_insert(next);
        }
        let ends = self.ends.entry((node, end)).or_default();
        ends.push((path.method.as_ref(), place));
    }

    /// Returns an entry that matches all requests of this path.
    fn covering(&self, path: &PathPattern) -> Option<usize> {
        let covers = |node, end| {
            let ends = self.ends.get(&(node, end)).into_iter().flatten();
            let mut found = ends.filter(|(method, _)| match (method, &path.method) {
                (None, _) => true,
                (Some(method), Some(given)) => counts_as(given, method),
                (Some(_), None) => false,
            });
            found.next().map(|(_, place)| *place)
        };
        // Not recursive: the length of a path is bounded only by that of the file.
        let mut open = vec![(0, path.segments.as_slice())];
        while let Some((node, segments)) = open.pop() {
            let Some((segment, tail)) = segments.split_first() else {
                if let Some(place) = covers(node, End::Here) {
                    return Some(place);
                }
                continue;
            };
            // Neither `{name}` nor a last `{*rest}` matches an empty segment.
            let text = match segment {
                Segment::Text(text) => Some(text.as_str()),
                Segment::One | Segment::Rest => None,
            };
            let empty = text == Some("");
            if let Some(place) = covers(node, End::Rest).filter(|_| !(empty && tail.is_empty())) {
                return Some(place);
            }
            let mut step = |by| {
                if let Some(next) = self.steps.get(&(node, by)) {
                    open.push((*next, tail));
                }
            };
            if *segment != Segment::Rest && !empty {
                step(None);
            }
            if text.is_some() {
                step(text);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn entries(patterns: &[&str]) -> Vec<Entry> {
        let entry = |text: &&str| {
            let pattern = match text.strip_prefix("grpc ") {
                Some(method) => Pattern::grpc(method),
                None => Pattern::route(text),
            };
            assert!(pattern.is_ok(), "{text}");
            ((*text).to_owned(), pattern, Vec::new())
        };
        patterns.iter().map(entry).collect()
    }

    fn unreached(patterns: &[&str]) -> Option<(usize, usize)> {
        places(&entries(patterns))
    }

    fn places(entries: &[Entry]) -> Option<(usize, usize)> {
        let (late, early) = first_unreached(entries)?;
        let place = |of: &Entry| entries.iter().position(|entry| std::ptr::eq(entry, of));
        Some((place(late)?, place(early)?))
    }

    #[test]
    fn an_entry_behind_a_wider_one_is_never_reached() {
        for (patterns, expected) in [
            (&["/a", "/a"][..], Some((1, 0))),
            (&["/a", "/b", "/a"], Some((2, 0))),
            (&["/users/{id}", "/users/{name}"], Some((1, 0))),
            (&["/users/{id}", "/users/me"], Some((1, 0))),
            (&["/users/me", "/users/{id}"], None),
            (&["/{*rest}", "/a/b/{c}"], Some((1, 0))),
            (&["/{*rest}", "/{*all}"], Some((1, 0))),
            (&["/{*rest}", "/"], None),
            (&["/a/{*rest}", "/a/{b}"], Some((1, 0))),
            (&["/a/{*rest}", "/a"], None),
            (&["/a/{*rest}", "/a/"], None),
            (&["/a/{*rest}", "/a//"], Some((1, 0))),
            (&["/{a}/{*rest}", "/a/{*rest}"], Some((1, 0))),
            (&["/a/{b}", "/a/{*rest}"], None),
            (&["/{a}/b", "/a/{b}"], None),
            (
                &["/{a}/b", "/a/c", "/{x}/{y}", "/a/b/c", "/z/b"],
                Some((4, 0)),
            ),
            // Methods.
            (&["/a", "POST /a"], Some((1, 0))),
            (&["POST /a", "/a"], None),
            (&["POST /a", "GET /a", "POST /a"], Some((2, 0))),
            (&["GET /a", "HEAD /a"], Some((1, 0))),
            (&["HEAD /a", "GET /a"], None),
            (&["POST /{*rest}", "GET /a", "POST /a"], Some((2, 0))),
            // gRPC.
            (&["grpc a.B", "grpc a.B/C"], Some((1, 0))),
            (&["grpc a.B/C", "grpc a.B"], None),
            (&["grpc a.B/C", "grpc a.B/D", "grpc a.B/C"], Some((2, 0))),
            (&["grpc a.B", "grpc a.BC/D"], None),
            (&["grpc a.B", "grpc a.B"], Some((1, 0))),
        ] {
            assert_eq!(unreached(patterns), expected, "{patterns:?}");
        }
    }

    /// The length of a path or a table must not exhaust the stack or take quadratic time.
    #[test]
    fn long_paths_and_long_tables_are_taken() {
        let long = "/{a}".repeat(100_000);
        assert_eq!(unreached(&[&long, &"/b".repeat(100_000)]), Some((1, 0)));
        let many: Vec<_> = (0..10_000).map(|number| format!("/a/{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(unreached(&many), None);
    }

    fn pattern() -> impl Strategy<Value = String> {
        let segment = prop_oneof![3 => "[ab]?", 2 => Just("{x}".to_owned())];
        let method = prop_oneof![Just(""), Just("GET "), Just("HEAD "), Just("POST ")];
        let segments = prop::collection::vec(segment, 1..4);
        (method, segments, any::<bool>()).prop_map(|(method, mut segments, rest)| {
            if rest && let Some(last) = segments.last_mut() {
                "{*rest}".clone_into(last);
            }
            format!("{method}/{}", segments.join("/"))
        })
    }

    proptest! {
        /// An entry is reported as unreached exactly if no request meets it first.
        #[test]
        fn unreached_is_what_no_request_meets(patterns in prop::collection::vec(pattern(), 2..6)) {
            let texts: Vec<_> = patterns.iter().map(String::as_str).collect();
            let table = entries(&texts);
            let requests = requests();
            let matches = |entry: &Entry, parts: &_| entry.1.as_ref().unwrap().matches(parts);
            let covered = |late: usize, early: usize| {
                let (late, early) = (&table[late], &table[early]);
                let mut met = requests.iter().filter(|parts| matches(late, parts));
                met.all(|parts| matches(early, parts))
            };
            let pairs = (0..table.len()).flat_map(|late| (0..late).map(move |early| (late, early)));
            let mut expected = pairs.filter(|(late, early)| covered(*late, *early));
            match places(&table) {
                Some((late, early)) => {
                    prop_assert!(covered(late, early));
                    prop_assert_eq!(expected.next().map(|(late, _)| late), Some(late));
                }
                None => prop_assert_eq!(expected.next(), None),
            }
        }
    }

    /// Returns all paths of up to four segments out of three texts and the empty one, with three
    /// methods.
    fn requests() -> Vec<http::request::Parts> {
        let texts = ["", "a", "b", "c"];
        let mut paths: Vec<String> = vec![String::new()];
        let mut all = Vec::new();
        for _ in 0..4 {
            paths = paths
                .iter()
                .flat_map(|path| texts.map(|text| format!("{path}/{text}")))
                .collect();
            all.extend(paths.iter().cloned());
        }
        let request = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path);
            request.body(()).unwrap().into_parts().0
        };
        let by_method = |path: &String| ["GET", "HEAD", "POST"].map(|method| request(method, path));
        all.iter().flat_map(by_method).collect()
    }
}
