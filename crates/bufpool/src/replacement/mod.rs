//! Page replacement: the choice of the pages that leave memory, and the moment.
//!
//! - [`evict`]: evicts pages and takes their frames;
//! - [`provider`]: threads that evict before a frame is needed;
//! - [`usage_count`]: counts the uses of a page, which determine how long it stays.

pub(crate) mod evict;
pub(crate) mod provider;
pub(crate) mod usage_count;
