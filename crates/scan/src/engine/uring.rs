//! Reads by io_uring.
//!
//! One system call per round of the control loop submits everything and waits. Files and memory are registered where the
//! kernel's tables have room for them and the limit on locked memory allows it; otherwise reads name them, which costs more for
//! each. Each is tried once, when it is added: one that cannot be registered says nothing of the next.

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
/// Files that can be registered; more are read by their descriptors.
const FILES: usize = 1024;
/// Memories that can be registered; more are read into by their addresses.
const MEMORIES: usize = 1024;
/// The token of the read that waits for the bell; those of the loop are below.
const BELL: u64 = u64::MAX;

/// Something at a place of a table. At the first places it may be registered, too.
struct Table<T> {
    items: Vec<Option<(T, bool)>>,
    /// Places of the kernel's table, or why there is none.
    kernel: std::result::Result<usize, Errno>,
}

impl<T> Table<T> {
    /// A table beside the kernel's of so many places, if that could be made.
    fn new(places: usize, made: std::io::Result<()>) -> Self {
        Self { items: Vec::new(), kernel: made.map(|()| places).map_err(|error| errno(&error)) }
    }

    /// The first free place, and whether the kernel's table has it. There is always one.
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

    fn add_memory(&mut self, memory: Arc<Frames>) -> Result<usize> {
        let (place, mut registered) = self.memories.place();
        if registered {
            let mapping = memory.mapping();
            let vector = [libc::iovec { iov_base: mapping.start().cast(), iov_len: mapping.bytes() }];
            // SAFETY: the table keeps the memory until it is removed, from the kernel's table, too.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FRAME;
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

    /// More than the kernel's tables have places for are used all the same, and the places can be used again.
    #[test]
    fn what_the_tables_have_no_room_for_is_not_registered() {
        let limit = getrlimit(Resource::Nofile);
        // The kernel counts registered files, too, for those who may not have as many as they like.
        let needed = (FILES + 256) as u64;
        if limit.maximum.is_some_and(|most| most < needed) {
            eprintln!("skipped: {:?} descriptors at most (ulimit -Hn): {needed} are needed", limit.maximum);
            return;
        }
        if limit.current.is_some_and(|now| now < needed) {
            setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum }).unwrap();
        }
        let Some(mut engine) = engine() else { return };
        let (file, frames) = (page(), Arc::new(Frames::new(1).unwrap()));
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

    /// A file that cannot be registered, as such that are open for their path alone, says nothing of the next one.
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
        let memory = engine.add_memory(Arc::new(Frames::new(1).unwrap())).unwrap();
        assert!(engine.memories.get(memory).0.mapping().bytes() == FRAME);
        assert_eq!(read(&mut engine, file, memory), Ok(4096));
        assert_eq!(read(&mut engine, wrong, memory), Err(Errno::BADF));
        engine.remove_file(wrong);
        engine.remove_file(file);
        engine.remove_memory(memory);
    }
}
