//! A page that is safe to read: it is returned when it is dropped.

use super::{Channel, Piece};
use crate::Result;

/// A page, in any of its types.
pub trait Delivered {
    /// The bytes of the page.
    fn piece(&self) -> &Piece;
}

impl Delivered for Piece {
    fn piece(&self) -> &Piece {
        self
    }
}

impl Delivered for Page<'_> {
    fn piece(&self) -> &Piece {
        &self.piece
    }
}

/// Some bytes of a file, in the memory that the device wrote them to. Dropping it returns it.
#[derive(Debug)]
pub struct Page<'a> {
    channel: &'a mut Channel,
    piece: Piece,
}

impl<'a> Page<'a> {
    pub(super) fn new(channel: &'a mut Channel, piece: Piece) -> Self {
        Self { channel, piece }
    }

    /// The file of the scan, counted from 0.
    pub fn file(&self) -> u32 {
        self.piece.file
    }

    /// The offset of the bytes in the file.
    pub fn offset(&self) -> u64 {
        self.piece.offset
    }

    /// The time before the read of these bytes was submitted, in nanoseconds of the kernel's monotonic clock. It is 0 in a scan
    /// that watches its files. A daemon in another time namespace has another offset of this clock, and the time is the daemon's.
    pub fn read_began(&self) -> u64 {
        self.piece.read_began_ns
    }

    /// Whether the file had the same time stamps before and after the read, and these prove that no process wrote in between.
    /// Such a page is not torn. `false` in a scan that watches its files.
    pub fn is_stable(&self) -> bool {
        self.piece.is_stable()
    }

    /// The same as [`Channel::unchanged`].
    ///
    /// # Errors
    /// Likewise.
    pub fn unchanged(&self) -> Result<bool> {
        self.channel.unchanged(self)
    }
}

impl std::ops::Deref for Page<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the channel checked that they are in its memory. The service does not write to them until the page is returned,
        // which needs the end of this object.
        unsafe { std::slice::from_raw_parts(self.piece.start, self.piece.len) }
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        self.channel.put_page().expect("the page is out");
    }
}
