//! Sequential streams: they copy one range after the other for the program's calls, and fetch blocks ahead.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use bedplate_scan::{Error, FRAME, Fetch, MAX_RANGES_HELD, PinnedRange};
use libc::iovec;
use rustix::io::Errno;

use crate::limits::MAX_BLOCKS_AHEAD;
use crate::service::{self, Reader};
use crate::statistics::{WAIT_NS, WAITS};

/// The buffers into which a call of the program reads.
pub struct Target<'a> {
    parts: &'a [iovec],
    /// Bytes of the first part that have been written.
    written: usize,
}

impl<'a> Target<'a> {
    /// The buffers of a call.
    ///
    /// # Safety
    /// Each part is memory of the program that may be written to, until this is dropped.
    pub unsafe fn new(parts: &'a [iovec]) -> Self {
        Self { parts, written: 0 }
    }

    /// Appends bytes. The parts must have room for them.
    pub fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let part = self.parts[0];
            let len = bytes.len().min(part.iov_len - self.written);
            // SAFETY: the target is memory of the program within the part. The source is a frame of the cache, which the program cannot
            // write to.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    part.iov_base.cast::<u8>().add(self.written),
                    len,
                );
            }
            self.written += len;
            bytes = &bytes[len..];
            if self.written == part.iov_len {
                self.parts = &self.parts[1..];
                self.written = 0;
            }
        }
    }
}

/// Waits for a range, and counts the time. `None`: the range cannot be read.
pub fn wait(fetch: Fetch) -> Option<PinnedRange> {
    if fetch.is_ready().ok()? {
        return fetch.wait().ok();
    }
    let begin = Instant::now();
    let range = fetch.wait();
    WAITS.add(1);
    WAIT_NS.add(begin.elapsed().as_nanos() as u64);
    if matches!(range, Err(Error::System { source: Errno::TIMEDOUT, .. })) {
        service::pause();
    }
    range.ok()
}

enum State {
    Coming(Fetch),
    Here(PinnedRange),
}

struct Block {
    start: u64,
    end: u64,
    /// `None` while a call changes it.
    state: Option<State>,
}

/// A sequential stream. A block is as long as a frame, and begins at a multiple of that, so that processes share its frame.
pub struct Stream {
    reader: Reader,
    /// The blocks, in order and without gaps.
    blocks: VecDeque<Block>,
    /// The number of blocks that are fetched ahead. It grows with each block that the program has read.
    ahead: usize,
    /// The offset from which on nothing is fetched.
    limit: u64,
}

impl Stream {
    pub fn new(reader: Reader) -> Self {
        Self { reader, blocks: VecDeque::new(), ahead: 1, limit: 0 }
    }

    /// The range from the first block to the last. It is empty if there is none.
    pub fn covered(&self) -> Range<u64> {
        let first = self.blocks.front().map_or(0, |block| block.start);
        first..self.blocks.back().map_or(0, |block| block.end)
    }

    /// Copies a range, which must begin in the first block or after it. `may_go_on` gets the beginning of a region. It returns
    /// the end of the region if the stream may read the region.
    ///
    /// `None`: not all of the range can be read. Some of the target may be written.
    pub fn copy(
        &mut self,
        range: Range<u64>,
        target: &mut Target<'_>,
        mut may_go_on: impl FnMut(u64) -> Option<u64>,
    ) -> Option<()> {
        let mut at = range.start;
        while at < range.end {
            while self.blocks.front().is_some_and(|block| block.end <= at) {
                self.blocks.pop_front();
                self.ahead = (self.ahead * 2).min(MAX_BLOCKS_AHEAD);
            }
            if self.blocks.is_empty() {
                self.limit = 0;
            }
            self.fetch_ahead(at, range.end, &mut may_go_on);
            let front = self.blocks.front_mut()?;
            let pinned = match front.state.take()? {
                State::Coming(fetch) => wait(fetch)?,
                State::Here(pinned) => pinned,
            };
            let end = front.end.min(range.end);
            let part = (at - front.start) as usize..(end - front.start) as usize;
            target.append(pinned.get(part)?);
            if !pinned.is_held() {
                // The connection has ended, and the daemon may have given the memory to others.
                return None;
            }
            front.state = Some(State::Here(pinned));
            at = end;
        }
        Some(())
    }

    /// Fetches the blocks that the call needs from `at` on, and `ahead` blocks after them.
    fn fetch_ahead(&mut self, at: u64, needed: u64, may_go_on: &mut impl FnMut(u64) -> Option<u64>) {
        let frame = FRAME as u64;
        let size = self.reader.ranges.version().size();
        loop {
            let start = self.blocks.back().map_or(at / frame * frame, |block| block.end);
            let count = self.blocks.len();
            let is_enough = start >= needed && count > self.ahead;
            if start >= size || is_enough || count >= MAX_RANGES_HELD.min(self.ahead + 2) {
                return;
            }
            if start >= self.limit {
                match may_go_on(start.max(at)) {
                    Some(limit) => self.limit = limit,
                    None => return,
                }
            }
            let end = (start + frame).min(size);
            let Ok(fetch) = self.reader.ranges.fetch(start, (end - start) as usize) else { return };
            self.blocks.push_back(Block { start, end, state: Some(State::Coming(fetch)) });
        }
    }
}
