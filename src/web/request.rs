//! Properties of a request: its route, whether it is gRPC, and whether it is a CORS preflight.

use http::{Extensions, HeaderMap, Method, header, request::Parts};

/// The methods of requests that any service may get. QUERY is of RFC 10008.
const USUAL: &str = "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH QUERY";

/// The others that a pattern may name, those of IANA's registry. What is in neither is more likely
/// a typing error, and the entry would limit nothing.
const REGISTERED: &str = "ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE \
                          MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE ORDERPATCH \
                          PROPFIND PROPPATCH REBIND REPORT SEARCH UNBIND UNCHECKOUT UNLINK UNLOCK \
                          UPDATE UPDATEREDIRECTREF VERSION-CONTROL";

/// Returns whether a pattern may name a method.
pub(crate) fn is_registered(method: &Method) -> bool {
    [USUAL, REGISTERED]
        .iter()
        .any(|all| word_of(all, method).is_some())
}

fn word_of(all: &'static str, method: &Method) -> Option<&'static str> {
    all.split(' ').find(|it| *it == method.as_str())
}

/// Returns the method that a request counts as where methods are distinguished: a HEAD costs what a
/// GET costs, and a WebSocket over HTTP/2 or HTTP/3 is opened by an extended CONNECT where HTTP/1.1
/// has a GET (RFC 8441). Only that CONNECT has a path (RFC 9113, section 8.5).
pub(crate) fn effective_method(parts: &Parts) -> &Method {
    match parts.method {
        Method::HEAD => &Method::GET,
        Method::CONNECT if !parts.uri.path().is_empty() => &Method::GET,
        ref method => method,
    }
}

/// Returns the method as a key, one of a few: the caller chooses it.
pub(crate) fn method_key(parts: &Parts) -> &'static str {
    word_of(USUAL, effective_method(parts)).unwrap_or("OTHER")
}

/// Returns the route's template, if the router provides it.
pub(crate) fn template(extensions: &Extensions) -> Option<&str> {
    let _ = extensions;
    #[cfg(feature = "axum")]
    if let Some(path) = extensions.get::<axum::extract::MatchedPath>() {
        return Some(path.as_str());
    }
    None
}

/// Returns whether a request is gRPC or gRPC-Web, by its method and content type.
///
/// All gRPC calls are POST (PROTOCOL-HTTP2.md, "Request-Headers"). A client that uses another
/// method reads HTTP, and would take a gRPC response for a 200.
pub(crate) fn is_grpc(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::POST && grpc_subtype(headers).is_some()
}

/// Returns whether the gRPC status of a response comes in trailers. That of gRPC-Web is a part of
/// the body, and not looked for.
pub(crate) fn has_trailers(headers: &HeaderMap) -> bool {
    grpc_subtype(headers).is_some_and(|subtype| !subtype.starts_with(b"-"))
}

/// Returns what follows `application/grpc` in the content type, of gRPC or gRPC-Web.
fn grpc_subtype(headers: &HeaderMap) -> Option<&[u8]> {
    let content_type = headers.get(header::CONTENT_TYPE)?.as_bytes();
    let subtype = content_type.strip_prefix(b"application/grpc")?;
    let known = match subtype.first() {
        None | Some(b'+' | b';' | b' ') => true,
        Some(_) => subtype.starts_with(b"-web"),
    };
    known.then_some(subtype)
}

/// Returns whether a request is a "CORS-preflight request" as in section 3.2.2 of the Fetch
/// standard.
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    let has = |name| parts.headers.contains_key(name);
    parts.method == Method::OPTIONS
        && has(header::ORIGIN)
        && has(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Returns whether the text can name a gRPC service or method.
pub(crate) fn is_grpc_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b))
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    #[test]
    fn the_method_and_the_content_type_decide() {
        for (content_type, expected, trailers) in [
            ("application/grpc", true, true),
            ("application/grpc+proto", true, true),
            ("application/grpc;x=y", true, true),
            ("application/grpc-web", true, false),
            ("application/grpc-web+proto", true, false),
            ("application/grpc-web-text", true, false),
            ("application/grpcx", false, false),
            ("application/grpc-wobble", false, false),
            ("application/json", false, false),
            ("", false, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(is_grpc(&Method::POST, &headers), expected, "{content_type}");
            assert_eq!(has_trailers(&headers), trailers, "{content_type}");
            for method in [Method::GET, Method::HEAD, Method::PUT] {
                assert!(!is_grpc(&method, &headers), "{method} {content_type}");
            }
        }
        assert!(!is_grpc(&Method::POST, &HeaderMap::new()));
        assert!(!has_trailers(&HeaderMap::new()));
    }

    #[test]
    fn a_preflight_is_one_by_all_three_signs() {
        const ALL: [&str; 2] = ["origin", "access-control-request-method"];
        for (method, headers, expected) in [
            ("OPTIONS", &ALL[..], true),
            ("OPTIONS", &ALL[..1], false),
            ("OPTIONS", &ALL[1..], false),
            ("GET", &ALL[..], false),
        ] {
            let mut request = Request::builder().method(method);
            for name in headers {
                request = request.header(*name, "x");
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(is_preflight(&parts), expected, "{method} {headers:?}");
        }
    }
}
