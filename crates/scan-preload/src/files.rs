//! Files that are served: which are, and their readers.

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
use crate::limits::{IDLE, MAX_FILES, MAX_STREAMS, REGION, RUN_GAP};
use crate::regions::Regions;
use crate::service::{self, Reader, Refusal};
use crate::settings::settings;
use crate::statistics::{FILES, FILES_CHANGED, FILES_REFUSED, REGIONS_RESIDENT, STREAMS};
use crate::streams::{Stream, Target};

/// A region is looked at in so many places, of so many bytes each.
const SAMPLES: u64 = 8;
const SAMPLE: u64 = 64 << 10;
/// A region is resident if so many places are.
const RESIDENT_SAMPLES: u64 = 6;

/// A stream, and where it is without its lock.
pub struct Place {
    /// The descriptor by which the stream is read.
    descriptor: i32,
    /// Where the stream's latest read ended: the next one is expected there.
    next: AtomicU64,
    /// Blocks that the stream has.
    start: AtomicU64,
    end: AtomicU64,
    used: Mutex<Instant>,
    stream: Mutex<Stream>,
}

impl Place {
    fn is_idle(&self) -> bool {
        lock(&self.used).elapsed() >= IDLE
    }
}

/// What serves a read.
pub enum Source {
    Stream(Arc<Place>),
    Large,
}

/// Whether a stream began.
pub enum Begun {
    /// It did, and its first read finds it.
    Stream,
    /// There are too few bytes left to the end of the file.
    NearEnd,
    /// The page cache has what comes next, or the file cannot be read.
    No,
}

/// A version of a file that is served.
pub struct ServedFile {
    version: FileVersion,
    streams: Mutex<Vec<Arc<Place>>>,
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

/// Whether a file is one that may be served: a regular file that is large enough.
pub fn may_be_served(file: BorrowedFd<'_>) -> bool {
    let Some(settings) = settings() else { return false };
    let Ok(stat) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS) else { return false };
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile
        && stat.stx_size >= settings.minimum
        && !has_lease(file)
}

/// Whether the program has a lease of the file, which the daemon would break when it opens the file.
fn has_lease(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the descriptor is asked for its lease.
    let lease = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) };
    lease != libc::F_UNLCK
}

/// The served file of a descriptor, which begins to be served if it may be and is not.
pub fn find_or_serve(file: BorrowedFd<'_>) -> Result<Arc<ServedFile>, Refusal> {
    if !is_readable(file) || !may_be_served(file) {
        return Err(Refusal::ForLong);
    }
    let find = |files: &[Arc<ServedFile>]| files.iter().find(|known| known.is_current(file)).cloned();
    let known = find(&all());
    if let Some(known) = known {
        return Ok(known);
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
    // Another thread may have been faster.
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

/// Drops files that no descriptor is known to be open for.
pub fn tidy() {
    // Nothing is dropped under the lock.
    let unused: Vec<_> = all().extract_if(.., |file| Arc::strong_count(file) == 1).collect();
    drop(unused);
}

/// Drops what no read has used for a while, of all files: a program may keep descriptors open that it does not read by.
fn drop_idle() {
    let files = all().clone();
    for file in files {
        let idle: Vec<_> = lock(&file.streams).extract_if(.., |place| place.is_idle()).collect();
        drop(idle);
        if lock(&file.used).elapsed() >= IDLE {
            while let Some(reader) = file.large.take_idle() {
                drop(reader);
            }
        }
    }
}

impl ServedFile {
    /// Whether a descriptor is open for this file, and the file has still this version.
    pub fn is_current(&self, file: BorrowedFd<'_>) -> bool {
        !self.is_over.load(Ordering::Relaxed) && self.version.is_current(file).unwrap_or(false)
    }

    /// The version is not, or may not be, the file's any more.
    pub fn end(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            FILES_CHANGED.add(1);
        }
    }

    /// The size of the file, in bytes.
    pub fn size(&self) -> u64 {
        self.version.size()
    }

    /// The stream of a descriptor that a read continues; if there is none, one that has what is read.
    ///
    /// Several threads may scan a file by one descriptor, some of them close behind others. Each has a stream, because what one has read
    /// the others' streams still need.
    fn stream_at(&self, descriptor: i32, offset: u64) -> Option<Arc<Place>> {
        let streams = lock(&self.streams);
        let own = || streams.iter().filter(|place| place.descriptor == descriptor);
        let has_it = |place: &&Arc<Place>| {
            (place.start.load(Ordering::Relaxed)..place.end.load(Ordering::Relaxed)).contains(&offset)
        };
        // Behind where it ended, or a little further on.
        let gap = |place: &&Arc<Place>| {
            offset.checked_sub(place.next.load(Ordering::Relaxed)).filter(|gap| *gap <= RUN_GAP)
        };
        let next = own().filter(|place| gap(place).is_some()).min_by_key(gap);
        next.or_else(|| own().find(has_it)).cloned()
    }

    /// What serves a read of a range by a descriptor. `None`: nothing does.
    pub fn find(&self, descriptor: i32, range: Range<u64>) -> Option<Source> {
        if range.is_empty() || self.is_over.load(Ordering::Relaxed) || service::is_paused() {
            return None;
        }
        match self.stream_at(descriptor, range.start) {
            Some(place) => Some(Source::Stream(place)),
            None => (range.end - range.start >= settings()?.thresholds.large_read).then_some(Source::Large),
        }
    }

    /// Copies a range of this version. `false`: it is left to the kernel; some of the target may be written.
    pub fn copy(
        &self,
        source: &Source,
        file: BorrowedFd<'_>,
        range: Range<u64>,
        target: &mut Target<'_>,
    ) -> bool {
        match source {
            Source::Stream(place) => self.copy_from(place, file, range, target),
            Source::Large => self.copy_large(file, range, target),
        }
    }

    fn copy_from(
        &self,
        place: &Arc<Place>,
        file: BorrowedFd<'_>,
        range: Range<u64>,
        target: &mut Target<'_>,
    ) -> bool {
        let mut stream = lock(&place.stream);
        if range.start < stream.covered().start {
            // Another thread has read on.
            return false;
        }
        let is_copied = stream.copy(range.clone(), target, |at| self.next_region(file, at)).is_some();
        let covered = stream.covered();
        place.start.store(covered.start, Ordering::Relaxed);
        place.end.store(covered.end, Ordering::Relaxed);
        place.next.store(range.end, Ordering::Relaxed);
        drop(stream);
        *lock(&place.used) = Instant::now();
        // At the end of the file it has done its work.
        if !is_copied || range.end == self.size() {
            lock(&self.streams).retain(|other| !Arc::ptr_eq(other, place));
        }
        is_copied
    }

    fn copy_large(&self, file: BorrowedFd<'_>, range: Range<u64>, target: &mut Target<'_>) -> bool {
        *lock(&self.used) = Instant::now();
        !self.is_region_resident(file, range.start)
            && self.large.copy(range, target, || self.new_reader(file)).is_some()
    }

    /// Whether a large read is left to the page cache, because that has its region.
    fn is_region_resident(&self, file: BorrowedFd<'_>, offset: u64) -> bool {
        let start = offset / REGION * REGION;
        self.regions.answer(offset / REGION, || {
            is_resident(file, start..(start + REGION).min(self.size()), SAMPLES).unwrap_or(true)
        })
    }

    fn new_reader(&self, file: BorrowedFd<'_>) -> Option<Reader> {
        let reader = service::reader(file).ok()?;
        if *reader.ranges.version() == self.version {
            return Some(reader);
        }
        self.end();
        None
    }

    /// Begins a sequential stream, unless the page cache has what comes next. The stream is found by its first read.
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
        let place = Place {
            descriptor: file.as_raw_fd(),
            next: AtomicU64::new(offset),
            start: AtomicU64::new(offset),
            end: AtomicU64::new(offset),
            used: Mutex::new(Instant::now()),
            stream: Mutex::new(Stream::new(reader)),
        };
        let mut streams = lock(&self.streams);
        let mut gone: Vec<_> = streams.extract_if(.., |place| place.is_idle()).collect();
        if streams.len() >= MAX_STREAMS {
            let oldest = (0..streams.len()).min_by_key(|at| *lock(&streams[*at].used));
            gone.extend(oldest.map(|at| streams.swap_remove(at)));
        }
        streams.push(Arc::new(place));
        drop((streams, gone));
        STREAMS.add(1);
        Begun::Stream
    }

    /// Where the region ends that begins at an offset. `None`: the page cache has it, or nobody says whether.
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

/// Whether the page cache has a range, by looking at so many places of it. `None`: the kernel does not tell this process.
fn is_resident(file: BorrowedFd<'_>, range: Range<u64>, samples: u64) -> Option<bool> {
    if settings().is_some_and(|settings| settings.serves_resident) {
        return Some(false);
    }
    // SAFETY: the program's descriptor, which is not closed here: closing any descriptor of a file drops the process's record locks.
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

/// A descriptor of the program, for the time of a call.
///
/// # Safety
/// The caller got the descriptor from the program. The program may close it during the call; then system calls by it fail, or are about
/// another file, which [`ServedFile::is_current`] notices.
pub unsafe fn borrow<'a>(descriptor: i32) -> BorrowedFd<'a> {
    // SAFETY: as above; it is not -1, which callers have checked.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}
