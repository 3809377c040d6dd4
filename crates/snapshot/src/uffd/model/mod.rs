//! Loom models of a few steps of the protocol. They cover every interleaving, within a bound of preemptions.
//!
//! The protocol's own files are included a second time, with loom's locks and words, and with a small model of the
//! kernel. The code that is checked is therefore the code that runs. A thread serves faults, and a writer continues
//! as soon as its page's protection is removed.

#[path = "../changes.rs"]
mod changes;
mod machine;
mod region;
#[path = "../serve.rs"]
mod serve;
#[path = "../../region/sets.rs"]
mod sets;
#[path = "../snapshots.rs"]
mod snapshots;
#[path = "../states.rs"]
mod states;

use loom::sync::Arc;
use loom::thread;
use machine::{SNAPSHOTS, mmap_box, tables, target, words};
use region::Region;

use super::CHUNK;

/// Number of pages of the region.
const PAGES: usize = 2;

/// Checks all interleavings of `body` with a region whose faults a thread serves.
fn check(body: impl Fn(&Arc<Region>) + Send + Sync + 'static) {
    check_of(Region::new, body);
}

/// The same as `check`, with a region that `new` creates.
fn check_of(new: fn() -> Region, body: impl Fn(&Arc<Region>) + Send + Sync + 'static) {
    check_also_after(2, new, body, |_| {});
}

/// The same as `check_of`, with this bound of preemptions. `after` runs when the thread that serves faults has ended.
fn check_also_after(
    preemptions: usize,
    new: fn() -> Region,
    body: impl Fn(&Arc<Region>) + Send + Sync + 'static,
    after: impl Fn(&Region) + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let region = Arc::new(new());
        let handler = beside(&region, Region::handle);
        body(&region);
        region.check();
        region.descriptor.no_more_faults();
        handler.join().unwrap();
        after(&region);
    });
}

/// Starts a thread that runs `f` with a region.
fn beside(region: &Arc<Region>, f: impl FnOnce(&Region) + 'static) -> thread::JoinHandle<()> {
    let region = region.clone();
    thread::spawn(move || f(&region))
}

#[test]
fn a_snapshot_that_begins_beside_a_writer_is_of_one_moment() {
    check(|region| {
        let writer = beside(region, |region| {
            region.write(0, 1);
            region.write(1, 2);
        });
        let expected = region.snapshot(0);
        // The writes appear in their order.
        assert!([[0, 0], [1, 0], [1, 2]].contains(&expected));
        assert_eq!(region.seen(0), expected);
        writer.join().unwrap();
        assert_eq!(region.seen(0), expected);
        assert_eq!(region.descriptor.memory().content, [1, 2]);
    });
}

#[test]
fn two_writers_of_a_page_have_it_copied_once() {
    check(|region| {
        region.write(0, 7);
        let expected = region.snapshot(0);
        let one = beside(region, |region| region.write(0, 1));
        region.write(0, 2);
        assert_eq!(region.seen(0), expected);
        one.join().unwrap();
        // The page is not copied again after it was armed meanwhile.
        region.settle();
        region.write(0, 3);
        assert_eq!(region.seen(0), expected);
        assert_eq!(region.copied(), 1);
    });
}

/// Another thread arms pages that a writer is about to write to, and that a snapshot is about to share.
#[test]
fn settling_harms_neither_writers_nor_snapshots() {
    check(|region| {
        let other = beside(region, |region| {
            region.settle();
        });
        let writer = beside(region, |region| {
            region.write(0, 1);
            region.write(0, 2);
        });
        let expected = region.snapshot(0);
        assert_eq!(region.seen(0), expected);
        writer.join().unwrap();
        other.join().unwrap();
        assert_eq!(region.seen(0), expected);
        assert_eq!(region.descriptor.memory().content, [2, 0]);
    });
}

/// Pages that were armed again since the first of two snapshots are copied only for the second one.
#[test]
fn pages_are_copied_for_snapshots_that_share_them() {
    check(|region| {
        region.write(0, 1);
        let first = region.snapshot(0);
        let writer = beside(region, |region| {
            region.write(0, 2);
            region.write(1, 3);
        });
        let second = region.snapshot(1);
        assert_eq!((region.seen(0), region.seen(1)), (first, second));
        writer.join().unwrap();
        assert_eq!((region.seen(0), region.seen(1)), (first, second));
    });
}

#[test]
fn a_snapshot_may_end_while_pages_are_copied_for_it() {
    check(|region| {
        region.snapshot(0);
        let second = region.snapshot(1);
        let writer = beside(region, |region| region.write(0, 1));
        region.end(0);
        assert_eq!(region.seen(1), second);
        writer.join().unwrap();
        assert_eq!(region.seen(1), second);
    });
}

#[test]
fn what_is_given_back_stays_in_snapshots() {
    check(|region| {
        region.write(0, 1);
        region.write(1, 1);
        let owner = beside(region, |region| {
            region.discard(0..1);
            region.write(0, 2);
            region.release(1..2);
        });
        let other = beside(region, |region| {
            region.settle();
        });
        let expected = region.snapshot(0);
        assert!([[1, 1], [0, 1], [2, 1], [2, 0]].contains(&expected));
        assert_eq!(region.seen(0), expected);
        owner.join().unwrap();
        other.join().unwrap();
        assert_eq!(region.seen(0), expected);
        // Another user claims the page now.
        region.claim(1..2);
        region.write(1, 3);
        assert_eq!(region.seen(0)[0], expected[0]);
        assert!(!region.descriptor.memory().in_use[0][1] || region.seen(0) == expected);
    });
}

/// A page that differs between two snapshots is reported as changed, whatever is written afterwards.
#[test]
fn no_change_between_snapshots_is_missed() {
    check_of(Region::tracking, |region| {
        region.write(0, 1);
        let first = region.snapshot(0);
        let writer = beside(region, |region| {
            region.write(0, 2);
            region.write(0, 3);
        });
        let second = region.snapshot(1);
        let check = || {
            for page in 0..PAGES {
                let differs = first[page] != second[page];
                assert!(!differs || region.is_changed(1, 2, 1, page), "a change of page {page} is missed");
                // All pages were armed at the first snapshot, so the pages that were not written between the two
                // are known exactly.
                assert!(page == 0 || !region.is_changed(1, 2, 1, page), "page {page} was not written");
            }
        };
        check();
        writer.join().unwrap();
        check();
        assert_eq!((region.seen(0), region.seen(1)), (first, second));
    });
}

/// A page that is not written after a snapshot must not count as written, even if the handler reads a fault from
/// before the snapshot.
#[test]
fn no_write_counts_as_one_after_a_later_snapshot() {
    let body = |region: &Arc<Region>| {
        region.snapshot(0);
        let writer = beside(region, |region| region.write(0, 1));
        region.discard(0..1);
        writer.join().unwrap();
        region.snapshot(1);
    };
    check_also_after(3, Region::tracking, body, |region| assert_eq!(region.newest_exposure(0), 1));
}
