//! Descriptors of the program: how they are read, and the files that are served by them.
//!
//! What is known here is a guess, because the program may close and open descriptors by ways that the library does not see. A wrong
//! guess costs time and nothing else.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bedplate_scan::FRAME;
use bedplate_threads::forks::PerProcess;
use rustix::fs::{Advice, SeekFrom};

use crate::files::{self, Begun, ServedFile};
use crate::limits::{MAX_DESCRIPTORS, MAX_PASSED, MAX_RUNS, MOST, POSITIONS, RUN_GAP, RUN_READS};
use crate::process;
use crate::service::Refusal;
use crate::settings::settings;

/// Descriptors of which memory is made at a time.
const GROUP: usize = 256;

#[derive(Default)]
struct Entry {
    /// Whether `state` has a file. It is asked without the lock.
    is_served: AtomicBool,
    /// Where the latest read ended that was served.
    end: AtomicU64,
    /// Whether that read began where the one before it had ended.
    is_in_sequence: AtomicBool,
    /// The part of the file for which the descriptor's mode was looked at.
    checked: AtomicU64,
    /// Whether the kernel does not read ahead for the descriptor.
    is_random: AtomicBool,
    /// Reads that were passed on since one was served.
    passed: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<Arc<ServedFile>>,
    /// Runs of reads, the one that was continued last at the end. Several threads may each have one.
    runs: Vec<Run>,
    /// Bytes of large reads, as far as the file is not served.
    large: u64,
    /// Bytes that `read` has read since the descriptor was last asked for its position.
    unpositioned: u64,
    /// Bytes that are read before the file is looked at again.
    rest: u64,
}

/// Reads that follow each other, with small gaps.
#[derive(Clone, Copy)]
struct Run {
    start: u64,
    /// Where the latest read ended.
    next: u64,
    /// Bytes that were read. Where there are gaps they are fewer than `next` is behind `start`.
    bytes: u64,
    reads: u32,
}

impl Run {
    /// Whether a read that begins at an offset continues it.
    fn is_continued_at(&self, offset: u64) -> bool {
        offset.abs_diff(self.next) <= RUN_GAP
    }

    /// Whether it has more in its gaps than was read.
    fn is_sparse(&self) -> bool {
        self.next.saturating_sub(self.start) > 2 * self.bytes
    }

    /// Whether it is long enough to be sequential.
    fn is_sequential(&self, enough: u64) -> bool {
        self.bytes >= enough && self.reads >= RUN_READS && !self.is_sparse()
    }
}

/// Entries, if any of them is needed.
type Group = OnceLock<Box<[Entry]>>;

#[derive(Default)]
struct Table {
    groups: OnceLock<Box<[Group]>>,
    /// The process that has it.
    process: OnceLock<u32>,
}

static OWN: PerProcess<Table> = PerProcess::new();

/// Whether this is the process that has the table, and not a child that shares its memory.
pub fn is_own_process() -> bool {
    *OWN.get().process.get_or_init(std::process::id) == std::process::id()
}

/// The entry of a descriptor. `make`: it is made if there is none.
fn entry(descriptor: i32, make: bool) -> Option<&'static Entry> {
    let number = usize::try_from(descriptor).ok().filter(|number| *number < MAX_DESCRIPTORS)?;
    if make {
        OWN.get().process.get_or_init(std::process::id);
    }
    let groups =
        OWN.get().groups.get_or_init(|| (0..MAX_DESCRIPTORS / GROUP).map(|_| Group::new()).collect());
    let group = &groups[number / GROUP];
    let entries = match make {
        true => group.get_or_init(|| (0..GROUP).map(|_| Entry::default()).collect()),
        false => group.get()?,
    };
    Some(&entries[number % GROUP])
}

impl Entry {
    /// Has the kernel read ahead for the descriptor, or not. Short reads between large ones, which are left to the kernel, would fill the
    /// page cache with what the library reads.
    fn set_read_ahead(&self, descriptor: i32, is_on: bool) {
        if self.is_random.swap(!is_on, Ordering::Relaxed) == is_on {
            let advice = if is_on { Advice::Normal } else { Advice::Random };
            // SAFETY: the program's descriptor, of which nothing else changes.
            let _ = rustix::fs::fadvise(unsafe { files::borrow(descriptor) }, 0, None, advice);
        }
    }
}

/// A descriptor by which a file is served.
pub struct Served {
    descriptor: i32,
    entry: &'static Entry,
    pub file: Arc<ServedFile>,
}

/// The file that is served by a descriptor.
pub fn served(descriptor: i32) -> Option<Served> {
    let entry = entry(descriptor, false)?;
    if !entry.is_served.load(Ordering::Acquire) {
        return None;
    }
    let file = entry.state.lock().unwrap_or_else(PoisonError::into_inner).file.clone()?;
    Some(Served { descriptor, entry, file })
}

impl Served {
    /// The descriptor's position for a read of so many bytes, or where it is if the program goes on to read in sequence. The caller moves
    /// it, and then learns where it was.
    pub fn position(&self, file: BorrowedFd<'_>, wanted: u64) -> Option<u64> {
        let end = self.entry.end.load(Ordering::Relaxed);
        // A read at the end of the file has a length that depends on the position.
        if self.entry.is_in_sequence.load(Ordering::Relaxed) && end + wanted.min(MOST) <= self.file.size() {
            return Some(end);
        }
        rustix::fs::seek(file, SeekFrom::Current(0)).ok()
    }

    /// Whether the descriptor is open for reads through the page cache. It is looked at once for each frame of the file that is read:
    /// its mode can change by calls that the library does not see.
    pub fn is_readable(&self, file: BorrowedFd<'_>, start: u64) -> bool {
        let part = start / FRAME as u64 + 1;
        if self.entry.checked.load(Ordering::Relaxed) == part {
            return true;
        }
        let is_readable = files::is_readable(file);
        self.entry.checked.store(if is_readable { part } else { 0 }, Ordering::Relaxed);
        is_readable
    }

    /// A large read was served by itself. When such reads follow each other, a stream reads ahead for them from then on.
    pub fn note_large(&self, file: BorrowedFd<'_>, start: u64, len: u64) {
        let (Ok(mut state), Some(settings)) = (self.entry.state.try_lock(), settings()) else { return };
        if state.continue_run(start, start + len, settings.thresholds.run) {
            drop(state);
            self.file.begin_stream(file, start + len);
        }
    }

    /// A read was served.
    pub fn note_served(&self, start: u64, len: u64) {
        let is_in_sequence = self.entry.end.swap(start + len, Ordering::Relaxed) == start;
        self.entry.is_in_sequence.store(is_in_sequence, Ordering::Relaxed);
        self.entry.passed.store(0, Ordering::Relaxed);
    }

    /// A read is left to the kernel. After many of them the descriptor is not served, until it is read in sequence again.
    pub fn note_passed(&self) {
        self.entry.is_in_sequence.store(false, Ordering::Relaxed);
        if self.entry.passed.fetch_add(1, Ordering::Relaxed) >= MAX_PASSED {
            self.entry.is_served.store(false, Ordering::Relaxed);
            self.entry.set_read_ahead(self.descriptor, true);
            self.entry.passed.store(0, Ordering::Relaxed);
        }
    }
}

/// Descriptors from one to another, both included, are closed.
pub fn forget_range(first: u32, last: u32) {
    if !process::is_usable() {
        return;
    }
    let Some(groups) = OWN.get().groups.get() else { return };
    // Most groups have no entries.
    let made = (0..groups.len()).filter(|at| groups[*at].get().is_some());
    for at in made {
        let all = (at * GROUP) as u32..((at + 1) * GROUP) as u32;
        all.filter(|number| (first..=last).contains(number)).for_each(|number| forget(number as i32));
    }
}

/// The program moves a descriptor's position.
pub fn forget_position(descriptor: i32) {
    if let Some(entry) = entry(descriptor, false) {
        entry.is_in_sequence.store(false, Ordering::Relaxed);
    }
}

/// A descriptor is closed, or becomes another file's.
pub fn forget(descriptor: i32) {
    let Some(entry) = entry(descriptor, false) else { return };
    // A child that shares this memory (`vfork`) closes its own descriptors.
    if !is_own_process() {
        return;
    }
    entry.is_served.store(false, Ordering::Release);
    // The program may have other descriptors for the same open file.
    entry.set_read_ahead(descriptor, true);
    entry.is_in_sequence.store(false, Ordering::Relaxed);
    entry.checked.store(0, Ordering::Relaxed);
    let old = std::mem::take(&mut *entry.state.lock().unwrap_or_else(PoisonError::into_inner));
    let was_known = old.file.is_some();
    drop(old);
    if was_known {
        files::tidy();
    }
}

/// The kernel read so many bytes by a descriptor, at an offset or at the descriptor's position. The file is served from now on, if it
/// may be.
pub fn note_read(descriptor: i32, offset: Option<u64>, bytes: usize) {
    let (Some(entry), Some(settings)) = (entry(descriptor, true), settings()) else { return };
    let thresholds = &settings.thresholds;
    // Threads that read by one descriptor do not wait for one another here.
    let Ok(mut state) = entry.state.try_lock() else { return };
    if state.rest > 0 {
        state.rest = state.rest.saturating_sub(bytes as u64);
        return;
    }
    let (start, end) = match offset {
        Some(offset) => (offset, offset + bytes as u64),
        None => {
            state.unpositioned += bytes as u64;
            if state.unpositioned < thresholds.run / POSITIONS {
                return;
            }
            let read = std::mem::take(&mut state.unpositioned);
            // SAFETY: the descriptor is asked for its position only.
            let position = rustix::fs::seek(unsafe { files::borrow(descriptor) }, SeekFrom::Current(0));
            let Ok(position) = position else {
                // It is no file.
                state.rest = u64::MAX;
                return;
            };
            // If the position was moved meanwhile, this is wrong, and the run soon ends.
            (position.saturating_sub(read), position)
        }
    };
    let is_long = bytes as u64 >= thresholds.large_read;
    if is_long {
        state.large += bytes as u64;
    }
    let is_large = is_long && state.large >= thresholds.run;
    let is_sequential = state.continue_run(start, end, thresholds.run);
    if !is_sequential && !is_large {
        return;
    }
    let known = state.file.clone();
    // Until it is known whether the file is served, which may take a while, reads are not noted.
    state.rest = u64::MAX;
    drop(state);
    // SAFETY: as above.
    let file = unsafe { files::borrow(descriptor) };
    let served = match known.filter(|known| known.is_current(file)) {
        Some(known) => Ok(known),
        None => files::find_or_serve(file),
    };
    let begun = match &served {
        Ok(served) if is_sequential => served.begin_stream(file, end),
        Ok(_) => Begun::NearEnd,
        Err(Refusal::ForNow) => Begun::NearEnd,
        Err(Refusal::ForLong) => Begun::No,
    };
    let Ok(mut state) = entry.state.lock() else { return };
    // Large reads look at the page cache themselves.
    let has_file = served.is_ok() && (is_large || matches!(begun, Begun::Stream));
    state.rest = if matches!(begun, Begun::No) && !has_file { thresholds.rest } else { 0 };
    if has_file {
        state.file = served.ok();
        entry.is_served.store(true, Ordering::Release);
        entry.set_read_ahead(descriptor, !is_large);
    }
}

impl State {
    /// Adds a read to the run that it continues, or to a new one. Gives whether that run is sequential, and has so many bytes; then it
    /// is over.
    fn continue_run(&mut self, start: u64, end: u64, enough: u64) -> bool {
        // The longest of them, where several are near: a program may read by offset and by position in turns.
        let near = (0..self.runs.len()).filter(|at| self.runs[*at].is_continued_at(start));
        let continued = near.max_by_key(|at| self.runs[*at].bytes);
        let mut run = match continued {
            Some(at) => self.runs.remove(at),
            None => {
                if self.runs.len() == MAX_RUNS {
                    self.runs.remove(0);
                }
                Run { start, next: start, bytes: 0, reads: 0 }
            }
        };
        run.bytes += end - start;
        run.reads += 1;
        run.next = end;
        if run.is_sequential(enough) {
            return true;
        }
        if run.bytes >= enough && run.is_sparse() {
            // It may be sequential from here on.
            run = Run { start: end, next: end, bytes: 0, reads: 0 };
        }
        self.runs.push(run);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RUN_BYTES;

    fn is_sequential_after(reads: impl IntoIterator<Item = (u64, u64)>) -> bool {
        let mut state = State::default();
        reads.into_iter().any(|(start, len)| state.continue_run(start, start + len, RUN_BYTES))
    }

    #[test]
    fn sequential_reads_are_told_from_others() {
        const SIZE: u64 = 8 << 10;
        let count = RUN_BYTES / SIZE;
        assert!(is_sequential_after((0..count).map(|at| (at * SIZE, SIZE))));
        assert!(!is_sequential_after((0..count - 1).map(|at| (at * SIZE, SIZE))));
        // With a gap of the same size after each.
        assert!(is_sequential_after((0..count).map(|at| (at * SIZE * 2, SIZE))));
        assert!(!is_sequential_after((0..count * 10).map(|at| (at * SIZE * 3, SIZE))));
        // Here and there.
        assert!(!is_sequential_after((0..count * 10).map(|at| (at * 7_919 % 1000 * (1 << 20), SIZE))));
        // A few that are as long as a run.
        assert!(!is_sequential_after((0..u64::from(RUN_READS) - 1).map(|at| (at * RUN_BYTES, RUN_BYTES))));
        assert!(is_sequential_after((0..u64::from(RUN_READS)).map(|at| (at * RUN_BYTES, RUN_BYTES))));
        // Backwards.
        assert!(!is_sequential_after((0..count * 10).rev().map(|at| (at * (1 << 20), SIZE))));
    }

    #[test]
    fn threads_by_one_descriptor_have_a_run_each() {
        let threads = MAX_RUNS as u64;
        let reads = |threads: u64| {
            (0..1000 * threads).map(move |at| (((at % threads) << 30) + at / threads * 4096, 4096))
        };
        assert!(is_sequential_after(reads(threads)));
        assert!(!is_sequential_after(reads(threads + 1)), "one more than are remembered");
    }
}
