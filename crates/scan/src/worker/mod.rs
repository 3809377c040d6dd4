//! The worker's side (UzicIO, paper 3.3): the only access to the data.
//!
//! In steady state nothing here makes a system call or copies a byte: pages are taken and returned by atomic operations on
//! the board, and read where the device put them.

mod channel;
mod lender;
mod owned;
mod page;
mod pieces;
mod stream;

pub(crate) use channel::Memory;
pub use channel::{Channel, Got, OwnedGot, Statistics};
pub use owned::OwnedPage;
pub use page::{Delivered, Page};
pub use pieces::Piece;
pub use stream::PageStream;

use std::os::fd::OwnedFd;

use crate::Result;
use crate::board::Board;
use crate::plan::Range;

/// The result of a cancellation of ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cancelled {
    /// Number of cancelled bytes of which the worker had no frame.
    pub bytes: u64,
    /// The worker must skip these bytes, which are in chunks before this number.
    pub before: u64,
}

/// A channel's connection to its service. Dropping it closes the channel. Any thread that returns a page may ring. The other
/// methods are called only by the channel's worker, one at a time.
pub(crate) trait Link: Send + Sync {
    /// Adds ranges to the scan.
    fn notify_ranges(&self, ranges: &[Range]) -> Result<()>;

    /// Cancels ranges of the scan.
    fn cancel_ranges(&self, ranges: &[Range]) -> Result<Cancelled>;

    /// The descriptor that the service makes readable for a worker that watches. It is readable at first.
    fn descriptor(&self, board: &Board) -> Result<OwnedFd>;

    /// Whether the service still reads.
    fn is_alive(&self) -> bool;

    /// Wakes the control loop.
    fn ring(&self);
}
