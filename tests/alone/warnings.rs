//! Mistakes in a setup that only requests reveal: one line each, with the remedy, and without
//! anything that callers wrote.

mod twice;
mod unmatched;

use kit::scene::*;
use std::{any::Any, net::IpAddr, net::SocketAddr};

use http::request::Parts;
use tokio::sync::MutexGuard;
use tower_ratelimit::{key::ForwardedHeader, key::Key, key::NoKey};
use tracing_subscriber::filter::LevelFilter;

use crate::log::Log;

/// The lines that are written while it lives.
struct Lines {
    log: Log,
    _capturing: Box<dyn Any>,
    _alone: Option<MutexGuard<'static, ()>>,
}

impl Lines {
    fn capture() -> Self {
        let log = Log::default();
        Self {
            _capturing: Box::new(log.capture(LevelFilter::TRACE)),
            log,
            _alone: None,
        }
    }

    /// Those of one test: no other one writes meanwhile.
    async fn alone() -> Self {
        let alone = Some(crate::ALONE.lock().await);
        Self {
            _alone: alone,
            ..Self::capture()
        }
    }

    /// The lines since the last call.
    fn taken(&self) -> Vec<String> {
        self.log.take().lines().map(str::to_owned).collect()
    }

    /// The only line since the last call, which is a warning.
    #[track_caller]
    fn warning(&self) -> String {
        let line = self.line();
        assert!(line.contains("WARN tower_ratelimit:"), "{line}");
        line
    }

    /// The same, with these words in it.
    #[track_caller]
    fn warns(&self, words: &[&str]) {
        let line = self.warning();
        for words in words {
            assert!(line.contains(words), "{words}: {line}");
        }
    }

    #[track_caller]
    fn line(&self) -> String {
        let lines = self.taken();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        lines.concat()
    }
}

fn layer(key: impl KeyExtractor) -> RateLimitLayer {
    let rule = Limit::per_hour(1000).by(key).named("api");
    RateLimitLayer::new(&MemoryStore::new(), rule)
}

async fn send(layer: &RateLimitLayer, peer: Option<&str>, headers: &[(&str, &str)]) -> StatusCode {
    let mut request = asking("GET /", headers);
    if let Some(peer) = peer {
        let peer: IpAddr = peer.parse().unwrap();
        let address = PeerAddr(SocketAddr::new(peer, 50_000));
        request.extensions_mut().insert(address);
    }
    let service = layer.layer(service_fn(serve));
    service.oneshot(request).await.unwrap().status()
}

/// Returns the warning for a request that comes for the first time; the second time there is none.
async fn warning(
    key: impl KeyExtractor,
    peer: Option<&str>,
    headers: &[(&str, &str)],
) -> Option<String> {
    let log = Lines::capture();
    let layer = layer(key);
    send(&layer, peer, headers).await;
    let mut lines = log.taken();
    assert!(lines.len() <= 1, "{lines:#?}");
    for _ in 0..3 {
        send(&layer.clone(), peer, headers).await;
    }
    assert_eq!(log.taken(), [""; 0], "once is enough");
    let line = lines.pop();
    if let Some(line) = &line {
        assert!(line.contains("WARN tower_ratelimit:"), "{line}");
        assert!(line.contains("rule=\"api\""), "{line}");
        for (_, value) in headers {
            assert!(!line.contains(value), "{line}");
        }
    }
    line
}

/// Such a request is warned about in these words, or not at all without words.
async fn expect(key: impl KeyExtractor, peer: Option<&str>, headers: &[(&str, &str)], words: &str) {
    let case = format!("{key:?} of {peer:?} with {headers:?}");
    let line = warning(key, peer, headers).await;
    assert_eq!(line.is_none(), words.is_empty(), "{case}: {line:?}");
    if let Some(line) = line {
        assert!(line.contains(words), "{case}: {line}");
        assert!(line.contains("hint="), "{case}: {line}");
    }
}

#[tokio::test]
async fn forwarding_headers_are_warned_about_once() {
    let _alone = crate::ALONE.lock().await;
    const XFF: (&str, &str) = ("x-forwarded-for", "198.51.100.77");
    const FORWARDED: (&str, &str) = ("forwarded", "for=198.51.100.78");
    let untrusted = "came from a peer that is not trusted";
    let both = "has `Forwarded` as well as the header";
    let unreadable = "could not be parsed";
    let no_peer = "does not record the peer's address";
    let behind = || ClientIp::behind(["10.0.0.0/8"]);
    let real_ip = behind().header(ForwardedHeader::Single("x-real-ip"));
    let secret = Secret::new("k1", [7; 32]).unwrap();
    let mine = || FromHeader::new("x-key");
    let of_list = |value| [("x-forwarded-for", value)];

    let near = Some("10.0.0.1");
    let far = Some("192.0.2.1");
    expect(behind(), far, &[XFF], untrusted).await;
    expect(behind(), far, &[FORWARDED], untrusted).await;
    expect(behind(), far, &[], "").await;
    expect(behind(), near, &[XFF], "").await;
    expect(behind(), near, &[XFF, FORWARDED], both).await;
    let forwarded = behind().header(ForwardedHeader::Forwarded);
    expect(forwarded, near, &[XFF, FORWARDED], "").await;
    expect(behind(), near, &of_list("unix:"), unreadable).await;
    expect(behind(), near, &of_list("what?, 198.51.100.77"), "").await;
    let twice = ["198.51.100.1", "198.51.100.2"].map(|address| ("x-real-ip", address));
    expect(real_ip, near, &twice, unreadable).await;
    expect(ClientIp::hops(1), far, &[XFF], "").await;
    // `Forwarded` as well as what is read, whatever that is.
    expect(ClientIp::hops(1), far, &[FORWARDED], both).await;
    let real_ip = || ClientIp::hops(1).header(ForwardedHeader::Single("x-real-ip"));
    expect(real_ip(), far, &[FORWARDED], both).await;
    expect(real_ip(), far, &[], "").await;
    let forwarded = ClientIp::hops(1).header(ForwardedHeader::Forwarded);
    expect(forwarded, far, &[FORWARDED], "").await;
    // If no proxy is expected, clients write what they like, but neighbours do not.
    let none = || ClientIp::behind([""; 0]);
    for sent in [XFF, FORWARDED] {
        expect(none(), far, &[sent], "").await;
        expect(none(), near, &[sent], untrusted).await;
        expect(PeerIp.ipv6_prefix(64), far, &[sent], "").await;
        expect(PeerIp.ipv6_prefix(64), near, &[sent], untrusted).await;
    }
    expect(none(), near, &[], "").await;
    // A peer in a private network that forwards is an unnamed proxy; one from outside makes it
    // up.
    expect(PeerIp, near, &[XFF], untrusted).await;
    expect(PeerIp, Some("::1"), &[FORWARDED], untrusted).await;
    expect(PeerIp, far, &[XFF], "").await;
    expect(PeerIp, near, &[], "").await;
    // However it is wrapped.
    let nested = (PeerIp, FromHeader::new("host")).or(PeerIp);
    expect(nested, near, &[XFF], untrusted).await;
    expect(PeerIp.digest(&secret), near, &[XFF], untrusted).await;
    // The peer is missing: that is said, and the header is not believed.
    expect(behind(), None, &[XFF], no_peer).await;
    // Also where something stands in for it, or nothing is to be limited without.
    expect(mine().or(PeerIp), None, &[], no_peer).await;
    expect(PeerIp.or(mine()), None, &[("x-key", "ann")], no_peer).await;
    expect(PeerIp.or_shared(), None, &[], no_peer).await;
    let remedy = "into_make_service_with_connect_info";
    expect(behind().or_skip(), None, &[], remedy).await;
    expect(PeerIp.digest(&secret).or_shared(), None, &[], no_peer).await;
    expect(ClientIp::hops(1), None, &[], no_peer).await;
    // On a Unix socket there is none, and none is needed.
    expect(ClientIp::hops(1), None, &[XFF], "").await;
    expect(Behind(PeerIp), None, &[], no_peer).await;
    expect(mine(), None, &[], "lack the key of the rule").await;
    // The caller's doing: there is nothing to mend here.
    let two = [("x-key", "ann"), ("x-key", "bob")];
    expect(mine(), None, &two, "").await;
}

/// An extractor of a user's, with a key of its own.
#[derive(Debug)]
struct Behind<K>(K);

impl<K: KeyExtractor> KeyExtractor for Behind<K> {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        self.0.extract(parts, &mut Key::default())?;
        key.push("somebody");
        Ok(())
    }
}

/// A caller that lacks its key must not hide that the server lacks what it should record.
#[tokio::test]
async fn a_header_that_is_too_long_is_warned_about_once() {
    let _alone = crate::ALONE.lock().await;
    let long = "y".repeat(11);
    let key = || FromHeader::new("x-tenant").max_len(10);
    let warned = warning(key(), None, &[("x-tenant", &long)]).await.unwrap();
    for part in ["requests are refused", "header=\"x-tenant\"", "max_len=10"] {
        assert!(warned.contains(part), "{warned}");
    }
    let allowed = [("x-tenant", &long[1..])];
    assert_eq!(warning(key(), None, &allowed).await, None);
}

#[tokio::test]
async fn a_callers_fault_does_not_hide_the_servers() {
    let log = Lines::alone().await;
    let layer = layer((FromHeader::new("x-key"), PeerIp));
    assert_eq!(send(&layer, None, &[]).await, StatusCode::UNAUTHORIZED);
    log.warns(&["lack the key"]);
    let ask = async || send(&layer, None, &[("x-key", "ann")]).await;
    assert_eq!(ask().await, StatusCode::INTERNAL_SERVER_ERROR);
    log.warns(&["does not record"]);
    assert_eq!(ask().await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(log.taken(), [""; 0]);
}

/// Each mistake is reported, also after another one.
#[tokio::test]
async fn one_warning_does_not_hide_another() {
    let log = Lines::alone().await;
    let layer = layer(ClientIp::behind(["10.0.0.0/8"]));
    let unreadable = [("x-forwarded-for", "?"), ("forwarded", "for=_x")];
    send(&layer, Some("192.0.2.1"), &unreadable).await;
    assert_eq!(log.taken().len(), 1);
    send(&layer, Some("10.0.0.1"), &unreadable).await;
    assert_eq!(log.taken().len(), 2);
    send(&layer, None, &unreadable).await;
    assert_eq!(log.taken().len(), 1);
    for peer in [Some("192.0.2.1"), Some("10.0.0.1"), None] {
        send(&layer, peer, &unreadable).await;
    }
    assert_eq!(log.taken(), [""; 0]);
}

#[tokio::test]
async fn a_shadow_refusal_is_logged_at_debug_level() {
    let log = Lines::alone().await;
    let key = FromHeader::new("x-key");
    let rules = [
        Limit::per_hour(1).by(key.clone()).named("tried").shadow(),
        Limit::per_hour(2).by(key).named("kept"),
    ];
    let layer = layer_of(&MemoryStore::new(), rules);
    for expected in [200, 200, 429] {
        let status = send(&layer, None, &[("x-key", "somebody")]).await;
        assert_eq!(status, expected);
    }
    // Of the second request alone.
    let line = log.line();
    assert!(line.contains("DEBUG tower_ratelimit:"), "{line}");
    assert!(line.contains("rule=\"tried\""), "{line}");
    assert!(!line.contains("somebody"), "{line}");
}

#[tokio::test]
async fn a_rule_that_is_tried_out_and_cannot_count_is_warned_about_once() {
    let log = Lines::alone().await;
    let store = MemoryStore::new();
    let no_key = Rule::new("tried", Limit::per_hour(1), FromHeader::new("x-key"));
    let lacks = "pass uncounted because they lack the key of the rule";
    let unset = "no limit is set for this limiter";
    for (tried, what) in [(no_key, lacks), (Rule::shared("tried"), unset)] {
        let kept = Limit::per_hour(9).by(PeerIp).named("kept");
        let layer = layer_of(&store, [tried.shadow(), kept]);
        for _ in 0..3 {
            assert_eq!(send(&layer, Some("192.0.2.1"), &[]).await, 200);
        }
        log.warns(&["rule=\"tried\"", what]);
    }
}

#[cfg(feature = "test-util")]
#[tokio::test]
async fn a_full_store_warns_once_a_minute() {
    let log = Lines::alone().await;
    let (store, clock) = MemoryStore::builder().max_limiters(1).build_manual();
    let layer = RateLimitLayer::new(&store, Limit::per_day(9).by(FromHeader::new("x-key")));
    for minute in 0..3 {
        for user in ["place", "ann", "bob", "ann"] {
            let status = send(&layer, None, &[("x-key", user)]).await;
            assert_eq!(status, StatusCode::OK);
        }
        log.warns(&["max_limiters"]);
        assert_eq!(store.estimated(), 3 * (minute + 1));
        clock.advance(Duration::from_secs(60));
    }
}

/// Once for each text, with the line and the reason; rules that take effect are reported too.
#[cfg(feature = "config")]
#[tokio::test]
async fn a_bad_rules_file_is_warned_about_once() {
    use std::fs;

    let path = std::env::temp_dir().join(format!("warnings-{}.toml", std::process::id()));
    let good = "[rules.api]\nrate = '5/1m'\nby = 'peer'\n[otherwise]\nrules = ['api']";
    fs::write(&path, good.replace("5/1m", "5 a minute")).unwrap();
    let log = Lines::alone().await;
    let layer = layer(PeerIp);
    let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let watch = layer
        .watch(tower_ratelimit::RulesFile::new(), &path)
        .every(Duration::from_millis(1))
        .report(move |applied| sender.send(applied.is_ok()).unwrap());
    let watching = tokio::spawn(watch.run());
    // Longer than it takes, on the busiest machine.
    let time_limit = Duration::from_secs(60);
    let mut reports = async || {
        let report = tokio::time::timeout(time_limit, reports.recv());
        report.await.unwrap()
    };
    assert_eq!(reports().await, Some(false));
    fs::write(&path, good).unwrap();
    assert_eq!(reports().await, Some(true));
    watching.abort();
    fs::remove_file(&path).unwrap();
    let lines = log.taken();
    let [bad, good] = &lines[..] else {
        panic!("{lines:#?}");
    };
    let said = "line 2, rules.api.rate: \"5 a minute\" is not a rate";
    for (line, words) in [(bad, " WARN "), (good, " INFO "), (bad, said)] {
        assert!(line.contains(words), "{lines:#?}");
    }
}
