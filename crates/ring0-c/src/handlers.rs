//! Handlers written in C. They are stored by vector, and one Rust handler calls them for all these vectors.

use std::ffi::c_int;
use std::mem::{offset_of, size_of, transmute};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use bedplate_ring0::handlers::{set_handler, set_syscall_handler};
use bedplate_ring0::{Answer, Cpu, Outcome, SyscallFrame, TrapFrame};

use crate::error::answer;

/// The registers of interrupted code. The code continues with the values that a handler leaves there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct bp_ring0_trap_frame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rax: u64,
    /// The vector; 14 is a page fault.
    pub vector: u64,
    /// The processor's error code; 0 for vectors without one.
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

const _: () = {
    assert!(size_of::<bp_ring0_trap_frame>() == size_of::<TrapFrame>());
    assert!(offset_of!(bp_ring0_trap_frame, rax) == offset_of!(TrapFrame, rax));
    assert!(offset_of!(bp_ring0_trap_frame, vector) == offset_of!(TrapFrame, vector));
    assert!(offset_of!(bp_ring0_trap_frame, rip) == offset_of!(TrapFrame, rip));
    assert!(offset_of!(bp_ring0_trap_frame, rsp) == offset_of!(TrapFrame, rsp));
};

/// A handler of a vector. It gets the processor's number, the interrupted code's registers and, for a page fault,
/// the address. It returns true if the cause is removed, and false to let the default action happen.
pub type bp_ring0_handler =
    Option<extern "C" fn(cpu: u32, frame: *mut bp_ring0_trap_frame, address: u64) -> bool>;

/// A handler of system calls. It gets the processor's number, the call's number, and its six arguments, and may
/// change number and arguments. It returns true if `result` is the call's result (an error is a negative errno),
/// and false to pass the call to Linux.
pub type bp_ring0_syscall_handler =
    Option<extern "C" fn(cpu: u32, number: *mut u64, arguments: *mut u64, result: *mut i64) -> bool>;

static HANDLERS: [AtomicPtr<()>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];
static SYSCALL_HANDLER: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Sets the handler of an exception (vectors 0 to 31) or an interrupt; NULL removes it. Returns -EINVAL for a
/// vector that cannot have a handler.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_set_handler(vector: u8, handler: bp_ring0_handler) -> c_int {
    let pointer = handler.map_or(ptr::null_mut(), |handler| handler as *mut ());
    let place = &HANDLERS[usize::from(vector)];
    let before = place.swap(pointer, Ordering::AcqRel);
    let result = set_handler(vector, handler.map(|_| trap as fn(Cpu, &mut TrapFrame, u64) -> Outcome));
    if result.is_err() {
        place.store(before, Ordering::Release);
    }
    answer(result)
}

/// Sets the handler of system calls; NULL removes it. It takes effect for this thread at once. A thread that was
/// already in ring 0 while there was no handler uses it when it enters again.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_set_syscall_handler(handler: bp_ring0_syscall_handler) {
    let pointer = handler.map_or(ptr::null_mut(), |handler| handler as *mut ());
    SYSCALL_HANDLER.store(pointer, Ordering::Release);
    set_syscall_handler(handler.map(|_| system_call as fn(Cpu, &mut SyscallFrame) -> Answer));
}

fn trap(cpu: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
    let pointer = HANDLERS[frame.vector as usize & 255].load(Ordering::Acquire);
    // SAFETY: only `bp_ring0_set_handler` stores here: null, or such a function.
    let handler = unsafe { transmute::<*mut (), bp_ring0_handler>(pointer) };
    match handler {
        Some(handler) if handler(cpu.number(), ptr::from_mut(frame).cast(), address) => Outcome::Handled,
        _ => Outcome::Pass,
    }
}

fn system_call(cpu: Cpu, frame: &mut SyscallFrame) -> Answer {
    let pointer = SYSCALL_HANDLER.load(Ordering::Acquire);
    // SAFETY: only `bp_ring0_set_syscall_handler` stores here: null, or such a function.
    let handler = unsafe { transmute::<*mut (), bp_ring0_syscall_handler>(pointer) };
    let mut result = 0;
    match handler {
        Some(handler)
            if handler(
                cpu.number(),
                &raw mut frame.number,
                frame.arguments.as_mut_ptr(),
                &raw mut result,
            ) =>
        {
            Answer::Return(result)
        }
        _ => Answer::Proxy,
    }
}
