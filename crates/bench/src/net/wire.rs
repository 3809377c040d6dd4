//! Requests and replies on one connection. Every reply is compared with the one request that it must
//! answer, so that a lost, duplicate, misordered or foreign reply is noticed. The comparison is
//! cheap, so that the generator uses little CPU time next to the server.
//!
//! [`Traffic`] says what a workload sends and expects; [`Stream`] has the bytes of one connection. [`Keys`] is the traffic of
//! GET and SET.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;

use crate::keys::KeyStream;
use crate::{Error, Result};

/// The requests of a workload, and the check of their replies. Each value belongs to one thread of the load generator, whose
/// connections take their requests from it in turns.
pub trait Traffic: Send {
    /// The properties of a request that the check of its reply needs.
    type Request: Copy + Send;
    /// Whether a run ends only when every request has its reply, so that the traffic can count what the server did.
    const ANSWERS_ALL: bool;

    /// Prepares a new connection, before the first request. By default, there is nothing to do.
    ///
    /// # Errors
    ///
    /// The server does not answer, or not as it should.
    fn greet(&self, _socket: &mut TcpStream) -> io::Result<()> {
        Ok(())
    }

    /// Appends the next request to `out`.
    fn request(&mut self, out: &mut Vec<u8>) -> Self::Request;

    /// Checks the reply at the beginning of `received`, which is not empty, and returns its length; `None` if more bytes are
    /// needed.
    ///
    /// # Errors
    ///
    /// The bytes are no reply to that request.
    fn reply(&mut self, request: Self::Request, received: &[u8]) -> Result<Option<(usize, Reply)>>;
}

/// GETs and SETs of the keys of a stream.
pub struct Keys {
    /// The bytes of the requests and replies.
    pub wire: Wire,
    /// The keys.
    pub stream: KeyStream,
    /// Share of SETs in 100 requests.
    pub set_percent: u32,
}

impl Traffic for Keys {
    type Request = KeyRequest;
    const ANSWERS_ALL: bool = false;

    fn request(&mut self, out: &mut Vec<u8>) -> KeyRequest {
        let set = self.stream.chance(self.set_percent);
        let key = self.stream.next_key();
        self.wire.append(out, key, set)
    }

    fn reply(&mut self, request: KeyRequest, received: &[u8]) -> Result<Option<(usize, Reply)>> {
        self.wire.check(request, received)
    }
}

/// Length of every key: `key:` and twelve digits.
pub const KEY_LEN: usize = 16;
const DIGITS: usize = 12;
/// Shortest value: it begins with the digits of its key.
pub const VALUE_MIN: usize = DIGITS;

/// The bytes of all requests and replies for one value length.
#[derive(Clone, Debug)]
pub struct Wire {
    get: Vec<u8>,
    set: Vec<u8>,
    set_value: usize,
    value_header: Vec<u8>,
    value_len: usize,
}

const GET_KEY: usize = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:".len();
const OK: &[u8] = b"+OK\r\n";

impl Wire {
    /// For values of `value_len` bytes, at least [`VALUE_MIN`].
    pub fn new(value_len: usize) -> Self {
        assert!(value_len >= VALUE_MIN, "a value carries the digits of its key");
        let get = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n".to_vec();
        let mut set = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n".to_vec();
        set.extend_from_slice(format!("${value_len}\r\n").as_bytes());
        let set_value = set.len();
        set.resize(set_value + value_len, b'x');
        set.extend_from_slice(b"\r\n");
        Wire { get, set, set_value, value_header: format!("${value_len}\r\n").into_bytes(), value_len }
    }

    /// Appends a request for a key.
    pub(super) fn append(&self, out: &mut Vec<u8>, key: u64, set: bool) -> KeyRequest {
        if set {
            self.append_set(out, key);
        } else {
            self.append_get(out, key);
        }
        KeyRequest { key, set }
    }

    /// See [`Traffic::reply`].
    pub(super) fn check(&self, request: KeyRequest, rest: &[u8]) -> Result<Option<(usize, Reply)>> {
        if rest[0] == b'-' {
            return Ok(error_reply(rest));
        }
        if request.set {
            return Ok(complete(rest, OK)?.then_some((OK.len(), Reply::Right)));
        }
        let header = self.value_header.len();
        if !complete(rest, &self.value_header)? || rest.len() < header + self.value_len + 2 {
            return Ok(None);
        }
        if rest[header..header + DIGITS] != digits(request.key) {
            return Err(wrong(rest, "another key's value"));
        }
        if rest[header + self.value_len..][..2] != *b"\r\n" {
            return Err(wrong(rest, "a value of another length"));
        }
        Ok(Some((header + self.value_len + 2, Reply::Right)))
    }

    fn append_get(&self, out: &mut Vec<u8>, key: u64) {
        let start = out.len();
        out.extend_from_slice(&self.get);
        out[start + GET_KEY..][..DIGITS].copy_from_slice(&digits(key));
    }

    fn append_set(&self, out: &mut Vec<u8>, key: u64) {
        let start = out.len();
        out.extend_from_slice(&self.set);
        let digits = digits(key);
        out[start + GET_KEY..][..DIGITS].copy_from_slice(&digits);
        out[start + self.set_value..][..DIGITS].copy_from_slice(&digits);
    }
}

/// Twelve decimal digits of a key number.
pub(super) fn digits(mut key: u64) -> [u8; DIGITS] {
    let mut digits = [b'0'; DIGITS];
    for d in digits.iter_mut().rev() {
        *d = b'0' + (key % 10) as u8;
        key /= 10;
    }
    digits
}

/// A GET or SET of a key.
#[derive(Clone, Copy, Debug)]
pub struct KeyRequest {
    pub(super) key: u64,
    pub(super) set: bool,
}

/// A request whose reply has not come yet.
#[derive(Clone, Copy, Debug)]
struct Pending<R> {
    request: R,
    /// Time at which it was sent or due, in nanoseconds of the generator's clock.
    since_ns: u64,
}

/// Result of a reply's check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The right answer.
    Right,
    /// An error reply: the server did not do it.
    Refused,
}

/// The two directions of one connection, with requests of type `R`.
#[derive(Debug)]
pub struct Stream<R> {
    /// Requests that are still to be sent are `out[sent..]`.
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    parsed: usize,
    pending: VecDeque<Pending<R>>,
}

impl<R> Default for Stream<R> {
    fn default() -> Self {
        Stream { out: Vec::new(), sent: 0, input: Vec::new(), parsed: 0, pending: VecDeque::new() }
    }
}

impl Stream<KeyRequest> {
    /// Appends a request for a key to the unsent bytes.
    pub fn request(&mut self, wire: &Wire, key: u64, set: bool, since_ns: u64) {
        self.append(since_ns, |out| wire.append(out, key, set));
    }

    /// The next complete reply to such a request; [`Stream::checked`].
    pub fn reply(&mut self, wire: &Wire) -> Result<Option<(Reply, u64)>> {
        self.checked(|request, received| wire.check(request, received))
    }
}

impl<R: Copy> Stream<R> {
    /// Appends a request to the unsent bytes, as `write` writes it.
    pub fn append(&mut self, since_ns: u64, write: impl FnOnce(&mut Vec<u8>) -> R) {
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        let request = write(&mut self.out);
        self.pending.push_back(Pending { request, since_ns });
    }

    /// Bytes that are to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// `n` bytes of [`Stream::unsent`] were sent.
    pub fn was_sent(&mut self, n: usize) {
        self.sent += n;
    }

    /// Requests without a reply.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Adds received bytes, in any fragmentation.
    pub fn received(&mut self, bytes: &[u8]) {
        if self.parsed == self.input.len() {
            self.input.clear();
            self.parsed = 0;
        } else if self.parsed > 1 << 16 {
            self.input.drain(..self.parsed);
            self.parsed = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// The next complete reply and the time at which its request was sent or due; `None` if more bytes
    /// are needed. `check` is as [`Traffic::reply`].
    pub fn checked(
        &mut self,
        check: impl FnOnce(R, &[u8]) -> Result<Option<(usize, Reply)>>,
    ) -> Result<Option<(Reply, u64)>> {
        let rest = &self.input[self.parsed..];
        if rest.is_empty() {
            return Ok(None);
        }
        let Some(Pending { request, since_ns }) = self.pending.front().copied() else {
            return Err(wrong(rest, "a reply without a request"));
        };
        let Some((used, reply)) = check(request, rest)? else { return Ok(None) };
        self.parsed += used;
        self.pending.pop_front();
        Ok(Some((reply, since_ns)))
    }
}

/// An error reply at the beginning of `rest`, if it is complete.
pub fn error_reply(rest: &[u8]) -> Option<(usize, Reply)> {
    let end = rest.windows(2).position(|w| w == b"\r\n")?;
    Some((end + 2, Reply::Refused))
}

/// Whether `rest` begins with all of `expected`; an error if more bytes cannot make it so.
fn complete(rest: &[u8], expected: &[u8]) -> Result<bool> {
    let n = rest.len().min(expected.len());
    if rest[..n] != expected[..n] {
        return Err(wrong(rest, "an unexpected reply"));
    }
    Ok(n == expected.len())
}

/// The error about received bytes that are no right reply.
pub fn wrong(rest: &[u8], problem: &str) -> Error {
    let shown = String::from_utf8_lossy(&rest[..rest.len().min(60)]).into_owned();
    Error::Protocol { server: "the server".to_owned(), problem: format!("{problem}: {shown:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_resp() {
        let wire = Wire::new(16);
        let mut s = Stream::default();
        s.request(&wire, 42, false, 0);
        s.request(&wire, 999_999_999_999, true, 0);
        let expected: &[u8] = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n\
            *3\r\n$3\r\nSET\r\n$16\r\nkey:999999999999\r\n$16\r\n999999999999xxxx\r\n";
        assert_eq!(s.unsent(), expected);
        s.was_sent(expected.len());
        assert!(s.unsent().is_empty() && s.pending() == 2);
    }

    fn expect_error(reply: &[u8], part: &str) {
        let wire = Wire::new(16);
        let mut s = Stream::default();
        s.request(&wire, 7, false, 0);
        s.received(reply);
        let e = s.reply(&wire).unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    }

    #[test]
    fn wrong_replies_are_noticed() {
        expect_error(b"$16\r\n000000000008xxxx\r\n", "another key's value");
        expect_error(b"$15\r\n000000000007xxx\r\n", "unexpected");
        expect_error(b"$-1\r\n", "unexpected");
        expect_error(b"+OK\r\n", "unexpected");
        expect_error(b"$16\r\n000000000007xxxxyy", "another length");
        let wire = Wire::new(16);
        let mut s = Stream::default();
        s.received(b"+OK\r\n");
        assert!(s.reply(&wire).is_err(), "nothing was asked");
    }

    #[test]
    fn an_error_reply_answers_one_request() {
        let wire = Wire::new(16);
        let mut s = Stream::default();
        s.request(&wire, 7, true, 5);
        s.request(&wire, 8, true, 6);
        s.received(b"-ERR busy\r\n+OK\r\n");
        assert_eq!(s.reply(&wire).unwrap(), Some((Reply::Refused, 5)));
        assert_eq!(s.reply(&wire).unwrap(), Some((Reply::Right, 6)));
        assert_eq!(s.reply(&wire).unwrap(), None);
    }

    proptest! {
        #[test]
        fn arbitrary_replies_break_nothing(
            replies in prop::collection::vec(prop_oneof![
                Just(b"+OK\r\n".to_vec()),
                Just(b"$16\r\n000000000007xxxx\r\n".to_vec()),
                Just(b"-ERR\r\n".to_vec()),
                prop::collection::vec(any::<u8>(), 0..9),
            ], 0..12),
            portion in 1usize..40,
        ) {
            let wire = Wire::new(16);
            let mut s = Stream::default();
            (0..8).for_each(|i| s.request(&wire, 7, i % 2 == 0, i));
            let mut answered = 0;
            'all: for bytes in replies.concat().chunks(portion) {
                s.received(bytes);
                loop {
                    match s.reply(&wire) {
                        Ok(Some((_, since))) => {
                            prop_assert_eq!(since, answered);
                            answered += 1;
                        }
                        Ok(None) => break,
                        Err(_) => break 'all,
                    }
                }
            }
            prop_assert_eq!(s.pending() as u64, 8 - answered);
        }

        #[test]
        fn replies_are_recognised_in_any_fragmentation(
            ops in prop::collection::vec((0u64..1000, any::<bool>()), 1..20),
            cuts in prop::collection::vec(1usize..40, 1..50),
            long in any::<bool>(),
        ) {
            let len = if long { 1024 } else { 16 };
            let wire = Wire::new(len);
            let mut s = Stream::default();
            let mut answer = Vec::new();
            for (i, (key, set)) in ops.iter().enumerate() {
                s.request(&wire, *key, *set, i as u64);
                if *set {
                    answer.extend_from_slice(OK);
                } else {
                    let mut value = digits(*key).to_vec();
                    value.resize(len, b'v');
                    answer.extend_from_slice(format!("${len}\r\n").as_bytes());
                    answer.extend_from_slice(&value);
                    answer.extend_from_slice(b"\r\n");
                }
            }
            let mut got = Vec::new();
            let mut rest = &answer[..];
            for cut in cuts.iter().cycle() {
                let n = (*cut).min(rest.len());
                s.received(&rest[..n]);
                rest = &rest[n..];
                while let Some((reply, since)) = s.reply(&wire).unwrap() {
                    prop_assert_eq!(reply, Reply::Right);
                    got.push(since);
                }
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(got, (0..ops.len() as u64).collect::<Vec<_>>());
            prop_assert_eq!(s.pending(), 0);
        }
    }
}
