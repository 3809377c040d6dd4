//! The state between the beginning of a snapshot for a child and the fork of the child. It is one type for all
//! engines, so that nothing is allocated for it: other threads may hold the locks of the program's allocator.

use crate::{Error, remap, uffd};

/// A memory of which a child is about to be forked. The thread that holds this value must not write to the memory,
/// and must not claim or release any part of it.
#[must_use]
pub struct Frozen<'a>(By<'a>);

enum By<'a> {
    Remap(remap::Frozen<'a>),
    Uffd(uffd::Frozen<'a>),
    /// The number of the snapshot.
    Fork(u64),
    #[cfg(target_arch = "x86_64")]
    Ring0(crate::ring0::Frozen),
}

impl Frozen<'_> {
    /// Creates the value for the engine `fork`. No thread needs to wait, because the child inherits the memory.
    pub(super) fn fork(number: u64) -> Self {
        Self(By::Fork(number))
    }

    /// Ends the freeze in the parent, after the fork: all threads continue. Returns the snapshot's number. If there
    /// is no child, the snapshot ends by itself.
    pub fn thaw(self) -> u64 {
        match self.0 {
            By::Remap(frozen) => frozen.thaw().into(),
            By::Uffd(frozen) => frozen.thaw(),
            By::Fork(number) => number,
            #[cfg(target_arch = "x86_64")]
            By::Ring0(frozen) => frozen.thaw(),
        }
    }

    /// Maps the memory in the child. Must be called before any code there touches the memory.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::Unavailable`]: the memory is not mapped.
    ///
    /// # Safety
    /// The caller must be the child of a `fork` that followed [`Engine::freeze`](super::Engine::freeze)
    /// immediately, and must have one thread.
    pub unsafe fn map_in_child(self) -> Result<(), Error> {
        // SAFETY: by the caller's promise.
        unsafe {
            match self.0 {
                By::Remap(frozen) => frozen.map_in_child(),
                By::Uffd(frozen) => frozen.map_in_child(),
                By::Fork(_) => Ok(()),
                #[cfg(target_arch = "x86_64")]
                By::Ring0(frozen) => frozen.map_in_child(),
            }
        }
    }
}

impl<'a> From<remap::Frozen<'a>> for Frozen<'a> {
    fn from(frozen: remap::Frozen<'a>) -> Self {
        Self(By::Remap(frozen))
    }
}

impl<'a> From<uffd::Frozen<'a>> for Frozen<'a> {
    fn from(frozen: uffd::Frozen<'a>) -> Self {
        Self(By::Uffd(frozen))
    }
}

#[cfg(target_arch = "x86_64")]
impl From<crate::ring0::Frozen> for Frozen<'_> {
    fn from(frozen: crate::ring0::Frozen) -> Self {
        Self(By::Ring0(frozen))
    }
}
