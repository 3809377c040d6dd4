//! Checks whether the program's buffers can be written to.
//!
//! A system call answers `EFAULT` for a buffer that cannot be written to. A store by this library would end the program instead. So
//! the library asks the kernel before it copies bytes. It asks once for a buffer that a thread uses repeatedly, and does not
//! notice when the program unmaps such a buffer later.

use std::cell::Cell;
use std::sync::OnceLock;

use libc::iovec;
use rustix::mm::{Advice, madvise};

use crate::limits::KNOWN_BUFFERS;

/// The kernel's own addresses begin a page after this address or later.
const USER_MEMORY: u64 = (1 << 47) - 4096;

/// A range of whole pages: its first address, and the one after its last.
type Pages = (usize, usize);

thread_local! {
    /// Ranges that the kernel has called writable for this thread, and the index of the one that is replaced next.
    static KNOWN: Cell<([Pages; KNOWN_BUFFERS], usize)> = const { Cell::new(([(0, 0); KNOWN_BUFFERS], 0)) };
}

/// The pages that hold `len` bytes from an address on. `None`: the range exceeds the address space.
fn pages_of(start: usize, len: usize) -> Option<Pages> {
    let page = rustix::param::page_size();
    Some((start / page * page, start.checked_add(len)?.checked_next_multiple_of(page)?))
}

/// Faults pages in for writing, as a store to them does. `false`: a store would fail.
fn populate((start, end): Pages) -> bool {
    // SAFETY: neither the content nor the mapping of the memory changes.
    unsafe { madvise(start as *mut _, end - start, Advice::LinuxPopulateWrite) }.is_ok()
}

/// Whether the kernel knows this advice. Linux has it since 5.14.
fn is_answered() -> bool {
    static ANSWERED: OnceLock<bool> = OnceLock::new();
    *ANSWERED.get_or_init(|| {
        let own = 0u8;
        pages_of(&raw const own as usize, 1).is_some_and(populate)
    })
}

/// Bytes of all parts. `None`: the kernel may refuse the parts, because they are too long or end outside of user memory.
pub fn length(parts: &[iovec]) -> Option<u64> {
    parts.iter().try_fold(0u64, |sum, part| {
        let end = (part.iov_base as u64).checked_add(part.iov_len as u64)?;
        (end <= USER_MEMORY).then(|| sum + part.iov_len as u64).filter(|sum| *sum <= i64::MAX as u64)
    })
}

/// Whether an array of parts can be read.
pub fn are_readable(parts: *const iovec, count: usize) -> bool {
    if parts.is_null() {
        return false;
    }
    let Some((start, end)) = pages_of(parts as usize, count * size_of::<iovec>()) else { return false };
    // SAFETY: neither the content nor the mapping of the memory changes.
    !is_answered() || unsafe { madvise(start as *mut _, end - start, Advice::LinuxPopulateRead) }.is_ok()
}

/// Whether the first `len` bytes of the parts can be written to.
pub fn are_writable(parts: &[iovec], len: u64) -> bool {
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    parts.iter().all(|part| {
        let taken = part.iov_len.min(left);
        left -= taken;
        taken == 0 || pages_of(part.iov_base as usize, taken).is_some_and(is_writable)
    })
}

fn is_writable(pages: Pages) -> bool {
    let (mut known, next) = KNOWN.get();
    if known.iter().any(|(start, end)| *start <= pages.0 && pages.1 <= *end) {
        return true;
    }
    if !is_answered() {
        // A program that reads into memory that it cannot write to gets a signal.
        return true;
    }
    if !populate(pages) {
        return false;
    }
    known[next] = pages;
    KNOWN.set((known, (next + 1) % KNOWN_BUFFERS));
    true
}
