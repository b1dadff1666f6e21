//! Which entries a request meets, by the definition of patterns and of the readings of a path: a
//! linear search.

use super::*;
use crate::web::rule::pattern::counts_as;

/// Returns the entries of a request in a table, by the definition of patterns and of readings.
pub(super) fn found(table: &[Pattern], parts: &Parts) -> Vec<Option<usize>> {
    let (path, template) = (full_path(parts), template(&parts.extensions));
    // The first entry that matches where its path is as `at` says, and whether any path is.
    let first = |at: &dyn Fn(&PathPattern) -> bool| {
        let is_met = |pattern: &Pattern| matches(pattern, parts, at);
        let hits = |pattern: &Pattern| pattern.path.is_some() && is_met(pattern);
        (table.iter().position(is_met), table.iter().any(hits))
    };
    let routed = |pattern: &PathPattern| is_template(pattern, parts);
    let sent = first(&|it| routed(it) || is_at(it, path) || is_call(it, parts.uri.path()));
    let mut found = vec![sent.0];
    let compared = template.is_some_and(|template| !template.contains("{*"));
    let others = if is_plain(path) {
        Vec::new()
    } else {
        readings(path, compared)
    };
    for reading in &others {
        let read = first(&|it| routed(it) || is_at(it, reading) || is_call(it, reading));
        found.push(read.0);
    }
    let mut only = Vec::new();
    if !is_plain(path) {
        only.push(first(&routed));
    }
    if compared && !is_plain(path) && template.is_some_and(|template| template.contains('{')) {
        only.extend(
            readings(path, false)
                .iter()
                .map(|it| first(&|at| is_at(at, it))),
        );
    }
    for reading in others.iter().map(String::as_str).chain([path]) {
        if !compared {
            only.push(first(&|it| is_at_other_end(it, reading)));
            only.push(first(&|it| {
                call_of(reading).is_some_and(|call| is_call(it, call))
            }));
        }
    }
    found.extend(only.iter().filter(|(_, hit)| *hit).map(|(entry, _)| *entry));
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns whether a request matches a pattern whose path is as `at` says.
pub(super) fn matches(pattern: &Pattern, parts: &Parts, at: &dyn Fn(&PathPattern) -> bool) -> bool {
    let is_method = |path: &PathPattern| match path {
        PathPattern::Route(Some(method), _) => counts_as(parts, method),
        PathPattern::Route(None, _) | PathPattern::Grpc(_) => true,
    };
    pattern.path.iter().all(|path| is_method(path) && at(path))
        && pattern.conditions.iter().all(|holds| holds(parts))
}

/// Returns whether this is the route that serves the request, whatever the names of its
/// parameters; or the method or service that the route ends with.
fn is_template(pattern: &PathPattern, parts: &Parts) -> bool {
    let Some(template) = template(&parts.extensions) else {
        return false;
    };
    let Ok(mut given) = segments(template) else {
        return false;
    };
    match pattern {
        PathPattern::Route(_, path) => segments(path).unwrap().all(|own| match own.unwrap() {
            Segment::Text(text) => {
                let given = given.next();
                let is_text = |it: Segment<'_>| matches!(it, Segment::Text(of) if canonical(of) == canonical(text));
                given.is_some_and(|it| it.is_ok_and(is_text))
            }
            own => given.next() == Some(Ok(own)),
        }) && given.next().is_none(),
        PathPattern::Grpc(call) => {
            let ends: Vec<_> = template.rsplit('/').take(3).collect();
            let path: Vec<_> = full_path(parts).rsplit('/').take(2).collect();
            let [_, service, _] = ends[..] else {
                return false;
            };
            // The service, and its method if the path goes no further than that.
            *call == format!("/{service}/")
                || (path.len() == 2 && *call == format!("/{service}/{}", path[0]) && path[1] == service)
        }
    }
}

fn is_call(pattern: &PathPattern, path: &str) -> bool {
    match pattern {
        PathPattern::Route(..) => false,
        PathPattern::Grpc(call) if call.ends_with('/') => path.starts_with(call.as_str()),
        PathPattern::Grpc(call) => path == call,
    }
}

/// Returns whether a route is this path with a slash at its end that the path lacks, or without.
fn is_at_other_end(pattern: &PathPattern, path: &str) -> bool {
    let ends = matches!(pattern, PathPattern::Route(_, route) if route.ends_with('/'));
    path.len() > 1 && (ends || path.ends_with('/')) && is_at(pattern, &with_other_end(path))
}

pub(super) fn is_at(pattern: &PathPattern, path: &str) -> bool {
    let PathPattern::Route(_, route) = pattern else {
        return false;
    };
    let mut rest = path.strip_prefix('/').map(|path| path.split('/'));
    let Some(given) = rest.as_mut() else {
        return false;
    };
    for segment in segments(route).unwrap() {
        let Some(part) = given.next() else {
            return false;
        };
        match segment.unwrap() {
            Segment::Text(text) if canonical(text) == part => {}
            Segment::Text(_) => return false,
            Segment::One if part.is_empty() => return false,
            Segment::One => {}
            Segment::Rest => return !part.is_empty() || given.next().is_some(),
        }
    }
    given.next().is_none()
}
