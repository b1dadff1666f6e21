//! The responses to refused callers, and which callers are refused.

use super::*;

pub(super) fn layer(rule: impl Into<Rule>) -> RateLimitLayer {
    RateLimitLayer::new(&MemoryStore::new(), rule)
}

/// Returns the `detail` of the problem details.
pub(super) async fn detail(answer: Answer) -> String {
    problem(answer).await["detail"].as_str().unwrap().to_owned()
}

fn hourly(permits: u64, key: impl KeyExtractor) -> Rule {
    Limit::per_hour(permits).by(key)
}

/// The same request as a gRPC call.
fn grpc(mut request: Request<String>, content_type: &'static str) -> Request<String> {
    *request.method_mut() = Method::POST;
    let value = HeaderValue::from_static(content_type);
    request.headers_mut().insert(header::CONTENT_TYPE, value);
    request
}

#[tokio::test]
async fn a_missing_key_is_the_callers_fault_unless_it_is_the_peers_address() {
    let user = FromExtension::<u64>::key;
    let closure = || FromParts(|_: &Parts| None::<&str>);
    let either = FromHeader::new("x-a").or(FromHeader::new("x-b"));
    for (rule, status, lacking) in [
        (by_key(1), 401, "x-key"),
        (hourly(1, either), 401, "x-a"),
        (hourly(1, user()), 401, "identity"),
        (hourly(1, closure()), 401, "identity"),
        (hourly(1, PeerIp), 500, "peer address"),
    ] {
        let refused = answer(&layer(rule), anonymous()).await;
        assert_eq!(refused.status(), status, "{lacking}");
        // Waiting does not help, and no limit was met.
        for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert_eq!(header_of(&refused, name), None, "{lacking}");
        }
        assert_eq!(refusal(&refused).missing(), Some(lacking));
        assert_eq!(decision_of(&refused).source(), Source::None, "{lacking}");
        let expected = format!("the request lacks what it is limited by: {lacking}");
        assert_eq!(detail(refused).await, expected);
    }
    let mut known = anonymous();
    let extensions = known.extensions_mut();
    extensions.insert(7_u64);
    extensions.insert(PeerAddr("192.0.2.1:9".parse().unwrap()));
    for rule in [hourly(1, user()), hourly(1, PeerIp)] {
        assert_eq!(code(&layer(rule), known.clone()).await, 200);
    }
}

#[tokio::test]
async fn a_missing_key_can_be_excused() {
    let key = || FromHeader::new("x-key");
    let either = hourly(1, key().or(FromHeader::new("x-other")));
    // The two are apart, though they read the same.
    for (rule, known) in [(either, "a"), (hourly(1, key().or_shared()), "shared")] {
        let layer = layer(rule);
        for (name, value, status) in [
            ("x-other", "a", 200),
            ("x-key", known, 200),
            ("x-other", "a", 429),
        ] {
            let found = code(&layer, asking("GET /", &[(name, value)])).await;
            assert_eq!(found, status, "{name} {layer:?}");
        }
    }
}

/// Otherwise the caller could choose another identity, or none.
#[tokio::test]
async fn a_key_sent_twice_is_refused() {
    let layer = layer(hourly(1, FromHeader::new("x-key").or_skip()));
    let twice = asking("GET /", &[("x-key", "a"), ("x-key", "b")]);
    let refused = answer(&layer, twice).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(refusal(&refused).missing(), Some("x-key"));
    let expected = "the request says more than once what it is limited by: x-key";
    assert_eq!(detail(refused).await, expected);
    assert_eq!(code(&layer, request("a")).await, 200);
}

/// A content type makes no call of gRPC: who asks for a page must not take a refusal for a 200.
#[tokio::test]
async fn a_grpc_call_is_a_post() {
    let layer = layer(by_key(1));
    for (method, granted, refused) in [
        (Method::GET, 200, 429),
        (Method::PUT, 200, 429),
        (Method::POST, 200, 200),
    ] {
        let ask = async || {
            let mut asked = grpc(request(method.as_str()), "application/grpc");
            *asked.method_mut() = method.clone();
            answer(&layer, asked).await
        };
        let is_http = method != Method::POST;
        let first = ask().await;
        assert_eq!(first.status(), granted, "{method}");
        for name in ["ratelimit", "ratelimit-policy"] {
            assert_eq!(first.headers().contains_key(name), is_http, "{method}");
        }
        let second = ask().await;
        assert_eq!(second.status(), refused, "{method}");
        assert_eq!(second.headers().contains_key("retry-after"), is_http);
        assert_eq!(second.headers().contains_key("grpc-status"), !is_http);
    }
}

#[tokio::test]
async fn the_body_of_a_refusal_knows_its_size() {
    let mut refused = answer(&layer(by_key(1)), anonymous()).await;
    let size = refused.body().size_hint().exact().unwrap();
    assert!(!refused.body().is_end_stream());
    let frame = refused.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap().len() as u64, size);
    assert!(refused.body().is_end_stream());
    assert_eq!(refused.body().size_hint().exact(), Some(0));
    assert!(refused.body_mut().frame().await.is_none());
}

/// It has the last word: everything is there to be changed, the body of HEAD included.
#[tokio::test]
async fn the_hook_edits_refusals_and_nothing_else() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let hook = move |refusal: &Refusal, parts: &Parts, mut answer: Response<Bytes>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let path = HeaderValue::from_str(parts.uri.path()).unwrap();
        answer.headers_mut().insert("x-path", path);
        answer.headers_mut().remove("ratelimit-policy");
        if refusal.kind() == RefusalKind::MissingKey {
            assert!(answer.body().starts_with(b"{"));
            *answer.status_mut() = StatusCode::FORBIDDEN;
            return answer.map(|_| Bytes::from_static(b"who?"));
        }
        answer
    };
    let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise(by_key(1));
    let layer = layer.on_refusal(hook).build().unwrap();

    let passed = answer(&layer, request("a")).await;
    assert_eq!(header_of(&passed, "x-path"), None);
    assert!(header_of(&passed, "ratelimit-policy").is_some());
    assert_eq!(seen.load(Ordering::SeqCst), 0);

    let refused = answer(&layer, request("a")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header_of(&refused, "x-path"), Some("/"));
    assert_eq!(header_of(&refused, "ratelimit-policy"), None);
    for left_alone in ["retry-after", "ratelimit"] {
        assert!(header_of(&refused, left_alone).is_some(), "{left_alone}");
    }

    for (line, body) in [("GET /", "who?"), ("HEAD /", "")] {
        let unknown = answer(&layer, asking(line, &[])).await;
        assert_eq!(unknown.status(), StatusCode::FORBIDDEN, "{line}");
        assert_eq!(refusal(&unknown).kind(), RefusalKind::MissingKey, "{line}");
        assert_eq!(unknown.body().size_hint().exact(), Some(body.len() as u64));
        if line == "HEAD /" {
            assert_eq!(header_of(&unknown, "content-length"), Some("4"));
        }
        assert_eq!(text(unknown).await, body, "{line}");
    }

    let call = answer(&layer, grpc(request("a"), "application/grpc")).await;
    assert_eq!(header_of(&call, "grpc-status"), Some("8"));
    assert_eq!(header_of(&call, "x-path"), Some("/"));
    assert_eq!(seen.load(Ordering::SeqCst), 4);

    drop(layer.layer(Inner::default()).call(request("a")));
    assert_eq!(seen.load(Ordering::SeqCst), 5, "also if it is not awaited");
}
