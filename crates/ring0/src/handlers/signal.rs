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
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence};

use crate::arch::frame::TrapFrame;
use crate::arch::instructions::syscall;
use crate::arch::{apic, stubs};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::process::local::CpuLocal;
use crate::process::thread;

/// A handler. It runs in ring 0 if the thread was there, and natively if not ([`Cpu::current`] tells).
pub type SignalHandler = fn(i32, &libc::siginfo_t);

const SIGNALS: usize = 65;
static HANDLERS: [AtomicPtr<()>; SIGNALS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS];
/// What code may use below its stack pointer.
pub(crate) const RED_ZONE: u64 = 128;
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
pub(crate) struct SignalFrame {
    registers: TrapFrame,
    /// The vector registers to save: those of ring 0, as ring 3 has them as well.
    features: u64,
    signal: i32,
    info: libc::siginfo_t,
}

impl SignalFrame {
    /// Where the assembly finds them.
    pub(crate) const FEATURES: usize = offset_of!(SignalFrame, features);
}

/// In the processor's handler of the vector: lets the code go on in the signal's handler.
pub fn deliver(cpu: Cpu, frame: &mut TrapFrame) {
    let local = cpu.local();
    let Some((signal, info)) = local.signals.take() else { return };
    let place = (frame.rsp - RED_ZONE - size_of::<SignalFrame>() as u64) & !63;
    // SAFETY: the interrupted code's stack, below what it uses. If it is at its end, the fault is its own.
    unsafe {
        let features = local.process().features();
        (place as *mut SignalFrame).write(SignalFrame { registers: *frame, features, signal, info });
    }
    frame.rip = stubs::bedplate_ring0_signal_entry as *const () as u64;
    frame.rsp = place;
    frame.rdi = place;
    frame.rflags &= !NOT_IN_HANDLERS;
    if local.signals.any() {
        // SAFETY: in ring 0.
        unsafe { apic::send_self(crate::ipi::SIGNAL) };
    }
}

/// Runs the handler, on the interrupted stack, from the assembly: in ring 0, or natively from where the thread has lost
/// it, which may be anywhere here, as another signal may come in between whose handler leaves ring 0.
#[unsafe(no_mangle)]
extern "C" fn bedplate_ring0_run_signal_handler(frame: &SignalFrame) {
    if let Some(cpu) = Cpu::current() {
        cpu.local().counters.signals_in_ring0.increment();
    }
    if let Some(handle) = handler(frame.signal) {
        handle(frame.signal, &frame.info);
    }
    unblock(frame.signal);
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

#[cfg(test)]
mod tests {
    use std::arch::asm;

    use super::*;
    use crate::arch::xstate;

    static HANDLED: AtomicU64 = AtomicU64::new(0);

    fn use_registers(signal: i32, info: &libc::siginfo_t) {
        assert_eq!(signal, info.si_signo);
        // SAFETY: changes registers that a function may change.
        unsafe { asm!("xorps xmm14, xmm14", out("xmm14") _, options(nomem, nostack)) };
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }

    /// As where a signal on top of this one has left ring 0: all of the way back is in ring 3.
    #[test]
    fn interrupted_code_goes_on_from_ring_3_too() {
        HANDLERS[libc::SIGUSR1 as usize].store(use_registers as *mut (), Ordering::SeqCst);
        let mut stack = vec![0u128; 8 << 10];
        for bytes_further in [0, 8, 16, 40, 56] {
            let rsp = stack.as_mut_ptr_range().end as u64 - 256 - bytes_further;
            let place = (rsp - RED_ZONE - size_of::<SignalFrame>() as u64) & !63;
            // SAFETY: all zeros is an information.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            info.si_signo = libc::SIGUSR1;
            let registers =
                TrapFrame { rsp, rflags: 0x202 | 1, r12: 12, r9: 9, rax: 1, ..Default::default() };
            let features = xstate::native_features() & 7;
            let frame = SignalFrame { registers, features, signal: libc::SIGUSR1, info };
            let (mut sum, carry, at, vector): (u64, u64, u64, u64);
            // SAFETY: the frame is on a stack that is large enough, which the code gives up again; every register
            // that changes is named, or kept on the own stack.
            unsafe {
                (place as *mut SignalFrame).write(frame);
                asm!(
                    "push rbx", "push rbp",
                    "mov [rdi + {rbp}], rsp",
                    "lea rax, [rip + 2f]", "mov [rdi + {rip}], rax",
                    "mov rax, [rdi + {rsp}]", "mov qword ptr [rax - 128], 100", "mov qword ptr [rax - 8], 1000",
                    "mov eax, 77", "movq xmm14, rax",
                    "mov rsp, rdi",
                    "jmp {entry}",
                    "2:",
                    "setc cl", "movzx ecx, cl",
                    "add rax, r12", "add rax, r9", "add rax, [rsp - 128]", "add rax, [rsp - 8]",
                    "movq rdx, xmm14",
                    "mov rsi, rsp", "mov rsp, rbp",
                    "pop rbp", "pop rbx",
                    rbp = const offset_of!(TrapFrame, rbp),
                    rip = const offset_of!(TrapFrame, rip),
                    rsp = const offset_of!(TrapFrame, rsp),
                    entry = sym stubs::bedplate_ring0_signal_entry,
                    inout("rdi") place => _,
                    out("rax") sum, out("rcx") carry, out("rsi") at, out("rdx") vector,
                    out("r12") _, out("r13") _, out("r14") _, out("r15") _,
                    clobber_abi("C"),
                );
            }
            sum -= 1100;
            assert_eq!((sum, carry, at, vector), (1 + 12 + 9, 1, rsp, 77));
        }
        assert_eq!(HANDLED.load(Ordering::SeqCst), 5);
    }
}
