//! Replies in RESP2 and RESP3.

/// Version of the protocol a connection speaks; chosen by HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The version that every client speaks.
    #[default]
    Resp2,
    /// The version with maps, sets, doubles, booleans, null and push messages.
    Resp3,
}

impl Protocol {
    /// Its number in HELLO.
    pub fn version(self) -> i64 {
        match self {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
    }
}

/// Appends replies to a buffer. Types that RESP2 lacks become the RESP2 types that Redis uses for them.
/// A caller that opens an aggregate must write as many elements as it has announced.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Writer<'a> {
    /// A writer at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Writer { out, protocol }
    }

    /// The protocol spoken.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Speaks another protocol from the next value on.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The bytes behind position `len`.
    pub fn since(&self, len: usize) -> &[u8] {
        &self.out[len..]
    }

    /// Appends replies that were written before.
    pub fn replies(&mut self, replies: &[u8]) {
        self.out.extend_from_slice(replies);
    }

    /// Removes the bytes behind position `len`.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// A writer for the same buffer.
    pub fn reborrow(&mut self) -> Writer<'_> {
        Writer { out: self.out, protocol: self.protocol }
    }

    /// `+text`; the text has no line ends.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.line_end();
    }

    /// `+OK`
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// `-message`; the message starts with its code (`ERR ...`). Line ends become spaces.
    pub fn error(&mut self, message: &[u8]) {
        self.out.push(b'-');
        self.out.extend(message.iter().map(|&c| if c == b'\r' || c == b'\n' { b' ' } else { c }));
        self.line_end();
    }

    /// `:value`
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// A string of any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.line_end();
    }

    /// The bytes, or null.
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// "No such value".
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// "No such array" (an EXEC that did not happen).
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Opens an array of `len` values.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as i64);
    }

    /// Opens a map of `len` pairs; RESP2: an array of keys and values in turn.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(2 * len),
            Protocol::Resp3 => self.header(b'%', len as i64),
        }
    }

    /// Opens a set of `len` values; RESP2: an array.
    pub fn set(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(len),
            Protocol::Resp3 => self.header(b'~', len as i64),
        }
    }

    /// Opens an out-of-band message of `len` values; RESP2: an array.
    pub fn push(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(len),
            Protocol::Resp3 => self.header(b'>', len as i64),
        }
    }

    /// A floating-point number; RESP2: its text.
    pub fn double(&mut self, value: f64) {
        let text = if value.is_nan() {
            "nan".to_owned()
        } else if value.is_infinite() {
            if value > 0.0 { "inf".to_owned() } else { "-inf".to_owned() }
        } else {
            value.to_string()
        };
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.out.push(b',');
                self.out.extend_from_slice(text.as_bytes());
                self.line_end();
            }
        }
    }

    /// A truth value; RESP2: 1 or 0.
    pub fn boolean(&mut self, value: bool) {
        match self.protocol {
            Protocol::Resp2 => self.integer(value.into()),
            Protocol::Resp3 => self.out.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// Text to be shown as it is (`txt`); RESP2: a bulk string.
    pub fn verbatim(&mut self, text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.header(b'=', text.len() as i64 + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text);
                self.line_end();
            }
        }
    }

    fn header(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.line_end();
    }

    fn line_end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}
