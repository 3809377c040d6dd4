//! Runs the threads of a process in ring 0 on stock KVM (LIBDBOS; "Practical DB-OS Co-Design with Privileged Kernel
//! Bypass", sections 3 and 6).
//!
//! A [`Process`] is the virtual machine monitor of a virtual machine over its own address space. A thread that
//! enters ring 0 continues in the same function, with the same memory and the same stack. Linux still serves its
//! system calls. In ring 0 the process has its own page tables, trap handlers, and interrupts between its threads.
//!
//! ```no_run
//! use bedplate_ring0::{Outcome, Process, handlers};
//!
//! let process = Process::builder().build()?;
//! handlers::set_handler(3, Some(|_cpu, _frame, _| Outcome::Handled))?; // int3 does nothing
//! let sum = process.run(|cpu| {
//!     println!("in ring 0 on processor {}", cpu.number()); // a system call, made by Linux
//!     (1..=100).sum::<u32>()
//! })?;
//! assert_eq!(sum, 5050);
//! # Ok::<(), bedplate_ring0::Error>(())
//! ```
//!
//! # Losing ring 0
//! If code in ring 0 faults and no handler handles the fault, the thread continues in ring 3 at the same
//! instruction. There it gets the signal it would get without ring 0, with the right address. If it gets no signal,
//! it stays in ring 3. Ring 0 is therefore a matter of speed and must not be needed for correctness. Code that
//! depends on it must check [`Cpu::current`]. Signal handlers run in ring 3 unless [`handlers::set_signal_handler`]
//! has set them.

#[cfg(target_arch = "x86_64")]
mod arch;
#[cfg(target_arch = "x86_64")]
mod cpu;
#[cfg(target_arch = "x86_64")]
mod error;
pub mod frames;
#[cfg(target_arch = "x86_64")]
pub mod handlers;
#[cfg(target_arch = "x86_64")]
mod host;
#[cfg(target_arch = "x86_64")]
mod ipi;
#[cfg(target_arch = "x86_64")]
mod kvm;
#[cfg(target_arch = "x86_64")]
mod memory;
pub mod paging;
#[cfg(target_arch = "x86_64")]
mod process;
pub mod shootdown;
#[cfg(target_arch = "x86_64")]
mod statistics;
pub mod word;

#[cfg(target_arch = "x86_64")]
pub use self::{
    arch::frame::{TrapFrame, vector},
    arch::instructions::{InterruptsOff, is_ring0},
    cpu::Cpu,
    error::{Error, Result},
    handlers::{Answer, Outcome, SyscallFrame, SyscallHandler, TrapHandler},
    host::call::natively,
    host::fatal::Fatal,
    ipi::calls::{RemoteCall, RemoteFunction},
    ipi::ticks::TickHandler,
    kvm::statistics::Statistics as KvmStatistics,
    memory::reserved::Reserved,
    memory::windows::{Attached, Windows},
    process::{Builder, Process, virtualizes},
    statistics::Statistics,
};
