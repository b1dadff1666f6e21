//! Asks an HTTP/1.1 server as fast as it answers, from one thread.
//!
//! It stands in for `wrk -t1 -c64`, which a fresh machine has not. Per request it makes one write,
//! one read, and its share of a wait for all connections; what it reads of an answer is its status
//! and its length.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use memchr::memmem;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
};

use crate::requests::one_thread;

pub(crate) const CONNECTIONS: usize = 64;

/// With one digit for each of seven places at `DIGITS`.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-user: user-0000000\r\n\r\n";
const DIGITS: std::ops::Range<usize> = 46..53;

/// One who asks, for so many users.
#[derive(Debug)]
pub(crate) struct Load {
    runtime: Runtime,
    pub(crate) keys: u64,
}

/// How long it asks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Time(Duration),
    Requests(u64),
}

/// What the answers were.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    pub(crate) took: Duration,
}

/// What the connections of one run share.
#[derive(Debug, Default)]
struct Run {
    asked: AtomicU64,
    allowed: AtomicU64,
    refused: AtomicU64,
    over: AtomicBool,
}

impl Load {
    pub(crate) fn of(keys: usize) -> Self {
        Self {
            runtime: one_thread(),
            keys: keys as u64,
        }
    }

    /// Asks from all connections at once, for each user in turn. An answer that is neither 200 nor
    /// 429 ends the program.
    pub(crate) fn run(&self, address: SocketAddr, until: Until) -> Answers {
        self.runtime.block_on(async {
            let mut streams = Vec::new();
            for _ in 0..CONNECTIONS {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                streams.push(stream);
            }
            let run = Arc::new(Run::default());
            let (most, time) = match until {
                Until::Time(time) => (u64::MAX, Some(time)),
                Until::Requests(most) => (most, None),
            };
            let began = Instant::now();
            let mut tasks = JoinSet::new();
            for stream in streams {
                tasks.spawn(Arc::clone(&run).ask(stream, self.keys, most));
            }
            if let Some(time) = time {
                tokio::time::sleep(time).await;
                run.over.store(true, Relaxed);
            }
            tasks.join_all().await;
            Answers {
                allowed: run.allowed.load(Relaxed),
                refused: run.refused.load(Relaxed),
                took: began.elapsed(),
            }
        })
    }
}

impl Run {
    /// One connection.
    async fn ask(self: Arc<Self>, mut stream: TcpStream, keys: u64, most: u64) {
        let length = memmem::Finder::new(b"content-length: ");
        let end = memmem::Finder::new(b"\r\n\r\n");
        let mut request = REQUEST.to_vec();
        let mut buffer = vec![0; 8192];
        while !self.over.load(Relaxed) {
            let asked = self.asked.fetch_add(1, Relaxed);
            if asked >= most {
                return;
            }
            spell(&mut request[DIGITS], asked % keys);
            stream.write_all(&request).await.unwrap();
            let mut filled = 0;
            let whole = loop {
                let read = stream.read(&mut buffer[filled..]).await.unwrap();
                assert!(read > 0, "the server hung up");
                filled += read;
                if let Some(head) = end.find(&buffer[..filled]) {
                    let body = length.find(&buffer[..head]).and_then(|at| {
                        let digits = buffer[at + 16..head].split(|byte| *byte == b'\r').next()?;
                        str::from_utf8(digits).ok()?.parse::<usize>().ok()
                    });
                    let body = body.expect("an answer says its length");
                    if filled >= head + 4 + body {
                        break head + 4 + body;
                    }
                }
            };
            assert_eq!(whole, filled, "one answer to one request");
            match &buffer[..12] {
                b"HTTP/1.1 200" => self.allowed.fetch_add(1, Relaxed),
                b"HTTP/1.1 429" => self.refused.fetch_add(1, Relaxed),
                _ => panic!("{}", String::from_utf8_lossy(&buffer[..filled])),
            };
        }
    }
}

fn spell(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_user() {
        let mut request = REQUEST.to_vec();
        spell(&mut request[DIGITS], 1_234_567);
        let text = String::from_utf8(request).unwrap();
        assert!(text.contains("x-user: user-1234567\r\n"), "{text}");
    }
}
