//! The worker's side (UzicIO, paper 3.3): the only way to the data.
//!
//! In steady state nothing here makes a system call or copies a byte: pages are taken and returned by atomic operations on
//! the board, and read where the device put them.

mod channel;
mod page;
mod pieces;

pub(crate) use channel::Memory;
pub use channel::{Channel, Got, Statistics};
pub use page::Page;
pub use pieces::Piece;

use crate::Result;
use crate::plan::Range;

/// A channel's way to its service; dropping it closes the channel.
pub(crate) trait Link: Send {
    /// Adds ranges to the scan.
    fn notify_ranges(&mut self, ranges: &[Range]) -> Result<()>;

    /// Whether the service still reads.
    fn is_alive(&mut self) -> bool;

    /// Wakes the control loop.
    fn ring(&self);
}
