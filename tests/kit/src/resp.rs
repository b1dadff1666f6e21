//! The part of the protocol of Redis that tests use: replies, and commands of one connection each.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::ports::address;

/// A reply in the second version of the protocol
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Status(String),
    Error(String),
    Array(Vec<Self>),
}

impl Reply {
    /// The bytes of a string
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bulk(bytes) => bytes,
            other => panic!("not a string: {other:?}"),
        }
    }

    pub fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let mut line = String::new();
        from.read_line(&mut line)?;
        // A closed connection ends the line early, or leaves none at all.
        let line = line
            .strip_suffix("\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| unreadable(line))?;
        let number = || rest.parse::<i64>().map_err(|_| unreadable(line));
        Ok(match kind {
            "+" => Self::Status(rest.to_owned()),
            "-" => Self::Error(rest.to_owned()),
            ":" => Self::Int(number()?),
            // A negative length is nil, for both.
            "$" => match usize::try_from(number()?) {
                Ok(len) => {
                    let mut bytes = vec![0; len + 2];
                    from.read_exact(&mut bytes)?;
                    bytes.truncate(len);
                    Self::Bulk(bytes)
                }
                Err(_) => Self::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(len) => Self::Array(
                    (0..len)
                        .map(|_| Self::read(from))
                        .collect::<io::Result<_>>()?,
                ),
                Err(_) => Self::Nil,
            },
            _ => return Err(unreadable(line)),
        })
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("(nil)"),
            Self::Int(n) => n.fmt(f),
            Self::Bulk(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Status(text) => f.write_str(text),
            Self::Error(text) => write!(f, "(error) {text}"),
            Self::Array(replies) => {
                for (i, reply) in replies.iter().enumerate() {
                    if i > 0 {
                        f.write_str("\n")?;
                    }
                    reply.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

/// Sends one command to whatever listens on a port
pub fn command<A: AsRef<[u8]>>(port: u16, args: &[A], timeout: Duration) -> io::Result<Reply> {
    let mut stream = send(port, &packed(args), timeout)?;
    Reply::read(&mut stream)
}

/// The same, after a password
pub fn command_with_password<A: AsRef<[u8]>>(
    port: u16,
    password: &str,
    args: &[A],
    timeout: Duration,
) -> io::Result<Reply> {
    let request = [packed(&["AUTH", password]), packed(args)].concat();
    let mut stream = send(port, &request, timeout)?;
    match Reply::read(&mut stream)? {
        Reply::Status(_) => Reply::read(&mut stream),
        refused => Ok(refused),
    }
}

/// A command in the bytes of the protocol
pub fn packed<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        request.extend_from_slice(arg);
        request.extend_from_slice(b"\r\n");
    }
    request
}

fn send(port: u16, request: &[u8], timeout: Duration) -> io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect_timeout(&address(port), timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(request)?;
    Ok(BufReader::new(stream))
}

fn unreadable(line: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("unreadable reply {line:?}"),
    )
}
