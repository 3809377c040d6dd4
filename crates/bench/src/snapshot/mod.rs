//! Memory snapshots (paper 4, 7.3): the costs of taking one and of writes after it, and the effects on a server and
//! on transactions beside analytic scans.
//!
//! Memory is slow when a machine touches it for the first time. So every side's memory is written before the
//! measurement, and stays the same memory for all rounds.

pub(crate) mod fault;
mod held;
pub(crate) mod htap;
pub(crate) mod latency;
mod machine_memory;
pub(crate) mod redis;
#[cfg(target_arch = "x86_64")]
pub(crate) mod ring0;
mod saving;
mod sides;
mod valkey;
