//! Descriptors of the program: how they are read, and the files that are served by them.
//!
//! What is known here is a guess, because the program may close and open descriptors by ways that the library does not see. A wrong
//! guess costs time and nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bedplate_threads::forks::PerProcess;
use rustix::fs::SeekFrom;

use crate::files::{self, Begun, ServedFile};
use crate::limits::{LARGE_READ, MAX_DESCRIPTORS, MAX_RUNS, POSITION_STEP, REST_BYTES, RUN_BYTES, RUN_GAP};

/// Descriptors of which memory is made at a time.
const GROUP: usize = 256;

#[derive(Default)]
struct Entry {
    /// Whether `state` has a file. It is asked without the lock.
    is_served: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<Arc<ServedFile>>,
    /// Runs of reads, the one that was continued last at the end. Several threads may each have one.
    runs: Vec<Run>,
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
}

impl Run {
    /// Whether a read that begins at an offset continues it.
    fn is_continued_at(&self, offset: u64) -> bool {
        offset.abs_diff(self.next) <= RUN_GAP
    }

    /// Whether it is long enough, and has not more in its gaps than was read.
    fn is_sequential(&self) -> bool {
        self.bytes >= RUN_BYTES && self.next.saturating_sub(self.start) <= 2 * self.bytes
    }
}

/// Entries, if any of them is needed.
type Group = OnceLock<Box<[Entry]>>;

#[derive(Default)]
struct Table {
    groups: OnceLock<Box<[Group]>>,
}

/// The entry of a descriptor. `make`: it is made if there is none.
fn entry(descriptor: i32, make: bool) -> Option<&'static Entry> {
    static OWN: PerProcess<Table> = PerProcess::new();
    let number = usize::try_from(descriptor).ok().filter(|number| *number < MAX_DESCRIPTORS)?;
    let groups =
        OWN.get().groups.get_or_init(|| (0..MAX_DESCRIPTORS / GROUP).map(|_| Group::new()).collect());
    let group = &groups[number / GROUP];
    let entries = match make {
        true => group.get_or_init(|| (0..GROUP).map(|_| Entry::default()).collect()),
        false => group.get()?,
    };
    Some(&entries[number % GROUP])
}

/// The file that is served by a descriptor.
pub fn file(descriptor: i32) -> Option<Arc<ServedFile>> {
    let entry = entry(descriptor, false)?;
    if !entry.is_served.load(Ordering::Acquire) {
        return None;
    }
    entry.state.lock().unwrap_or_else(PoisonError::into_inner).file.clone()
}

/// A descriptor is closed, or becomes another file's.
pub fn forget(descriptor: i32) {
    let Some(entry) = entry(descriptor, false) else { return };
    let was_served = entry.is_served.swap(false, Ordering::AcqRel);
    let old = std::mem::take(&mut *entry.state.lock().unwrap_or_else(PoisonError::into_inner));
    drop(old);
    if was_served {
        files::tidy();
    }
}

/// The kernel read so many bytes by a descriptor, at an offset or at the descriptor's position. The file is served from now on, if it
/// may be.
pub fn note_read(descriptor: i32, offset: Option<u64>, bytes: usize) {
    let Some(entry) = entry(descriptor, true) else { return };
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
            if state.unpositioned < POSITION_STEP {
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
    let is_large = bytes >= LARGE_READ;
    if !state.continue_run(start, end) && !is_large {
        return;
    }
    // SAFETY: as above.
    let file = unsafe { files::borrow(descriptor) };
    let served = match &state.file {
        Some(served) if served.is_current(file) => Some(served.clone()),
        _ => files::find_or_serve(file),
    };
    let Some(served) = served else {
        state.rest = REST_BYTES;
        return;
    };
    match served.begin_stream(file, end) {
        // Large reads look at the page cache themselves.
        Begun::Stream => {}
        _ if is_large => {}
        Begun::NearEnd => return,
        Begun::No => {
            state.rest = REST_BYTES;
            return;
        }
    }
    state.file = Some(served);
    entry.is_served.store(true, Ordering::Release);
}

impl State {
    /// Adds a read to the run that it continues, or to a new one. Gives whether that run is sequential; then it is over.
    fn continue_run(&mut self, start: u64, end: u64) -> bool {
        // The longest of them, where several are near: a program may read by offset and by position in turns.
        let near = (0..self.runs.len()).filter(|at| self.runs[*at].is_continued_at(start));
        let continued = near.max_by_key(|at| self.runs[*at].bytes);
        let mut run = match continued {
            Some(at) => self.runs.remove(at),
            None => {
                if self.runs.len() == MAX_RUNS {
                    self.runs.remove(0);
                }
                Run { start, next: start, bytes: 0 }
            }
        };
        run.bytes += end - start;
        run.next = end;
        if run.is_sequential() {
            return true;
        }
        if run.bytes >= RUN_BYTES {
            // There is too much in its gaps. It may be sequential from here on.
            run = Run { start: end, next: end, bytes: 0 };
        }
        self.runs.push(run);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_sequential_after(reads: impl IntoIterator<Item = (u64, u64)>) -> bool {
        let mut state = State::default();
        reads.into_iter().any(|(start, len)| state.continue_run(start, start + len))
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
