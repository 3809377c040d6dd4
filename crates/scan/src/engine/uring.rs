//! Reads by io_uring.
//!
//! One system call per round of the control loop submits everything and waits. Files and memory are registered where the
//! kernel and the limit on locked memory allow it; otherwise reads name them, which costs more for each.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::io::Errno;

use super::{Bell, Completion, Engine, Kind, Read};
use crate::memory::Frames;
use crate::{Error, Result};

const ENTRIES: u32 = 256;
const FILES: u32 = 1024;
const MEMORIES: u32 = 1024;
/// The token of the read that waits for the bell; those of the loop are below.
const BELL: u64 = u64::MAX;

/// Something at a place of a table that the kernel may know, too.
struct Table<T> {
    items: Vec<Option<(T, bool)>>,
    /// Why not, if not.
    registered: std::result::Result<(), Errno>,
}

impl<T> Table<T> {
    fn place(&mut self, limit: u32, what: &str) -> Result<usize> {
        if let Some(free) = self.items.iter().position(Option::is_none) {
            return Ok(free);
        }
        if self.items.len() == limit as usize {
            return Err(Error::Invalid(format!("{limit} {what} are in use, and there can be no more")));
        }
        self.items.push(None);
        Ok(self.items.len() - 1)
    }

    fn get(&self, index: usize) -> &(T, bool) {
        self.items[index].as_ref().expect("the loop uses what it added")
    }
}

pub(super) struct Uring {
    ring: IoUring,
    files: Table<Arc<OwnedFd>>,
    memories: Table<Arc<Frames>>,
    modes: &'static str,
    bell: Arc<Bell>,
    /// Where the bell's count is read to; it lives as long as the ring does.
    count: Box<u64>,
    /// The bell's read has not been submitted, or is complete.
    deaf: bool,
    /// Reads in the kernel's hands.
    flying: usize,
    /// What did not fit into the queue.
    waiting: Vec<squeue::Entry>,
}

impl Uring {
    /// A ring, if the kernel has all that is needed of it.
    pub fn new(bell: Arc<Bell>) -> Result<Self> {
        let unavailable = |reason: String| Error::Unavailable { engine: Kind::Uring, reason };
        let (ring, modes) = ring().map_err(|error| unavailable(explain(&error)))?;
        if !ring.params().is_feature_ext_arg() {
            return Err(unavailable("it cannot wait for a limited time: use Linux 5.11 or newer".into()));
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(|error| unavailable(error.to_string()))?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::ReadFixed::CODE) {
            return Err(unavailable("it has no reads".into()));
        }
        let registered = ring.submitter().register_files_sparse(FILES).map_err(|error| errno(&error));
        let files = Table { items: Vec::new(), registered };
        let registered = ring.submitter().register_buffers_sparse(MEMORIES).map_err(|error| errno(&error));
        let memories = Table { items: Vec::new(), registered };
        Ok(Self {
            ring,
            files,
            memories,
            modes,
            bell,
            count: Box::new(0),
            deaf: true,
            flying: 0,
            waiting: Vec::new(),
        })
    }

    fn entry(&self, read: &Read) -> squeue::Entry {
        let (frames, registered) = self.memories.get(read.memory);
        let mapping = frames.mapping();
        assert!(read.at.checked_add(read.len).is_some_and(|end| end <= mapping.bytes()));
        let start = mapping.start().wrapping_add(read.at);
        let (file, file_registered) = self.files.get(read.file);
        let raw: RawFd = file.as_raw_fd();
        let len = read.len as u32;
        let entry = match (*file_registered, *registered) {
            (true, true) => opcode::ReadFixed::new(Fixed(read.file as u32), start, len, read.memory as u16)
                .offset(read.offset)
                .build(),
            (true, false) => {
                opcode::Read::new(Fixed(read.file as u32), start, len).offset(read.offset).build()
            }
            (false, true) => {
                opcode::ReadFixed::new(Fd(raw), start, len, read.memory as u16).offset(read.offset).build()
            }
            (false, false) => opcode::Read::new(Fd(raw), start, len).offset(read.offset).build(),
        };
        entry.user_data(read.token)
    }

    /// Moves what waits into the queue.
    fn fill(&mut self) {
        if self.deaf {
            let target: *mut u64 = &raw mut *self.count;
            let read = opcode::Read::new(Fd(self.bell.descriptor().as_raw_fd()), target.cast(), 8);
            self.waiting.insert(0, read.build().user_data(BELL));
            self.deaf = false;
        }
        let mut queue = self.ring.submission();
        let fits = (queue.capacity() - queue.len()).min(self.waiting.len());
        for entry in self.waiting.drain(..fits) {
            // SAFETY: the memory is that of frames that the table keeps, or the bell's count, until the read is complete:
            // the loop removes memory only then, and dropping waits for all reads; the entry's range was checked.
            unsafe { queue.push(&entry) }.expect("there is room");
        }
    }

    fn take(&mut self, complete: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            if entry.user_data() == BELL {
                self.deaf = true;
                continue;
            }
            self.flying -= 1;
            let result = match entry.result() {
                count if count >= 0 => Ok(count as usize),
                error => Err(Errno::from_raw_os_error(-error)),
            };
            complete.push(Completion { token: entry.user_data(), result });
        }
    }

    /// Submits what is in the queue and waits for `want` completions, or for a time.
    fn enter(&mut self, timeout: Option<Duration>, want: usize) {
        let time = timeout.map(|t| Timespec::new().sec(t.as_secs()).nsec(t.subsec_nanos()));
        let result = match &time {
            Some(time) => self.ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(time)),
            None => self.ring.submitter().submit_and_wait(want),
        };
        match result {
            Ok(_) => {}
            Err(error) => match errno(&error) {
                // The time is over; a signal; completions have to be taken before more is submitted; memory is short, and
                // completions, or the next round, find more.
                Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN => {}
                error => tracing::error!("io_uring_enter: {error}"),
            },
        }
    }
}

impl Engine for Uring {
    fn kind(&self) -> Kind {
        Kind::Uring
    }

    fn about(&self) -> String {
        let said = |what: &str, registered: std::result::Result<(), Errno>| match registered {
            Ok(()) => format!("registered {what}"),
            Err(error) => format!("{what} not registered ({error})"),
        };
        let (files, memory) =
            (said("files", self.files.registered), said("memory", self.memories.registered));
        format!("io_uring, {}, {files}, {memory}", self.modes)
    }

    fn add_file(&mut self, file: Arc<OwnedFd>) -> Result<usize> {
        let place = self.files.place(FILES, "files")?;
        let mut registered = false;
        if self.files.registered.is_ok() {
            match self.ring.submitter().register_files_update(place as u32, &[file.as_raw_fd()]) {
                Ok(_) => registered = true,
                Err(error) => self.files.registered = Err(errno(&error)),
            }
        }
        self.files.items[place] = Some((file, registered));
        Ok(place)
    }

    fn remove_file(&mut self, file: usize) {
        if let Some((_, true)) = self.files.items[file].take() {
            let _ = self.ring.submitter().register_files_update(file as u32, &[-1]);
        }
    }

    fn add_memory(&mut self, memory: Arc<Frames>) -> Result<usize> {
        let place = self.memories.place(MEMORIES, "memories")?;
        let mut registered = false;
        if self.memories.registered.is_ok() {
            let mapping = memory.mapping();
            let vector = [libc::iovec { iov_base: mapping.start().cast(), iov_len: mapping.bytes() }];
            // SAFETY: the table keeps the memory until it is removed, from the kernel's table, too.
            match unsafe { self.ring.submitter().register_buffers_update(place as u32, &vector, None) } {
                Ok(_) => registered = true,
                Err(error) => {
                    tracing::info!("memory for scans is not registered: {error}");
                    self.memories.registered = Err(errno(&error));
                }
            }
        }
        self.memories.items[place] = Some((memory, registered));
        Ok(place)
    }

    fn remove_memory(&mut self, memory: usize) {
        if let Some((_, true)) = self.memories.items[memory].take() {
            let none = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
            // SAFETY: an empty place.
            let _ = unsafe { self.ring.submitter().register_buffers_update(memory as u32, &none, None) };
        }
    }

    fn submit(&mut self, read: Read) {
        let entry = self.entry(&read);
        self.flying += 1;
        self.waiting.push(entry);
    }

    fn wait(&mut self, timeout: Option<Duration>, complete: &mut Vec<Completion>) {
        let before = complete.len();
        self.fill();
        // More than the queue holds: what is in it first.
        while !self.waiting.is_empty() {
            self.enter(Some(Duration::ZERO), 0);
            self.take(complete);
            self.fill();
            if complete.len() > before && self.ring.submission().is_full() {
                return;
            }
        }
        self.take(complete);
        // A ring of the bell that was taken here is news, too, and another one would not be heard before `fill`.
        let want = usize::from(complete.len() == before && !self.deaf);
        if want == 0 && self.ring.submission().is_empty() {
            return;
        }
        self.enter(timeout, want);
        self.take(complete);
    }
}

impl Drop for Uring {
    /// Nothing may be written to memory that is somebody else's by then.
    fn drop(&mut self) {
        let mut complete = Vec::new();
        while self.flying > 0 {
            self.wait(Some(Duration::from_millis(100)), &mut complete);
        }
        // The bell's read is the only one left.
        if !self.deaf {
            self.bell.ring();
            while !self.deaf {
                self.enter(Some(Duration::from_millis(100)), 1);
                self.take(&mut complete);
            }
        }
    }
}

/// A ring with the best modes that the kernel has.
fn ring() -> std::io::Result<(IoUring, &'static str)> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_cqsize(4 * ENTRIES).setup_submit_all();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    match builder.build(ENTRIES) {
        Ok(ring) => return Ok((ring, "completions when the loop looks (DEFER_TASKRUN)")),
        Err(error) if errno(&error) != Errno::INVAL => return Err(error),
        Err(_) => {}
    }
    let mut builder = IoUring::builder();
    builder.dontfork().setup_cqsize(4 * ENTRIES);
    Ok((builder.build(ENTRIES)?, "completions by interrupting the loop (no DEFER_TASKRUN before Linux 6.1)"))
}

fn explain(error: &std::io::Error) -> String {
    match errno(error) {
        Errno::NOSYS => "the kernel has none".into(),
        Errno::PERM | Errno::ACCESS => {
            format!(
                "{error}: allow io_uring in kernel.io_uring_disabled and in the container's seccomp profile"
            )
        }
        Errno::NOMEM => format!("{error}: raise `ulimit -l`"),
        _ => error.to_string(),
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
