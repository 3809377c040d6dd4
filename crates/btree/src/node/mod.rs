//! One page of the tree: the layout of its payload, and how it is read and changed.
//!
//! A node is read in two ways. A thread with a latch reads a node that does not change. An optimistic reader reads a
//! node that may change meanwhile. Its page may even be another page by now, or a page that was never a node. So an
//! optimistic reader trusts its result only after it has found the page's version unchanged. Until then, any number in
//! the page may be wrong. So [`view`] bounds each number before it uses the number as an address. It loads each number
//! once, so the bounded number is the one that it uses. Only [`edit`] changes a node, and only under an exclusive
//! latch.
//!
//! # Layout
//!
//! All numbers are little-endian. Offsets are relative to the start of the payload, which is byte 24 of the page. So
//! the node's header is in the same cache line as the page header, and the hints are in the next one.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | kind: [`LEAF`] or [`INNER`] |
//! | 1 | level: 0 for a leaf |
//! | 2..4 | number of slots |
//! | 4..6 | start of the heap, which ends with the payload |
//! | 6..8 | bytes in use in the heap |
//! | 8..16 | offset and length of the low fence, then of the high fence; 0 for a fence at infinity |
//! | 16..18 | length of the keys' common prefix, which is stored once, as the start of the low fence |
//! | 18..24 | reserved, zero |
//! | 24..32 | inner node: the child before the first separator |
//! | 32..40 | reserved, zero |
//! | 40..104 | hints: the heads of 16 slots at equal distances, as signed numbers |
//! | 104.. | slots, in key order; then free space; then the heap |
//!
//! A slot of a leaf is one word. It has the head, the length of the key after the prefix, and the offset of the record
//! in the heap. The head is the first four bytes of the key after the prefix, big-endian, padded with zeros. The record
//! of a leaf has the length of the value, the rest of the key after the head, and the value. A slot of an inner node
//! has the child in a second word. Its record has only the rest of the separator after the head.
//!
//! An offset has 16 bits. The payload of the largest page has 65512 bytes, so its end is also an offset. The limits of keys and
//! records follow from the page size ([`max_key`], [`max_record`]). The assertions below hold for every size.
//!
//! Each key `k` of a node satisfies `low ≤ k < high`. The child of slot `i` has the keys from separator `i` on.

#[cfg(any(test, fuzzing))]
pub mod arbitrary;
pub mod check;
pub mod edit;
pub mod rebuild;
mod search;
#[cfg(test)]
mod tests;
pub mod view;

use std::mem::MaybeUninit;

use bedplate_bufpool::{PageSize, Payload};

/// Bytes of a word. Payloads are read and written in words.
const WORD: usize = 8;

/// Byte 0 of a leaf.
pub const LEAF: u8 = 0xb1;
/// Byte 0 of an inner node.
pub const INNER: u8 = 0xb2;

/// Bytes of a slot in a leaf.
pub const LEAF_SLOT: usize = 8;
/// Bytes of a slot in an inner node.
pub const INNER_SLOT: usize = 16;

/// The maximum length of a key in a tree with pages of this size, in bytes: an eighth of a page.
///
/// | page size | maximum length of a key | [`max_record`] |
/// |---|---|---|
/// | 4 KiB | 512 | 1460 |
/// | 8 KiB | 1024 | 2996 |
/// | 16 KiB | 2048 | 6068 |
/// | 32 KiB | 4096 | 12212 |
/// | 64 KiB | 8192 | 24500 |
///
/// A node stores up to two full keys as its fences, and must have room for several separators beside them. So a tree
/// cannot have keys of half a page or a quarter of one.
pub const fn max_key(size: PageSize) -> usize {
    size.bytes() / 8
}

/// The maximum length of key and value together in a leaf of a tree with pages of this size, in bytes. Longer values are
/// stored in overflow chains.
///
/// Two such records fit beside two fences of the maximum length.
pub const fn max_record(size: PageSize) -> usize {
    capacity(size) / 2 - max_key(size) - 12
}

/// The maximum length of a key in a tree with pages of 4 KiB. See [`max_key`].
pub const MAX_KEY: usize = max_key(PageSize::MIN);
/// The maximum length of key and value together in a leaf of 4 KiB. See [`max_record`].
pub const MAX_RECORD: usize = max_record(PageSize::MIN);
/// Maximum length of a key of any tree, in bytes.
pub const LONGEST_KEY: usize = max_key(PageSize::MAX);

const FENCES: usize = 8;
const PREFIX: usize = 16;
const FIRST_CHILD: usize = 24;
const HINTS: usize = 40;
const HINT_COUNT: usize = 16;
const SLOTS: usize = 104;

/// Bytes of a node for fences, slots and records.
pub const fn capacity(size: PageSize) -> usize {
    size.payload() - SLOTS
}

/// The tag of an overflow value. Its record has a [reference](view::Value::Overflow) instead of the value.
const OVERFLOW: u16 = u16::MAX;

/// Whether keys and records of these lengths always leave a node of this size divisible, until a new record fits.
const fn is_sound(size: PageSize) -> bool {
    let (capacity, key, record) = (capacity(size), max_key(size), LEAF_SLOT + 2 + max_record(size));
    // Any two fences leave room for two records. So a leaf without room for another record has at least two and can be
    // split.
    2 * key + 2 * record <= capacity
        // After a split in the middle, the larger half exceeds half the leaf by at most half a record, and it gets
        // another fence.
        && capacity / 2 + record / 2 + 2 * key <= capacity
        // There is room for five separators. So an inner node without room for another one has at least one on each
        // side of the separator that moves up. Each half also has room for its new fence.
        && 2 * key + 5 * (INNER_SLOT + key) <= capacity
        // The longest key has room for a reference to an overflow chain beside it.
        && key + 16 <= max_record(size)
        // Lengths and offsets have 16 bits. The greatest number is the tag of overflow values.
        && size.payload() < OVERFLOW as usize
}

const _: () = {
    let mut at = 0;
    while at < PageSize::ALL.len() {
        assert!(is_sound(PageSize::ALL[at]));
        at += 1;
    }
};

/// A slot without its child: head, length of the key after the prefix, offset of the record.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(u64);

impl Slot {
    fn new(suffix: &[u8], record: usize) -> Self {
        Self(u64::from(head(suffix)) << 32 | (suffix.len() as u64) << 16 | record as u64)
    }

    #[inline(always)]
    fn head(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    fn suffix_len(self) -> usize {
        (self.0 >> 16 & 0xffff) as usize
    }

    /// Bytes of the key that are in the record.
    #[inline(always)]
    fn tail_len(self) -> usize {
        self.suffix_len().saturating_sub(4)
    }

    #[inline(always)]
    fn record(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// The first four bytes as a number, padded with zeros. The order of heads agrees with the order of the bytes.
fn head(suffix: &[u8]) -> u32 {
    head_after(suffix, 0)
}

/// The head of the key after its first `prefix` bytes.
#[inline(always)]
fn head_after(key: &[u8], prefix: usize) -> u32 {
    if let Some(last) = key.len().checked_sub(4) {
        // There is no branch on the length of the rest. It differs from level to level, so a branch would be
        // mispredicted.
        let from = prefix.min(last);
        let word = u32::from_be_bytes([key[from], key[from + 1], key[from + 2], key[from + 3]]);
        (u64::from(word) << (8 * (prefix - from).min(4))) as u32
    } else {
        let mut word = [0; 4];
        let rest = key.get(prefix..).unwrap_or_default();
        word[..rest.len()].copy_from_slice(rest);
        u32::from_be_bytes(word)
    }
}

/// The slot whose head is hint `j`, among `count` slots.
#[inline(always)]
fn hint_position(j: usize, count: usize) -> usize {
    (j + 1) * count / (HINT_COUNT + 1)
}

/// Length of the common prefix of two keys, in bytes.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest key that is above `left` and not above `right`.
pub fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..(common_prefix(left, right) + 1).min(right.len())]
}

/// A copy of a key. It allocates only for a key of more than [`MAX_KEY`] bytes, which pages of 4 KiB do not have.
pub struct Key {
    /// If the key has at most [`MAX_KEY`] bytes, its bytes; the first `len` are initialised.
    short: [MaybeUninit<u8>; MAX_KEY],
    len: usize,
    /// If the key has more bytes, all of them.
    long: Vec<u8>,
}

impl Key {
    /// The empty key.
    pub fn new() -> Self {
        Self { short: [const { MaybeUninit::uninit() }; MAX_KEY], len: 0, long: Vec::new() }
    }

    /// A copy of `key`, cut off at [`LONGEST_KEY`] bytes.
    pub fn of(key: &[u8]) -> Self {
        let mut copy = Self::new();
        copy.push(key);
        copy
    }

    /// Makes the key empty.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends bytes, up to the limit of [`LONGEST_KEY`].
    pub fn push(&mut self, bytes: &[u8]) {
        if let Some(room) = self.room(bytes.len()) {
            room.write_copy_of_slice(bytes);
            self.len += bytes.len();
        } else {
            let bytes = &bytes[..bytes.len().min(LONGEST_KEY - self.len)];
            self.lengthen(bytes.len(), |long| long.extend_from_slice(bytes));
        }
    }

    /// Appends the first `len` of four bytes, up to the limit of [`LONGEST_KEY`].
    #[inline(always)]
    pub fn push_some(&mut self, bytes: [u8; 4], len: usize) {
        match self.room(bytes.len()) {
            // A copy of constant length is faster. The key does not include the bytes after `len`.
            Some(room) => {
                room.write_copy_of_slice(&bytes);
                self.len += len;
            }
            None => self.push(&bytes[..len]),
        }
    }

    /// Cuts the key off after `len` bytes. Returns false and changes nothing if the key has fewer bytes, or if it has more than
    /// [`MAX_KEY`] bytes.
    #[inline(always)]
    pub fn truncate(&mut self, len: usize) -> bool {
        let is_possible = len <= self.len && self.len <= MAX_KEY;
        if is_possible {
            self.len = len;
        }
        is_possible
    }

    /// The memory for `len` more bytes of a short key. None if the key becomes a long one.
    #[inline(always)]
    fn room(&mut self, len: usize) -> Option<&mut [MaybeUninit<u8>]> {
        self.short.get_mut(self.len..self.len + len)
    }

    /// Appends `len` bytes to a key that is or becomes a long one. `append` appends them to a vector.
    #[cold]
    fn lengthen(&mut self, len: usize, append: impl FnOnce(&mut Vec<u8>)) {
        if self.len <= MAX_KEY {
            self.long.clear();
            // SAFETY: the first `len` bytes of a short key are initialised.
            self.long.extend_from_slice(unsafe { self.short[..self.len].assume_init_ref() });
        }
        append(&mut self.long);
        self.len += len;
        debug_assert!(self.len > MAX_KEY && self.len == self.long.len());
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.short.get(..self.len) {
            // SAFETY: the first `len` bytes of a short key are initialised.
            Some(short) => unsafe { short.assume_init_ref() },
            None => &self.long,
        }
    }
}

/// A node outside the pool. Scans, splits and merges work on it.
pub struct PageBuf(pub Box<Payload>);

impl PageBuf {
    /// A page of zeros, which is not a node.
    pub fn new(size: PageSize) -> Self {
        Self(Payload::boxed(size))
    }
}

impl Clone for PageBuf {
    fn clone(&self) -> Self {
        Self(self.0.to_boxed())
    }
}
