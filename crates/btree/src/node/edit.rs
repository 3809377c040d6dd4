//! Changes of a node under an exclusive latch.
//!
//! This module contains all stores. They go through [`PayloadMut`], because optimistic readers may read the page at the
//! same time. A page that is changed here has a valid checksum, but it may still have any content. So offsets are
//! bounded by the same [`view`](super::view) that readers use, and a store outside the payload panics. A page that is
//! not a node causes wrong results or [`Full`], but never a store outside the page.

use bedplate_bufpool::{Exclusive, Payload, PayloadMut};

use super::search::biased;
use super::view::{Inner, Leaf, Page, Slots, Value};
use super::{
    FENCES, FIRST_CHILD, HINT_COUNT, HINTS, INNER, INNER_SLOT, LEAF, LEAF_SLOT, OVERFLOW, PREFIX, PageBuf,
    SLOTS, Slot, WORD, common_prefix, hint_position,
};

/// The node has no room, even after its heap is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A value to be put into a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewValue<'a> {
    /// The bytes of the value. Key and value together have at most [`max_record`](super::max_record) bytes.
    Here(&'a [u8]),
    /// The first overflow page of the value, and the length of the value.
    Overflow(u64, u64),
}

/// A [`NewValue`] as a record stores it: the tag before the key's tail, and the bytes after it.
struct Stored<'a> {
    tag: [u8; 2],
    reference: [u8; 16],
    value: Option<&'a [u8]>,
}

impl<'a> Stored<'a> {
    fn new(value: NewValue<'a>) -> Result<Self, Full> {
        match value {
            // A value longer than a page fails later, because it has no room. Here its length must only differ from the
            // tag `OVERFLOW`.
            NewValue::Here(bytes) => {
                let tag = u16::try_from(bytes.len()).ok().filter(|&len| len != OVERFLOW).ok_or(Full)?;
                Ok(Self { tag: tag.to_le_bytes(), reference: [0; 16], value: Some(bytes) })
            }
            NewValue::Overflow(page, len) => {
                let words = u128::from(page) | u128::from(len) << 64;
                Ok(Self { tag: OVERFLOW.to_le_bytes(), reference: words.to_le_bytes(), value: None })
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        self.value.unwrap_or(&self.reference)
    }
}

/// An object that has the payload of a page, which only the caller may change.
pub trait Editable {
    /// The payload, for changes.
    fn payload_mut(&mut self) -> PayloadMut<'_>;
}

impl Editable for Box<Payload> {
    fn payload_mut(&mut self) -> PayloadMut<'_> {
        PayloadMut::from(&mut **self)
    }
}

impl Editable for Exclusive<'_> {
    #[inline(always)]
    fn payload_mut(&mut self) -> PayloadMut<'_> {
        Exclusive::payload_mut(self)
    }
}

/// A node that only the caller changes. Optimistic readers may read it meanwhile, and their validation then fails.
pub struct Node<'a> {
    bytes: PayloadMut<'a>,
}

impl<'a> Node<'a> {
    /// The node in `page`.
    #[inline(always)]
    pub fn of(page: &'a mut impl Editable) -> Self {
        Self { bytes: page.payload_mut() }
    }

    /// Overwrites the page with an empty node. `first` is the child before the first separator of an inner node.
    pub fn create(
        page: &'a mut impl Editable,
        level: u8,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        first: u64,
    ) -> Self {
        let mut node = Self::of(page);
        node.bytes.fill(0..SLOTS, 0);
        node.bytes.write(0, &[if level == 0 { LEAF } else { INNER }, level]);
        let (end, max_key) = (node.page().end(), node.page().max_key());
        node.put_u16(4, end);
        node.put_u64(FIRST_CHILD, first);
        if let (Some(low), Some(high)) = (low, high) {
            node.put_u16(PREFIX, common_prefix(low, high).min(max_key));
        }
        for (at, fence) in [(FENCES, low), (FENCES + 4, high)] {
            // Two fences always fit into an empty node.
            if let Some(fence) = fence
                && let Ok(offset) = node.push(&[&fence[..fence.len().min(max_key)]])
            {
                node.put_u16(at, offset);
                node.put_u16(at + 2, fence.len().min(max_key));
            }
        }
        node
    }

    /// The node as a reader sees it.
    pub fn page(&self) -> Page<'_> {
        Page::of(self.bytes.payload())
    }

    /// The slots of the node as a leaf.
    pub fn leaf(&self) -> Leaf<'_> {
        self.page().leaf()
    }

    /// The slots of the node as an inner node.
    pub fn inner(&self) -> Inner<'_> {
        self.page().inner()
    }

    /// Replaces the whole payload.
    pub fn overwrite(&mut self, with: &PageBuf) {
        self.bytes.copy_from(&with.0);
    }

    /// Changes a number of the header. The number must be inside one word.
    fn put_u16(&mut self, at: usize, value: usize) {
        debug_assert!(value <= usize::from(u16::MAX) && at % WORD <= WORD - 2);
        let shift = at % WORD * 8;
        let others = self.bytes.payload().word(at / WORD) & !(0xffff << shift);
        self.bytes.set_word(at / WORD, others | (value as u64 & 0xffff) << shift);
    }

    fn put_u64(&mut self, at: usize, value: u64) {
        debug_assert!(at.is_multiple_of(WORD));
        self.bytes.set_word(at / WORD, value);
    }

    fn slot_size(&self) -> usize {
        if self.page().is_leaf() { LEAF_SLOT } else { INNER_SLOT }
    }

    fn count(&self) -> usize {
        if self.page().is_leaf() { self.leaf().count() } else { self.inner().count() }
    }

    /// End of the slots, where free space begins.
    fn slots_end(&self) -> usize {
        SLOTS + self.count() * self.slot_size()
    }

    /// Free bytes between slots and heap.
    fn gap(&self) -> usize {
        self.page().heap().min(self.page().end()).saturating_sub(self.slots_end())
    }

    /// Puts the concatenation of `parts` into the heap. Returns its offset, or [`Full`] if the gap is too small.
    fn push(&mut self, parts: &[&[u8]]) -> Result<usize, Full> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > self.gap() {
            return Err(Full);
        }
        let start = self.page().heap().min(self.page().end()) - len;
        let mut at = start;
        for part in parts {
            self.bytes.write(at, part);
            at += part.len();
        }
        let live = self.page().live() + len;
        self.put_u16(4, start);
        let end = self.page().end();
        self.put_u16(6, live.min(end));
        Ok(start)
    }

    fn release(&mut self, len: usize) {
        let live = self.page().live().saturating_sub(len);
        self.put_u16(6, live);
    }

    /// Makes the gap at least `len` bytes. Compacts the heap if necessary.
    fn reserve(&mut self, len: usize) -> Result<(), Full> {
        if len <= self.gap() {
            return Ok(());
        }
        if len > self.page().end().saturating_sub(self.slots_end() + self.page().live()) {
            return Err(Full);
        }
        let copy = PageBuf(self.bytes.payload().to_boxed());
        if self.page().is_leaf() {
            self.compact::<LEAF_SLOT>(&copy)
        } else {
            self.compact::<INNER_SLOT>(&copy)
        }?;
        if len <= self.gap() { Ok(()) } else { Err(Full) }
    }

    /// Rewrites the heap without gaps. `old` is a copy of this node. Slots keep their positions.
    fn compact<const SLOT: usize>(&mut self, old: &PageBuf) -> Result<(), Full> {
        let page = Page::of(&old.0);
        self.put_u16(4, page.end());
        self.put_u16(6, 0);
        for (at, fence) in [(FENCES, page.low()), (FENCES + 4, page.high())] {
            if let Some(fence) = fence {
                // SAFETY: `old` is a copy that no thread writes.
                let offset = self.push(&[unsafe { fence.stable() }])?;
                self.put_u16(at, offset);
            }
        }
        let slots = page.slots::<SLOT>();
        for i in 0..slots.count() {
            let slot = slots.slot(i);
            let record = page.bytes(slot.record(), record_len(slots, slot));
            // SAFETY: as above.
            let offset = self.push(&[unsafe { record.stable() }])?;
            self.put_u64(SLOTS + i * SLOT, slot.0 & !0xffff | offset as u64);
        }
        Ok(())
    }

    /// Inserts a slot at `at`.
    fn open_slot(&mut self, at: usize, slot: Slot, child: Option<u64>) {
        let (size, end) = (self.slot_size(), self.slots_end());
        let start = (SLOTS + at * size).min(end);
        self.bytes.copy_within(start..end, start + size);
        self.put_u64(start, slot.0);
        if let Some(child) = child {
            self.put_u64(start + 8, child);
        }
        let count = self.count() + 1;
        self.put_u16(2, count);
    }

    fn close_slot(&mut self, at: usize) {
        let (size, end) = (self.slot_size(), self.slots_end());
        let start = SLOTS + at * size;
        self.bytes.copy_within((start + size).min(end)..end, start.min(end));
        let count = self.count().saturating_sub(1);
        self.put_u16(2, count);
    }

    /// Recomputes the hints. Required after any change of the slots.
    pub fn refresh_hints(&mut self) {
        if self.page().is_leaf() { self.refresh::<LEAF_SLOT>() } else { self.refresh::<INNER_SLOT>() }
    }

    fn refresh<const SLOT: usize>(&mut self) {
        let mut hints = [0u8; 4 * HINT_COUNT];
        let slots = self.page().slots::<SLOT>();
        if slots.count() > 0 {
            for (j, hint) in hints.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *hint = biased(slots.slot(hint_position(j, slots.count())).head()).to_le_bytes();
            }
        }
        self.bytes.write(HINTS, &hints);
    }

    /// Inserts `key` at slot `at`, the position that [`lower_bound`](Slots::lower_bound) returned. Does not update the
    /// hints.
    pub fn put(&mut self, at: usize, key: &[u8], value: NewValue<'_>) -> Result<(), Full> {
        let stored = Stored::new(value)?;
        let suffix = key.get(self.leaf().prefix_len()..).unwrap_or_default();
        let tail = suffix.get(4..).unwrap_or_default();
        self.reserve(LEAF_SLOT + 2 + tail.len() + stored.bytes().len())?;
        let record = self.push(&[&stored.tag, tail, stored.bytes()])?;
        self.open_slot(at, Slot::new(suffix, record), None);
        Ok(())
    }

    /// Inserts separator `key`, with the child to the right of it, at slot `at`. Does not update the hints.
    pub fn put_child(&mut self, at: usize, key: &[u8], child: u64) -> Result<(), Full> {
        let suffix = key.get(self.inner().prefix_len()..).unwrap_or_default();
        let tail = suffix.get(4..).unwrap_or_default();
        self.reserve(INNER_SLOT + tail.len())?;
        let record = self.push(&[tail])?;
        self.open_slot(at, Slot::new(suffix, record), Some(child));
        Ok(())
    }

    /// Leaf: inserts `key` at slot `at`, its position in key order.
    pub fn insert(&mut self, at: usize, key: &[u8], value: NewValue<'_>) -> Result<(), Full> {
        self.put(at, key, value)?;
        self.refresh_hints();
        Ok(())
    }

    /// Inner node: inserts separator `key` at slot `at`, with `child`, which has the keys from `key` on.
    pub fn insert_child(&mut self, at: usize, key: &[u8], child: u64) -> Result<(), Full> {
        self.put_child(at, key, child)?;
        self.refresh_hints();
        Ok(())
    }

    /// Removes slot `at`. In an inner node, this removes the separator and the child after it.
    pub fn remove(&mut self, at: usize) {
        if at >= self.count() {
            return;
        }
        let len = if self.page().is_leaf() {
            record_len(self.leaf(), self.leaf().slot(at))
        } else {
            record_len(self.inner(), self.inner().slot(at))
        };
        self.release(len);
        self.close_slot(at);
        self.refresh_hints();
    }

    /// Leaf: replaces the value of slot `at`. If this returns [`Full`], the node is unchanged.
    pub fn replace(&mut self, at: usize, value: NewValue<'_>) -> Result<(), Full> {
        let new = Stored::new(value)?;
        if at >= self.leaf().count() {
            return Err(Full);
        }
        let slot = self.leaf().slot(at);
        let (_, old) = self.leaf().stored(slot);
        let (old_len, new_len, tail) = (old.len(), new.bytes().len(), slot.tail_len());
        if new_len <= old_len {
            let start = slot.record() + 2 + tail;
            let end = self.page().end();
            if start + new_len > end || slot.record() + 2 > end {
                return Err(Full);
            }
            self.bytes.write(start, new.bytes());
            self.bytes.write(slot.record(), &new.tag);
            self.release(old_len - new_len);
            return Ok(());
        }
        let free = self.page().end().saturating_sub(self.slots_end() + self.page().live());
        let len = record_len(self.leaf(), slot);
        if 2 + tail + new_len > free + len {
            return Err(Full);
        }
        let mut key = super::Key::new();
        self.leaf().key(at, &mut key);
        self.release(len);
        self.close_slot(at);
        self.put(at, &key, value)
    }

    /// Leaf: overwrites value `at` in place, if it is in the leaf. Writes the minimum of both lengths.
    pub fn overwrite_value(&mut self, at: usize, new: &[u8]) {
        if at >= self.leaf().count() {
            return;
        }
        if let Value::Here(bytes) = self.leaf().value(at) {
            let (start, len) = (bytes.offset(), bytes.len().min(new.len()));
            self.bytes.write(start, &new[..len]);
        }
    }
}

/// Size of the record of `slot`, in bytes.
pub(super) fn record_len<const SLOT: usize>(slots: Slots<'_, SLOT>, slot: Slot) -> usize {
    if SLOT == LEAF_SLOT {
        let leaf = slots.page.leaf();
        2 + slot.tail_len() + leaf.stored(slot).1.len()
    } else {
        slot.tail_len()
    }
}
