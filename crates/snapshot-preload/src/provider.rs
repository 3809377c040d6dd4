//! The object that provides `malloc`: a library such as libtcmalloc, or the program itself.
//!
//! Some allocators reserve addresses without rights and get the rights later, and some get memory by `sbrk`. Other code does so
//! too: a just-in-time compiler reserves addresses for code, and a sandbox reserves addresses that must stay without rights. So
//! these calls only concern the arena if the allocator is their caller.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;

// The address of a function of `libbedplate_snapshot_malloc.so`, or null without that library. The reference is weak: a search
// by `dlsym` that fails allocates, and the caller may be the allocator.
std::arch::global_asm!(
    ".weak bedplate_snapshot_malloc_function",
    ".section .data.rel.ro.bedplate_snapshot_malloc, \"aw\"",
    ".balign 8",
    ".hidden bedplate_snapshot_bundled",
    ".globl bedplate_snapshot_bundled",
    "bedplate_snapshot_bundled:",
    ".quad bedplate_snapshot_malloc_function",
    ".text",
);

unsafe extern "C" {
    /// The function returns the address of the function that serves `malloc`.
    static bedplate_snapshot_bundled: Option<extern "C" fn() -> *const c_void>;
}

/// Whether an address of code is in the object that provides `malloc`.
pub fn contains(code: usize) -> bool {
    static PROVIDER: OnceLock<Range<usize>> = OnceLock::new();
    // The first call comes before `main`. Later, a thread that holds the allocator's locks must not wait for the loader's.
    PROVIDER.get_or_init(|| code_of(find().0)).contains(&code)
}

/// Whether the program's allocator is the bundled one.
pub fn is_bundled() -> bool {
    let (malloc, library) = find();
    library.is_some_and(|library| object(malloc) == object(library))
}

/// The function that serves `malloc`, and the function of the bundled allocator's library that returned it.
fn find() -> (*const c_void, Option<*const c_void>) {
    // SAFETY: the loader sets it before any code runs.
    match unsafe { bedplate_snapshot_bundled } {
        Some(ask) => (ask(), Some(ask as *const c_void)),
        // SAFETY: looks up a name that exists, so nothing is allocated.
        None => (unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) }, None),
    }
}

/// The start address of the object that contains an address.
fn object(address: *const c_void) -> *const c_void {
    // SAFETY: zeros are values of this structure.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: fills in the structure.
    unsafe { libc::dladdr(address, &raw mut info) };
    info.dli_fbase
}

/// The state of the search for a segment.
struct Search {
    address: usize,
    found: Range<usize>,
}

/// The segment that contains an address.
fn code_of(address: *const c_void) -> Range<usize> {
    let mut search = Search { address: address as usize, found: 0..0 };
    // SAFETY: the function gets the search, which no other code uses.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object, and the pointer from `code_of`.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    // SAFETY: the object's program headers.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = (object.dlpi_addr + header.p_vaddr) as usize;
        let segment = start..start + header.p_memsz as usize;
        if segment.contains(&search.address) {
            search.found = segment;
            return 1;
        }
    }
    0
}
