//! The route as the key: a bounded number of names, whatever paths are requested.

use http::request::Parts;

use super::{Key, KeyExtractor, NoKey, fingerprint_of};
use crate::web::request::{is_grpc, is_grpc_name, method_key, template};

/// The key of all requests that no route serves.
const UNMATCHED: &str = "unmatched";
/// The longest path that is accepted as a gRPC method.
const LONGEST_GRPC_PATH: usize = 256;

/// The method and the route that serves the request; for gRPC the full method.
///
/// With axum (feature `axum`) that is the `MatchedPath`, `/users/{id}` and not `/users/7`. Requests
/// that no route serves, and all HTTP requests without a known route, share one key: callers choose
/// paths, and would create as many limits as there are paths. HEAD counts as GET, and so does the
/// CONNECT that opens a WebSocket over HTTP/2. QUERY counts by itself, and all methods that neither
/// RFC 9110 nor RFC 5789 defines count as one.
///
/// A gRPC request, a POST with a content type of gRPC, counts by its path,
/// `/shop.v1.Orders/Create`, if it has that shape and no route without a `{*rest}` serves it.
/// There, too, a caller can request methods that do not exist; with [`services`](Self::services),
/// only those of known services count separately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "an extractor does nothing until a rule has it"]
pub struct Route {
    services: Option<Vec<&'static str>>,
}

impl Route {
    /// Counts by the route.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts gRPC methods of these services separately, `shop.v1.Orders` for example, and all
    /// others together.
    pub fn services(services: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            services: Some(services.into_iter().collect()),
        }
    }

    /// Returns whether this is the path of a gRPC method that counts separately.
    fn has_grpc(&self, path: &str) -> bool {
        let names = path.strip_prefix('/').and_then(|it| it.split_once('/'));
        names.is_some_and(|(service, method)| {
            let is_known = self
                .services
                .as_ref()
                .is_none_or(|it| it.contains(&service));
            let fits = path.len() <= LONGEST_GRPC_PATH;
            is_known && fits && is_grpc_name(service) && is_grpc_name(method)
        })
    }
}

impl KeyExtractor for Route {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let template = template(&parts.extensions);
        // The caller chooses the content type. If the router names the route of the request, it is
        // gRPC only if the route has a rest, as those of tonic's services have: otherwise the
        // caller could choose the key.
        let may_be_grpc = template.is_none_or(|template| template.contains("/{*"));
        if may_be_grpc && is_grpc(&parts.method, &parts.headers) {
            let path = parts.uri.path();
            key.push("grpc");
            key.push(if self.has_grpc(path) { path } else { UNMATCHED });
        } else {
            key.push(method_key(parts));
            // A template begins with a slash, so none is equal to this.
            key.push(template.unwrap_or(UNMATCHED));
        }
        Ok(())
    }

    fn fingerprint(&self) -> Option<u64> {
        fingerprint_of(&self.services)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::web::key::name_of;

    const ORDERS: &str = "/shop.v1.Orders/Create";

    #[test]
    fn a_raw_path_is_never_a_key() {
        let long = format!("/a/{}", "b".repeat(300));
        let (any, orders) = (Route::new(), Route::services(["shop.v1.Orders"]));
        let call = "%2Fshop.v1.Orders%2FCreate";
        for (route, method, path, expected) in [
            (&any, "GET", "/", "GET,unmatched"),
            (&any, "GET", "/a", "GET,unmatched"),
            (&any, "GET", "/a/b?c=d", "GET,unmatched"),
            (&any, "HEAD", "/", "GET,unmatched"),
            (&any, "CONNECT", "/", "GET,unmatched"),
            (&any, "CONNECT", "a.example:443", "CONNECT,unmatched"),
            (&any, "QUERY", "/", "QUERY,unmatched"),
            (&any, "PROPFIND", "/", "OTHER,unmatched"),
            (&any, "BREW", "/", "OTHER,unmatched"),
            // A gRPC method is its path.
            (&any, "POST", ORDERS, &format!("grpc,{call}")),
            (&orders, "POST", ORDERS, &format!("grpc,{call}")),
            (&any, "POST", "/a", "grpc,unmatched"),
            (&any, "POST", "/a/b/c", "grpc,unmatched"),
            (&any, "POST", "/a//", "grpc,unmatched"),
            (&any, "POST", "/a/b%20c", "grpc,unmatched"),
            (&any, "POST", &long, "grpc,unmatched"),
            (&orders, "POST", &long, "grpc,unmatched"),
            (&orders, "POST", "/x.Y/Z", "grpc,unmatched"),
            // Not a gRPC call, whatever its content type.
            (&orders, "GET", ORDERS, "GET,unmatched"),
        ] {
            let request = Request::builder().method(method).uri(path);
            let request = request.header("content-type", "application/grpc");
            let name = name_of(route, request.body(()).unwrap());
            assert_eq!(name.unwrap(), expected, "{route:?} {method} {path}");
        }
    }
}
