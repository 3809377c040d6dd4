//! What entries say, read whole. Where it is kept word by word is [`entry`](super::entry).

use std::ops::Range;

use crate::memory::FRAME;

/// Bytes of a frame that are good or bad as one: the smallest page.
pub const UNIT: usize = 4096;
/// Units of a frame.
pub const UNITS: usize = FRAME / UNIT;

/// Why a unit of a frame has no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happened, from 1 to 255.
    pub code: u32,
    /// More about it, by its code: an error number, or which byte of the unit; less than 2^24.
    pub detail: u32,
}

/// What is wrong with the units of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Box<[Option<Fault>; UNITS]>);

impl Faults {
    /// Nothing.
    pub fn none() -> Self {
        Self(Box::new([None; UNITS]))
    }

    /// The same everywhere.
    pub fn everywhere(fault: Fault) -> Self {
        Self(Box::new([Some(fault); UNITS]))
    }

    /// All units in which some of these bytes are have this fault, whatever they had.
    pub fn mark(&mut self, bytes: Range<usize>, fault: Fault) {
        self.0[bytes.start / UNIT..bytes.end.div_ceil(UNIT)].fill(Some(fault));
    }

    /// Unit by unit.
    pub fn units(&self) -> &[Option<Fault>] {
        &*self.0
    }
}

/// A file's stamp, as numbers.
pub type StampWords = [u64; 5];

/// What a worker judges the bytes of a segment by, in a scan that does not watch its files. In others it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgment {
    /// The file's stamp from before the bytes were read.
    pub stamp: Option<StampWords>,
    /// The file had that stamp after they were read, too, and it proves that nobody wrote in between.
    pub is_stable: bool,
}

/// Bytes of a file that are in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which file of the scan.
    pub file: u32,
    /// How many bytes.
    pub len: u32,
    /// Where they are in the file.
    pub offset: u64,
    /// Where they are in the frame; the byte of the file that is a multiple of [`UNIT`] is at one in the frame, too.
    pub at: u32,
}
