//! Limits of the server, and what happens at each of them.

/// Most checkpoints and verifications that clients of the server may wait for, besides those that run. A
/// further SAVE, BEDPLATE CHECKPOINT, BEDPLATE VERIFY or SHUTDOWN SAVE gets an error.
pub const JOBS_WAITING: usize = 64;
