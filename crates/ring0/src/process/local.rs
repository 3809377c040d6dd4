//! The data of one virtual processor. GS points to them in ring 0.
//!
//! One thread at a time owns the processor ([`CpuLocal::owner`]). Other threads may access only the atomics.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use kvm_bindings::kvm_run;

use super::Process;
use crate::arch::instructions::is_ring0;
use crate::arch::segments::{Gdt, Stack, TaskState, gdt};
use crate::arch::xstate::XsaveArea;
use crate::error::Result;
use crate::handlers::signal::Noted;
use crate::ipi::calls::Inbox;
use crate::kvm::steal_time::StealTime;
use crate::memory::mapping::Mapping;
use crate::statistics::Counters;

/// The data of one virtual processor. The assembly finds the first fields by their offsets.
#[repr(C, align(64))]
pub struct CpuLocal {
    this: AtomicPtr<CpuLocal>,
    /// The stack pointer at which the thread entered.
    pub guest_rsp: AtomicU64,
    /// The top of the stack that the host loop runs on.
    pub host_stack: u64,
    /// The thread's FS base at its entry.
    pub fs_base: AtomicU64,
    /// The stack pointer of the code whose system call a handler is processing.
    pub syscall_rsp: AtomicU64,
    /// The top of the stack that system-call handlers run on.
    pub syscall_stack: u64,
    /// The result of the last system call that Linux made.
    pub syscall_result: AtomicU64,
    /// 1 while a system-call handler runs. The handler's own system calls bypass the handlers.
    pub syscall_busy: AtomicU32,
    /// 0 if no thread owns this processor.
    pub owner: AtomicU32,
    /// The number of the processor and of its interrupt controller.
    pub number: u32,
    /// The descriptor of the KVM file of this processor.
    pub fd: i32,
    /// The task state segment: the tops of the trap stacks.
    pub task: UnsafeCell<TaskState>,
    /// The global descriptor table.
    pub gdt: Gdt,
    /// The memory about this processor that KVM and the process share.
    pub run: *mut kvm_run,
    /// The process that the processor belongs to.
    pub process: *const Process,
    /// Whether the owner's host loop is on the host stack.
    pub session: AtomicBool,
    /// The system-call entry that LSTAR points to.
    pub syscall_entry: AtomicU64,
    /// The page tables in use: the guest-physical address of the topmost table.
    pub root: AtomicU64,
    /// The address of the last page fault that was retried because its window existed already.
    pub retried: AtomicU64,
    /// The function called at each tick of the timer; null if there are no ticks.
    pub tick_handler: AtomicPtr<()>,
    /// Signals noted for handlers in ring 0.
    pub signals: Noted,
    /// Function calls that other processors have requested.
    pub inbox: Inbox,
    /// KVM's record of whether the owner's thread runs, if KVM keeps one.
    pub steal_time: StealTime,
    /// The counters of this processor.
    pub counters: Counters,
    /// Buffer for the vector registers on their way to ring 3.
    pub vectors: UnsafeCell<XsaveArea>,
}

// SAFETY: a field that is not atomic either never changes or is used by the owner only.
unsafe impl Sync for CpuLocal {}
// SAFETY: as above.
unsafe impl Send for CpuLocal {}

/// The layout of a processor's mapping, from low to high addresses. Each stack has a guard page below it.
mod layout {
    use super::{CpuLocal, Stack};

    pub const GUARD: usize = 4096;
    pub const SYSCALL_STACK: usize = 64 << 10;
    pub const HOST_STACK: usize = 1 << 20;

    /// The top of trap stack `index`.
    pub const fn trap_top(index: usize) -> usize {
        (index + 1) * (GUARD + Stack::BYTES)
    }
    pub const SYSCALL_TOP: usize = trap_top(Stack::COUNT - 1) + GUARD + SYSCALL_STACK;
    pub const HOST_TOP: usize = SYSCALL_TOP + GUARD + HOST_STACK;
    pub const LOCAL: usize = HOST_TOP;
    pub const BYTES: usize = LOCAL + size_of::<CpuLocal>().next_multiple_of(4096);
}

impl CpuLocal {
    /// Creates the data of a processor that is not running yet. The caller must keep the returned mapping.
    pub fn allocate(process: &Process, number: u32) -> Result<(Mapping, *mut CpuLocal)> {
        let memory = Mapping::new(layout::BYTES, "a virtual processor")?;
        for index in 0..Stack::COUNT {
            memory.guard(layout::trap_top(index) - Stack::BYTES - layout::GUARD, layout::GUARD)?;
        }
        memory.guard(layout::SYSCALL_TOP - layout::SYSCALL_STACK - layout::GUARD, layout::GUARD)?;
        memory.guard(layout::HOST_TOP - layout::HOST_STACK - layout::GUARD, layout::GUARD)?;
        let base = memory.base() as u64;
        let at = memory.base().wrapping_add(layout::LOCAL).cast::<CpuLocal>();
        let tops = std::array::from_fn(|index| base + layout::trap_top(index) as u64);
        let task_offset = std::mem::offset_of!(CpuLocal, task) as u64;
        let local = CpuLocal {
            this: AtomicPtr::new(at),
            guest_rsp: AtomicU64::new(0),
            host_stack: base + layout::HOST_TOP as u64,
            fs_base: AtomicU64::new(0),
            syscall_rsp: AtomicU64::new(0),
            syscall_stack: base + layout::SYSCALL_TOP as u64,
            syscall_result: AtomicU64::new(0),
            syscall_busy: AtomicU32::new(0),
            owner: AtomicU32::new(1),
            number,
            fd: -1,
            task: UnsafeCell::new(TaskState::new(tops)),
            gdt: gdt(at as u64 + task_offset),
            run: ptr::null_mut(),
            process,
            session: AtomicBool::new(false),
            syscall_entry: AtomicU64::new(0),
            root: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            tick_handler: AtomicPtr::default(),
            signals: Noted::default(),
            inbox: Inbox::default(),
            steal_time: StealTime::default(),
            counters: Counters::default(),
            vectors: UnsafeCell::new(XsaveArea::new()),
        };
        // SAFETY: the mapping has room at this address, which is aligned to a page, and no other code knows the
        // mapping.
        unsafe { at.write(local) };
        Ok((memory, at))
    }

    /// The processor this code runs on, or `None` in ring 3.
    #[inline]
    pub fn current() -> Option<&'static CpuLocal> {
        if !is_ring0() {
            return None;
        }
        let this: *const CpuLocal;
        // SAFETY: in ring 0, GS points to the processor's data, whose first word is their address.
        unsafe {
            std::arch::asm!("mov {}, gs:[0]", out(reg) this, options(nostack, readonly, preserves_flags))
        };
        // SAFETY: a processor's data are never freed.
        Some(unsafe { &*this })
    }

    /// The address of this value.
    pub fn address(&self) -> u64 {
        ptr::from_ref(self) as u64
    }

    /// The process that the processor belongs to.
    #[inline]
    pub fn process(&self) -> &'static Process {
        // SAFETY: a process is never freed.
        unsafe { &*self.process }
    }

    /// Whether an address is on the host stack.
    pub fn is_on_host_stack(&self, address: u64) -> bool {
        (self.host_stack - layout::HOST_STACK as u64..self.host_stack).contains(&address)
    }

    /// Whether the thread's host loop is on the host stack, according to the flag.
    pub fn in_session(&self) -> bool {
        self.session.load(Ordering::Relaxed)
    }

    /// Ends the session, because the guest will not continue: the thread leaves, has lost ring 0, or ends.
    pub fn end_session(&self) {
        self.process().shootdown().go_out(self.number as usize);
        self.session.store(false, Ordering::Relaxed);
    }

    /// Resets the state that a previous session may have left. The processor must not be running.
    pub fn prepare(&self) {
        let base = self.host_stack - layout::HOST_TOP as u64;
        let top = base + layout::trap_top(Stack::Exception as usize - 1) as u64;
        // SAFETY: the processor is not running, and the caller is its owner.
        unsafe { (*self.task.get()).ist[Stack::Exception as usize - 1] = top };
        self.syscall_busy.store(0, Ordering::Relaxed);
        self.retried.store(0, Ordering::Relaxed);
    }
}
