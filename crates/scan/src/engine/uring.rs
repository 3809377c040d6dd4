//! The io_uring engine.
//!
//! One system call per round of the control loop submits all reads and waits. The engine registers files and memory if the
//! kernel's tables have room and the limit on locked memory allows it. Otherwise each read names its file or memory, which costs
//! more per read. The engine tries to register each file or memory once, when the loop adds it. A failure does not affect later
//! attempts.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::io::Errno;

use super::{Bell, Completion, Engine, Kind, Read};
use crate::memory::Buffer;
use crate::{Error, Result};

const ENTRIES: u32 = 256;
/// Maximum number of registered files. Reads of other files use their descriptors.
const FILES: usize = 1024;
/// Maximum number of registered memories. Reads into other memories use their addresses.
const MEMORIES: usize = 1024;
/// The token of the read that waits for the bell. The loop's tokens are smaller.
const BELL: u64 = u64::MAX;

/// A table of files or memories, each with a flag that says whether it is registered. The kernel's table covers only the first
/// places.
struct Table<T> {
    items: Vec<Option<(T, bool)>>,
    /// Number of places in the kernel's table, or the error that prevented the table.
    kernel: std::result::Result<usize, Errno>,
}

impl<T> Table<T> {
    /// Creates an empty table. `made` is the result of creating the kernel's table with `places` places.
    fn new(places: usize, made: std::io::Result<()>) -> Self {
        Self { items: Vec::new(), kernel: made.map(|()| places).map_err(|error| errno(&error)) }
    }

    /// Returns the first free place, and whether the kernel's table has that place. There always is one, because the table grows.
    fn place(&mut self) -> (usize, bool) {
        let place = self.items.iter().position(Option::is_none).unwrap_or_else(|| {
            self.items.push(None);
            self.items.len() - 1
        });
        (place, self.kernel.is_ok_and(|places| place < places))
    }

    fn get(&self, index: usize) -> &(T, bool) {
        self.items[index].as_ref().expect("the loop uses what it added")
    }
}

pub(super) struct Uring {
    ring: IoUring,
    files: Table<Arc<OwnedFd>>,
    memories: Table<Buffer>,
    modes: &'static str,
    bell: Arc<Bell>,
    /// The kernel writes the bell's count here. The allocation must live as long as the ring.
    count: Box<u64>,
    /// No read of the bell is in progress: it is complete, or was not queued yet.
    deaf: bool,
    /// Number of accepted reads that are not complete.
    flying: usize,
    /// Entries that are not yet in the submission queue.
    waiting: Vec<squeue::Entry>,
}

impl Uring {
    /// Creates a ring.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the kernel lacks a feature that the engine needs.
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
        let files = Table::new(FILES, ring.submitter().register_files_sparse(FILES as u32));
        let memories = Table::new(MEMORIES, ring.submitter().register_buffers_sparse(MEMORIES as u32));
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
        let (memory, registered) = self.memories.get(read.memory);
        assert!(read.at.checked_add(read.len).is_some_and(|end| end <= memory.bytes()));
        let start = memory.start().wrapping_add(read.at);
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

    /// Moves waiting entries into the submission queue.
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
            // SAFETY: until the read is complete, the table keeps the memory of the frames, and the engine keeps the bell's
            // count. The loop removes memory only after the read, and `drop` waits for all reads. `entry` has checked the range.
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

    /// Submits the queue, and waits for `want` completions or until the timeout expires.
    fn enter(&mut self, timeout: Option<Duration>, want: usize) {
        let time = timeout.map(|t| Timespec::new().sec(t.as_secs()).nsec(t.subsec_nanos()));
        let result = match &time {
            Some(time) => self.ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(time)),
            None => self.ring.submitter().submit_and_wait(want),
        };
        match result {
            Ok(_) => {}
            Err(error) => match errno(&error) {
                // TIME: the timeout expired. INTR: a signal arrived. BUSY: the loop must take completions before it submits more.
                // AGAIN: memory is short, and completions or the next round will free some.
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
        let said = |what: &str, kernel: std::result::Result<usize, Errno>| match kernel {
            Ok(_) => format!("registered {what}"),
            Err(error) => format!("{what} not registered ({error})"),
        };
        let (files, memory) = (said("files", self.files.kernel), said("memory", self.memories.kernel));
        format!("io_uring, {}, {files}, {memory}", self.modes)
    }

    fn add_file(&mut self, file: Arc<OwnedFd>) -> Result<usize> {
        let (place, mut registered) = self.files.place();
        if registered
            && let Err(error) = self.ring.submitter().register_files_update(place as u32, &[file.as_raw_fd()])
        {
            tracing::debug!("a file is not registered: {error}");
            registered = false;
        }
        self.files.items[place] = Some((file, registered));
        Ok(place)
    }

    fn remove_file(&mut self, file: usize) {
        if let Some((_, true)) = self.files.items[file].take() {
            let _ = self.ring.submitter().register_files_update(file as u32, &[-1]);
        }
    }

    fn add_memory(&mut self, memory: Buffer) -> Result<usize> {
        let (place, mut registered) = self.memories.place();
        if registered {
            let vector = [libc::iovec { iov_base: memory.start().cast(), iov_len: memory.bytes() }];
            // SAFETY: the table keeps the memory until `remove_memory`, which also removes it from the kernel's table.
            let update =
                unsafe { self.ring.submitter().register_buffers_update(place as u32, &vector, None) };
            if let Err(error) = update {
                tracing::debug!("memory for scans is not registered: {error}");
                registered = false;
            }
        }
        self.memories.items[place] = Some((memory, registered));
        Ok(place)
    }

    fn remove_memory(&mut self, memory: usize) {
        if let Some((_, true)) = self.memories.items[memory].take() {
            let none = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
            // SAFETY: the new vector is empty, so the kernel refers to no memory.
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
        // More entries wait than the queue holds, so the engine submits the queue first.
        while !self.waiting.is_empty() {
            self.enter(Some(Duration::ZERO), 0);
            self.take(complete);
            self.fill();
            if complete.len() > before && self.ring.submission().is_full() {
                return;
            }
        }
        self.take(complete);
        // The completion of the bell's read is an event, too, so the engine must not wait then. It would not notice another ring
        // until `fill` queues a new read.
        let want = usize::from(complete.len() == before && !self.deaf);
        if want == 0 && self.ring.submission().is_empty() {
            return;
        }
        self.enter(timeout, want);
        self.take(complete);
    }
}

impl Drop for Uring {
    /// Waits for all reads, because the kernel must not write to memory that has a new owner.
    fn drop(&mut self) {
        let mut complete = Vec::new();
        while self.flying > 0 {
            self.wait(Some(Duration::from_millis(100)), &mut complete);
        }
        // Only the bell's read is left.
        if !self.deaf {
            self.bell.ring();
            while !self.deaf {
                self.enter(Some(Duration::from_millis(100)), 1);
                self.take(&mut complete);
            }
        }
    }
}

/// Creates a ring with the best modes that the kernel supports.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{FRAME, Frames};
    use rustix::fs::{Mode, OFlags};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    fn engine() -> Option<Uring> {
        match Uring::new(Arc::new(Bell::new().unwrap())) {
            Ok(engine) => Some(engine),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    /// Reads a page from the beginning of a file into the beginning of a memory, and returns the result.
    fn read(engine: &mut Uring, file: usize, memory: usize) -> std::result::Result<usize, Errno> {
        engine.submit(Read { token: 1, file, offset: 0, memory, at: 0, len: 4096 });
        let mut complete = Vec::new();
        while complete.is_empty() {
            engine.wait(Some(Duration::from_secs(10)), &mut complete);
        }
        complete[0].result
    }

    fn page() -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 0).unwrap();
        file
    }

    /// The engine also reads files and memories for which the kernel's tables have no room. It can use freed places again.
    #[test]
    fn what_the_tables_have_no_room_for_is_not_registered() {
        let limit = getrlimit(Resource::Nofile);
        // For unprivileged users, the kernel counts registered files towards the limit on descriptors.
        let needed = (FILES + 256) as u64;
        if limit.maximum.is_some_and(|most| most < needed) {
            eprintln!("skipped: {:?} descriptors at most (ulimit -Hn): {needed} are needed", limit.maximum);
            return;
        }
        if limit.current.is_some_and(|now| now < needed) {
            setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum }).unwrap();
        }
        let Some(mut engine) = engine() else { return };
        let (file, frames) = (page(), Frames::new(1).unwrap().buffer());
        let files: Vec<usize> = (0..FILES + 10)
            .map(|_| engine.add_file(Arc::new(file.try_clone().unwrap().into())).unwrap())
            .collect();
        let memories: Vec<usize> =
            (0..MEMORIES + 10).map(|_| engine.add_memory(frames.clone()).unwrap()).collect();
        assert_eq!((engine.files.get(FILES).1, engine.memories.get(MEMORIES).1), (false, false));
        for place in [0, FILES - 1, FILES, FILES + 9] {
            assert_eq!(read(&mut engine, files[place], memories[place]), Ok(4096), "place {place}");
            assert_eq!(read(&mut engine, files[place], memories[0]), Ok(4096), "place {place}");
        }
        for place in [3, FILES + 3] {
            engine.remove_file(files[place]);
            engine.remove_memory(memories[place]);
        }
        for place in [3, FILES + 3] {
            assert_eq!(engine.add_file(Arc::new(file.try_clone().unwrap().into())).unwrap(), place);
            assert_eq!(engine.add_memory(frames.clone()).unwrap(), place);
            assert_eq!(read(&mut engine, place, place), Ok(4096));
        }
    }

    /// A file that cannot be registered does not affect the next file. A file opened with `O_PATH` is an example.
    #[test]
    fn a_registration_that_fails_is_of_one_file_alone() {
        let Some(mut engine) = engine() else { return };
        if engine.files.kernel.is_err() {
            eprintln!("skipped: files cannot be registered here ({:?})", engine.files.kernel);
            return;
        }
        let path = rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let wrong = engine.add_file(Arc::new(path)).unwrap();
        let file = engine.add_file(Arc::new(page().into())).unwrap();
        assert_eq!((engine.files.get(wrong).1, engine.files.get(file).1), (false, true));
        let memory = engine.add_memory(Frames::new(1).unwrap().buffer()).unwrap();
        assert!(engine.memories.get(memory).0.bytes() == FRAME);
        assert_eq!(read(&mut engine, file, memory), Ok(4096));
        assert_eq!(read(&mut engine, wrong, memory), Err(Errno::BADF));
        engine.remove_file(wrong);
        engine.remove_file(file);
        engine.remove_memory(memory);
    }
}
