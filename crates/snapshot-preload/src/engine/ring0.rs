//! The engine for programs whose threads run in ring 0.
//!
//! The main thread enters before the program begins, others as soon as they touch the region; and a child, to see
//! its snapshot, just after it was forked.

use std::cell::UnsafeCell;
use std::ops::Range;

use bedplate_snapshot::engine::Statistics;
use bedplate_snapshot::ring0::{Frozen, Region};
use bedplate_snapshot::{Error, Kind};

use super::{ASKED_FOR, Engine};
use crate::{allocator, signals};

/// See the module.
pub struct Ring0 {
    region: &'static Region,
    pending: UnsafeCell<Option<Pending>>,
}

// SAFETY: `pending` is only used by the thread that has the region frozen: there is one at a time.
unsafe impl Sync for Ring0 {}
// SAFETY: as above: an engine is moved before anything is frozen.
unsafe impl Send for Ring0 {}

/// What is between the handlers before and after a fork, given up in this order.
struct Pending {
    allocator: allocator::Held,
    frozen: Frozen,
    signals: signals::Blocked,
}

impl Ring0 {
    /// Builds the process in ring 0 and the region, starts its threads, and enters.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let _blocked = signals::Blocked::new();
        let region = signals::natively(|| Region::new(bytes))?;
        region.publish_statistics(ASKED_FOR);
        region.enter()?;
        Ok(Self { region, pending: UnsafeCell::new(None) })
    }

    fn pending(&self) -> Option<Pending> {
        // SAFETY: the thread that has the region frozen calls this, if there is anything.
        unsafe { (*self.pending.get()).take() }
    }
}

impl Engine for Ring0 {
    fn kind(&self) -> Kind {
        Kind::Ring0
    }

    fn base(&self) -> usize {
        self.region.base()
    }

    fn pages(&self) -> usize {
        self.region.pages()
    }

    fn start_threads(&self) -> Result<(), Error> {
        Ok(())
    }

    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>> {
        self.region.claim_anywhere(count, align)
    }

    fn claim_exactly(&self, pages: Range<usize>) -> bool {
        self.region.claim_exactly(pages)
    }

    fn replace(&self, pages: Range<usize>) -> bool {
        self.region.release(pages.clone());
        self.region.claim_exactly(pages)
    }

    fn release(&self, pages: Range<usize>) {
        self.region.release(pages);
    }

    fn discard(&self, pages: Range<usize>) {
        self.region.discard(pages);
    }

    fn empty_in_snapshot(&self, pages: Range<usize>) {
        self.region.discard(pages);
    }

    fn parts_have_rights(&self) -> bool {
        false
    }

    fn moves_pages(&self) -> bool {
        false
    }

    fn keep_in_place(&self) -> Result<(), Error> {
        Ok(())
    }

    fn is_served(&self) -> bool {
        true
    }

    fn has_room(&self) -> bool {
        self.region.has_room()
    }

    fn before_fork(&self) -> Result<(), Error> {
        let signals = signals::Blocked::new();
        let frozen = self.region.freeze()?;
        let pending = Pending { allocator: allocator::hold(), frozen, signals };
        // SAFETY: this thread has the region frozen.
        unsafe { *self.pending.get() = Some(pending) };
        Ok(())
    }

    fn after_fork_in_parent(&self) {
        if let Some(Pending { allocator, frozen, signals }) = self.pending() {
            drop(allocator);
            frozen.thaw();
            drop(signals);
        }
    }

    fn after_fork_in_child(&self) -> Result<(), Error> {
        let Some(Pending { allocator, frozen, signals }) = self.pending() else {
            return Err(Error::OfASnapshot);
        };
        drop(allocator);
        // SAFETY: the child of a fork that froze the region.
        let entered = signals::natively(|| unsafe { frozen.enter_in_child() });
        drop(signals);
        entered
    }

    fn lets_snapshots_fork(&self) -> bool {
        false
    }

    fn own_everything(&self) {}

    fn statistics(&self) -> Statistics {
        self.region.statistics().0
    }

    fn publish_statistics(&self, why: &str) {
        self.region.publish_statistics(why);
    }

    fn count_failure(&self) {
        self.region.count_failure();
    }

    fn more_statistics(&self) -> String {
        let (_, children) = self.region.statistics();
        format!(
            " children={} child_pages={} child_pages_let_go={}",
            children.children, children.pages_used, children.pages_let_go
        )
    }
}
