//! The engines for any kernel with userfaultfd, whose regions are memory files.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_snapshot::uffd::{Options, Refusal};
use bedplate_snapshot::{Error, PAGE, remap, uffd};

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

/// An engine by the regions of a module.
macro_rules! engine {
    ($(#[$about:meta])* $name:ident, $of:ident, rights: $mapped:expr, own: $own:expr, statistics: $statistics:expr) => {
        $(#[$about])*
        pub struct $name {
            service: $of::Service,
            pending: Pending<$of::Frozen<'static>>,
        }

        impl $name {
            /// A region without threads. The allocator may be waiting for it, so nothing is allocated on the way to success;
            /// what is not available is found out before.
            pub fn new(bytes: usize, huge_pages: bool) -> Result<Self, Refusal> {
                uffd::Region::probe()?;
                let region = $of::Region::new(Options { bytes, base: None, huge_pages, claimed: false });
                let region = region.map_err(|error| match error {
                    Error::System { what, source } => Refusal::Other(what, source),
                    _ => Refusal::Kernel,
                })?;
                Ok(Self { service: $of::Service::new(region), pending: Pending::new() })
            }

            /// Starts its threads, if it has not done so: the program is about to begin, and may allocate.
            pub fn start_threads(&self) -> Result<(), Error> {
                self.service.start_threads()
            }

            /// The region, which exists as long as the process.
            fn region(&self) -> &'static $of::Region {
                let region: *const $of::Region = &*self.service;
                // SAFETY: engines are kept in a static and never dropped.
                unsafe { &*region }
            }
        }

        impl Engine for $name {
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
                // SAFETY: memory of the region's that this process, which is not its owner, has given up.
                unsafe { empty(at, len) };
            }

            fn is_mapped(&self) -> bool {
                $mapped
            }

            fn is_served(&self) -> bool {
                $of::WITHOUT_THREADS || self.service.is_served()
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
                let own: fn(&$of::Region) = $own;
                own(&self.service);
            }

            fn statistics(&self) -> String {
                let text: fn($of::Statistics) -> String = $statistics;
                text(self.service.statistics())
            }
        }
    };
}

engine!(
    /// Page tables are set aside.
    Remap,
    remap,
    // The region's mappings must stay in few pieces, that its tables can be moved.
    rights: false,
    // A grandchild's memory is the kernel's matter.
    own: |_| {},
    statistics: |of| {
        format!(
            "snapshots={} active={} instantaneous={} pages_copied={} pages_private={} longest_pause_ns={} \
             latest_pause_ns={}",
            of.snapshots,
            of.active,
            of.instantaneous,
            of.folded,
            of.private,
            of.longest_pause_ns,
            of.latest_pause_ns,
        )
    }
);

engine!(
    /// Pages are write-protected.
    Uffd,
    uffd,
    rights: true,
    own: uffd::Region::own_everything,
    statistics: |of| {
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
);
