//! The statistics of a service.

/// The amounts that a service has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes that were read from files.
    pub bytes_read: u64,
    /// Number of times that the control loop woke.
    pub rounds: u64,
    /// Channels that are open now, including members of pools.
    pub channels: u64,
    /// Pools that exist now: those that can be joined, and those that still have members.
    pub pools: u64,
    /// Frames of pools that workers have now, or that are being read for them.
    pub pool_frames: u64,
}

impl Statistics {
    /// The statistics as numbers, for another process.
    pub(crate) fn to_words(self) -> [u64; 5] {
        [self.bytes_read, self.rounds, self.channels, self.pools, self.pool_frames]
    }

    /// Makes the statistics from these numbers.
    pub(crate) fn from_words([bytes_read, rounds, channels, pools, pool_frames]: [u64; 5]) -> Self {
        Self { bytes_read, rounds, channels, pools, pool_frames }
    }
}
