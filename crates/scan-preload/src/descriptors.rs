//! Descriptors of the program: how they are read, and the files that are served by them.
//!
//! What is known here is a guess, because the program may close and open descriptors by ways that the library does not see. A wrong
//! guess costs time and nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bedplate_threads::forks::PerProcess;
use rustix::fs::SeekFrom;

use crate::files::{self, ServedFile};
use crate::limits::MAX_DESCRIPTORS;
use crate::settings::settings;

/// Descriptors of which memory is made at a time.
const GROUP: usize = 256;
/// The position of a descriptor is asked for after so many parts of a run.
const POSITIONS: i64 = 8;

#[derive(Default)]
struct Entry {
    /// Whether `state` has a file. It is asked without the lock.
    is_served: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<Arc<ServedFile>>,
    /// Bytes that were read one after the other, or by large reads. Below zero: so many are read before the file is looked at.
    run: i64,
    /// Where the next byte of the run is, for reads by offset.
    next: u64,
    /// Where the descriptor's position was at a length of the run, for reads by position.
    base: Option<(u64, i64)>,
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

/// The kernel read so many bytes by a descriptor, at an offset or at the descriptor's position. Gives the file, if it is to be served
/// from now on.
pub fn note_read(descriptor: i32, offset: Option<u64>, bytes: usize) {
    let (Some(entry), Some(settings)) = (entry(descriptor, true), settings()) else { return };
    let thresholds = settings.thresholds;
    let unpositioned = thresholds.run / POSITIONS;
    // Threads that read by one descriptor do not wait for one another here.
    let Ok(mut state) = entry.state.try_lock() else { return };
    let count = bytes as i64;
    let is_large = bytes as u64 >= thresholds.large_read;
    match offset {
        Some(offset) => {
            let continues = offset == state.next || state.run < 0 || is_large;
            state.run = if continues { state.run.saturating_add(count) } else { count };
            state.next = offset + bytes as u64;
        }
        None => {
            state.run = state.run.saturating_add(count);
            if state.run < unpositioned {
                return;
            }
            // SAFETY: the descriptor is asked for its position only.
            let position = rustix::fs::seek(unsafe { files::borrow(descriptor) }, SeekFrom::Current(0));
            let Ok(position) = position else {
                // It is no file.
                state.run = i64::MIN / 2;
                return;
            };
            state.next = position;
            match state.base {
                Some((at, run)) if at + (state.run - run) as u64 == position => {}
                _ => {
                    // It was moved meanwhile, or is asked for the first time.
                    state.run = unpositioned;
                    state.base = Some((position, unpositioned));
                }
            }
        }
    }
    if state.run < thresholds.run {
        return;
    }
    state.base = None;
    // SAFETY: as above.
    let file = unsafe { files::borrow(descriptor) };
    let served = match &state.file {
        Some(served) if served.is_current(file) => Some(served.clone()),
        _ => files::find_or_serve(file),
    };
    let is_served = served.as_ref().is_some_and(|served| served.begin_stream(file, state.next) || is_large);
    state.run = if is_served { 0 } else { -thresholds.rest };
    if is_served {
        state.file = served;
        entry.is_served.store(true, Ordering::Release);
    }
}
