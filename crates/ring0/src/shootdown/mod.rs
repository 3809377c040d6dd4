//! TLB shootdown: no vCPU uses a translation any more that was taken away.
//!
//! Whoever has changed page-table entries hands a [`Batch`] of pages to [`Protocol::shoot`]; when that returns,
//! every vCPU it was for has flushed them, or will do so before its next instruction in the guest. Targets may
//! compute, be halted, sit in a host call, leave, exit, or come in at that moment, and may be shooting themselves,
//! with interrupts off, at the one who shoots at them.
//!
//! How it works, for each vCPU that can be a target:
//! * A **place**: [`Place::Absent`] (not in the guest: it flushes everything when it comes in),
//!   [`Place::Host`] (in a host call, or stopped by the host: it takes a pending interrupt before its next
//!   instruction in the guest) or [`Place::Guest`].
//! * A **generation** that counts requests, and an **acknowledgement**: the generation up to which it has flushed.
//! * A small ring that says what was asked for. A request that is not found there (overwritten by later ones, or
//!   not written yet) is answered by a full flush. So nothing is ever lost by being late, and nobody waits for a
//!   place in a queue.
//!
//! The initiator advances the generation, sends an interrupt if the target's host part is not at work, and only then
//! waits while the target is in the guest and has not acknowledged. The target announces that it is in the guest before
//! it looks for requests. Between those writes and reads both have a full fence: one of the two sees the other, so a
//! host part that was not interrupted finds the request when it is done.
//!
//! A target whose thread Linux has taken off its CPU is not waited for either: KVM says so, and flushes for it before the
//! thread goes on ([`Platform::flush_when_resumed`]). So a shootdown takes as long as an interrupt of a running thread, unless
//! a running target has interrupts off.
//!
//! Nothing here allocates or locks. Initiators may have interrupts off: while they wait they serve what is asked of
//! themselves. **Every other loop that waits for another vCPU with interrupts off must do so, too**
//! ([`Protocol::serve`]): for a lock bit in a page-table entry, say.

mod batch;
mod entry;
#[cfg(test)]
mod model;
mod protocol;
mod set;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Pages};
pub use protocol::{Place, Platform, Protocol, ShootdownStatistics};
pub use set::{CpuSet, MOST_CPUS};

/// The protocol, on the processor's atomics.
pub type Shootdown = Protocol<crate::word::Native>;
