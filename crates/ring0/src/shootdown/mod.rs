//! TLB shootdown: it guarantees that no vCPU uses a translation any more after the translation was removed.
//!
//! The initiator changes page-table entries, and passes a [`Batch`] of pages to [`Protocol::shoot`]. When `shoot`
//! returns, every target vCPU has flushed these pages, or will do so before its next instruction in the guest. A
//! target may compute, be halted, be in a host call, leave, exit, or come in at that moment. It may also run a
//! shootdown against the initiator with interrupts off.
//!
//! Each vCPU has these parts:
//! * A **place**: [`Place::Absent`], [`Place::Host`] or [`Place::Guest`]. An absent vCPU is not in the guest; it
//!   flushes everything when it comes in. A vCPU at `Host` is in a host call, or stopped by the host; it takes a
//!   pending interrupt before its next instruction in the guest.
//! * A **generation**, which counts requests, and an **acknowledgement**: the generation up to which the vCPU has
//!   flushed.
//! * A small **ring** with the contents of the requests. If a request is not found there, the vCPU makes a full
//!   flush. This happens if later requests have overwritten it, or if it is not written yet. No request is ever
//!   lost, and no initiator waits for a free entry.
//!
//! The initiator first advances the generation, and then sends an interrupt if the target's host part is not at
//! work. Only then does it wait while the target is in the guest and has not acknowledged. The target announces
//! that it is in the guest before it looks for requests. Both have a full fence between their write and their read,
//! so at least one of them sees the other's write. A host part that was not interrupted therefore finds the request
//! when it is done.
//!
//! The initiator does not wait for a target whose thread Linux has preempted. KVM reports such a thread, and
//! flushes for it before it runs again ([`Platform::flush_when_resumed`]). A shootdown therefore takes as long as
//! the interrupt of a running thread, unless a running target has interrupts off.
//!
//! The protocol does not allocate or take locks. Initiators may have interrupts off, because they serve requests to
//! themselves while they wait. **Every other loop that waits for another vCPU with interrupts off must also call
//! [`Protocol::serve`]**, for example a loop that waits for a lock bit in a page-table entry.

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

/// The protocol on the processor's atomics.
pub type Shootdown = Protocol<crate::word::Native>;
