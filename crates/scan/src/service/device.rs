//! The state of a device: how fast it delivers a request, and how much it has to do.

use super::rates::Rate;

/// Chunks that may be read from a device at a time, for all channels: more would only wait in its queue.
const MOST: usize = 64;

/// A device.
#[derive(Debug, Default)]
pub struct Device {
    /// S_d of the paper: bytes of one request over the time that it took, waiting in the device's queue included.
    pub rate: Rate,
    /// Chunks being read from it.
    pub flying: usize,
}

impl Device {
    /// Whether no more may be read from it at the moment.
    pub fn is_full(&self) -> bool {
        self.flying >= MOST
    }
}
