//! What a server says it is doing: its MONITOR, line by line.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use super::support::{RedisServer, unique};

/// A connection in MONITOR mode.
#[derive(Debug)]
pub struct Feed {
    lines: BufReader<TcpStream>,
}

/// One executed command.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The server's clock, in milliseconds, when it was executed
    pub at: f64,
    /// Whether a script called it
    pub by_script: bool,
    /// The command and its arguments; bytes that are not printable ASCII stand as `\xNN`
    pub words: Vec<String>,
}

impl Feed {
    /// Begins to listen; whatever is executed from now on is seen.
    pub fn open(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        assert_eq!(first, "+OK\r\n");
        Self { lines }
    }

    /// Everything that was executed until now, and not told of before.
    pub fn until_now(&mut self, server: &RedisServer) -> Vec<Seen> {
        let mark = unique("mark");
        server.cli(&["ECHO", &mark]);
        let mut seen = Vec::new();
        loop {
            let next = self.next();
            if next.words == ["ECHO", &mark] {
                return seen;
            }
            seen.push(next);
        }
    }

    pub fn next(&mut self) -> Seen {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("MONITOR goes on");
        Seen::read(line.trim_end()).unwrap_or_else(|| panic!("not a line of MONITOR: {line:?}"))
    }
}

impl Seen {
    /// `+1732187000.123456 [0 127.0.0.1:50000] "GET" "key"`; a script's has `[0 lua]`.
    pub fn read(line: &str) -> Option<Self> {
        let (time, rest) = line.strip_prefix('+')?.split_once(" [")?;
        let (from, words) = rest.split_once("] ")?;
        Some(Self {
            at: time.parse::<f64>().ok()? * 1000.0,
            by_script: from.ends_with(" lua"),
            words: words
                .strip_prefix('"')?
                .strip_suffix('"')?
                .split("\" \"")
                .map(str::to_owned)
                .collect(),
        })
    }
}

/// The bytes of a word as MONITOR shows it.
#[allow(dead_code, reason = "some who listen look at no bytes")]
pub fn bytes_of(word: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().expect("an escaped byte") {
            b'x' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'a' => 7,
            b'b' => 8,
            other => other,
        });
    }
    bytes
}
