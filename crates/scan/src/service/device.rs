//! The state of a device: its speed, and its load.

use super::rates::Rate;

/// Maximum number of chunks that are read from a device at a time, for all channels. More would only wait in its queue.
const MOST: usize = 64;

/// A device.
#[derive(Debug, Default)]
pub struct Device {
    /// S_d of the paper: bytes of one request over the time that it took, including the wait in the device's queue.
    pub rate: Rate,
    /// Number of chunks in flight.
    pub flying: usize,
}

impl Device {
    /// Whether no further chunk may be read from it at the moment.
    pub fn is_full(&self) -> bool {
        self.flying >= MOST
    }
}
