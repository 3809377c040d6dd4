//! The consumer's side of the log's ring buffer (paper 4.3).

use std::{
    ffi::{c_int, c_void},
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    time::{Duration, Instant},
};

use libbpf_rs::libbpf_sys;

use crate::{
    Error, Result,
    engine::{
        control::Control,
        log::TxnSink,
        merge::{Merge, Place, Record},
        storage::LogRings,
    },
};

/// Records that were read in one go, back to back, and the end of each.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// The ring buffer, which has one consumer.
pub(crate) struct LogRing {
    ring: NonNull<libbpf_sys::ring_buffer>,
    /// libbpf keeps a pointer to it.
    batch: NonNull<Batch>,
}

// SAFETY: libbpf's ring buffer is plain memory, mappings and descriptors, used by one thread at a time.
unsafe impl Send for LogRing {}
// SAFETY: through a shared reference only the ring's descriptor can be polled.
unsafe impl Sync for LogRing {}

unsafe extern "C" fn take(context: *mut c_void, data: *mut c_void, size: u64) -> c_int {
    // SAFETY: the context is the batch that was given to `ring_buffer__new`, which nothing else uses while
    // records are consumed; libbpf passes a complete record of `size` bytes.
    let (batch, record) = unsafe {
        (&mut *context.cast::<Batch>(), std::slice::from_raw_parts(data.cast::<u8>(), size as usize))
    };
    batch.bytes.extend_from_slice(record);
    batch.ends.push(batch.bytes.len());
    0
}

impl Batch {
    /// The records, each with its offset.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| (start, &self.bytes[start..end]))
    }

    /// The record at an offset.
    pub(crate) fn at(&self, offset: usize) -> &[u8] {
        let next = self.ends.partition_point(|&end| end <= offset);
        &self.bytes[offset..self.ends[next]]
    }
}

impl LogRing {
    pub(crate) fn new(map: BorrowedFd<'_>) -> Result<Self> {
        let batch = NonNull::from(Box::leak(Box::<Batch>::default()));
        // SAFETY: the descriptor is open; the context lives until the ring is freed, in `drop`.
        let ring = unsafe {
            libbpf_sys::ring_buffer__new(map.as_raw_fd(), Some(take), batch.as_ptr().cast(), std::ptr::null())
        };
        match NonNull::new(ring) {
            Some(ring) => Ok(LogRing { ring, batch }),
            None => {
                let error = std::io::Error::last_os_error();
                // SAFETY: it came from a box, and libbpf does not have it.
                drop(unsafe { Box::from_raw(batch.as_ptr()) });
                Err(Error::io("cannot map the log's ring buffer", error))
            }
        }
    }

    /// Copies the available complete records, in the order of their reservation, and gives their space back
    /// to the producers.
    pub(crate) fn read(&mut self) -> &Batch {
        // SAFETY: the batch is alive, and nothing else uses it now.
        let batch = unsafe { self.batch.as_mut() };
        batch.bytes.clear();
        batch.ends.clear();
        // SAFETY: the ring is alive, and `&mut self` makes this its only consumer. It writes to the batch,
        // to which there is no reference.
        unsafe { libbpf_sys::ring_buffer__consume(self.ring.as_ptr()) };
        self.records()
    }

    /// The records of the last read.
    pub(crate) fn records(&self) -> &Batch {
        // SAFETY: the batch is alive, and only `read`, which takes `&mut self`, writes to it.
        unsafe { self.batch.as_ref() }
    }

    /// Position up to which the ring was read, and position up to which records are reserved, in bytes
    /// ever.
    pub(crate) fn positions(&self) -> (u64, u64) {
        // SAFETY: the ring is alive; it has one map, so the index is in bounds.
        unsafe {
            let ring = libbpf_sys::ring_buffer__ring(self.ring.as_ptr(), 0);
            (libbpf_sys::ring__consumer_pos(ring), libbpf_sys::ring__producer_pos(ring))
        }
    }

    /// Waits until the producers announce records (every [`crate::Config::wal_notify_bytes`] bytes), or for
    /// the given time; returns whether they did so.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        // SAFETY: the ring is alive; this only reads its descriptor.
        let fd = unsafe { libbpf_sys::ring_buffer__epoll_fd(self.ring.as_ptr()) };
        // SAFETY: the descriptor is open as long as the ring is.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut events = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let time = rustix::time::Timespec {
            tv_sec: time.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        rustix::event::poll(&mut events, Some(&time)).is_ok_and(|n| n > 0)
    }
}

impl Drop for LogRing {
    fn drop(&mut self) {
        // SAFETY: both came from `new` and are not used any more; the ring goes first.
        unsafe {
            libbpf_sys::ring_buffer__free(self.ring.as_ptr());
            drop(Box::from_raw(self.batch.as_ptr()));
        }
    }
}

/// The log of this engine, read in the order of reservation.
pub(super) struct HashLog<'db> {
    control: &'db Control,
    ring: LogRing,
    merge: Merge,
    /// Time of the last search for abandoned transactions.
    abandoned_at: Instant,
}

impl<'db> HashLog<'db> {
    /// A log whose next commit has this timestamp.
    pub(super) fn new(control: &'db Control, ring: LogRing, next_ts: u64) -> Self {
        HashLog { control, ring, merge: Merge::new(next_ts), abandoned_at: Instant::now() }
    }
}

impl LogRings for HashLog<'_> {
    fn wait(&self, time: Duration) -> bool {
        self.ring.wait(time)
    }

    fn read_bytes(&self) -> u64 {
        self.ring.positions().0
    }

    /// Copies all complete records out of the ring buffer.
    fn drain(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize {
        let control = self.control;
        self.merge.find_abandoned(&mut self.abandoned_at, |id| control.has_ended(id));
        let left_over = self.merge.emit(max_bytes, &|_| unreachable!("what is left over is copied"), sink);
        if self.merge.is_ready() {
            return left_over;
        }
        let records = self.ring.read();
        records.iter().for_each(|(offset, record)| self.merge.accept((0, offset as u64), record));
        let (read, reserved) = self.ring.positions();
        self.merge.settle(std::iter::once(read), || vec![reserved]);
        let records = self.ring.records();
        let bytes = |(_, offset): Place| Record::from(records.at(offset as usize));
        let count = self.merge.emit(max_bytes, &bytes, sink);
        self.merge.copy_rest(&bytes);
        left_over + count
    }
}
