//! A part of the memory of a cached file. The maker adds memory one frame at a time, on demand.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::mapping::{Access, Buffer, Mapping};
use super::{FRAME, memfd};
use crate::limits::FRAMES_PER_SEGMENT;
use crate::{Error, Result};

/// Size of a segment in bytes.
const BYTES: usize = FRAMES_PER_SEGMENT * FRAME;
const _: () = assert!(FRAMES_PER_SEGMENT <= u64::BITS as usize);

/// The service's side of a segment. Only one thread at a time may make its frames.
#[derive(Debug)]
pub struct Segment {
    file: OwnedFd,
    mapping: Arc<Mapping>,
    is_reserved: bool,
    /// Number of frames that have memory. They are the first frames of the segment.
    made: AtomicUsize,
    view: OnceLock<Arc<SegmentView>>,
}

impl Segment {
    /// Creates a segment without frames. It uses reserved huge pages if `is_reserved_asked_for` is true and enough of them are
    /// available.
    ///
    /// # Errors
    /// The kernel cannot create the memfd.
    pub fn new(is_reserved_asked_for: bool) -> Result<Self> {
        let reserved =
            is_reserved_asked_for.then(|| memfd::reserved(FRAMES_PER_SEGMENT)).and_then(Result::ok);
        let is_reserved = reserved.is_some();
        let (file, mapping) = match reserved {
            Some(reserved) => reserved,
            None => memfd::ordinary(FRAMES_PER_SEGMENT)?,
        };
        Ok(Self { file, mapping, is_reserved, made: AtomicUsize::new(0), view: OnceLock::new() })
    }

    /// Number of frames that have memory.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Acquire)
    }

    /// Allocates the memory of the next frame. This can take long.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn make_frame(&self) -> Result<()> {
        let number = self.made();
        assert!(number < FRAMES_PER_SEGMENT, "the segment has all of its frames");
        let part = number * FRAME..(number + 1) * FRAME;
        if !self.is_reserved {
            self.mapping.make_huge(part.clone());
        }
        // A reader would get SIGBUS at a page that the kernel cannot allocate, so the frame must have all its pages first.
        self.mapping.populate(part)?;
        self.made.store(number + 1, Ordering::Release);
        Ok(())
    }

    /// The memory of one frame, for the service to read into. The frame must have memory.
    pub fn buffer(&self, frame: usize) -> Buffer {
        assert!(frame < self.made());
        Buffer::new(self.mapping.clone(), frame * FRAME..(frame + 1) * FRAME)
    }

    /// The memfd, for readers in other processes. The readers may keep it indefinitely.
    pub fn lend(&self) -> &OwnedFd {
        &self.file
    }

    /// The read-only mapping that all readers in this process share.
    pub fn view(&self) -> Result<Arc<SegmentView>> {
        if let Some(view) = self.view.get() {
            return Ok(view.clone());
        }
        let view = Arc::new(SegmentView::new(Mapping::of(&self.file, 0, BYTES, Access::Read)?));
        Ok(self.view.get_or_init(|| view).clone())
    }
}

/// The readers' side of a segment. The view maps the pages of a frame when the first range in it arrives. The frame has memory by
/// then.
#[derive(Debug)]
pub struct SegmentView {
    mapping: Mapping,
    /// Bit n is set if the pages of frame n are mapped.
    mapped: AtomicU64,
}

impl SegmentView {
    fn new(mapping: Mapping) -> Self {
        Self { mapping, mapped: AtomicU64::new(0) }
    }

    /// Maps a segment that another process has lent.
    ///
    /// # Errors
    /// The file is not a segment, or the kernel cannot map it.
    pub fn of(file: OwnedFd) -> Result<Self> {
        let bytes = rustix::fs::fstat(file.as_fd()).map_err(Error::system("looking at frames"))?.st_size;
        if usize::try_from(bytes) != Ok(BYTES) {
            return Err(crate::wire::malformed("has frames that are none"));
        }
        Ok(Self::new(Mapping::of(file, 0, BYTES, Access::Read)?))
    }

    /// The address of the first byte.
    pub fn start(&self) -> *const u8 {
        self.mapping.start()
    }

    /// Returns whether the `len` bytes from `at` on are within one frame of the segment. If they are, it also maps the pages of
    /// the frame, unless they are mapped already.
    pub fn has(&self, at: usize, len: usize) -> bool {
        let frame = at / FRAME;
        if at.checked_add(len).is_none_or(|end| end > (frame + 1).saturating_mul(FRAME).min(BYTES)) {
            return false;
        }
        let bit = 1 << frame;
        if self.mapped.load(Ordering::Relaxed) & bit == 0 {
            self.mapping.map_pages(frame * FRAME..(frame + 1) * FRAME);
            self.mapped.fetch_or(bit, Ordering::Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Frames;

    /// Number of bytes of memory that a segment uses.
    fn bytes_of(segment: &Segment) -> u64 {
        rustix::fs::fstat(segment.lend()).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn memory_is_made_frame_by_frame_and_mapping_makes_none() {
        let segment = Segment::new(false).unwrap();
        let view = SegmentView::of(segment.lend().try_clone().unwrap()).unwrap();
        assert_eq!((segment.made(), bytes_of(&segment)), (0, 0));
        for made in 1..=FRAMES_PER_SEGMENT {
            segment.make_frame().unwrap();
            let last = (made - 1) * FRAME;
            let buffer = segment.buffer(made - 1);
            assert_eq!((segment.made(), buffer.bytes()), (made, FRAME));
            // SAFETY: the byte is within the buffer, and no other thread has it.
            unsafe { buffer.start().add(FRAME - 1).write(made as u8) };
            for view in [&view, &*segment.view().unwrap()] {
                assert!(view.has(last + FRAME - 1, 1));
                // SAFETY: the byte is within the mapping.
                assert_eq!(unsafe { view.start().add(last + FRAME - 1).read() }, made as u8);
            }
            assert_eq!(bytes_of(&segment), (made * FRAME) as u64);
        }
    }

    #[test]
    fn parts_are_within_one_frame() {
        let segment = Segment::new(false).unwrap();
        segment.make_frame().unwrap();
        let view = segment.view().unwrap();
        for (at, len) in [(0, FRAME), (FRAME - 1, 1), (0, 1)] {
            assert!(view.has(at, len), "{at} {len}");
        }
        for (at, len) in [(0, FRAME + 1), (FRAME - 1, 2), (BYTES, 1), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(!view.has(at, len), "{at} {len}");
        }
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        for file in
            [Frames::new(1).unwrap().lend().try_clone().unwrap(), tempfile::tempfile().unwrap().into()]
        {
            assert!(SegmentView::of(file).is_err());
        }
    }
}
