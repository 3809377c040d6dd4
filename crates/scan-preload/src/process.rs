//! Records whether the library may be used in this process.
//!
//! The answer is a word in a page that the kernel clears in every forked child, even if the C library does not notice the fork
//! (`_Fork`, a bare `clone`). Such a child has its parent's connections and fetches, and would release ranges that its parent
//! still reads. So the library does nothing in such a child. In a child that the C library notices, [`resume`] makes the library
//! usable again.
//!
//! A signal handler may fork while its thread is inside the library. The child then has the library's locks in their state at the
//! fork, so the library stays unusable in it.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Reads are served.
const ACTIVE: u32 = 2;
/// Reads are left to the kernel. The library still notices descriptors that are closed.
const PASSIVE: u32 = 1;

/// The word. Null: the library has nothing to do.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

fn word() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a word of a page that is never unmapped.
    unsafe { WORD.load(Ordering::Acquire).as_ref() }
}

fn set(state: u32) {
    if let Some(word) = word() {
        word.store(state, Ordering::Relaxed);
    }
}

/// Makes the library usable in this process, and sets whether it serves reads. `false`: the kernel has no such pages.
pub fn begin(serves: bool) -> bool {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let size = rustix::param::page_size();
    // SAFETY: a new mapping at an address of the kernel's choice, and advice about it.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), size, access, MapFlags::PRIVATE)
            .and_then(|page| madvise(page, size, Advice::LinuxWipeOnFork).map(|()| page))
    };
    let Ok(page) = page else { return false };
    WORD.store(page.cast(), Ordering::Release);
    set(if serves { ACTIVE } else { PASSIVE });
    true
}

/// Whether reads are served.
pub fn is_active() -> bool {
    word().is_some_and(|word| word.load(Ordering::Relaxed) == ACTIVE)
}

/// Whether the library may be used at all.
pub fn is_usable() -> bool {
    word().is_some_and(|word| word.load(Ordering::Relaxed) != 0)
}

/// Makes the library unusable: it leaves all reads to the kernel and makes no system call of its own.
pub fn deactivate() {
    set(0);
}

/// The state of this process, for its child.
pub fn state() -> u32 {
    word().map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Gives a child its parent's state. The thread that forked must not have been inside the library.
pub fn resume(state: u32) {
    set(state);
}
