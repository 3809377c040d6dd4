//! A client of a real Redis, or of any server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

impl RedisClient {
    /// Connects to any server, which may still be starting.
    pub fn connect(addr: SocketAddr) -> RedisClient {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpStream::connect(addr) {
                Ok(stream) => {
                    stream.set_nodelay(true).unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    return RedisClient { stream, buffer: Vec::new() };
                }
                Err(error) if Instant::now() > deadline => panic!("{addr} does not answer: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

pub struct RedisClient {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl RedisClient {
    /// Sends raw bytes that are not answered.
    pub fn send(&mut self, request: &[u8]) {
        self.stream.write_all(request).unwrap();
    }

    /// Reads everything until the connection is closed.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.buffer);
        // A reset after the close is an end as well.
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }

    /// Sends raw bytes and returns one reply, or the bytes that came before the connection was closed.
    pub fn call(&mut self, request: &[u8]) -> Vec<u8> {
        self.stream.write_all(request).unwrap();
        let mut chunk = [0; 65536];
        loop {
            if let Some(len) = reply_len(&self.buffer) {
                return self.buffer.drain(..len).collect();
            }
            match self.stream.read(&mut chunk).unwrap() {
                0 => return std::mem::take(&mut self.buffer),
                n => self.buffer.extend_from_slice(&chunk[..n]),
            }
        }
    }
}

/// Length of the first complete reply.
pub fn reply_len(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|w| w == b"\r\n")?;
    let number = || std::str::from_utf8(&bytes[1..line]).unwrap().parse::<i64>().unwrap();
    let end = line + 2;
    match bytes[0] {
        b'$' | b'=' if number() >= 0 => Some(end + number() as usize + 2).filter(|len| *len <= bytes.len()),
        kind @ (b'*' | b'%' | b'~' | b'>') => {
            let values = number().max(0) * if kind == b'%' { 2 } else { 1 };
            (0..values).try_fold(end, |at, _| Some(at + reply_len(&bytes[at..])?))
        }
        _ => Some(end),
    }
}
