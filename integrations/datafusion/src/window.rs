//! The ranges of one stream that are fetched: those that its decoder waits for, and those that it asks for next.
//!
//! A reader holds at most [`MAX_RANGES_HELD`] ranges, so a window has so many *slots* for each of its readers. A slot is taken by a
//! fetch, and by a range that was handed to the decoder without a copy, until the decoder drops it.
//!
//! Invariants:
//! - At most half of the slots are the decoder's. When they are, what else it asks for is copied. So there are slots in which
//!   something can be fetched, however long the decoder holds what it has.
//! - What the decoder waits for is fetched before anything else. If there is no slot for it, what was fetched ahead is given up.
//! - Nothing is handed out before the file was found to be current after it had arrived.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_scan::{Error, Fetch, MAX_RANGES_HELD, PinnedRange, Result};
use bytes::Bytes;

use crate::buffers::Buffers;
use crate::limits::MIN_PINNED_BYTES;
use crate::local::Opened;
use crate::predict::Predictor;
use crate::spans::{Span, spans};

/// A range that the decoder has, without a copy.
struct Lent {
    range: PinnedRange,
    lent: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.range
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a stream fetches.
pub struct Window {
    opened: Opened,
    predictor: Predictor,
    buffers: Buffers,
    /// What may be fetched ahead, in bytes.
    read_ahead: u64,
    unit: u64,
    /// What is fetched ahead, in the order in which it is going to be asked for.
    ahead: VecDeque<(Span, Fetch)>,
    /// Slots that are the decoder's.
    lent: Arc<AtomicUsize>,
}

impl Window {
    /// Of a file that was opened.
    pub fn new(opened: Opened, predictor: Predictor, buffers: Buffers, read_ahead: u64) -> Self {
        let unit = opened.readers[0].alignment() as u64;
        let lent = Arc::default();
        Self { opened, predictor, buffers, read_ahead, unit, ahead: VecDeque::new(), lent }
    }

    /// How many spans ranges have, or a few less.
    pub fn ranges_of(ranges: &[Range<u64>]) -> usize {
        ranges.iter().map(|range| spans(range, 1).len()).sum()
    }

    /// The row group in whose column chunks all ranges are.
    pub fn group_of(&self, ranges: &[Range<u64>]) -> Option<usize> {
        self.predictor.group_of_all(ranges)
    }

    fn slots(&self) -> usize {
        self.opened.readers.len() * MAX_RANGES_HELD
    }

    /// The bytes of ranges of a row group. `None`: the file is not what was listed any more.
    ///
    /// # Errors
    /// The service cannot read them, or has ended.
    pub async fn read(&mut self, group: usize, ranges: &[Range<u64>]) -> Result<Option<Vec<Bytes>>> {
        self.predictor.note(group, ranges);
        let chunks: Vec<Vec<Span>> = ranges.iter().map(|range| spans(range, self.unit)).collect();
        let mut wanted: VecDeque<Span> = chunks.iter().flatten().copied().collect();
        let mut next: VecDeque<Span> = self.next_spans();
        // What was fetched for a row group that the decoder has skipped.
        self.ahead.retain(|(span, _)| wanted.contains(span) || next.contains(span));
        next.retain(|span| !self.ahead.iter().any(|(ahead, _)| ahead == span) && !wanted.contains(span));
        let mut begun = VecDeque::new();
        let mut answer = Vec::with_capacity(ranges.len());
        for (range, chunk) in ranges.iter().zip(&chunks) {
            let is_small = range.end - range.start < MIN_PINNED_BYTES;
            let mut copy = None;
            for _ in chunk {
                let arrived = self.arrive(&mut begun, &mut wanted, &mut next).await?;
                if chunk.len() == 1 && !is_small && self.may_lend() {
                    self.lent.fetch_add(1, Ordering::Relaxed);
                    let lent = Lent { range: arrived, lent: self.lent.clone() };
                    answer.push(Bytes::from_owner(lent));
                } else {
                    let len = (range.end - range.start) as usize;
                    copy.get_or_insert_with(|| self.buffers.take(len)).copy(&arrived);
                }
            }
            match copy {
                Some(copy) => answer.push(copy.into_bytes()),
                None if chunk.is_empty() => answer.push(Bytes::new()),
                None => {}
            }
        }
        self.fetch_ahead(&mut next)?;
        Ok(self.opened.is_current().then_some(answer))
    }

    fn may_lend(&self) -> bool {
        self.lent.load(Ordering::Relaxed) < self.slots() / 2
    }

    /// What the decoder is going to ask for, as far as it may be fetched now.
    fn next_spans(&self) -> VecDeque<Span> {
        let (mut next, mut bytes) = (VecDeque::new(), 0);
        for range in self.predictor.next() {
            for span in spans(&range, self.unit) {
                bytes += span.len as u64;
                if bytes > self.read_ahead {
                    return next;
                }
                next.push_back(span);
            }
        }
        next
    }

    /// Waits for the first span that is wanted and has not arrived, while the following ones and what comes next are fetched.
    async fn arrive(
        &mut self,
        begun: &mut VecDeque<Fetch>,
        wanted: &mut VecDeque<Span>,
        next: &mut VecDeque<Span>,
    ) -> Result<PinnedRange> {
        loop {
            while let Some(&span) = wanted.front() {
                let Some(fetch) = self.take_or_fetch(span)? else { break };
                wanted.pop_front();
                begun.push_back(fetch);
            }
            if wanted.is_empty() {
                self.fetch_ahead(next)?;
            }
            if let Some(fetch) = begun.pop_front() {
                return fetch.await;
            }
            // Every slot is the decoder's, which has half of them, or has something that was fetched ahead.
            if self.ahead.pop_back().is_none() {
                return Err(Error::Held);
            }
        }
    }

    /// A fetch of a span. `None`: there is no slot for it.
    fn take_or_fetch(&mut self, span: Span) -> Result<Option<Fetch>> {
        match self.ahead.iter().position(|(ahead, _)| *ahead == span) {
            Some(at) => Ok(self.ahead.remove(at).map(|(_, fetch)| fetch)),
            None => self.fetch(span),
        }
    }

    fn fetch(&self, span: Span) -> Result<Option<Fetch>> {
        for reader in &self.opened.readers {
            match reader.fetch(span.start, span.len) {
                Ok(fetch) => return Ok(Some(fetch)),
                Err(Error::Held) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn fetch_ahead(&mut self, next: &mut VecDeque<Span>) -> Result<()> {
        while let Some(&span) = next.front() {
            let Some(fetch) = self.fetch(span)? else { break };
            next.pop_front();
            self.ahead.push_back((span, fetch));
        }
        Ok(())
    }
}
