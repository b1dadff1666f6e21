//! Tests the answers of the page's router.

use http::{Method, Request};
use http_body_util::BodyExt;
use tokio::time::timeout;
use tower::ServiceExt;

use super::*;

async fn get(router: &Router, path: &str) -> Response {
    let request = Request::get(path).body(Body::empty()).unwrap();
    router.clone().oneshot(request).await.unwrap()
}

fn a_page() -> (Arc<Activity>, Router) {
    let activity = Arc::new(Activity::new());
    let router = page(&activity);
    (activity, router)
}

async fn next(stream: &mut Response) -> Option<Bytes> {
    let frame = stream.body_mut().frame().await?;
    Some(frame.unwrap().into_data().unwrap())
}

#[tokio::test]
async fn the_page_allows_nothing_but_its_own_script() {
    let (_, router) = a_page();
    let mut nonces = Vec::new();
    for _ in 0..2 {
        let response = get(&router, "/").await;
        let field = |name| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(field("cache-control"), "no-store");
        assert_eq!(field("x-content-type-options"), "nosniff");
        assert_eq!(field("content-type"), "text/html; charset=utf-8");
        let policy = field("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        let (_, nonce) = policy.split_once("script-src 'nonce-").unwrap();
        let nonce = nonce.split('\'').next().unwrap().to_owned();
        assert_eq!(nonce.len(), 32);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(!text.contains("NONCE"));
        // The style and the script.
        assert_eq!(text.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        nonces.push(nonce);
    }
    assert_ne!(nonces[0], nonces[1]);
}

#[tokio::test]
async fn it_only_reads() {
    let (_activity, router) = a_page();
    for path in ["/", "/events"] {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        }
    }
}

/// Text from outside reaches the document only as text, or not at all.
#[test]
fn the_page_makes_no_markup_of_texts() {
    let text = include_str!("page.html");
    for way in [
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "srcdoc",
        "eval(",
    ] {
        assert!(!text.contains(way), "{way}");
    }
    assert_eq!(text.matches("http://").count(), 2, "the names of SVG alone");
    assert!(!text.contains("https://"));
}

#[tokio::test(start_paused = true)]
async fn a_stream_sends_a_snapshot_a_second_and_ends_after_five_minutes() {
    let (_activity, router) = a_page();
    let mut stream = get(&router, "/events").await;
    assert_eq!(stream.headers()[CONTENT_TYPE], "text/event-stream");
    assert_eq!(stream.headers()[CACHE_CONTROL], "no-store");
    assert_eq!(stream.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
    let (began, mut events) = (Instant::now(), 0);
    while let Some(event) = next(&mut stream).await {
        assert!(
            event.starts_with(b"retry: 500\ndata: {\"at\":"),
            "{event:?}"
        );
        assert!(event.ends_with(b"}\n\n"), "{event:?}");
        assert_eq!(event.iter().filter(|byte| **byte == b'\n').count(), 3);
        events += 1;
    }
    assert_eq!(began.elapsed().as_secs(), 300);
    assert!((300..=301).contains(&events), "{events}");
}

#[tokio::test(start_paused = true)]
async fn all_streams_share_the_snapshots() {
    let (_activity, router) = a_page();
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(get(&router, "/events").await);
        time::sleep(Duration::from_millis(70)).await;
    }
    let mut seen: Vec<*const u8> = Vec::new();
    for _ in 0..10 {
        for stream in &mut streams {
            seen.push(next(stream).await.unwrap().as_ptr());
        }
    }
    let snapshots = seen.chunk_by(|one, other| one == other).count();
    assert!((10..=12).contains(&snapshots), "{snapshots}");
}

#[tokio::test]
async fn a_ninth_stream_is_refused_until_one_ends() {
    let (_activity, router) = a_page();
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(get(&router, "/events").await);
    }
    let refused = get(&router, "/events").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let words = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(
        words.starts_with(b"Eight of these pages are open"),
        "{words:?}"
    );
    assert_eq!(get(&router, "/").await.status(), StatusCode::OK);
    streams.pop();
    assert_eq!(get(&router, "/events").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn closing_ends_the_streams_and_refuses_others() {
    let (activity, router) = a_page();
    let mut streams = [get(&router, "/events").await, get(&router, "/events").await];
    for stream in &mut streams {
        assert!(next(stream).await.is_some());
    }
    activity.close();
    for stream in &mut streams {
        let max_wait = Duration::from_secs(60);
        let mut last = async || while next(stream).await.is_some() {};
        timeout(max_wait, last()).await.unwrap();
    }
    let refused = get(&router, "/events").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
fn a_runtime_without_a_timer_is_an_answer() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (_activity, router) = a_page();
    let refused = runtime.block_on(get(&router, "/events"));
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
}
