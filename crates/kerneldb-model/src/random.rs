//! Random numbers of the schedule, so that a failing execution can be repeated.

use shuttle::rand::{RngCore, thread_rng};

/// A number below `bound`, chosen by the scheduler.
pub fn below(bound: u64) -> u64 {
    thread_rng().next_u64() % bound
}
