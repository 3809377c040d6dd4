//! The baseline of a hand-written reader (paper 5.2.1): io_uring with `O_DIRECT`, registered buffers and files, and
//! reads ahead of the worker. A kernel thread polls the submission queue.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::{IoUring, opcode, types::Fixed};

use super::data::open;
use super::sides::aligned;
use crate::{Error, Result};

/// Time for which the kernel's thread polls before it sleeps, in milliseconds.
const IDLE: u32 = 10;

/// A file and a ring of buffers.
pub struct Ring {
    ring: IoUring,
    _file: File,
    buffers: Vec<u8>,
    size: usize,
    depth: usize,
    /// Number of reads in flight.
    flying: usize,
}

impl Ring {
    /// Opens a file for reads of at most `size` bytes, `depth` at a time.
    pub fn open(path: &Path, size: usize, depth: usize, polls: bool) -> Result<Self> {
        let file = open(path, libc::O_DIRECT)?;
        let mut builder = IoUring::builder();
        if polls {
            builder.setup_sqpoll(IDLE);
        }
        let ring =
            builder.build((depth as u32).next_power_of_two()).map_err(Error::io("make an io_uring"))?;
        let mut buffers = vec![0; size * depth + 4096];
        let start = aligned(&mut buffers, size * depth).as_mut_ptr();
        let vector = [libc::iovec { iov_base: start.cast(), iov_len: size * depth }];
        ring.submitter().register_files(&[file.as_raw_fd()]).map_err(Error::io("register a file"))?;
        // SAFETY: this object owns the memory, and waits for all reads before it ends.
        unsafe { ring.submitter().register_buffers(&vector) }.map_err(Error::io("register memory"))?;
        Ok(Self { ring, _file: file, buffers, size, depth, flying: 0 })
    }

    /// Reads, and passes the data to `take` in order, as long as it wants more.
    pub fn read(
        &mut self,
        mut requests: impl Iterator<Item = (u64, usize)>,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let depth = self.depth;
        let start = aligned(&mut self.buffers, self.size * depth).as_mut_ptr();
        // State of each buffer: the wanted length, and whether the read is complete.
        let mut slots = vec![(0usize, false); depth];
        let (mut next, mut oldest) = (0usize, 0usize);
        loop {
            let mut more = false;
            while next - oldest < depth
                && let Some((offset, len)) = requests.next()
            {
                let slot = next % depth;
                slots[slot] = (len, false);
                let at = start.wrapping_add(slot * self.size);
                let read = opcode::ReadFixed::new(Fixed(0), at, len as u32, 0).offset(offset).build();
                // SAFETY: the buffer is the ring's, of `size` bytes or more, and no code uses it until the read is
                // complete.
                let pushed = unsafe { self.ring.submission().push(&read.user_data(slot as u64)) };
                pushed.map_err(|full| Error::io("submit a read")(std::io::Error::other(full)))?;
                (next, self.flying, more) = (next + 1, self.flying + 1, true);
            }
            if more {
                self.ring.submit().map_err(Error::io("submit reads"))?;
            }
            if oldest == next {
                return Ok(());
            }
            self.wait(&mut slots, oldest % depth)?;
            // SAFETY: the read into this buffer is complete, and the next one is submitted after the loop's end.
            let page = unsafe {
                std::slice::from_raw_parts(
                    start.wrapping_add(oldest % depth * self.size),
                    slots[oldest % depth].0,
                )
            };
            oldest += 1;
            if !take(page) {
                return Ok(());
            }
        }
    }

    /// Waits until a read is complete.
    fn wait(&mut self, slots: &mut [(usize, bool)], slot: usize) -> Result<()> {
        loop {
            for entry in self.ring.completion() {
                self.flying -= 1;
                let (len, done) = &mut slots[entry.user_data() as usize];
                if entry.result() != *len as i32 {
                    let problem = std::io::Error::from_raw_os_error(-entry.result().min(0));
                    return Err(Error::io("read by io_uring")(problem));
                }
                *done = true;
            }
            if slots[slot].1 {
                return Ok(());
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("wait for a read")(error)),
            }
        }
    }
}

impl Drop for Ring {
    /// Waits for all reads, because the kernel must not write to freed memory.
    fn drop(&mut self) {
        while self.flying > 0 && self.ring.submit_and_wait(1).is_ok() {
            self.flying = self.flying.saturating_sub(self.ring.completion().count());
        }
    }
}
