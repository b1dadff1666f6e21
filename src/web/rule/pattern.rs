//! Patterns: the conditions under which an entry of the table matches a request.

use std::{iter, sync::Arc};

use http::{Method, request::Parts};

use super::path::canonical;
use crate::{
    values::error::{ConfigError, config_error},
    web::request::{effective_method, is_grpc_name, is_registered},
};

/// A condition on a request's head.
pub(crate) type Condition = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// The conditions of an entry: all must hold. Without any, every request matches.
#[derive(Clone, Default)]
pub(crate) struct Pattern {
    /// The index finds it by this.
    pub(super) path: Option<PathPattern>,
    pub(super) conditions: Vec<Condition>,
}

/// A condition on the path of a request.
#[derive(Clone)]
pub(super) enum PathPattern {
    /// A method, and a valid path in the syntax of axum's router
    Route(Option<Method>, String),
    /// The path of a gRPC method, or that of a service with a slash at its end. By path alone: a
    /// request that hides its content type must not escape its limit.
    Grpc(String),
}

/// A segment of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment<'p> {
    Text(&'p str),
    /// `{name}`: one segment, not empty
    One,
    /// `{*name}`: the rest, not empty
    Rest,
}

impl Pattern {
    /// Reads `/path` or `METHOD /path`, with axum's `{name}` and `{*rest}` in the path.
    pub(crate) fn route(pattern: &str) -> Result<Self, ConfigError> {
        let refuse = |reason| refused(pattern, reason);
        let (method, path) = match pattern.split_once(' ') {
            Some((method, path)) => (Some(method_of(method).map_err(refuse)?), path),
            None => (None, pattern),
        };
        if path.contains(['?', '#']) {
            return Err(refuse(
                "the query and the fragment are not part of the path",
            ));
        }
        for segment in segments(path).map_err(refuse)? {
            segment.map_err(refuse)?;
        }
        Ok(Self {
            path: Some(PathPattern::Route(method, path.to_owned())),
            conditions: Vec::new(),
        })
    }

    /// Reads `package.Service/Method`, or `package.Service` for all of its methods.
    pub(crate) fn grpc(method: &str) -> Result<Self, ConfigError> {
        let (service, name) = match method.split_once('/') {
            Some((service, name)) => (service, Some(name)),
            None => (method, None),
        };
        if !is_grpc_name(service) || name.is_some_and(|name| !is_grpc_name(name)) {
            return Err(refused(
                method,
                "a gRPC method is written `package.Service/Method`",
            ));
        }
        let path = format!("/{service}/{}", name.unwrap_or_default());
        Ok(Self {
            path: Some(PathPattern::Grpc(path)),
            conditions: Vec::new(),
        })
    }

    /// Narrows it by a condition.
    pub(crate) fn and(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Narrows it to some methods. That of a route is the path's, as in `POST /login`, by which the
    /// index finds out whether requests reach the entry.
    pub(crate) fn with_methods(mut self, methods: Vec<Method>) -> Self {
        match (&mut self.path, &methods[..]) {
            (Some(PathPattern::Route(method, _)), [only]) => {
                *method = Some(only.clone());
                self
            }
            _ => self.and(Arc::new(move |parts| {
                let mut methods = methods.iter();
                methods.any(|method| counts_as(parts, method))
            })),
        }
    }

    /// Returns whether every request matches.
    pub(crate) fn is_everything(&self) -> bool {
        self.path.is_none() && self.conditions.is_empty()
    }

    /// Returns whether a request matches whose path the index has found.
    pub(super) fn matches_there(&self, parts: &Parts) -> bool {
        let method = match &self.path {
            Some(PathPattern::Route(method, _)) => method.as_ref(),
            Some(PathPattern::Grpc(_)) | None => None,
        };
        method.is_none_or(|method| counts_as(parts, method))
            && self.conditions.iter().all(|condition| condition(parts))
    }
}

fn refused(pattern: &str, reason: &str) -> ConfigError {
    config_error!(Pattern: "{pattern:?} is not `/path` or `METHOD /path`: {reason}")
}

/// Reads a method.
pub(crate) fn method_of(text: &str) -> Result<Method, &'static str> {
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err("methods are written in capitals");
    }
    let method = Method::from_bytes(text.as_bytes()).ok();
    method.filter(is_registered).ok_or(
        "the method is not one of GET, HEAD, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE, PATCH, \
         QUERY or another of IANA's registry: all others are matched by `on_request`, in a file by \
         `when`",
    )
}

/// Returns whether an entry with the method `meant` counts this request: GET includes what counts
/// as a GET.
pub(crate) fn counts_as(parts: &Parts, meant: &Method) -> bool {
    parts.method == *meant || effective_method(parts) == meant
}

/// Returns whether an entry of a path with the method `meant` counts all requests with this one
/// there.
pub(super) fn includes(meant: &Method, given: &Method) -> bool {
    given == meant || (*meant == Method::GET && matches!(*given, Method::HEAD | Method::CONNECT))
}

/// Returns the path as it was sent. In a nested axum router the request's own lacks the prefix.
pub(super) fn full_path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri.path();
    }
    parts.uri.path()
}

/// Returns the head of a request as if its present path had been sent, if a service in between has
/// rewritten the path: as a fallback that gives the request to the router once more. `None` if the
/// path is the one that was sent, or lacks nothing but the prefix of a nested router.
#[cfg(feature = "axum")]
pub(super) fn rewritten(parts: &Parts) -> Option<Parts> {
    use axum::extract::{MatchedPath, NestedPath, OriginalUri};

    let (sent, path) = (full_path(parts), parts.uri.path());
    if sent == path {
        return None;
    }
    // axum takes one segment off for each of the prefix.
    let nested_at = parts.extensions.get().map_or("", NestedPath::as_str);
    let prefix = nested_at.split('/').filter(|it| !it.is_empty()).count();
    let within = match sent.match_indices('/').nth(prefix) {
        Some((at, _)) => sent.get(at..).unwrap_or_default(),
        None => "/",
    };
    if prefix > 0 && within == path {
        return None;
    }
    let mut rewritten = parts.clone();
    rewritten.extensions.remove::<OriginalUri>();
    rewritten.extensions.remove::<MatchedPath>();
    Some(rewritten)
}

#[cfg(not(feature = "axum"))]
pub(super) fn rewritten(_: &Parts) -> Option<Parts> {
    None
}

/// Returns the segments of a route, or the reason why one is invalid.
pub(super) fn segments(
    path: &str,
) -> Result<impl Iterator<Item = Result<Segment<'_>, &'static str>>, &'static str> {
    let path = path
        .strip_prefix('/')
        .ok_or("the path does not begin with `/`")?;
    let mut parts = path.split('/').peekable();
    Ok(iter::from_fn(move || {
        let part = parts.next()?;
        Some(segment(part, parts.peek().is_none()))
    }))
}

fn segment(part: &str, is_last: bool) -> Result<Segment<'_>, &'static str> {
    let inner = part.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
    match inner {
        Some("" | "*") => Err("a parameter has no name"),
        Some(name) if !name.starts_with('*') => Ok(Segment::One),
        Some(_) if is_last => Ok(Segment::Rest),
        Some(_) => Err("`{*rest}` must be the last segment"),
        None if part.contains(['{', '}']) => {
            Err("a parameter is a whole segment, as in `/users/{id}`")
        }
        None if part.starts_with([':', '*']) => {
            Err("a parameter is written `{id}`, the rest `{*rest}`")
        }
        None => text(part, is_last),
    }
}

/// Refuses what one service takes for the same path as another text, and another service does not.
fn text(part: &str, is_last: bool) -> Result<Segment<'_>, &'static str> {
    match &*canonical(part) {
        "" if !is_last => Err("two slashes stand for one: write one"),
        "." | ".." => Err("clients resolve `.` and `..`: write the path without them"),
        text if text.contains("%2F") => {
            Err("some services read `%2F` as a slash: write `{name}` for such a segment")
        }
        _ => Ok(Segment::Text(part)),
    }
}
