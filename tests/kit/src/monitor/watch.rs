//! Follows the commands that a server executes, while it runs.

use std::{
    collections::BTreeSet,
    io::{BufReader, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use super::{Feed, Seen};
use crate::{LONG, RedisServer, Reply, resp::packed, server::command, unique};

/// A connection in MONITOR mode, and the thread that reads it. Ends with the server.
#[derive(Debug)]
pub struct Watch {
    server: SocketAddr,
    marks: Arc<Mutex<Marks>>,
    stream: TcpStream,
}

#[derive(Debug, Default)]
struct Marks {
    last: String,
    over: bool,
    /// The addresses of connections that have called a script
    callers: BTreeSet<String>,
}

impl Watch {
    /// Starts to read. `see` gets each command that is executed from now on, as MONITOR prints it
    /// and as it is parsed.
    pub fn open(server: &RedisServer, see: impl Fn(&str, &Seen) + Send + 'static) -> Self {
        let mut feed = Feed::open(server);
        let stream = feed.connection().try_clone().unwrap();
        // A stopped server says nothing for as long as it is stopped.
        stream.set_read_timeout(None).unwrap();
        let marks = Arc::<Mutex<Marks>>::default();
        let marked = Arc::clone(&marks);
        thread::spawn(move || {
            let mut line = String::new();
            while let Some(seen) = feed.read(&mut line) {
                match &seen.words[..] {
                    [echo, mark] if echo == "ECHO" => {
                        marked.lock().unwrap().last.clone_from(mark);
                    }
                    words => {
                        if words[0].starts_with("EVAL")
                            && let Some(caller) = caller(&line)
                        {
                            marked.lock().unwrap().callers.insert(caller.to_owned());
                        }
                        see(&line, &seen);
                    }
                }
            }
            marked.lock().unwrap().over = true;
        });
        Self {
            server: server.address(),
            marks,
            stream,
        }
    }

    /// Waits until all commands executed so far are read; for a dead server, until its last one.
    /// Returns how many connections have called a script.
    pub fn catch_up(&self) -> usize {
        let mark = unique("mark");
        // Fails where the server is gone.
        let _ = command(self.server.port(), &["ECHO", &mark], LONG);
        let began = Instant::now();
        loop {
            let marks = self.marks.lock().unwrap();
            if marks.over || marks.last == mark {
                return marks.callers.len();
            }
            drop(marks);
            assert!(began.elapsed() < LONG, "MONITOR does not go on");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Whose command a line tells of: `+1732187000.123456 [0 127.0.0.1:50000] "EVALSHA" ..`
fn caller(line: &str) -> Option<&str> {
    line.split_once(" [0 ")?
        .1
        .split_once("] ")
        .map(|(caller, _)| caller)
}

/// The server's time in ms.
pub fn time_of(server: &RedisServer) -> i64 {
    server.micros() / 1000
}

/// A connection that stays open: where a server takes no new ones, it is still obeyed.
#[derive(Debug)]
pub struct Control(BufReader<TcpStream>);

impl Control {
    pub fn open(server: &RedisServer) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn cli(&mut self, args: &[&str]) -> String {
        self.send(args);
        Reply::read(&mut self.0).unwrap().to_string()
    }

    /// Sends a command whose reply is not waited for.
    pub fn send(&mut self, args: &[&str]) {
        self.0.get_mut().write_all(&packed(args)).unwrap();
    }

    /// The reply to what was sent.
    pub fn reply(&mut self) -> String {
        Reply::read(&mut self.0).unwrap().to_string()
    }
}
