//! What to scan, and how.

use crate::board::UNIT;
use crate::memory::FRAME;
use crate::plan::Range;
use crate::source::Source;
use crate::{Error, Result};

/// A scan to be opened by [`Service::open`](crate::Service::open).
#[derive(Debug)]
pub struct Scan {
    pub(crate) sources: Vec<Source>,
    pub(crate) ranges: Option<Vec<Range>>,
    pub(crate) page_size: usize,
    pub(crate) ring_bytes: usize,
}

/// The smallest page, in bytes.
pub const MIN_PAGE: usize = UNIT;

impl Scan {
    /// All of these files, one after the other, in pages of 2 MiB.
    pub fn of<S: Into<Source>>(sources: impl IntoIterator<Item = S>) -> Self {
        let sources = sources.into_iter().map(Into::into).collect();
        Self { sources, ranges: None, page_size: FRAME, ring_bytes: 16 * FRAME }
    }

    /// These ranges only, in this order; more may be added later.
    #[must_use]
    pub fn ranges(mut self, ranges: impl Into<Vec<Range>>) -> Self {
        self.ranges = Some(ranges.into());
        self
    }

    /// The size of pages: a power of two from 4 KiB to 2 MiB. A page never crosses a multiple of it in its file.
    ///
    /// # Errors
    /// It is none of these.
    pub fn page_size(mut self, bytes: usize) -> Result<Self> {
        if !bytes.is_power_of_two() || !(MIN_PAGE..=FRAME).contains(&bytes) {
            return Err(Error::Invalid(format!(
                "pages of {bytes} bytes: a power of two from 4096 to {FRAME}"
            )));
        }
        self.page_size = bytes;
        Ok(self)
    }

    /// The memory of the channel: 32 MiB by default. A multiple of 2 MiB, 4 MiB at least.
    ///
    /// # Errors
    /// It is more than 1 GiB, or less than 4 MiB.
    pub fn ring_bytes(mut self, bytes: usize) -> Result<Self> {
        if !(2 * FRAME..=512 * FRAME).contains(&bytes) {
            return Err(Error::Invalid(format!("a ring of {bytes} bytes: 4 MiB to 1 GiB")));
        }
        self.ring_bytes = bytes;
        Ok(self)
    }

    /// As many frames.
    pub(crate) fn frames(&self) -> usize {
        self.ring_bytes.div_ceil(FRAME).max(2)
    }
}
