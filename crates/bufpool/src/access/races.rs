//! Writers, storage and readers of one page at the same time, for Miri and ThreadSanitizer (`scripts/test-races.sh`).
//! Those tools find accesses that race, whatever values were read.
//!
//! A pool needs the kernel, which Miri does not have. So the test has a single page without a pool, and uses the same
//! operations on it. They are the page's state, [`Payload`] and [`PayloadMut`], the log sequence number, and [`Read`],
//! with which storage fills pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::payload::{Payload, PayloadMut};
use crate::page::{HEADER, PAGE, PAYLOAD, lsn_at, set_lsn_at};
use crate::page_size::PageSize;
use crate::protocol::page_state::{Access, Layout, Owner, PageState, Passed};
use crate::protocol::words::WORD;
use crate::storage::Read;

/// Number of operations of each thread. Miri is some thousand times slower.
const ROUNDS: u64 = if cfg!(miri) { 6 } else { 3000 };

struct Page {
    state: PageState,
    memory: Box<[AtomicU64; PAGE / WORD]>,
}

impl Page {
    fn memory(&self) -> *mut u8 {
        (&raw const *self.memory).cast_mut().cast()
    }

    fn payload(&self) -> &Payload {
        // SAFETY: the memory is a page, and lives as long as `self`.
        unsafe { Payload::at(self.memory(), Payload::words_of(PageSize::MIN)) }
    }

    /// Takes the page exclusively if possible at once, and changes all of it.
    fn write(&self, byte: u8) {
        let Ok(before) = self.state.try_exclusive(Owner::ANY, Access::Counted) else { return };
        let mut payload = PayloadMut::new(self.payload());
        // The pieces end inside words.
        for at in (0..PAYLOAD).step_by(101) {
            payload.write(at, &[byte; 101][..101.min(PAYLOAD - at)]);
        }
        // SAFETY: the page is locked.
        unsafe { set_lsn_at(self.memory(), u64::from(byte)) };
        self.state.unlock_modified(before, Layout::OUTSIDE);
    }

    /// Evicts the page if possible at once, as an engine that reuses frames does, and reads it in again.
    fn replace(&self, byte: u8) {
        match self.state.pass(|| false) {
            Passed::Locked => {}
            // No one reads the storage of this page, so it counts as written.
            Passed::Dirty => return self.state.clean(),
            Passed::Busy | Passed::Cooled | Passed::Spared => return,
        }
        self.state.retire(Layout::OUTSIDE);
        assert!(self.state.try_claim(), "this is the only thread that brings the page in");
        // SAFETY: the page is claimed until `read` is dropped.
        let mut read = unsafe { Read::into_page(1, PageSize::MIN, self.memory()) };
        if byte.is_multiple_of(2) {
            read.fill_zeros(0);
        } else {
            read.fill(&image(byte));
        }
        self.state.publish(Layout::OUTSIDE);
    }

    /// Reads the page optimistically. Returns whether the read was consistent.
    fn read(&self) -> bool {
        let Ok(seen) = self.state.try_optimistic(Owner::ANY, Access::Counted) else { return false };
        let mut copy = [0; PAYLOAD];
        self.payload().read(0, &mut copy);
        let number = self.payload().number(1003, 7);
        let mut boxed = self.payload().to_boxed();
        if !self.state.is_unchanged(seen) {
            return false;
        }
        assert!(copy.iter().all(|byte| *byte == copy[0]), "bytes of several moments");
        assert_eq!(number.to_le_bytes()[..7], copy[..7]);
        assert_eq!(boxed.as_mut_bytes()[..], copy[..]);
        true
    }

    /// Takes the page shared if possible at once, and reads it as a slice.
    fn hold(&self) {
        if self.state.try_shared(Owner::ANY, Access::Counted).is_err() {
            return;
        }
        // SAFETY: the page is held shared, so no thread writes it.
        let (bytes, lsn) =
            unsafe { (&*self.memory().add(HEADER).cast::<[u8; PAYLOAD]>(), lsn_at(self.memory())) };
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "bytes of several moments");
        assert!(bytes[0] == 0 || lsn.to_le_bytes()[0] == bytes[0]);
        self.state.unlock_shared();
    }
}

/// A page filled with one byte.
fn image(byte: u8) -> [u8; PAGE] {
    [byte; PAGE]
}

#[test]
fn writers_storage_and_readers_of_a_page_do_not_race() {
    let page = Page { state: PageState::new(), memory: Box::new([const { AtomicU64::new(0) }; PAGE / WORD]) };
    assert!(page.state.try_claim());
    page.state.publish(Layout::OUTSIDE);
    let counted = AtomicU64::new(0);
    let write = |round: u64| page.write(round as u8);
    let replace = |round: u64| page.replace(round as u8);
    let read = |_: u64| {
        counted.fetch_add(u64::from(page.read()), Ordering::Relaxed);
    };
    let hold = |_: u64| page.hold();
    let works: [&(dyn Fn(u64) + Sync); 5] = [&write, &replace, &read, &read, &hold];
    thread::scope(|scope| {
        for work in works {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    work(round);
                    thread::yield_now();
                }
            });
        }
    });
    assert!(page.read(), "nobody is there to disturb it");
    println!("{} reads counted", counted.load(Ordering::Relaxed));
}
