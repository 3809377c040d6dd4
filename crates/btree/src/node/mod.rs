//! One page of the tree: what is where in its payload, how it is read and how it is changed.
//!
//! A node is read in two ways. Under a latch it stands still. Optimistically it may change under the reader's eyes, may
//! be another page by now, or nothing that was ever a node; then what is read is only believed after the page's version
//! was found unchanged. Until that is known every number from the page is suspect, so [`view`] bounds each before it
//! becomes an address, and loads it once, so that what was bounded is what is used. Only [`edit`] changes a node, and
//! only under an exclusive latch.
//!
//! # Layout
//!
//! All numbers are little-endian. Offsets count from the start of the payload, which is byte 24 of the page, so that
//! the header shares the page header's cache line and the hints have the next one.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind: [`LEAF`] or [`INNER`] |
//! | 1 | level: 0 is a leaf |
//! | 2..4 | count of slots |
//! | 4..6 | where the heap begins; it ends with the payload |
//! | 6..8 | bytes of the heap in use |
//! | 8..16 | where the low fence is, its length, the same of the high fence; 0 for a fence at infinity |
//! | 16..18 | bytes that all keys have in common, stored once as the beginning of the low fence |
//! | 18..24 | reserved, zero |
//! | 24..32 | inner: the child before the first separator |
//! | 32..40 | reserved, zero |
//! | 40..104 | hints: the heads of 16 slots at even distances, as signed numbers |
//! | 104.. | slots, in the order of their keys; then free space; then the heap |
//!
//! A leaf's slot is one word: head (the first four bytes of the key after the prefix, big-endian, padded with zeroes),
//! length of the key after the prefix, and where its record is in the heap: the length of the value, what the head does
//! not hold of the key, the value. An inner slot has the child in a second word, and a record only for what the head
//! does not hold of the separator.
//!
//! Keys `k` of a node obey `low ≤ k < high`. The child of slot `i` has the keys from separator `i` on.

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

/// Bytes of a page that are the node's.
pub const PAYLOAD: usize = bedplate_bufpool::PAYLOAD;

/// What byte 0 of a leaf is.
pub const LEAF: u8 = 0xb1;
/// What byte 0 of an inner node is.
pub const INNER: u8 = 0xb2;

/// Bytes of a leaf's slot.
pub const LEAF_SLOT: usize = 8;
/// Bytes of an inner slot.
pub const INNER_SLOT: usize = 16;

/// The longest key.
///
/// A node stores two of them in full as its fences, and a record may have a third; the assertion below is what this
/// buys: a node that is too full can be split until what is inserted fits.
pub const MAX_KEY: usize = 512;
/// The longest key and value together that are stored in a leaf; longer values have pages of their own.
pub const MAX_RECORD: usize = 1460;

const FENCES: usize = 8;
const PREFIX: usize = 16;
const FIRST_CHILD: usize = 24;
const HINTS: usize = 40;
const HINT_COUNT: usize = 16;
const SLOTS: usize = 104;
/// Bytes for slots and heap.
pub const CAPACITY: usize = PAYLOAD - SLOTS;

/// The tag of a value that is elsewhere: the record has a [`Reference`](view::Value::Elsewhere) in its place.
const ELSEWHERE: u16 = u16::MAX;

// Two records fit beside any fences, so a leaf that cannot take one more has at least two and can be split.
const _: () = assert!(2 * MAX_KEY + 2 * (LEAF_SLOT + 2 + MAX_RECORD) <= CAPACITY);
// Where a leaf is split in the middle, the larger half has at most half a record more than half of it, and gets a fence.
const _: () = assert!(CAPACITY / 2 + (LEAF_SLOT + 2 + MAX_RECORD) / 2 + 2 * MAX_KEY <= CAPACITY);
// Five separators fit, so an inner node that cannot take one more leaves at least one on either side of the one that
// moves up; and its halves have room for another fence, too.
const _: () = assert!(2 * MAX_KEY + 5 * (INNER_SLOT + MAX_KEY) <= CAPACITY);

/// Where a slot's key and record are: head, length of the key after the prefix, offset of the record.
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

/// The first four bytes, as a number that is ordered as they are.
fn head(suffix: &[u8]) -> u32 {
    head_after(suffix, 0)
}

/// The head of what follows a key's first `prefix` bytes.
#[inline(always)]
fn head_after(key: &[u8], prefix: usize) -> u32 {
    if let Some(last) = key.len().checked_sub(4) {
        // No branch on what is left of the key, which differs from level to level.
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

/// The slot whose head hint `j` is, among `count`.
#[inline(always)]
fn hint_position(j: usize, count: usize) -> usize {
    (j + 1) * count / (HINT_COUNT + 1)
}

/// How many bytes two keys have in common from their beginning.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest key above `left` that is not above `right`.
pub fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..(common_prefix(left, right) + 1).min(right.len())]
}

/// A key in a place of its own, without allocation.
pub struct Key {
    /// The first `len` of them are written.
    bytes: [MaybeUninit<u8>; MAX_KEY],
    len: usize,
}

impl Key {
    /// The empty key.
    pub fn new() -> Self {
        Self { bytes: [const { MaybeUninit::uninit() }; MAX_KEY], len: 0 }
    }

    /// A copy of `key`, or of as much of it as a key can have.
    pub fn of(key: &[u8]) -> Self {
        let mut copy = Self::new();
        copy.push(key);
        copy
    }

    /// Nothing is left.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends as much as fits.
    pub fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(MAX_KEY - self.len)];
        self.bytes[self.len..self.len + bytes.len()].write_copy_of_slice(bytes);
        self.len += bytes.len();
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: that many have been written.
        unsafe { self.bytes[..self.len].assume_init_ref() }
    }
}

/// A node outside the pool: what scans, splits and merges work on.
#[repr(C, align(8))]
#[derive(Clone)]
pub struct Copied(pub [u8; PAYLOAD]);

impl Copied {
    /// A page of zeroes, which is no node.
    pub fn new() -> Self {
        Self([0; PAYLOAD])
    }

    /// The same on the heap, where it is made.
    pub fn boxed() -> Box<Self> {
        // SAFETY: bytes may be zero.
        unsafe { Box::new_zeroed().assume_init() }
    }
}
