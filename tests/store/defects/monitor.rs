//! Every command that reaches a server, scripts' own included, byte for byte.

use crate::scene::*;
use std::{io::BufRead, io::BufReader, io::Write, net::TcpStream};

pub(crate) struct Monitor {
    server: &'static RedisServer,
    lines: BufReader<TcpStream>,
}

#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// Called by a script
    pub(crate) inner: bool,
    pub(crate) args: Vec<Vec<u8>>,
}

impl Monitor {
    /// Sees what comes from now on.
    pub(crate) fn start() -> Self {
        let server = RedisServer::shared();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut ok = String::new();
        lines.read_line(&mut ok).unwrap();
        assert_eq!(ok, "+OK\r\n");
        Self { server, lines }
    }

    /// Returns the commands since the last call, on keys or scripts of one limiter.
    pub(crate) fn seen(&mut self, name: &str) -> Vec<Command> {
        // What was answered before this command stands before it.
        let mark = unique("mark");
        self.server.cli(&["ECHO", &mark]);
        let mut seen = Vec::new();
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            let command = parse(&line);
            if command.args.iter().any(|arg| *arg == mark.as_bytes()) {
                return seen;
            }
            let about = |arg: &Vec<u8>| {
                *arg == name.as_bytes() || arg.starts_with(format!("{{{name}}}:").as_bytes())
            };
            if command.args.iter().any(about) {
                seen.push(command);
            }
        }
    }

    /// Returns how often a script was called on one limiter.
    pub(crate) fn calls(&mut self, name: &str) -> usize {
        let seen = self.seen(name);
        // EVAL follows where the server did not know the hash: one call in two commands.
        let calls = |verb: &str| {
            let called = |command: &&Command| !command.inner && command.args[0] == verb.as_bytes();
            seen.iter().filter(called).count()
        };
        calls("EVALSHA")
    }
}

/// `+1700000000.123456 [0 lua] "GET" "key\x00"`
fn parse(line: &str) -> Command {
    let (head, rest) = line.split_once("] ").expect("where it came from");
    let mut args = Vec::new();
    let mut arg = None;
    let mut chars = rest.trim_end().chars();
    while let Some(char) = chars.next() {
        match (char, &mut arg) {
            ('"', None) => arg = Some(Vec::new()),
            ('"', Some(_)) => args.extend(arg.take()),
            ('\\', Some(bytes)) => bytes.push(match chars.next().expect("an escape") {
                'n' => b'\n',
                'r' => b'\r',
                't' => b'\t',
                'a' => 7,
                'b' => 8,
                'x' => {
                    let hex: String = chars.by_ref().take(2).collect();
                    u8::from_str_radix(&hex, 16).unwrap()
                }
                other => u8::try_from(other).unwrap(),
            }),
            (char, Some(bytes)) => bytes.push(u8::try_from(char).unwrap()),
            (_, None) => {}
        }
    }
    Command {
        inner: head.ends_with(" lua"),
        args,
    }
}
