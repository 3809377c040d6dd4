//! Which pages leave memory, and when.
//!
//! - [`evict`]: takes frames from pages;
//! - [`provider`]: threads that do so before a frame is needed;
//! - [`usage_count`]: how often a page was used, which is how long it stays.

pub(crate) mod evict;
pub(crate) mod provider;
pub(crate) mod usage_count;
