//! A queue of writes on an io_uring of its own.
//!
//! The kernel reads the images of batches in flight, so the queue keeps each batch until the kernel has completed all of its
//! writes. Dropping the queue waits for that. A write that failed is repeated by an ordinary system call, as in `ring`. After the
//! ring has failed, all writes are done this way.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, types};

use super::queue::{WriteBatch, WriteQueue};
use super::ring::{GIVEN_UP, PATIENCE, is_transient};

/// Time between looks for completions after the ring has failed.
const POLL: Duration = Duration::from_micros(100);

pub(super) struct RingQueue<'f> {
    file: &'f std::fs::File,
    ring: IoUring,
    slots: Vec<Option<InFlight>>,
    /// Writes that the ring has, submitted or not.
    writes: usize,
    /// Maximum number of such writes.
    depth: usize,
    has_failed: bool,
    patience: Duration,
}

struct InFlight {
    batch: WriteBatch,
    /// Writes that have not ended.
    left: usize,
}

impl<'f> RingQueue<'f> {
    /// A queue for this number of writes at a time. None if the kernel refuses the ring.
    pub fn new(file: &'f std::fs::File, depth: usize) -> Option<Self> {
        let ring = IoUring::new(depth as u32).ok()?;
        Some(Self { file, ring, slots: Vec::new(), writes: 0, depth, has_failed: false, patience: PATIENCE })
    }

    fn free_slot(&mut self) -> usize {
        self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }

    /// Does a write by a system call.
    fn write(file: &std::fs::File, batch: &mut WriteBatch, index: usize) {
        let result = file.write_all_at(batch.bytes(index), batch.offset(index));
        batch.end(index, result);
    }

    /// Takes the results that the kernel has.
    fn reap(&mut self) -> usize {
        let Self { ring, slots, file, .. } = self;
        let mut count = 0;
        for entry in ring.completion() {
            let (slot, index) = (entry.user_data() as u32 as usize, (entry.user_data() >> 32) as usize);
            let in_flight = slots[slot].as_mut().expect("it is in flight until its last write has ended");
            let batch = &mut in_flight.batch;
            match entry.result() {
                result if result == batch.bytes(index).len() as i32 => batch.end(index, Ok(())),
                GIVEN_UP => batch.end(index, Err(io::ErrorKind::TimedOut.into())),
                _ => Self::write(file, batch, index),
            }
            in_flight.left -= 1;
            count += 1;
        }
        self.writes -= count;
        count
    }

    /// Submits the writes that are not submitted yet, and waits for a completion. The wait has a time limit if the kernel
    /// supports one.
    fn wait(&mut self) {
        let result = if self.ring.params().is_feature_ext_arg() {
            let patience = Timespec::from(self.patience);
            self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&patience))
        } else {
            self.ring.submit_and_wait(1)
        };
        match result {
            Ok(_) => {}
            Err(error) if is_transient(&error) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                // Nothing has completed for too long. The kernel cancels the writes that no device has yet.
                if self.ring.completion().is_empty() {
                    let all = CancelBuilder::any();
                    let _ = self.ring.submitter().register_sync_cancel(Some(Timespec::new()), all);
                }
            }
            Err(_) => self.fail(),
        }
    }

    /// Stops the use of the ring, which has failed. The kernel completes the writes that it has accepted. The others are done
    /// here.
    fn fail(&mut self) {
        self.has_failed = true;
        let not_given = self.ring.submission().len();
        while self.writes > not_given {
            self.reap();
            std::thread::sleep(POLL);
        }
        for in_flight in self.slots.iter_mut().flatten() {
            for index in 0..in_flight.batch.count() {
                if !in_flight.batch.has_ended(index) {
                    Self::write(self.file, &mut in_flight.batch, index);
                }
            }
            in_flight.left = 0;
        }
        self.writes = 0;
    }

    fn take_ended(&mut self) -> Vec<WriteBatch> {
        let is_ended =
            |slot: &&mut Option<InFlight>| slot.as_ref().is_some_and(|in_flight| in_flight.left == 0);
        let ended = self.slots.iter_mut().filter(is_ended);
        ended.filter_map(Option::take).map(|in_flight| in_flight.batch).collect()
    }
}

impl WriteQueue for RingQueue<'_> {
    fn begin(&mut self, mut batch: WriteBatch) {
        let count = batch.count();
        assert!(count <= self.depth, "a batch has at most {} writes", self.depth);
        while !self.has_failed && self.writes + count > self.depth {
            self.wait();
            self.reap();
        }
        if self.has_failed {
            (0..count).for_each(|index| Self::write(self.file, &mut batch, index));
        }
        let slot = self.free_slot();
        let left = if self.has_failed { 0 } else { count };
        let batch = &self.slots[slot].insert(InFlight { batch, left }).batch;
        if left == 0 {
            return;
        }
        let fd = types::Fd(self.file.as_raw_fd());
        for index in 0..count {
            let bytes = batch.bytes(index);
            let entry = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32)
                .offset(batch.offset(index))
                .build()
                .user_data((index as u64) << 32 | slot as u64);
            // SAFETY: the batch owns the bytes, and is in its slot until the kernel has completed the write. The queue has room,
            // because it has as many entries as there are writes at most.
            unsafe { self.ring.submission().push(&entry) }.expect("it has room");
        }
        self.writes += count;
        // If the kernel cannot take them now, `wait` submits them.
        let _ = self.ring.submit();
    }

    fn ended(&mut self, wait: bool) -> Vec<WriteBatch> {
        self.reap();
        let mut ended = self.take_ended();
        while ended.is_empty() && wait && self.writes > 0 {
            self.wait();
            self.reap();
            ended = self.take_ended();
        }
        ended
    }
}

impl Drop for RingQueue<'_> {
    fn drop(&mut self) {
        while self.writes > 0 {
            self.wait();
            self.reap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::page::PAGE;
    use crate::page_size::PageSize;

    const DEPTH: usize = 64;

    fn batch(number: u64, first: u64, pages: usize) -> WriteBatch {
        let mut images = Buffer::new(PageSize::MIN, pages);
        for (image, page) in images.images_mut(0..pages).zip(first..) {
            image.fill(page as u8);
        }
        // Every other page has no neighbour.
        WriteBatch::new(number, images, (first..).step_by(2).take(pages))
    }

    #[test]
    fn batches_are_in_flight_together_and_all_end() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut queue) = RingQueue::new(&file, DEPTH) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        let mut ended = Vec::new();
        for number in 0..40 {
            queue.begin(batch(number, number * 64, 16));
            assert!(queue.writes <= DEPTH);
            ended.extend(queue.ended(false));
        }
        while ended.len() < 40 {
            let more = queue.ended(true);
            assert!(!more.is_empty(), "it waits for one");
            ended.extend(more);
        }
        assert!(queue.ended(true).is_empty(), "nothing is in flight");
        for mut batch in ended {
            let first = batch.number() * 64;
            for index in 0..16 {
                let mut byte = [0];
                file.read_exact_at(&mut byte, (first + 2 * index) * PAGE as u64 + 17).unwrap();
                assert_eq!(byte[0], (first + index) as u8);
            }
            assert!(batch.results().iter().all(|write| write.result.is_ok()));
        }
    }

    /// No thread reads the pipe, which has room for one write.
    #[test]
    fn writes_that_the_kernel_never_completes_are_given_up() {
        let (_nobody_reads, pipe) = std::io::pipe().unwrap();
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(pipe));
        // SAFETY: it changes the size of a pipe that this test made.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETPIPE_SZ, PAGE as i32) }, PAGE as i32);
        let Some(mut queue) = RingQueue::new(&file, DEPTH) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        if queue
            .ring
            .submitter()
            .register_sync_cancel(Some(Timespec::new()), CancelBuilder::any())
            .is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)))
        {
            eprintln!("skipped: Linux 6.0 gives up");
            return;
        }
        queue.patience = Duration::from_millis(50);
        queue.begin(batch(0, 0, 3));
        let ended = queue.ended(true);
        let [mut batch] = <[WriteBatch; 1]>::try_from(ended).ok().unwrap();
        let kinds: Vec<_> =
            batch.results().into_iter().map(|write| write.result.err().map(|error| error.kind())).collect();
        let timed_out = kinds.iter().filter(|kind| **kind == Some(io::ErrorKind::TimedOut)).count();
        assert!(timed_out >= 2, "{kinds:?}");
    }

    #[test]
    fn after_the_ring_has_failed_system_calls_write() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut queue) = RingQueue::new(&file, DEPTH) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        queue.begin(batch(0, 0, 16));
        queue.fail();
        queue.begin(batch(1, 64, 16));
        assert_eq!(queue.ended(true).len(), 2);
        let mut byte = [0];
        file.read_exact_at(&mut byte, (64 + 30) * PAGE as u64).unwrap();
        assert_eq!(byte[0], 64 + 15);
    }
}
