//! The files that are served: the choice of these files, and their readers.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bedplate_scan::{FileVersion, resident_bytes};
use bedplate_threads::forks::PerProcess;
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, fcntl_getfl, statx};

use crate::large::LargeReads;
use crate::limits::{ANSWER_TIME, IDLE, MAX_FILES, MAX_STREAMS, REGION, RUN_GAP};
use crate::regions::Regions;
use crate::service::{self, Reader, Refusal};
use crate::settings::settings;
use crate::statistics::{FILES, FILES_CHANGED, FILES_REFUSED, REGIONS_RESIDENT, STREAMS};
use crate::streams::{Stream, Target};

/// Samples of a region that are looked up in the page cache.
const SAMPLES: u64 = 8;
/// Bytes of a sample.
const SAMPLE: u64 = 64 << 10;
/// Resident samples that make a region resident.
const RESIDENT_SAMPLES: u64 = 6;

/// A sequential stream of a file. Its position can be read without its lock.
pub struct OpenStream {
    /// The descriptor by which the stream is read.
    descriptor: i32,
    /// The end of the stream's latest read. The next read is expected there.
    next: AtomicU64,
    /// The range of the blocks that the stream has.
    start: AtomicU64,
    end: AtomicU64,
    used: Mutex<Instant>,
    stream: Mutex<Stream>,
}

impl OpenStream {
    /// Whether no read has used the stream for a while.
    fn is_idle(&self) -> bool {
        lock(&self.used).elapsed() >= IDLE
    }
}

/// The source of the bytes of a read.
pub enum Source {
    Stream(Arc<OpenStream>),
    Large,
}

/// The result of an attempt to begin a stream.
pub enum Begun {
    /// A stream began, and its first read finds it.
    Stream,
    /// There are too few bytes left to the end of the file.
    NearEnd,
    /// The page cache has the next region, or the file cannot be read.
    No,
}

/// A version of a file that is served.
pub struct ServedFile {
    version: FileVersion,
    streams: Mutex<Vec<Arc<OpenStream>>>,
    large: LargeReads,
    regions: Regions,
    is_over: AtomicBool,
    used: Mutex<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files of this process.
fn all() -> MutexGuard<'static, Vec<Arc<ServedFile>>> {
    static OWN: PerProcess<Mutex<Vec<Arc<ServedFile>>>> = PerProcess::new();
    lock(OWN.get())
}

/// Whether a descriptor is open for reads that go through the page cache.
pub fn is_readable(file: BorrowedFd<'_>) -> bool {
    fcntl_getfl(file).is_ok_and(|flags| {
        !flags.intersects(OFlags::PATH | OFlags::DIRECT)
            && flags.intersection(OFlags::RWMODE) != OFlags::WRONLY
    })
}

/// The size of a file that may be served, in bytes. It must be a regular file that is large enough, and the program must have no
/// lease on it.
pub fn size_to_serve(file: BorrowedFd<'_>) -> Option<u64> {
    let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()?;
    let is_regular = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    (is_regular && stat.stx_size >= settings()?.minimum && !has_lease(file)).then_some(stat.stx_size)
}

/// Whether the program has a lease on the file. The daemon would break the lease when it opens the file.
fn has_lease(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the kernel is asked for the descriptor's lease, and nothing else.
    let lease = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) };
    lease != libc::F_UNLCK
}

/// The served file of a descriptor. If the file is not served but may be, serving begins. A file that the page cache has around
/// `offset` does not begin to be served.
pub fn find_or_serve(file: BorrowedFd<'_>, offset: u64) -> Result<Arc<ServedFile>, Refusal> {
    let size = size_to_serve(file).filter(|_| is_readable(file)).ok_or(Refusal::ForLong)?;
    let find = |files: &[Arc<ServedFile>]| files.iter().find(|known| known.is_current(file)).cloned();
    let known = find(&all());
    if let Some(known) = known {
        return Ok(known);
    }
    if is_region_resident(file, offset, size) {
        REGIONS_RESIDENT.add(1);
        return Err(Refusal::ForLong);
    }
    drop_idle();
    let reader = service::reader(file).inspect_err(|_| FILES_REFUSED.add(1))?;
    let served = Arc::new(ServedFile {
        version: *reader.ranges.version(),
        streams: Mutex::default(),
        regions: Regions::of(reader.ranges.version().size()),
        large: LargeReads::new(reader),
        is_over: AtomicBool::new(false),
        used: Mutex::new(Instant::now()),
    });
    if !served.is_current(file) {
        return Err(Refusal::ForLong);
    }
    let mut files = all();
    // Another thread may have added the file meanwhile.
    if let Some(known) = find(&files) {
        return Ok(known);
    }
    if files.len() >= MAX_FILES {
        let oldest = (0..files.len()).min_by_key(|at| *lock(&files[*at].used));
        if let Some(at) = oldest {
            files.swap_remove(at).is_over.store(true, Ordering::Relaxed);
        }
    }
    files.push(served.clone());
    FILES.add(1);
    Ok(served)
}

/// Drops the files that no known descriptor is open for.
pub fn drop_unused() {
    // Nothing is dropped under the lock.
    let unused: Vec<_> = all().extract_if(.., |file| Arc::strong_count(file) == 1).collect();
    drop(unused);
}

/// Drops the streams and readers of all files that no read has used for [`IDLE`], because a program may keep descriptors open
/// without reading by them.
fn drop_idle() {
    let files = all().clone();
    for file in files {
        let idle: Vec<_> = lock(&file.streams).extract_if(.., |open| open.is_idle()).collect();
        drop(idle);
        if lock(&file.used).elapsed() >= IDLE {
            while let Some(reader) = file.large.take_idle() {
                drop(reader);
            }
        }
    }
}

impl ServedFile {
    /// Whether a descriptor is open for this file, and the file still has this version.
    pub fn is_current(&self, file: BorrowedFd<'_>) -> bool {
        !self.is_over.load(Ordering::Relaxed) && self.version.is_current(file).unwrap_or(false)
    }

    /// Stops serving the file, because it may have another version now.
    pub fn end(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            FILES_CHANGED.add(1);
        }
    }

    /// The size of the file, in bytes.
    pub fn size(&self) -> u64 {
        self.version.size()
    }

    /// The stream of a descriptor that a read continues. If there is none, a stream of the descriptor that has the first byte.
    ///
    /// Several threads may scan a file by one descriptor, some of them close behind others. Each has a stream, because the stream of a
    /// thread drops the blocks that the thread has read, and others still need them.
    fn stream_at(&self, descriptor: i32, offset: u64) -> Option<Arc<OpenStream>> {
        let streams = lock(&self.streams);
        let own = || streams.iter().filter(|open| open.descriptor == descriptor);
        let has_it = |open: &&Arc<OpenStream>| {
            (open.start.load(Ordering::Relaxed)..open.end.load(Ordering::Relaxed)).contains(&offset)
        };
        // The read begins at the end of the stream's latest read, or a little further on.
        let gap = |open: &&Arc<OpenStream>| {
            offset.checked_sub(open.next.load(Ordering::Relaxed)).filter(|gap| *gap <= RUN_GAP)
        };
        let next = own().filter(|open| gap(open).is_some()).min_by_key(gap);
        next.or_else(|| own().find(has_it)).cloned()
    }

    /// The source of a read of a range by a descriptor. `None`: the read is left to the kernel.
    pub fn find(&self, descriptor: i32, range: Range<u64>) -> Option<Source> {
        if range.is_empty() || self.is_over.load(Ordering::Relaxed) || service::is_paused() {
            return None;
        }
        match self.stream_at(descriptor, range.start) {
            Some(open) => Some(Source::Stream(open)),
            None => (range.end - range.start >= settings()?.thresholds.large_read).then_some(Source::Large),
        }
    }

    /// Copies a range of this version. `false`: the read is left to the kernel; some of the target may be written.
    pub fn copy(
        &self,
        source: &Source,
        file: BorrowedFd<'_>,
        range: Range<u64>,
        target: &mut Target<'_>,
    ) -> bool {
        match source {
            Source::Stream(open) => self.copy_from(open, file, range, target),
            Source::Large => self.copy_large(file, range, target),
        }
    }

    fn copy_from(
        &self,
        open: &Arc<OpenStream>,
        file: BorrowedFd<'_>,
        range: Range<u64>,
        target: &mut Target<'_>,
    ) -> bool {
        let mut stream = lock(&open.stream);
        if range.start < stream.covered().start {
            // Another thread has read further, and the stream has dropped the block.
            return false;
        }
        let is_copied = stream.copy(range.clone(), target, |at| self.next_region(file, at)).is_some();
        let covered = stream.covered();
        open.start.store(covered.start, Ordering::Relaxed);
        open.end.store(covered.end, Ordering::Relaxed);
        open.next.store(range.end, Ordering::Relaxed);
        drop(stream);
        *lock(&open.used) = Instant::now();
        // At the end of the file, the stream is no longer needed.
        if !is_copied || range.end == self.size() {
            lock(&self.streams).retain(|other| !Arc::ptr_eq(other, open));
        }
        is_copied
    }

    fn copy_large(&self, file: BorrowedFd<'_>, range: Range<u64>, target: &mut Target<'_>) -> bool {
        *lock(&self.used) = Instant::now();
        !self.is_region_resident(file, range.start)
            && self.large.copy(range, target, || self.new_reader(file)).is_some()
    }

    /// Whether the page cache has the region of a large read, so that the read is left to the kernel.
    fn is_region_resident(&self, file: BorrowedFd<'_>, offset: u64) -> bool {
        self.regions.answer(offset / REGION, ANSWER_TIME, || is_region_resident(file, offset, self.size()))
    }

    fn new_reader(&self, file: BorrowedFd<'_>) -> Option<Reader> {
        let reader = service::reader(file).ok()?;
        if *reader.ranges.version() == self.version {
            return Some(reader);
        }
        self.end();
        None
    }

    /// Begins a sequential stream, unless the page cache has the region that begins there. The stream's first read finds it.
    pub fn begin_stream(&self, file: BorrowedFd<'_>, offset: u64) -> Begun {
        *lock(&self.used) = Instant::now();
        let Some(settings) = settings() else { return Begun::No };
        if self.size().saturating_sub(offset) < settings.thresholds.stream {
            return Begun::NearEnd;
        }
        if self.next_region(file, offset).is_none() {
            return Begun::No;
        }
        let Some(reader) = self.large.take_idle().or_else(|| self.new_reader(file)) else { return Begun::No };
        let open = OpenStream {
            descriptor: file.as_raw_fd(),
            next: AtomicU64::new(offset),
            start: AtomicU64::new(offset),
            end: AtomicU64::new(offset),
            used: Mutex::new(Instant::now()),
            stream: Mutex::new(Stream::new(reader)),
        };
        let mut streams = lock(&self.streams);
        let mut gone: Vec<_> = streams.extract_if(.., |open| open.is_idle()).collect();
        if streams.len() >= MAX_STREAMS {
            let oldest = (0..streams.len()).min_by_key(|at| *lock(&streams[*at].used));
            gone.extend(oldest.map(|at| streams.swap_remove(at)));
        }
        streams.push(Arc::new(open));
        drop((streams, gone));
        STREAMS.add(1);
        Begun::Stream
    }

    /// The end of the region that begins at an offset. `None`: the page cache has the region, or the kernel does not tell.
    fn next_region(&self, file: BorrowedFd<'_>, offset: u64) -> Option<u64> {
        let end = (offset + REGION).min(self.size());
        match is_resident(file, offset..end, SAMPLES) {
            Some(false) => Some(end),
            Some(true) => {
                REGIONS_RESIDENT.add(1);
                None
            }
            None => None,
        }
    }
}

/// Whether the page cache has the region of an offset, in a file of `size` bytes. If the kernel does not tell, the region counts
/// as being in the page cache.
fn is_region_resident(file: BorrowedFd<'_>, offset: u64, size: u64) -> bool {
    let start = offset.min(size.saturating_sub(1)) / REGION * REGION;
    is_resident(file, start..(start + REGION).min(size), SAMPLES).unwrap_or(true)
}

/// Whether the page cache has a range, judged by samples of it. `None`: the kernel does not tell this process.
fn is_resident(file: BorrowedFd<'_>, range: Range<u64>, samples: u64) -> Option<bool> {
    if settings().is_some_and(|settings| settings.serves_resident) {
        return Some(false);
    }
    // SAFETY: the program's descriptor. It is not closed here, because that would drop the process's record locks on the file.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(file.as_raw_fd()) });
    let step = (range.end - range.start) / samples;
    let mut resident = 0;
    for sample in 0..samples {
        let start = range.start + sample * step;
        let end = (start + SAMPLE.min(step.max(1))).min(range.end);
        let bytes = resident_bytes(&file, start..end).ok()?;
        resident += u64::from(bytes * 2 >= end - start);
    }
    Some(resident * SAMPLES >= RESIDENT_SAMPLES * samples)
}

/// Borrows a descriptor of the program for the time of a call.
///
/// # Safety
/// The caller got the descriptor from the program. The program may close it during the call. Then system calls by it fail or concern
/// another file, which [`ServedFile::is_current`] notices.
pub unsafe fn borrow<'a>(descriptor: i32) -> BorrowedFd<'a> {
    // SAFETY: the caller's descriptor; callers have checked that it is not -1.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}
