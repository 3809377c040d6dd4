//! A client on a raw socket: requests as bytes, and the parts of replies that the tests examine.

use std::io::{self, BufRead, BufReader, Error, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status, a number, or an array without an error in it.
    Good,
    /// An error, or an array with one in it.
    Error(String),
    Bulk(Option<Vec<u8>>),
}

pub struct Wire {
    socket: BufReader<TcpStream>,
}

/// Appends a request.
pub fn put(out: &mut Vec<u8>, args: &[&[u8]]) {
    out.extend(format!("*{}\r\n", args.len()).bytes());
    for arg in args {
        out.extend(format!("${}\r\n", arg.len()).bytes());
        out.extend_from_slice(arg);
        out.extend(b"\r\n");
    }
}

impl Wire {
    pub fn connect(port: u16) -> io::Result<Wire> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Wire { socket: BufReader::new(socket) })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.get_mut().write_all(bytes)
    }

    /// The next reply, complete; an error when the connection ended before.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.socket.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| Error::other("an empty line"))?;
        let number = || rest.parse::<i64>().map_err(Error::other);
        match kind {
            "+" | ":" => Ok(Reply::Good),
            "-" => Ok(Reply::Error(rest.to_owned())),
            "$" => match usize::try_from(number()?) {
                Err(_) => Ok(Reply::Bulk(None)),
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.socket.read_exact(&mut bytes)?;
                    assert_eq!(bytes.split_off(length), b"\r\n");
                    Ok(Reply::Bulk(Some(bytes)))
                }
            },
            "*" => {
                let mut all = Reply::Good;
                for _ in 0..number()?.max(0) {
                    if let error @ Reply::Error(_) = self.reply()? {
                        all = error;
                    }
                }
                Ok(all)
            }
            _ => Err(Error::other(format!("not a reply: {line}"))),
        }
    }
}
