//! Signals handled in ring 0.
//!
//! By default a signal interrupts the host part, and its handler runs there, natively. A handler set here runs in ring 0,
//! where the thread was: the host part's handler, `catch`, only notes the signal, and has KVM interrupt the processor
//! with a vector of its own. The handler of that vector lets the interrupted code go on in the signal's handler,
//! below its red zone, as Linux does. So a signal comes between two instructions with interrupts on, and never on top
//! of a trap handler.
//!
//! A signal stays blocked from being noted until its handler has returned, so none is lost.
//!
//! What must not happen is that a signal is noted just before the host part makes a system call that blocks. So such a
//! call is made at one place, which asks for noted signals and then calls; a signal that comes between the two moves
//! the host part past the call, and the guest makes it again, after its handler.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence};

use crate::arch::frame::TrapFrame;
use crate::arch::instructions::{is_ring0, syscall};
use crate::arch::xstate::{self, XsaveArea};
use crate::arch::{apic, stubs};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::process::local::CpuLocal;
use crate::process::thread;

/// A handler. It runs in ring 0 if the thread was there, and natively if not ([`Cpu::current`] tells).
pub type SignalHandler = fn(i32, &libc::siginfo_t);

const SIGNALS: usize = 65;
static HANDLERS: [AtomicPtr<()>; SIGNALS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS];
const RED_ZONE: u64 = 128;
/// Direction and single-step flags, which a handler begins without.
const NOT_IN_HANDLERS: u64 = 0x400 | 0x100;

/// The signals that were noted for one processor's thread.
pub struct Noted {
    /// One bit for each.
    bits: AtomicU64,
    infos: UnsafeCell<[MaybeUninit<libc::siginfo_t>; SIGNALS]>,
}

// SAFETY: used by the processor's thread only: its host part's handlers, and its handlers in ring 0.
unsafe impl Sync for Noted {}

impl Default for Noted {
    fn default() -> Noted {
        Noted { bits: AtomicU64::new(0), infos: UnsafeCell::new([const { MaybeUninit::uninit() }; SIGNALS]) }
    }
}

impl Noted {
    /// Whether there are any.
    #[inline]
    pub fn any(&self) -> bool {
        self.bits.load(Ordering::Relaxed) != 0
    }

    /// Where the assembly looks.
    pub fn word(&self) -> *const AtomicU64 {
        &raw const self.bits
    }

    fn note(&self, signal: i32, info: &libc::siginfo_t) {
        // SAFETY: the signal is blocked as long as its bit is set, so nobody reads this one now.
        unsafe { (*self.infos.get())[signal as usize].write(*info) };
        self.bits.fetch_or(1 << (signal - 1), Ordering::Release);
    }

    fn take(&self) -> Option<(i32, libc::siginfo_t)> {
        let bits = self.bits.load(Ordering::Acquire);
        if bits == 0 {
            return None;
        }
        let signal = bits.trailing_zeros() as i32 + 1;
        // SAFETY: its bit is set, so it was written.
        let info = unsafe { (*self.infos.get())[signal as usize].assume_init() };
        self.bits.fetch_and(!(1 << (signal - 1)), Ordering::Release);
        Some((signal, info))
    }
}

/// Has a signal handled by `handler` in ring 0, by all threads; natively by those that are not there. Without `restart`,
/// system calls that it interrupts fail with EINTR. `None` brings the default action back.
///
/// Signals that an instruction causes (SIGSEGV and the like) are refused: a thread gets them in ring 3.
pub fn set_signal_handler(signal: i32, handler: Option<SignalHandler>, restart: bool) -> Result<()> {
    const REFUSED: [i32; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGKILL,
        libc::SIGSTOP,
    ];
    if !(1..SIGNALS as i32).contains(&signal) || REFUSED.contains(&signal) {
        return Err(Error::BadSignal { signal });
    }
    // SAFETY: all zeros is an action: the default one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    if let Some(handler) = handler {
        HANDLERS[signal as usize].store(handler as *mut (), Ordering::Release);
        action.sa_sigaction = catch as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | if restart { libc::SA_RESTART } else { 0 };
    }
    // SAFETY: the handler is of the form that SA_SIGINFO asks for.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Error::BadSignal { signal }),
    }
}

fn handler(signal: i32) -> Option<SignalHandler> {
    let pointer = HANDLERS.get(signal as usize)?.load(Ordering::Acquire);
    // SAFETY: only `set_signal_handler` stores here, and stores such functions.
    (!pointer.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), SignalHandler>(pointer) })
}

/// Linux calls this, natively.
extern "C" fn catch(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, for as long as this runs.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    let registers = &mut context.uc_mcontext.gregs;
    let stack = registers[libc::REG_RSP as usize] as u64;
    let local = thread::own_cpu().filter(|local| local.in_session() && local.is_on_host_stack(stack));
    let Some(local) = local else {
        // It interrupted native code.
        if let Some(handle) = handler(signal) {
            handle(signal, info);
        }
        return;
    };
    local.signals.note(signal, info);
    // Blocked when this returns, until its handler has returned.
    // SAFETY: the kernel's set of signals is the first word of the C library's.
    unsafe { *(&raw mut context.uc_sigmask).cast::<u64>() |= 1 << (signal - 1) };
    let at = registers[libc::REG_RIP as usize] as u64;
    if (stubs::bedplate_ring0_call_begins as *const () as u64
        ..=stubs::bedplate_ring0_call as *const () as u64)
        .contains(&at)
    {
        registers[libc::REG_RIP as usize] = stubs::bedplate_ring0_call_given_up as *const () as i64;
    }
    compiler_fence(Ordering::SeqCst);
    // SAFETY: KVM's mapping of this thread's processor. If KVM_RUN comes next, it returns at once.
    unsafe { (&raw mut (*local.run).immediate_exit).write_volatile(1) };
}

/// Before the guest runs: has KVM interrupt the processor if signals were noted.
pub fn announce(local: &CpuLocal) {
    // SAFETY: KVM's mapping of this thread's processor.
    unsafe { (&raw mut (*local.run).immediate_exit).write_volatile(0) };
    compiler_fence(Ordering::SeqCst);
    if local.signals.any() {
        local.process().interrupt_from_outside(local.number, crate::ipi::SIGNAL);
    }
}

/// What lies on the interrupted stack while a handler runs; the assembly goes back through the registers at its start.
#[repr(C, align(16))]
struct SignalFrame {
    registers: TrapFrame,
    signal: i32,
    info: libc::siginfo_t,
}

/// In the processor's handler of the vector: lets the code go on in the signal's handler.
pub fn deliver(cpu: Cpu, frame: &mut TrapFrame) {
    let local = cpu.local();
    let Some((signal, info)) = local.signals.take() else { return };
    let place = (frame.rsp - RED_ZONE - size_of::<SignalFrame>() as u64) & !63;
    // SAFETY: the interrupted code's stack, below what it uses. If it is at its end, the fault is its own.
    unsafe { (place as *mut SignalFrame).write(SignalFrame { registers: *frame, signal, info }) };
    frame.rip = stubs::bedplate_ring0_signal_entry as *const () as u64;
    frame.rsp = place;
    frame.rdi = place;
    frame.rflags &= !NOT_IN_HANDLERS;
    if local.signals.any() {
        // SAFETY: in ring 0.
        unsafe { apic::send_self(crate::ipi::SIGNAL) };
    }
}

/// Runs the handler, on the interrupted stack, from the assembly. Returns in ring 0 only: where the handler has lost it,
/// the interrupted code goes on natively.
#[unsafe(no_mangle)]
extern "C" fn bedplate_ring0_run_signal_handler(frame: &mut SignalFrame, vectors: &mut XsaveArea) {
    let SignalFrame { registers, signal, info } = frame;
    if let Some(cpu) = Cpu::current() {
        cpu.local().counters.signals_in_ring0.increment();
    }
    if let Some(handle) = handler(*signal) {
        handle(*signal, info);
    }
    unblock(*signal);
    if !is_ring0()
        && let Some(local) = thread::own_cpu()
    {
        let process = local.process();
        // SAFETY: the registers are those of code of this thread, whose vector registers the assembly has saved.
        unsafe { xstate::resume(&registers.to_kvm(), vectors, process.features(), process.native_features()) }
    }
}

/// Before the thread goes on natively: signals that were noted are sent again, and so are handled natively.
pub fn hand_back(local: &CpuLocal) {
    while let Some((signal, info)) = local.signals.take() {
        // SAFETY: sends to this thread itself what it had received.
        unsafe {
            let ids =
                [libc::getpid() as u64, libc::gettid() as u64, signal as u64, (&raw const info) as u64, 0, 0];
            syscall(libc::SYS_rt_tgsigqueueinfo as u64, ids);
        }
        unblock(signal);
    }
}

fn unblock(signal: i32) {
    let set = 1u64 << (signal - 1);
    // SAFETY: reads the variable.
    unsafe {
        let arguments = [libc::SIG_UNBLOCK as u64, (&raw const set) as u64, 0, 8, 0, 0];
        syscall(libc::SYS_rt_sigprocmask as u64, arguments);
    }
}
