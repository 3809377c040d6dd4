//! Loom models of short runs, in every order with at most one or two preemptions.
//!
//! The pool's states, frames and sweeps and this engine's mapping run unchanged, on a simulated machine. Its processors
//! keep translations until they are told to flush them, or until they drop them spontaneously.

#![allow(clippy::duplicate_mod, reason = "the files are compiled a second time, with loom's atomics")]

mod machine;

#[path = "../../../../protocol/model/counted_mutex.rs"]
mod counted_mutex;
#[path = "../../../../protocol/frame_table.rs"]
#[allow(dead_code)]
mod frame_table;
#[path = "../mapping.rs"]
#[allow(dead_code)]
mod mapping;
#[path = "../../../../protocol/page_state.rs"]
#[allow(dead_code)]
mod page_state;
#[path = "../../../../protocol/sweep.rs"]
#[allow(dead_code)]
mod sweep;

/// Loom's atomics and locks, for the files above.
mod atomics {
    pub use loom::sync::MutexGuard;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

use loom::sync::Arc;
use loom::thread;

use machine::{Cpu, Memory};

/// Bit `i` says whether a processor drops all translations spontaneously before its access `i`.
const NEVER: u32 = 0;
const ALWAYS: u32 = !0;

/// Runs two processors in all orders within the bound. The second one drops its translations at different moments.
fn check(frames: usize, prepare: fn(&Memory), one: fn(&Cpu), other: fn(&Cpu), at_the_end: fn(&Memory)) {
    // With more than one frame, there are more orders to try.
    let forgetting: &[u32] = if frames == 1 { &[NEVER, ALWAYS] } else { &[NEVER, ALWAYS, 1 << 1, 1 << 3] };
    for &forgets in forgetting {
        let mut model = loom::model::Builder::new();
        // `LOOM_MAX_PREEMPTIONS` overrides this bound.
        let enough = if frames == 1 { 1 } else { 2 };
        model.preemption_bound = model.preemption_bound.or(Some(enough));
        model.max_branches = 20_000;
        model.check(move || {
            let memory = Arc::new(Memory::new(frames));
            prepare(&memory);
            let theirs = Arc::clone(&memory);
            let thread = thread::spawn(move || one(&Cpu::new(&theirs, NEVER)));
            other(&Cpu::new(&memory, forgets));
            thread.join().unwrap();
            at_the_end(&memory);
        });
    }
}

/// Reads both pages once. Afterwards both entries lead to frames, and the pages that were read last are in memory.
fn used_before(memory: &Memory) {
    let cpu = Cpu::new(memory, ALWAYS);
    for page in [2, 1] {
        cpu.read(page);
    }
}

#[test]
fn changes_of_two_pages_that_share_a_frame_are_not_lost() {
    check(
        1,
        used_before,
        |cpu| cpu.add(1),
        |cpu| {
            cpu.add(2);
            cpu.add(1);
        },
        |memory| {
            let cpu = Cpu::new(memory, ALWAYS);
            assert_eq!((cpu.read(1), cpu.read(2)), (12, 21));
        },
    );
}

#[test]
fn readers_see_a_page_at_one_moment_while_it_goes_and_comes_back_changed() {
    check(
        1,
        used_before,
        |cpu| {
            cpu.add(1);
            cpu.read(2);
        },
        |cpu| {
            let value = cpu.read(1);
            assert!(value == 10 || value == 11, "{value}");
        },
        |_| {},
    );
}

/// The page returns unchanged, and the reader's translation is correct again. Only the version shows that another page
/// was there in between. This needs more preemptions than the bound allows, so the test fixes the order.
#[test]
fn readers_notice_a_page_that_went_and_came_back_as_it_was() {
    loom::model(|| {
        let memory = Memory::new(1);
        used_before(&memory);
        let (reader, other) = (Cpu::new(&memory, NEVER), Cpu::new(&memory, NEVER));
        let seen = reader.begin(1);
        assert!(reader.is_unchanged(1, seen));
        other.read(2);
        assert!(!reader.is_unchanged(1, seen));
        other.read(1);
        assert!(!reader.is_unchanged(1, seen));
    });
}

#[test]
fn old_translations_to_frames_of_other_pages_are_noticed() {
    check(
        2,
        used_before,
        |cpu| cpu.add(1),
        |cpu| {
            // The state is as if each page had been in the other page's frame before.
            cpu.believe(1, cpu.leads_to(2));
            cpu.believe(2, cpu.leads_to(1));
            cpu.add(1);
            cpu.add(2);
        },
        |memory| {
            let cpu = Cpu::new(memory, ALWAYS);
            assert_eq!((cpu.read(1), cpu.read(2)), (12, 21));
        },
    );
}

#[test]
fn a_page_is_brought_in_once() {
    check(
        2,
        |_| {},
        |cpu| cpu.add(1),
        |cpu| cpu.add(1),
        |memory| {
            assert_eq!(memory.reads(1), 1);
            assert_eq!(Cpu::new(memory, ALWAYS).read(1), 12);
        },
    );
}
