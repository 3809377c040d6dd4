//! What a task sees: the memory as it was.

use std::marker::PhantomData;

/// A memory as it was at the snapshot, in the address space of the task that runs on it.
///
/// Nothing the memory's owner does changes it. Whether it is at the memory's own address is the engine's matter
/// ([`is_at_home`](Self::is_at_home)): data with absolute pointers in it must be read where it is at home.
#[derive(Debug)]
pub struct View<'a> {
    base: *const u8,
    bytes: usize,
    home: *const u8,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: a view is memory that does not change while it lives.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl View<'_> {
    /// # Safety
    /// `bytes` of memory at `base` are readable and unchanged as long as the view lives; `base` is a page's.
    pub(crate) unsafe fn new(base: *const u8, bytes: usize, home: *const u8) -> Self {
        debug_assert!((base as usize).is_multiple_of(crate::PAGE));
        Self { base, bytes, home, life: PhantomData }
    }

    /// Where the memory is for the task.
    pub fn base(&self) -> *const u8 {
        self.base
    }

    /// Whether the task sees the memory at the addresses where its owner has it.
    pub fn is_at_home(&self) -> bool {
        self.base == self.home
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: what `new` was promised.
        unsafe { std::slice::from_raw_parts(self.base, self.bytes) }
    }

    /// What the owner had in `len` bytes at one of its own addresses, if all of them are in the memory. So flat data is
    /// found by the owner's pointer to it, wherever the view is.
    pub fn bytes_at(&self, owners: *const u8, len: usize) -> Option<&[u8]> {
        let start = (owners as usize).checked_sub(self.home as usize)?;
        self.bytes().get(start..start.checked_add(len)?)
    }

    /// All of it in words.
    pub fn words(&self) -> &[u64] {
        // SAFETY: as above; a page's address is aligned, and any bits are a number.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.bytes / size_of::<u64>()) }
    }
}
