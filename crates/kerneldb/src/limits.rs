//! Limits of the database that users can meet, and what happens at each of them.

/// Highest effort of the active expiry ([`crate::Database::set_expire_effort`]); a higher one is
/// [`crate::Error::Config`]. 0 switches active expiry off.
pub const EXPIRE_EFFORT_MAX: u32 = 10;
