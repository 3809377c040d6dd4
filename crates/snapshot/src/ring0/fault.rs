//! The page-fault handler (Figure 5): a write to a write-protected page in ring 0.
//!
//! The handler does not allocate. While it waits, it serves the requests of other processors.

use std::sync::atomic::Ordering;

use bedplate_ring0::frames::{Frame, copy_frame};
use bedplate_ring0::paging::{Slot, VirtRange};
use bedplate_ring0::word::Native;
use bedplate_ring0::{Cpu, TrapFrame, handlers};

use super::frames::unavailable;
use super::protocol::{self, Outcome, World};
use super::registry;
use super::space::Space;
use crate::{Error, PAGE};

fn page_fault(cpu: Cpu, frame: &mut TrapFrame, address: u64) -> bedplate_ring0::Outcome {
    use bedplate_ring0::Outcome::{Handled, Pass};
    let Some(space) = registry::at(address) else { return Pass };
    if !frame.is_write() || !frame.is_present() {
        return Pass;
    }
    match write(space, cpu, address) {
        Some(()) => Handled,
        None => Pass,
    }
}

/// Sets the handler of page faults for all memories.
pub fn install(all: VirtRange) -> Result<(), Error> {
    handlers::claim_page_faults(all, page_fault).map_err(unavailable)
}

/// Makes a page writable in the tables that this processor uses. Returns `None` if the processor must not write
/// there.
#[inline]
pub fn write(space: &Space, cpu: Cpu, address: u64) -> Option<()> {
    let address = address & !(PAGE as u64 - 1);
    let page = Page { space, cpu, address };
    let _reading = space.latch.read(|| cpu.relax());
    match registry::snapshot_on(cpu.number()) {
        None => {
            page.write_by_main()?;
        }
        Some((number, slot)) if number == space.number() => {
            count(space, protocol::write_by_snapshot(&page, slot, space.epochs.of(slot)));
        }
        // The processor runs a task on a snapshot of another memory.
        Some(_) => return None,
    }
    cpu.flush_page(address);
    Some(())
}

#[inline]
fn count(space: &Space, outcome: Outcome) {
    let counters = &space.counters;
    let counter = if outcome == Outcome::Copied { &counters.copied } else { &counters.not_copied };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A page that is written to, on a processor. The latch must be held.
pub struct Page<'a> {
    pub space: &'a Space,
    pub cpu: Cpu,
    pub address: u64,
}

impl Page<'_> {
    /// Performs a write by main, or by Linux for main.
    #[inline(always)]
    pub fn write_by_main(&self) -> Option<()> {
        let entry = self.space.main().directory().slot(self.address)?;
        count(self.space, protocol::write_by_main::<Native, _>(self, entry, &self.space.epochs));
        Some(())
    }
}

impl World<Native> for Page<'_> {
    #[inline]
    fn entry(&self, slot: usize) -> Option<&Slot> {
        self.space.snapshot(slot)?.directory().slot(self.address)
    }

    #[inline(always)]
    fn copy(&self, of: Frame) -> Option<Frame> {
        let from = self.space.address_of(of)?;
        let frames = &self.space.pool.frames;
        let copy = frames.take(self.cpu.number())?;
        // SAFETY: both frames belong to this memory, and no other code has the new one. If another thread writes to
        // the old one meanwhile, the copy is not used.
        unsafe { copy_frame(frames.address(copy)?, from) };
        Some(copy)
    }

    fn discard(&self, copy: Frame) {
        // A frame that was taken above is never refused.
        let _ = self.space.pool.frames.give(self.cpu.number(), copy);
    }

    #[inline]
    fn leave_in_limbo(&self, copy: Frame, end_epoch: u64) {
        self.space.limbo.push(self.space.pool.number(copy), end_epoch);
    }

    fn tear(&self, slot: usize) -> Frame {
        self.space.tear(slot)
    }

    fn flush(&self, snapshots: u64) {
        self.space.flush_snapshots(self.cpu, snapshots, self.address);
    }

    fn relax(&self) {
        self.cpu.relax();
    }
}
