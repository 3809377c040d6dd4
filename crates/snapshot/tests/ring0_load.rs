//! The `ring0` engine under load: writers on several processors while snapshots come and go.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod ring0_common;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use bedplate_snapshot::{Choice, Kind, Memory, PAGE, View};
use ring0_common::memory;

const WORDS: usize = PAGE / 8;
const PAGES: usize = 256;

/// The position of a number of the sequence. The position moves from page to page.
fn place(number: u64) -> usize {
    (number as usize * 37 % PAGES) * WORDS + (number as usize / PAGES) % WORDS
}

/// Checks that exactly the numbers up to some number are present, and returns that number. It is at least `least`.
fn prefix(view: &View<'_>, least: u64) -> u64 {
    let words = view.words();
    let latest = words.iter().copied().max().unwrap();
    assert!(latest >= least, "{latest} is less than {least}, which had been written");
    let first = latest.saturating_sub((PAGES * WORDS) as u64) + 1;
    for number in first..=latest {
        assert_eq!(words[place(number)], number, "of the numbers up to {latest}");
    }
    latest
}

/// Writers take turns: each number is written by another processor than the previous one. So a snapshot that is not of one moment
/// lacks a number that is older than one that it has.
fn write(memory: &Memory, turn: &AtomicU64, writer: u64, writers: u64, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let next = turn.load(SeqCst) + 1;
        if next % writers == writer {
            memory.words()[place(next)].store(next, Relaxed);
            turn.store(next, SeqCst);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Number of snapshots that are active at once.
const AT_ONCE: usize = 4;

fn under_load(ahead: usize, writers: u64, mut take: impl FnMut(&Memory, &AtomicU64)) {
    let builder = Memory::builder(PAGES * PAGE).engine(Choice::Only(Kind::Ring0));
    let memory = builder.ahead(ahead).snapshots_at_once(AT_ONCE).build().unwrap();
    let (turn, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (memory, turn, over) = (&memory, &turn, &over);
            scope.spawn(move || write(memory, turn, writer, writers, over));
        }
        // Ends the writers even if a check fails.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _end = End(&over);
        take(&memory, &turn);
    });
    memory.settle();
    assert_eq!(memory.statistics().active, 0);
}

fn exact(ahead: usize, writers: u64, rounds: usize) {
    let mut latest = 0;
    under_load(ahead, writers, |memory, turn| {
        for _ in 0..rounds {
            let snapshots: Vec<_> = (0..3)
                .map(|_| {
                    let least = turn.load(SeqCst);
                    memory.spawn(move |view| prefix(view, least).to_le_bytes().to_vec()).unwrap()
                })
                .collect();
            for snapshot in snapshots {
                let seen = u64::from_le_bytes(snapshot.join().unwrap().try_into().unwrap());
                assert!(seen >= latest);
                latest = seen;
            }
        }
    });
    assert!(latest > 0, "nobody has written");
}

#[test]
fn a_snapshot_is_an_exact_prefix_of_one_writer() {
    ring0_or_skip!();
    exact(2, 1, 15);
    exact(0, 1, 15);
}

#[test]
fn a_snapshot_is_an_exact_prefix_of_writers_that_take_turns() {
    ring0_or_skip!();
    exact(2, 2, 10);
    exact(0, 2, 10);
}

/// Many more than there are at once. A software processor takes a tenth of a second for each.
const SNAPSHOTS: u64 = 300;

#[test]
fn hundreds_of_snapshots_give_all_frames_back() {
    ring0_or_skip!();
    let begin = Instant::now();
    under_load(2, 1, |memory, _| {
        memory.settle();
        let idle = memory.statistics().extra_bytes;
        let mut running = std::collections::VecDeque::new();
        let mut most = 0;
        for _ in 0..SNAPSHOTS {
            let task = |view: &View<'_>| view.words().iter().max().unwrap().to_le_bytes().to_vec();
            running.push_back(memory.spawn(task).unwrap());
            most = most.max(memory.statistics().extra_bytes);
            if running.len() == AT_ONCE {
                running.pop_front().unwrap().join().unwrap();
            }
        }
        running.into_iter().for_each(|snapshot| drop(snapshot.join().unwrap()));
        memory.settle();
        let after = memory.statistics();
        assert_eq!((after.snapshots, after.active), (SNAPSHOTS, 0));
        assert!(after.pages_copied > 0 && most > idle, "nothing was copied");
        assert_eq!(after.extra_bytes, idle, "frames are lost");
    });
    println!("{SNAPSHOTS} snapshots in {:?}", begin.elapsed());
}

#[test]
fn memories_come_and_go() {
    ring0_or_skip!();
    for round in 0..40u64 {
        let memories: Vec<_> = (0..3).map(|_| memory(10, 1)).collect();
        for (number, memory) in memories.iter().enumerate() {
            memory.words()[0].store(number as u64 + round, Relaxed);
        }
        // A snapshot may live longer than its memory.
        let snapshots: Vec<_> = memories
            .iter()
            .map(|memory| {
                let task = |view: &View<'_>| {
                    std::thread::sleep(Duration::from_millis(2));
                    view.words()[0].to_le_bytes().to_vec()
                };
                memory.spawn(task).unwrap()
            })
            .collect();
        drop(memories);
        for (number, snapshot) in snapshots.into_iter().enumerate() {
            assert_eq!(snapshot.join().unwrap(), (number as u64 + round).to_le_bytes());
        }
    }
}
