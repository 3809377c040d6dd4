//! Snapshots of the `ring0` engine, on real processors: the content that a task sees, and the state afterwards.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod ring0_common;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;

use bedplate_ring0::{Answer, Cpu, Outcome, Process, SyscallFrame, TrapFrame, handlers};
use bedplate_snapshot::{Error, View};
use ring0_common::{PAGE, memory, word};

/// The first word of each page.
fn pages(view: &View<'_>) -> Vec<u64> {
    view.words().iter().step_by(PAGE / 8).copied().collect()
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

const PAGES: usize = 2000;

fn a_snapshot_stays_as_it_was(ahead: usize) {
    let memory = memory(PAGES, ahead);
    Process::current().unwrap().enter().unwrap();
    for page in 0..PAGES {
        word(&memory, page).store(page as u64, Relaxed);
    }
    memory.settle();
    let before = memory.statistics();
    for round in 1..5u64 {
        let (go, wait) = mpsc::channel::<()>();
        let snapshot = memory
            .spawn(move |view| {
                let first = bytes(&pages(view));
                wait.recv().unwrap();
                assert_eq!(first, bytes(&pages(view)), "it has changed");
                first
            })
            .unwrap();
        for page in (0..PAGES).step_by(3) {
            word(&memory, page).fetch_add(1, Relaxed);
        }
        go.send(()).unwrap();
        let seen = words(&snapshot.join().unwrap());
        for (page, value) in seen.iter().enumerate() {
            let expected = page as u64 + if page % 3 == 0 { round - 1 } else { 0 };
            assert_eq!(*value, expected, "page {page} in round {round}");
        }
        memory.settle();
    }
    let after = memory.statistics();
    assert_eq!((after.snapshots, after.active), (4, 0));
    assert_eq!(after.faults - before.faults, 4 * (PAGES as u64).div_ceil(3));
    assert_eq!(after.instantaneous, if ahead > 0 { 4 } else { 0 });
    assert_eq!(after.pages_armed_at_snapshots, if ahead > 0 { 0 } else { 4 * PAGES as u64 });
}

#[test]
fn a_snapshot_that_was_made_ahead_stays_as_it_was() {
    ring0_or_skip!();
    a_snapshot_stays_as_it_was(2);
}

#[test]
fn a_snapshot_that_is_copied_stays_as_it_was() {
    ring0_or_skip!();
    a_snapshot_stays_as_it_was(0);
}

#[test]
fn several_snapshots_at_once_end_in_any_order() {
    ring0_or_skip!();
    let memory = memory(100, 2);
    Process::current().unwrap().enter().unwrap();
    memory.settle();
    let idle = memory.statistics().extra_bytes;
    let mut running = Vec::new();
    for epoch in 1..=6u64 {
        for page in (0..100).step_by(epoch as usize) {
            word(&memory, page).store(epoch, Relaxed);
        }
        let (go, wait) = mpsc::channel::<()>();
        let snapshot = memory
            .spawn(move |view| {
                wait.recv().unwrap();
                bytes(&pages(view))
            })
            .unwrap();
        assert_eq!(snapshot.epoch(), epoch);
        running.push((epoch, go, snapshot));
    }
    assert_eq!(memory.statistics().active, 6);
    for page in 0..100 {
        word(&memory, page).store(99, Relaxed);
    }
    for index in [3, 0, 3, 0, 1, 0] {
        let (epoch, go, snapshot) = running.remove(index);
        go.send(()).unwrap();
        let expected: Vec<u64> =
            (0..100).map(|page| (1..=epoch).rev().find(|of| page % of == 0).unwrap()).collect();
        assert_eq!(words(&snapshot.join().unwrap()), expected, "snapshot {epoch}");
    }
    memory.settle();
    assert_eq!((memory.statistics().active, memory.statistics().extra_bytes), (0, idle));
}

#[test]
fn a_task_may_write_and_nobody_else_sees_it() {
    ring0_or_skip!();
    let memory = memory(10, 2);
    Process::current().unwrap().enter().unwrap();
    word(&memory, 3).store(7, Relaxed);
    let spawn = || {
        memory
            .spawn(|view| {
                let at = view.words()[3 * PAGE / 8..].as_ptr().cast_mut();
                // SAFETY: the page becomes the task's own when it writes to it; no reference is used meanwhile.
                unsafe {
                    let before = at.read_volatile();
                    at.write_volatile(before + 1);
                    at.read_volatile().to_le_bytes().to_vec()
                }
            })
            .unwrap()
    };
    let (one, other) = (spawn(), spawn());
    assert_eq!(words(&one.join().unwrap()), [8]);
    assert_eq!(words(&other.join().unwrap()), [8]);
    assert_eq!(word(&memory, 3).load(Relaxed), 7);
}

#[test]
fn tasks_that_panic_and_snapshots_of_snapshots_are_errors() {
    ring0_or_skip!();
    let memory = std::sync::Arc::new(memory(10, 2));
    let panics = memory.spawn(|_| panic!("as it should")).unwrap();
    assert!(matches!(panics.join(), Err(Error::Task(_))));
    let same = memory.clone();
    let nested =
        memory.spawn(move |_| vec![u8::from(matches!(same.spawn(|_| vec![]), Err(Error::OfASnapshot)))]);
    assert_eq!(nested.unwrap().join().unwrap(), [1]);
    memory.settle();
    assert_eq!(memory.statistics().active, 0);
}

/// Several snapshots are active at once, with writes to all pages between them, until there is no memory for copies any more.
#[test]
fn without_memory_for_copies_a_snapshot_is_given_up_and_main_goes_on() {
    ring0_or_skip!();
    let memory = memory(512, 2);
    memory.settle();
    let idle = memory.statistics().extra_bytes;
    let mut running = Vec::new();
    for round in 0..8u64 {
        for page in 0..512 {
            word(&memory, page).store(round, Relaxed);
        }
        let (go, wait) = mpsc::channel::<()>();
        let snapshot = memory.spawn(move |view| {
            wait.recv().unwrap();
            bytes(&pages(view))
        });
        running.push((round, go, snapshot.unwrap()));
    }
    for page in 0..512 {
        word(&memory, page).store(99, Relaxed);
    }
    let mut lost = 0;
    for (round, go, snapshot) in running {
        go.send(()).unwrap();
        match snapshot.join() {
            Ok(seen) => assert!(words(&seen).iter().all(|value| *value == round), "round {round}"),
            Err(Error::Incomplete) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!((1..8).contains(&lost), "{lost} snapshots are lost");
    assert!((0..512).all(|page| word(&memory, page).load(Relaxed) == 99));
    memory.settle();
    assert_eq!(memory.statistics().extra_bytes, idle, "frames are lost");
    let snapshot = memory.spawn(|view| bytes(&pages(view))).unwrap();
    word(&memory, 0).store(0, Relaxed);
    assert!(words(&snapshot.join().unwrap()).iter().all(|value| *value == 99));
}

#[test]
fn a_programs_own_handlers_leave_snapshots_alone() {
    ring0_or_skip!();
    static FAULTS: AtomicU64 = AtomicU64::new(0);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    fn fault(_: Cpu, _: &mut TrapFrame, _: u64) -> Outcome {
        FAULTS.fetch_add(1, Relaxed);
        Outcome::Pass
    }
    fn call(_: Cpu, _: &mut SyscallFrame) -> Answer {
        CALLS.fetch_add(1, Relaxed);
        Answer::Proxy
    }
    let memory = memory(8, 2);
    let process = Process::current().unwrap();
    process.run(|_| handlers::set_syscall_handler(Some(call))).unwrap();
    handlers::set_page_fault_handler(Some(fault));
    word(&memory, 3).store(1, Relaxed);
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let snapshot = memory
        .spawn(move |view| {
            wait.recv().unwrap();
            let mut file = tempfile::tempfile().unwrap();
            // Linux sees the snapshot's page.
            std::io::Write::write_all(&mut file, &view.bytes()[3 * PAGE..][..8]).unwrap();
            let mut bytes = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
            bytes.to_vec()
        })
        .unwrap();
    let before = FAULTS.load(Relaxed);
    word(&memory, 3).store(2, Relaxed);
    assert_eq!(FAULTS.load(Relaxed), before, "the fault was the snapshot's");
    go.send(()).unwrap();
    assert_eq!(snapshot.join().unwrap(), 1u64.to_le_bytes());
    assert!(CALLS.load(Relaxed) > 0);
    handlers::set_page_fault_handler(None);
    process.run(|_| handlers::set_syscall_handler(None)).unwrap();
}

/// The host's signal handlers must run on its own threads only.
#[test]
fn threads_in_the_background_take_no_signals() {
    ring0_or_skip!();
    let memory = memory(8, 2);
    memory.settle();
    // Longer names are truncated.
    for name in ["bedplate-reclai", "bedplate-copy"] {
        let (threads, signals) = bedplate_threads::deliverable(1, |its| its == name).unwrap();
        assert!(threads > 0, "{name}");
        assert_eq!(signals, 0, "{name}");
    }
}
