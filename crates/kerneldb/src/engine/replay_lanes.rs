//! Into how many lanes recovery divides its work.

use crate::limits::RECOVERY_WORKERS_MAX;

/// Number of threads that apply logged changes, at least 1.
pub(crate) fn worker_count() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(RECOVERY_WORKERS_MAX)
}

/// Number of lanes of one partition: together the partitions have at least one lane for each worker.
pub(crate) fn lanes_per_partition(partitions: u32) -> u32 {
    (worker_count() as u32).div_ceil(partitions)
}
