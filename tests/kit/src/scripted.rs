//! A server that answers by a script: for errors that real servers seldom give.

use std::{
    io::{self, BufReader, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use super::Reply;

/// Speaks RESP2, and answers each command by what its script says. Its threads end with their
/// connections.
pub struct ScriptedServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    says: Says,
    connections: AtomicUsize,
    /// Those asked for, in capitals, in the order in which they came
    commands: Mutex<Vec<String>>,
    closed: AtomicBool,
}

/// What to answer, as it is to stand on the wire
enum Says {
    /// To each command
    Answers(Box<Answers>),
    /// To each client, whatever it sends
    Always(Option<&'static [u8]>),
}

/// The words of one command
pub type Command = Vec<Vec<u8>>;

type Answers = dyn Fn(&Command) -> Vec<u8> + Send + Sync;

impl ScriptedServer {
    /// Answers `OK` to whatever a client says of itself, and by `answers` to the rest; where that
    /// is nothing, it hangs up
    pub fn start(answers: impl Fn(&Command) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start_at(|_| answers)
    }

    /// Answers each command by the first of these lines that is for it; one for `""` is for all
    pub fn of<const N: usize>(lines: [(&'static str, &'static str); N]) -> Self {
        Self::start(move |command| {
            let verb = String::from_utf8_lossy(&command[0]).to_uppercase();
            let mut lines = lines.iter();
            let line = lines.find(|(of, _)| [verb.as_str(), ""].contains(of));
            line.map_or_else(Vec::new, |(_, line)| format!("{line}\r\n").into_bytes())
        })
    }

    /// As [`start`](Self::start), by answers that depend on its port
    pub fn start_at<A>(answers: impl FnOnce(u16) -> A) -> Self
    where
        A: Fn(&Command) -> Vec<u8> + Send + Sync + 'static,
    {
        Self::listen(|port| Says::Answers(Box::new(answers(port))))
    }

    /// No Redis: sends each client these bytes, and hangs up. Without any it is silent, and stays
    /// connected
    pub fn stranger(says: Option<&'static [u8]>) -> Self {
        Self::listen(|_| Says::Always(says))
    }

    fn listen(says: impl FnOnce(u16) -> Says) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            says: says(address.port()),
            connections: AtomicUsize::new(0),
            commands: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.closed.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                accepting.connections.fetch_add(1, Ordering::Relaxed);
                let serving = Arc::clone(&accepting);
                // Fails where the client has hung up.
                thread::spawn(move || drop(serving.serve(stream)));
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// How many there have been
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the commands that it got, without those in which clients describe themselves
    pub fn commands(&self) -> Vec<String> {
        self.shared.commands.lock().unwrap().clone()
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        // Lets the accepting thread see it.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        let answers = match &self.says {
            Says::Answers(answers) => answers,
            Says::Always(words) => {
                if let Some(words) = words {
                    writer.write_all(words)?;
                    writer.shutdown(Shutdown::Write)?;
                }
                // Ends with the client: what it sends unread would reset the connection.
                return io::copy(&mut reader, &mut io::sink()).map(drop);
            }
        };
        while let Reply::Array(words) = Reply::read(&mut reader)? {
            let command: Command = words.into_iter().map(Reply::into_bytes).collect();
            let verb = String::from_utf8_lossy(&command[0]).to_uppercase();
            if verb == "CLIENT" || verb == "HELLO" || verb == "SELECT" {
                writer.write_all(b"+OK\r\n")?;
                continue;
            }
            self.commands.lock().unwrap().push(verb);
            let answer = answers(&command);
            if answer.is_empty() {
                break;
            }
            writer.write_all(&answer)?;
        }
        Ok(())
    }
}
