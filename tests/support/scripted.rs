//! A server that says what it was told to: for errors that real servers seldom give.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// Speaks RESP2, and answers each command by what its script says. Its threads end with their connections.
#[derive(Debug)]
pub struct ScriptedServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// What to answer, as it is to stand on the wire
    answers: Box<Answers>,
    connections: AtomicUsize,
    /// Those asked for, in capitals, in the order in which they came
    commands: Mutex<Vec<String>>,
    closed: AtomicBool,
}

/// The words of one command
pub type Command = Vec<Vec<u8>>;

type Answers = dyn Fn(&Command) -> Vec<u8> + Send + Sync;

impl ScriptedServer {
    /// Answers `OK` to whatever a client says of itself, and by `answers` to the rest; where that is nothing, it hangs up
    pub fn start(answers: impl Fn(&Command) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answers: Box::new(answers),
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
                // Whoever hangs up has heard enough.
                thread::spawn(move || drop(serving.serve(stream)));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// How many there have been
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// What it was asked for, but for what clients say of themselves
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

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while let Some(command) = read(&mut reader)? {
            let verb = String::from_utf8_lossy(&command[0]).to_uppercase();
            if verb == "CLIENT" || verb == "HELLO" || verb == "SELECT" {
                writer.write_all(b"+OK\r\n")?;
                continue;
            }
            self.commands.lock().unwrap().push(verb);
            let answer = (self.answers)(&command);
            if answer.is_empty() {
                break;
            }
            writer.write_all(&answer)?;
        }
        Ok(())
    }
}

/// One command; none at the end of the connection.
fn read(reader: &mut impl BufRead) -> io::Result<Option<Command>> {
    let Some(words) = number(reader, b'*')? else {
        return Ok(None);
    };
    let mut command = Vec::new();
    for _ in 0..words {
        let length = number(reader, b'$')?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word)?;
        word.truncate(length);
        command.push(word);
    }
    Ok(Some(command))
}

fn number(reader: &mut impl BufRead, sign: u8) -> io::Result<Option<usize>> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    let Some((first, rest)) = line.split_first() else {
        return Ok(None);
    };
    assert_eq!(*first, sign, "{}", String::from_utf8_lossy(&line));
    let digits = std::str::from_utf8(rest).unwrap().trim_end();
    Ok(Some(digits.parse().unwrap()))
}
