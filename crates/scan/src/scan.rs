//! The description of a scan: its files, ranges and options.

use crate::board::UNIT;
use crate::limits::{MAX_FRAMES, MAX_PAGES_HELD, MAX_POOL_PAGES_HELD, SPARE_FRAMES};
use crate::memory::FRAME;
use crate::plan::Range;
use crate::source::Source;
use crate::{Error, Result};

/// A scan that [`Service::open`](crate::Service::open) opens.
#[derive(Debug)]
pub struct Scan {
    pub(crate) sources: Vec<Source>,
    pub(crate) ranges: Option<Vec<Range>>,
    pub(crate) page_size: usize,
    pub(crate) ring_bytes: usize,
    pub(crate) is_watched: bool,
    pub(crate) pages_held: usize,
}

/// The smallest page, in bytes.
pub const MIN_PAGE: usize = UNIT;

impl Scan {
    /// Scans all of these files, one after the other, in pages of 2 MiB.
    pub fn of<S: Into<Source>>(sources: impl IntoIterator<Item = S>) -> Self {
        let sources = sources.into_iter().map(Into::into).collect();
        Self {
            sources,
            ranges: None,
            page_size: FRAME,
            ring_bytes: 16 * FRAME,
            is_watched: true,
            pages_held: 1,
        }
    }

    /// Scans these ranges only, in this order. The worker may add more later. At most
    /// [`MAX_PENDING_RANGES`](crate::MAX_PENDING_RANGES) may be announced and not read yet.
    #[must_use]
    pub fn ranges(mut self, ranges: impl Into<Vec<Range>>) -> Self {
        self.ranges = Some(ranges.into());
        self
    }

    /// Sets the size of pages: a power of two from 4 KiB to 2 MiB. A page never crosses a multiple of its size in its file.
    ///
    /// # Errors
    /// The size is not a power of two from 4 KiB to 2 MiB.
    pub fn page_size(mut self, bytes: usize) -> Result<Self> {
        if !bytes.is_power_of_two() || !(MIN_PAGE..=FRAME).contains(&bytes) {
            return Err(Error::Invalid(format!(
                "pages of {bytes} bytes: a power of two from 4096 to {FRAME}"
            )));
        }
        self.page_size = bytes;
        Ok(self)
    }

    /// Sets the memory of the channel, a multiple of 2 MiB and at least 4 MiB; 32 MiB by default.
    ///
    /// # Errors
    /// The size is more than 1 GiB, or less than 4 MiB.
    pub fn ring_bytes(mut self, bytes: usize) -> Result<Self> {
        if !(2 * FRAME..=MAX_FRAMES * FRAME).contains(&bytes) {
            return Err(Error::Invalid(format!("a ring of {bytes} bytes: 4 MiB to 1 GiB")));
        }
        self.ring_bytes = bytes;
        Ok(self)
    }

    /// Does not watch files for changes: each byte is read once and delivered once, and no page is withdrawn. Each page has the
    /// time when its read began, and tells whether it is [stable](crate::Page::is_stable).
    /// [`Channel::unchanged`](crate::Channel::unchanged) tells whether its file is unchanged. The worker judges its pages by
    /// these. The service continues to read a file whose name is replaced or deleted. Pages that a truncated file does not have
    /// are errors.
    #[must_use]
    pub fn unwatched(mut self) -> Self {
        self.is_watched = false;
        self
    }

    /// Sets the number of pages that the worker may hold at a time; 1 by default. The channel's memory must have two more frames
    /// of 2 MiB than that, because each of these pages may be in another frame.
    ///
    /// # Errors
    /// The number is 0, or more than [`MAX_PAGES_HELD`].
    pub fn pages_held(mut self, pages: usize) -> Result<Self> {
        check_pages_held(pages)?;
        self.pages_held = pages;
        Ok(self)
    }

    /// The number of frames of the channel. They must be enough for the pages that may be held.
    pub(crate) fn frames(&self) -> Result<usize> {
        let frames = self.ring_bytes.div_ceil(FRAME).max(2);
        let needed = self.pages_held + SPARE_FRAMES;
        if self.pages_held > 1 && frames < needed {
            return Err(Error::Invalid(format!(
                "a ring of {} bytes, of which {} pages may be held: it has {frames} frames of 2 MiB and needs {needed}, \
                 so ask for {} bytes or hold fewer pages",
                self.ring_bytes,
                self.pages_held,
                needed * FRAME
            )));
        }
        Ok(frames)
    }
}

/// Checks the number of pages of a channel that may be held. No other limit of held pages is higher.
pub(crate) fn check_pages_held(pages: usize) -> Result<()> {
    check_pages(pages, MAX_PAGES_HELD, "")
}

/// Checks the number of pages that each worker of a pool may hold.
pub(crate) fn check_pool_pages_held(pages: usize) -> Result<()> {
    check_pages(pages, MAX_POOL_PAGES_HELD, " in a pool")
}

fn check_pages(pages: usize, most: usize, place: &str) -> Result<()> {
    if (1..=most).contains(&pages) {
        return Ok(());
    }
    Err(Error::Invalid(format!("{pages} pages to be held at a time{place}: 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_pages_held_are_refused_one_past_them() {
        let scan = || Scan::of(["x"]);
        assert!(scan().pages_held(0).is_err() && scan().pages_held(MAX_PAGES_HELD + 1).is_err());
        assert!(scan().pages_held(MAX_PAGES_HELD).is_ok());
        let ring = |frames: usize, held| {
            scan().ring_bytes(frames * FRAME).unwrap().pages_held(held).unwrap().frames()
        };
        assert_eq!(ring(2, 1).unwrap(), 2);
        assert_eq!(ring(4, 2).unwrap(), 4);
        assert_eq!(ring(MAX_FRAMES, MAX_PAGES_HELD).unwrap(), MAX_FRAMES);
        for (frames, held) in [(3, 2), (MAX_FRAMES - 1, MAX_PAGES_HELD)] {
            let error = ring(frames, held).unwrap_err().to_string();
            assert!(error.contains(&format!("needs {}", held + SPARE_FRAMES)), "{error}");
        }
    }
}
