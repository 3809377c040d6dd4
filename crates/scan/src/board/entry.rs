//! An entry of the buffer status table, the segments of files that its frame has, and what is wrong with them.
//!
//! All fields are atomic because the other side may be another process, which need not keep to the rules: what is read
//! may then be wrong, never undefined. The service never reads back what it wrote here. Between processes that keep to
//! the rules the entry's [`Word`] orders everything else.

use super::content::{Fault, Judgment, Segment};
use super::state::Word;
use super::words::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One page of the worker's view: a frame of the pool with data of files. What of it could not be had is said unit by
/// unit elsewhere ([`FaultWord`]), so that the rest is not lost with it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Entry {
    /// Who may use this entry.
    pub word: Word,
    frame: AtomicU32,
    segments: AtomicU32,
    faulty: AtomicU32,
    read_began_ns: AtomicU64,
    turn: AtomicU64,
}

/// What an entry says of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Which one.
    pub frame: u32,
    /// How many segments it has.
    pub segments: u32,
    /// Whether some of its units have faults.
    pub faulty: bool,
    /// When its reading began, by the kernel's monotonic clock; 0 in a scan that watches its files.
    pub read_began_ns: u64,
}

/// Bits of a turn that are the entry.
const TURN_SHIFT: u32 = 16;

impl Entry {
    /// An empty entry.
    pub fn new() -> Self {
        Self {
            word: Word::new(),
            frame: AtomicU32::new(0),
            segments: AtomicU32::new(0),
            faulty: AtomicU32::new(0),
            read_began_ns: AtomicU64::new(0),
            turn: AtomicU64::new(0),
        }
    }

    /// Service, while the entry is empty.
    pub fn describe(&self, content: Content) {
        self.frame.store(content.frame, Relaxed);
        self.segments.store(content.segments, Relaxed);
        self.faulty.store(content.faulty.into(), Relaxed);
        self.read_began_ns.store(content.read_began_ns, Relaxed);
    }

    /// Service, before it publishes a chunk of a scan in order: in which entry the chunk is. This is said in the entry whose
    /// place is the chunk's number modulo their count, because the chunk's own entry is any that was free: workers that hold
    /// pages return entries in any order.
    pub fn set_turn(&self, number: u64, slot: usize) {
        self.turn.store((number + 1) << TURN_SHIFT | slot as u64, Relaxed);
    }

    /// Worker: in which entry a chunk is, if that was said.
    pub fn turn(&self, number: u64) -> Option<usize> {
        let turn = self.turn.load(Relaxed);
        (turn >> TURN_SHIFT == number + 1).then_some((turn & ((1 << TURN_SHIFT) - 1)) as usize)
    }

    /// Worker, while the entry is in use.
    pub fn content(&self) -> Content {
        Content {
            frame: self.frame.load(Relaxed),
            segments: self.segments.load(Relaxed),
            faulty: self.faulty.load(Relaxed) != 0,
            read_began_ns: self.read_began_ns.load(Relaxed),
        }
    }
}

/// Where it is said whether a unit of a frame has its data; of an entry that is not faulty they mean nothing.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct FaultWord(AtomicU32);

const CODE: u32 = 24;

impl FaultWord {
    /// Service, while the entry is empty.
    pub fn set(&self, fault: Option<Fault>) {
        let word = fault.map_or(0, |fault| fault.code << CODE | fault.detail & ((1 << CODE) - 1));
        self.0.store(word, Relaxed);
    }

    /// Worker, while the entry is in use.
    pub fn get(&self) -> Option<Fault> {
        let word = self.0.load(Relaxed);
        (word != 0).then_some(Fault { code: word >> CODE, detail: word & ((1 << CODE) - 1) })
    }
}

/// Where a segment is described.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentWords {
    file: AtomicU32,
    len: AtomicU32,
    offset: AtomicU64,
    at: AtomicU32,
    flags: AtomicU32,
    stamp: [AtomicU64; 5],
}

/// The segment has a stamp.
const STAMPED: u32 = 1;
/// It is stable.
const STABLE: u32 = 2;

impl SegmentWords {
    /// Service, while the entry is empty.
    pub fn set(&self, segment: Segment, judgment: Judgment) {
        self.file.store(segment.file, Relaxed);
        self.len.store(segment.len, Relaxed);
        self.offset.store(segment.offset, Relaxed);
        self.at.store(segment.at, Relaxed);
        let Judgment { stamp, is_stable } = judgment;
        let flags = if stamp.is_some() { STAMPED } else { 0 } | if is_stable { STABLE } else { 0 };
        self.flags.store(flags, Relaxed);
        for (word, value) in self.stamp.iter().zip(stamp.into_iter().flatten()) {
            word.store(value, Relaxed);
        }
    }

    /// Worker, while the entry is in use.
    pub fn judgment(&self) -> Judgment {
        let flags = self.flags.load(Relaxed);
        let stamp = (flags & STAMPED != 0).then(|| std::array::from_fn(|at| self.stamp[at].load(Relaxed)));
        Judgment { stamp, is_stable: flags & STABLE != 0 }
    }

    /// Worker, while the entry is in use.
    pub fn get(&self) -> Segment {
        Segment {
            file: self.file.load(Relaxed),
            len: self.len.load(Relaxed),
            offset: self.offset.load(Relaxed),
            at: self.at.load(Relaxed),
        }
    }
}
