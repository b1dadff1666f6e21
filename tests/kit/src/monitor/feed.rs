//! Reads the MONITOR of a server, line by line.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use crate::{LONG, RedisServer, unique};

/// A connection in MONITOR mode.
#[derive(Debug)]
pub struct Feed {
    lines: BufReader<TcpStream>,
}

/// One executed command.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// When it was executed, by the server's clock
    pub micros: i64,
    /// Whether a script called it
    pub by_script: bool,
    /// The command and its arguments; bytes that are not printable ASCII stand as `\xNN`
    pub words: Vec<String>,
}

impl Feed {
    /// Begins to listen: each command that is executed from now on is seen.
    pub fn open(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        assert_eq!(first, "+OK\r\n");
        Self { lines }
    }

    /// Returns what was executed until now and was not returned before.
    pub fn until_now(&mut self, server: &RedisServer) -> Vec<Seen> {
        let mark = unique("mark");
        server.cli(&["ECHO", &mark]);
        self.until(&mark)
    }

    /// Returns what was executed before this mark, which the caller has sent with ECHO.
    pub fn until(&mut self, mark: &str) -> Vec<Seen> {
        let mut seen = Vec::new();
        loop {
            let next = self.next_seen();
            if next.words == ["ECHO", mark] {
                return seen;
            }
            seen.push(next);
        }
    }

    pub fn next_seen(&mut self) -> Seen {
        let mut line = String::new();
        self.read(&mut line).expect("MONITOR goes on")
    }

    /// Returns the next command, and leaves the line that shows it; `None` when the server is gone.
    pub fn read(&mut self, line: &mut String) -> Option<Seen> {
        line.clear();
        // The last line of a server that is killed may be cut.
        self.lines
            .read_line(line)
            .ok()
            .filter(|_| line.ends_with('\n'))?;
        let seen = Seen::read(line.trim_end());
        Some(seen.unwrap_or_else(|| panic!("not a line of MONITOR: {line:?}")))
    }

    pub fn connection(&self) -> &TcpStream {
        self.lines.get_ref()
    }
}

impl Seen {
    /// `+1732187000.123456 [0 127.0.0.1:50000] "GET" "key"`; a script's has `[0 lua]`.
    pub fn read(line: &str) -> Option<Self> {
        let (time, rest) = line.strip_prefix('+')?.split_once(" [")?;
        let (from, words) = rest.split_once("] ")?;
        Some(Self {
            micros: time.replace('.', "").parse().ok()?,
            by_script: from.ends_with(" lua"),
            words: split(words)?,
        })
    }

    /// Returns whether a client called a script.
    pub fn is_script(&self) -> bool {
        !self.by_script && matches!(&*self.words[0], "EVAL" | "EVALSHA")
    }

    /// Returns the command and its arguments byte for byte.
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        self.words.iter().map(|word| bytes_of(word)).collect()
    }
}

/// Splits `"GET" "a key"`; what is escaped stays so.
fn split(words: &str) -> Option<Vec<String>> {
    let (mut split, mut rest) = (Vec::new(), words);
    loop {
        let word = rest.strip_prefix('"')?;
        let mut escaped = false;
        let end = word.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        split.push(word[..end].to_owned());
        match &word[end + 1..] {
            "" => return Some(split),
            more => rest = more.strip_prefix(' ')?,
        }
    }
}

/// Returns the bytes of a word that MONITOR shows.
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

/// Returns a word as MONITOR may show these bytes.
pub fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

#[test]
fn a_line_of_monitor_is_read() {
    let line = r#"+1795260027.787762 [0 127.0.0.1:40714] "EVAL" "a\\\" " "\x00\xff]\r\n\t\a\b""#;
    let seen = Seen::read(line).unwrap();
    assert_eq!(seen.micros, 1_795_260_027_787_762);
    assert!(seen.is_script());
    let arguments: [&[u8]; 3] = [b"EVAL", b"a\\\" ", b"\x00\xff]\r\n\t\x07\x08"];
    assert_eq!(seen.arguments(), arguments);
    assert!(Seen::read(r#"+1.000001 [0 lua] "TIME""#).unwrap().by_script);
}
