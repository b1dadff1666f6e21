//! The page of the example server, and the report of a replay, in a headless Chromium.
//!
//! A plain `cargo test` leaves it out, and `tests/run.sh` installs what is missing of it.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

mod chromium;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::json;

use chromium::Chromium;
use kit::{
    RedisServer,
    running::{Running, command},
};

/// Longer than anything here takes, on the busiest machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A key that is markup where it is not text, and one that is shown from right to left.
const HOSTILE: [&str; 2] = [
    "\"><img src=x onerror=document.title='owned'>",
    "a\u{202e}nna\u{200f}",
];

fn open_page(server: &Running) -> Chromium {
    let mut browser = Chromium::start();
    browser.open(&format!("http://127.0.0.1:{}/_limits", server.port()));
    browser.wait_for("#state", "live");
    browser
}

/// Sends a request with these fields, and returns its stream.
fn send(port: u16, path: &str, fields: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\n{fields}\r\n").unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    stream
}

/// Returns the whole answer to a request.
fn get(port: u16, path: &str, fields: &str) -> String {
    let mut answer = String::new();
    let fields = format!("host: localhost\r\nconnection: close\r\n{fields}");
    send(port, path, &fields)
        .read_to_string(&mut answer)
        .unwrap();
    answer
}

/// A client that sends one request after the other, until this is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = Some(thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                get(port, "/", "");
                thread::sleep(Duration::from_millis(5));
            }
        }));
        Self { stop, thread }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|it| it.is_ok()));
    }
}

#[test]
fn it_shows_why_requests_are_refused() {
    let server = Running::start("server", None);
    let mut browser = open_page(&server);
    browser.wait_for("#rules + p", "No request has met a rule yet");
    (0..9).for_each(|_| drop(get(server.port(), "/", "")));
    (0..2).for_each(|_| drop(get(server.port(), "/data", "")));
    let row = "[data-rule=address]";
    browser.wait_for(row, "5 allowed");
    for seen in [
        "4 refused",
        "5 per 10 seconds",
        "4 over the limit of 5 per 10 seconds",
    ] {
        assert!(browser.text(row).contains(seen), "{}", browser.text(row));
    }
    browser.wait_for("[data-rule=key]", "2 without the key");
    assert_eq!(browser.text("#allowed"), "5");
    assert_eq!(browser.text("#refused"), "6");
    browser.wait_for("#callers", "127.0.0.1, address");
    // The ninth refusal and those without a key were decided by the rules alone.
    let sources: Vec<_> = browser
        .text("#sources")
        .lines()
        .map(str::to_owned)
        .collect();
    let expected = [
        "the store",
        "9",
        "the rules alone: lists, missing keys, no rule",
        "2",
    ];
    assert_eq!(sources, expected);
    let about = browser.text("#about");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for part in [
        format!("{} · server ({}) · ", host.trim(), server.child.id()),
        format!(" · tower-ratelimit {} · since ", env!("CARGO_PKG_VERSION")),
        " · this process only; for a fleet use /metrics".to_owned(),
    ] {
        assert!(about.contains(&part), "{part}: {about}");
    }
    // In memory there is no Redis to show.
    assert_eq!(
        browser.value("document.getElementById('store').hidden"),
        true
    );
    let before = browser.text("#refused-rate");
    let load = Load::start(server.port());
    browser.wait_until("document.getElementById('refused').textContent !== '6'");
    browser.wait_until("document.querySelector('#chart .r[height]:not([height=\"0\"])') !== null");
    browser.wait_until(&format!(
        "document.getElementById('refused-rate').textContent !== {before:?}"
    ));
    drop(load);
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn it_shows_a_redis_that_is_away_and_its_return() {
    let mut redis = RedisServer::start();
    let server = Running::start("server", Some(&redis));
    let port = server.port();
    let _load = Load::start(port);
    let mut browser = open_page(&server);
    browser.wait_for("#nodes", "connected since");
    for row in [
        "calls in the last 10 s",
        "half of them within",
        "99 of 100 within",
        "requests that share a call",
    ] {
        browser.wait_for("#calls", row);
    }
    for is_killed in [true, false] {
        if is_killed {
            redis.kill();
        } else {
            redis.stop_process();
        }
        let began = Instant::now();
        browser.wait_for("#alarm", "Redis does not answer");
        println!("seen after {:?}, killed: {is_killed}", began.elapsed());
        // A breaker is for a server that can be reached and does not answer.
        let state = if is_killed {
            "no connection since"
        } else {
            "breaker open since"
        };
        browser.wait_for("#nodes", state);
        browser.wait_for("#calls", "failed: ");
        browser.wait_for("#sources", "as Redis did not answer");
        if is_killed {
            redis.restart();
        } else {
            redis.resume();
        }
        browser.wait_until("document.getElementById('alarm').hidden");
        browser.wait_for("#nodes", "connected since");
    }
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn what_comes_from_outside_is_text() {
    let limits = std::env::temp_dir().join(kit::unique("hostile"));
    let rules = "[rules.who]\nrate = \"1/1h\"\nby = \"header:x-who\"\nobserve-keys = true\n\
                 [[on]]\nroute = \"/\"\nrules = [\"who\"]\n";
    fs::write(&limits, rules).unwrap();
    let server = Running::spawn(command("server").env("LIMITS", &limits));
    let mut browser = open_page(&server);
    for key in HOSTILE {
        (0..2).for_each(|_| drop(get(server.port(), "/", &format!("x-who: {key}\r\n"))));
    }
    fs::write(&limits, format!("{rules}[{:?}]\n", HOSTILE[0])).unwrap();
    browser.wait_for("#reloads", HOSTILE[0]);
    browser.wait_for("#callers", HOSTILE[0]);
    // A mark that is not seen is written out.
    browser.wait_for("#callers", "a\\u202enna\\u200f");
    assert_eq!(browser.value("document.images.length"), 0);
    assert_eq!(browser.value("document.title"), "Rate limits");
    assert_eq!(browser.errors, [""; 0]);
    fs::remove_file(&limits).unwrap();
}

#[test]
fn a_report_of_a_replay_is_seen_in_light_and_dark() {
    let path = std::env::temp_dir()
        .join(kit::unique("report"))
        .with_extension("html");
    let replay = Command::new(env!("CARGO_BIN_EXE_ratelimit"))
        .args(["replay", "--demo", "--html"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(replay.status.success(), "{replay:?}");
    let mut browser = Chromium::start();
    browser.open(&format!("file://{}", path.display()));
    browser.wait_until("document.querySelectorAll('svg').length === 2");
    for seen in ["120/1m", "2026-01-01T00:00:00Z", "smallest: "] {
        browser.wait_for("body", seen);
    }
    // Each candidate has a line, and a mark among the callers; the smallest has one, too.
    assert_eq!(
        browser.value("document.querySelectorAll('polyline').length"),
        3
    );
    assert_eq!(
        browser.value("document.querySelectorAll('.mark').length"),
        4
    );
    let ink = "getComputedStyle(document.body).color";
    let colours = ["light", "dark"].map(|scheme| {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        browser.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": [feature] }),
        );
        browser.value(ink)
    });
    assert_ne!(colours[0], colours[1]);
    let loaded = "performance.getEntriesByType('resource').length";
    assert_eq!(browser.value(loaded), 0);
    assert_eq!(browser.errors, [""; 0]);
    fs::remove_file(&path).unwrap();
}

/// The colours of a computed style, each from 0 to 255.
fn colour(browser: &mut Chromium, of: &str) -> Vec<u64> {
    let text = browser.value(&format!("getComputedStyle(document.body).{of}"));
    let digits = text
        .as_str()
        .unwrap()
        .split(|it: char| !it.is_ascii_digit());
    digits
        .filter_map(|part| part.parse().ok())
        .take(3)
        .collect()
}

#[test]
fn it_is_dark_where_the_system_is() {
    let server = Running::start("server", None);
    let mut browser = open_page(&server);
    for scheme in ["light", "dark"] {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        browser.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
        let [ground, ink] = ["backgroundColor", "color"].map(|of| colour(&mut browser, of));
        let (dark, bright) = if scheme == "dark" {
            (ground, ink)
        } else {
            (ink, ground)
        };
        assert!(dark.iter().all(|it| *it < 64), "{scheme}: {dark:?}");
        assert!(bright.iter().all(|it| *it > 200), "{scheme}: {bright:?}");
    }
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn it_fits_a_phone_and_a_keyboard() {
    let limits = std::env::temp_dir().join(kit::unique("phone"));
    let name = "n".repeat(64);
    let rules = format!(
        "[rules.{name}]\nrate = \"1/1h\"\nby = \"header:x-who\"\nobserve-keys = true\n\
         [[on]]\nroute = \"/\"\nrules = [\"{name}\"]\n"
    );
    fs::write(&limits, &rules).unwrap();
    let server = Running::spawn(command("server").env("LIMITS", &limits));
    let mut browser = open_page(&server);
    let size = json!({ "width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": true });
    browser.call("Emulation.setDeviceMetricsOverride", size);
    let long = "k".repeat(120);
    (0..2).for_each(|_| drop(get(server.port(), "/", &format!("x-who: {long}\r\n"))));
    fs::write(&limits, format!("{rules}[{long}]\n")).unwrap();
    browser.wait_for("#callers", &long);
    browser.wait_for("#reloads", &long);
    // Nothing is cut off, and nothing must be scrolled to the side.
    let widths = "[document.documentElement.scrollWidth, innerWidth]";
    assert_eq!(browser.value(widths), json!([390, 390]));

    let press = |browser: &mut Chromium, key: &str, code: u32| {
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" { "\r" } else { "" };
            let event = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            browser.call("Input.dispatchKeyEvent", event);
        }
    };
    press(&mut browser, "Tab", 9);
    assert_eq!(browser.value("document.activeElement.id"), "pause");
    let outline = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(browser.value(outline), "solid");
    press(&mut browser, "Enter", 13);
    browser.wait_for("#state", "paused");
    assert_eq!(
        browser.value("document.getElementById('pause').ariaPressed"),
        "true"
    );
    press(&mut browser, "Enter", 13);
    browser.wait_for("#state", "live");
    assert_eq!(browser.errors, [""; 0]);
    fs::remove_file(&limits).unwrap();
}

/// Without `Activity::close` the open page holds it for minutes.
#[test]
fn the_server_ends_while_the_page_is_open() {
    let mut server = Running::start("server", None);
    let mut browser = open_page(&server);
    let began = Instant::now();
    server.stops_when_interrupted();
    println!("ended after {:?}", began.elapsed());
    browser.wait_for("#alarm", "This process does not answer");
    assert_eq!(browser.text("#state"), "not live");
}

#[test]
fn a_ninth_page_is_refused_in_words() {
    let server = Running::start("server", None);
    let port = server.port();
    let fields = "host: 127.0.0.1\r\n";
    let mut streams: Vec<_> = (0..8)
        .map(|_| send(port, "/_limits/events", fields))
        .collect();
    for stream in &mut streams {
        // It is open once it has begun to answer.
        stream.read_exact(&mut [0; 200]).unwrap();
    }
    let mut browser = Chromium::start();
    browser.open(&format!("http://127.0.0.1:{port}/_limits"));
    browser.wait_for("#alarm", "Eight of these pages are open");
    drop(streams);
    browser.wait_for("#state", "live");
}

#[test]
fn it_is_for_this_machine_alone() {
    let server = Running::start("server", None);
    let status = |path: &str, host: &str| {
        let fields = format!("host: {host}\r\nconnection: close\r\n");
        let mut answer = String::new();
        let mut stream = send(server.port(), path, &fields);
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for host in [
        "localhost",
        "localhost:80",
        "127.0.0.1",
        "127.0.0.1:9",
        "[::1]",
        "[::1]:80",
    ] {
        assert_eq!(status("/_limits", host), "200", "{host}");
    }
    for host in [
        "example.com",
        "127.0.0.1.example.com",
        "localhost.example.com:80",
        "[::2]",
        "a b",
    ] {
        for path in ["/_limits", "/_limits/events", "/metrics", "/", "/nowhere"] {
            assert_eq!(status(path, host), "421", "{host}{path}");
        }
    }
}

/// Writes the pictures of `examples/README.md`: `tests/run.sh --screenshots`.
#[test]
#[ignore = "it writes files"]
fn screenshots() {
    let mut redis = RedisServer::start();
    let server = Running::start("server", Some(&redis));
    let port = server.port();
    let mut browser = open_page(&server);
    let began = Instant::now();
    for round in 0_u64.. {
        let busy = began.elapsed().as_secs() % 7 < 5;
        let paths = ["/", "/data", "/plan", "/export", "/patient"];
        let path = paths[round as usize % paths.len()];
        let who = ["alice", "bob", "carol"][round as usize % 3];
        let key = if round % 4 == 3 {
            String::new()
        } else {
            format!("x-api-key: {who}\r\n")
        };
        let fields = format!("{key}x-plan: paid\r\n");
        get(port, path, &fields);
        thread::sleep(Duration::from_millis(if busy { 15 } else { 120 }));
        if began.elapsed() > Duration::from_secs(25) {
            break;
        }
    }
    for (name, scheme, (width, height)) in [
        ("light", "light", (960, 1200)),
        ("dark", "dark", (960, 1200)),
        ("phone", "light", (390, 900)),
    ] {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        browser.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
        let size = json!({
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": width < 500,
        });
        browser.call("Emulation.setDeviceMetricsOverride", size);
        browser.call("Emulation.setScrollbarsHidden", json!({ "hidden": true }));
        get(port, "/", "");
        browser.wait_for("#state", "live");
        thread::sleep(Duration::from_millis(500));
        let picture = browser.call("Page.captureScreenshot", json!({ "format": "png" }));
        let picture = decode_base64(picture["data"].as_str().unwrap());
        fs::write(
            kit::root().join(format!("examples/limits-{name}.png")),
            picture,
        )
        .unwrap();
    }
    redis.kill();
}

fn decode_base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text
        .bytes()
        .filter_map(|byte| alphabet.iter().position(|it| *it == byte));
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_usize, 0);
    for digit in digits {
        (held, bits) = (held << 6 | digit, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits & 0xff) as u8);
        }
    }
    bytes
}
