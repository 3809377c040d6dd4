//! Cancellation of ranges that a worker announced, except for bytes of which it already has a page.
//!
//! The worker waits meanwhile, so it takes nothing. Bytes that are not in chunks yet are removed from the plan. Bytes that are
//! being read or are ready stay in their frames. The worker skips the cancelled bytes in every chunk before
//! [`Cancelled::before`], because it counts the chunks that it takes. So frames are neither taken back nor cut, and ranges that
//! are announced again later are delivered.

use std::sync::atomic::Ordering::Relaxed;

use super::{Slot, State, Stream};
use crate::limits::MAX_PENDING_RANGES;
use crate::ranges::RangeSet;
use crate::worker::Cancelled;
use crate::{Error, Result};

impl Stream {
    /// Cancels ranges. Adds the numbers of chunks that the worker no longer waits for to `discarded`.
    ///
    /// # Errors
    /// The cancellation would leave too many pieces. Nothing is cancelled.
    pub fn cancel(&mut self, ranges: &RangeSet, discarded: &mut Vec<u64>) -> Result<Cancelled> {
        let pieces = |slot: &Slot| match slot {
            Slot::Free => 0,
            Slot::Loading(turn) | Slot::Given { turn, .. } => turn.wanted.len(),
        };
        if self.slots.iter().map(pieces).sum::<usize>() > MAX_PENDING_RANGES {
            return Err(Error::Invalid(format!(
                "cancelling has left more than {MAX_PENDING_RANGES} pieces of what was read: read them first"
            )));
        }
        if let Some(chunk) = self.ahead.take() {
            self.plan.give_back(&chunk);
        }
        let mut bytes = self.plan.cancel(ranges)?;
        for (slot, content) in self.slots.iter_mut().enumerate() {
            match content {
                Slot::Free => {}
                Slot::Loading(turn) => {
                    bytes += ranges.take_from_all(&mut turn.wanted);
                    if turn.wanted.is_empty() {
                        discarded.push(turn.number);
                    }
                }
                // The worker has begun this frame, and knows which of its bytes it has received.
                Slot::Given { turn, .. } => {
                    if self.board.entries()[slot].word.state() == State::Ready {
                        bytes += ranges.take_from_all(&mut turn.wanted);
                    }
                }
            }
        }
        self.publish_total();
        self.board.service().cancelled.fetch_add(bytes, Relaxed);
        // The scan may be over now.
        crate::service::wake(&self.board);
        Ok(Cancelled { bytes, before: self.next })
    }
}
