//! Point lookups.
//!
//! The hot path: no allocation, nothing written to shared memory. A value is copied to the reader's stack and validated
//! before the reader's code sees it, for code must not see bytes that change.

use std::mem::MaybeUninit;

use bedplate_bufpool::PageId;

use crate::error::{Attempt, Result};
use crate::handle::{Handle, Mode, retry};
use crate::latch::Readable;
use crate::node::view::Value;
use crate::node::{MAX_KEY, MAX_RECORD};

/// Room for any value that is in a leaf.
pub(crate) struct Room {
    bytes: [MaybeUninit<u8>; MAX_RECORD],
    len: usize,
    /// The value when it is longer than that.
    long: Vec<u8>,
}

impl Room {
    /// Without anything in it.
    #[inline(always)]
    pub fn new() -> Self {
        Self { bytes: [const { MaybeUninit::uninit() }; MAX_RECORD], len: 0, long: Vec::new() }
    }

    /// What was read last.
    #[inline(always)]
    pub fn value(&self) -> &[u8] {
        if self.long.is_empty() {
            // SAFETY: the first `len` bytes have been written by `Handle::value`.
            unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
        } else {
            &self.long
        }
    }
}

impl<'p> Handle<'p> {
    /// The value of `key` into `room`, and whether there is one.
    #[inline(always)]
    pub fn get(self, key: &[u8], room: &mut Room) -> Result<bool> {
        if key.len() > MAX_KEY {
            return Ok(false);
        }
        retry(|mode| match mode {
            Mode::Optimistic => self.value(&self.leaf(|inner| inner.position(key))?, key, room),
            Mode::Latched => self.value(&self.leaf_shared(&|inner| inner.position(key))?, key, room),
        })
    }

    #[inline(always)]
    fn value(self, leaf: &impl Readable, key: &[u8], room: &mut Room) -> Attempt<bool> {
        let slots = leaf.view().leaf();
        let (at, found) = slots.lower_bound(key);
        if !found {
            leaf.validate()?;
            return Ok(false);
        }
        match slots.value(at) {
            Value::Here(bytes) => {
                room.long.clear();
                room.len = bytes.len().min(MAX_RECORD);
                // SAFETY: `room` is not in a page, and has room for as many.
                unsafe { bytes.copy_to_raw(room.bytes.as_mut_ptr().cast(), room.len) };
                leaf.validate()?;
            }
            Value::Elsewhere(first, len) => {
                leaf.validate()?;
                self.read_chain(first, len, PageId::NONE, || leaf.validate(), &mut room.long)?;
            }
        }
        Ok(true)
    }

    /// Whether `key` is there.
    #[inline]
    pub fn contains(self, key: &[u8]) -> Result<bool> {
        fn has(leaf: &impl Readable, key: &[u8]) -> Attempt<bool> {
            let (_, found) = leaf.view().leaf().lower_bound(key);
            leaf.validate()?;
            Ok(found)
        }
        if key.len() > MAX_KEY {
            return Ok(false);
        }
        retry(|mode| match mode {
            Mode::Optimistic => has(&self.leaf(|inner| inner.position(key))?, key),
            Mode::Latched => has(&self.leaf_shared(&|inner| inner.position(key))?, key),
        })
    }
}
