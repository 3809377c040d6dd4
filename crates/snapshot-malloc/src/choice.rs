//! Which allocator a process uses: the bundled one, or one that the program brings.
//!
//! A program brings an allocator if an object other than this library and the C library defines `malloc`: a library such as
//! libjemalloc, or the program itself. Programs also use functions of their allocator that the C library does not have, such as
//! `mallocx` and `mallctl`. So their allocator stays theirs, and this library calls it.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::bundled;
use crate::functions::Functions;

/// The allocator, from the first allocation on.
static CHOICE: AtomicPtr<Functions> = AtomicPtr::new(ptr::null_mut());

/// The allocator that the program brings.
static BROUGHT: OnceLock<Functions> = OnceLock::new();

/// The function that serves `malloc`. A program that defines it itself never calls this library's.
static PROVIDER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// This thread is deciding. The loader may allocate meanwhile, and manages without memory.
    static DECIDES: Cell<bool> = const { Cell::new(false) };
}

/// The process's allocator.
#[inline]
pub fn functions() -> &'static Functions {
    // SAFETY: null, or one of this library's statics.
    match unsafe { CHOICE.load(Ordering::Acquire).as_ref() } {
        Some(functions) => functions,
        None => decide(),
    }
}

#[cold]
fn decide() -> &'static Functions {
    if DECIDES.replace(true) {
        return &bundled::NONE;
    }
    // Threads that decide at the same time come to the same result.
    let functions = match brought() {
        Some(malloc) => {
            PROVIDER.store(malloc.cast_mut(), Ordering::Relaxed);
            BROUGHT.get_or_init(Functions::next)
        }
        None => {
            PROVIDER.store(bundled::FUNCTIONS.malloc as *mut c_void, Ordering::Relaxed);
            &bundled::FUNCTIONS
        }
    };
    CHOICE.store(ptr::from_ref(functions).cast_mut(), Ordering::Release);
    DECIDES.set(false);
    functions
}

/// The address of the function that serves `malloc` in this process.
pub fn provider() -> *const c_void {
    functions();
    PROVIDER.load(Ordering::Relaxed)
}

/// The `malloc` of the allocator that the program brings, if it brings one.
fn brought() -> Option<*const c_void> {
    if is_forced() {
        return None;
    }
    let ours = Definition::of(ptr::from_ref(&CHOICE).cast()).object;
    // SAFETY: looks up names that the C library has, one of which no other object has.
    let [first, next, of_c] = unsafe {
        [
            libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()),
            libc::dlsym(libc::RTLD_NEXT, c"malloc".as_ptr()),
            libc::dlsym(libc::RTLD_NEXT, c"gnu_get_libc_version".as_ptr()),
        ]
    };
    let of_first = Definition::of(first);
    if of_first.object != ours && of_first.is_definition {
        // The program's own functions are called instead of this library's. What it lacks is the next object's.
        return Some(first);
    }
    (Definition::of(next).object != Definition::of(of_c).object).then_some(next.cast_const())
}

/// Whether the user wants the bundled allocator in any case. The C library's function is used, because it does not allocate.
fn is_forced() -> bool {
    // SAFETY: C strings; the environment does not change before the program's first allocation.
    unsafe {
        let value: *const c_char = libc::getenv(c"BEDPLATE_SNAPSHOT_MALLOC".as_ptr());
        !value.is_null() && libc::strcmp(value, c"bundled".as_ptr()) == 0
    }
}

/// Where an address is.
struct Definition {
    /// Where its object begins.
    object: *const c_void,
    /// Whether the object defines the symbol there. A program that takes a function's address may have a stub for it.
    is_definition: bool,
}

impl Definition {
    fn of(address: *const c_void) -> Self {
        const SYMBOL: i32 = 1;
        unsafe extern "C" {
            fn dladdr1(
                address: *const c_void,
                info: *mut libc::Dl_info,
                extra: *mut *mut c_void,
                flags: i32,
            ) -> i32;
        }
        // SAFETY: zeros are values of this structure.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        let mut symbol = ptr::null_mut();
        // SAFETY: fills in both.
        unsafe { dladdr1(address, &raw mut info, &raw mut symbol, SYMBOL) };
        // SAFETY: null, or the loader's symbol, which stays as long as its object.
        let symbol = unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() };
        Self { object: info.dli_fbase, is_definition: symbol.is_some_and(|symbol| symbol.st_shndx != 0) }
    }
}
