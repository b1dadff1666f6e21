//! The Java side: `Oracle.java` in a process of its own, one request and one answer a line.

use std::{
    collections::HashMap,
    env,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use serde_json::{Map, Value};

/// Without one of its jars the JVM hangs instead of failing, so no line is waited for longer than
/// this.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Where `prepare.sh` has put what it made, and for which versions.
pub const HOME: &str = "TOWER_RATELIMIT_REDISSON_HOME";
pub const VERSIONS: &str = "TOWER_RATELIMIT_REDISSON_VERSIONS";

/// The versions that this run tests, the newest first.
pub fn versions() -> Vec<String> {
    let given = env::var(VERSIONS).unwrap_or_default();
    let versions: Vec<String> = given.split_whitespace().map(str::to_owned).collect();
    assert!(
        !versions.is_empty(),
        "{VERSIONS} is not set: these tests need Java, run them with `tests/run.sh --redisson`"
    );
    versions
}

/// Whose time the Java side stamps its grants with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JavaClock {
    /// That of each request
    Fake,
    /// The system's: the jars as they are
    System,
}

#[derive(Debug)]
pub struct Oracle {
    process: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
    pub version: String,
}

/// What Redisson returned, as text, or the message of what it threw.
pub type Answer = Result<String, String>;

impl Oracle {
    pub fn start(version: &str, port: u16, clock: JavaClock) -> Self {
        let home = env::var(HOME)
            .unwrap_or_else(|_| panic!("{HOME} is not set: run `tests/run.sh --redisson`"));
        let home = PathBuf::from(home).join(version);
        let mut places = vec![home.join("classes")];
        if clock == JavaClock::Fake {
            // Before the jars: the first place that has a class is where it comes from.
            places.push(home.join("patched"));
        }
        places.push(home.join("lib/*"));
        let class_path: Vec<_> = places.iter().map(|place| place.to_string_lossy()).collect();
        let mut process = Command::new("java")
            .args(["-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp"])
            .arg(class_path.join(":"))
            .args(["Oracle", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Lines of netty and SLF4J, which are no answers.
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("cannot run `java`: {error}; see tests/redisson/README.md")
            });
        let requests = process.stdin.take().unwrap();
        let stdout = process.stdout.take().unwrap();
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut oracle = Self {
            process,
            requests,
            answers,
            version: version.to_owned(),
        };
        let ready = fields(&oracle.line(TIME_LIMIT));
        assert_eq!(ready.get("redisson").map(String::as_str), Some(version));
        let expected = match clock {
            JavaClock::Fake => "fake",
            JavaClock::System => "system",
        };
        assert_eq!(ready.get("clock").map(String::as_str), Some(expected));
        oracle
    }

    pub fn ask(&mut self, request: &Request) -> Answer {
        self.send(request);
        self.answer(TIME_LIMIT)
    }

    /// Sends a request whose answer is fetched later.
    pub fn send(&mut self, request: &Request) {
        let line = format!("{}\n", Value::from(request.0.clone()));
        self.requests
            .write_all(line.as_bytes())
            .expect("the Java process reads");
        self.requests.flush().expect("the Java process reads");
    }

    pub fn answer(&mut self, time_limit: Duration) -> Answer {
        let line = self.line(time_limit);
        let mut answer = fields(&line);
        match (
            answer.remove("ret"),
            answer.remove("err"),
            answer.remove("msg"),
        ) {
            (Some(returned), None, None) => Ok(returned),
            (None, Some(class), Some(message)) => Err(format!("{class}: {message}")),
            _ => panic!("not an answer: {line}"),
        }
    }

    fn line(&mut self, time_limit: Duration) -> String {
        self.answers
            .recv_timeout(time_limit)
            .unwrap_or_else(|error| panic!("Redisson {}: no answer: {error}", self.version))
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A flat JSON object in the making.
#[derive(Clone, Debug)]
pub struct Request(Map<String, Value>);

impl Request {
    pub fn new(op: &str) -> Self {
        Self(Map::new()).text("op", op)
    }

    pub fn text(self, name: &str, value: &str) -> Self {
        self.with(name, value.into())
    }

    pub fn number(self, name: &str, value: i64) -> Self {
        self.with(name, value.into())
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }
}

/// Reads a flat JSON object of texts.
fn fields(line: &str) -> HashMap<String, String> {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}
