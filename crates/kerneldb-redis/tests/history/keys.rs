//! The keys and values of a history.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use bedplate_history::{Key, Value};

use crate::server::Random;

/// Makes values, each one once.
#[derive(Default)]
pub struct Values(AtomicU64);

impl Values {
    pub fn next(&self) -> Value {
        Value::new(self.0.fetch_add(1, SeqCst) + 1).expect("it is at least 1")
    }
}

/// The value of bytes that no write has made, for instance the halves of two values. Nobody writes it.
pub const GARBLED: Value = Value::MAX;

/// Length of a value's name, with which its bytes begin.
pub const NAME_BYTES: usize = 16;

/// The bytes of a value: its name, and a padding that depends on it. Some are as short as the engine's cells, some are longer.
pub fn encode(value: Value) -> Vec<u8> {
    let mixed = value.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let longest = [0, 8, 16, 16, 200, 600, 3000, 9000][(mixed >> 61) as usize];
    let padding = (mixed >> 20) as usize % (longest + 1);
    let mut bytes = format!("{value:0width$x}", width = NAME_BYTES).into_bytes();
    bytes.extend((0..padding).map(|i| b'a' + (mixed >> (i % 48)) as u8 % 26));
    bytes
}

/// The value with a name; [`GARBLED`] if it is not one.
pub fn named(name: &[u8]) -> Value {
    let text = std::str::from_utf8(name).ok();
    let value = text.and_then(|text| u64::from_str_radix(text, 16).ok()).and_then(Value::new);
    value.unwrap_or(GARBLED)
}

/// The value that has these bytes; [`GARBLED`] if none has them.
pub fn decode(bytes: &[u8]) -> Value {
    let value = bytes.get(..NAME_BYTES).map_or(GARBLED, named);
    if bytes == encode(value) {
        return value;
    }
    println!("not a value: {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(100)]));
    GARBLED
}

/// An operation that clients may run only once on a key, because the checker could not identify the version that it makes otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// A write without a read.
    BlindWrite,
    /// A deletion.
    Delete,
}

/// Number of keys that clients use at the same time.
const KEYS: usize = 24;

/// Keys that clients use at the same time. One third of them is there at first and is never deleted, one third is there and
/// may be deleted, and one third is absent at first.
pub struct Keys {
    first: Key,
    used: [[AtomicBool; KEYS]; 2],
}

impl Keys {
    /// The next keys after those that `first` was used for before.
    pub fn new(first: &mut Key) -> Keys {
        let keys = Keys { first: *first, used: Default::default() };
        *first += KEYS as Key;
        keys
    }

    /// All keys.
    pub fn all(&self) -> impl Iterator<Item = Key> {
        self.first..self.first + KEYS as Key
    }

    /// Values for the keys that are there at first.
    pub fn initial(&self, values: &Values) -> HashMap<Key, Value> {
        self.all().filter(|key| key % 3 < 2).map(|key| (key, values.next())).collect()
    }

    /// Some key; the first ones are chosen more often.
    pub fn pick(&self, random: &mut Random) -> Key {
        self.first + random.below(KEYS).min(random.below(KEYS)) as Key
    }

    /// Whether the caller may run the operation on a key. If it may and the operation certainly took no effect, the caller must give
    /// the right back ([`Keys::give_back`]).
    pub fn claim(&self, key: Key, once: Once) -> bool {
        (once == Once::BlindWrite || key % 3 == 1) && !self.used(key, once).swap(true, SeqCst)
    }

    /// Lets another client run the operation on the key.
    pub fn give_back(&self, key: Key, once: Once) {
        self.used(key, once).store(false, SeqCst);
    }

    fn used(&self, key: Key, once: Once) -> &AtomicBool {
        &self.used[once as usize][(key - self.first) as usize]
    }
}

/// The name of a key in the database.
pub fn name(key: Key) -> String {
    format!("history:{key}")
}
