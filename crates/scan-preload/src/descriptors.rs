//! Descriptors of the program: the way in which the program reads by them, and the served files that they are open for.
//!
//! An entry is a guess, because the program may close and open descriptors by calls that the library does not see. A wrong guess
//! only costs time.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bedplate_scan::FRAME;
use bedplate_threads::forks::PerProcess;
use rustix::fs::{Advice, SeekFrom};

use crate::files::{self, Begun, ServedFile};
use crate::limits::{
    MAX_DESCRIPTORS, MAX_PASSED, MAX_RUNS, MAX_STRAYS, MOST, POSITIONS, RUN_GAP, RUN_READS, RUNS_UNNOTED,
};
use crate::process;
use crate::service::Refusal;
use crate::settings::settings;

/// Descriptors whose entries are allocated together.
const GROUP: usize = 256;

#[derive(Default)]
struct Entry {
    /// Whether `state` has a file. Threads read it without the lock.
    is_served: AtomicBool,
    /// The end of the latest read that was served.
    end: AtomicU64,
    /// Whether that read began where the one before it had ended.
    is_in_sequence: AtomicBool,
    /// The frame of the file for which the descriptor's mode was checked, plus one.
    checked: AtomicU64,
    /// Whether the kernel does not read ahead for the descriptor.
    is_random: AtomicBool,
    /// Reads that were left to the kernel since one was served, including short ones.
    passed: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<Arc<ServedFile>>,
    /// Runs of reads, with the most recently continued one at the end. Several threads may each have one.
    runs: Vec<Run>,
    /// Bytes of large reads that the kernel served.
    large: u64,
    /// Bytes that `read` has read since the library last asked for the descriptor's position.
    unpositioned: u64,
    /// Bytes that the program must read before the library considers the file again.
    rest: u64,
    /// Reads since one continued a run.
    strays: u32,
}

/// A thread is checking whether the file is served. Reads are not recorded meanwhile.
const DECIDING: u64 = u64::MAX;
/// The descriptor does not refer to a file.
const NEVER: u64 = u64::MAX / 2;

/// Number of descriptors for which a thread remembers that it need not note reads.
const UNNOTED: usize = 8;

thread_local! {
    /// Descriptors, and the number of bytes that this thread reads by them before it notes a read again. Without this, several
    /// threads that read anywhere by one descriptor would contend for its lock at each read. A thread-local value without a
    /// destructor needs no allocation, so signal handlers may use it.
    static BYTES_UNNOTED: [Cell<(i32, u64)>; UNNOTED] = const { [const { Cell::new((-1, 0)) }; UNNOTED] };
}

/// Lets this thread read a number of bytes by a descriptor without noting the reads.
fn leave_unnoted(descriptor: i32, bytes: u64) {
    BYTES_UNNOTED.with(|all| all[descriptor as usize % UNNOTED].set((descriptor, bytes)));
}

/// Whether this thread need not note a read of this number of bytes.
pub fn is_unnoted(descriptor: i32, bytes: u64) -> bool {
    BYTES_UNNOTED.with(|all| {
        let unnoted = &all[descriptor as usize % UNNOTED];
        let (of, left) = unnoted.get();
        let is_unnoted = of == descriptor && bytes <= left;
        if is_unnoted {
            unnoted.set((of, left - bytes));
        }
        is_unnoted
    })
}

/// Reads that follow each other, with small gaps.
#[derive(Clone, Copy)]
struct Run {
    start: u64,
    /// The end of the latest read.
    next: u64,
    /// Bytes that were read, without the gaps.
    bytes: u64,
    reads: u32,
}

impl Run {
    /// Whether a read that begins at an offset continues it.
    fn is_continued_at(&self, offset: u64) -> bool {
        offset.abs_diff(self.next) <= RUN_GAP
    }

    /// Whether its gaps have more bytes than were read.
    fn is_sparse(&self) -> bool {
        self.next.saturating_sub(self.start) > 2 * self.bytes
    }

    /// Whether it is long enough to be sequential.
    fn is_sequential(&self, enough: u64) -> bool {
        self.bytes >= enough && self.reads >= RUN_READS && !self.is_sparse()
    }
}

/// The entries of a group. They are made when one of them is needed.
type Group = OnceLock<Box<[Entry]>>;

#[derive(Default)]
struct Table {
    groups: OnceLock<Box<[Group]>>,
    /// The process that made the table.
    process: OnceLock<u32>,
}

static OWN: PerProcess<Table> = PerProcess::new();

/// Whether this process made the table. A child that shares its parent's memory did not.
pub fn is_own_process() -> bool {
    *OWN.get().process.get_or_init(std::process::id) == std::process::id()
}

/// The entry of a descriptor, if there is one. This only reads memory, so signal handlers may call it.
fn known(descriptor: i32) -> Option<&'static Entry> {
    let number = usize::try_from(descriptor).ok()?;
    let groups = OWN.made()?.groups.get()?;
    Some(&groups.get(number / GROUP)?.get()?[number % GROUP])
}

/// The entry of a descriptor, which is made if there is none. `None`: the number is too large ([`MAX_DESCRIPTORS`]).
fn known_or_new(descriptor: i32) -> Option<&'static Entry> {
    let number = usize::try_from(descriptor).ok().filter(|number| *number < MAX_DESCRIPTORS)?;
    let table = OWN.get();
    table.process.get_or_init(std::process::id);
    let groups = table.groups.get_or_init(|| (0..MAX_DESCRIPTORS / GROUP).map(|_| Group::new()).collect());
    let entries = groups[number / GROUP].get_or_init(|| (0..GROUP).map(|_| Entry::default()).collect());
    Some(&entries[number % GROUP])
}

impl Entry {
    /// Counts a read that is left to the kernel. After [`MAX_PASSED`] of them the descriptor is not served, until the program reads it in
    /// sequence again. The kernel reads ahead for it then.
    fn pass(&self, descriptor: i32) {
        if self.passed.fetch_add(1, Ordering::Relaxed) >= MAX_PASSED {
            self.is_served.store(false, Ordering::Relaxed);
            self.set_read_ahead(descriptor, true);
            self.passed.store(0, Ordering::Relaxed);
        }
    }

    /// Switches the kernel's read-ahead for the descriptor on or off. The kernel serves short reads between large ones. With read-ahead,
    /// they would fill the page cache with the bytes that the library reads.
    fn set_read_ahead(&self, descriptor: i32, is_on: bool) {
        if self.is_random.swap(!is_on, Ordering::Relaxed) == is_on {
            let advice = if is_on { Advice::Normal } else { Advice::Random };
            // SAFETY: the program's descriptor; only its read-ahead changes.
            let _ = rustix::fs::fadvise(unsafe { files::borrow(descriptor) }, 0, None, advice);
        }
    }
}

/// Whether the file of a descriptor is served. This only reads memory, so signal handlers may call it.
pub fn is_served(descriptor: i32) -> bool {
    known(descriptor).is_some_and(|entry| entry.is_served.load(Ordering::Acquire))
}

/// Notes a read by a descriptor that is too short to be served.
pub fn note_short(descriptor: i32) {
    if let Some(entry) = known(descriptor) {
        entry.pass(descriptor);
    }
}

/// A descriptor whose file is served.
pub struct Served {
    descriptor: i32,
    entry: &'static Entry,
    pub file: Arc<ServedFile>,
}

/// The served file of a descriptor. `None`: its reads are left to the kernel.
pub fn served(descriptor: i32) -> Option<Served> {
    let entry = known(descriptor)?;
    if !entry.is_served.load(Ordering::Acquire) {
        return None;
    }
    let file = entry.state.lock().unwrap_or_else(PoisonError::into_inner).file.clone()?;
    Some(Served { descriptor, entry, file })
}

impl Served {
    /// The expected position of the descriptor, for a read of `wanted` bytes. While the program reads in sequence, this is the end of the
    /// latest read, and the kernel is not asked. The caller moves the position and compares.
    pub fn position(&self, file: BorrowedFd<'_>, wanted: u64) -> Option<u64> {
        let end = self.entry.end.load(Ordering::Relaxed);
        // A read at the end of the file has a length that depends on the position.
        if self.entry.is_in_sequence.load(Ordering::Relaxed) && end + wanted.min(MOST) <= self.file.size() {
            return Some(end);
        }
        rustix::fs::seek(file, SeekFrom::Current(0)).ok()
    }

    /// Whether the descriptor is open for reads through the page cache. The library asks the kernel once for each frame of the file that
    /// is read, because calls that it does not see can change the mode.
    pub fn is_readable(&self, file: BorrowedFd<'_>, start: u64) -> bool {
        let part = start / FRAME as u64 + 1;
        if self.entry.checked.load(Ordering::Relaxed) == part {
            return true;
        }
        let is_readable = files::is_readable(file);
        self.entry.checked.store(if is_readable { part } else { 0 }, Ordering::Relaxed);
        is_readable
    }

    /// Notes a large read that was served without a stream. When such reads follow each other, a stream begins to read ahead for them.
    pub fn note_large(&self, file: BorrowedFd<'_>, start: u64, len: u64) {
        let (Ok(mut state), Some(settings)) = (self.entry.state.try_lock(), settings()) else { return };
        if state.continue_run(start, start + len, settings.thresholds.run) {
            drop(state);
            self.file.begin_stream(file, start + len);
        }
    }

    /// Notes a read that was served.
    pub fn note_served(&self, start: u64, len: u64) {
        let is_in_sequence = self.entry.end.swap(start + len, Ordering::Relaxed) == start;
        self.entry.is_in_sequence.store(is_in_sequence, Ordering::Relaxed);
        self.entry.passed.store(0, Ordering::Relaxed);
    }

    /// Notes a read that is left to the kernel.
    pub fn note_passed(&self) {
        self.entry.is_in_sequence.store(false, Ordering::Relaxed);
        self.entry.pass(self.descriptor);
    }
}

/// Forgets the descriptors from one to another, both included. The program closes them.
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

/// Forgets the expected position of a descriptor. The program moves it.
pub fn forget_position(descriptor: i32) {
    if let Some(entry) = known(descriptor) {
        entry.is_in_sequence.store(false, Ordering::Relaxed);
    }
}

/// Forgets a descriptor. The program closes it, or opens another file under its number.
pub fn forget(descriptor: i32) {
    let Some(entry) = known(descriptor) else { return };
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
        files::drop_unused();
    }
}

/// Notes that the kernel read bytes by a descriptor, at an offset or at the descriptor's position. When the reads are sequential or large,
/// the library serves the file from then on, if it may.
pub fn note_read(descriptor: i32, offset: Option<u64>, bytes: usize) {
    let (Some(entry), Some(settings)) = (known_or_new(descriptor), settings()) else { return };
    let thresholds = &settings.thresholds;
    // Threads that read by one descriptor do not wait for each other here.
    let Ok(mut state) = entry.state.try_lock() else { return };
    if state.rest == DECIDING {
        return;
    }
    if state.rest > 0 {
        let rest = state.rest.saturating_sub(bytes as u64);
        let unnoted = rest.min(thresholds.run * RUNS_UNNOTED);
        state.rest = rest - unnoted;
        leave_unnoted(descriptor, unnoted);
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
            // SAFETY: the kernel is asked for the descriptor's position, and nothing else.
            let position = rustix::fs::seek(unsafe { files::borrow(descriptor) }, SeekFrom::Current(0));
            let Ok(position) = position else {
                state.rest = NEVER;
                return;
            };
            // If the program moved the position meanwhile, the start is wrong, and the run soon ends.
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
        if !is_long && state.strays >= MAX_STRAYS {
            state.strays = 0;
            leave_unnoted(descriptor, thresholds.run * RUNS_UNNOTED);
        }
        return;
    }
    let known = state.file.clone();
    state.rest = DECIDING;
    drop(state);
    // SAFETY: as above.
    let file = unsafe { files::borrow(descriptor) };
    let served = match known.filter(|known| known.is_current(file)) {
        Some(known) => Ok(known),
        None => files::find_or_serve(file, end),
    };
    let begun = match &served {
        Ok(served) if is_sequential => served.begin_stream(file, end),
        Ok(_) => Begun::NearEnd,
        Err(Refusal::ForNow) => Begun::NearEnd,
        Err(Refusal::ForLong) => Begun::No,
    };
    let Ok(mut state) = entry.state.lock() else { return };
    // A large read checks the page cache itself.
    let has_file = served.is_ok() && (is_large || matches!(begun, Begun::Stream));
    state.rest = if matches!(begun, Begun::No) && !has_file { thresholds.rest } else { 0 };
    if has_file {
        state.file = served.ok();
        entry.is_served.store(true, Ordering::Release);
        entry.set_read_ahead(descriptor, !is_large);
    }
}

impl State {
    /// Adds a read to the run that it continues, or to a new one. Returns whether that run is sequential and has `enough` bytes; such a
    /// run ends.
    fn continue_run(&mut self, start: u64, end: u64, enough: u64) -> bool {
        // If several runs are near, the longest counts, because a program may read by offset and by position in turns.
        let near = (0..self.runs.len()).filter(|at| self.runs[*at].is_continued_at(start));
        let continued = near.max_by_key(|at| self.runs[*at].bytes);
        let mut run = match continued {
            Some(at) => {
                self.strays = 0;
                self.runs.remove(at)
            }
            None => {
                self.strays += 1;
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
            // The program may read in sequence from here on.
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
        // There is a gap of the same size after each read.
        assert!(is_sequential_after((0..count).map(|at| (at * SIZE * 2, SIZE))));
        assert!(!is_sequential_after((0..count * 10).map(|at| (at * SIZE * 3, SIZE))));
        // The reads have no order.
        assert!(!is_sequential_after((0..count * 10).map(|at| (at * 7_919 % 1000 * (1 << 20), SIZE))));
        // There are fewer reads than a run needs, each as long as a run.
        assert!(!is_sequential_after((0..u64::from(RUN_READS) - 1).map(|at| (at * RUN_BYTES, RUN_BYTES))));
        assert!(is_sequential_after((0..u64::from(RUN_READS)).map(|at| (at * RUN_BYTES, RUN_BYTES))));
        // The reads go backwards.
        assert!(!is_sequential_after((0..count * 10).rev().map(|at| (at * (1 << 20), SIZE))));
    }

    #[test]
    fn reads_that_continue_no_run_are_strays() {
        let mut state = State::default();
        for at in 1..=u64::from(MAX_STRAYS) {
            assert!(state.strays < MAX_STRAYS);
            state.continue_run(at << 30, (at << 30) + 4096, RUN_BYTES);
        }
        assert_eq!(state.strays, MAX_STRAYS);
        let last = u64::from(MAX_STRAYS) << 30;
        state.continue_run(last + 4096, last + 8192, RUN_BYTES);
        assert_eq!(state.strays, 0);
    }

    #[test]
    fn a_thread_leaves_unnoted_what_it_was_told_to() {
        leave_unnoted(5, 100);
        assert!(is_unnoted(5, 60) && !is_unnoted(5, 60) && is_unnoted(5, 40) && !is_unnoted(5, 1));
        leave_unnoted(5, 100);
        let other = 5 + UNNOTED as i32;
        assert!(!is_unnoted(other, 1) && is_unnoted(5, 1));
        assert!(std::thread::spawn(|| !is_unnoted(5, 1)).join().unwrap());
        leave_unnoted(other, 1);
        assert!(!is_unnoted(5, 1) && is_unnoted(other, 1));
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
