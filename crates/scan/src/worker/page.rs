//! A page that is safe to read: it is returned when it is dropped.

use super::{Channel, Piece};
use crate::Result;

/// A page, however it was handed out.
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

    /// Which file of the scan, counted from 0.
    pub fn file(&self) -> u32 {
        self.piece.file
    }

    /// Where the bytes are in the file.
    pub fn offset(&self) -> u64 {
        self.piece.offset
    }

    /// When the read of these bytes began, in nanoseconds of the kernel's monotonic clock: before it was submitted. 0 in a scan
    /// that watches its files. A daemon in another time namespace has another offset of this clock, and it is the daemon's.
    pub fn read_began(&self) -> u64 {
        self.piece.read_began_ns
    }

    /// Whether the file had the same time stamps before and after the read, and these prove that nobody wrote in between: so the
    /// page is not torn. `false` in a scan that watches its files, where no page is.
    pub fn is_stable(&self) -> bool {
        self.piece.is_stable()
    }

    /// As [`Channel::unchanged`].
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
        // SAFETY: the channel checked that they are in its memory, and the service leaves them alone until the page is
        // returned, which takes this object's end.
        unsafe { std::slice::from_raw_parts(self.piece.start, self.piece.len) }
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        self.channel.put_page().expect("the page is out");
    }
}
