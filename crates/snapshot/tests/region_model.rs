//! All operations on a region, in any order, against a model: the owner's bytes, and a copy of them for each snapshot.

#[path = "region/child.rs"]
mod child;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_snapshot::engine::{Arena, Options, Service, SnapshotId, open_arena};
use bedplate_snapshot::{Error, Kind, PAGE};
use child::{Child, filling};
use proptest::prelude::*;

/// Two page tables, the second of which is not full.
const PAGES: usize = 512 + 50;

/// An operation.
#[derive(Clone, Debug)]
enum Step {
    /// Claims these pages, if they are free.
    Claim(Range<usize>),
    /// Claims a number of pages at any position, with an alignment.
    ClaimAnywhere(usize, usize),
    /// Releases pages, whether or not they are claimed.
    Release(Range<usize>),
    Discard(Range<usize>),
    /// Writes to some bytes of each claimed page, upwards or downwards.
    Write {
        pages: Range<usize>,
        down: bool,
        bytes: Range<usize>,
        value: u8,
    },
    /// The same for all bytes, with a system call.
    Read {
        pages: Range<usize>,
        value: u8,
    },
    Snapshot,
    Fork,
    /// One of the snapshots writes to its own memory.
    WriteInSnapshot {
        which: usize,
        pages: Range<usize>,
        value: u8,
    },
    Look(usize),
    End(usize),
    Settle,
    /// Pins the pages, as if devices were about to write into the memory.
    KeepInPlace,
}

fn pages() -> impl Strategy<Value = Range<usize>> {
    let len = prop_oneof![4 => 1..4usize, 3 => 4..40usize, 1 => 40..PAGES];
    // The positions are often near the end of the first page table.
    let start = prop_oneof![2 => 0..PAGES, 1 => 490..PAGES];
    (start, len).prop_map(|(start, len)| start..PAGES.min(start + len))
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = (0..PAGE, 1..PAGE).prop_map(|(start, len)| start..PAGE.min(start + len));
    let align = prop_oneof![Just(1), Just(16), Just(512)];
    let which = 0..16usize;
    prop_oneof![
        3 => pages().prop_map(Step::Claim),
        2 => (1..100usize, align).prop_map(|(count, align)| Step::ClaimAnywhere(count, align)),
        2 => pages().prop_map(Step::Release),
        3 => pages().prop_map(Step::Discard),
        10 => (pages(), any::<bool>(), bytes, any::<u8>())
            .prop_map(|(pages, down, bytes, value)| Step::Write { pages, down, bytes, value }),
        2 => (pages(), any::<u8>()).prop_map(|(pages, value)| Step::Read { pages, value }),
        4 => Just(Step::Snapshot),
        2 => Just(Step::Fork),
        2 => (which.clone(), pages(), any::<u8>())
            .prop_map(|(which, pages, value)| Step::WriteInSnapshot { which, pages, value }),
        2 => which.clone().prop_map(Step::Look),
        3 => which.prop_map(Step::End),
        3 => Just(Step::Settle),
        1 => Just(Step::KeepInPlace),
    ]
}

/// A snapshot, with its expected content.
struct Image {
    reader: Reader,
    bytes: Vec<u8>,
    /// Pages that were claimed. The content of others is undefined.
    claimed: Vec<bool>,
}

enum Reader {
    View(SnapshotId),
    Child(Child),
}

struct World<'a> {
    service: &'a Service<dyn Arena>,
    bytes: Vec<u8>,
    claimed: Vec<bool>,
    images: Vec<Image>,
    is_in_place: bool,
}

/// The bytes of this process at an address.
fn bytes_at(base: usize) -> &'static [u8] {
    // SAFETY: bytes of a region or a snapshot. This test is the only user, and does not write them meanwhile.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(base), PAGES * PAGE) }
}

fn first_difference(seen: &[u8], expected: &[u8], claimed: &[bool]) -> Option<String> {
    (0..PAGES).filter(|&page| claimed[page]).find_map(|page| {
        let (seen, expected) = (&seen[page * PAGE..][..PAGE], &expected[page * PAGE..][..PAGE]);
        if seen == expected {
            return None;
        }
        let at = seen.iter().zip(expected).position(|(seen, expected)| seen != expected)?;
        Some(format!("page {page}, byte {at}: {} instead of {}", seen[at], expected[at]))
    })
}

impl World<'_> {
    fn address(&self, page: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.service.base() + page * PAGE)
    }

    fn note_claimed(&mut self, pages: Range<usize>) {
        self.claimed[pages.clone()].fill(true);
        // Pages that were never used or were released are zero.
        self.bytes[pages.start * PAGE..pages.end * PAGE].fill(0);
    }

    fn first_free(&self, count: usize, align: usize) -> Option<Range<usize>> {
        let places = (0..PAGES).step_by(align).map(|start| start..start + count);
        places.into_iter().find(|pages| pages.end <= PAGES && !self.claimed[pages.clone()].contains(&true))
    }

    fn image(&mut self, reader: Result<Reader, Error>) {
        match reader {
            Ok(reader) => {
                let (bytes, claimed) = (self.bytes.clone(), self.claimed.clone());
                self.images.push(Image { reader, bytes, claimed });
            }
            // The region may still count processes that have ended.
            Err(Error::TooManySnapshots { .. }) => {}
            Err(Error::Unavailable { .. }) if self.is_in_place => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn look(&mut self, which: usize) -> Result<(), TestCaseError> {
        let Image { reader, bytes, claimed } = &mut self.images[which];
        let difference = match reader {
            Reader::View(id) => first_difference(bytes_at(id.base), bytes, claimed),
            Reader::Child(child) => first_difference(&child.show(), bytes, claimed),
        };
        let incomplete = self.service.statistics().incomplete;
        prop_assert_eq!(
            difference,
            None,
            "snapshot {} of {}, {} incomplete",
            which,
            self.images.len(),
            incomplete
        );
        Ok(())
    }

    fn end(&mut self, which: usize) -> Result<(), TestCaseError> {
        self.look(which)?;
        if let Reader::View(id) = self.images.remove(which).reader {
            prop_assert!(self.service.is_whole(&id));
            // SAFETY: no code reads it any more.
            unsafe { self.service.end(id) };
        }
        Ok(())
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Claim(pages) => {
                let free = !self.claimed[pages.clone()].contains(&true);
                prop_assert_eq!(self.service.claim_exactly(pages.clone()), free);
                if free {
                    self.note_claimed(pages);
                }
            }
            Step::ClaimAnywhere(count, align) => {
                let expected = self.first_free(count, align);
                prop_assert_eq!(self.service.claim_anywhere(count, align), expected.clone());
                if let Some(pages) = expected {
                    self.note_claimed(pages);
                }
            }
            Step::Release(pages) => {
                self.service.release(pages.clone());
                self.claimed[pages].fill(false);
            }
            Step::Discard(pages) => {
                self.service.discard(pages.clone());
                self.bytes[pages.start * PAGE..pages.end * PAGE].fill(0);
            }
            Step::Write { pages, down, bytes, value } => {
                let mut pages: Vec<_> = pages.filter(|&page| self.claimed[page]).collect();
                if down {
                    pages.reverse();
                }
                for page in pages {
                    // SAFETY: a page of the region, which no other code uses.
                    unsafe { self.address(page).add(bytes.start).write_bytes(value, bytes.len()) };
                    self.bytes[page * PAGE..][bytes.clone()].fill(value);
                }
            }
            Step::Read { pages, value } => {
                let (from, to) = std::io::pipe().unwrap();
                for page in pages.filter(|&page| self.claimed[page]) {
                    // A page fits into a pipe.
                    let sent = rustix::io::write(&to, &[value; PAGE]).unwrap();
                    // SAFETY: a page of the region, which no other code uses.
                    let there = unsafe { std::slice::from_raw_parts_mut(self.address(page), PAGE) };
                    prop_assert_eq!((sent, rustix::io::read(&from, there).unwrap()), (PAGE, PAGE));
                    self.bytes[page * PAGE..][..PAGE].fill(value);
                }
            }
            Step::Snapshot => self.image(self.service.snapshot().map(Reader::View)),
            Step::Fork => self.image(Child::fork(&**self.service, PAGES * PAGE).map(Reader::Child)),
            Step::WriteInSnapshot { which, pages, value } if which < self.images.len() => {
                let Image { reader, bytes, .. } = &mut self.images[which];
                match reader {
                    Reader::View(_) if !self.service.kind().abilities().views_are_writable => return Ok(()),
                    Reader::View(id) => {
                        let at = (id.base + pages.start * PAGE) as *mut u8;
                        // SAFETY: the snapshot's own mapping, which only this test uses.
                        unsafe { at.write_bytes(filling(value), pages.len() * PAGE) };
                    }
                    Reader::Child(child) => child.fill(pages.start, pages.len(), value),
                }
                bytes[pages.start * PAGE..pages.end * PAGE].fill(filling(value));
            }
            Step::Look(which) if which < self.images.len() => self.look(which)?,
            Step::End(which) if which < self.images.len() => self.end(which)?,
            Step::WriteInSnapshot { .. } | Step::Look(_) | Step::End(_) => {}
            Step::Settle => self.service.settle(),
            Step::KeepInPlace => {
                self.service.pin().unwrap();
                self.is_in_place = true;
            }
        }
        let difference = first_difference(bytes_at(self.service.base()), &self.bytes, &self.claimed);
        prop_assert_eq!(difference, None, "the owner's");
        Ok(())
    }
}

/// An arena with its threads, or `None` after a printed line that says why the test is skipped.
fn arena(kind: Kind, claimed: bool, huge_pages: bool, track_changes: bool) -> Option<Service<dyn Arena>> {
    match open_arena(kind, Options { huge_pages, track_changes, ..Options::new(PAGES * PAGE) }) {
        Ok(service) => {
            service.start_threads().unwrap();
            assert!(!claimed || service.claim_exactly(0..PAGES));
            Some(service)
        }
        Err(Error::Unavailable { engine, reason }) => {
            println!("skipped: the {engine} engine does not work here: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Number of cases: fewer in a virtual machine (`bedplate_vm::MARK`), because its software processor is slow.
fn cases() -> u32 {
    if std::env::var_os("BEDPLATE_VM").is_some() { 16 } else { 64 }
}

/// Runs the steps. If `hurried`, another thread meanwhile does the work that can be done ahead.
fn run(
    kind: Kind,
    steps: Vec<Step>,
    claimed: bool,
    huge_pages: bool,
    hurried: bool,
    track_changes: bool,
) -> Result<(), TestCaseError> {
    let Some(service) = arena(kind, claimed, huge_pages, track_changes) else { return Ok(()) };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if hurried {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    service.settle();
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
        }
        let mut world = World {
            service: &service,
            bytes: vec![0; PAGES * PAGE],
            claimed: vec![claimed; PAGES],
            images: Vec::new(),
            is_in_place: false,
        };
        let result = steps.into_iter().try_for_each(|step| world.take(step)).and_then(|()| {
            while !world.images.is_empty() {
                world.end(0)?;
            }
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        result?;
        prop_assert_eq!(service.statistics().incomplete, 0);
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_snapshot_of_uffd_is_what_was(
        steps in prop::collection::vec(step(), 1..60),
        claimed in any::<bool>(),
        huge_pages in any::<bool>(),
        hurried in any::<bool>(),
        track_changes in any::<bool>(),
    ) {
        run(Kind::Uffd, steps, claimed, huge_pages, hurried, track_changes)?;
    }

    #[test]
    fn every_snapshot_of_remap_is_what_was(
        steps in prop::collection::vec(step(), 1..60),
        claimed in any::<bool>(),
        huge_pages in any::<bool>(),
        hurried in any::<bool>(),
    ) {
        run(Kind::Remap, steps, claimed, huge_pages, hurried, false)?;
    }
}
