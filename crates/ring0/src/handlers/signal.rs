//! Handling signals in ring 0.
//!
//! By default a signal interrupts the host part, and its handler runs there, in ring 3. A handler set by this
//! module runs in ring 0 if the thread was there. The handler in the host part, `catch`, only notes the signal, and
//! makes KVM interrupt the processor with a vector reserved for signals. The handler of that vector makes the
//! interrupted code continue in the signal's handler, below its red zone, as Linux does. A signal thus arrives
//! between two instructions with interrupts on, and never on top of a trap handler.
//!
//! A noted signal stays blocked until its handler has returned, so no signal is lost.
//!
//! A signal must not be noted just before the host part makes a system call that blocks. Such a call is therefore
//! made in one place, which first checks for noted signals. A signal that arrives between the check and the call
//! moves the host part past the call. The guest makes the call again after the signal's handler.

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

/// A signal handler. It runs in ring 0 if the thread was there, and in ring 3 otherwise. [`Cpu::current`]
/// distinguishes the two.
pub type SignalHandler = fn(i32, &libc::siginfo_t);

const SIGNALS: usize = 65;
static HANDLERS: [AtomicPtr<()>; SIGNALS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS];
/// Size in bytes of the red zone, which code may use below its stack pointer.
pub(crate) const RED_ZONE: u64 = 128;
/// The direction and single-step flags. They are cleared before a handler runs.
const NOT_IN_HANDLERS: u64 = 0x400 | 0x100;

/// The signals noted for the thread of one processor.
pub struct Noted {
    /// One bit for each signal.
    bits: AtomicU64,
    infos: UnsafeCell<[MaybeUninit<libc::siginfo_t>; SIGNALS]>,
}

// SAFETY: only the processor's thread uses it: in its signal handlers in the host part, and in its handlers in ring
// 0.
unsafe impl Sync for Noted {}

impl Default for Noted {
    fn default() -> Noted {
        Noted { bits: AtomicU64::new(0), infos: UnsafeCell::new([const { MaybeUninit::uninit() }; SIGNALS]) }
    }
}

impl Noted {
    /// Whether any signal is noted.
    #[inline]
    pub fn any(&self) -> bool {
        self.bits.load(Ordering::Relaxed) != 0
    }

    /// The word that the assembly checks.
    pub fn word(&self) -> *const AtomicU64 {
        &raw const self.bits
    }

    fn note(&self, signal: i32, info: &libc::siginfo_t) {
        // SAFETY: the signal is blocked as long as its bit is set, so no other code reads this entry now.
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

/// Sets the handler of a signal for all threads. It runs in ring 0 for threads that are there, and in ring 3 for
/// the others. Without `restart`, system calls that the signal interrupts fail with EINTR. `None` restores the
/// default action.
///
/// # Errors
/// [`Error::BadSignal`] for a number that is not a signal, for SIGKILL and SIGSTOP, and for signals that an instruction causes
/// (SIGSEGV and the like). A thread gets the latter in ring 3.
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

/// The signal handler of the host part, which Linux calls in ring 3.
extern "C" fn catch(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, for as long as this runs.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    let registers = &mut context.uc_mcontext.gregs;
    let stack = registers[libc::REG_RSP as usize] as u64;
    let local = thread::own_cpu().filter(|local| local.in_session() && local.is_on_host_stack(stack));
    let Some(local) = local else {
        // The signal interrupted ring 3 code.
        if let Some(handle) = handler(signal) {
            handle(signal, info);
        }
        return;
    };
    local.signals.note(signal, info);
    // The signal is blocked from the return of this function until its handler has returned.
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
    // SAFETY: KVM's mapping of this thread's processor. If KVM_RUN is the next call, it returns at once.
    unsafe { (&raw mut (*local.run).immediate_exit).write_volatile(1) };
}

/// Makes KVM interrupt the processor if signals are noted. Called before the guest runs.
pub fn announce(local: &CpuLocal) {
    // SAFETY: KVM's mapping of this thread's processor.
    unsafe { (&raw mut (*local.run).immediate_exit).write_volatile(0) };
    compiler_fence(Ordering::SeqCst);
    if local.signals.any() {
        local.process().interrupt_from_outside(local.number, crate::ipi::SIGNAL);
    }
}

/// The data on the interrupted stack while a signal handler runs. The assembly restores the registers from its
/// start.
#[repr(C, align(16))]
pub(crate) struct SignalFrame {
    registers: TrapFrame,
    /// The components of the vector registers to save: those of ring 0. Ring 3 has them as well.
    features: u64,
    signal: i32,
    info: libc::siginfo_t,
}

impl SignalFrame {
    /// Offset of `features`, for the assembly.
    pub(crate) const FEATURES: usize = offset_of!(SignalFrame, features);
}

/// Makes the interrupted code continue in the signal's handler. Called by the handler of the vector.
pub fn deliver(cpu: Cpu, frame: &mut TrapFrame) {
    let local = cpu.local();
    let Some((signal, info)) = local.signals.take() else { return };
    let place = (frame.rsp - RED_ZONE - size_of::<SignalFrame>() as u64) & !63;
    // SAFETY: the interrupted code's stack, below the part it uses. If the stack is too small, the fault is the
    // program's error.
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

/// Runs the handler on the interrupted stack; called by the assembly. The thread may lose ring 0 at any instruction
/// here, because the handler of another signal may leave ring 0. The code then continues in ring 3.
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

/// Sends noted signals again before the thread continues in ring 3, so they are handled in ring 3.
pub fn hand_back(local: &CpuLocal) {
    while let Some((signal, info)) = local.signals.take() {
        // SAFETY: sends to this thread a signal that it has received.
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

    /// Runs the whole return path in ring 3, as after a nested signal whose handler left ring 0.
    #[test]
    fn interrupted_code_goes_on_from_ring_3_too() {
        HANDLERS[libc::SIGUSR1 as usize].store(use_registers as *mut (), Ordering::SeqCst);
        let mut stack = vec![0u128; 8 << 10];
        for bytes_further in [0, 8, 16, 40, 56] {
            let rsp = stack.as_mut_ptr_range().end as u64 - 256 - bytes_further;
            let place = (rsp - RED_ZONE - size_of::<SignalFrame>() as u64) & !63;
            // SAFETY: all zeros is a valid `siginfo_t`.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            info.si_signo = libc::SIGUSR1;
            let registers =
                TrapFrame { rsp, rflags: 0x202 | 1, r12: 12, r9: 9, rax: 1, ..Default::default() };
            let features = xstate::native_features() & 7;
            let frame = SignalFrame { registers, features, signal: libc::SIGUSR1, info };
            let (mut sum, carry, at, vector): (u64, u64, u64, u64);
            // SAFETY: the frame is on a stack that is large enough, and the code leaves that stack again. Every
            // register that changes is named, or saved on the own stack.
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
