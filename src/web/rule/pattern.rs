//! Patterns: the conditions under which an entry of the table matches a request.

use std::{fmt, iter, sync::Arc};

use http::{Extensions, Method, request::Parts};

use crate::{
    error::{ConfigError, config_error},
    web::request::{is_grpc_name, template},
};

/// A condition on a request's head.
#[derive(Clone)]
pub(crate) enum Pattern {
    Path(PathPattern),
    /// All methods of a gRPC service, or one
    Grpc {
        path: String,
        whole_service: bool,
    },
    Predicate(Arc<dyn Fn(&Parts) -> bool + Send + Sync>),
    /// All of these; the one that gives the place, if any, comes first
    #[cfg_attr(
        not(feature = "config"),
        allow(dead_code, reason = "only a rules file combines several conditions")
    )]
    All(Vec<Self>),
}

/// The place in the index where the requests of a pattern are found.
pub(crate) enum Place<'a> {
    Route(&'a [Segment]),
    /// The path of a method, or that of a service with a slash at its end
    Grpc(&'a str),
    Anywhere,
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
        let segments = segments(path).map_err(refuse)?;
        let segments = segments.map(|segment| segment.map(Segment::owned));
        let segments = segments.collect::<Result<_, _>>().map_err(refuse)?;
        Ok(Self::Path(PathPattern { method, segments }))
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
        Ok(match name {
            Some(name) => Self::Grpc {
                path: format!("/{service}/{name}"),
                whole_service: false,
            },
            None => Self::Grpc {
                path: format!("/{service}/"),
                whole_service: true,
            },
        })
    }

    pub(crate) fn matches(&self, parts: &Parts) -> bool {
        match self {
            Self::Path(pattern) => pattern.matches(parts),
            // By path alone: a request that hides its content type must not escape its limit.
            Self::Grpc {
                path,
                whole_service: true,
            } => parts.uri.path().starts_with(path.as_str()),
            Self::Grpc {
                path,
                whole_service: false,
            } => parts.uri.path() == path,
            Self::Predicate(predicate) => predicate(parts),
            Self::All(all) => all.iter().all(|pattern| pattern.matches(parts)),
        }
    }

    /// Returns the place of its requests.
    pub(crate) fn place(&self) -> Place<'_> {
        match self {
            Self::Path(pattern) => Place::Route(&pattern.segments),
            Self::Grpc { path, .. } => Place::Grpc(path),
            Self::Predicate(_) => Place::Anywhere,
            Self::All(all) => all.first().map_or(Place::Anywhere, Self::place),
        }
    }

    /// Returns whether a request at its [`place`](Self::place) matches.
    pub(crate) fn matches_there(&self, parts: &Parts) -> bool {
        match self {
            Self::Path(pattern) => pattern.matches_method(parts),
            Self::Grpc { .. } => true,
            Self::Predicate(predicate) => predicate(parts),
            Self::All(all) => all.split_first().is_none_or(|(first, others)| {
                let mut others = others.iter();
                first.matches_there(parts) && others.all(|other| other.matches(parts))
            }),
        }
    }
}

fn refused(pattern: &str, reason: &str) -> ConfigError {
    config_error!(Pattern: "{pattern:?} is not `/path` or `METHOD /path`: {reason}")
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(_) => f.write_str("Path(..)"),
            Self::Grpc { path, .. } => write!(f, "Grpc({path})"),
            Self::Predicate(_) => f.write_str("Predicate(..)"),
            Self::All(all) => f.debug_tuple("All").field(all).finish(),
        }
    }
}

/// A method and a path in the syntax of axum's router.
#[derive(Clone, Debug)]
pub(crate) struct PathPattern {
    pub(crate) method: Option<Method>,
    pub(crate) segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment<T = String> {
    Text(T),
    /// `{name}`: one segment, not empty
    One,
    /// `{*name}`: the rest, not empty
    Rest,
}

impl PathPattern {
    fn matches(&self, parts: &Parts) -> bool {
        self.matches_method(parts)
            && (self.is_template(&parts.extensions) || self.matches_path(full_path(parts)))
    }

    fn matches_method(&self, parts: &Parts) -> bool {
        let method = self.method.as_ref();
        method.is_none_or(|method| counts_as(&parts.method, method))
    }

    /// Returns whether this is the route that serves the request, whatever the names of its
    /// parameters.
    fn is_template(&self, extensions: &Extensions) -> bool {
        let given = template(extensions).and_then(|template| segments(template).ok());
        let meant = self.segments.iter().map(|segment| Some(segment.borrowed()));
        given.is_some_and(|given| given.map(Result::ok).eq(meant))
    }

    fn matches_path(&self, path: &str) -> bool {
        let mut rest = path.strip_prefix('/').map(|path| path.split('/'));
        let Some(given) = rest.as_mut() else {
            return false;
        };
        for segment in &self.segments {
            let Some(part) = given.next() else {
                return false;
            };
            match segment {
                Segment::Text(text) if text == part => {}
                Segment::Text(_) => return false,
                Segment::One if part.is_empty() => return false,
                Segment::One => {}
                Segment::Rest => return !part.is_empty() || given.next().is_some(),
            }
        }
        given.next().is_none()
    }
}

impl Segment {
    fn borrowed(&self) -> Segment<&str> {
        match self {
            Self::Text(text) => Segment::Text(text),
            Self::One => Segment::One,
            Self::Rest => Segment::Rest,
        }
    }
}

impl Segment<&str> {
    fn owned(self) -> Segment {
        match self {
            Self::Text(text) => Segment::Text(text.to_owned()),
            Self::One => Segment::One,
            Self::Rest => Segment::Rest,
        }
    }
}

pub(crate) fn method_of(text: &str) -> Result<Method, &'static str> {
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err("methods are written in capitals");
    }
    let method = Method::from_bytes(text.as_bytes()).ok();
    method.filter(|method| STANDARD.contains(method)).ok_or(
        "the method is not one of GET, HEAD, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE and PATCH: \
         others are matched by `on_request`, in a file by `when`",
    )
}

/// The methods of RFC 9110, section 9.3, and RFC 5789. Any other is more likely a typing error, and
/// an entry with it would limit nothing.
const STANDARD: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::CONNECT,
    Method::OPTIONS,
    Method::TRACE,
    Method::PATCH,
];

/// Returns whether an entry with the method `meant` counts this request: GET includes HEAD.
pub(crate) fn counts_as(given: &Method, meant: &Method) -> bool {
    given == meant || (*meant == Method::GET && *given == Method::HEAD)
}

/// Returns the path as it was sent. In a nested axum router the request's own lacks the prefix.
pub(crate) fn full_path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri.path();
    }
    parts.uri.path()
}

/// Returns the segments of a route, or the reason why one is invalid.
pub(crate) fn segments(
    path: &str,
) -> Result<impl Iterator<Item = Result<Segment<&str>, &'static str>>, &'static str> {
    let path = path
        .strip_prefix('/')
        .ok_or("the path does not begin with `/`")?;
    let mut parts = path.split('/').peekable();
    Ok(iter::from_fn(move || {
        let part = parts.next()?;
        Some(segment(part, parts.peek().is_none()))
    }))
}

fn segment(part: &str, is_last: bool) -> Result<Segment<&str>, &'static str> {
    let inner = part
        .strip_prefix('{')
        .and_then(|part| part.strip_suffix('}'));
    match inner {
        Some(name) => match name.strip_prefix('*') {
            Some("") => Err("a parameter has no name"),
            Some(_) if !is_last => Err("`{*rest}` must be the last segment"),
            Some(_) => Ok(Segment::Rest),
            None if name.is_empty() => Err("a parameter has no name"),
            None => Ok(Segment::One),
        },
        None if part.contains(['{', '}']) => {
            Err("a parameter is a whole segment, as in `/users/{id}`")
        }
        None if part.starts_with([':', '*']) => {
            Err("a parameter is written `{id}`, the rest `{*rest}`")
        }
        None => Ok(Segment::Text(part)),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn matches(pattern: &str, method: &str, path: &str) -> bool {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(())
            .unwrap();
        Pattern::route(pattern)
            .unwrap()
            .matches(&request.into_parts().0)
    }

    #[test]
    fn paths_match_as_in_axums_router() {
        for (pattern, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/login", "/login", true),
            ("/login", "/login?next=/", true),
            ("/login", "/login/", false),
            ("/login", "/Login", false),
            ("/users/{id}", "/users/7", true),
            ("/users/{id}", "/users/", false),
            ("/users/{id}", "/users/7/posts", false),
            ("/users/{id}/posts", "/users/7/posts", true),
            ("/files/{*path}", "/files/a/b", true),
            ("/files/{*path}", "/files/", false),
            ("/files/{*path}", "/files//", true),
            ("/files/{*path}", "/files", false),
        ] {
            assert_eq!(matches(pattern, "GET", path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_method_narrows_and_head_counts_as_get() {
        assert!(matches("POST /login", "POST", "/login"));
        assert!(!matches("POST /login", "GET", "/login"));
        assert!(matches("GET /", "HEAD", "/"));
        assert!(!matches("HEAD /", "GET", "/"));
        assert!(matches("/", "DELETE", "/"));
    }

    #[test]
    fn bad_patterns_say_what_is_wrong() {
        for bad in [
            "",
            "login",
            "post /login",
            "POST login",
            "PO ST /",
            "FETCH /",
            "PROPFIND /dav/{*path}",
            "/search?q={q}",
            "/page#top",
            "/a{b}",
            "/{}",
            "/{*}",
            "/{*a}/b",
            "/:id",
            "/*rest",
        ] {
            let error = Pattern::route(bad).unwrap_err();
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
        for bad in ["", "/a.B/C", "a.B/C/D", "a b/C", "a.B/"] {
            assert!(Pattern::grpc(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_grpc_entry_goes_by_the_path() {
        let asked = |method: &str, pattern: &str, path: &str| {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .body(())
                .unwrap();
            Pattern::grpc(pattern)
                .unwrap()
                .matches(&request.into_parts().0)
        };
        let matches = |pattern, path| asked("POST", pattern, path);
        // Some servers accept other methods than POST for a call.
        assert!(asked("GET", "shop.Orders/Create", "/shop.Orders/Create"));
        assert!(asked("GET", "shop.Orders", "/shop.Orders/Delete"));
        assert!(matches("shop.Orders/Create", "/shop.Orders/Create"));
        assert!(!matches("shop.Orders/Create", "/shop.Orders/Delete"));
        assert!(matches("shop.Orders", "/shop.Orders/Delete"));
        assert!(!matches("shop.Orders", "/shop.OrdersX/Delete"));
    }
}
