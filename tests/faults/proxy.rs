//! A TCP proxy between a store and its server that does what networks do.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Forwards until told otherwise. Its threads end with their connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    closed: AtomicBool,
    /// New connections are closed at once
    refusing: AtomicBool,
    /// Of the next calls of a script: executed, but the reply is withheld and the connection cut
    replies_to_cut: AtomicUsize,
    replies_cut: AtomicU64,
    /// Every byte of a request is also sent over a connection of the proxy's own
    doubling: AtomicBool,
    doubled: AtomicU64,
    /// How long replies are held back: those with an even number, and those with an odd one
    delays: Mutex<[Duration; 2]>,
    replies: AtomicUsize,
    connections: Mutex<Vec<Arc<Pair>>>,
}

/// One client's connection, and the one to the server that belongs to it.
#[derive(Debug)]
struct Pair {
    client: TcpStream,
    server: TcpStream,
    /// Nothing is forwarded any longer, and nothing closed.
    frozen: AtomicBool,
}

impl Proxy {
    pub fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream,
            closed: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            replies_to_cut: AtomicUsize::new(0),
            replies_cut: AtomicU64::new(0),
            doubling: AtomicBool::new(false),
            doubled: AtomicU64::new(0),
            delays: Mutex::default(),
            replies: AtomicUsize::new(0),
            connections: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.closed.load(Ordering::SeqCst) {
                    return;
                }
                // A client that is gone again, or a server that is down: the client sees a closed connection.
                let _ = client.and_then(|client| accepting.serve(client));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Lets the connections that are open now neither speak nor end; new ones work.
    pub fn freeze(&self) {
        for pair in self.shared.connections.lock().unwrap().iter() {
            pair.frozen.store(true, Ordering::SeqCst);
        }
    }

    /// Closes new connections at once, or no longer.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refusing.store(refuse, Ordering::SeqCst);
    }

    /// Cuts the connection after the server has answered the next `calls` calls of a script, before the client hears it.
    pub fn cut_replies(&self, calls: usize) {
        self.shared.replies_to_cut.store(calls, Ordering::SeqCst);
    }

    /// How many replies were withheld.
    pub fn replies_cut(&self) -> u64 {
        self.shared.replies_cut.load(Ordering::SeqCst)
    }

    /// Delivers the requests of connections made from now on twice.
    pub fn double(&self) {
        self.shared.doubling.store(true, Ordering::SeqCst);
    }

    /// How many requests were delivered a second time, and answered.
    pub fn doubled(&self) -> u64 {
        self.shared.doubled.load(Ordering::SeqCst)
    }

    /// Holds every reply back; zero holds none.
    pub fn delay_every_reply(&self, by: Duration) {
        *self.shared.delays.lock().unwrap() = [by; 2];
    }

    /// Holds every second reply back.
    pub fn delay_every_second_reply(&self, by: Duration) {
        *self.shared.delays.lock().unwrap() = [Duration::ZERO, by];
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().unwrap().len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        for pair in self.shared.connections.lock().unwrap().iter() {
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
        let server = TcpStream::connect(self.upstream)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let pair = Arc::new(Pair {
            client,
            server,
            frozen: AtomicBool::new(false),
        });
        self.connections.lock().unwrap().push(Arc::clone(&pair));
        let (requests, replies) = (Arc::clone(self), Arc::clone(self));
        let up = Arc::clone(&pair);
        thread::spawn(move || {
            let _ = requests.forward_requests(&up);
            up.end();
        });
        thread::spawn(move || {
            let _ = replies.forward_replies(&pair);
            pair.end();
        });
        Ok(())
    }

    fn forward_requests(&self, pair: &Pair) -> io::Result<()> {
        let mut shadow = match self.doubling.load(Ordering::SeqCst) {
            true => Some(TcpStream::connect(self.upstream)?),
            false => None,
        };
        let mut buffer = [0; 64 * 1024];
        loop {
            let read = (&pair.client).read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            if pair.frozen.load(Ordering::SeqCst) {
                // Taken off the kernel's hands, so that it finds nothing wrong.
                continue;
            }
            let request = &buffer[..read];
            if let Some(shadow) = &mut shadow {
                // The copy goes first and is answered first: the one that the client hears of is the second.
                shadow.write_all(request)?;
                let mut reply = [0; 64 * 1024];
                if shadow.read(&mut reply)? > 0 && calls_script(request) {
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

    /// Ends the connection as soon as the server has answered.
    fn withhold_reply(&self, pair: &Pair, request: &[u8]) -> io::Result<()> {
        // Before the request goes out: the other thread reads the reply, and forwards it no longer.
        pair.frozen.store(true, Ordering::SeqCst);
        let before = self.replies_cut.load(Ordering::SeqCst);
        (&pair.server).write_all(request)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.replies_cut.load(Ordering::SeqCst) == before && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        pair.cut();
        Ok(())
    }

    fn forward_replies(&self, pair: &Pair) -> io::Result<()> {
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
            thread::sleep(delays[self.replies.fetch_add(1, Ordering::SeqCst) % 2]);
            (&pair.client).write_all(&buffer[..read])?;
        }
    }
}

impl Pair {
    fn cut(&self) {
        // Fails where the other side was first.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    /// What one side's end means to the other.
    fn end(&self) {
        if !self.frozen.load(Ordering::SeqCst) {
            self.cut();
        }
    }
}

fn calls_script(request: &[u8]) -> bool {
    request.windows(b"EVAL".len()).any(|word| word == b"EVAL")
}
