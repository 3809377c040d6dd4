//! What entries say, read whole. Where it is kept word by word is [`entry`](super::entry).

/// Why an entry has no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happened; never 0.
    pub code: u32,
    /// In which file of the scan.
    pub file: u32,
    /// Where in it.
    pub offset: u64,
    /// The error number, if there is one.
    pub detail: u32,
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
    /// Where they are in the frame.
    pub at: u32,
}
