//! Entering ring 0 on a fault: a thread in ring 3 that touches memory which exists only in ring 0 enters ring 0.
//!
//! In ring 3, such addresses are reserved without access rights
//! ([`Process::keep_private`](crate::Process::keep_private)). A thread that has not entered ring 0, or has lost it,
//! gets SIGSEGV when it touches them. The signal handler makes the thread continue in a piece of assembly. That
//! assembly keeps all registers, enters ring 0, and returns to the instruction that faulted.
//!
//! The assembly needs the address of that instruction and the thread's stack pointer. The handler must not write
//! them below the thread's red zone: if the handler runs on the thread's own stack, the kernel's saved vector
//! registers end there. The handler therefore writes them into the kernel's signal frame, to words that
//! `rt_sigreturn` does not read (`left_behind`). The assembly starts with its stack pointer at these words. It
//! copies them below the red zone once the frame is no longer needed.
//!
//! A thread that cannot enter ring 0 gets the SIGSEGV. This happens if all processors are in use, and in a signal
//! handler that has interrupted ring 0. The first entry of a thread allocates memory. Code that touches such memory
//! while it holds the allocator's lock must therefore enter ring 0 before.

use std::arch::global_asm;
use std::mem::offset_of;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::arch::instructions::is_ring0;
use crate::arch::xstate::zero_xsave_header;
use crate::error::{Error, Result};
use crate::process::Process;

/// Size in bytes of the red zone below a stack pointer.
const RED_ZONE: i64 = 128;

global_asm!(
    zero_xsave_header!(),
    r#"
    .text
    .balign 16
    .globl bedplate_ring0_go_in
bedplate_ring0_go_in:      # (rsp) = where to go on; 8(rsp) = where the stack goes on with that, below the red zone
    push %rax
    push %rcx
    mov 24(%rsp), %rcx
    mov 16(%rsp), %rax
    mov %rax, (%rcx)
    mov 8(%rsp), %rax
    mov %rax, -8(%rcx)
    mov (%rsp), %rax
    mov %rax, -16(%rcx)
    lea -16(%rcx), %rsp             # as after pushing both there
    pushfq
    cld
    push %rdx
    push %rbx
    push %rbp
    push %rsi
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, %rbp
    sub $4096, %rsp                 # x87, SSE, AVX and AVX-512 take 2696 bytes
    and $-64, %rsp
    ZERO_XSAVE_HEADER
    mov $0xe7, %eax
    xor %edx, %edx
    xsave64 (%rsp)
    call bedplate_ring0_enter_from_signal
    mov $0xe7, %eax
    xor %edx, %edx
    xrstor64 (%rsp)
    mov %rbp, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rdi
    pop %rsi
    pop %rbp
    pop %rbx
    pop %rdx
    popfq
    pop %rcx
    pop %rax
    ret ${red_zone}
    "#,
    red_zone = const RED_ZONE,
    options(att_syntax)
);

unsafe extern "C" {
    /// Enters ring 0 and continues at the instruction whose address is on the stack.
    fn bedplate_ring0_go_in();
}

/// Enters ring 0. The assembly calls this between two instructions of arbitrary code.
#[unsafe(no_mangle)]
extern "C" fn bedplate_ring0_enter_from_signal() {
    // SAFETY: `errno` is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let entered = Process::current().is_some_and(|process| process.enter().is_ok());
    if !entered {
        // The thread executes the instruction again in ring 3, and the default action ends the process.
        default_action(libc::SIGSEGV);
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// Sets the default action by a bare system call, because a preloaded library may have replaced the C library's
/// function.
fn default_action(signal: i32) {
    /// The kernel's `struct sigaction`: handler, flags, restorer, and the signals to block.
    const DEFAULT: [u64; 4] = [libc::SIG_DFL as u64, 0, 0, 0];
    // SAFETY: reads the structure.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), std::ptr::null::<u64>(), 8usize)
    };
}

/// The action for a SIGSEGV at any other address. Null until the first call of [`take_in`] or [`set_segv_action`].
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the handler is set. The lock is held while that changes.
static IS_SET: Mutex<bool> = Mutex::new(false);

/// Sets the action for a SIGSEGV at an address that is not ring 0's. A program uses it instead of `sigaction`,
/// which would remove the handler of this module. Old actions are never freed, because a signal handler may be
/// using them.
pub fn set_segv_action(action: libc::sigaction) {
    BEFORE.store(Box::leak(Box::new(action)), Ordering::Release);
}

/// The process ID when the handler was set. A child that shares the parent's memory (`vfork`) also shares its
/// processor, and must not enter ring 0.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Lets the threads of a forked child enter on faults. The child calls it when it has built its own process.
pub fn adopt_segv() {
    // SAFETY: no conditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Says whether an address is memory that only ring 0 has.
pub type IsOurs = fn(u64) -> bool;

/// The limit of such functions.
const MOST: usize = 8;
static ASKED: [AtomicPtr<()>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];

fn is_ours(address: u64) -> bool {
    ASKED.iter().map(|asked| asked.load(Ordering::Acquire)).take_while(|asked| !asked.is_null()).any(
        |asked| {
            // SAFETY: only `take_in` stores here, and stores such functions.
            let ask = unsafe { std::mem::transmute::<*mut (), IsOurs>(asked) };
            ask(address)
        },
    )
}

/// Makes a thread in ring 3 enter ring 0 when it touches an address for which `is_ours` returns true. `is_ours`
/// runs in a signal handler, so it must not take locks or allocate. It cannot be removed.
///
/// # Errors
/// [`Error::Segv`] if the handler of SIGSEGV cannot be set, or if eight functions are registered already.
pub fn take_in(is_ours: IsOurs) -> Result<()> {
    let mut is_set = IS_SET.lock().unwrap_or_else(PoisonError::into_inner);
    let new = is_ours as *mut ();
    let place = ASKED.iter().find(|asked| {
        let there = asked.load(Ordering::Relaxed);
        there.is_null() || there == new
    });
    let full = || Error::Segv { source: std::io::ErrorKind::OutOfMemory.into() };
    place.ok_or_else(full)?.store(new, Ordering::Release);
    if *is_set {
        return Ok(());
    }
    adopt_segv();
    // SAFETY: all zeros is an action: the default one.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = caught as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    let failed = || Error::Segv { source: std::io::Error::last_os_error() };
    // SAFETY: reads the present action, which the handler must know before it is set.
    if unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut before) } != 0 {
        return Err(failed());
    }
    set_segv_action(before);
    // SAFETY: the handler is of the form that SA_SIGINFO asks for.
    if unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(failed());
    }
    *is_set = true;
    Ok(())
}

/// Two words of the kernel's signal frame that the kernel does not read when the handler returns. They are reserved
/// words behind the pointer to the vector registers.
fn left_behind(context: &mut libc::ucontext_t) -> *mut [i64; 2] {
    const _: () = assert!(
        size_of::<libc::mcontext_t>() >= offset_of!(libc::mcontext_t, fpregs) + 8 + size_of::<[i64; 8]>()
    );
    (&raw mut context.uc_mcontext.fpregs).wrapping_add(1).cast()
}

/// The signal handler, which Linux calls in ring 3.
extern "C" fn caught(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes both, for as long as this runs.
    let (details, frame) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    // SAFETY: a SIGSEGV of the kernel has an address. The value in any other SIGSEGV is not used, because of the
    // check of `si_code`.
    let address = unsafe { details.si_addr() } as u64;
    // SAFETY: no conditions.
    let is_owner = || unsafe { libc::getpid() } == OWNER.load(Ordering::Relaxed);
    if details.si_code > 0 && is_ours(address) && !is_ring0() && is_owner() {
        let left = left_behind(frame);
        let registers = &mut frame.uc_mcontext.gregs;
        let stack = registers[libc::REG_RSP as usize] - RED_ZONE - 8;
        // SAFETY: these words are in the frame, on the stack of this handler. The assembly's pushes below them
        // overwrite the frame, which nothing reads after this handler has returned.
        unsafe { left.write([registers[libc::REG_RIP as usize], stack]) };
        registers[libc::REG_RSP as usize] = left as i64;
        registers[libc::REG_RIP as usize] = bedplate_ring0_go_in as *const () as i64;
        return;
    }
    pass_on(signal, info, context);
}

/// Performs the action that was set before this handler.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: never freed.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    match before.map_or(libc::SIG_DFL, |before| before.sa_sigaction) {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The thread executes the instruction again, and the default action ends the process.
            default_action(signal);
        }
        handler if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: with this flag, a handler of this form.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without this flag, a handler of this form.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
