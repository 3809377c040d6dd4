//! Reads of a node that may change at any moment, or that may not be a node at all.
//!
//! This module contains all loads. They are relaxed atomic loads of the payload's words ([`Payload`]). A load may race
//! with stores of the thread that holds the page, as in any sequence lock. Afterwards, the page's version tells whether
//! the result is consistent. A number that becomes an offset or a length is loaded once and bounded before use.

use std::cmp::Ordering;
use std::mem::MaybeUninit;

use bedplate_bufpool::{PageSize, Payload};

use super::{
    FENCES, FIRST_CHILD, HINT_COUNT, HINTS, INNER, INNER_SLOT, Key, LEAF, LEAF_SLOT, LONGEST_KEY, OVERFLOW,
    PREFIX, PageBuf, SLOTS, Slot, WORD, capacity, max_key,
};

/// The payload of a page with unknown content.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    payload: &'a Payload,
}

impl<'a> Page<'a> {
    /// The page with this payload.
    #[inline(always)]
    pub fn of(payload: &'a Payload) -> Self {
        Self { payload }
    }

    #[inline(always)]
    fn header<const AT: usize>(self) -> u64 {
        const { assert!(AT.is_multiple_of(WORD) && AT < SLOTS) };
        self.payload.leading_word(AT / WORD)
    }

    /// The page size.
    pub fn size(self) -> PageSize {
        self.payload.page_size()
    }

    /// The end of the payload, as an offset in it.
    #[inline(always)]
    pub(super) fn end(self) -> usize {
        self.payload.len()
    }

    /// Bytes of the node for fences, slots and records.
    pub fn capacity(self) -> usize {
        capacity(self.size())
    }

    /// The maximum length of a key in the node, in bytes.
    pub(super) fn max_key(self) -> usize {
        max_key(self.size())
    }

    /// The bytes from `at` to `at + len`, cut off at the end of the page.
    #[inline(always)]
    pub fn bytes(self, at: usize, len: usize) -> Bytes<'a> {
        let end = self.end();
        let at = at.min(end);
        Bytes { payload: self.payload, at, len: len.min(end - at) }
    }

    /// Whether the page claims to be a leaf.
    #[inline(always)]
    pub fn is_leaf(self) -> bool {
        self.header::<0>() as u8 == LEAF
    }

    /// Whether the page claims to be an inner node.
    #[inline(always)]
    pub fn is_inner(self) -> bool {
        self.header::<0>() as u8 == INNER
    }

    /// Number of levels between this node and the leaves.
    pub fn level(self) -> u8 {
        (self.header::<0>() >> 8) as u8
    }

    /// Start of the heap.
    pub(super) fn heap(self) -> usize {
        (self.header::<0>() >> 32 & 0xffff) as usize
    }

    /// Bytes in use in the heap.
    pub(super) fn live(self) -> usize {
        (self.header::<0>() >> 48) as usize
    }

    /// Bytes in use by slots, records and fences.
    pub fn used(self) -> usize {
        let count = (self.header::<0>() >> 16 & 0xffff) as usize;
        self.live() + count * if self.is_leaf() { LEAF_SLOT } else { INNER_SLOT }
    }

    /// Whether another separator `key` and its child fit into this inner node.
    pub fn has_room_for_child(self, key: &[u8]) -> bool {
        let tail = key.len().saturating_sub(self.inner().prefix + 4);
        self.used() + INNER_SLOT + tail <= self.capacity()
    }

    /// The page as a leaf. The page need not be one.
    #[inline(always)]
    pub fn leaf(self) -> Leaf<'a> {
        self.slots()
    }

    /// The page as an inner node. The page need not be one.
    #[inline(always)]
    pub fn inner(self) -> Inner<'a> {
        self.slots()
    }

    #[inline(always)]
    pub(super) fn slots<const SLOT: usize>(self) -> Slots<'a, SLOT> {
        let count = (self.header::<0>() >> 16 & 0xffff) as usize;
        let prefix = (self.header::<PREFIX>() & 0xffff) as usize;
        Slots { page: self, count: count.min((self.payload.words() - SLOTS / WORD) / (SLOT / WORD)), prefix }
    }

    /// The low fence: the lowest key that the node may have. None if there is no lower limit.
    pub fn low(self) -> Option<Bytes<'a>> {
        self.fence(0)
    }

    /// The high fence: every key of the node is below it. None if there is no upper limit.
    pub fn high(self) -> Option<Bytes<'a>> {
        self.fence(32)
    }

    fn fence(self, shift: u32) -> Option<Bytes<'a>> {
        let word = self.header::<FENCES>() >> shift;
        let at = (word & 0xffff) as usize;
        (at != 0).then(|| self.bytes(at, ((word >> 16 & 0xffff) as usize).min(self.max_key())))
    }

    /// The stored common prefix of all keys.
    fn prefix(self, len: usize) -> Bytes<'a> {
        self.bytes((self.header::<FENCES>() & 0xffff) as usize, len)
    }

    /// The hints. They need no bounds: they are used in comparisons only, and their number is constant.
    #[inline(always)]
    pub(super) fn hints(self) -> [i32; HINT_COUNT] {
        const { assert!(HINTS.is_multiple_of(WORD) && size_of::<[i32; HINT_COUNT]>() == HINT_COUNT / 2 * WORD) };
        let mut hints = [0; HINT_COUNT];
        for (index, pair) in hints.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let word = self.payload.leading_word(HINTS / WORD + index);
            *pair = [word as i32, (word >> 32) as i32];
        }
        hints
    }

    /// A copy of the whole payload.
    pub fn to_boxed(self) -> Box<Payload> {
        self.payload.to_boxed()
    }

    /// Copies a leaf, without the free space between its slots and its heap. The copy has arbitrary bytes there.
    pub fn copy_leaf_to(self, copy: &mut PageBuf) {
        let slots_end = SLOTS / WORD + self.leaf().count() * (LEAF_SLOT / WORD);
        self.payload.copy_ends_to(slots_end, self.heap() / WORD, &mut copy.0);
    }
}

/// The slots of a leaf.
pub type Leaf<'a> = Slots<'a, LEAF_SLOT>;
/// The slots of an inner node.
pub type Inner<'a> = Slots<'a, INNER_SLOT>;

/// The slots of a node. Their number and the prefix length are those at the time of creation.
#[derive(Clone, Copy)]
pub struct Slots<'a, const SLOT: usize> {
    pub(super) page: Page<'a>,
    pub(super) count: usize,
    pub(super) prefix: usize,
}

impl<'a, const SLOT: usize> Slots<'a, SLOT> {
    /// Bytes of a record before its part of the key. The record of a leaf begins with the length of the value.
    pub(super) const TAIL: usize = if SLOT == LEAF_SLOT { 2 } else { 0 };

    /// Number of slots.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.count
    }

    /// Length of the common prefix of all keys, in bytes.
    pub fn prefix_len(self) -> usize {
        self.prefix
    }

    #[inline(always)]
    pub(super) fn slot(self, i: usize) -> Slot {
        // Callers pass indexes up to `count`. The slot behind the last one may be behind the end of the page.
        Slot(self.page.payload.word_or_zero(SLOTS / WORD + i * (SLOT / WORD)))
    }

    /// The part of the key that is in the record of `slot`.
    #[inline(always)]
    pub(super) fn tail(self, slot: Slot) -> Bytes<'a> {
        self.page.bytes(slot.record() + Self::TAIL, slot.tail_len())
    }

    /// Copies the complete key `i` into `key`. A key that is too long for the page is cut off. Only a damaged page has such a
    /// key.
    pub fn key(self, i: usize, key: &mut Key) {
        key.clear();
        self.page.prefix(self.prefix.min(self.page.max_key())).push_to(key);
        self.push_suffix(i, key);
    }

    /// Does the same as [`Slots::key`] with less work, if `key` has the key of another slot of this node.
    #[inline(always)]
    pub fn next_key(self, i: usize, key: &mut Key) {
        if key.truncate(self.prefix) { self.push_suffix(i, key) } else { self.key(i, key) }
    }

    /// Appends the part of key `i` that is not in the prefix.
    #[inline(always)]
    fn push_suffix(self, i: usize, key: &mut Key) {
        let slot = self.slot(i);
        key.push_some(slot.head().to_be_bytes(), slot.suffix_len().min(4));
        let tail = self.tail(slot);
        if tail.len > 0 {
            let most = self.page.max_key();
            Bytes { len: tail.len.min(most.saturating_sub(key.len())), ..tail }.push_to(key);
        }
    }
}

/// A value as a leaf stores it.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// The bytes of the value.
    Here(Bytes<'a>),
    /// The first overflow page of the value, and the length of the value.
    Overflow(u64, u64),
}

impl<'a> Leaf<'a> {
    /// The tag of a record, and the bytes after its key. They are a reference if the tag is [`OVERFLOW`].
    pub(super) fn stored(self, slot: Slot) -> (u16, Bytes<'a>) {
        let tag = self.page.bytes(slot.record(), 2).u16();
        let len = if tag == OVERFLOW { 16 } else { usize::from(tag) };
        (tag, self.page.bytes(slot.record() + 2 + slot.tail_len(), len))
    }

    /// The value of slot `i`.
    #[inline(always)]
    pub fn value(self, i: usize) -> Value<'a> {
        let (tag, bytes) = self.stored(self.slot(i));
        if tag == OVERFLOW {
            let mut reference = [0; 16];
            bytes.copy_to(&mut reference);
            let reference = u128::from_le_bytes(reference);
            return Value::Overflow(reference as u64, (reference >> 64) as u64);
        }
        Value::Here(bytes)
    }
}

impl Inner<'_> {
    /// The child before separator `i`. With `i == count`, the last child.
    #[inline(always)]
    pub fn child(self, i: usize) -> u64 {
        match i {
            0 => self.page.header::<FIRST_CHILD>(),
            // The child is in the second word of the slot before.
            i => self.page.payload.word_or_zero(SLOTS / WORD - 1 + i * (INNER_SLOT / WORD)),
        }
    }
}

/// Bytes inside a page, which may change while they are read.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    payload: &'a Payload,
    /// `at + len` is at most the length of the payload.
    at: usize,
    len: usize,
}

impl<'a> Bytes<'a> {
    /// Number of bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Offset of the bytes in the payload.
    pub fn offset(self) -> usize {
        self.at
    }

    /// Copies as many bytes as fit into `to`. Returns their number.
    #[inline(always)]
    pub fn copy_to(self, to: &mut [u8]) -> usize {
        let len = self.len.min(to.len());
        self.payload.read(self.at, &mut to[..len]);
        len
    }

    /// Copies as many bytes as fit into `to`, and initialises that part of it. Returns the number of bytes.
    #[inline(always)]
    pub fn copy_to_uninit(self, to: &mut [MaybeUninit<u8>]) -> usize {
        let len = self.len.min(to.len());
        self.payload.read_uninit(self.at, &mut to[..len]);
        len
    }

    /// Appends a copy of the bytes.
    pub fn append_to(self, to: &mut Vec<u8>) {
        to.reserve(self.len);
        let copied = self.copy_to_uninit(&mut to.spare_capacity_mut()[..self.len]);
        // SAFETY: `copied` bytes after the vector's length have been initialised.
        unsafe { to.set_len(to.len() + copied) };
    }

    /// Appends the bytes to a key, up to the limit of [`LONGEST_KEY`].
    pub fn push_to(self, key: &mut Key) {
        if let Some(room) = key.room(self.len) {
            self.payload.read_uninit(self.at, room);
            key.len += self.len;
        } else {
            let some = Self { len: self.len.min(LONGEST_KEY - key.len), ..self };
            key.lengthen(some.len, |long| some.append_to(long));
        }
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    ///
    /// No thread changes the page during `'a`.
    pub unsafe fn stable(self) -> &'a [u8] {
        let start = (&raw const *self.payload).cast::<u8>();
        // SAFETY: the range is inside the page by construction. The caller guarantees that it does not change.
        unsafe { std::slice::from_raw_parts(start.add(self.at), self.len) }
    }

    /// The first two bytes as a number; 0 if there are fewer.
    #[inline(always)]
    fn u16(self) -> u16 {
        if self.len < 2 { 0 } else { self.payload.number(self.at, 2) as u16 }
    }

    /// Compares these bytes with `other`.
    #[inline(always)]
    pub fn compare(self, other: &[u8]) -> Ordering {
        let common = self.len.min(other.len());
        let (chunks, rest) = other[..common].as_chunks::<WORD>();
        let mut at = self.at;
        for chunk in chunks {
            let ours = self.payload.number(at, WORD).swap_bytes();
            let theirs = u64::from_be_bytes(*chunk);
            if ours != theirs {
                return ours.cmp(&theirs);
            }
            at += WORD;
        }
        let ours = self.payload.number(at, rest.len()).swap_bytes();
        let theirs = rest.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)).swap_bytes();
        ours.cmp(&theirs).then(self.len.cmp(&other.len()))
    }
}
