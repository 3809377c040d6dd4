//! `sbrk`, for allocators that get their memory from it, such as tcmalloc. The memory is in the arena.
//!
//! The allocator has a program break of its own, in the arena. All other callers use the kernel's. When the break cannot grow any
//! more, `sbrk` fails like the kernel's at the next mapping, and allocators map memory instead.

use std::ffi::c_void;
use std::sync::{Mutex, TryLockError};

use bedplate_snapshot::PAGE;

use crate::{arenas, calls, forks, provider};

/// Memory below the break.
#[derive(Clone, Copy)]
struct Segment {
    start: usize,
    /// The break.
    end: usize,
}

impl Segment {
    /// The end of the memory of its last page.
    fn mapped(&self) -> usize {
        self.end.next_multiple_of(PAGE)
    }
}

unsafe extern "C" {
    /// The C library's `sbrk`, with another name.
    fn __sbrk(increment: isize) -> *mut c_void;
}

static SEGMENT: Mutex<Option<Segment>> = Mutex::new(None);

/// Moves the allocator's break. `None`: the break is the kernel's.
fn move_break(increment: isize) -> Option<Result<usize, ()>> {
    let mut segment = match SEGMENT.try_lock() {
        Ok(segment) => segment,
        Err(TryLockError::Poisoned(segment)) => segment.into_inner(),
        // Another thread moves it, or did so in the parent when this process was forked.
        Err(TryLockError::WouldBlock) => return Some(Err(())),
    };
    let Some(Segment { start, end }) = *segment else {
        let bytes = usize::try_from(increment).ok()?;
        // Only this function moves this break, so nothing is there before.
        let start = arenas::map(0, bytes)?;
        *segment = Some(Segment { start, end: start + bytes });
        return Some(Ok(start));
    };
    let Some(new) = end.checked_add_signed(increment).filter(|&new| new >= start) else {
        return Some(Err(()));
    };
    let (old, new) = (Segment { start, end }, Segment { start, end: new });
    if new.mapped() > old.mapped()
        && (forks::is_snapshot() || !arenas::map_exactly(old.mapped()..new.mapped()))
    {
        return Some(Err(()));
    }
    if new.mapped() < old.mapped() {
        calls::unmap(new.mapped()..old.mapped());
    }
    *segment = Some(new);
    Some(Ok(end))
}

/// `sbrk`, with the address of the code that called it.
///
/// # Safety
/// The same as for the C library's function.
pub unsafe extern "C" fn sbrk_from(increment: isize, caller: usize) -> *mut c_void {
    if provider::contains(caller) {
        match move_break(increment) {
            Some(Ok(before)) => return before as *mut c_void,
            Some(Err(())) => {
                // SAFETY: this thread's errno.
                unsafe { *libc::__errno_location() = libc::ENOMEM };
                return libc::MAP_FAILED;
            }
            None => {}
        }
    }
    // SAFETY: the caller's argument.
    unsafe { __sbrk(increment) }
}
