//! The host loop: it runs the guest and handles the reasons why the guest stopped.

use std::sync::atomic::Ordering;

use kvm_bindings::{
    KVM_EXIT_IO, KVM_EXIT_IO_OUT, KVM_EXIT_IOAPIC_EOI, KVM_EXIT_SHUTDOWN, KVM_SYNC_X86_REGS, kvm_regs,
    kvm_run,
};

use super::fatal::{Fatal, fatal};
use super::native::{resume_interrupted, resume_left};
use super::{system_call, trap};
use crate::arch::instructions::syscall;
use crate::arch::stubs::bedplate_ring0_guest_start;
use crate::arch::{control, ports};
use crate::handlers::signal;
use crate::process::local::CpuLocal;

const KVM_RUN: u64 = 0xae80;

/// The guest's registers in the memory that KVM shares with this process.
///
/// # Safety
/// Only the processor's owner may call this, while the processor is not in the guest.
unsafe fn registers<'a>(run: *mut kvm_run) -> &'a mut kvm_regs {
    // SAFETY: KVM's mapping is never unmapped, and KVM keeps the registers in this member.
    unsafe { &mut (*run).s.regs.regs }
}

/// Runs the guest from its start. Returns an errno only if the guest could not be started. Otherwise the thread
/// continues elsewhere: in the guest, or in ring 3 where the guest was.
#[unsafe(no_mangle)]
extern "C" fn bedplate_ring0_host_loop(local: &CpuLocal) -> u64 {
    let run = local.run;
    // SAFETY: this thread owns the processor, which is not in the guest.
    unsafe {
        *registers(run) = kvm_regs {
            rip: bedplate_ring0_guest_start as *const () as u64,
            rsp: local.guest_rsp.load(Ordering::Relaxed),
            rdi: local.address(),
            rflags: control::RFLAGS,
            ..Default::default()
        };
        (*run).kvm_valid_regs = u64::from(KVM_SYNC_X86_REGS);
        (*run).kvm_dirty_regs = u64::from(KVM_SYNC_X86_REGS);
    }
    local.session.store(true, Ordering::Relaxed);
    local.counters.entries.increment();
    let (shootdown, number) = (local.process().shootdown(), local.number as usize);
    let mut started = false;
    loop {
        signal::announce(local);
        if started && shootdown.host_ends(number) {
            // The interrupt makes the guest perform the shootdown first.
            local.process().interrupt_from_outside(local.number, crate::ipi::SHOOTDOWN);
        }
        // A bare system call, because the C library's function would write the errno that the guest also uses.
        // SAFETY: runs code of this process with the rights of this process.
        let result = unsafe { syscall(libc::SYS_ioctl as u64, [local.fd as u64, KVM_RUN, 0, 0, 0, 0]) };
        shootdown.host_begins(number);
        local.counters.exits.increment();
        // SAFETY: as above; the reference ends before the guest runs again.
        let regs = unsafe { registers(run) };
        match -result as i32 {
            0 => started = true,
            libc::EINTR | libc::EAGAIN => {
                local.counters.exits_signal.increment();
                continue;
            }
            libc::EFAULT => {
                local.counters.exits_memory.increment();
                resume_interrupted(local, regs)
            }
            errno if !started => {
                local.end_session();
                return errno as u64;
            }
            _ => {
                local.counters.exits_unknown.increment();
                resume_interrupted(local, regs)
            }
        }
        // SAFETY: KVM has set the exit reason, and the union member that belongs to it.
        let (reason, port) = unsafe {
            let io = (*run).__bindgen_anon_1.io;
            let out = u32::from(io.direction) == KVM_EXIT_IO_OUT && io.size == 1 && io.count == 1;
            ((*run).exit_reason, if out { io.port } else { 0 })
        };
        match (reason, port) {
            (KVM_EXIT_IO, ports::SYSCALL) => {
                if system_call::proxy(local, regs, run) {
                    // SAFETY: as above.
                    unsafe { (*run).kvm_dirty_regs |= u64::from(KVM_SYNC_X86_REGS) };
                }
            }
            (KVM_EXIT_IO, ports::LEAVE) => resume_left(local, regs),
            (KVM_EXIT_IO, ports::TRAP) => trap::unhandled(local, regs),
            (KVM_EXIT_IO, ports::CALL) => {
                local.counters.native_calls.increment();
                // SAFETY: only `natively` uses this port, and it passes such a function.
                let function = unsafe { std::mem::transmute::<u64, extern "C" fn(*mut ())>(regs.rdi) };
                function(regs.rsi as *mut ());
            }
            (KVM_EXIT_IOAPIC_EOI, _) => {}
            (KVM_EXIT_SHUTDOWN, _) => fatal(Fatal::Shutdown, local, regs),
            _ => {
                local.counters.exits_unknown.increment();
                resume_interrupted(local, regs)
            }
        }
    }
}
