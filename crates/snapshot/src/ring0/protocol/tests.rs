//! Tests of the protocol against a model, step by step: what main and snapshots see, and which copies exist.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::{PageSize, Pte, PteFlags, Slot};
use bedplate_ring0::word::Native;
use proptest::prelude::*;

use super::{Epochs, Limbo, MOST, Outcome, Waiting, World, write_by_main, write_by_snapshot};

const PAGES: usize = 4;
const COPIES: usize = 12;
/// The frame that replaces lost pages.
const GARBAGE: usize = PAGES + COPIES;

fn pte(frame: usize, flags: PteFlags) -> Pte {
    Pte::leaf(Frame::new(frame as u64), PageSize::Size4K, flags)
}

/// A machine with one processor: frames with a number in each, main's entries and snapshots' entries.
struct Machine {
    contents: RefCell<Vec<u64>>,
    free: RefCell<Vec<usize>>,
    main: [Slot; PAGES],
    snapshots: RefCell<BTreeMap<usize, Vec<&'static Slot>>>,
    incomplete: RefCell<Vec<usize>>,
    flushed: RefCell<u64>,
    limbo: Limbo<Native>,
    epochs: Epochs<Native>,
}

impl Machine {
    fn new() -> Self {
        Self {
            contents: RefCell::new((0..=GARBAGE as u64).collect()),
            free: RefCell::new((PAGES..PAGES + COPIES).collect()),
            main: std::array::from_fn(|page| Slot::new(pte(page, PteFlags::WRITABLE))),
            snapshots: RefCell::default(),
            incomplete: RefCell::default(),
            flushed: RefCell::new(0),
            limbo: Limbo::new(PAGES + COPIES),
            epochs: Epochs::new(),
        }
    }

    fn begin(&self) -> Option<usize> {
        let slot = self.epochs.take_slot()?;
        let entries = self.main.iter().enumerate().map(|(page, main)| {
            main.update(|pte| Some(pte.without(PteFlags::WRITABLE))).unwrap();
            &*Box::leak(Box::new(Slot::new(pte(page, PteFlags::empty()))))
        });
        self.snapshots.borrow_mut().insert(slot, entries.collect());
        self.epochs.begin(slot);
        Some(slot)
    }

    fn end(&self, slot: usize) {
        self.epochs.end(slot);
        self.snapshots.borrow_mut().remove(&slot);
        self.incomplete.borrow_mut().retain(|incomplete| *incomplete != slot);
        self.epochs.give_slot(slot);
    }

    fn reclaim(&self, waiting: &mut Waiting) -> u64 {
        self.limbo.reclaim(waiting, &self.epochs, |frame| {
            assert!(!self.free.borrow().contains(&(frame as usize)), "given back twice");
            self.free.borrow_mut().push(frame as usize);
        })
    }
}

/// The machine, and the page that is written to.
struct At<'a>(&'a Machine, usize);

impl World<Native> for At<'_> {
    fn entry(&self, slot: usize) -> Option<&Slot> {
        self.0.snapshots.borrow().get(&slot).map(|entries| entries[self.1])
    }
    fn copy(&self, of: Frame) -> Option<Frame> {
        let copy = self.0.free.borrow_mut().pop()?;
        let value = self.0.contents.borrow()[of.number() as usize];
        self.0.contents.borrow_mut()[copy] = value;
        Some(Frame::new(copy as u64))
    }
    fn discard(&self, copy: Frame) {
        self.0.free.borrow_mut().push(copy.number() as usize);
    }
    fn leave_in_limbo(&self, copy: Frame, end_epoch: u64) {
        self.0.limbo.push(copy.number() as u32, end_epoch);
    }
    fn tear(&self, slot: usize) -> Frame {
        self.0.incomplete.borrow_mut().push(slot);
        Frame::new(GARBAGE as u64)
    }
    fn flush(&self, snapshots: u64) {
        *self.0.flushed.borrow_mut() |= snapshots;
    }
    fn relax(&self) {}
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Begin,
    End(usize),
    Main(usize, u64),
    Snapshot(usize, usize, u64),
    /// The snapshot's processor uses a page, and caches its entry.
    Use(usize, usize),
    Reclaim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Begin),
        2 => (0..MOST).prop_map(Step::End),
        6 => (0..PAGES, 100u64..200).prop_map(|(page, value)| Step::Main(page, value)),
        2 => (0..MOST, 0..PAGES, 200u64..300).prop_map(|(s, page, value)| Step::Snapshot(s, page, value)),
        2 => (0..MOST, 0..PAGES).prop_map(|(s, page)| Step::Use(s, page)),
        2 => Just(Step::Reclaim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn snapshots_see_what_was_and_copies_live_as_long_as_they_are_needed(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let machine = Machine::new();
        let mut waiting = Waiting::default();
        let mut main: Vec<u64> = (0..PAGES as u64).collect();
        // The values that each snapshot must see, and its epoch.
        let mut seen: BTreeMap<usize, (u64, Vec<u64>)> = BTreeMap::new();
        let nth = |seen: &BTreeMap<usize, (u64, Vec<u64>)>, n: usize| {
            (!seen.is_empty()).then(|| *seen.keys().nth(n % seen.len()).unwrap())
        };
        for step in steps {
            match step {
                Step::Begin => {
                    if let Some(slot) = machine.begin() {
                        let epoch = machine.epochs.of(slot);
                        prop_assert!(seen.values().all(|(before, _)| *before < epoch));
                        seen.insert(slot, (epoch, main.clone()));
                    }
                }
                Step::End(n) => if let Some(slot) = nth(&seen, n) {
                    machine.end(slot);
                    seen.remove(&slot);
                }
                Step::Main(page, value) => {
                    *machine.flushed.borrow_mut() = 0;
                    let entries: Vec<_> = machine.snapshots.borrow().iter()
                        .map(|(slot, entries)| (*slot, entries[page], entries[page].load())).collect();
                    let outcome = write_by_main(&At(&machine, page), &machine.main[page], &machine.epochs);
                    let entry = machine.main[page].load();
                    prop_assert!(entry.is_writable() && !entry.is_locked());
                    prop_assert_eq!(entry.frame().number(), page as u64, "main's frames never change");
                    for (slot, entry, before) in entries {
                        let changed = entry.load().frame() != before.frame();
                        let flushed = *machine.flushed.borrow() & 1 << slot != 0;
                        prop_assert_eq!(flushed, changed && before.is_accessed());
                        prop_assert!(entry.load().frame().number() != page as u64);
                    }
                    prop_assert!(outcome != Outcome::Incomplete || !machine.incomplete.borrow().is_empty());
                    machine.contents.borrow_mut()[page] = value;
                    main[page] = value;
                }
                Step::Snapshot(n, page, value) => if let Some(slot) = nth(&seen, n) {
                    write_by_snapshot(&At(&machine, page), slot, machine.epochs.of(slot));
                    let entry = machine.snapshots.borrow()[&slot][page].load();
                    prop_assert!(entry.is_writable());
                    machine.contents.borrow_mut()[entry.frame().number() as usize] = value;
                    seen.get_mut(&slot).unwrap().1[page] = value;
                }
                Step::Use(n, page) => if let Some(slot) = nth(&seen, n) {
                    let entry = machine.snapshots.borrow()[&slot][page];
                    entry.update(|pte| Some(pte.with(PteFlags::ACCESSED))).unwrap();
                }
                Step::Reclaim => {
                    machine.reclaim(&mut waiting);
                    if seen.is_empty() {
                        prop_assert_eq!(machine.free.borrow().len(), COPIES, "a copy is lost");
                    }
                }
            }
            let contents = machine.contents.borrow();
            prop_assert_eq!(&contents[..PAGES], &main[..]);
            let free = machine.free.borrow();
            for (slot, (_, expected)) in &seen {
                if machine.incomplete.borrow().contains(slot) {
                    continue;
                }
                for (page, expected) in expected.iter().enumerate() {
                    let frame = machine.snapshots.borrow()[slot][page].load().frame().number() as usize;
                    prop_assert_eq!(contents[frame], *expected, "page {} of the snapshot at {}", page, slot);
                    prop_assert!(!free.contains(&frame), "a copy was given back too early");
                }
            }
        }
        for slot in seen.keys() {
            machine.end(*slot);
        }
        machine.reclaim(&mut waiting);
        prop_assert_eq!((machine.free.borrow().len(), waiting.pages()), (COPIES, 0), "copies are lost");
    }
}

#[test]
fn slots_run_out_and_come_back() {
    let epochs = Epochs::<Native>::new();
    let slots: Vec<_> = std::iter::from_fn(|| epochs.take_slot()).collect();
    assert_eq!(slots, (0..MOST).collect::<Vec<_>>());
    epochs.give_slot(17);
    assert_eq!((epochs.take_slot(), epochs.take_slot()), (Some(17), None));
}

#[test]
fn one_copy_is_shared_by_all_snapshots_that_need_it() {
    let machine = Machine::new();
    let (one, other) = (machine.begin().unwrap(), machine.begin().unwrap());
    assert_eq!(write_by_main(&At(&machine, 0), &machine.main[0], &machine.epochs), Outcome::Copied);
    assert_eq!(write_by_main(&At(&machine, 0), &machine.main[0], &machine.epochs), Outcome::Nothing);
    let frame = |slot| machine.snapshots.borrow()[&slot][0].load().frame();
    assert_eq!(frame(one), frame(other));
    assert_eq!(machine.free.borrow().len(), COPIES - 1);
    let mut waiting = Waiting::default();
    machine.end(one);
    assert_eq!((machine.reclaim(&mut waiting), waiting.pages()), (0, 1));
    machine.end(other);
    assert_eq!((machine.reclaim(&mut waiting), waiting.pages()), (1, 0));
}

#[test]
fn without_frames_the_snapshot_is_lost_and_main_goes_on() {
    let machine = Machine::new();
    let slot = machine.begin().unwrap();
    machine.free.borrow_mut().clear();
    assert_eq!(write_by_main(&At(&machine, 1), &machine.main[1], &machine.epochs), Outcome::Incomplete);
    assert!(machine.main[1].load().is_writable());
    assert_eq!(*machine.incomplete.borrow(), [slot]);
    assert_eq!(machine.snapshots.borrow()[&slot][1].load().frame().number(), GARBAGE as u64);
}
