//! The C library's functions that map memory, as the program's allocator calls them.
//!
//! In the owner's process, ranges of the arena are claimed, released and emptied instead of mapped and unmapped. In other
//! processes, which inherited it, they are mapped privately. Released parts there are replaced by empty memory and never
//! unmapped, so that the owner's process always finds its pages there.
//!
//! Some allocators reserve addresses without rights, and get the rights to parts of them by `mprotect`. Such a reservation is
//! claimed like any other mapping. If an engine's parts have no rights of their own, all of it can be read and written.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_snapshot::PAGE;
use bedplate_snapshot::engine::Arena;

use crate::{arenas, program_break, provider, say};

/// Size limit of reservations in the arena. Allocators stay below it. Sandboxes reserve more, and rely on the reservation being
/// unreadable.
const LARGEST_RESERVATION: usize = 2 << 30;

const READ_AND_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

const FAILED: *mut c_void = libc::MAP_FAILED;

fn fail(error: c_int) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = error };
}

/// System calls made directly, because the C library's functions of these names are defined below.
mod real {
    use super::{c_int, c_void};

    pub unsafe fn mmap(
        at: *mut c_void,
        len: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: libc::off_t,
    ) -> *mut c_void {
        // SAFETY: the caller's arguments.
        (unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) }) as *mut c_void
    }

    pub unsafe fn munmap(at: *mut c_void, len: usize) -> c_int {
        // SAFETY: the caller's arguments.
        (unsafe { libc::syscall(libc::SYS_munmap, at, len) }) as c_int
    }

    pub unsafe fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        (unsafe { libc::syscall(libc::SYS_madvise, at, len, advice) }) as c_int
    }

    pub unsafe fn mprotect(at: *mut c_void, len: usize, protection: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        (unsafe { libc::syscall(libc::SYS_mprotect, at, len, protection) }) as c_int
    }

    pub unsafe fn mremap(
        at: *mut c_void,
        old: usize,
        new: usize,
        flags: c_int,
        to: *mut c_void,
    ) -> *mut c_void {
        // SAFETY: the caller's arguments.
        (unsafe { libc::syscall(libc::SYS_mremap, at, old, new, flags, to) }) as *mut c_void
    }
}

/// Pages of an arena.
struct Inside {
    arena: &'static dyn Arena,
    pages: Range<usize>,
    /// Whether this process is the arena's owner.
    owned: bool,
}

impl Inside {
    fn parts_have_rights(&self) -> bool {
        self.arena.kind().abilities().parts_have_rights
    }
}

/// An arena's pages, if the range begins in one.
fn inside(at: *mut c_void, len: usize) -> Option<Inside> {
    let (arena, owned) = arenas::arena_of(at as usize)?;
    Some(Inside { arena, pages: arenas::pages(arena, at as usize, len)?, owned })
}

/// Empties pages, in any process.
fn empty(Inside { arena, pages, owned }: Inside) {
    if pages.is_empty() {
        return;
    }
    if owned {
        arena.discard(pages);
        return;
    }
    // SAFETY: the caller does not need their content any more.
    unsafe { arena.discard_in_child(pages) };
}

/// Whether rights of parts of an arena were ever changed.
static RIGHTS_DIFFER: AtomicBool = AtomicBool::new(false);

/// Sets the access rights of pages of the owner's arena, if its parts have rights of their own.
fn set_rights(arena: &dyn Arena, pages: &Range<usize>, protection: c_int) -> c_int {
    if protection != READ_AND_WRITE {
        RIGHTS_DIFFER.store(true, Ordering::Relaxed);
    }
    if !arena.kind().abilities().parts_have_rights
        || pages.is_empty()
        || !RIGHTS_DIFFER.load(Ordering::Relaxed)
    {
        return 0;
    }
    let at = (arena.base() + pages.start * PAGE) as *mut c_void;
    // SAFETY: pages of the program.
    unsafe { real::mprotect(at, pages.len() * PAGE, protection) }
}

/// Releases pages of the owner's arena. Later claims of them can read and write.
fn release(arena: &dyn Arena, pages: Range<usize>) {
    if set_rights(arena, &pages, READ_AND_WRITE) == 0 {
        arena.release(pages);
    } else {
        // The number of mappings is limited. No later claim may get the pages without rights.
        arena.discard(pages);
    }
}

/// Unmaps memory, in the owner's process or another one.
pub fn unmap(addresses: Range<usize>) {
    // SAFETY: the caller's memory.
    unsafe { munmap(addresses.start as *mut c_void, addresses.len()) };
}

/// Code cannot be in an arena whose parts have no rights of their own.
fn refuse_code() -> c_int {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !IS_SAID.swap(true, Ordering::Relaxed) {
        say(format_args!(
            "this engine has no snapshots of programs that make code; run it with --engine uffd"
        ));
    }
    fail(libc::EACCES);
    -1
}

/// Defines a function that passes its arguments on to another one, with the address of the calling code as an additional
/// argument.
macro_rules! define_with_caller {
    ($name:ident($($argument:ident: $type:ty),*), $to:path, $x86_64:literal, $aarch64:literal) => {
        /// # Safety
        /// The same as for the C library's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($argument: $type),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!($x86_64, to = sym $to);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!($aarch64, to = sym $to);
        }
    };
}

define_with_caller!(
    mmap(at: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: libc::off_t),
    mmap_from,
    // The seventh argument is on the stack, which this also aligns.
    "push qword ptr [rsp]\ncall {to}\nadd rsp, 8\nret",
    "mov x6, x30\nb {to}"
);

define_with_caller!(
    mmap64(at: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: libc::off_t),
    mmap_from,
    "push qword ptr [rsp]\ncall {to}\nadd rsp, 8\nret",
    "mov x6, x30\nb {to}"
);

define_with_caller!(
    sbrk(increment: isize),
    program_break::sbrk_from,
    "mov rsi, [rsp]\njmp {to}",
    "mov x1, x30\nb {to}"
);

/// `mmap`, with the address of the code that called it.
///
/// # Safety
/// The same as for the C library's function.
unsafe extern "C" fn mmap_from(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
    caller: usize,
) -> *mut c_void {
    const KIND: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const NOT: c_int = libc::MAP_FIXED
        | libc::MAP_FIXED_NOREPLACE
        | libc::MAP_STACK
        | libc::MAP_GROWSDOWN
        | libc::MAP_HUGETLB
        | libc::MAP_LOCKED
        | libc::MAP_32BIT;
    let is_fixed = flags & libc::MAP_FIXED != 0;
    if is_fixed && let Some(there) = inside(at, len.next_multiple_of(PAGE)) {
        if flags & KIND != KIND {
            fail(libc::ENODEV);
            return FAILED;
        }
        if !(at as usize).is_multiple_of(PAGE) || len == 0 {
            fail(libc::EINVAL);
            return FAILED;
        }
        if protection & libc::PROT_EXEC != 0 && !there.parts_have_rights() {
            refuse_code();
            return FAILED;
        }
        // New memory replaces old memory, of which a part may have been released before.
        if !there.owned {
            empty(there);
            return at;
        }
        let Inside { arena, pages, .. } = there;
        set_rights(arena, &pages, READ_AND_WRITE);
        if !arena.replace(pages.clone()) {
            fail(libc::ENOMEM);
            return FAILED;
        }
        return if set_rights(arena, &pages, protection) == 0 { at } else { FAILED };
    }
    let is_anonymous = flags & KIND == KIND && flags & NOT == 0;
    let is_reservation =
        || protection == libc::PROT_NONE && len <= LARGEST_RESERVATION && provider::contains(caller);
    if is_anonymous
        && (protection == READ_AND_WRITE || is_reservation())
        && let Some(address) = arenas::map(at as usize, len)
    {
        if protection != READ_AND_WRITE
            && let Some(Inside { arena, pages, .. }) =
                inside(address as *mut c_void, len.next_multiple_of(PAGE))
        {
            // If this fails, there are rights that the program does not expect, but no other harm.
            set_rights(arena, &pages, protection);
        }
        return address as *mut c_void;
    }
    // SAFETY: the caller's arguments.
    unsafe { real::mmap(at, len, protection, flags, fd, offset) }
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    let Some(there) = inside(at, len.next_multiple_of(PAGE)) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::munmap(at, len) };
    };
    if !(at as usize).is_multiple_of(PAGE) || len == 0 {
        fail(libc::EINVAL);
        return -1;
    }
    if there.owned {
        release(there.arena, there.pages);
    } else {
        empty(there);
    }
    0
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    let Some(there) = inside(at, len.next_multiple_of(PAGE)) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::madvise(at, len, advice) };
    };
    match advice {
        // On shared memory, the kernel's own call would only drop the translations.
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE => empty(there),
        // These calls would split the arena's mapping into many, or exclude it from snapshots.
        libc::MADV_DONTDUMP | libc::MADV_DODUMP | libc::MADV_DONTFORK | libc::MADV_DOFORK => {}
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE | libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE => {}
        // SAFETY: the caller's arguments.
        _ if there.parts_have_rights() => return unsafe { real::madvise(at, len, advice) },
        _ => {}
    }
    0
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, protection: c_int) -> c_int {
    let Some(there) = inside(at, len.next_multiple_of(PAGE)) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::mprotect(at, len, protection) };
    };
    if !there.parts_have_rights() && protection & libc::PROT_EXEC != 0 {
        return refuse_code();
    }
    if !(at as usize).is_multiple_of(PAGE) {
        fail(libc::EINVAL);
        return -1;
    }
    if !there.owned {
        // Page contents that are kept for this process are written to it.
        return 0;
    }
    set_rights(there.arena, &there.pages, protection)
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    at: *mut c_void,
    old: usize,
    new: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let Some(Inside { arena, pages, owned }) = inside(at, old.next_multiple_of(PAGE)) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::mremap(at, old, new, flags, to) };
    };
    let wanted = new.div_ceil(PAGE);
    if flags & !libc::MREMAP_MAYMOVE != 0 || wanted == 0 || old == 0 {
        fail(libc::EINVAL);
        return FAILED;
    }
    if wanted <= pages.len() {
        let rest = pages.start + wanted..pages.end;
        if owned {
            release(arena, rest);
        } else {
            empty(Inside { arena, pages: rest, owned });
        }
        return at;
    }
    let more = pages.end..pages.start + wanted;
    if owned && more.end <= arena.pages() && arena.claim_exactly(more) {
        return at;
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        fail(libc::ENOMEM);
        return FAILED;
    }
    // SAFETY: new memory, into which the old content is copied before the old memory is released.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let moved = mmap(std::ptr::null_mut(), new, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if moved != FAILED {
            std::ptr::copy_nonoverlapping(at.cast::<u8>(), moved.cast::<u8>(), old);
            munmap(at, old);
        }
        moved
    }
}
