//! The ring buffer through which the kernel hands requests over.

use std::cell::RefCell;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;

use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};

use super::layout::{SRV_BROKEN, SRV_BYTES, SRV_DRAINED, SRV_EXECUTED, SRV_QUEUED, srv_record};
use bedplate_kerneldb::Result;
use bedplate_kerneldb::attach::kernel_error;

/// What the kernel has to say about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Request bytes (their place in [`Batch::bytes`]) and the record's number.
    Bytes(Range<usize>, u64),
    /// Replies (their place in [`Batch::bytes`]) to the first so many request bytes that come next, which
    /// are not to be executed again; and the record's number.
    Executed(Range<usize>, usize, u64),
    /// Requests (their place in [`Batch::bytes`]) that the kernel has queued after a MULTI, and the record's
    /// number.
    Queued(Range<usize>, u64),
    /// All replies of the kernel were sent.
    Drained,
    /// The kernel gave the connection up.
    Broken,
}

/// Records taken out of the ring together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) events: Vec<(u32, u32, Event)>,
    pub(super) bytes: Vec<u8>,
}

impl Batch {
    /// Adds a raw record; ones that make no sense are ignored (only our programs write them).
    fn push(&mut self, raw: &[u8]) {
        let u32_at =
            |at: usize| raw.get(at..at + 4).map(|b| u32::from_ne_bytes(b.try_into().expect("4 bytes")));
        let u64_at =
            |at: usize| raw.get(at..at + 8).map(|b| u64::from_ne_bytes(b.try_into().expect("8 bytes")));
        let header = || {
            Some((
                u32_at(offset_of!(srv_record, conn))?,
                u32_at(offset_of!(srv_record, generation))?,
                u32_at(offset_of!(srv_record, kind))?,
                u32_at(offset_of!(srv_record, len))? as usize,
                u64_at(offset_of!(srv_record, handed))?,
                u32_at(offset_of!(srv_record, skip))? as usize,
            ))
        };
        let Some((conn, generation, kind, len, handed, skip)) = header() else { return };
        let event = match kind {
            SRV_BYTES | SRV_EXECUTED | SRV_QUEUED => {
                let start = size_of::<srv_record>();
                let Some(bytes) = raw.get(start..start + len) else { return };
                let from = self.bytes.len();
                self.bytes.extend_from_slice(bytes);
                let place = from..from + len;
                match kind {
                    SRV_BYTES => Event::Bytes(place, handed),
                    SRV_QUEUED => Event::Queued(place, handed),
                    _ => Event::Executed(place, skip, handed),
                }
            }
            SRV_DRAINED => Event::Drained,
            SRV_BROKEN => Event::Broken,
            _ => return,
        };
        self.events.push((conn, generation, event));
    }
}

/// The consumer of the ring.
pub(super) struct Records {
    ring: RingBuffer<'static>,
    batch: Rc<RefCell<Batch>>,
}

impl Records {
    pub(super) fn new(map: &dyn MapCore) -> Result<Self> {
        let batch = Rc::new(RefCell::new(Batch::default()));
        let sink = batch.clone();
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |raw| {
                sink.borrow_mut().push(raw);
                0
            })
            .map_err(|e| kernel_error("cannot map the ring of handed-over requests", e))?;
        let ring =
            builder.build().map_err(|e| kernel_error("cannot map the ring of handed-over requests", e))?;
        Ok(Records { ring, batch })
    }

    /// To wait on: readable when there are records.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: The ring keeps its descriptor open for as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd().as_raw_fd()) }
    }

    /// Takes up to `max` records out of the ring; empty when there is none.
    pub(super) fn take(&mut self, max: usize) -> Batch {
        // The callback returns no error; interrupted or not, what was consumed is in the batch.
        let _ = self.ring.consume_raw_n(max);
        self.batch.take()
    }

    /// Gives a batch's memory back for reuse.
    pub(super) fn recycle(&mut self, mut batch: Batch) {
        batch.events.clear();
        batch.bytes.clear();
        if batch.bytes.capacity() <= 4 << 20 {
            self.batch.replace(batch);
        }
    }
}
