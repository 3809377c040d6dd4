//! A few steps of the protocol in every order in which threads are interrupted at most twice, by loom.
//!
//! The protocol's own files are here once more, with loom's words and locks and a machine of a few lines around them: what
//! is checked is what runs. A page has a content of two words, which are equal unless somebody has it torn, or zero when
//! its memory was released. Both ways to find pages are checked: words of pages, and words of frames.

#![allow(clippy::duplicate_mod, reason = "with other words and locks")]

mod machine;
#[path = "../slots.rs"]
#[allow(dead_code, reason = "the model needs some of it")]
mod slots;
#[path = "../sweep.rs"]
#[allow(dead_code, reason = "the model needs some of it")]
mod sweep;
#[path = "../word.rs"]
#[allow(dead_code, reason = "the model needs some of it")]
mod word;

use loom::sync::Arc;
use loom::thread;
use machine::{Machine, Way, atomics};

/// What can happen with so few interruptions, whichever way pages are found.
fn check(slots: usize, body: impl Fn(&Arc<Machine>) + Send + Sync + Copy + 'static) {
    for way in [Way::Mapped, Way::Table] {
        let mut model = loom::model::Builder::new();
        // `LOOM_MAX_PREEMPTIONS` asks for more.
        model.preemption_bound = model.preemption_bound.or(Some(2));
        model.check(move || body(&Arc::new(Machine::new(way, slots))));
    }
}

/// Starts a thread that does something with the machine.
fn beside(machine: &Arc<Machine>, f: impl FnOnce(&Machine) + 'static) -> thread::JoinHandle<()> {
    let machine = machine.clone();
    thread::spawn(move || f(&machine))
}

#[test]
fn a_reader_beside_a_writer_sees_one_version() {
    check(1, |machine| {
        machine.write(1, 5);
        let writer = beside(machine, |machine| machine.write(1, 6));
        if let Some(content) = machine.read_once(1) {
            assert!(content == [5, 5] || content == [6, 6], "{content:?}");
        }
        writer.join().unwrap();
        assert_eq!(machine.read(1), [6, 6]);
    });
}

/// What is released reads as zeros, and is not believed.
#[test]
fn a_reader_beside_an_eviction_sees_the_page_or_nothing() {
    check(2, |machine| {
        machine.settle(1, 5);
        let evictor = beside(machine, |machine| {
            machine.evict();
        });
        if let Some(content) = machine.read_once(1) {
            assert_eq!(content, [5, 5]);
        }
        evictor.join().unwrap();
        assert_eq!(machine.read(1), [5, 5]);
    });
}

/// A batch in flight holds both pages; who wants them waits, and reads them again.
#[test]
fn a_batch_is_not_brought_in_before_it_is_released() {
    check(2, |machine| {
        machine.settle(1, 5);
        machine.settle(2, 7);
        let evictor = beside(machine, |machine| {
            machine.evict();
        });
        assert_eq!(machine.read(2), [7, 7]);
        evictor.join().unwrap();
        assert_eq!(machine.read(1), [5, 5]);
    });
}

#[test]
fn a_page_that_is_changed_beside_its_eviction_keeps_the_change() {
    check(1, |machine| {
        machine.settle(1, 5);
        let evictor = beside(machine, |machine| {
            machine.evict();
        });
        machine.write(1, 6);
        evictor.join().unwrap();
        machine.write_back(0, true);
        machine.evict();
        assert_eq!(machine.read(1), [6, 6]);
    });
}

#[test]
fn a_page_that_is_changed_while_it_is_written_stays_dirty() {
    check(1, |machine| {
        machine.write(1, 5);
        let flusher = beside(machine, |machine| machine.write_back(0, true));
        machine.write(1, 6);
        flusher.join().unwrap();
        machine.write_back(0, true);
        assert_eq!(machine.stored(1), [6, 6]);
    });
}

/// The copy is not in storage, so the page is not clean, whatever an evictor believed meanwhile.
#[test]
fn a_page_whose_writing_fails_is_not_evicted() {
    check(1, |machine| {
        machine.write(1, 5);
        machine.cool(1);
        let flusher = beside(machine, |machine| machine.write_back(0, false));
        machine.evict();
        flusher.join().unwrap();
        assert_eq!(machine.read(1), [5, 5]);
        machine.write_back(0, true);
        assert_eq!(machine.stored(1), [5, 5]);
    });
}

#[test]
fn two_that_write_a_page_do_not_write_an_older_one_later() {
    check(1, |machine| {
        machine.write(1, 5);
        let flusher = beside(machine, |machine| machine.write_back(0, true));
        machine.write(1, 6);
        machine.write_back(0, true);
        flusher.join().unwrap();
        machine.write_back(0, true);
        assert_eq!(machine.stored(1), [6, 6]);
    });
}

/// There is one slot, so each of two pages drives the other out.
#[test]
fn two_pages_take_turns_in_a_slot() {
    check(1, |machine| {
        machine.settle(1, 5);
        machine.keep(2, 7);
        let other = beside(machine, |machine| assert_eq!(machine.read(2), [7, 7]));
        assert_eq!(machine.read(1), [5, 5]);
        other.join().unwrap();
    });
}

#[test]
fn of_two_that_upgrade_one_restarts() {
    check(1, |machine| {
        machine.write(1, 5);
        let other = beside(machine, |machine| machine.increment(1));
        machine.increment(1);
        other.join().unwrap();
        assert_eq!(machine.read(1), [7, 7]);
    });
}

/// Who holds a page shared keeps it, and nobody changes it.
#[test]
fn a_page_held_shared_stays_as_it_is() {
    check(1, |machine| {
        machine.settle(1, 5);
        let other = beside(machine, |machine| {
            machine.evict();
            machine.write(1, 6);
        });
        machine.hold(1, |read| {
            let first = read();
            assert_eq!(first[0], first[1]);
            assert_eq!(read(), first);
        });
        other.join().unwrap();
        assert_eq!(machine.read(1), [6, 6]);
    });
}
