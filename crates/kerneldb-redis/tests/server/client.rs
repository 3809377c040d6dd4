//! A client on a raw socket, and replies to compare with.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A request as an array of bulk strings.
pub fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend(bulk(arg));
    }
    out
}

/// A bulk string.
pub fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut out = format!("${}\r\n", bytes.len()).into_bytes();
    out.extend(bytes);
    out.extend(b"\r\n");
    out
}

/// A request from words.
pub fn words(line: &str) -> Vec<u8> {
    request(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// Longest time for which a read waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads one reply of RESP2, or of RESP3 without sets and pushes.
fn read_reply(reader: &mut impl BufRead) -> Vec<u8> {
    let mut reply = Vec::new();
    assert_ne!(reader.read_until(b'\n', &mut reply).unwrap(), 0, "the server has closed the connection");
    let count = std::str::from_utf8(&reply[1..]).ok().and_then(|text| text.trim_end().parse::<i64>().ok());
    match (reply[0], count) {
        (b'$', Some(bytes @ 0..)) => {
            let start = reply.len();
            reply.resize(start + bytes as usize + 2, 0);
            reader.read_exact(&mut reply[start..]).unwrap();
        }
        (kind @ (b'*' | b'%'), Some(elements @ 0..)) => {
            for _ in 0..elements * if kind == b'%' { 2 } else { 1 } {
                reply.extend(read_reply(reader));
            }
        }
        _ => {}
    }
    reply
}

/// Whether two replies to a command are the same. Times to live may differ a little.
pub fn agree(name: &str, ours: &[u8], theirs: &[u8]) -> bool {
    let number = |reply: &[u8]| std::str::from_utf8(&reply[1..]).unwrap().trim_end().parse::<i64>().ok();
    match (name, number(ours), number(theirs)) {
        ("TTL", Some(a @ 1..), Some(b @ 1..)) => (a - b).abs() < 60,
        ("PTTL", Some(a @ 1..), Some(b @ 1..)) => (a - b).abs() < 60_000,
        _ => ours == theirs,
    }
}

pub struct Client {
    pub socket: TcpStream,
}

impl Client {
    pub fn new(addr: SocketAddr) -> Self {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { socket }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Reads exactly the expected bytes.
    pub fn expect(&mut self, expected: &[u8]) {
        let mut got = vec![0; expected.len()];
        let mut n = 0;
        while n < got.len() {
            match self.socket.read(&mut got[n..]) {
                Ok(0) => panic!("closed after {:?}", String::from_utf8_lossy(&got[..n])),
                Ok(k) => n += k,
                Err(e) => panic!("{e} after {n} of {}: {:?}", got.len(), String::from_utf8_lossy(&got[..n])),
            }
        }
        if got != expected {
            let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap();
            let part = |b: &[u8]| {
                String::from_utf8_lossy(&b[at.saturating_sub(30)..b.len().min(at + 60)]).into_owned()
            };
            panic!("differs at {at} of {}: got {:?}, expected {:?}", got.len(), part(&got), part(expected));
        }
    }

    /// One request and its reply.
    pub fn ask(&mut self, line: &str, reply: &str) {
        self.send(&words(line));
        self.expect(format!("{reply}\r\n").as_bytes());
    }

    /// Chooses a version of the protocol.
    pub fn hello(&mut self, version: u32) {
        self.send(&words(&format!("HELLO {version}")));
        self.until("modules\r\n*0\r\n");
    }

    /// Reads until the bytes that were read end with `end`.
    pub fn until(&mut self, end: &str) -> String {
        let mut all = Vec::new();
        let mut part = [0; 4096];
        while !all.ends_with(end.as_bytes()) {
            match self.socket.read(&mut part) {
                Ok(n @ 1..) => all.extend(&part[..n]),
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&all)),
            }
        }
        String::from_utf8(all).unwrap()
    }

    /// Reads `n` lines, one byte at a time, so that it takes nothing of the next line.
    pub fn lines(&mut self, n: usize) -> Vec<String> {
        let mut line = |_| {
            let mut line = Vec::new();
            let mut byte = [0];
            while !line.ends_with(b"\r\n") {
                self.socket.read_exact(&mut byte).unwrap();
                line.push(byte[0]);
            }
            String::from_utf8_lossy(&line).trim_end().to_owned()
        };
        (0..n).map(&mut line).collect()
    }

    /// Reads `n` replies, which must be all that the server sends.
    pub fn replies(&mut self, n: usize) -> Vec<Vec<u8>> {
        let mut reader = BufReader::with_capacity(64 << 10, &self.socket);
        let replies = (0..n).map(|_| read_reply(&mut reader)).collect();
        assert!(reader.buffer().is_empty(), "more than {n} replies");
        replies
    }

    /// Reads `n` lines; `None` if the server closes the connection before.
    pub fn try_lines(&mut self, n: usize) -> Option<Vec<String>> {
        let mut lines = Vec::new();
        while lines.len() < n {
            let (mut line, mut byte) = (Vec::new(), [0]);
            while !line.ends_with(b"\r\n") {
                self.socket.read_exact(&mut byte).ok()?;
                line.push(byte[0]);
            }
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        Some(lines)
    }

    /// Reads `n` lines, which must be all that the server sends.
    pub fn many_lines(&mut self, n: usize) -> Vec<String> {
        let mut lines = Vec::with_capacity(n);
        let mut reader = BufReader::with_capacity(64 << 10, &self.socket);
        while lines.len() < n {
            let mut line = String::new();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "closed after {} lines", lines.len());
            lines.push(line.trim_end().to_owned());
        }
        assert!(reader.buffer().is_empty(), "more than {n} lines");
        lines
    }

    /// Reads until the server closes the connection. A read that waits when the server closes may fail once with `EAGAIN`
    /// (docs/kerneldb.md), and so does a read that has waited for [`PATIENCE`].
    #[track_caller]
    pub fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let start = Instant::now();
            match self.socket.read_to_end(&mut all) {
                Ok(_) => return all,
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return all,
                Err(e) if e.kind() == ErrorKind::WouldBlock && start.elapsed() < PATIENCE / 2 => {}
                Err(e) => panic!("{e:?} after {:?}", String::from_utf8_lossy(&all)),
            }
        }
    }
}
