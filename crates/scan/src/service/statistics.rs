//! The statistics of a service.

/// The amounts that a service has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes that were read from files.
    pub bytes_read: u64,
    /// How often the control loop was awake.
    pub rounds: u64,
    /// Channels that are open now, members of pools among them.
    pub channels: u64,
    /// Pools that there are now: those that can be joined, and those that still have members.
    pub pools: u64,
    /// Frames of pools that workers have now, or that are read for them.
    pub pool_frames: u64,
}

impl Statistics {
    /// As numbers, for another process.
    pub(crate) fn to_words(self) -> [u64; 5] {
        [self.bytes_read, self.rounds, self.channels, self.pools, self.pool_frames]
    }

    /// From these.
    pub(crate) fn from_words([bytes_read, rounds, channels, pools, pool_frames]: [u64; 5]) -> Self {
        Self { bytes_read, rounds, channels, pools, pool_frames }
    }
}
