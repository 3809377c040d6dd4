//! The engines for any kernel with userfaultfd, whose regions are memory files.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_snapshot::engine::Statistics;
use bedplate_snapshot::region::{Frozen, Options, Region, Service};
use bedplate_snapshot::{Error, Kind, PAGE, remap, uffd};

use super::Engine;

/// What is between the handlers before and after a fork.
struct Pending<F> {
    /// The thread that has the region frozen, or 0. Another may fork, too, for which it could not be frozen.
    owner: AtomicUsize,
    frozen: UnsafeCell<Option<F>>,
}
// SAFETY: `frozen` is only used by the owner: there is one at a time.
unsafe impl<F> Sync for Pending<F> {}
// SAFETY: as above: an engine is moved before anything is frozen.
unsafe impl<F> Send for Pending<F> {}

impl<F> Pending<F> {
    fn new() -> Self {
        Self { owner: AtomicUsize::new(0), frozen: UnsafeCell::new(None) }
    }

    /// This thread's name, which is its child's after a fork.
    fn this() -> usize {
        // SAFETY: a question.
        unsafe { libc::pthread_self() as usize }
    }

    /// Called by the thread that has the region frozen.
    fn put(&self, frozen: F) {
        // SAFETY: nobody else has it frozen, and before this thread is the owner nobody takes it.
        unsafe { *self.frozen.get() = Some(frozen) };
        self.owner.store(Self::this(), Ordering::Release);
    }

    fn take(&self) -> Option<F> {
        if self.owner.load(Ordering::Acquire) != Self::this() {
            return None;
        }
        self.owner.store(0, Ordering::Release);
        // SAFETY: this thread is the owner, and has the region frozen until it drops this.
        unsafe { (*self.frozen.get()).take() }
    }
}

/// Empties pages of a region in a process that is not its owner.
///
/// # Safety
/// They are a region's that this process has mapped privately, and nothing is in them.
unsafe fn empty(at: *mut libc::c_void, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // Never unmapping it: nothing else must ever be there.
    // SAFETY: as the caller says.
    unsafe {
        if libc::syscall(libc::SYS_mmap, at, len, access, flags, -1, 0) == -1 {
            // There can only be so many mappings.
            at.write_bytes(0, len);
        }
    }
}

/// In what regions differ for a program. Parts have no rights of their own where page tables are moved: these are moved in
/// one piece only from few mappings.
pub trait Parts: Region {
    /// See [`Engine::parts_have_rights`].
    const HAVE_RIGHTS: bool;
    /// See [`Engine::moves_pages`].
    const PAGES_MOVE: bool;
}

impl Parts for remap::Region {
    const HAVE_RIGHTS: bool = false;
    const PAGES_MOVE: bool = true;
}

impl Parts for uffd::Region {
    const HAVE_RIGHTS: bool = true;
    const PAGES_MOVE: bool = false;
}

/// An engine by a region.
pub struct Mapped<R: Parts> {
    service: Service<R>,
    pending: Pending<R::Frozen<'static>>,
}

impl<R: Parts> Mapped<R> {
    /// A region without threads. The program's allocator may be waiting for it.
    pub fn new(bytes: usize, huge_pages: bool) -> Result<Self, Error> {
        let region = R::new(Options { bytes, base: None, huge_pages, claimed: false, track_changes: false })?;
        Ok(Self { service: Service::new(region), pending: Pending::new() })
    }

    /// The region, which exists as long as the process.
    fn region(&self) -> &'static R {
        let region: *const R = &*self.service;
        // SAFETY: engines are kept in a static and never dropped.
        unsafe { &*region }
    }
}

impl<R: Parts> Engine for Mapped<R> {
    fn kind(&self) -> Kind {
        R::KIND
    }

    fn base(&self) -> usize {
        self.service.base()
    }

    fn pages(&self) -> usize {
        self.service.pages()
    }

    fn start_threads(&self) -> Result<(), Error> {
        self.service.start_threads()
    }

    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>> {
        self.service.claim_anywhere(count, align)
    }

    fn claim_exactly(&self, pages: Range<usize>) -> bool {
        self.service.claim_exactly(pages)
    }

    fn replace(&self, pages: Range<usize>) -> bool {
        self.service.replace(pages)
    }

    fn release(&self, pages: Range<usize>) {
        self.service.release(pages);
    }

    fn discard(&self, pages: Range<usize>) {
        self.service.discard(pages);
    }

    fn empty_in_snapshot(&self, pages: Range<usize>) {
        let (at, len) = ((self.base() + pages.start * PAGE) as *mut libc::c_void, pages.len() * PAGE);
        // SAFETY: memory of the region's that this process, which is not its owner, has given up.
        unsafe { empty(at, len) };
    }

    fn parts_have_rights(&self) -> bool {
        R::HAVE_RIGHTS
    }

    fn moves_pages(&self) -> bool {
        R::PAGES_MOVE
    }

    fn keep_in_place(&self) -> Result<(), Error> {
        self.service.keep_in_place()
    }

    fn is_served(&self) -> bool {
        self.service.is_served()
    }

    fn has_room(&self) -> bool {
        self.service.has_room()
    }

    fn before_fork(&self) -> Result<(), Error> {
        let frozen = self.region().freeze()?;
        self.pending.put(frozen);
        Ok(())
    }

    fn after_fork_in_parent(&self) {
        if let Some(frozen) = self.pending.take() {
            frozen.thaw();
        }
    }

    fn after_fork_in_child(&self) -> Result<(), Error> {
        match self.pending.take() {
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

    fn statistics(&self) -> Statistics {
        self.service.statistics()
    }

    fn publish_statistics(&self, why: &str) {
        self.service.publish_statistics(why);
    }

    fn count_failure(&self) {
        self.service.count_failure();
    }
}
