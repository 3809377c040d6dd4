//! Pages that own themselves.

use std::sync::Arc;

use super::lender::{Lender, Lent};
use super::{Delivered, Piece};
use crate::Result;

/// Some bytes of a file, in the memory that the device wrote them to. A page may go to any thread and stay there for any time,
/// even after its channel is gone. It returns itself when it is dropped. Until then it counts as a page that is out, and the
/// service does not read into its frame.
///
/// `bytes::Bytes::from_owner(page)` converts it without a copy.
pub struct OwnedPage {
    piece: Piece,
    /// Present until this is dropped.
    lent: Option<Arc<Lent>>,
}

// SAFETY: the bytes are in a mapping that `lent` keeps, no process writes to them before it is dropped, and the rest is Send.
unsafe impl Send for OwnedPage {}
// SAFETY: as above; a shared page can only be read.
unsafe impl Sync for OwnedPage {}

impl OwnedPage {
    pub(super) fn new(piece: Piece, lent: Arc<Lent>) -> Self {
        lent.lender.lend();
        Self { piece, lent: Some(lent) }
    }

    /// The file of the scan, counted from 0.
    pub fn file(&self) -> u32 {
        self.piece.file
    }

    /// The offset of the bytes in the file.
    pub fn offset(&self) -> u64 {
        self.piece.offset
    }

    /// The same as [`Page::read_began`](crate::Page::read_began).
    pub fn read_began(&self) -> u64 {
        self.piece.read_began_ns
    }

    /// The same as [`Page::is_stable`](crate::Page::is_stable).
    pub fn is_stable(&self) -> bool {
        self.piece.is_stable()
    }

    /// The same as [`Channel::unchanged`](crate::Channel::unchanged), even after the channel is gone.
    ///
    /// # Errors
    /// Likewise.
    pub fn unchanged(&self) -> Result<bool> {
        self.lender().unchanged(&self.piece)
    }

    pub(super) fn lender(&self) -> &Arc<Lender> {
        &self.lent.as_ref().expect("it is not dropped").lender
    }
}

impl Delivered for OwnedPage {
    fn piece(&self) -> &Piece {
        &self.piece
    }
}

impl std::fmt::Debug for OwnedPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedPage").field("piece", &self.piece).finish_non_exhaustive()
    }
}

impl std::ops::Deref for OwnedPage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the channel checked that they are in its memory. The memory stays mapped, and the service does not write to it,
        // until the frame is returned. That needs the end of this object.
        unsafe { std::slice::from_raw_parts(self.piece.start, self.piece.len) }
    }
}

impl AsRef<[u8]> for OwnedPage {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for OwnedPage {
    fn drop(&mut self) {
        let Some(lent) = self.lent.take() else { return };
        let lender = lent.lender.clone();
        // The frame is returned before the count falls (see `Lender::out`).
        drop(lent);
        lender.returned();
    }
}
