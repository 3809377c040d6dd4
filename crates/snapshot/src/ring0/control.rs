//! What a process and its forked children share besides the memory: which snapshots are over, and what children did.
//!
//! It is one mapping that forked children share. All of it is atomic; nobody waits for anybody.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::protocol::MOST;
use crate::Error;

/// See the module.
#[derive(Debug)]
pub struct Control {
    /// For each slot, the epoch of the latest snapshot of a child's that is over.
    over: [AtomicU64; MOST],
    /// Children that entered ring 0.
    pub children: AtomicU64,
    /// Pages that children have used.
    pub brought: AtomicU64,
    /// Pages that they let go of, unchanged, to use others.
    pub dropped: AtomicU64,
}

impl Control {
    /// A snapshot's pages are not kept any more.
    pub fn set_over(&self, slot: usize, epoch: u64) {
        self.over[slot].store(epoch, Ordering::SeqCst);
    }

    /// Whether that has happened.
    #[inline]
    pub fn is_over(&self, slot: usize, epoch: u64) -> bool {
        self.over[slot].load(Ordering::SeqCst) >= epoch
    }
}

/// The mapping, for as long as the process lives.
#[derive(Debug)]
pub struct ControlMapping(NonNull<Control>);

// SAFETY: a reference to atomics that stay.
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
        // SAFETY: mapped as long as the process lives; zeros are values of all of it.
        unsafe { self.0.as_ref() }
    }
}
