//! State that a process and its forked children share in addition to the memory: which snapshots are over, and
//! statistics of the children.
//!
//! It is one mapping that is shared with forked children. All fields are atomic, and no process waits for another.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::protocol::MOST;
use crate::Error;

/// The shared state. See the module.
#[derive(Debug)]
pub struct Control {
    /// For each slot, the epoch of the latest child's snapshot that is over.
    over: [AtomicU64; MOST],
    /// Number of children that entered ring 0.
    pub children: AtomicU64,
    /// Number of pages that children used.
    pub brought: AtomicU64,
    /// Number of pages that children dropped unchanged, to make room for others.
    pub dropped: AtomicU64,
}

impl Control {
    /// Records that the pages of a snapshot are not kept any more.
    pub fn set_over(&self, slot: usize, epoch: u64) {
        self.over[slot].store(epoch, Ordering::SeqCst);
    }

    /// Whether the pages of a snapshot are not kept any more.
    #[inline]
    pub fn is_over(&self, slot: usize, epoch: u64) -> bool {
        self.over[slot].load(Ordering::SeqCst) >= epoch
    }
}

/// The mapping, which exists as long as the process.
#[derive(Debug)]
pub struct ControlMapping(NonNull<Control>);

// SAFETY: a reference to atomics that are never freed.
unsafe impl Send for ControlMapping {}
// SAFETY: as above.
unsafe impl Sync for ControlMapping {}

impl ControlMapping {
    pub fn new() -> Result<Self, Error> {
        let (bytes, access) = (size_of::<Control>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::SHARED) };
        let at = at.map_err(Error::system("mapping memory for children"))?;
        Ok(Self(NonNull::new(at.cast()).expect("a mapping is not at address 0")))
    }
}

impl Deref for ControlMapping {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: mapped as long as the process lives; zero is a valid value of all fields.
        unsafe { self.0.as_ref() }
    }
}
