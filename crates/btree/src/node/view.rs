//! Reading a node that may change at any moment, or be no node at all.
//!
//! Owns the loads. Numbers that become offsets or lengths are loaded once, by an atomic load, and bounded; bytes that
//! only decide a comparison or are copied are read plainly, because no address follows from them. Such a read races
//! with a writer, as in every sequence lock; its result is dropped when the page's version says so.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use super::{
    CAPACITY, Copied, ELSEWHERE, FENCES, FIRST_CHILD, INNER, INNER_SLOT, Key, LEAF, LEAF_SLOT, MAX_KEY,
    PAYLOAD, PREFIX, SLOTS, Slot,
};

/// The payload of a page, of which nothing is known.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    base: *const u8,
    _bytes: PhantomData<&'a Copied>,
}

impl<'a> Page<'a> {
    /// # Safety
    ///
    /// `base` is a multiple of 8, and [`PAYLOAD`] bytes from there can be read during `'a` (whatever they are, and
    /// whoever writes them at the same time).
    #[inline(always)]
    pub unsafe fn new(base: *const u8) -> Self {
        Self { base, _bytes: PhantomData }
    }

    /// The page at `bytes`, which must be a multiple of 8.
    pub fn of(bytes: &'a [u8; PAYLOAD]) -> Self {
        assert!(bytes.as_ptr().addr().is_multiple_of(8), "a page's payload begins at a multiple of 8");
        // SAFETY: aligned as asserted, and readable as long as the reference lives.
        unsafe { Self::new(bytes.as_ptr()) }
    }

    /// # Safety
    ///
    /// `at` is a multiple of 8 and at most `PAYLOAD - 8`.
    #[inline(always)]
    unsafe fn word(self, at: usize) -> u64 {
        // SAFETY: inside the payload and aligned, as the caller promises. The load is atomic because others may write.
        u64::from_le(unsafe { &*self.base.add(at).cast::<AtomicU64>() }.load(Relaxed))
    }

    #[inline(always)]
    fn header<const AT: usize>(self) -> u64 {
        const { assert!(AT.is_multiple_of(8) && AT < SLOTS) };
        // SAFETY: the header is inside the payload.
        unsafe { self.word(AT) }
    }

    /// Up to `len` bytes at `at`, of which those outside of the page are cut off.
    #[inline(always)]
    pub fn bytes(self, at: usize, len: usize) -> Bytes<'a> {
        let at = at.min(PAYLOAD);
        // SAFETY: at most one past the end of the payload.
        Bytes { start: unsafe { self.base.add(at) }, len: len.min(PAYLOAD - at), _bytes: PhantomData }
    }

    /// Whether this says it is a leaf.
    #[inline(always)]
    pub fn is_leaf(self) -> bool {
        self.header::<0>() as u8 == LEAF
    }

    /// Whether this says it is an inner node.
    #[inline(always)]
    pub fn is_inner(self) -> bool {
        self.header::<0>() as u8 == INNER
    }

    /// How far this is above the leaves.
    pub fn level(self) -> u8 {
        (self.header::<0>() >> 8) as u8
    }

    /// Where the heap begins.
    pub(super) fn heap(self) -> usize {
        (self.header::<0>() >> 32 & 0xffff) as usize
    }

    /// Bytes of the heap in use.
    pub(super) fn live(self) -> usize {
        (self.header::<0>() >> 48) as usize
    }

    /// Bytes of slots and heap in use.
    pub fn used(self) -> usize {
        let count = (self.header::<0>() >> 16 & 0xffff) as usize;
        self.live() + count * if self.is_leaf() { LEAF_SLOT } else { INNER_SLOT }
    }

    /// Whether separator `key` and another child fit into this inner node.
    pub fn has_room_for_child(self, key: &[u8]) -> bool {
        let tail = key.len().saturating_sub(self.inner().prefix + 4);
        self.used() + INNER_SLOT + tail <= CAPACITY
    }

    /// This page as a leaf, whatever it is.
    #[inline(always)]
    pub fn leaf(self) -> Leaf<'a> {
        self.slots()
    }

    /// This page as an inner node, whatever it is.
    #[inline(always)]
    pub fn inner(self) -> Inner<'a> {
        self.slots()
    }

    #[inline(always)]
    pub(super) fn slots<const SLOT: usize>(self) -> Slots<'a, SLOT> {
        let count = (self.header::<0>() >> 16 & 0xffff) as usize;
        let prefix = (self.header::<PREFIX>() & 0xffff) as usize;
        Slots { page: self, count: count.min((PAYLOAD - SLOTS) / SLOT), prefix: prefix.min(MAX_KEY) }
    }

    /// The first key that may be here.
    pub fn low(self) -> Option<Bytes<'a>> {
        self.fence(0)
    }

    /// The first key that may not be here any more.
    pub fn high(self) -> Option<Bytes<'a>> {
        self.fence(32)
    }

    fn fence(self, shift: u32) -> Option<Bytes<'a>> {
        let word = self.header::<FENCES>() >> shift;
        let at = (word & 0xffff) as usize;
        (at != 0).then(|| self.bytes(at, ((word >> 16 & 0xffff) as usize).min(MAX_KEY)))
    }

    /// What is stored of the bytes that all keys begin with.
    fn prefix(self, len: usize) -> Bytes<'a> {
        self.bytes((self.header::<FENCES>() & 0xffff) as usize, len)
    }

    #[inline(always)]
    pub(super) fn hints(self) -> [i32; super::HINT_COUNT] {
        // SAFETY: the hints are in the header and aligned. They decide comparisons only, whose sum is bounded.
        unsafe { self.base.add(super::HINTS).cast::<[i32; super::HINT_COUNT]>().read() }.map(i32::from_le)
    }

    /// Copies the whole page.
    pub fn copy_to(self, copy: &mut Copied) {
        self.bytes(0, PAYLOAD).copy_to(&mut copy.0);
    }
}

/// A leaf's slots.
pub type Leaf<'a> = Slots<'a, LEAF_SLOT>;
/// An inner node's slots.
pub type Inner<'a> = Slots<'a, INNER_SLOT>;

/// The slots of a node as they were counted when this was made.
#[derive(Clone, Copy)]
pub struct Slots<'a, const SLOT: usize> {
    pub(super) page: Page<'a>,
    pub(super) count: usize,
    pub(super) prefix: usize,
}

impl<'a, const SLOT: usize> Slots<'a, SLOT> {
    /// Bytes of a record before what it holds of the key: a leaf's begins with the length of the value.
    pub(super) const TAIL: usize = if SLOT == LEAF_SLOT { 2 } else { 0 };

    /// How many there are.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.count
    }

    /// How many bytes all keys here have in common.
    pub fn prefix_len(self) -> usize {
        self.prefix
    }

    #[inline(always)]
    pub(super) fn slot(self, i: usize) -> Slot {
        // SAFETY: `count` was bounded by what fits, `i` is below it: callers count up to it. The minimum costs one
        // instruction and makes that a fact.
        Slot(unsafe { self.page.word(SLOTS + i.min((PAYLOAD - SLOTS) / SLOT - 1) * SLOT) })
    }

    /// What the record of `slot` holds of the key.
    #[inline(always)]
    pub(super) fn tail(self, slot: Slot) -> Bytes<'a> {
        self.page.bytes(slot.record() + Self::TAIL, slot.tail_len())
    }

    /// Key `i` as a whole, into `key`.
    pub fn key(self, i: usize, key: &mut Key) {
        key.clear();
        self.page.prefix(self.prefix).push_to(key);
        let slot = self.slot(i);
        key.push(&slot.head().to_be_bytes()[..slot.suffix_len().min(4)]);
        self.tail(slot).push_to(key);
    }
}

/// What is stored as a key's value.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// The value itself.
    Here(Bytes<'a>),
    /// The value's first page and its length.
    Elsewhere(u64, u64),
}

impl<'a> Leaf<'a> {
    /// The bytes after the key in record `i`, and whether they are a reference.
    pub(super) fn stored(self, slot: Slot) -> (u16, Bytes<'a>) {
        let tag = self.page.bytes(slot.record(), 2).u16();
        let len = if tag == ELSEWHERE { 16 } else { usize::from(tag) };
        (tag, self.page.bytes(slot.record() + 2 + slot.tail_len(), len))
    }

    /// The value of slot `i`.
    #[inline(always)]
    pub fn value(self, i: usize) -> Value<'a> {
        let (tag, bytes) = self.stored(self.slot(i));
        if tag == ELSEWHERE {
            let mut words = [0; 16];
            bytes.copy_to(&mut words);
            let words = u128::from_le_bytes(words);
            return Value::Elsewhere(words as u64, (words >> 64) as u64);
        }
        Value::Here(bytes)
    }
}

impl Inner<'_> {
    /// The child before separator `i`; with `i` the count, the last one.
    #[inline(always)]
    pub fn child(self, i: usize) -> u64 {
        match i.min((PAYLOAD - SLOTS) / INNER_SLOT) {
            0 => self.page.header::<FIRST_CHILD>(),
            // SAFETY: the second word of a slot that is in the page.
            i => unsafe { self.page.word(SLOTS + i * INNER_SLOT - 8) },
        }
    }
}

/// Bytes inside a page, which may change while they are read.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    start: *const u8,
    len: usize,
    _bytes: PhantomData<&'a Copied>,
}

impl<'a> Bytes<'a> {
    /// How many.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Where they begin.
    pub(super) fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// Copies as much as both have; returns how much that is.
    #[inline(always)]
    pub fn copy_to(self, to: &mut [u8]) -> usize {
        let len = self.len.min(to.len());
        // SAFETY: `to` is long enough for `len` bytes, and is not in the page, which nobody else has a reference to.
        unsafe { self.copy_to_raw(to.as_mut_ptr(), len) };
        len
    }

    /// # Safety
    ///
    /// `to` has room for `len` bytes, is not in this page, and `len` is at most [`Bytes::len`].
    #[inline(always)]
    pub unsafe fn copy_to_raw(self, to: *mut u8, len: usize) {
        debug_assert!(len <= self.len);
        // SAFETY: by the construction of `Bytes` inside the page, and by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(self.start, to, len) };
    }

    /// Appends a copy.
    pub fn append_to(self, to: &mut Vec<u8>) {
        let len = to.len();
        to.reserve(self.len);
        // SAFETY: there is room for as many bytes after `len`, which are written before they are counted.
        unsafe {
            self.copy_to_raw(to.as_mut_ptr().add(len), self.len);
            to.set_len(len + self.len);
        }
    }

    /// Appends as much as fits to a key.
    pub fn push_to(self, key: &mut Key) {
        let len = self.len.min(MAX_KEY - key.len);
        // SAFETY: there is room for as many after those that are written, and a key is not in a page.
        unsafe { self.copy_to_raw(key.bytes[key.len..].as_mut_ptr().cast(), len) };
        key.len += len;
    }

    /// # Safety
    ///
    /// Nobody changes the page during `'a`.
    pub unsafe fn stable(self) -> &'a [u8] {
        // SAFETY: inside the page by construction, and unchanged as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The first two bytes as a number; 0 when there are fewer.
    #[inline(always)]
    fn u16(self) -> u16 {
        if self.len < 2 {
            return 0;
        }
        // SAFETY: both bytes are in the page. A length must not be read twice, hence atomic.
        let byte = |i| unsafe { &*self.start.add(i).cast::<AtomicU8>() }.load(Relaxed);
        u16::from_le_bytes([byte(0), byte(1)])
    }

    /// The order of these bytes and `other`.
    #[inline(always)]
    pub fn compare(self, other: &[u8]) -> Ordering {
        let common = self.len.min(other.len());
        let mut at = 0;
        while at + 8 <= common {
            // SAFETY: eight bytes from `at` are in the page.
            let ours = u64::from_be_bytes(unsafe { self.start.add(at).cast::<[u8; 8]>().read() });
            let theirs = u64::from_be_bytes(other[at..at + 8].try_into().expect("eight bytes"));
            if ours != theirs {
                return ours.cmp(&theirs);
            }
            at += 8;
        }
        while at < common {
            // SAFETY: below the length.
            let ours = unsafe { self.start.add(at).read() };
            if ours != other[at] {
                return ours.cmp(&other[at]);
            }
            at += 1;
        }
        self.len.cmp(&other.len())
    }
}
