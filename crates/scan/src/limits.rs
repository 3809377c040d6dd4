//! Limits, and what happens at them.

/// Pages of one channel that may be out at a time. More are refused ([`Scan::pages_held`](crate::Scan::pages_held)).
pub const MAX_PAGES_HELD: usize = 4096;

/// Frames that a channel's memory has beside those in which its pages may be out, so that reading goes on while all of them are.
/// A channel with less memory is not opened.
pub const SPARE_FRAMES: usize = 2;
