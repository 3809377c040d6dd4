//! Loom models of concurrent changes of one entry, over every interleaving. The changes concur with each other, and
//! with the processor, which sets bits on its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::slot::Child;
use super::tables::change_leaf;
use super::{PageSize, Pte, PteFlags, RawSlot};
use crate::frames::Frame;

type Slot = RawSlot<AtomicU64>;

const WRITABLE: PteFlags = PteFlags::WRITABLE;

fn leaf(flags: PteFlags) -> Pte {
    Pte::leaf(Frame::new(512), PageSize::Size4K, flags)
}

/// Models the processor's write: it checks the entry and sets its bits in one atomic step. Returns whether the
/// write was allowed.
fn processor_writes(slot: &Slot) -> bool {
    let bits = PteFlags::ACCESSED | PteFlags::DIRTY;
    slot.update(|pte| (pte.is_present() && pte.is_writable()).then(|| pte.with(bits))).is_ok()
}

/// Runs two functions on a slot concurrently. Passes their results and the final entry to `check`.
fn two<A, B>(
    start: Pte,
    one: fn(&Slot) -> A,
    other: fn(&Slot) -> B,
    check: impl Fn(A, B, Pte) + Send + Sync + 'static,
) where
    A: 'static,
    B: Send + 'static,
{
    loom::model(move || {
        let slot = Arc::new(Slot::new(start));
        let shared = slot.clone();
        let thread = thread::spawn(move || other(&shared));
        let a = one(&slot);
        let b = thread.join().unwrap();
        check(a, b, slot.load());
    });
}

#[test]
fn unmapping_returns_the_dirty_bit_of_a_concurrent_write() {
    two(
        leaf(WRITABLE),
        |slot| change_leaf(slot, PageSize::Size4K, |_| Pte::EMPTY).unwrap(),
        processor_writes,
        |taken, wrote, left| {
            assert_eq!(taken.is_dirty(), wrote);
            assert_eq!(left, Pte::EMPTY);
        },
    );
}

#[test]
fn a_write_is_seen_by_a_harvest_or_left_for_the_next() {
    two(
        leaf(WRITABLE),
        |slot| slot.harvest(PteFlags::DIRTY).is_dirty(),
        processor_writes,
        |harvested, wrote, left| {
            assert!(wrote);
            assert!(harvested != left.is_dirty(), "harvested {harvested}, left {left:?}");
            assert!(left.is_accessed());
        },
    );
}

#[test]
fn a_write_is_in_the_parts_of_a_page_that_is_split() {
    loom::model(|| {
        let huge = Pte::leaf(Frame::new(512), PageSize::Size2M, WRITABLE);
        let slot = Arc::new((Slot::new(huge), Slot::new(Pte::EMPTY)));
        let shared = slot.clone();
        let thread = thread::spawn(move || {
            let size = PageSize::Size2M;
            shared
                .0
                .replace_leaf(huge, size, Frame::new(9), |pte| shared.1.store_exclusive(pte.part(size, 3)))
        });
        // A walk uses the new table as soon as it is linked.
        let dirty = PteFlags::ACCESSED | PteFlags::DIRTY;
        let in_leaf = slot.0.update(|pte| pte.is_leaf(PageSize::Size2M).then(|| pte.with(dirty)));
        match in_leaf {
            Ok(_) => {}
            Err(table) => {
                assert_eq!(table, Pte::table(Frame::new(9)));
                assert_eq!(
                    slot.1.load().frame(),
                    Frame::new(512 + 3),
                    "the table is visible before it is filled"
                );
                assert!(processor_writes(&slot.1));
            }
        }
        assert_eq!(thread.join().unwrap(), Ok(()));
        assert!(slot.1.load().is_dirty());
    });
}

#[test]
fn protecting_during_a_write_keeps_the_dirty_bit() {
    two(
        leaf(WRITABLE),
        |slot| change_leaf(slot, PageSize::Size4K, |pte| pte.without(WRITABLE)).unwrap(),
        processor_writes,
        |_, wrote, left| {
            assert!(!left.is_writable());
            assert_eq!(left.is_dirty(), wrote);
        },
    );
}

#[test]
fn one_thread_holds_the_lock_and_publishes_a_complete_page() {
    loom::model(|| {
        // The contents of the page, written under the lock with ordinary stores.
        let page = Arc::new((Slot::new(Pte::EMPTY), AtomicU64::new(0)));
        let work = |(slot, contents): &(Slot, AtomicU64)| {
            let Some(locked) = slot.try_lock() else { return false };
            let loads = contents.load(Relaxed);
            contents.store(loads + 1, Relaxed);
            let before = locked.publish(|pte| leaf(WRITABLE).with(pte.flags() & PteFlags::DIRTY));
            assert!(before.is_locked());
            true
        };
        let shared = page.clone();
        let thread = thread::spawn(move || work(&shared));
        let one = work(&page);
        let pte = page.0.load();
        if pte.is_present() && !pte.is_locked() {
            assert!(page.1.load(Relaxed) > 0, "published before it was there");
        }
        let other = thread.join().unwrap();
        assert_eq!(page.1.load(Relaxed), u64::from(one) + u64::from(other), "both were in the lock");
        assert!(one || other);
        assert_eq!(page.0.load(), leaf(WRITABLE));
    });
}

#[test]
fn only_the_holder_of_the_lock_changes_the_entry() {
    two(
        leaf(PteFlags::empty()),
        |slot| {
            let locked = slot.try_lock()?;
            let seen = locked.get();
            let replaced = locked.set(|_| leaf(WRITABLE));
            assert_eq!(seen, replaced, "changed while locked");
            Some(())
        },
        |slot| change_leaf(slot, PageSize::Size4K, |_| Pte::EMPTY).is_ok(),
        |locked, taken, left| {
            assert!(locked.is_some());
            let expected = match (taken, left.is_present()) {
                (true, false) => Pte::EMPTY,
                // The mapping was removed before the lock was taken.
                _ => leaf(WRITABLE),
            };
            assert_eq!(left, expected);
        },
    );
}

#[test]
fn two_threads_that_add_a_table_agree_on_one_that_is_filled() {
    loom::model(|| {
        // A slot, and one entry of each of the two tables that compete for it.
        let world = Arc::new((Slot::new(Pte::EMPTY), [AtomicU64::new(7), AtomicU64::new(7)]));
        let work = |(slot, tables): &(Slot, [AtomicU64; 2]), mine: usize| {
            tables[mine].store(0, Relaxed);
            let (child, installed) = slot.child_or_install(Frame::new(mine as u64));
            let Child::Table(frame) = child else { panic!("{child:?}") };
            assert_eq!(
                tables[frame.number() as usize].load(Acquire),
                0,
                "the table is visible before it is filled"
            );
            assert_eq!(installed, frame.number() == mine as u64);
            frame
        };
        let shared = world.clone();
        let thread = thread::spawn(move || work(&shared, 1));
        let one = work(&world, 0);
        assert_eq!(one, thread.join().unwrap());
        assert_eq!(world.0.child(), Some(Child::Table(one)));
    });
}
