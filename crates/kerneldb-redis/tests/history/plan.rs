//! Random transactions: the requests, and the reads and writes that their replies reveal.

use std::time::Duration;

use bedplate_history::{Key, Step, Value};
use redis::Value as Reply;

use super::keys::{Keys, NAME_BYTES, Once, Values, decode, encode, name, named};
use crate::server::{Random, request};

/// The reads and writes of a request.
#[derive(Clone, Debug)]
pub enum Effect {
    /// BEGIN and the like.
    None,
    Get(Key),
    GetMany(Vec<Key>),
    Set(Key, Value),
    /// Writes; the reply is the value before.
    Swap(Key, Value),
    /// Writes if the key is absent.
    SetAbsent(Key, Value),
    /// Writes the last value if the key has the first one.
    CompareAndSet(Key, Value, Value),
    Delete(Key),
    /// Deletes; the reply is the value before.
    GetDelete(Key),
    /// Calls a procedure that writes these keys and replies the names of the values before.
    CallSwap(Vec<(Key, Value)>),
    /// Calls a procedure that writes and then refuses.
    CallRefused(Key, Value),
    /// Calls a procedure that replies the names of values.
    CallRead(Vec<Key>),
}

fn read(key: Key, reply: &Reply) -> Option<Step> {
    match reply {
        Reply::Nil => Some(Step::Read { key, value: None }),
        Reply::BulkString(bytes) => Some(Step::Read { key, value: Some(decode(bytes)) }),
        _ => None,
    }
}

fn write(key: Key, value: Value) -> Step {
    Step::Write { key, value: Some(value) }
}

/// The reads of a reply that consists of a name for each key; absent keys have dashes.
fn read_names(keys: impl ExactSizeIterator<Item = Key>, reply: &Reply) -> Option<Vec<Step>> {
    let Reply::BulkString(names) = reply else { return None };
    if names.len() != NAME_BYTES * keys.len() {
        return None;
    }
    let value = |name: &[u8]| (name != [b'-'; NAME_BYTES]).then(|| named(name));
    let steps = keys.zip(names.chunks(NAME_BYTES)).map(|(key, name)| Step::Read { key, value: value(name) });
    Some(steps.collect())
}

impl Effect {
    /// The steps that a reply reveals, in their order. An error means that the request had no effect.
    pub fn steps(&self, reply: &Reply) -> Vec<Step> {
        if let Reply::ServerError(_) = reply {
            return Vec::new();
        }
        let steps = match (self, reply) {
            (Effect::None, _) => Some(Vec::new()),
            (Effect::Get(key), reply) => read(*key, reply).map(|read| vec![read]),
            (Effect::GetMany(keys), Reply::Array(replies)) if keys.len() == replies.len() => {
                keys.iter().zip(replies).map(|(key, reply)| read(*key, reply)).collect()
            }
            (Effect::Set(key, value), Reply::Okay) => Some(vec![write(*key, *value)]),
            (Effect::Swap(key, value), reply) => {
                read(*key, reply).map(|read| vec![read, write(*key, *value)])
            }
            (Effect::SetAbsent(..), Reply::Nil) => Some(Vec::new()),
            (Effect::SetAbsent(key, value), Reply::Okay) => {
                Some(vec![Step::Read { key: *key, value: None }, write(*key, *value)])
            }
            (Effect::CompareAndSet(..), Reply::Int(0)) => Some(Vec::new()),
            (Effect::CompareAndSet(key, before, value), Reply::Int(1)) => {
                Some(vec![Step::Read { key: *key, value: Some(*before) }, write(*key, *value)])
            }
            (Effect::Delete(key), Reply::Int(0)) => Some(vec![Step::Read { key: *key, value: None }]),
            (Effect::Delete(key), Reply::Int(1)) => Some(vec![Step::Write { key: *key, value: None }]),
            (Effect::GetDelete(key), Reply::Nil) => Some(vec![Step::Read { key: *key, value: None }]),
            (Effect::GetDelete(key), reply) => {
                read(*key, reply).map(|read| vec![read, Step::Write { key: *key, value: None }])
            }
            (Effect::CallSwap(writes), reply) => {
                read_names(writes.iter().map(|(key, _)| *key), reply).map(|steps| {
                    steps.into_iter().chain(writes.iter().map(|&(key, value)| write(key, value))).collect()
                })
            }
            (Effect::CallRead(keys), reply) => read_names(keys.iter().copied(), reply),
            _ => None,
        };
        steps.unwrap_or_else(|| panic!("unexpected reply to {self:?}: {reply:?}"))
    }

    /// The writes of a request whose reply was lost.
    pub fn writes(&self) -> Vec<Step> {
        match self {
            Effect::Set(key, value) | Effect::Swap(key, value) | Effect::CallRefused(key, value) => {
                vec![write(*key, *value)]
            }
            // These requests write only if they have read this value before.
            Effect::SetAbsent(key, value) => vec![Step::Read { key: *key, value: None }, write(*key, *value)],
            Effect::CompareAndSet(key, before, value) => {
                vec![Step::Read { key: *key, value: Some(*before) }, write(*key, *value)]
            }
            Effect::Delete(key) | Effect::GetDelete(key) => vec![Step::Write { key: *key, value: None }],
            Effect::CallSwap(writes) => writes.iter().map(|&(key, value)| write(key, value)).collect(),
            Effect::None | Effect::Get(_) | Effect::GetMany(_) | Effect::CallRead(_) => Vec::new(),
        }
    }
}

/// A request.
pub struct Request {
    pub bytes: Vec<u8>,
    pub effect: Effect,
}

impl Request {
    fn new(effect: Effect, arguments: &[&[u8]]) -> Request {
        Request { bytes: request(arguments), effect }
    }

    fn words(line: &str) -> Request {
        Request::new(Effect::None, &line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    fn get(key: Key) -> Request {
        Request::new(Effect::Get(key), &[b"GET", name(key).as_bytes()])
    }

    fn set(key: Key, value: Value) -> Request {
        Request::new(Effect::Set(key, value), &[b"SET", name(key).as_bytes(), &encode(value)])
    }

    fn swap(key: Key, value: Value, random: &mut Random) -> Request {
        let (key_name, bytes) = (name(key), encode(value));
        let (key_name, effect) = (key_name.as_bytes(), Effect::Swap(key, value));
        match random.below(2) {
            0 => Request::new(effect, &[b"SET", key_name, &bytes, b"GET"]),
            _ => Request::new(effect, &[b"GETSET", key_name, &bytes]),
        }
    }

    /// Replaces the value that the client has read before.
    fn compare_and_set(key: Key, before: Value, value: Value) -> Request {
        let (key_name, before_bytes, bytes) = (name(key), encode(before), encode(value));
        let arguments: &[&[u8]] = &[b"CAS", key_name.as_bytes(), &before_bytes, &bytes];
        Request::new(Effect::CompareAndSet(key, before, value), arguments)
    }

    fn call_swap(writes: Vec<(Key, Value)>) -> Request {
        let procedure: &[u8] = if writes.len() == 1 { b"history_swap" } else { b"history_swap_two" };
        let arguments: Vec<Vec<u8>> =
            writes.iter().flat_map(|&(key, value)| [name(key).into_bytes(), encode(value)]).collect();
        let arguments: Vec<&[u8]> =
            [b"CALL", procedure].into_iter().chain(arguments.iter().map(Vec::as_slice)).collect();
        Request::new(Effect::CallSwap(writes), &arguments)
    }

    fn many(words: &[&[u8]], keys: &[Key], effect: Effect) -> Request {
        let names: Vec<String> = keys.iter().map(|&key| name(key)).collect();
        let arguments: Vec<&[u8]> = words.iter().copied().chain(names.iter().map(String::as_bytes)).collect();
        Request::new(effect, &arguments)
    }

    /// MGET.
    pub fn get_many(keys: Vec<Key>) -> Request {
        Request::many(&[b"MGET"], &keys, Effect::GetMany(keys.clone()))
    }

    fn call_read(keys: Vec<Key>) -> Request {
        Request::many(&[b"CALL", b"history_read_two"], &keys, Effect::CallRead(keys.clone()))
    }
}

/// How the requests of a transaction become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The only request is a transaction.
    Single,
    /// BEGIN and COMMIT, or ROLLBACK.
    Interactive,
    /// MULTI and EXEC, or DISCARD.
    Multi,
}

/// A transaction that a client is going to run.
pub struct Plan {
    pub kind: &'static str,
    pub frame: Frame,
    /// All requests in their order. The last one commits, unless the transaction is rolled back.
    pub requests: Vec<Request>,
    /// Whether the last request is ROLLBACK or DISCARD.
    pub rolls_back: bool,
    /// Whether all requests are sent at once.
    pub pipelined: bool,
    /// How long the client waits before each request.
    pub pause: Duration,
    /// The number of requests after which the client closes the connection. It sends them and a part of the next one, and
    /// does not read the reply to the last one.
    pub hang_up: Option<usize>,
    /// The operations of the transaction that may run only once on a key, with their keys.
    pub once: Vec<(Key, Once)>,
}

/// The kinds of transactions that clients run.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Whether clients close their connections in the middle of transactions.
    pub hang_ups: bool,
    /// Interactive read-only transactions in percent; the others are of all kinds.
    pub read_only_percent: usize,
    /// Longest time, in milliseconds, for which some interactive transactions wait between their requests.
    pub pause_ms: usize,
}

/// Chooses transactions.
pub struct Planner<'a> {
    pub keys: &'a Keys,
    pub values: &'a Values,
    pub mix: Mix,
    /// A key whose value the client has just read outside of a transaction.
    pub last_read: Option<(Key, Value)>,
    random: Random,
    once: Vec<(Key, Once)>,
}

impl<'a> Planner<'a> {
    pub fn new(keys: &'a Keys, values: &'a Values, mix: Mix, seed: u64) -> Planner<'a> {
        Planner { keys, values, mix, last_read: None, random: Random(seed | 1), once: Vec::new() }
    }

    fn key(&mut self) -> Key {
        self.keys.pick(&mut self.random)
    }

    fn two_keys(&mut self) -> [Key; 2] {
        let first = self.key();
        loop {
            let second = self.key();
            if second != first {
                return [first, second];
            }
        }
    }

    fn claim(&mut self, key: Key, once: Once) -> bool {
        let granted = self.keys.claim(key, once);
        if granted {
            self.once.push((key, once));
        }
        granted
    }

    /// Reads and writes for a transaction; with `simple`, only requests that the kernel can answer.
    fn body(&mut self, simple: bool) -> Vec<Request> {
        let mut requests = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let key = self.key();
            match self.random.below(if simple { 10 } else { 13 }) {
                0..=3 => requests.push(Request::get(key)),
                8 => {
                    // Nobody may see the first value.
                    let set = |value| Request::set(key, value);
                    requests.extend([Request::get(key), set(self.values.next()), set(self.values.next())]);
                }
                9 if self.random.below(4) == 0 && self.claim(key, Once::Delete) => {
                    let delete = Request::new(Effect::Delete(key), &[b"DEL", name(key).as_bytes()]);
                    requests.extend([Request::get(key), delete]);
                }
                10 => requests.push(Request::swap(key, self.values.next(), &mut self.random)),
                11 => requests.push(Request::call_swap(vec![(key, self.values.next())])),
                12 if self.random.below(8) == 0 && self.claim(key, Once::BlindWrite) => {
                    requests.push(Request::set(key, self.values.next()));
                }
                _ => requests.extend([Request::get(key), Request::set(key, self.values.next())]),
            }
        }
        requests
    }

    fn call(&mut self) -> Request {
        let [first, second] = self.two_keys();
        match self.random.below(8) {
            0 => {
                let (bytes, value) = (name(first), self.values.next());
                let arguments: &[&[u8]] = &[b"CALL", b"history_refuse", bytes.as_bytes(), &encode(value)];
                Request::new(Effect::CallRefused(first, value), arguments)
            }
            1 | 2 => Request::call_swap(vec![(first, self.values.next())]),
            3 | 4 => Request::call_read(vec![first, second]),
            _ => Request::call_swap(vec![(first, self.values.next()), (second, self.values.next())]),
        }
    }

    fn single(&mut self) -> Request {
        if let Some((key, before)) = self.last_read.take() {
            return Request::compare_and_set(key, before, self.values.next());
        }
        let key = self.key();
        let key_name = name(key);
        let key_name = key_name.as_bytes();
        match self.random.below(12) {
            0..=2 => Request::get(key),
            3 => {
                let keys = [self.two_keys(), self.two_keys()].concat();
                Request::get_many(keys)
            }
            4 => {
                let value = self.values.next();
                Request::new(Effect::SetAbsent(key, value), &[b"SET", key_name, &encode(value), b"NX"])
            }
            5 if self.random.below(8) == 0 && self.claim(key, Once::Delete) => {
                Request::new(Effect::GetDelete(key), &[b"GETDEL", key_name])
            }
            6 if self.claim(key, Once::BlindWrite) => Request::set(key, self.values.next()),
            _ => Request::swap(key, self.values.next(), &mut self.random),
        }
    }

    fn read_only(&mut self) -> (Frame, Vec<Request>) {
        let mut requests = vec![Request::words("BEGIN READ ONLY")];
        for _ in 0..2 + self.random.below(4) {
            let key = self.key();
            let get = |key| Request::get(key);
            requests.push(if self.random.below(6) == 0 { Request::get_many(vec![key]) } else { get(key) });
        }
        requests.push(Request::words("COMMIT"));
        (Frame::Interactive, requests)
    }

    fn multi(&mut self) -> (Frame, Vec<Request>) {
        let simple = self.random.below(2) == 0;
        let body = self.body(simple);
        let mut requests = Vec::new();
        if self.random.below(3) == 0 {
            // Values that are read under WATCH are those at the time of EXEC, if it does not fail.
            let key = self.key();
            requests.extend([Request::words(&format!("WATCH {}", name(key))), Request::get(key)]);
        }
        requests.push(Request::words("MULTI"));
        requests.extend(body);
        requests.push(Request::words("EXEC"));
        (Frame::Multi, requests)
    }

    /// The next transaction.
    pub fn plan(&mut self) -> Plan {
        let percent = self.random.below(100);
        let read_only = percent < self.mix.read_only_percent;
        let (kind, (frame, mut requests)) = match self.random.below(100) {
            _ if read_only => ("read-only", self.read_only()),
            0..=44 => {
                let simple = self.random.below(2) == 0;
                let mut requests = vec![Request::words("BEGIN")];
                requests.extend(self.body(simple));
                requests.push(Request::words("COMMIT"));
                ("BEGIN", (Frame::Interactive, requests))
            }
            45..=69 => ("MULTI", self.multi()),
            70..=84 => ("CALL", (Frame::Single, vec![self.call()])),
            _ => ("single command", (Frame::Single, vec![self.single()])),
        };
        let rolls_back = frame != Frame::Single && self.random.below(12) == 0;
        if rolls_back {
            let word = if frame == Frame::Multi { "DISCARD" } else { "ROLLBACK" };
            *requests.last_mut().expect("it has requests") = Request::words(word);
        }
        let pauses = frame == Frame::Interactive && (read_only || self.random.below(20) == 0);
        let pause = if pauses { self.random.below(1000 * self.mix.pause_ms + 1) } else { 0 };
        let hangs_up = self.mix.hang_ups && self.random.below(50) == 0;
        Plan {
            kind,
            frame,
            rolls_back,
            pipelined: pause == 0 && self.random.below(3) == 0,
            pause: Duration::from_micros(pause as u64),
            hang_up: hangs_up.then(|| self.random.below(requests.len() + 1)),
            requests,
            once: std::mem::take(&mut self.once),
        }
    }
}
