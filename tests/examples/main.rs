//! Runs every example as `examples/README.md` says, and compares with what is written there.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

#[cfg(all(feature = "cluster", feature = "sentinel", feature = "tls"))]
mod connect;

use std::{collections::BTreeSet, fs, process::Command, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use kit::{
    RedisServer,
    running::{Running, command},
};

/// Longer than anything here takes, on the busiest machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

#[test]
fn servers_in_memory() {
    for name in ["axum", "hyper", "tonic", "service", "server"] {
        as_documented(name, None);
    }
}

/// A number of the file that is changed while the server runs counts.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_takes_other_limits_while_it_runs() {
    let limits = std::env::temp_dir().join(kit::unique("limits"));
    let text = read("examples/server/limits.toml");
    fs::write(&limits, &text).unwrap();
    let server = Running::spawn(command("server").env("LIMITS", &limits));
    let policy = async || {
        let answer = get(server.port(), "/export").await;
        field(&answer, "ratelimit-policy").to_owned()
    };
    assert_eq!(policy().await, "\"export\";q=25;w=60");
    for (from, to, expected) in [
        ("25/1m", "26/1m", "\"export\";q=26;w=60"),
        ("25/1m", "27/2m", "\"export\";q=27;w=120"),
    ] {
        fs::write(&limits, text.replace(from, to)).unwrap();
        let changed = async { while policy().await != expected {} };
        tokio::time::timeout(TIME_LIMIT, changed)
            .await
            .expect(expected);
    }
    fs::remove_file(&limits).unwrap();
}

#[test]
fn server_in_redis() {
    // Its own, because limits that other tests leave behind would be met here.
    let redis = RedisServer::start();
    as_documented("server", Some(&redis));
    let keys = redis.cli(&["KEYS", "example:*"]);
    assert!(keys.contains("example:{127.0.0.1}:address"), "{keys}");
}

/// With Redis, two servers are one limiter; and `Retry-After` is what a client has to wait, no more
/// and no less.
#[tokio::test(flavor = "multi_thread")]
async fn servers_on_one_redis_share_their_limits() {
    let redis = RedisServer::start();
    let servers = [
        Running::start("server", Some(&redis)),
        Running::start("server", Some(&redis)),
    ];
    let ports = servers.each_ref().map(|server| server.port());
    for round in 0..2 {
        let granted = get(ports[0], "/patient").await;
        assert_eq!(granted.status(), 200, "round {round}");
        let mut granted = 0;
        let refused = loop {
            let answer = get(ports[1], "/patient").await;
            if answer.status() == 429 {
                break answer;
            }
            // A busy machine may ask when the three seconds are over.
            granted += 1;
            assert!(answer.status() == 200 && granted < 20, "round {round}");
        };
        let wait: u64 = field(&refused, "retry-after").parse().unwrap();
        assert!((1..=3).contains(&wait), "{wait}");
        // In real time, by the clock of Redis: the wait that the answer asks for is what is tested,
        // and not a moment more.
        tokio::time::sleep(Duration::from_secs(wait)).await;
    }
    for request in 0..6 {
        let status = get(ports[request % 2], "/").await.status();
        assert_eq!(status.is_success(), request < 5, "request {request}");
        assert!([200, 429].contains(&status.as_u16()), "request {request}");
    }
}

#[tokio::test]
async fn the_server_listens_at_its_address_and_ends_when_it_is_interrupted() {
    // None that an outgoing connection takes meanwhile.
    let port = kit::ports::free_port();
    let mut server = Running::spawn(command("server").env("PORT", port.to_string()));
    assert_eq!(server.port(), port);
    // Its one thread answers after it has begun to wait for the signal, and the address is printed
    // before.
    assert_eq!(get(port, "/").await.status(), 200);
    server.stops_when_interrupted();
}

/// What memory has counted goes on after a deploy, which ends the server by SIGTERM; a file that is
/// none is an error that names it.
#[tokio::test]
async fn the_server_goes_on_with_what_the_one_before_has_counted() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("the-server-goes-on");
    fs::create_dir_all(&folder).unwrap();
    let state = folder.join("limits.state");
    let _ = fs::remove_file(&state);
    let start = || Running::spawn(command("server").env("PORT", "0").env("STATE", &state));
    let mut server = start();
    for _ in 0..5 {
        assert_eq!(get(server.port(), "/").await.status(), 200);
    }
    server.stops_when_told("-TERM");
    let mut server = start();
    assert_eq!(get(server.port(), "/").await.status(), 429);
    server.stops_when_interrupted();
    fs::write(&state, "[limits]").unwrap();
    let ended = command("server")
        .env("PORT", "0")
        .env("STATE", &state)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        !ended.status.success() && said.contains("limits.state: it is no saved store"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&state).unwrap(), "[limits]");
}

/// Port 3000 if it is free, so that the address can be said beforehand; else another one.
#[test]
fn the_server_prefers_port_3000() {
    let began = std::time::Instant::now();
    // Other tests start servers, too: one that holds the port now will end.
    let take = || loop {
        if let Ok(taken) = std::net::TcpListener::bind("127.0.0.1:3000") {
            return taken;
        }
        assert!(began.elapsed() < TIME_LIMIT, "port 3000 was never free");
        std::thread::sleep(Duration::from_millis(50));
    };
    loop {
        drop(take());
        let mut server = Running::spawn(&mut command("server"));
        if server.port() == 3000 {
            let lines = [server.line(), server.line()].map(Option::unwrap);
            assert_eq!(
                lines[0],
                "listening on http://127.0.0.1:3000, counting in memory"
            );
            assert_eq!(lines[1], "open http://127.0.0.1:3000/_limits");
            break;
        }
    }
    let _taken = take();
    let mut server = Running::spawn(&mut command("server"));
    let port = server.port();
    assert_ne!(port, 3000);
    server.line();
    assert_eq!(
        server.line(),
        Some(format!("open http://127.0.0.1:{port}/_limits"))
    );
}

#[test]
fn testing() {
    prints_as_documented("testing");
}

#[test]
fn backend() {
    prints_as_documented("backend");
}

fn prints_as_documented(name: &str) {
    let commands = document(name);
    let [(_, documented)] = &commands[..] else {
        panic!("one command: {commands:#?}");
    };
    assert_eq!(lines(&mut command(name)), *documented);
}

/// The Java half is documented to print the same.
#[test]
fn redisson() {
    let redis = RedisServer::start();
    let commands = document("redisson");
    let printed = lines(command("redisson").env("REDIS_URL", redis.url()));
    for (line, documented) in commands {
        if line.contains("prepare.sh") {
            continue;
        }
        assert_eq!(documented.len(), printed.len(), "{line}\n{printed:#?}");
        let ((last, orders), (documented_last, documented_orders)) = (
            printed.split_last().unwrap(),
            documented.split_last().unwrap(),
        );
        assert_eq!(orders, documented_orders, "{line}");
        // How many are left depends on how fast the last orders came, of how many does not.
        let (left, of) = last.split_once(' ').unwrap();
        assert!(left.parse::<u64>().unwrap() <= 5, "{last}");
        assert_eq!(documented_last.split_once(' '), Some(("0", of)), "{line}");
    }
    // What a Java peer goes by.
    for (field, value) in [("rate", "5"), ("interval", "1000"), ("type", "0")] {
        assert_eq!(redis.cli(&["HGET", "orders", field]), *value, "{field}");
    }
}

/// What Redisson's `trySetRate` writes is the limit, and the argument is the number of orders.
#[test]
fn redisson_takes_the_limit_that_java_has_set() {
    let redis = RedisServer::start();
    let set = "HSET orders rate 3 interval 60000 keepAliveTime 0 type 0";
    redis.cli(&set.split(' ').collect::<Vec<_>>());
    let printed = lines(command("redisson").arg("2").env("REDIS_URL", redis.url()));
    assert_eq!(printed, ["order 1", "order 2", "1 of 3 permits left"]);
}

/// Two seconds without Redis instead of a minute. What it says of times is its machine's.
#[test]
fn outage() {
    let documented = &document("outage")[0].1;
    for how in ["killed", "silent"] {
        let page = lines(command("outage").args(["2", how]));
        let row = |of: &[String], name: &str| -> Vec<f64> {
            let line = of.iter().find_map(|line| line.strip_prefix(name));
            let cells = line.unwrap_or_else(|| panic!("{name}: {of:#?}"));
            let numbers = cells.split_whitespace().map(str::parse);
            numbers.collect::<Result<_, _>>().unwrap()
        };
        for name in [
            "requests ",
            "longest in the service, ms",
            "  /shop admitted by policy",
            "  /login unavailable by policy",
        ] {
            assert_eq!(row(documented, name).len(), 3, "{name}");
            assert!(row(&page, name)[1] > 0.0, "{how}: {page:#?}");
        }
        let line = |part: &str| -> &str {
            let line = page.iter().find(|line| line.contains(part));
            line.unwrap_or_else(|| panic!("{part}: {page:#?}"))
        };
        assert!(line(" requests sent, ").ends_with(" answered, 0 lost"));
        line("decisions came from Redis again ");
        // Not longer than its budget, and the delays of this machine.
        let late = row(&page, "a timer of this machine late by, ms");
        for (longest, late) in row(&page, "longest in the service, ms").iter().zip(late) {
            assert!(*longest < 50.0 + 2.0 * late + 500.0, "{how}: {page:#?}");
        }
    }
}

#[test]
fn a_redis_that_is_not_there_is_reported_at_once() {
    for name in ["server", "redisson", "connect"] {
        let output = command(name)
            .env("REDIS_URL", "redis://127.0.0.1:1/")
            .output()
            .unwrap();
        assert!(!output.status.success(), "{name}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("Unavailable"), "{name}: {stderr}");
        assert!(output.stdout.is_empty(), "{name}");
    }
}

#[test]
fn every_example_is_documented_with_the_features_it_needs() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let mut declared = BTreeSet::new();
    for example in manifest["example"].as_array().unwrap() {
        let name = example["name"].as_str().unwrap();
        declared.insert(name.to_owned());
        let documented = &document(name)[0].0;
        let prefix = format!("cargo run --example {name}");
        let features = documented
            .strip_prefix(&prefix)
            .expect("the command that starts it");
        let features = features.strip_prefix(" --features ").unwrap_or(features);
        let features = features.split(' ').next().unwrap_or(features);
        let given: BTreeSet<&str> = features.split(',').chain(["redis"]).collect();
        let needed = example
            .get("required-features")
            .and_then(|needed| needed.as_array());
        for needed in needed.into_iter().flatten() {
            assert!(
                given.contains(needed.as_str().unwrap()),
                "{documented} lacks {needed}"
            );
        }
    }
    // A package of its own, with what it needs in its manifest.
    assert_eq!(document("server")[0].0, "cargo run -p server");
    let files = fs::read_dir(kit::root().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found: BTreeSet<String> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "rs"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, declared);
}

/// Starts an example, compares what it prints, then runs the commands of its section.
fn as_documented(name: &str, redis: Option<&RedisServer>) {
    println!("{name}");
    let curl = Command::new("curl").arg("--version").output();
    let has_curl = curl.is_ok_and(|output| output.status.success());
    assert!(has_curl, "the documented commands need `curl`");
    let mut example = Running::start(name, redis);
    let commands = document(name);
    let (start, commands) = commands.split_first().expect("a command that starts it");
    let place = redis.map_or("in memory", |_| "in Redis");
    let mut printed = Vec::new();
    for documented in &start.1 {
        let line = example
            .line()
            .unwrap_or_else(|| panic!("{name} ended before {documented:?}"));
        let line = line.replace(&format!("127.0.0.1:{}", example.port()), "127.0.0.1:PORT");
        same(&line, &documented.replace("in memory", place));
        printed.push(line);
    }
    if commands.is_empty() {
        assert_eq!(example.line(), None, "it says more than is documented");
        assert!(example.child.wait().unwrap().success());
        return;
    }
    // What the server tells people to type is what is run below.
    for line in printed.iter().filter(|line| line.contains("curl ")) {
        assert!(
            commands.iter().any(|(command, _)| command == line),
            "not documented: {line}"
        );
    }
    for (command, expected) in commands {
        let line = command.replace("PORT", &example.port().to_string());
        let output = Command::new("sh")
            .args(["-c", &line])
            // The server is here, whatever proxy or settings this machine gives curl.
            .envs([
                ("no_proxy", "*"),
                ("CURL_HOME", "/nowhere"),
                ("HOME", "/nowhere"),
            ])
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = output
            .lines()
            .map(|line| line.trim_end_matches('\r'))
            .collect();
        assert_eq!(lines.len(), expected.len(), "{command}\n{output}");
        for (line, documented) in lines.iter().zip(expected) {
            same(line, documented);
        }
    }
}

/// Compares two lines; a time to wait may be shorter by the time that has passed.
fn same(line: &str, documented: &str) {
    for words in ["retry after ", "retry-after: ", ";t="] {
        if let (Some((before, rest)), Some((expected, expected_rest))) =
            (line.split_once(words), documented.split_once(words))
        {
            let number = |text: &str| -> u64 { text.split(' ').next().unwrap().parse().unwrap() };
            let (waits, expected_wait) = (number(rest), number(expected_rest));
            assert_eq!(before, expected);
            assert!(
                (1..=expected_wait).contains(&waits),
                "{line}, not {documented}"
            );
            return;
        }
    }
    assert_eq!(line, documented);
}

/// The commands of an example's section, each with what it prints.
fn document(name: &str) -> Vec<(String, Vec<String>)> {
    let text = read("examples/README.md");
    let (_, section) = text
        .split_once(&format!("\n## {name}\n"))
        .expect("a section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    for block in section.split("```console\n").skip(1) {
        let (block, _) = block.split_once("```").expect("the end of a block");
        for line in block.lines() {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push((command.to_owned(), Vec::new())),
                None => commands
                    .last_mut()
                    .expect("a command first")
                    .1
                    .push(line.to_owned()),
            }
        }
    }
    commands
}

/// Returns the output of an example that ends by itself.
fn lines(command: &mut Command) -> Vec<String> {
    let mut running = Running::launch(command);
    let lines = std::iter::from_fn(|| running.line()).collect();
    assert!(running.child.wait().unwrap().success(), "{lines:#?}");
    lines
}

async fn get(port: u16, path: &str) -> Response<Incoming> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::builder().uri(path).header("host", "localhost");
    sender
        .send_request(request.body(String::new()).unwrap())
        .await
        .unwrap()
}

fn field<'a>(answer: &'a Response<Incoming>, name: &str) -> &'a str {
    answer.headers()[name].to_str().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(kit::root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
