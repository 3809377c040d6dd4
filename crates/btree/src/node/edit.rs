//! Changing a node under an exclusive latch.
//!
//! Owns every store. A page that reaches this has a valid checksum, but may still hold anything: offsets are bounded
//! by the same [`view`](super::view) that readers use and every store goes through a slice, so a page that is no node
//! makes wrong answers or [`Full`], never a store outside of it.

use super::search::biased;
use super::view::{Inner, Leaf, Page, Slots, Value};
use super::{
    Copied, ELSEWHERE, FENCES, FIRST_CHILD, HINT_COUNT, HINTS, INNER, INNER_SLOT, LEAF, LEAF_SLOT, MAX_KEY,
    PAYLOAD, PREFIX, SLOTS, Slot, common_prefix, hint_position,
};

/// There is no room, not even when the heap is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A value as it is put into a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewValue<'a> {
    /// The value itself; with its key at most [`MAX_RECORD`](super::MAX_RECORD) bytes.
    Here(&'a [u8]),
    /// The value's first page and its length.
    Elsewhere(u64, u64),
}

/// The bytes of a [`NewValue`] in a record, and what precedes the key's tail there.
struct Stored<'a> {
    tag: [u8; 2],
    reference: [u8; 16],
    value: Option<&'a [u8]>,
}

impl<'a> Stored<'a> {
    fn new(value: NewValue<'a>) -> Result<Self, Full> {
        match value {
            // More than a page is refused by the lack of room; it must only not look like a reference.
            NewValue::Here(bytes) => {
                let tag = u16::try_from(bytes.len()).ok().filter(|&len| len != ELSEWHERE).ok_or(Full)?;
                Ok(Self { tag: tag.to_le_bytes(), reference: [0; 16], value: Some(bytes) })
            }
            NewValue::Elsewhere(page, len) => {
                let words = u128::from(page) | u128::from(len) << 64;
                Ok(Self { tag: ELSEWHERE.to_le_bytes(), reference: words.to_le_bytes(), value: None })
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        self.value.unwrap_or(&self.reference)
    }
}

/// A node that nobody else reads or writes now; optimistic readers will find out that it changed.
pub struct Node<'a> {
    bytes: &'a mut [u8; PAYLOAD],
}

impl<'a> Node<'a> {
    /// The node at `bytes`.
    pub fn of(bytes: &'a mut [u8; PAYLOAD]) -> Self {
        Self { bytes }
    }

    /// Makes an empty node of what was there. `first` is an inner node's child before the first separator.
    pub fn create(
        bytes: &'a mut [u8; PAYLOAD],
        level: u8,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        first: u64,
    ) -> Self {
        let mut node = Self { bytes };
        node.bytes[..SLOTS].fill(0);
        node.bytes[0] = if level == 0 { LEAF } else { INNER };
        node.bytes[1] = level;
        node.put_u16(4, PAYLOAD);
        node.put_u64(FIRST_CHILD, first);
        if let (Some(low), Some(high)) = (low, high) {
            node.put_u16(PREFIX, common_prefix(low, high).min(MAX_KEY));
        }
        for (at, fence) in [(FENCES, low), (FENCES + 4, high)] {
            // Two fences always fit into an empty node.
            if let Some(fence) = fence
                && let Ok(offset) = node.push(&[&fence[..fence.len().min(MAX_KEY)]])
            {
                node.put_u16(at, offset);
                node.put_u16(at + 2, fence.len().min(MAX_KEY));
            }
        }
        node
    }

    /// How others read it.
    pub fn page(&self) -> Page<'_> {
        Page::of(self.bytes)
    }

    /// Its slots, when it is a leaf.
    pub fn leaf(&self) -> Leaf<'_> {
        self.page().leaf()
    }

    /// Its slots, when it is an inner node.
    pub fn inner(&self) -> Inner<'_> {
        self.page().inner()
    }

    /// Replaces everything.
    pub fn overwrite(&mut self, with: &Copied) {
        self.bytes.copy_from_slice(&with.0);
    }

    fn put_u16(&mut self, at: usize, value: usize) {
        debug_assert!(value <= usize::from(u16::MAX));
        self.bytes[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
    }

    fn put_u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn slot_size(&self) -> usize {
        if self.page().is_leaf() { LEAF_SLOT } else { INNER_SLOT }
    }

    fn count(&self) -> usize {
        if self.page().is_leaf() { self.leaf().count() } else { self.inner().count() }
    }

    /// Where free space begins.
    fn slots_end(&self) -> usize {
        SLOTS + self.count() * self.slot_size()
    }

    /// Bytes between slots and heap.
    fn gap(&self) -> usize {
        self.page().heap().min(PAYLOAD).saturating_sub(self.slots_end())
    }

    /// Puts `parts` one after the other into the heap, as far as the gap allows.
    fn push(&mut self, parts: &[&[u8]]) -> Result<usize, Full> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > self.gap() {
            return Err(Full);
        }
        let start = self.page().heap().min(PAYLOAD) - len;
        let mut at = start;
        for part in parts {
            self.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let live = self.page().live() + len;
        self.put_u16(4, start);
        self.put_u16(6, live.min(PAYLOAD));
        Ok(start)
    }

    fn release(&mut self, len: usize) {
        let live = self.page().live().saturating_sub(len);
        self.put_u16(6, live);
    }

    /// Makes the gap at least `len` bytes.
    fn reserve(&mut self, len: usize) -> Result<(), Full> {
        if len <= self.gap() {
            return Ok(());
        }
        if len > PAYLOAD.saturating_sub(self.slots_end() + self.page().live()) {
            return Err(Full);
        }
        let mut copy = Copied::new();
        self.page().copy_to(&mut copy);
        if self.page().is_leaf() {
            self.compact::<LEAF_SLOT>(&copy)
        } else {
            self.compact::<INNER_SLOT>(&copy)
        }?;
        if len <= self.gap() { Ok(()) } else { Err(Full) }
    }

    /// Writes the heap anew, from `old`, which is what this was; slots keep their places.
    fn compact<const SLOT: usize>(&mut self, old: &Copied) -> Result<(), Full> {
        let page = Page::of(&old.0);
        self.put_u16(4, PAYLOAD);
        self.put_u16(6, 0);
        for (at, fence) in [(FENCES, page.low()), (FENCES + 4, page.high())] {
            if let Some(fence) = fence {
                // SAFETY: `old` is a copy that nobody writes to.
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

    /// Makes room for a slot at `at`.
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

    /// Writes the hints anew: after any change of the slots.
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
        self.bytes[HINTS..SLOTS].copy_from_slice(&hints);
    }

    /// Puts `key` at slot `at`, where [`lower_bound`](Slots::lower_bound) did not find it. Hints are not written.
    pub fn put(&mut self, at: usize, key: &[u8], value: NewValue<'_>) -> Result<(), Full> {
        let stored = Stored::new(value)?;
        let suffix = key.get(self.leaf().prefix_len()..).unwrap_or_default();
        let tail = suffix.get(4..).unwrap_or_default();
        self.reserve(LEAF_SLOT + 2 + tail.len() + stored.bytes().len())?;
        let record = self.push(&[&stored.tag, tail, stored.bytes()])?;
        self.open_slot(at, Slot::new(suffix, record), None);
        Ok(())
    }

    /// Puts separator `key` and the child from there on at slot `at`. Hints are not written.
    pub fn put_child(&mut self, at: usize, key: &[u8], child: u64) -> Result<(), Full> {
        let suffix = key.get(self.inner().prefix_len()..).unwrap_or_default();
        let tail = suffix.get(4..).unwrap_or_default();
        self.reserve(INNER_SLOT + tail.len())?;
        let record = self.push(&[tail])?;
        self.open_slot(at, Slot::new(suffix, record), Some(child));
        Ok(())
    }

    /// Leaf: inserts `key` before slot `at`, which is where it belongs.
    pub fn insert(&mut self, at: usize, key: &[u8], value: NewValue<'_>) -> Result<(), Full> {
        self.put(at, key, value)?;
        self.refresh_hints();
        Ok(())
    }

    /// Inner: inserts separator `key` before slot `at`, and `child`, which has the keys from it on.
    pub fn insert_child(&mut self, at: usize, key: &[u8], child: u64) -> Result<(), Full> {
        self.put_child(at, key, child)?;
        self.refresh_hints();
        Ok(())
    }

    /// Removes slot `at`; in an inner node the separator and the child after it.
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

    /// Leaf: replaces the value of slot `at`. On [`Full`] nothing has changed.
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
            let Some(place) = self.bytes.get_mut(start..start + new_len) else { return Err(Full) };
            place.copy_from_slice(new.bytes());
            self.bytes[slot.record()..slot.record() + 2].copy_from_slice(&new.tag);
            self.release(old_len - new_len);
            return Ok(());
        }
        let free = PAYLOAD.saturating_sub(self.slots_end() + self.page().live());
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

    /// Leaf: the bytes of value `at`, to be changed in place; none if they are elsewhere.
    pub fn into_value(self, at: usize) -> Option<&'a mut [u8]> {
        if at >= self.leaf().count() {
            return None;
        }
        let Value::Here(bytes) = self.leaf().value(at) else { return None };
        let start = bytes.as_ptr().addr() - self.bytes.as_ptr().addr();
        let len = bytes.len();
        self.bytes.get_mut(start..start + len)
    }
}

/// Bytes of the record of `slot`.
pub(super) fn record_len<const SLOT: usize>(slots: Slots<'_, SLOT>, slot: Slot) -> usize {
    if SLOT == LEAF_SLOT {
        let leaf = slots.page.leaf();
        2 + slot.tail_len() + leaf.stored(slot).1.len()
    } else {
        slot.tail_len()
    }
}
