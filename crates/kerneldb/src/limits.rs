//! Limits of the database that users can meet, and what happens at each of them.

/// Highest effort of the active expiry ([`crate::Database::set_expire_effort`]); a higher one is
/// [`crate::Error::Config`]. 0 switches active expiry off.
pub const EXPIRE_EFFORT_MAX: u32 = 10;

/// Most checkpoints and verifications that clients of the server may wait for, besides those that run. A
/// further SAVE, BEDPLATE CHECKPOINT, BEDPLATE VERIFY or SHUTDOWN SAVE gets an error.
pub const JOBS_WAITING: usize = 64;
