//! Records whether this process owns the latest arena.
//!
//! The memory of a process identifies it, not its process ID. A child of `vfork` has another ID and the same memory, so its
//! mappings belong to the owner. The owner has a page with a mark, which the kernel clears in forked children, however they were
//! forked.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use bedplate_snapshot::PAGE;

/// The page's first word, or null before there is an owner.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
const OWNER: u32 = 1;

/// Makes this process the owner from now on.
///
/// # Errors
/// There is no memory for the page. Then every process counts as the owner's child.
pub fn begin() -> Result<(), bedplate_snapshot::Error> {
    let mut page = MARK.load(Ordering::Acquire);
    if page.is_null() {
        page = new_page()?;
        MARK.store(page, Ordering::Release);
    }
    // SAFETY: the page stays as long as the process.
    unsafe { (*page).store(OWNER, Ordering::Release) };
    Ok(())
}

/// Whether this process is the owner, or there is no owner yet.
pub fn is_this_process() -> bool {
    let page = MARK.load(Ordering::Acquire);
    // SAFETY: as above.
    page.is_null() || unsafe { (*page).load(Ordering::Acquire) } == OWNER
}

fn new_page() -> Result<*mut AtomicU32, bedplate_snapshot::Error> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), PAGE, access, MapFlags::PRIVATE)
            .and_then(|page| madvise(page, PAGE, Advice::LinuxWipeOnFork).map(|()| page))
    };
    page.map(<*mut _>::cast).map_err(|source| bedplate_snapshot::Error::System {
        what: "a page that forked children do not inherit",
        source,
    })
}
