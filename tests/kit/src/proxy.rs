//! A TCP proxy between a store and its server that does what networks do.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tower_ratelimit::redis::io::tcp::socket2::SockRef;

use crate::{RedisServer, wait_until};

/// Forwards until a fault is set. Its threads end with their connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What becomes of a reply instead of its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// So many bytes arrive, and then the connection is reset
    Reset(usize),
    /// So many bytes arrive, and then the connection ends as if all were well
    End(usize),
    /// Other bytes come in its place
    Garbage,
}

#[derive(Debug, Default)]
struct Shared {
    /// Where new connections lead
    upstream: Mutex<Option<SocketAddr>>,
    closed: AtomicBool,
    /// New connections are closed at once
    refusing: AtomicBool,
    /// Of the next calls of a script: executed, but the reply is withheld and the connection cut
    replies_to_cut: AtomicUsize,
    replies_cut: AtomicU64,
    /// What the next replies become
    spoils: Mutex<Vec<Spoil>>,
    spoiled: AtomicU64,
    /// Replies arrive in pieces of one byte
    dripping: AtomicBool,
    /// Every byte of a request is also sent over a connection of the proxy's own
    doubling: AtomicBool,
    doubled: AtomicU64,
    /// Calls of scripts whose keys have different hash tags are refused
    refusing_mixed: AtomicBool,
    refused_mixed: AtomicU64,
    /// How long replies are held back: those with an even number, and those with an odd one
    delays: Mutex<[Duration; 2]>,
    replies: AtomicUsize,
    /// When each connection came, those that were refused included
    came: Mutex<Vec<Instant>>,
    served: AtomicUsize,
    /// Their threads own them: the last to end closes both sockets
    connections: Mutex<Vec<Weak<Pair>>>,
}

/// One client's connection, and the one to the server that belongs to it.
#[derive(Debug)]
struct Pair {
    client: TcpStream,
    server: TcpStream,
    /// What a withheld reply makes of it: nothing is forwarded any longer, and nothing closed.
    frozen: AtomicBool,
    /// Bytes of the client, and of the server, are taken and go nowhere.
    requests_lost: AtomicBool,
    replies_lost: AtomicBool,
    /// Closing it is to be a reset.
    resetting: AtomicBool,
}

impl Proxy {
    pub fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream: Mutex::new(Some(upstream)),
            ..Shared::default()
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.closed.load(Ordering::SeqCst) {
                    return;
                }
                accepting.came.lock().unwrap().push(Instant::now());
                // A client that is gone again, or a server that is down: the client sees a closed
                // connection.
                let _ = client.and_then(|client| accepting.serve(client));
            }
        });
        Self { address, shared }
    }

    /// Starts an empty server, too.
    pub fn and_server() -> (RedisServer, Self) {
        let server = RedisServer::start();
        let proxy = Self::start(server.address());
        (server, proxy)
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Lets the connections that are open now neither speak nor end; new ones work.
    pub fn freeze(&self) {
        self.lose(true, true);
    }

    /// Loses all that comes over the connections that are open now, one way or both, and closes
    /// nothing; new ones work.
    pub fn lose(&self, requests: bool, replies: bool) {
        for pair in self.open() {
            pair.requests_lost.store(requests, Ordering::SeqCst);
            pair.replies_lost.store(replies, Ordering::SeqCst);
        }
    }

    /// Closes new connections at once, or no longer; whether it did until now.
    pub fn refuse(&self, refuse: bool) -> bool {
        self.shared.refusing.swap(refuse, Ordering::SeqCst)
    }

    /// Resets the connections that are open now.
    pub fn reset(&self) {
        for pair in self.open() {
            pair.reset();
        }
    }

    /// Lets new connections lead elsewhere; those that are open stay where they are.
    pub fn switch(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap() = Some(upstream);
    }

    /// Cuts the connection after the server has answered the next `calls` calls of a script, before
    /// the client gets the answer.
    pub fn cut_replies(&self, calls: usize) {
        self.shared.replies_to_cut.store(calls, Ordering::SeqCst);
    }

    /// How many replies were withheld.
    pub fn replies_cut(&self) -> u64 {
        self.shared.replies_cut.load(Ordering::SeqCst)
    }

    /// Spoils the next replies, to whatever they are replies.
    pub fn spoil(&self, replies: usize, how: Spoil) {
        let mut spoils = self.shared.spoils.lock().unwrap();
        spoils.extend(std::iter::repeat_n(how, replies));
    }

    /// Delivers as they are all replies that were still to be spoiled.
    pub fn spoil_no_more(&self) {
        self.shared.spoils.lock().unwrap().clear();
    }

    /// How many replies were spoiled.
    pub fn spoiled(&self) -> u64 {
        self.shared.spoiled.load(Ordering::SeqCst)
    }

    /// Delivers replies byte by byte, or no longer.
    pub fn drip(&self, drip: bool) {
        self.shared.dripping.store(drip, Ordering::SeqCst);
    }

    /// Delivers the requests of connections made from now on twice, or no longer.
    pub fn double_from_now(&self, double: bool) {
        self.shared.doubling.store(double, Ordering::SeqCst);
    }

    /// How many requests were delivered a second time, and answered.
    pub fn doubled(&self) -> u64 {
        self.shared.doubled.load(Ordering::SeqCst)
    }

    /// Refuses scripts whose keys have different hash tags on connections made from now on, as an
    /// endpoint that stands for a Cluster does; or no longer.
    pub fn refuse_mixed_from_now(&self, refuse: bool) {
        self.shared.refusing_mixed.store(refuse, Ordering::SeqCst);
    }

    /// How many calls were refused for their hash tags.
    pub fn refused_mixed(&self) -> u64 {
        self.shared.refused_mixed.load(Ordering::SeqCst)
    }

    /// Holds every reply back; zero holds none.
    pub fn delay_every_reply(&self, by: Duration) {
        self.delay(by, by);
    }

    /// Holds replies back, in turn by the one time and by the other; their order stays.
    pub fn delay(&self, even: Duration, odd: Duration) {
        *self.shared.delays.lock().unwrap() = [even, odd];
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.shared.served.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.open().len()
    }

    /// When each connection came, those that were refused included.
    pub fn came(&self) -> Vec<Instant> {
        self.shared.came.lock().unwrap().clone()
    }

    fn open(&self) -> Vec<Arc<Pair>> {
        let mut connections = self.shared.connections.lock().unwrap();
        connections.retain(|pair| pair.strong_count() > 0);
        connections.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        for pair in self.open() {
            pair.cut();
        }
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        if self.refusing.load(Ordering::SeqCst) {
            return Ok(());
        }
        let upstream = *self.upstream.lock().unwrap();
        let server = TcpStream::connect(upstream.unwrap())?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let pair = Arc::new(Pair {
            client,
            server,
            frozen: AtomicBool::new(false),
            requests_lost: AtomicBool::new(false),
            replies_lost: AtomicBool::new(false),
            resetting: AtomicBool::new(false),
        });
        self.served.fetch_add(1, Ordering::SeqCst);
        self.connections.lock().unwrap().push(Arc::downgrade(&pair));
        let (requests, replies) = (Arc::clone(self), Arc::clone(self));
        let (held, due) = mpsc::channel();
        let (up, out) = (Arc::clone(&pair), Arc::clone(&pair));
        thread::spawn(move || {
            let ended = requests.forward_requests(&up);
            up.end(ended.is_err());
        });
        thread::spawn(move || {
            let ended = replies.read_replies(&pair, &held);
            // What is held is still to arrive.
            drop(held);
            if ended.is_err() && !pair.replies_lost.load(Ordering::SeqCst) {
                pair.end(true);
            }
        });
        let writing = Arc::clone(self);
        thread::spawn(move || {
            let ended = writing.write_replies(&out, &due);
            // Nothing arrives that is lost, and an end is something.
            if !out.replies_lost.load(Ordering::SeqCst) {
                out.end(ended.is_err());
            }
        });
        Ok(())
    }

    fn forward_requests(&self, pair: &Pair) -> io::Result<()> {
        let mut shadow = if self.doubling.load(Ordering::SeqCst) {
            Some(shadow(pair)?)
        } else {
            None
        };
        let refusing_mixed = self.refusing_mixed.load(Ordering::SeqCst);
        let mut half = Vec::new();
        let mut buffer = [0; 64 * 1024];
        loop {
            let read = (&pair.client).read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            if pair.frozen.load(Ordering::SeqCst) || pair.requests_lost.load(Ordering::SeqCst) {
                // Taken off the kernel's hands, so that it finds nothing wrong.
                continue;
            }
            let request = &buffer[..read];
            if refusing_mixed {
                half.extend_from_slice(request);
                let allowed = self.without_mixed(&mut half);
                (&pair.server).write_all(&allowed)?;
                continue;
            }
            if let Some(shadow) = &mut shadow {
                // The copy goes first and is answered first: the client gets the reply to the
                // second.
                shadow.write_all(request)?;
                let mut reply = [0; 64 * 1024];
                // Half a request is answered with its other half.
                let answered = shadow.read(&mut reply).is_ok_and(|bytes| bytes > 0);
                if answered && calls_script(request) {
                    self.doubled.fetch_add(1, Ordering::SeqCst);
                }
            }
            if calls_script(request) && self.replies_to_cut.load(Ordering::SeqCst) > 0 {
                self.replies_to_cut.fetch_sub(1, Ordering::SeqCst);
                return self.withhold_reply(pair, request);
            }
            (&pair.server).write_all(request)?;
        }
    }

    /// Takes all whole commands. In place of a call with different hash tags the server gets a
    /// script that fails as the call would: so replies stay in order.
    fn without_mixed(&self, half: &mut Vec<u8>) -> Vec<u8> {
        const MIXED: &str = "CROSSSLOT Keys in request don't hash to the same slot";
        let (mut allowed, mut taken) = (Vec::new(), 0);
        while let Some((words, length)) = first_command(&half[taken..]) {
            if has_mixed_tags(&words) {
                let fails = format!("return redis.error_reply(\"{MIXED}\")");
                let fails =
                    ["EVAL", &fails, "0"].map(|word| format!("${}\r\n{word}\r\n", word.len()));
                allowed.extend(format!("*3\r\n{}", fails.concat()).into_bytes());
                self.refused_mixed.fetch_add(1, Ordering::SeqCst);
            } else {
                allowed.extend_from_slice(&half[taken..taken + length]);
            }
            taken += length;
        }
        half.drain(..taken);
        allowed
    }

    /// Ends the connection as soon as the server has answered.
    fn withhold_reply(&self, pair: &Pair, request: &[u8]) -> io::Result<()> {
        // Before the request goes out: the other thread reads the reply, and forwards it no longer.
        pair.frozen.store(true, Ordering::SeqCst);
        let before = self.replies_cut.load(Ordering::SeqCst);
        (&pair.server).write_all(request)?;
        wait_until("the server has answered", || {
            self.replies_cut.load(Ordering::SeqCst) > before
        });
        pair.cut();
        Ok(())
    }

    /// Takes replies off the server, and says when each is to arrive.
    fn read_replies(&self, pair: &Pair, held: &mpsc::Sender<(Instant, Vec<u8>)>) -> io::Result<()> {
        let mut buffer = [0; 64 * 1024];
        loop {
            let read = (&pair.server).read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            if pair.frozen.load(Ordering::SeqCst) {
                self.replies_cut.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            let delays = *self.delays.lock().unwrap();
            let delay = delays[self.replies.fetch_add(1, Ordering::SeqCst) % 2];
            if held
                .send((Instant::now() + delay, buffer[..read].to_vec()))
                .is_err()
            {
                return Ok(());
            }
        }
    }

    /// Lets replies arrive, each when it is due and after those before it.
    fn write_replies(
        &self,
        pair: &Pair,
        due: &mpsc::Receiver<(Instant, Vec<u8>)>,
    ) -> io::Result<()> {
        let mut client = &pair.client;
        for (at, reply) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if pair.replies_lost.load(Ordering::SeqCst) {
                continue;
            }
            let spoil = self.spoils.lock().unwrap().pop();
            if spoil.is_some() {
                self.spoiled.fetch_add(1, Ordering::SeqCst);
            }
            match spoil {
                Some(Spoil::Reset(after)) => {
                    client.write_all(&reply[..after.min(reply.len())])?;
                    pair.reset();
                    return Ok(());
                }
                Some(Spoil::End(after)) => {
                    client.write_all(&reply[..after.min(reply.len())])?;
                    return Ok(());
                }
                Some(Spoil::Garbage) => client.write_all(b"?\x00 this is no reply\r\n")?,
                None if self.dripping.load(Ordering::SeqCst) => {
                    for byte in reply {
                        client.write_all(&[byte])?;
                    }
                }
                None => client.write_all(&reply)?,
            }
        }
        Ok(())
    }
}

impl Pair {
    fn cut(&self) {
        // Fails where the other side was first.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    /// Has both sides find the connection reset, when the threads have let go of it.
    fn reset(&self) {
        self.resetting.store(true, Ordering::SeqCst);
        for side in [&self.client, &self.server] {
            let _ = SockRef::from(side).set_linger(Some(Duration::ZERO));
            // Wakes who reads, and tells the other side nothing.
            let _ = side.shutdown(Shutdown::Read);
        }
    }

    /// What one side's end means to the other: a reset is handed on as one.
    fn end(&self, broken: bool) {
        if self.frozen.load(Ordering::SeqCst) || self.resetting.load(Ordering::SeqCst) {
            return;
        }
        if broken { self.reset() } else { self.cut() }
    }
}

/// A connection of the proxy's own to where this one leads.
fn shadow(pair: &Pair) -> io::Result<TcpStream> {
    let shadow = TcpStream::connect(pair.server.peer_addr()?)?;
    shadow.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(shadow)
}

fn calls_script(request: &[u8]) -> bool {
    request.windows(b"EVAL".len()).any(|word| word == b"EVAL")
}

/// Returns the words of the command that these bytes begin with, if it is whole, and its length.
fn first_command(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let number = |at: usize| {
        let line = bytes.get(at + 1..)?.split(|byte| *byte == b'\r').next()?;
        let number: usize = std::str::from_utf8(line).ok()?.parse().ok()?;
        Some((number, at + line.len() + 3))
    };
    let (count, mut at) = number(0)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, begins) = number(at)?;
        words.push(bytes.get(begins..begins + length)?);
        at = begins + length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

fn has_mixed_tags(words: &[&[u8]]) -> bool {
    let (true, Some(keys)) = (words[0].starts_with(b"EVAL"), words.get(2)) else {
        return false;
    };
    let keys: usize = std::str::from_utf8(keys).map_or(0, |keys| keys.parse().unwrap_or(0));
    // What braces enclose, or the whole key.
    let tag = |key: &&[u8]| {
        let key = String::from_utf8_lossy(key).into_owned();
        let tag = key
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'));
        tag.map_or_else(|| key.clone(), |(tag, _)| tag.to_owned())
    };
    let mut tags = words[3..3 + keys].iter().map(tag);
    let first = tags.next();
    tags.any(|tag| Some(&tag) != first.as_ref())
}
