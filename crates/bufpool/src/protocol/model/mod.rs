//! Loom models of short runs of the protocol, in every order with at most two preemptions.
//!
//! The files of the protocol are compiled here a second time, with loom's atomics and locks and a small machine around
//! them. So the model checks the code that runs in production. A page has two words of content, which are equal in
//! every consistent state. They are zero after the memory was released. The models cover all ways to find a page: a
//! state per page, and a state per frame with a table or the translation array.

#![allow(clippy::duplicate_mod, reason = "with other words and locks")]

mod counted_mutex;
#[path = "../../engine/array/entry.rs"]
mod entry;
#[path = "../frame_table.rs"]
#[allow(dead_code, reason = "the model needs some of it")]
mod frame_table;
mod machine;
#[path = "../page_state.rs"]
#[allow(dead_code, reason = "the model needs some of it")]
mod page_state;
#[path = "../sweep.rs"]
#[allow(dead_code, reason = "the model needs some of it")]
mod sweep;
#[path = "../words.rs"]
#[allow(dead_code, reason = "the model needs some of it")]
mod words;

use loom::sync::Arc;
use loom::thread;
use machine::{Machine, Way, atomics};
use page_state::{Access, Layout, Owner, PageState};

/// Explores all orders within the preemption bound, for each way to find pages.
fn check(frames: usize, body: impl Fn(&Arc<Machine>) + Send + Sync + Copy + 'static) {
    for way in [Way::Mapped, Way::Table, Way::Array] {
        let mut model = loom::model::Builder::new();
        // `LOOM_MAX_PREEMPTIONS` overrides this bound.
        model.preemption_bound = model.preemption_bound.or(Some(2));
        model.check(move || body(&Arc::new(Machine::new(way, frames))));
    }
}

/// Starts a thread that runs `f` on the machine.
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

/// Released memory reads as zeros, and the reader must detect that.
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

/// A batch in flight has both pages locked. A thread that wants one of them waits, and reads it in again.
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

/// The copy is not in storage, so the page is not clean. An evictor may have seen it as clean meanwhile.
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

/// The provider writes a page, and a thread that needs a frame evicts clean pages: storage has the page before it leaves memory.
#[test]
fn a_page_that_the_provider_writes_leaves_when_storage_has_it() {
    check(1, |machine| {
        machine.write(1, 5);
        machine.cool(1);
        let provider = beside(machine, |machine| machine.provide(true));
        machine.evict_clean();
        assert_eq!(machine.read(1), [5, 5]);
        provider.join().unwrap();
        assert_eq!(machine.read(1), [5, 5]);
    });
}

/// The page is changed while the provider writes it: it is dirty afterwards, and stays in memory.
#[test]
fn a_page_that_changes_while_the_provider_writes_it_keeps_the_change() {
    check(1, |machine| {
        machine.write(1, 5);
        machine.cool(1);
        let provider = beside(machine, |machine| machine.provide(true));
        machine.write(1, 6);
        machine.evict_clean();
        provider.join().unwrap();
        machine.write_back(0, true);
        assert_eq!((machine.read(1), machine.stored(1)), ([6, 6], [6, 6]));
    });
}

#[test]
fn a_page_that_the_provider_cannot_write_stays() {
    check(1, |machine| {
        machine.write(1, 5);
        machine.cool(1);
        let provider = beside(machine, |machine| machine.provide(false));
        machine.evict_clean();
        provider.join().unwrap();
        assert_eq!((machine.frames_of(1), machine.read(1)), (1, [5, 5]));
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

/// There is only one frame, so each of the two pages evicts the other.
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

/// A page that is held shared stays in memory, and no thread changes it.
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

/// A waiting writer keeps new shared holders out until it has had the page, and no longer.
#[test]
fn a_waiting_writer_keeps_new_holders_out_until_it_has_had_the_page() {
    check(1, |machine| {
        machine.settle(1, 5);
        let writer = beside(machine, |machine| machine.write(1, 6));
        machine.hold(1, |_| {});
        machine.hold(1, |read| assert_eq!(read()[0], read()[1]));
        writer.join().unwrap();
        assert!(!machine.is_any_awaited());
        assert_eq!(machine.read(1), [6, 6]);
    });
}

/// The page leaves its frame after the writer has found it. Another page enters the frame and is held shared. The state
/// of that page must not get the awaited bit, because no thread waits for it.
#[test]
fn a_writer_that_waits_for_an_evicted_page_leaves_no_word_behind() {
    check(2, |machine| {
        machine.settle(1, 5);
        machine.keep(2, 7);
        let writer = beside(machine, |machine| machine.write(1, 6));
        machine.evict();
        machine.hold(2, |read| {
            thread::yield_now();
            assert_eq!(read(), [7, 7]);
        });
        writer.join().unwrap();
        assert!(!machine.is_any_awaited());
    });
}

/// The first writer that locks the page clears the awaited bit. The other one sets it again when it is refused.
#[test]
fn two_writers_that_wait_both_have_their_turn() {
    loom::model(|| {
        let word = page_state::PageState::new();
        let (any, access) = (page_state::Owner::ANY, page_state::Access::Uncounted);
        let lock = || word.try_exclusive_or_await(any, access, || true);
        assert!(word.try_claim());
        word.publish(page_state::Layout::OUTSIDE);
        assert!(word.try_shared(any, access).is_ok());
        assert!(lock().is_err() && lock().is_err());
        word.unlock_shared();
        let before = lock().unwrap();
        assert!(!word.is_awaited() && lock().is_err() && !word.is_awaited());
        word.unlock_modified(before, page_state::Layout::OUTSIDE);
        assert!(!word.is_awaited() && word.try_shared(any, access).is_ok());
        assert!(lock().is_err() && word.is_awaited() && word.try_shared(any, access).is_err());
        word.unlock_shared();
        lock().unwrap();
        word.unlock_unchanged();
        assert!(!word.is_awaited());
    });
}

/// Shared holders overlap: the next one takes the page before the previous one releases it. A writer must wait only for
/// the holders that are there when it arrives.
#[test]
fn a_writer_waits_for_no_holder_that_comes_after_it() {
    loom::model(|| {
        let word = page_state::PageState::new();
        let (any, access) = (page_state::Owner::ANY, page_state::Access::Uncounted);
        assert!(word.try_claim());
        word.publish(page_state::Layout::OUTSIDE);
        let seen = word.try_optimistic(any, access).unwrap();
        assert!(word.try_shared(any, access).is_ok());
        let mut writer = Err(page_state::Refusal::Held);
        let mut acquisitions = 0;
        while writer.is_err() && acquisitions < 100 {
            writer = word.try_exclusive_or_await(any, access, || true);
            // The next holder, and a holder that has read optimistically before.
            let next = word.try_shared(any, access).is_ok();
            let upgraded = writer.is_err() && word.try_share_since(seen);
            acquisitions += u32::from(next) + u32::from(upgraded);
            if writer.is_err() {
                word.unlock_shared();
            }
            if upgraded {
                word.unlock_shared();
            }
        }
        assert!(writer.is_ok() && acquisitions == 0, "{acquisitions} holders came before the writer");
        assert!(word.is_unchanged(seen) != writer.is_ok(), "the lock is a change");
        word.unlock_unchanged();
        assert!(word.is_unchanged(seen), "waiting is no change");
        assert!(!word.is_awaited() && word.try_shared(any, access).is_ok());
        // The state of another page does not get the awaited bit.
        assert!(word.try_exclusive_or_await(any, access, || false).is_err() && !word.is_awaited());
        // Write-back may copy the page while a writer waits.
        assert!(word.try_exclusive_or_await(any, access, || true).is_err() && word.is_awaited());
        assert!(word.try_shared(any, access).is_err() && word.try_shared_to_write().is_ok());
    });
}

/// Bytes that begin and end inside words. An optimistic reader reads them, and other bytes of the same words.
#[test]
fn bytes_are_read_as_they_were_or_as_they_are() {
    const OLD: u64 = 0x0706_0504_0302;
    const NEW: u64 = 0x1716_1514_1312;
    const AT: usize = 5;
    const LEN: usize = 6;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let memory = [atomics::AtomicU64::new(u64::MAX), atomics::AtomicU64::new(u64::MAX)];
        let page = Arc::new((PageState::new(), memory));
        assert!(page.0.try_claim());
        words::store(&page.1, AT, &OLD.to_le_bytes()[..LEN]);
        page.0.publish(Layout::OUTSIDE);
        let writer = thread::spawn({
            let page = page.clone();
            move || {
                let Ok(before) = page.0.try_exclusive(Owner::ANY, Access::Uncounted) else { return };
                words::store(&page.1, AT, &NEW.to_le_bytes()[..LEN]);
                page.0.unlock_modified(before, Layout::OUTSIDE);
            }
        });
        if let Ok(seen) = page.0.try_optimistic(Owner::ANY, Access::Uncounted) {
            let bytes = words::number(&page.1, AT, LEN);
            let neighbour = words::number(&page.1, AT + LEN, 1);
            if page.0.is_unchanged(seen) {
                assert!([OLD, NEW].contains(&bytes), "{bytes:#x}");
            }
            assert_eq!(neighbour, 0xff, "nobody writes it");
        }
        writer.join().unwrap();
    });
}

/// Two threads claim the same absent page. One of them reads it in, into one frame, and both can use it.
#[test]
fn a_page_that_two_threads_claim_is_in_one_frame() {
    check(2, |machine| {
        machine.keep(1, 5);
        let other = beside(machine, |machine| assert_eq!(machine.read(1), [5, 5]));
        assert_eq!(machine.read(1), [5, 5]);
        other.join().unwrap();
        assert_eq!(machine.frames_of(1), 1);
    });
}

/// A reader finds neither the memory content of an abandoned claim, nor a page that can no longer be claimed.
#[test]
fn a_claim_that_is_given_up_leaves_the_page_in_storage() {
    check(2, |machine| {
        machine.keep(1, 5);
        let other = beside(machine, |machine| machine.fail(1));
        assert_eq!(machine.read(1), [5, 5]);
        other.join().unwrap();
        assert_eq!((machine.read(1), machine.frames_of(1)), ([5, 5], 1));
    });
}

/// A page leaves while a reader uses its frame. It returns changed, to the same frame or to another one. The reader
/// sees one consistent version, or its validation fails.
#[test]
fn a_page_that_leaves_and_returns_changed_is_not_mistaken() {
    for frames in [1, 2] {
        check(frames, |machine| {
            machine.settle(1, 5);
            let other = beside(machine, |machine| {
                machine.evict();
                machine.keep(1, 6);
                machine.read_once(1);
            });
            if let Some(content) = machine.read_once(1) {
                assert!(content == [5, 5] || content == [6, 6], "{content:?}");
            }
            other.join().unwrap();
        });
    }
}

/// An evictor does not take a page that is being read ahead, and a reader waits for it.
#[test]
fn an_eviction_leaves_a_page_alone_that_is_being_read_ahead() {
    check(1, |machine| {
        machine.keep(1, 5);
        let arrive = machine.prefetch(1).expect("there is a free frame");
        let evictor = beside(machine, |machine| {
            machine.evict();
            assert_eq!(machine.frames_of(1), 1);
        });
        thread::yield_now();
        arrive();
        evictor.join().unwrap();
        assert_eq!(machine.read(1), [5, 5]);
    });
}
