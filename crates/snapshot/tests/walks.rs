//! The number of pages that the uffd engine serves with a write fault: one, or several if the writer accesses memory
//! sequentially.

mod common;

use std::sync::atomic::Ordering;

use bedplate_snapshot::{Kind, Memory, PAGE};
use common::{Setting, build};

/// Number of pages that a fault serves if the same number of pages before it is written, as in `uffd::serve`.
const WALK: usize = 16;
/// Two page tables, the second of which is not full.
const PAGES: usize = 512 + 50;

fn uffd() -> [Setting; 2] {
    [false, true].map(|huge_pages| Setting { kind: Kind::Uffd, in_child: false, huge_pages })
}

/// Writes to pages of a new memory that has a snapshot. Returns the faults and the copied pages.
fn write(memory: &Memory, pages: impl Iterator<Item = usize>) -> (u64, u64) {
    let snapshot = memory.snapshot().unwrap();
    pages.for_each(|page| memory.words()[page * PAGE / 8].store(1, Ordering::Relaxed));
    assert!(snapshot.read(|view| view.words().iter().all(|&word| word == 0)).unwrap());
    let statistics = memory.statistics();
    (statistics.faults, statistics.pages_copied)
}

#[test]
fn an_ascending_writer_has_a_fault_for_several_pages() {
    for setting in uffd() {
        let Some(memory) = build(Memory::builder(PAGES * PAGE), setting) else { continue };
        let (faults, copied) = write(&memory, 0..PAGES);
        // No page is copied twice, and none beyond the memory.
        assert_eq!(copied, PAGES as u64, "{setting:?}");
        assert!(faults < 4 * (PAGES / WALK) as u64, "{setting:?}: {faults}");
    }
}

#[test]
fn a_writer_that_jumps_about_has_only_its_pages_copied() {
    for setting in uffd() {
        let Some(memory) = build(Memory::builder(PAGES * PAGE), setting) else { continue };
        // The number of consecutive pages is one too small.
        let is_written = |page: &usize| page % WALK != WALK - 1;
        let written = (0..PAGES).filter(is_written).count() as u64;
        let (faults, copied) = write(&memory, (0..PAGES).filter(is_written));
        assert_eq!(copied, written, "{setting:?}");
        assert!(faults >= written, "{setting:?}: {faults}");
    }
}

#[test]
fn where_track_is_kept_of_changes_each_page_has_its_fault() {
    for setting in uffd() {
        let builder = Memory::builder(PAGES * PAGE).track_changes(true);
        let Some(memory) = build(builder, setting) else { continue };
        let (faults, copied) = write(&memory, 0..PAGES);
        assert_eq!(copied, PAGES as u64, "{setting:?}");
        assert!(faults >= PAGES as u64, "{setting:?}: {faults}");
    }
}
