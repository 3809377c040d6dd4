//! Exceptions and interrupts. Each vector has one handler.

use std::arch::asm;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::ranges;
use crate::arch::frame::{TrapFrame, page_fault, vector};
use crate::arch::stubs::finish_call;
use crate::arch::{apic, ports};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::process::local::CpuLocal;

/// The result of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The cause is removed. The interrupted code continues with the registers in the frame.
    Handled,
    /// The handler is not responsible. The default action follows.
    Pass,
}

/// A trap handler. The last argument is the address of a page fault, and undefined for other vectors.
pub type TrapHandler = fn(Cpu, &mut TrapFrame, u64) -> Outcome;

static HANDLERS: [AtomicPtr<()>; 256] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 256];

fn handler(vector: usize) -> Option<TrapHandler> {
    let pointer = HANDLERS.get(vector)?.load(Ordering::Acquire);
    // SAFETY: only `set_handler` stores here, and stores such functions.
    (!pointer.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), TrapHandler>(pointer) })
}

/// Sets or removes the handler of a vector. It takes effect on all processors at once.
///
/// An exception without a handler makes the code continue in ring 3, where it gets the signal it would get without
/// ring 0. An interrupt without a handler is counted and ignored. Vectors 0 to 31 are exceptions. The others are
/// interrupts, which [`Cpu::send`](crate::Cpu::send) sends.
///
/// # Errors
/// [`Error::BadVector`] for double faults, machine checks, and the vectors that the library uses itself.
pub fn set_handler(number: u8, handler: Option<TrapHandler>) -> Result<()> {
    let refuse = |why| Err(Error::BadVector { vector: number, why });
    match u64::from(number) {
        vector::DOUBLE_FAULT => return refuse("a double fault has no registers to go on with"),
        vector::MACHINE_CHECK => return refuse("broken hardware is not a program's to handle"),
        apic::SPURIOUS_VECTOR => return refuse("it is the controller's own"),
        _ if crate::ipi::is_reserved(number) => return refuse("shootdowns, remote calls and ticks use it"),
        _ => {}
    }
    let pointer = handler.map_or(std::ptr::null_mut(), |handler| handler as *mut ());
    HANDLERS[usize::from(number)].store(pointer, Ordering::Release);
    Ok(())
}

/// Sets or removes the handler of page faults outside [claimed ranges](super::claim_page_faults), and of page
/// faults in claimed ranges that their handler passes. The handler gets the address as its last argument, and the
/// error code in the frame.
pub fn set_page_fault_handler(handler: Option<TrapHandler>) {
    let pointer = handler.map_or(std::ptr::null_mut(), |handler| handler as *mut ());
    HANDLERS[vector::PAGE_FAULT as usize].store(pointer, Ordering::Release);
}

impl TrapFrame {
    /// Whether a page fault was a write.
    pub fn is_write(&self) -> bool {
        self.error & page_fault::WRITE != 0
    }

    /// Whether the page of a page fault was present but lacked a right.
    pub fn is_present(&self) -> bool {
        self.error & page_fault::PRESENT != 0
    }

    /// Whether a page fault was an instruction fetch.
    pub fn is_fetch(&self) -> bool {
        self.error & page_fault::FETCH != 0
    }
}

/// The common handler of all traps, which the trap entries call.
#[unsafe(no_mangle)]
extern "C" fn bedplate_ring0_trap(frame: &mut TrapFrame, address: u64) {
    let Some(local) = CpuLocal::current() else { return };
    let cpu = Cpu::new(local);
    // Page faults need no check: all memory that the entry of system calls touches is always mapped.
    if frame.vector != vector::PAGE_FAULT && finish_call(frame.rip) {
        // The result must be taken now, because the handler may make system calls or continue other code.
        frame.rax = local.syscall_result.load(Ordering::Relaxed);
        frame.rip = frame.rcx;
    }
    let is_page_fault = frame.vector == vector::PAGE_FAULT;
    let first = if is_page_fault { ranges::handler_at(address) } else { None };
    let second = handler(frame.vector as usize);
    let handled =
        [first, second].into_iter().flatten().any(|handle| handle(cpu, frame, address) == Outcome::Handled);
    let counters = &local.counters;
    match frame.vector {
        vector::PAGE_FAULT => {
            counters.page_faults.increment();
            if handled {
                counters.page_faults_handled.increment();
                return;
            }
        }
        0..vector::FIRST_INTERRUPT => {
            counters.exceptions.increment();
            if handled {
                counters.exceptions_handled.increment();
                return;
            }
            if frame.vector == vector::NMI {
                return;
            }
        }
        apic::SPURIOUS_VECTOR => return counters.interrupts_spurious.increment(),
        _ if is_software_interrupt(frame) && !handled => {}
        number => {
            counters.interrupts.increment();
            if !handled && !crate::ipi::handle(cpu, number as u8, frame) {
                counters.interrupts_spurious.increment();
            }
            // SAFETY: in ring 0.
            return unsafe { apic::end_of_interrupt() };
        }
    }
    // SAFETY: in ring 0, on the stack of a trap. The host part reads the frame from there. It either returns to
    // retry the instruction, or continues in ring 3.
    unsafe {
        asm!("out {port}, al", port = const ports::TRAP, in("rdi") std::ptr::from_mut(frame), in("rsi") address);
    }
}

/// Whether the interrupted instruction follows an `int n` with this vector. Then no controller sent the interrupt.
/// In ring 3, it is a signal or a system call of 32 bits.
fn is_software_interrupt(frame: &TrapFrame) -> bool {
    const INT: u8 = 0xcd;
    if handler(frame.vector as usize).is_some() || crate::ipi::is_reserved(frame.vector as u8) {
        return false;
    }
    // SAFETY: an instruction of two or more bytes was just executed or fetched at this address or shortly before
    // it. If the previous page is not mapped, the fault makes the thread continue in ring 3 at this read.
    let before = unsafe { ((frame.rip - 2) as *const [u8; 2]).read() };
    before == [INT, frame.vector as u8]
}
