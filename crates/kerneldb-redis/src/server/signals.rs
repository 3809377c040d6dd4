//! Signals from the eBPF programs name the connections that the event loop has to check.
//!
//! A signal is a bit per connection, so it cannot be lost for lack of room; `bpf/layout.h` states the
//! rules. The ring buffer beside the bits only wakes the event loop.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};

use super::layout::{SRV_BELL_BYTES, SRV_SIGNAL_BITS};
use bedplate_kerneldb::Result;
use bedplate_kerneldb::attach::{ArrayMapping, kernel_error};

/// Number of words for the signals of this many connections.
pub(super) fn words(connections: u32) -> u32 {
    connections.div_ceil(SRV_SIGNAL_BITS)
}

/// The consumer of the signals.
pub(super) struct Signals {
    bell: RingBuffer<'static>,
    words: ArrayMapping<u64>,
}

impl Signals {
    pub(super) fn new(bell: &dyn MapCore, words: ArrayMapping<u64>) -> Result<Self> {
        let failed = |e| kernel_error("cannot map the ring buffer of signals", e);
        let mut builder = RingBufferBuilder::new();
        builder.add(bell, |_| 0).map_err(failed)?;
        Ok(Signals { bell: builder.build().map_err(failed)?, words })
    }

    /// A descriptor to wait on: it is readable while there may be signals.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: The ring keeps its descriptor open for as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.bell.epoll_fd().as_raw_fd()) }
    }

    /// Appends the connections whose signals are raised to `raised`, and clears them.
    pub(super) fn take(&mut self, raised: &mut Vec<u32>) {
        // The callback returns no error. An interrupted call leaves records, which keep the descriptor readable.
        let _ = self.bell.consume_raw_n(SRV_BELL_BYTES as usize);
        // A program sets a bit and then finds the bell full; this side empties the bell and then reads the bit.
        fence(Ordering::SeqCst);
        for at in 0..self.words.len() {
            // SAFETY: Within the mapped array and aligned, because its elements are u64.
            let word = unsafe { AtomicU64::from_ptr(self.words.get(at)) };
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                raised.push(at * SRV_SIGNAL_BITS + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}
