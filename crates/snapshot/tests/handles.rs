//! Snapshots that threads of the owner's process hold.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bedplate_snapshot::{Choice, Error, Kind, Memory, PAGE, Snapshot};
use common::{EndOnDrop, Setting, memory, settings};

/// Tests fork, so no other thread may hold a lock that a child needs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;

/// The settings whose engines have handles. The virtual machine for ring 0 has none of them.
fn with_handles() -> impl Iterator<Item = Setting> {
    settings().filter(|setting| matches!(setting.kind, Kind::Remap | Kind::Uffd))
}

fn fill(memory: &Memory, value: u64) {
    memory.words().iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

#[test]
fn several_threads_read_one_snapshot_while_the_owner_writes() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in with_handles() {
        let Some(memory) = memory(4 * MIB, setting) else { continue };
        for round in 1..4 {
            fill(&memory, round);
            let snapshot = memory.snapshot().unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _end = EndOnDrop(&over);
                scope.spawn(|| {
                    let mut value = 100;
                    while !over.load(Ordering::Relaxed) {
                        fill(&memory, value);
                        value += 1;
                    }
                });
                let readers = [(); 3].map(|()| {
                    let handle = snapshot.clone();
                    scope.spawn(move || {
                        let is_old = |_| handle.read(|view| view.words().iter().all(|&word| word == round));
                        (0..10).map(is_old).all(|old| old.unwrap())
                    })
                });
                assert!(readers.into_iter().all(|reader| reader.join().unwrap()), "{setting:?}");
            });
            assert_eq!(snapshot.bytes().len(), memory.len());
            assert!(!snapshot.is_at_home());
            assert_eq!(snapshot.epoch(), round);
            snapshot.check().unwrap();
        }
    }
}

#[test]
fn a_snapshot_ends_with_its_last_handle() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in with_handles() {
        let Some(memory) = memory(MIB, setting) else { continue };
        let first = memory.snapshot().unwrap();
        let second = first.clone();
        drop(first);
        assert_eq!(memory.statistics().active, 1, "{setting:?}");
        fill(&memory, 1);
        assert!(second.words().iter().all(|&word| word == 0), "{setting:?}");
        std::thread::spawn(move || drop(second)).join().unwrap();
        assert_eq!(memory.statistics().active, 0, "{setting:?}");
        assert_eq!(memory.snapshot().unwrap().words()[0], 1, "{setting:?}");
    }
}

#[test]
fn there_are_as_many_handles_as_the_engine_has() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in with_handles() {
        let Some(memory) = memory(MIB, setting) else { continue };
        let most = if setting.kind == Kind::Remap { 1 } else { 16 };
        let mut snapshots: Vec<Snapshot> = Vec::new();
        for number in 0..most {
            fill(&memory, number);
            snapshots.push(memory.snapshot().unwrap());
        }
        fill(&memory, most);
        let one_too_many = memory.snapshot();
        assert!(
            matches!(one_too_many, Err(Error::TooManySnapshots { limit }) if limit as u64 == most),
            "{setting:?}"
        );
        // The snapshots end in any order: the next one to end is in the middle.
        while !snapshots.is_empty() {
            for snapshot in &snapshots {
                let expected = snapshot.epoch() - 1;
                assert!(snapshot.words().iter().all(|&word| word == expected), "{setting:?}");
                snapshot.check().unwrap();
            }
            snapshots.remove(snapshots.len() / 2);
        }
        assert_eq!(memory.snapshot().unwrap().words()[0], most, "{setting:?}");
    }
}

#[test]
fn a_handle_outlives_the_memory() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in with_handles() {
        let Some(memory) = memory(MIB, setting) else { continue };
        fill(&memory, 3);
        let snapshot = memory.snapshot().unwrap();
        fill(&memory, 4);
        drop(memory);
        assert!(snapshot.words().iter().all(|&word| word == 3), "{setting:?}");
        snapshot.check().unwrap();
    }
}

/// The page cannot be kept because its mapping is read-only. The effect is the same as without memory.
#[test]
fn a_snapshot_that_was_given_up_says_so() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in with_handles().filter(|setting| setting.kind == Kind::Uffd) {
        let Some(memory) = memory(MIB, setting) else { continue };
        let snapshot = memory.snapshot().unwrap();
        let other = memory.snapshot().unwrap();
        let page = snapshot.bytes()[5 * PAGE..].as_ptr();
        // SAFETY: removes access that only the engine uses.
        let set = unsafe { libc::mprotect(page.cast_mut().cast(), PAGE, libc::PROT_READ) };
        assert_eq!(set, 0);
        snapshot.check().unwrap();
        memory.words()[5 * PAGE / 8].store(1, Ordering::Relaxed);
        assert!(matches!(snapshot.check(), Err(Error::Incomplete)), "{setting:?}");
        let read = snapshot.read(|view| view.words()[0]);
        assert!(matches!(read, Err(Error::Incomplete)), "{setting:?}");
        assert!(matches!(snapshot.clone().check(), Err(Error::Incomplete)), "{setting:?}");
        // The memory and other snapshots are not affected.
        assert_eq!(memory.words()[5 * PAGE / 8].load(Ordering::Relaxed), 1);
        assert_eq!(other.read(|view| view.words()[5 * PAGE / 8]).unwrap(), 0, "{setting:?}");
        assert_eq!(memory.statistics().incomplete, 1, "{setting:?}");
    }
}

#[test]
fn engines_without_handles_say_so() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in settings().filter(|setting| matches!(setting.kind, Kind::Fork | Kind::Ring0)) {
        let Some(memory) = memory(MIB, setting) else { continue };
        match memory.snapshot() {
            Err(Error::Unavailable { engine, reason }) => {
                assert_eq!(engine, setting.kind);
                assert!(reason.contains("Memory::spawn"), "{reason}");
            }
            other => panic!("{setting:?}: {other:?}"),
        }
    }
}

#[test]
fn the_engine_is_chosen_by_what_is_asked_for() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let works = |kind| match Memory::builder(1).engine(Choice::Only(kind)).build() {
        Ok(_) => true,
        Err(Error::Unavailable { engine, reason }) => {
            println!("skipped: the {engine} engine does not work here: {reason}");
            false
        }
        Err(error) => panic!("{error}"),
    };
    if !works(Kind::Remap) || !works(Kind::Uffd) || bedplate_snapshot::region::counts_promises() {
        return;
    }
    let kind = |in_child, at_once| {
        let builder = Memory::builder(1).in_child(in_child).snapshots_at_once(at_once);
        builder.build().unwrap().kind()
    };
    assert_eq!(Memory::builder(1).build().unwrap().kind(), Kind::Remap);
    assert_eq!(kind(false, 1), Kind::Remap);
    assert_eq!(kind(false, 2), Kind::Uffd);
    assert_eq!(kind(false, 16), Kind::Uffd);
    assert_eq!(kind(false, 17), Kind::Fork);
    assert_eq!(kind(true, 1000), Kind::Remap);
    for (kind, at_once) in [(Kind::Remap, 2), (Kind::Uffd, 17)] {
        let memory = Memory::builder(1).engine(Choice::Only(kind)).snapshots_at_once(at_once).build();
        assert!(matches!(memory, Err(Error::Unavailable { engine, .. }) if engine == kind), "{memory:?}");
    }
    // A memory without handles reports why it has no better engine.
    let memory = Memory::builder(1).snapshots_at_once(17).build().unwrap();
    let error = memory.snapshot().unwrap_err().to_string();
    assert!(error.contains("it has 16 snapshots at once, and 17 are asked for"), "{error}");
}

/// A child gets the handle and the memory with everything else of its parent. It does not wait for locks or threads that it does
/// not have.
#[test]
fn a_child_may_drop_what_it_inherits() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in with_handles() {
        let (Some(memory), Some(other)) = (memory(MIB, setting), memory(MIB, setting)) else { continue };
        fill(&memory, 1);
        let snapshot = memory.snapshot().unwrap();
        let handle = snapshot.clone();
        let inherited = &memory;
        let task = memory.spawn_in_child(move |view| {
            inherited.settle();
            let statistics = inherited.statistics();
            drop((handle, other));
            view.words()[0].to_le_bytes().into_iter().chain([u8::from(statistics.snapshots == 0)]).collect()
        });
        assert_eq!(task.unwrap().join().unwrap(), [1, 0, 0, 0, 0, 0, 0, 0, 1], "{setting:?}");
        fill(&memory, 2);
        assert!(snapshot.words().iter().all(|&word| word == 1), "{setting:?}");
        snapshot.check().unwrap();
    }
}
