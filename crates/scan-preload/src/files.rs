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

use crate::limits::{IDLE, MAX_FILES, MAX_LARGE_READS, MAX_STREAMS};
use crate::service::{self, Reader};
use crate::settings::settings;
use crate::statistics::{FILES, FILES_CHANGED, FILES_REFUSED, REGIONS_RESIDENT, STREAMS};
use crate::streams::{Stream, Target, copy_large};

/// Bytes of a file of which one answer says whether the page cache has them: much more than the kernel reads ahead, because what it
/// has just read ahead does not make a file resident.
const REGION: u64 = 32 << 20;
/// A region is looked at in so many places, of so many bytes each.
const SAMPLES: u64 = 8;
const SAMPLE: u64 = 64 << 10;
/// A region is resident if so many places are.
const RESIDENT_SAMPLES: u64 = 6;

/// A stream, and where it is without its lock.
struct Place {
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

/// A version of a file that is served.
pub struct ServedFile {
    version: FileVersion,
    streams: Mutex<Vec<Arc<Place>>>,
    /// Readers for large reads that no call uses, and how many there are in all.
    large: Mutex<(Vec<Reader>, usize)>,
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
fn may_be_served(file: BorrowedFd<'_>) -> bool {
    let Some(settings) = settings() else { return false };
    let Ok(stat) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS) else { return false };
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile
        && stat.stx_size >= settings.minimum
}

/// The served file of a descriptor, which begins to be served if it may be and is not.
pub fn find_or_serve(file: BorrowedFd<'_>) -> Option<Arc<ServedFile>> {
    if !is_readable(file) || !may_be_served(file) {
        return None;
    }
    let known = all().iter().find(|known| known.is_current(file)).cloned();
    if known.is_some() {
        return known;
    }
    let Some(reader) = service::reader(file) else {
        FILES_REFUSED.add(1);
        return None;
    };
    let served = Arc::new(ServedFile {
        version: *reader.ranges.version(),
        streams: Mutex::default(),
        large: Mutex::new((vec![reader], 1)),
        is_over: AtomicBool::new(false),
        used: Mutex::new(Instant::now()),
    });
    if !served.is_current(file) {
        return None;
    }
    let mut files = all();
    if files.len() >= MAX_FILES {
        let oldest = (0..files.len()).min_by_key(|at| *lock(&files[*at].used))?;
        files.swap_remove(oldest).is_over.store(true, Ordering::Relaxed);
    }
    files.push(served.clone());
    FILES.add(1);
    Some(served)
}

/// Drops files that no descriptor is known to be open for.
pub fn tidy() {
    // Nothing is dropped under the lock.
    let unused: Vec<_> = all().extract_if(.., |file| Arc::strong_count(file) == 1).collect();
    drop(unused);
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
        own()
            .find(|place| place.next.load(Ordering::Relaxed) == offset)
            .or_else(|| own().find(has_it))
            .cloned()
    }

    /// Copies a range of this version. `false`: it is left to the kernel; some of the target may be written.
    pub fn copy(&self, file: BorrowedFd<'_>, range: Range<u64>, target: &mut Target<'_>) -> bool {
        if self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        match self.stream_at(file.as_raw_fd(), range.start) {
            Some(place) => self.copy_from(&place, file, range, target),
            None if range.end - range.start
                >= settings().map_or(u64::MAX, |set| set.thresholds.large_read) =>
            {
                self.copy_large(file, range, target)
            }
            None => false,
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
        if !is_copied {
            lock(&self.streams).retain(|other| !Arc::ptr_eq(other, place));
        }
        is_copied
    }

    fn copy_large(&self, file: BorrowedFd<'_>, range: Range<u64>, target: &mut Target<'_>) -> bool {
        if is_resident(file, range.clone(), 4).unwrap_or(true) {
            return false;
        }
        let Some(reader) = self.take_reader(file) else { return false };
        let is_copied = copy_large(&reader.ranges, range, target).is_some();
        let mut large = lock(&self.large);
        if is_copied {
            large.0.push(reader);
        } else {
            large.1 -= 1;
        }
        is_copied
    }

    /// A reader for a large read, or for a stream.
    fn take_reader(&self, file: BorrowedFd<'_>) -> Option<Reader> {
        {
            let mut large = lock(&self.large);
            if let Some(reader) = large.0.pop() {
                return Some(reader);
            }
            if large.1 >= MAX_LARGE_READS {
                return None;
            }
            large.1 += 1;
        }
        let reader = self.new_reader(file);
        if reader.is_none() {
            lock(&self.large).1 -= 1;
        }
        reader
    }

    fn new_reader(&self, file: BorrowedFd<'_>) -> Option<Reader> {
        let reader = service::reader(file)?;
        if *reader.ranges.version() == self.version {
            return Some(reader);
        }
        self.end();
        None
    }

    /// Begins a sequential stream, unless the page cache has what comes next. The stream is found by its first read.
    pub fn begin_stream(&self, file: BorrowedFd<'_>, offset: u64) -> bool {
        *lock(&self.used) = Instant::now();
        let Some(settings) = settings() else { return false };
        if self.size().saturating_sub(offset) < settings.thresholds.short_rest
            || self.next_region(file, offset).is_none()
        {
            return false;
        }
        let first = {
            let mut large = lock(&self.large);
            let reader = large.0.pop();
            large.1 -= usize::from(reader.is_some());
            reader
        };
        let Some(reader) = first.or_else(|| self.new_reader(file)) else { return false };
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
        true
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
