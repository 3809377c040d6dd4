//! The parts of a memory that changed between two snapshots.

mod common;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_snapshot::{Bookmark, Choice, Error, Kind, Memory, PAGE, Snapshot};
use common::{EndOnDrop, Random, Setting, build};
use proptest::prelude::*;

const WORDS_OF_A_PAGE: usize = PAGE / 8;
/// Two page tables, the second of which is not full.
const PAGES: usize = 512 + 50;

fn tracking(huge_pages: bool, builder: bedplate_snapshot::Builder) -> Option<Memory> {
    let setting = Setting { kind: Kind::Uffd, in_child: false, huge_pages };
    build(builder.track_changes(true), setting)
}

fn write(memory: &Memory, page: usize, value: u64) {
    memory.words()[page * WORDS_OF_A_PAGE + value as usize % WORDS_OF_A_PAGE].store(value, Ordering::Relaxed);
}

/// The pages that may have changed. The ranges must be whole pages, ascending and separate.
fn changed(snapshot: &Snapshot, since: &Bookmark) -> Vec<bool> {
    let mut changed = vec![false; snapshot.bytes().len() / PAGE];
    let mut end = 0;
    for run in snapshot.changed_since(since).unwrap() {
        assert!(run.start >= end && run.end > run.start && run.end <= snapshot.bytes().len());
        assert!(run.start.is_multiple_of(PAGE) && run.end.is_multiple_of(PAGE));
        end = run.end;
        changed[run.start / PAGE..run.end / PAGE].fill(true);
    }
    changed
}

#[derive(Clone, Debug)]
enum Step {
    /// Writes to every n-th page of a range.
    Write(Range<usize>, usize),
    Snapshot,
    /// Ends one of the existing snapshots.
    End(usize),
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 1..4usize, 3 => 4..40usize, 1 => 40..PAGES];
    let pages = (0..PAGES, len).prop_map(|(start, len)| start..PAGES.min(start + len));
    prop_oneof![
        8 => (pages, 1..20usize).prop_map(|(pages, by)| Step::Write(pages, by)),
        5 => Just(Step::Snapshot),
        2 => (0..16usize).prop_map(Step::End),
        2 => Just(Step::Settle),
    ]
}

/// For each page, the number of writes before a snapshot.
struct Moment {
    bookmark: Bookmark,
    writes: Vec<u32>,
}

fn run(steps: Vec<Step>, huge_pages: bool, hurried: bool) -> Result<(), TestCaseError> {
    let Some(memory) = tracking(huge_pages, Memory::builder(PAGES * PAGE)) else { return Ok(()) };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = EndOnDrop(&over);
        if hurried {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    memory.settle();
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
        let mut writes = vec![0u32; PAGES];
        let (mut moments, mut held): (Vec<Moment>, Vec<(usize, Snapshot)>) = (Vec::new(), Vec::new());
        let mut value = 0;
        for step in steps {
            match step {
                Step::Write(pages, by) => {
                    for page in pages.step_by(by) {
                        value += 1;
                        write(&memory, page, value);
                        writes[page] += 1;
                    }
                }
                Step::Snapshot => match memory.snapshot() {
                    Ok(snapshot) => {
                        moments
                            .push(Moment { bookmark: snapshot.bookmark().unwrap(), writes: writes.clone() });
                        held.push((moments.len() - 1, snapshot));
                    }
                    Err(Error::TooManySnapshots { .. }) => {}
                    Err(error) => panic!("{error}"),
                },
                Step::End(which) if which < held.len() => drop(held.remove(which)),
                Step::End(_) => {}
                Step::Settle => memory.settle(),
            }
            // Later writes do not change the changes of an earlier snapshot.
            for (number, snapshot) in &held {
                let later = &moments[*number];
                for earlier in &moments[..=*number] {
                    let said = changed(snapshot, &earlier.bookmark);
                    let is_changed = |page: usize| earlier.writes[page] != later.writes[page];
                    for (page, said) in said.into_iter().enumerate() {
                        prop_assert_eq!(said, is_changed(page), "page {}", page);
                    }
                }
            }
        }
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_is_said_to_have_changed_is_what_was_written(
        steps in prop::collection::vec(step(), 1..40),
        huge_pages in any::<bool>(),
        hurried in any::<bool>(),
    ) {
        run(steps, huge_pages, hurried)?;
    }
}

/// Any two snapshots that exist at once differ only in the reported parts.
#[test]
fn changes_under_load_are_all_found() {
    for huge_pages in [false, true] {
        let Some(memory) = tracking(huge_pages, Memory::builder(2 * PAGES * PAGE)) else { continue };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = EndOnDrop(&over);
            for seed in 1..3 {
                let (memory, over) = (&memory, &over);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    while !over.load(Ordering::Relaxed) {
                        let start = random.below(2 * PAGES as u64) as usize;
                        for page in (start..2 * PAGES).take(random.below(20) as usize) {
                            write(memory, page, random.next());
                        }
                        std::thread::sleep(Duration::from_micros(50));
                    }
                });
            }
            let mut held: Vec<Snapshot> = vec![memory.snapshot().unwrap()];
            for _ in 0..60 {
                std::thread::sleep(Duration::from_millis(2));
                held.push(memory.snapshot().unwrap());
                let (later, earlier) = held.split_last().unwrap();
                for earlier in earlier {
                    let said = changed(later, &earlier.bookmark().unwrap());
                    for (page, said) in said.iter().enumerate() {
                        let content = |snapshot: &Snapshot| snapshot.bytes()[page * PAGE..][..PAGE].to_vec();
                        assert!(*said || content(earlier) == content(later), "page {page}");
                    }
                }
                if held.len() == 4 {
                    held.remove(1);
                }
            }
            held.iter().for_each(|snapshot| snapshot.check().unwrap());
        });
    }
}

#[test]
fn what_a_memory_grew_by_has_changed() {
    let Some(memory) = tracking(false, Memory::builder(4 * PAGE).reserve(100 * PAGE)) else { return };
    let first = memory.snapshot().unwrap();
    let bookmark = first.bookmark().unwrap();
    memory.grow(3 * PAGE).unwrap();
    memory.grow(2 * PAGE).unwrap();
    let second = memory.snapshot().unwrap();
    memory.grow(PAGE).unwrap();
    write(&memory, 1, 1);
    let mut ranges = second.changed_since(&bookmark).unwrap();
    assert_eq!((ranges.next(), ranges.next()), (Some(4 * PAGE..9 * PAGE), None));
    assert_eq!(second.changed_since(&second.bookmark().unwrap()).unwrap().count(), 0);
    let third = memory.snapshot().unwrap();
    let ranges: Vec<_> = third.changed_since(&second.bookmark().unwrap()).unwrap().collect();
    assert_eq!(ranges, [PAGE..2 * PAGE, 9 * PAGE..10 * PAGE]);
}

#[test]
fn only_earlier_snapshots_of_the_same_memory_are_compared_with() {
    let Some(memory) = tracking(false, Memory::builder(PAGE)) else { return };
    let Some(other) = tracking(false, Memory::builder(PAGE)) else { return };
    let (first, second) = (memory.snapshot().unwrap(), memory.snapshot().unwrap());
    let other = other.snapshot().unwrap();
    for bookmark in [second.bookmark().unwrap(), other.bookmark().unwrap()] {
        assert!(matches!(first.changed_since(&bookmark), Err(Error::NotEarlier)));
    }
    let untracked = Memory::builder(PAGE).engine(Choice::Only(Kind::Uffd)).build().unwrap();
    let snapshot = untracked.snapshot().unwrap();
    assert!(matches!(snapshot.bookmark(), Err(Error::NotTracked)));
    assert!(matches!(snapshot.changed_since(&first.bookmark().unwrap()), Err(Error::NotTracked)));
}

#[test]
fn engines_that_keep_no_track_say_so() {
    for kind in [Kind::Remap, Kind::Fork] {
        match Memory::builder(PAGE).engine(Choice::Only(kind)).track_changes(true).build() {
            Err(Error::Unavailable { engine, reason }) => {
                assert_eq!(engine, kind);
                assert!(reason.contains("uffd") || kind == Kind::Remap, "{reason}");
            }
            other => panic!("{kind}: {other:?}"),
        }
    }
    match Memory::builder(PAGE).track_changes(true).build() {
        Ok(memory) => assert_eq!(memory.kind(), Kind::Uffd),
        Err(Error::Unavailable { engine, reason }) => {
            println!("skipped: the {engine} engine does not work here: {reason}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// Interfaces to other languages keep bookmarks as numbers, and resume an iteration where it stopped.
#[test]
fn bookmarks_are_numbers_and_iterations_can_be_taken_up_again() {
    let Some(memory) = tracking(false, Memory::builder(500 * PAGE).reserve(600 * PAGE)) else { return };
    let earlier = memory.snapshot().unwrap();
    let bookmark = earlier.bookmark().unwrap();
    let words = bookmark.to_words();
    assert_eq!(Bookmark::from_words(words), Some(bookmark));
    assert_eq!(Bookmark::from_words([words[0], words[1], words[2] + 1]), None);
    for page in [0, 100, 101, 300] {
        write(&memory, page, 1);
    }
    memory.grow(7 * PAGE).unwrap();
    let later = memory.snapshot().unwrap();
    let all: Vec<_> = later.changed_since(&bookmark).unwrap().collect();
    assert_eq!(all.len(), 4, "{all:?}");
    // One range at a time.
    let (mut from, mut again) = (0, Vec::new());
    while let Some(run) = later.changed_since(&bookmark).unwrap().starting_at(from).next() {
        from = run.end;
        again.push(run);
    }
    assert_eq!(again, all);
    // The iteration resumes in the middle of a page, of a range, and of the growth of the memory.
    let at = |offset| later.changed_since(&bookmark).unwrap().starting_at(offset).next();
    assert_eq!(at(100 * PAGE + 5), Some(all[1].clone()));
    assert_eq!(at(101 * PAGE + 5), Some(101 * PAGE..all[1].end));
    assert_eq!(at(502 * PAGE), Some(502 * PAGE..507 * PAGE));
    assert_eq!((at(507 * PAGE), at(usize::MAX)), (None, None));
    // A memory does not shrink, so a bookmark with a larger size does not belong to an earlier snapshot.
    let larger = Bookmark::from_words([words[0], words[1], 508 * PAGE as u64]).unwrap();
    assert!(matches!(later.changed_since(&larger), Err(Error::NotEarlier)));
}
