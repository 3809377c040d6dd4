//! Random pipelines of every kind of command, and the replies that they must have.

use std::collections::HashMap;

use super::{Random, bulk, request, words};

/// Requests that one client sends, and all of their replies in order.
pub struct Pipeline {
    pub requests: Vec<u8>,
    pub replies: Vec<u8>,
    /// Bytes of requests, and of the replies to them, at ends of requests.
    pub marks: Vec<(usize, usize)>,
}

/// The state of one client's keys, which no other client uses.
struct Model {
    random: Random,
    prefix: String,
    values: HashMap<usize, Vec<u8>>,
    numbers: HashMap<usize, i64>,
}

/// Kinds of commands, and how many of them the kernel answers. The last one is an error.
const KINDS: usize = 10;
const KERNEL_KINDS: usize = 8;
const KEYS: usize = 50;
const LENGTHS: [usize; 7] = [0, 1, 16, 200, 900, 2500, 9000];

/// A pipeline of at least `bytes` bytes of requests on keys that begin with `prefix`.
pub fn pipeline(seed: u64, prefix: &str, bytes: usize) -> Pipeline {
    let mut model = Model {
        random: Random(seed),
        prefix: prefix.into(),
        values: HashMap::new(),
        numbers: HashMap::new(),
    };
    let (mut requests, mut replies, mut marks) = (Vec::new(), Vec::new(), Vec::new());
    while requests.len() < bytes {
        match model.random.below(20) {
            0 => model.queued_transaction(&mut requests, &mut replies),
            1 => model.transaction(&mut requests, &mut replies),
            // The kernel answers a run of these alone, so that the turn goes back and forth.
            2..=9 => {
                for _ in 0..model.random.below(60) {
                    let kind = model.random.below(KERNEL_KINDS);
                    model.command(kind, &mut requests, &mut replies);
                }
            }
            _ => {
                let kind = model.random.below(KINDS);
                model.command(kind, &mut requests, &mut replies);
            }
        }
        marks.push((requests.len(), replies.len()));
    }
    Pipeline { requests, replies, marks }
}

impl Model {
    fn value(&mut self) -> Vec<u8> {
        let length = LENGTHS[self.random.below(LENGTHS.len())];
        vec![b'a' + self.random.below(26) as u8; length]
    }

    /// One command outside of MULTI. The kernel answers the first [`KERNEL_KINDS`] kinds.
    fn command(&mut self, kind: usize, requests: &mut Vec<u8>, replies: &mut Vec<u8>) {
        let at = self.random.below(KEYS);
        let key = format!("{}:{at}", self.prefix);
        let reply = match kind {
            0 => {
                let value = self.value();
                requests.extend(request(&[b"SET", key.as_bytes(), &value]));
                self.values.insert(at, value);
                b"+OK\r\n".to_vec()
            }
            1 => {
                requests.extend(words(&format!("GET {key}")));
                self.values.get(&at).map_or(b"$-1\r\n".to_vec(), |value| bulk(value))
            }
            2 => {
                requests.extend(words(&format!("DEL {key}")));
                format!(":{}\r\n", u8::from(self.values.remove(&at).is_some())).into_bytes()
            }
            3 => {
                requests.extend(words("PING"));
                b"+PONG\r\n".to_vec()
            }
            4 => {
                let value = self.value();
                requests.extend(request(&[b"SETEX", key.as_bytes(), b"10000", &value]));
                self.values.insert(at, value);
                b"+OK\r\n".to_vec()
            }
            5 => {
                requests.extend(words(&format!("INCR {}n:{at}", self.prefix)));
                let number = self.numbers.entry(at).or_default();
                *number += 1;
                format!(":{number}\r\n").into_bytes()
            }
            6 => {
                requests.extend(format!("GET {key}\r\n").bytes());
                self.values.get(&at).map_or(b"$-1\r\n".to_vec(), |value| bulk(value))
            }
            7 => {
                requests.extend(words(&format!("STRLEN {key}")));
                format!(":{}\r\n", self.values.get(&at).map_or(0, Vec::len)).into_bytes()
            }
            8 => {
                requests.extend(request(&[b"APPEND", key.as_bytes(), b"tail"]));
                let value = self.values.entry(at).or_default();
                value.extend(b"tail");
                format!(":{}\r\n", value.len()).into_bytes()
            }
            _ => {
                requests.extend(words("NOSUCH a"));
                b"-ERR unknown command 'NOSUCH', with args beginning with: 'a' \r\n".to_vec()
            }
        };
        replies.extend(reply);
    }

    /// MULTI, some commands, EXEC or DISCARD.
    fn queued_transaction(&mut self, requests: &mut Vec<u8>, replies: &mut Vec<u8>) {
        requests.extend(words("MULTI"));
        replies.extend(b"+OK\r\n");
        let discard = self.random.below(4) == 0;
        let before = (self.values.clone(), self.numbers.clone());
        let count = self.random.below(12);
        // Half of them have only commands that the kernel queues.
        let kinds = if self.random.below(2) == 0 { KERNEL_KINDS } else { KINDS - 1 };
        let mut results = Vec::new();
        for _ in 0..count {
            let kind = self.random.below(kinds);
            self.command(kind, requests, &mut results);
            replies.extend(b"+QUEUED\r\n");
        }
        if discard {
            requests.extend(words("DISCARD"));
            replies.extend(b"+OK\r\n");
            (self.values, self.numbers) = before;
        } else {
            requests.extend(words("EXEC"));
            replies.extend(format!("*{count}\r\n").bytes());
            replies.extend(results);
        }
    }

    /// BEGIN, some commands, COMMIT or ROLLBACK.
    fn transaction(&mut self, requests: &mut Vec<u8>, replies: &mut Vec<u8>) {
        requests.extend(words("BEGIN"));
        replies.extend(b"+OK\r\n");
        let before = (self.values.clone(), self.numbers.clone());
        let kinds = if self.random.below(2) == 0 { KERNEL_KINDS } else { KINDS };
        for _ in 0..self.random.below(8) {
            let kind = self.random.below(kinds);
            self.command(kind, requests, replies);
        }
        if self.random.below(4) == 0 {
            requests.extend(words("ROLLBACK"));
            (self.values, self.numbers) = before;
        } else {
            requests.extend(words("COMMIT"));
        }
        replies.extend(b"+OK\r\n");
    }
}
