//! What is between the beginning of a snapshot for a child and the child's fork. It is one type for all engines, so that nothing
//! is allocated for it: the program's allocator may have its locks.

use crate::{Error, remap, uffd};

/// A memory of which a child is about to be forked. The thread that has it must not write to the memory, nor claim or give
/// back anything of it.
#[must_use]
pub struct Frozen<'a>(By<'a>);

enum By<'a> {
    Remap(remap::Frozen<'a>),
    Uffd(uffd::Frozen<'a>),
    /// The snapshot's number.
    Fork(u64),
    #[cfg(target_arch = "x86_64")]
    Ring0(crate::ring0::Frozen),
}

impl Frozen<'_> {
    /// Of the engine `fork`: nothing need wait, for the child inherits the memory.
    pub(super) fn fork(number: u64) -> Self {
        Self(By::Fork(number))
    }

    /// In the parent, after the fork: all goes on. Gives the snapshot's number. If there is no child, the snapshot ends by
    /// itself.
    pub fn thaw(self) -> u64 {
        match self.0 {
            By::Remap(frozen) => frozen.thaw().into(),
            By::Uffd(frozen) => frozen.thaw(),
            By::Fork(number) => number,
            #[cfg(target_arch = "x86_64")]
            By::Ring0(frozen) => frozen.thaw(),
        }
    }

    /// In the child, before anything touches the memory.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::Unavailable`]: the memory is not there.
    ///
    /// # Safety
    /// This is the child of a `fork` that followed [`Engine::freeze`](super::Engine::freeze) immediately, and has one thread.
    pub unsafe fn map_in_child(self) -> Result<(), Error> {
        // SAFETY: as the caller says.
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
