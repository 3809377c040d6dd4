//! Loom models of a few steps of the protocol. They cover every interleaving with up to three preemptions.
//!
//! The machine has a page with a number in it, main's frame 0, and two frames for copies. A snapshot's processor
//! caches its entry from the moment it reads the entry and sets the accessed bit, as processors do, until it is
//! done with it. A flush waits for that, as a shootdown does.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::{PageSize, Pte, PteFlags, RawSlot};
use bedplate_ring0::word::{Atomics, Loom};
use loom::sync::Arc;
use loom::thread;

use super::{Epochs, Latch, Limbo, Waiting, World, write_by_main, write_by_snapshot};

type Slot = RawSlot<<Loom as Atomics>::U64>;
type U64 = <Loom as Atomics>::U64;
type U32 = <Loom as Atomics>::U32;

const FRAMES: usize = 3;
const OLD: u64 = 7;
const NEW: u64 = 8;

fn pte(frame: u64, flags: PteFlags) -> Pte {
    Pte::leaf(Frame::new(frame), PageSize::Size4K, flags)
}

struct Machine {
    latch: Latch<Loom>,
    epochs: Epochs<Loom>,
    limbo: Limbo<Loom>,
    main: Slot,
    snapshot: Slot,
    contents: [U64; FRAMES],
    /// The free frames for copies, one bit for each.
    free: U32,
    /// Whether the snapshot's processor uses its cached entry.
    using: U32,
}

impl Machine {
    /// Creates the machine. A snapshot is active if `active` is set.
    fn new(active: bool) -> Self {
        let machine = Self {
            latch: Latch::new(),
            epochs: Epochs::new(),
            limbo: Limbo::new(FRAMES),
            main: Slot::new(pte(0, if active { PteFlags::empty() } else { PteFlags::WRITABLE })),
            snapshot: Slot::new(pte(0, PteFlags::empty())),
            contents: std::array::from_fn(|_| U64::new(OLD)),
            free: U32::new(0b110),
            using: U32::new(0),
        };
        let slot = machine.epochs.take_slot();
        if active {
            machine.epochs.begin(slot.unwrap());
        }
        machine
    }

    fn take(&self) -> Option<Frame> {
        for frame in 1..FRAMES as u32 {
            if self.free.fetch_and(!(1 << frame), AcqRel) & 1 << frame != 0 {
                return Some(Frame::new(u64::from(frame)));
            }
        }
        None
    }

    fn give(&self, frame: u32) {
        assert_eq!(self.free.fetch_or(1 << frame, AcqRel) & 1 << frame, 0, "given back twice");
    }

    /// Models a write by main's processor, with its handler.
    fn main_writes(&self) {
        {
            let _reading = self.latch.read(Loom::relax);
            write_by_main(self, &self.main, &self.epochs);
        }
        self.contents[0].store(NEW, Relaxed);
    }

    /// Models a read by the snapshot's processor.
    fn snapshot_reads(&self) -> u64 {
        self.using.store(1, Relaxed);
        Loom::fence();
        let entry = self.snapshot.update(|pte| Some(pte.with(PteFlags::ACCESSED))).unwrap();
        let value = self.contents[entry.frame().number() as usize].load(Relaxed);
        self.using.store(0, Release);
        value
    }
}

impl World<Loom> for Machine {
    fn entry(&self, _: usize) -> Option<&Slot> {
        Some(&self.snapshot)
    }
    fn copy(&self, of: Frame) -> Option<Frame> {
        let copy = self.take()?;
        let value = self.contents[of.number() as usize].load(Relaxed);
        self.contents[copy.number() as usize].store(value, Relaxed);
        Some(copy)
    }
    fn discard(&self, copy: Frame) {
        self.give(copy.number() as u32);
    }
    fn leave_in_limbo(&self, copy: Frame, end_epoch: u64) {
        self.limbo.push(copy.number() as u32, end_epoch);
    }
    fn tear(&self, _: usize) -> Frame {
        panic!("there are enough frames")
    }
    fn flush(&self, _: u64) {
        Loom::fence();
        while self.using.load(Acquire) != 0 {
            Loom::relax();
        }
    }
    fn relax(&self) {
        Loom::relax();
    }
}

fn check(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

#[test]
fn a_reader_of_the_snapshot_never_sees_what_main_writes() {
    check(|| {
        let machine = Arc::new(Machine::new(true));
        let main = machine.clone();
        let main = thread::spawn(move || main.main_writes());
        assert_eq!(machine.snapshot_reads(), OLD);
        assert_eq!(machine.snapshot_reads(), OLD);
        main.join().unwrap();
        assert!(machine.main.load().is_writable());
        assert_eq!(machine.snapshot_reads(), OLD);
    });
}

#[test]
fn two_of_mains_processors_that_write_make_one_copy() {
    check(|| {
        let machine = Arc::new(Machine::new(true));
        let main = machine.clone();
        let main = thread::spawn(move || main.main_writes());
        machine.main_writes();
        main.join().unwrap();
        assert_eq!(machine.snapshot_reads(), OLD);
        assert_eq!(machine.free.load(Relaxed).count_ones(), 1);
        assert!(!machine.main.load().is_locked());
    });
}

#[test]
fn a_snapshot_that_writes_while_main_does_keeps_what_was() {
    check(|| {
        let machine = Arc::new(Machine::new(true));
        let main = machine.clone();
        let main = thread::spawn(move || main.main_writes());
        {
            let _reading = machine.latch.read(Loom::relax);
            write_by_snapshot(&*machine, 0, machine.epochs.of(0));
        }
        let entry = machine.snapshot.load();
        assert!(entry.is_writable() && entry.frame().number() != 0);
        assert_eq!(machine.snapshot_reads(), OLD);
        main.join().unwrap();
        assert_eq!(machine.snapshot_reads(), OLD);
        assert_eq!(machine.snapshot.load().frame(), entry.frame(), "the page was its own");
        machine.epochs.end(0);
        let mut waiting = Waiting::default();
        machine.limbo.reclaim(&mut waiting, &machine.epochs, |frame| machine.give(frame));
        assert_eq!(machine.free.load(Relaxed), 0b110, "a copy is lost");
    });
}

#[test]
fn a_copy_is_not_given_back_while_its_snapshot_is_active() {
    check(|| {
        let machine = Arc::new(Machine::new(true));
        let other = machine.clone();
        let reclaimer = thread::spawn(move || {
            let mut waiting = Waiting::default();
            other.limbo.reclaim(&mut waiting, &other.epochs, |frame| {
                // Another user takes the frame, and writes to it.
                other.contents[frame as usize].store(99, Relaxed);
                other.give(frame);
            });
            waiting
        });
        machine.main_writes();
        assert_eq!(machine.snapshot_reads(), OLD);
        {
            let _writing = machine.latch.write(Loom::relax);
            machine.epochs.end(0);
        }
        let mut waiting = reclaimer.join().unwrap();
        machine.limbo.reclaim(&mut waiting, &machine.epochs, |frame| machine.give(frame));
        assert_eq!(machine.free.load(Relaxed), 0b110, "a copy is lost");
    });
}

/// A snapshot is taken while main writes. With the latch held, pages are protected and then flushed. Main's earlier
/// writes must be in the snapshot, and its later writes must not.
#[test]
fn a_snapshot_that_begins_is_of_one_moment() {
    check(|| {
        let machine = Arc::new(Machine::new(false));
        let other = machine.clone();
        let main = thread::spawn(move || {
            // Either a store through a cached entry, for which a shootdown waits, or one that calls the handler.
            other.using.store(1, Relaxed);
            Loom::fence();
            if other.main.load().is_writable() {
                other.contents[0].store(NEW, Relaxed);
                other.using.store(0, Release);
            } else {
                other.using.store(0, Release);
                other.main_writes();
            }
        });
        {
            let _writing = machine.latch.write(Loom::relax);
            machine.main.update(|pte| Some(pte.without(PteFlags::WRITABLE))).unwrap();
            machine.epochs.begin(0);
            machine.flush(0);
        }
        let entry = machine.snapshot.load().frame().number() as usize;
        let first = machine.contents[entry].load(Relaxed);
        main.join().unwrap();
        let entry = machine.snapshot.load().frame().number() as usize;
        let last = machine.contents[entry].load(Relaxed);
        if machine.main.load().is_writable() {
            assert_eq!(last, OLD, "written after the snapshot was taken");
        } else {
            assert_eq!((first, last), (NEW, NEW), "written before it was taken");
        }
    });
}

#[test]
fn the_latch_keeps_readers_and_the_writer_apart() {
    check(|| {
        // Only the writer changes the number, in two steps.
        let shared = Arc::new((Latch::<Loom>::new(), U64::new(0), U64::new(0)));
        let other = shared.clone();
        let writer = thread::spawn(move || {
            let _writing = other.0.write(Loom::relax);
            other.1.store(1, Relaxed);
            other.2.store(1, Relaxed);
        });
        for _ in 0..2 {
            let _reading = shared.0.read(Loom::relax);
            assert_eq!(shared.1.load(Relaxed), shared.2.load(Relaxed), "in the middle of a change");
        }
        writer.join().unwrap();
    });
}
