//! Point lookups.
//!
//! This is the hot path: it allocates nothing and writes to no shared memory. A value is copied to the reader's stack
//! and validated before the caller's closure sees it. The closure must not see bytes that change.
//!
//! A value in a leaf of more than 4 KiB may be too long for the stack. A reader copies such a value into a vector.

use std::mem::MaybeUninit;

use crate::descend::{Handle, Mode, retry};
use crate::error::{Attempt, Result};
use crate::latch::Readable;
use crate::node::view::{Bytes, Value};
use crate::node::{LONGEST_KEY, MAX_RECORD};

/// A buffer for a value.
pub(crate) struct Room {
    bytes: [MaybeUninit<u8>; MAX_RECORD],
    len: usize,
    /// The value, if it was in an overflow chain or has more than [`MAX_RECORD`] bytes.
    long: Vec<u8>,
}

impl Room {
    /// An empty buffer.
    #[inline(always)]
    pub fn new() -> Self {
        Self { bytes: [const { MaybeUninit::uninit() }; MAX_RECORD], len: 0, long: Vec::new() }
    }

    /// Copies a value that is in a leaf, so that the caller can change the copy.
    pub fn copy(&mut self, value: Bytes<'_>) -> &mut [u8] {
        self.take(value);
        if self.long.is_empty() {
            // SAFETY: `take` has initialised the first `len` bytes.
            unsafe { self.bytes[..self.len].assume_init_mut() }
        } else {
            &mut self.long
        }
    }

    /// Copies a value that is in a leaf.
    #[inline(always)]
    fn take(&mut self, value: Bytes<'_>) {
        self.long.clear();
        if value.len() <= MAX_RECORD {
            self.len = value.copy_to_uninit(&mut self.bytes);
        } else {
            self.take_long(value);
        }
    }

    #[cold]
    fn take_long(&mut self, value: Bytes<'_>) {
        value.append_to(&mut self.long);
    }

    /// The value that was read last.
    #[inline(always)]
    pub fn value(&self) -> &[u8] {
        if self.long.is_empty() {
            // SAFETY: `take` has written the first `len` bytes.
            unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
        } else {
            &self.long
        }
    }
}

impl<'p> Handle<'p> {
    /// Reads the value of `key` into `room`. Returns whether the key is in the tree.
    #[inline(always)]
    pub fn get(self, key: &[u8], room: &mut Room) -> Result<bool> {
        if key.len() > LONGEST_KEY {
            return Ok(false);
        }
        let found = retry(|mode| match mode {
            Mode::Optimistic => self.short_value(&self.leaf(|inner| inner.position(key))?, key, room),
            Mode::Latched => self.short_value(&self.leaf_shared(&|inner| inner.position(key))?, key, room),
        })?;
        match found {
            Some(found) => Ok(found),
            None => self.long_value(key, room),
        }
    }

    /// Like [`Handle::get`], for a value that was in an overflow chain. No leaf is held, so the value may be another
    /// one by now.
    #[cold]
    pub fn long_value(self, key: &[u8], room: &mut Room) -> Result<bool> {
        room.len = 0;
        Ok(self.read_value(key, &mut room.long)?.is_some())
    }

    /// Reads the value of `key` if it is in the leaf. Returns none if it is in an overflow chain.
    #[inline(always)]
    pub fn short_value(self, leaf: &impl Readable, key: &[u8], room: &mut Room) -> Attempt<Option<bool>> {
        let slots = leaf.view().leaf();
        let (at, found) = slots.lower_bound(key);
        if !found {
            leaf.validate()?;
            return Ok(Some(false));
        }
        match slots.value(at) {
            Value::Here(bytes) => {
                room.take(bytes);
                leaf.validate()?;
            }
            Value::Overflow(..) => {
                leaf.validate()?;
                return Ok(None);
            }
        }
        Ok(Some(true))
    }

    /// Returns whether `key` is in the tree.
    #[inline]
    pub fn contains(self, key: &[u8]) -> Result<bool> {
        fn has(leaf: &impl Readable, key: &[u8]) -> Attempt<bool> {
            let (_, found) = leaf.view().leaf().lower_bound(key);
            leaf.validate()?;
            Ok(found)
        }
        if key.len() > LONGEST_KEY {
            return Ok(false);
        }
        retry(|mode| match mode {
            Mode::Optimistic => has(&self.leaf(|inner| inner.position(key))?, key),
            Mode::Latched => has(&self.leaf_shared(&|inner| inner.position(key))?, key),
        })
    }
}
