//! An entry of the buffer status table, and the segments of files that its frame has.
//!
//! All fields are atomic because the other side may be another process, which need not keep to the rules: what is read
//! may then be wrong, never undefined. The service never reads back what it wrote here. Between processes that keep to
//! the rules the entry's [`Word`] orders everything else.

use super::content::{Fault, Segment};
use super::state::Word;
use super::words::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One page of the worker's view: a frame of the pool with data of files, or an error in the place of the data.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Entry {
    /// Who may use this entry.
    pub word: Word,
    frame: AtomicU32,
    segments: AtomicU32,
    error: AtomicU32,
    error_file: AtomicU32,
    error_offset: AtomicU64,
    error_detail: AtomicU32,
}

impl Entry {
    /// An empty entry.
    pub fn new() -> Self {
        Self {
            word: Word::new(),
            frame: AtomicU32::new(0),
            segments: AtomicU32::new(0),
            error: AtomicU32::new(0),
            error_file: AtomicU32::new(0),
            error_offset: AtomicU64::new(0),
            error_detail: AtomicU32::new(0),
        }
    }

    /// Service, while the entry is empty: data of so many segments, in this frame.
    pub fn describe(&self, frame: u32, segments: u32) {
        self.error.store(0, Relaxed);
        self.frame.store(frame, Relaxed);
        self.segments.store(segments, Relaxed);
    }

    /// Service, while the entry is empty: an error.
    pub fn describe_fault(&self, fault: Fault) {
        self.error_file.store(fault.file, Relaxed);
        self.error_offset.store(fault.offset, Relaxed);
        self.error_detail.store(fault.detail, Relaxed);
        self.error.store(fault.code, Relaxed);
    }

    /// Worker, while the entry is in use: its frame and the number of its segments, or what went wrong.
    pub fn content(&self) -> Result<(u32, u32), Fault> {
        match self.error.load(Relaxed) {
            0 => Ok((self.frame.load(Relaxed), self.segments.load(Relaxed))),
            code => Err(Fault {
                code,
                file: self.error_file.load(Relaxed),
                offset: self.error_offset.load(Relaxed),
                detail: self.error_detail.load(Relaxed),
            }),
        }
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
    unused: AtomicU32,
}

impl SegmentWords {
    /// Service, while the entry is empty.
    pub fn set(&self, segment: Segment) {
        self.file.store(segment.file, Relaxed);
        self.len.store(segment.len, Relaxed);
        self.offset.store(segment.offset, Relaxed);
        self.at.store(segment.at, Relaxed);
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
