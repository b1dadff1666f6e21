//! The fields and bodies of responses, to the byte, read again by independent parsers.

#[cfg(feature = "calendar")]
mod calendar;
mod fields;
mod problems;

use http_body_util::BodyExt;
use kit::scene::*;
use tower::Service;

/// An answer, read to its end.
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    /// The field's lines.
    fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.get_all(name).iter();
        lines.map(|line| line.to_str().unwrap()).collect()
    }

    fn one(&self, name: &str) -> &str {
        match *self.all(name) {
            [line] => line,
            ref lines => panic!("{name}: {lines:?}"),
        }
    }

    /// Returns all fields about limits, in their order.
    fn limit_fields(&self) -> Vec<(&str, &str)> {
        let fields = self.headers.iter();
        let mut found: Vec<_> = fields
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .filter(|(name, _)| name.contains("ratelimit") || *name == "retry-after")
            .collect();
        found.sort_by_key(|(name, _)| *name);
        found
    }
}

fn by_key(limit: Limit) -> Rule {
    limit.by(FromHeader::new("x-key"))
}

fn get(headers: &[(&str, &str)]) -> Request<String> {
    request("GET", headers)
}

/// A request with the key `a`, unless there is another among the headers.
fn request(method: &str, headers: &[(&str, &str)]) -> Request<String> {
    let mut request = asking(&format!("{method} /"), headers);
    let key = "a".parse().unwrap();
    request.headers_mut().entry("x-key").or_insert(key);
    request
}

/// An inner service with these fields in its answers.
fn inner(
    fields: &'static [(&'static str, &'static str)],
) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send> + Clone
{
    service_fn(move |_: Request<String>| {
        let mut response = Response::builder();
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        std::future::ready(Ok(response.body("inner".to_owned()).unwrap()))
    })
}

async fn ask(layer: &RateLimitLayer, request: Request<String>) -> Answer {
    call(layer.layer(inner(&[])), request).await
}

async fn call<S, B>(service: S, request: Request<String>) -> Answer
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = bytes::Bytes, Error: std::fmt::Debug>,
{
    let (head, body) = service.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}
