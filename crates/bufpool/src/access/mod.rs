//! Access of a thread to a page.
//!
//! - [`pin`]: takes a page;
//! - [`fault`]: reads an absent page into memory;
//! - [`prefetch`]: reads pages in before a thread needs them, with the thread in [`prefetch_queue`];
//! - [`guard`]: the guards of a thread that holds or reads a page;
//! - [`payload`]: the bytes of a page, which one thread changes while others read them;
//! - [`backoff`]: waits for a page that another thread holds.

pub(crate) mod backoff;
pub(crate) mod fault;
pub(crate) mod guard;
pub(crate) mod payload;
pub(crate) mod pin;
pub(crate) mod prefetch;
pub(crate) mod prefetch_queue;
#[cfg(test)]
mod races;
