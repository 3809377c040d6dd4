//! Threads that touch memory natively which only ring 0 has are taken into ring 0, where it is.
//!
//! Natively, such addresses are reserved and have no rights ([`Process::keep_private`](crate::Process::keep_private)), so
//! whoever uses them gets SIGSEGV: a thread that has not entered ring 0, and one that has lost it. The handler of the
//! signal lets the thread go on in a piece of assembly that keeps all registers, enters ring 0, and returns to the
//! instruction.
//!
//! That piece must be told where the instruction and its stack are. The handler must not write this below the thread's red zone,
//! because there the kernel may have what the thread gets back: if the handler runs on the thread's own stack, the vector
//! registers end there. So the handler leaves it in the kernel's own frame, in words that `rt_sigreturn` does not read
//! (`left_behind`), and the piece begins with its stack pointer there. What it found it copies below the red zone, when the
//! frame is not needed any more.
//!
//! A thread that cannot enter (too many; on top of a signal handler that has interrupted ring 0) gets its SIGSEGV after
//! all. Entering for the first time allocates memory: code that touches such memory while it holds the allocator's lock
//! enters before.

use std::arch::global_asm;
use std::mem::offset_of;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::arch::instructions::is_ring0;
use crate::arch::xstate::zero_xsave_header;
use crate::error::{Error, Result};
use crate::process::Process;

/// Bytes of the red zone below a stack pointer.
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
    /// Goes on in ring 0 where the stack says.
    fn bedplate_ring0_go_in();
}

/// Enters ring 0; called by the assembly, between two instructions of arbitrary code.
#[unsafe(no_mangle)]
extern "C" fn bedplate_ring0_enter_from_signal() {
    // SAFETY: `errno` is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let entered = Process::current().is_some_and(|process| process.enter().is_ok());
    if !entered {
        // The instruction is tried again natively, and ends the process as it would have without this.
        default_action(libc::SIGSEGV);
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// The default action, by a bare call: a preloaded library may have put its own in the place of the C library's.
fn default_action(signal: i32) {
    /// The kernel's structure: handler, flags, restorer, and the signals to block.
    const DEFAULT: [u64; 4] = [libc::SIG_DFL as u64, 0, 0, 0];
    // SAFETY: reads the structure.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), std::ptr::null::<u64>(), 8usize)
    };
}

/// What is done about SIGSEGV that is not about such addresses; null as long as nothing is known of it.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the handler is set. Held while that changes.
static IS_SET: Mutex<bool> = Mutex::new(false);

/// Sets what is done about SIGSEGV that is not about memory of ring 0's, for a program whose own `sigaction` would take the
/// handler away. (Old ones are kept: a signal may be using them.)
pub fn set_segv_action(action: libc::sigaction) {
    BEFORE.store(Box::leak(Box::new(action)), Ordering::Release);
}

/// This process's number, when the handler was set: a child that has the same memory (`vfork`) has its parent's
/// processor, too, and must not enter.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// In a forked child that has built a process of its own: its threads are taken in.
pub fn adopt_segv() {
    // SAFETY: no conditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Who says of an address that it is ring 0's.
pub type IsOurs = fn(u64) -> bool;

/// As many as there can be.
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

/// Takes threads into ring 0 that natively touch an address of which `is_ours` says that only ring 0 has it. It is asked
/// in a signal handler: it takes no locks and allocates nothing. Once it has been given it stays.
///
/// # Errors
/// [`Error::Segv`] if the signal cannot be handled, or too many have asked.
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
    // SAFETY: reads the action; the handler must know it before it is set.
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

/// Two words of the kernel's signal frame that it does not read when the handler returns: of those that it keeps for later use,
/// behind the pointer to the vector registers.
fn left_behind(context: &mut libc::ucontext_t) -> *mut [i64; 2] {
    const _: () = assert!(
        size_of::<libc::mcontext_t>() >= offset_of!(libc::mcontext_t, fpregs) + 8 + size_of::<[i64; 8]>()
    );
    (&raw mut context.uc_mcontext.fpregs).wrapping_add(1).cast()
}

/// Linux calls this, natively.
extern "C" fn caught(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes both, for as long as this runs.
    let (details, frame) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    // SAFETY: SIGSEGV of the kernel's has an address; another's has none that is ring 0's.
    let address = unsafe { details.si_addr() } as u64;
    // SAFETY: no conditions.
    let is_owner = || unsafe { libc::getpid() } == OWNER.load(Ordering::Relaxed);
    if details.si_code > 0 && is_ours(address) && !is_ring0() && is_owner() {
        let left = left_behind(frame);
        let registers = &mut frame.uc_mcontext.gregs;
        let stack = registers[libc::REG_RSP as usize] - RED_ZONE - 8;
        // SAFETY: words of the frame, which is on the stack that this runs on. What pushes below them overwrites the frame, which
        // nobody reads after this handler has returned.
        unsafe { left.write([registers[libc::REG_RIP as usize], stack]) };
        registers[libc::REG_RSP as usize] = left as i64;
        registers[libc::REG_RIP as usize] = bedplate_ring0_go_in as *const () as i64;
        return;
    }
    pass_on(signal, info, context);
}

/// Does what was done before there was a handler here.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: never freed.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    match before.map_or(libc::SIG_DFL, |before| before.sa_sigaction) {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction is tried again, and ends the process.
            default_action(signal);
        }
        handler if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: with this flag, a handler of this form.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without it, one of this form.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
