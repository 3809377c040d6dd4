//! Into how many lanes recovery divides its work: how many batches a database needs follows from it.

/// Most worker threads. More would wait for the thread that decodes.
const WORKERS_MAX: usize = 8;

/// Number of threads that apply logged changes, at least 1.
pub(crate) fn worker_count() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(WORKERS_MAX)
}

/// Number of lanes of one partition: together the partitions have at least one lane for each worker.
pub(crate) fn lanes_per_partition(partitions: u32) -> u32 {
    (worker_count() as u32).div_ceil(partitions)
}

/// Number of batches that a database needs: for each lane, one that is filled and one that is applied.
pub(crate) fn batch_count(partitions: u32) -> u32 {
    2 * partitions * lanes_per_partition(partitions)
}
