//! An entry of the buffer status table, the file segments in its frame, and the faults of its frame.
//!
//! All fields are atomic, because the other side may be another process that breaks the rules. A read may then return a wrong
//! value, but it is never undefined behaviour. The service never reads back the fields that it wrote here. Between processes that
//! keep the rules, the entry's [`Word`] orders all other accesses.

use super::content::{Fault, Judgment, Segment};
use super::state::Word;
use super::words::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One page of the worker's view: a frame of the pool that holds data of files. The service records unreadable units separately
/// ([`FaultWord`]), so the worker can still use the other units.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Entry {
    /// The state, which says which side may access the entry.
    pub word: Word,
    frame: AtomicU32,
    segments: AtomicU32,
    faulty: AtomicU32,
    read_began_ns: AtomicU64,
    turn: AtomicU64,
}

/// The description of the frame in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The number of the frame.
    pub frame: u32,
    /// Number of segments in the frame.
    pub segments: u32,
    /// Whether at least one unit of the frame has a fault.
    pub faulty: bool,
    /// When the read of the frame began, in nanoseconds of the kernel's monotonic clock; 0 in a scan that watches its files.
    pub read_began_ns: u64,
}

/// Number of low bits of a turn that hold the index of the entry. The higher bits hold the chunk's number plus 1.
const TURN_SHIFT: u32 = 16;

impl Entry {
    /// Creates an empty entry.
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

    /// Service side. The entry must be empty.
    pub fn describe(&self, content: Content) {
        self.frame.store(content.frame, Relaxed);
        self.segments.store(content.segments, Relaxed);
        self.faulty.store(content.faulty.into(), Relaxed);
        self.read_began_ns.store(content.read_began_ns, Relaxed);
    }

    /// Service side: records which entry holds a chunk of an ordered scan. The service must call this before it publishes the
    /// chunk. It must call this on the entry whose index is the chunk's number modulo the number of entries. A chunk can be in
    /// any entry, because workers that hold pages return entries in any order.
    pub fn set_turn(&self, number: u64, slot: usize) {
        self.turn.store((number + 1) << TURN_SHIFT | slot as u64, Relaxed);
    }

    /// Worker side: the index of the entry that holds a chunk, if the service has recorded it here.
    pub fn turn(&self, number: u64) -> Option<usize> {
        let turn = self.turn.load(Relaxed);
        (turn >> TURN_SHIFT == number + 1).then_some((turn & ((1 << TURN_SHIFT) - 1)) as usize)
    }

    /// Worker side. The entry must be in use.
    pub fn content(&self) -> Content {
        Content {
            frame: self.frame.load(Relaxed),
            segments: self.segments.load(Relaxed),
            faulty: self.faulty.load(Relaxed) != 0,
            read_began_ns: self.read_began_ns.load(Relaxed),
        }
    }
}

/// The fault of one unit of a frame, or 0. The words of an entry that is not faulty are meaningless.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct FaultWord(AtomicU32);

const CODE: u32 = 24;

impl FaultWord {
    /// Service side. The entry must be empty.
    pub fn set(&self, fault: Option<Fault>) {
        let word = fault.map_or(0, |fault| fault.code << CODE | fault.detail & ((1 << CODE) - 1));
        self.0.store(word, Relaxed);
    }

    /// Worker side. The entry must be in use.
    pub fn get(&self) -> Option<Fault> {
        let word = self.0.load(Relaxed);
        (word != 0).then_some(Fault { code: word >> CODE, detail: word & ((1 << CODE) - 1) })
    }
}

/// A segment and its judgment, as atomic words.
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
/// The segment's judgment is stable.
const STABLE: u32 = 2;

impl SegmentWords {
    /// Service side. The entry must be empty.
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

    /// Worker side. The entry must be in use.
    pub fn judgment(&self) -> Judgment {
        let flags = self.flags.load(Relaxed);
        let stamp = (flags & STAMPED != 0).then(|| std::array::from_fn(|at| self.stamp[at].load(Relaxed)));
        Judgment { stamp, is_stable: flags & STABLE != 0 }
    }

    /// Worker side. The entry must be in use.
    pub fn get(&self) -> Segment {
        Segment {
            file: self.file.load(Relaxed),
            len: self.len.load(Relaxed),
            offset: self.offset.load(Relaxed),
            at: self.at.load(Relaxed),
        }
    }
}
