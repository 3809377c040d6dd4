//! Incremental parser of requests.
//!
//! Invariants: `start <= pos <= seen` while the parser searches for a line end. `start` is the first byte of the
//! request being parsed and spans are relative to it, so that the buffer can be compacted at any time.
//! The parser examines no byte twice, even if the portions are small. The search for a line end continues at
//! `seen`, and bulk strings are skipped by their length. Bulk strings longer than
//! [`Limits::keep_bytes`] are not stored, because no command accepts them. The request is still parsed
//! to its end, so that the connection stays in step.

use super::args::{Args, Span};
use super::inline::split_args;
use super::number::parse_i64;
use crate::limits::{
    BULK_BYTES_MAX, KEPT_BULK_BYTES_MAX, LINE_BYTES_MAX, REQUEST_ARGUMENTS_MAX,
    UNAUTHENTICATED_ARGUMENTS_MAX, UNAUTHENTICATED_BULK_BYTES_MAX,
};

/// A buffer that grew beyond this is given back once it is empty.
const KEEP_CAPACITY: usize = 64 * 1024;

/// The limits on a client's requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most arguments of one request.
    pub args: i64,
    /// Longest bulk string in bytes; a longer one is a protocol error.
    pub bulk_bytes: i64,
    /// Longest bulk string whose bytes are kept.
    pub keep_bytes: usize,
    /// The client is not authenticated: [`UNAUTHENTICATED_ARGUMENTS_MAX`] and [`UNAUTHENTICATED_BULK_BYTES_MAX`] hold,
    /// as in Redis.
    pub unauthenticated: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            args: REQUEST_ARGUMENTS_MAX,
            bulk_bytes: BULK_BYTES_MAX,
            keep_bytes: KEPT_BULK_BYTES_MAX,
            unauthenticated: false,
        }
    }
}

/// The reason why the rest of the input cannot be parsed. The connection has to be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*` was not followed by a length within the limit.
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// More than [`UNAUTHENTICATED_ARGUMENTS_MAX`] arguments before authentication.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulk,
    /// `$` was not followed by a length within the limit.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument longer than [`UNAUTHENTICATED_BULK_BYTES_MAX`] before authentication.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulk,
    /// An element of the request's array is not a bulk string.
    #[error("Protocol error: expected '$', got '{}'", printable(*.0))]
    ExpectedBulk(u8),
    /// An inline command's quotes do not match.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// An inline command without an end.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// A `*` header without an end.
    #[error("Protocol error: too big mbulk count string")]
    MultibulkHeaderTooBig,
    /// A `$` header without an end.
    #[error("Protocol error: too big bulk count string")]
    BulkHeaderTooBig,
}

/// Line ends would break the error reply itself.
fn printable(byte: u8) -> char {
    if byte == b'\r' || byte == b'\n' { ' ' } else { byte as char }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Between requests.
    Idle,
    /// `left` bulk strings are missing; the next header is at `pos`.
    Header { left: usize },
    /// `left` bulk strings are missing; the first has `len` bytes that start at `pos`.
    Body { left: usize, len: usize },
    /// Like `Body`, but `bytes` more bytes (line end included) are dropped as they arrive.
    Drop { left: usize, bytes: usize },
    /// A request is complete; `inline` says where its arguments are.
    Ready { inline: bool },
    /// The state after a protocol error.
    Broken,
}

/// Splits a byte stream into requests.
#[derive(Debug)]
pub struct RequestParser {
    limits: Limits,
    buf: Vec<u8>,
    start: usize,
    pos: usize,
    seen: usize,
    state: State,
    spans: Vec<Span>,
    /// Unquoted words of an inline command.
    words: Vec<u8>,
}

impl RequestParser {
    /// A parser without input.
    pub fn new(limits: Limits) -> Self {
        RequestParser {
            limits,
            buf: Vec::new(),
            start: 0,
            pos: 0,
            seen: 0,
            state: State::Idle,
            spans: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Changes the limits for bytes that are parsed from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Appends received bytes.
    pub fn feed(&mut self, mut data: &[u8]) {
        match &mut self.state {
            State::Broken => return,
            State::Drop { left, bytes } => {
                let n = data.len().min(*bytes);
                data = &data[n..];
                *bytes -= n;
                if *bytes == 0 {
                    self.state = State::Header { left: *left - 1 };
                }
            }
            _ => {}
        }
        self.compact();
        self.buf.extend_from_slice(data);
    }

    /// Bytes that arrived and do not belong to a request that was consumed.
    pub fn buffered(&self) -> usize {
        self.buf.len() - self.start
    }

    /// Whether no request, not even a part of one, is waiting.
    pub fn is_empty(&self) -> bool {
        matches!(self.state, State::Idle) && self.buffered() == 0
    }

    /// All bytes that do not belong to a request that was consumed; `None` if some of them were dropped, or after an error.
    pub fn unconsumed(&self) -> Option<&[u8]> {
        let is_whole = !matches!(self.state, State::Broken) && self.spans.iter().all(|span| span.kept);
        is_whole.then(|| &self.buf[self.start..])
    }

    /// Continues to parse. Returns true if a request is complete ([`RequestParser::args`]), until
    /// [`RequestParser::consume`] is called. Requests without any argument are skipped.
    pub fn poll(&mut self) -> Result<bool, ProtocolError> {
        let parsed = self.advance();
        if parsed.is_err() {
            self.state = State::Broken;
            self.buf = Vec::new();
            (self.start, self.pos, self.seen) = (0, 0, 0);
        }
        parsed
    }

    /// The complete request's arguments.
    ///
    /// # Panics
    /// If the last [`RequestParser::poll`] did not return true, or the request was consumed.
    pub fn args(&self) -> Args<'_> {
        match self.state {
            State::Ready { inline: true } => Args::new(&self.words, &self.spans),
            State::Ready { inline: false } => Args::new(&self.buf[self.start..], &self.spans),
            _ => panic!("no complete request"),
        }
    }

    /// Drops the complete request; parsing continues behind it.
    pub fn consume(&mut self) {
        debug_assert!(matches!(self.state, State::Ready { .. }));
        self.next_request();
    }

    fn next_request(&mut self) {
        self.start = self.pos;
        self.seen = self.pos;
        self.spans.clear();
        self.words.clear();
        self.state = State::Idle;
        if self.start == self.buf.len() {
            self.compact();
        }
    }

    /// Frees the front of the buffer, if that moves fewer bytes than it frees.
    fn compact(&mut self) {
        if self.start == 0 || self.start < self.buf.len() / 2 {
            return;
        }
        self.buf.drain(..self.start);
        self.pos -= self.start;
        self.seen = self.seen.saturating_sub(self.start);
        self.start = 0;
        if self.buf.is_empty() {
            self.buf.shrink_to(KEEP_CAPACITY);
            self.spans.shrink_to(1024);
            self.words.shrink_to(KEEP_CAPACITY);
        }
    }

    fn advance(&mut self) -> Result<bool, ProtocolError> {
        loop {
            match self.state {
                State::Ready { .. } => return Ok(true),
                State::Broken | State::Drop { .. } => return Ok(false),
                State::Header { left: 0 } => self.state = State::Ready { inline: false },
                State::Idle => {
                    let more = match self.buf.get(self.pos) {
                        None => return Ok(false),
                        Some(b'*') => self.array_header()?,
                        Some(_) => self.inline()?,
                    };
                    if !more {
                        return Ok(false);
                    }
                }
                State::Header { left } => {
                    if !self.bulk_header(left)? {
                        return Ok(false);
                    }
                }
                State::Body { left, len } => {
                    if self.buf.len() - self.pos < len + 2 {
                        return Ok(false);
                    }
                    self.spans.push(Span { start: self.pos - self.start, len, kept: true });
                    // Like Redis, takes the two bytes behind the string as its line end without a check.
                    self.pos += len + 2;
                    self.seen = self.pos;
                    self.state = State::Header { left: left - 1 };
                }
            }
        }
    }

    /// Searches for `byte` from the end of the last search; records the end of this one.
    fn find(&mut self, byte: u8) -> Option<usize> {
        let from = self.seen.max(self.pos);
        match self.buf[from..].iter().position(|b| *b == byte) {
            Some(i) => {
                self.seen = from + i;
                Some(from + i)
            }
            None => {
                self.seen = self.buf.len();
                None
            }
        }
    }

    /// The number of the header at `pos` (behind its first byte), once its line is complete; moves behind it.
    fn header(&mut self, too_big: ProtocolError) -> Result<Option<Option<i64>>, ProtocolError> {
        let Some(end) = self.find(b'\r') else {
            return if self.buf.len() - self.pos > LINE_BYTES_MAX { Err(too_big) } else { Ok(None) };
        };
        if end + 1 >= self.buf.len() {
            return Ok(None);
        }
        let number = parse_i64(self.buf.get(self.pos + 1..end).unwrap_or_default());
        Ok(Some(number))
    }

    fn after_line(&mut self) {
        self.pos = self.seen + 2;
        self.seen = self.pos;
    }

    fn array_header(&mut self) -> Result<bool, ProtocolError> {
        let Some(number) = self.header(ProtocolError::MultibulkHeaderTooBig)? else { return Ok(false) };
        let count = number.filter(|n| *n <= self.limits.args).ok_or(ProtocolError::MultibulkLength)?;
        if count > UNAUTHENTICATED_ARGUMENTS_MAX && self.limits.unauthenticated {
            return Err(ProtocolError::UnauthenticatedMultibulk);
        }
        self.after_line();
        if count <= 0 {
            self.next_request();
        } else {
            self.state = State::Header { left: count as usize };
        }
        Ok(true)
    }

    fn bulk_header(&mut self, left: usize) -> Result<bool, ProtocolError> {
        let number = self.header(ProtocolError::BulkHeaderTooBig)?;
        let Some(number) = number else { return Ok(false) };
        if self.buf[self.pos] != b'$' {
            return Err(ProtocolError::ExpectedBulk(self.buf[self.pos]));
        }
        let limit = self.limits.bulk_bytes;
        let len = number.filter(|n| (0..=limit).contains(n)).ok_or(ProtocolError::BulkLength)? as usize;
        if len > UNAUTHENTICATED_BULK_BYTES_MAX && self.limits.unauthenticated {
            return Err(ProtocolError::UnauthenticatedBulk);
        }
        self.after_line();
        if len <= self.limits.keep_bytes {
            self.state = State::Body { left, len };
            return Ok(true);
        }
        self.spans.push(Span { start: 0, len, kept: false });
        let here = self.buf.len() - self.pos;
        if here >= len + 2 {
            self.pos += len + 2;
            self.seen = self.pos;
            self.state = State::Header { left: left - 1 };
        } else {
            self.buf.truncate(self.pos);
            self.state = State::Drop { left, bytes: len + 2 - here };
        }
        Ok(true)
    }

    fn inline(&mut self) -> Result<bool, ProtocolError> {
        let Some(end) = self.find(b'\n') else {
            let long = self.buf.len() - self.pos > LINE_BYTES_MAX;
            return if long { Err(ProtocolError::InlineTooBig) } else { Ok(false) };
        };
        let line = &self.buf[self.pos..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let words = split_args(line).ok_or(ProtocolError::Quotes)?;
        self.pos = end + 1;
        if words.is_empty() {
            self.next_request();
            return Ok(true);
        }
        for word in words {
            let kept = word.len() <= self.limits.keep_bytes;
            self.spans.push(Span { start: self.words.len(), len: word.len(), kept });
            if kept {
                self.words.extend_from_slice(&word);
            }
        }
        self.state = State::Ready { inline: true };
        Ok(true)
    }
}
