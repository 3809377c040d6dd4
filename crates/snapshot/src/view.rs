//! The view of a task: the memory as it was at the snapshot.

use std::marker::PhantomData;

/// A memory as it was at the snapshot, in the address space of the task that runs on it.
///
/// Later writes of the memory's owner do not change it. The engine determines whether the view has the memory's own
/// address ([`is_at_home`](Self::is_at_home)). Data with absolute pointers can be read only there.
#[derive(Debug)]
pub struct View<'a> {
    base: *const u8,
    bytes: usize,
    home: *const u8,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: a view is memory that does not change while the view exists.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl View<'_> {
    /// # Safety
    /// `bytes` bytes at `base` must be readable and unchanged as long as the view exists. `base` must be the
    /// address of a page.
    pub(crate) unsafe fn new(base: *const u8, bytes: usize, home: *const u8) -> Self {
        debug_assert!((base as usize).is_multiple_of(crate::PAGE));
        Self { base, bytes, home, life: PhantomData }
    }

    /// The first address of the memory for the task.
    pub fn base(&self) -> *const u8 {
        self.base
    }

    /// Whether the task sees the memory at its owner's addresses.
    pub fn is_at_home(&self) -> bool {
        self.base == self.home
    }

    /// The whole memory as bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(self.base, self.bytes) }
    }

    /// The content of `len` bytes at one of the owner's addresses, or `None` if they are not all in the memory. A
    /// task can thus find flat data by the owner's pointer to it, at any address of the view.
    pub fn bytes_at(&self, owners: *const u8, len: usize) -> Option<&[u8]> {
        let start = (owners as usize).checked_sub(self.home as usize)?;
        self.bytes().get(start..start.checked_add(len)?)
    }

    /// The whole memory as words.
    pub fn words(&self) -> &[u64] {
        // SAFETY: as above; a page's address is aligned, and every bit pattern is a number.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.bytes / size_of::<u64>()) }
    }
}
