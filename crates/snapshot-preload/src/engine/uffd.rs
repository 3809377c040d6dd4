//! The engine for any kernel with userfaultfd.

use std::cell::UnsafeCell;
use std::ops::Range;

use bedplate_snapshot::uffd::{Frozen, Options, Refusal, Region, Service};
use bedplate_snapshot::{Error, PAGE};

use super::Engine;

/// See the module.
pub struct Uffd {
    service: Service,
    pending: Pending,
}

/// What is between the handlers before and after a fork.
struct Pending(UnsafeCell<Option<Frozen<'static>>>);
// SAFETY: only used by the thread that has the region frozen: there is one at a time.
unsafe impl Sync for Pending {}
// SAFETY: as above: an engine is moved before anything is frozen.
unsafe impl Send for Pending {}

impl Uffd {
    /// A region without threads. The allocator may be waiting for it, so nothing is allocated on the way to success;
    /// what is not available is found out before.
    pub fn new(bytes: usize, huge_pages: bool) -> Result<Self, Refusal> {
        Region::probe()?;
        let region = Region::new(Options { bytes, base: None, huge_pages, claimed: false });
        let region = region.map_err(|error| match error {
            Error::System { source, .. } => Refusal::Other(source),
            _ => Refusal::Kernel,
        })?;
        Ok(Self { service: Service::new(region), pending: Pending(UnsafeCell::new(None)) })
    }

    /// Starts its threads, if it has not done so: the program is about to begin, and may allocate.
    pub fn start_threads(&self) -> Result<(), Error> {
        self.service.start_threads()
    }

    fn pending(&self) -> Option<Frozen<'static>> {
        // SAFETY: the thread that has the region frozen calls this, if there is anything.
        unsafe { (*self.pending.0.get()).take() }
    }

    /// The region, which exists as long as the process.
    fn region(&self) -> &'static Region {
        let region: *const Region = &*self.service;
        // SAFETY: engines are kept in a static and never dropped.
        unsafe { &*region }
    }
}

impl Engine for Uffd {
    fn base(&self) -> usize {
        self.service.base()
    }

    fn pages(&self) -> usize {
        self.service.pages()
    }

    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>> {
        self.service.claim_anywhere(count, align)
    }

    fn claim_exactly(&self, pages: Range<usize>) -> bool {
        self.service.claim_exactly(pages)
    }

    fn release(&self, pages: Range<usize>) {
        self.service.release(pages);
    }

    fn discard(&self, pages: Range<usize>) {
        self.service.discard(pages);
    }

    fn empty_in_snapshot(&self, pages: Range<usize>) {
        let (at, len) = ((self.base() + pages.start * PAGE) as *mut libc::c_void, pages.len() * PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces memory of the region's that its owner has given up, never unmapping it, so that the owner's
        // process always finds its pages there.
        unsafe {
            if libc::syscall(libc::SYS_mmap, at, len, access, flags, -1, 0) == -1 {
                // There can only be so many mappings.
                at.write_bytes(0, len);
            }
        }
    }

    fn is_mapped(&self) -> bool {
        true
    }

    fn is_served(&self) -> bool {
        self.service.is_served()
    }

    fn has_room(&self) -> bool {
        self.service.has_room()
    }

    fn before_fork(&self) -> Result<(), Error> {
        let frozen = self.region().freeze()?;
        // SAFETY: this thread has the region frozen.
        unsafe { *self.pending.0.get() = Some(frozen) };
        Ok(())
    }

    fn after_fork_in_parent(&self) {
        if let Some(frozen) = self.pending() {
            frozen.thaw();
        }
    }

    fn after_fork_in_child(&self) -> Result<(), Error> {
        match self.pending() {
            // SAFETY: the child of a fork that froze the region.
            Some(frozen) => unsafe { frozen.map_in_child() },
            // The region has no threads, so nobody froze it.
            // SAFETY: the only thread of a child that has not touched it.
            None if !self.is_served() => unsafe { self.service.share_in_child() },
            None => Err(Error::OfASnapshot),
        }
    }

    fn lets_snapshots_fork(&self) -> bool {
        true
    }

    fn own_everything(&self) {
        self.service.own_everything();
    }

    fn statistics(&self) -> String {
        let of = self.service.statistics();
        format!(
            "snapshots={} active={} torn={} faults={} pages_copied={} armed_at_snapshots={} armed_ahead={} unarmed={} \
             handler_moves={} longest_pause_ns={} latest_pause_ns={}",
            of.snapshots,
            of.active,
            of.torn,
            of.faults,
            of.pages_copied,
            of.armed_at_snapshots,
            of.armed_ahead,
            of.unarmed,
            of.moves,
            of.longest_pause_ns,
            of.latest_pause_ns,
        )
    }
}
