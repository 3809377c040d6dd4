//! The plain values that an entry describes. [`entry`](super::entry) stores them as atomic words.

use std::ops::Range;

use crate::memory::FRAME;

/// Bytes of a unit, which is either readable or faulty as a whole. It is the size of the smallest page.
pub const UNIT: usize = 4096;
/// Number of units in a frame.
pub const UNITS: usize = FRAME / UNIT;

/// The reason why a unit of a frame has no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault, from 1 to 255.
    pub code: u32,
    /// A detail that depends on the code: an error number, or the index of a byte in the unit. It is less than 2^24.
    pub detail: u32,
}

/// The faults of a frame, one optional fault per unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Box<[Option<Fault>; UNITS]>);

impl Faults {
    /// No unit has a fault.
    pub fn none() -> Self {
        Self(Box::new([None; UNITS]))
    }

    /// Every unit has the same fault.
    pub fn everywhere(fault: Fault) -> Self {
        Self(Box::new([Some(fault); UNITS]))
    }

    /// Sets this fault for every unit that overlaps these bytes. It replaces earlier faults of these units.
    pub fn mark(&mut self, bytes: Range<usize>, fault: Fault) {
        self.0[bytes.start / UNIT..bytes.end.div_ceil(UNIT)].fill(Some(fault));
    }

    /// The fault of each unit, in the order of the units.
    pub fn units(&self) -> &[Option<Fault>] {
        &*self.0
    }
}

/// A file's stamp, as five numbers.
pub type StampWords = [u64; 5];

/// The evidence by which a worker decides whether the bytes of a segment are consistent. The service fills it in scans that do
/// not watch their files; in other scans it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgment {
    /// The file's stamp before the service read the bytes.
    pub stamp: Option<StampWords>,
    /// The file had the same stamp after the read, and the equal stamps prove that nobody wrote in between.
    pub is_stable: bool,
}

/// A range of bytes of a file that is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The number of the file in the scan.
    pub file: u32,
    /// Length in bytes.
    pub len: u32,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Offset in the frame, in bytes. It is congruent to the file offset modulo [`UNIT`].
    pub at: u32,
}
