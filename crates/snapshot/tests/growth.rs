//! Memories that grow. A snapshot has the size that the memory had.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bedplate_snapshot::{Choice, Error, Kind, Memory, PAGE, View};
use common::{EndOnDrop, Setting, build, settings};

/// Tests fork, so no other thread may hold a lock that a child needs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;
const WORDS_OF_A_PAGE: usize = PAGE / 8;

/// The engines whose memories can grow. Those of ring 0 cannot.
fn that_grow() -> impl Iterator<Item = Setting> {
    settings().filter(|setting| setting.kind != Kind::Ring0)
}

/// A view's size, with its last word.
fn size_and_last(view: &View<'_>) -> Vec<u8> {
    let size = view.bytes().len() as u64;
    [size, *view.words().last().unwrap()].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn expected(size: usize, last: u64) -> Vec<u8> {
    [size as u64, last].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn snapshots_have_the_size_that_was() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in that_grow() {
        // The memory grows further than one step makes accessible.
        let Some(memory) = build(Memory::builder(MIB).reserve(200 * MIB), setting) else { continue };
        assert_eq!(memory.len(), MIB, "{setting:?}");
        let held = (setting.kind == Kind::Uffd).then(|| memory.snapshot().unwrap());
        for megabytes in [1, 2, 3, 100] {
            let len = memory.len();
            memory.words().last().unwrap().store(len as u64, Ordering::Relaxed);
            let before = memory.spawn(size_and_last).unwrap();
            assert_eq!(memory.grow(megabytes * MIB).unwrap(), len..len + megabytes * MIB, "{setting:?}");
            assert_eq!(memory.words().len() * 8, memory.len());
            assert!(memory.bytes()[len..].iter().step_by(PAGE).all(|byte| byte.load(Ordering::Relaxed) == 0));
            memory.words().last().unwrap().store(7, Ordering::Relaxed);
            assert_eq!(before.join().unwrap(), expected(len, len as u64), "{setting:?}");
            let after = memory.spawn(size_and_last).unwrap();
            memory.words().last().unwrap().store(8, Ordering::Relaxed);
            assert_eq!(after.join().unwrap(), expected(memory.len(), 7), "{setting:?}");
        }
        if let Some(held) = held {
            assert!(held.bytes().len() == MIB && held.words().iter().all(|&word| word == 0), "{setting:?}");
            held.check().unwrap();
        }
    }
}

#[test]
fn a_memory_grows_to_what_is_reserved_and_no_further() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in that_grow() {
        let Some(memory) = build(Memory::builder(1).reserve(3 * PAGE - 1), setting) else { continue };
        assert_eq!(memory.len(), PAGE);
        assert_eq!(memory.grow(0).unwrap(), PAGE..PAGE);
        assert_eq!(memory.grow(1).unwrap(), PAGE..2 * PAGE);
        for bytes in [PAGE + 1, usize::MAX, usize::MAX - 3 * PAGE] {
            let error = memory.grow(bytes).unwrap_err();
            assert!(matches!(error, Error::Full { reserved, .. } if reserved == 3 * PAGE), "{error}");
        }
        assert_eq!(memory.grow(PAGE).unwrap(), 2 * PAGE..3 * PAGE);
        assert!(matches!(memory.grow(1), Err(Error::Full { .. })), "{setting:?}");
        memory.bytes()[3 * PAGE - 1].store(1, Ordering::Relaxed);
        // By default nothing is reserved.
        let Some(memory) = build(Memory::builder(PAGE), setting) else { continue };
        assert!(matches!(memory.grow(1), Err(Error::Full { .. })), "{setting:?}");
    }
    let too_large = Memory::builder(1).reserve((1 << 46) + 1).build();
    assert!(matches!(too_large, Err(Error::Size { .. })));
    let ring0 = Memory::builder(1).reserve(2 * PAGE).engine(Choice::Only(Kind::Ring0)).build();
    assert!(matches!(ring0, Err(Error::Unavailable { engine: Kind::Ring0, .. })), "{ring0:?}");
}

/// The first word counts pages. These pages are present and filled in every snapshot.
fn is_complete(view: &View<'_>) -> Vec<u8> {
    let words = view.words();
    let is_filled = |page: usize| words.get(page * WORDS_OF_A_PAGE + 1) == Some(&(page as u64));
    vec![u8::from((0..words[0] as usize).all(is_filled))]
}

#[test]
fn snapshots_beside_a_thread_that_grows_the_memory_are_of_one_moment() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in that_grow() {
        let Some(memory) = build(Memory::builder(PAGE).reserve(16 * MIB), setting) else { continue };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = EndOnDrop(&over);
            scope.spawn(|| {
                for page in 0..16 * MIB / PAGE {
                    if page > 0 {
                        memory.grow(PAGE).unwrap();
                    }
                    let words = memory.words();
                    words[page * WORDS_OF_A_PAGE + 1].store(page as u64, Ordering::Release);
                    words[0].store(page as u64 + 1, Ordering::Release);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            for _ in 0..30 {
                match memory.spawn(is_complete) {
                    Ok(task) => assert_eq!(task.join().unwrap(), [1], "{setting:?}"),
                    Err(Error::TooManySnapshots { .. }) => {}
                    Err(error) => panic!("{setting:?}: {error}"),
                }
            }
        });
    }
}

#[test]
fn the_memory_does_not_grow_in_a_tasks_process() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in that_grow() {
        let Some(memory) = build(Memory::builder(PAGE).reserve(MIB), setting) else { continue };
        let task = memory.spawn_in_child(|_| {
            let refused = [
                memory.grow(1).map(drop),
                memory.snapshot().map(drop),
                memory.spawn(|_| vec![]).map(drop),
                memory.spawn_in_child(|_| vec![]).map(drop),
            ];
            refused.map(|result| u8::from(matches!(result, Err(Error::OfASnapshot)))).to_vec()
        });
        assert_eq!(task.unwrap().join().unwrap(), [1; 4], "{setting:?}");
    }
}
