//! Detection of forked children.
//!
//! The mark is a page that the kernel clears in forked children. This detects every kind of fork without a fork
//! handler.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, madvise};

use crate::error::{Error, Result};
use crate::memory::mapping::Mapping;

/// The mark of one process.
#[derive(Debug)]
pub struct Mark(Mapping);

impl Mark {
    /// Marks this process.
    pub fn new() -> Result<Mark> {
        let page = Mapping::new(4096, "a mark of this process")?;
        // SAFETY: the page was just made, and is empty.
        unsafe { madvise(page.base().cast(), page.bytes(), Advice::LinuxWipeOnFork) }
            .map_err(|error| Error::Memory { what: "a mark of this process", source: error.into() })?;
        let mark = Mark(page);
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    /// Whether the caller is in a forked child of the marked process.
    pub fn is_forked(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped as long as the mark exists, and contains only this word.
        unsafe { &*self.0.base().cast() }
    }
}
