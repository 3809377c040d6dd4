//! Large reads anywhere in a file: columnar engines issue many of them at a time, by many threads.
//!
//! All threads of the process share a few readers. A thread holds a permit for each range that it fetches, and a reader has as many
//! permits as it may hold ranges. So a reader never refuses a range. A thread without a permit waits for one. Threads with
//! permits only wait for the device.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bedplate_scan::{FRAME, MAX_RANGES_HELD};

use crate::limits::{MAX_LARGE_READERS, PATIENCE};
use crate::service::Reader;
use crate::streams::{Target, wait};

/// The readers of a file.
#[derive(Default)]
pub struct LargeReads {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    readers: Vec<Shared>,
    /// Number of readers that threads are making now.
    coming: usize,
}

struct Shared {
    reader: Arc<Reader>,
    /// Number of permits that threads have.
    permits: usize,
}

/// The right to hold one range of a reader.
struct Permit<'a> {
    of: &'a LargeReads,
    reader: Arc<Reader>,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.of.state().find(&self.reader) {
            shared.permits -= 1;
        }
        self.of.freed.notify_one();
    }
}

impl State {
    /// `None`: the reader was forgotten.
    fn find(&mut self, reader: &Arc<Reader>) -> Option<&mut Shared> {
        self.readers.iter_mut().find(|shared| Arc::ptr_eq(&shared.reader, reader))
    }
}

impl LargeReads {
    /// Large reads with a first reader.
    pub fn new(reader: Reader) -> Self {
        let this = Self::default();
        this.add(reader);
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, reader: Reader) {
        self.state().readers.push(Shared { reader: Arc::new(reader), permits: 0 });
    }

    /// Takes a reader that no thread uses, if there is one.
    pub fn take_idle(&self) -> Option<Reader> {
        let mut state = self.state();
        let at = state.readers.iter().position(|shared| shared.permits == 0)?;
        let idle = state.readers.swap_remove(at).reader;
        drop(state);
        Arc::into_inner(idle)
    }

    /// Takes a permit. `make` makes a reader. `None`: no reader can be made, no permit was free for [`PATIENCE`], or `waits` is false and
    /// none is free now.
    fn permit(&self, waits: bool, make: &impl Fn() -> Option<Reader>) -> Option<Permit<'_>> {
        let mut state = self.state();
        loop {
            let free = state.readers.iter_mut().filter(|shared| shared.permits < MAX_RANGES_HELD);
            if let Some(shared) = free.min_by_key(|shared| shared.permits) {
                shared.permits += 1;
                return Some(Permit { of: self, reader: shared.reader.clone() });
            }
            if state.readers.len() + state.coming < MAX_LARGE_READERS {
                state.coming += 1;
                drop(state);
                let made = make();
                let is_made = made.is_some();
                if let Some(reader) = made {
                    self.add(reader);
                }
                state = self.state();
                state.coming -= 1;
                if !is_made && state.readers.is_empty() {
                    self.freed.notify_all();
                    return None;
                }
                if is_made {
                    continue;
                }
            }
            if !waits || state.readers.is_empty() && state.coming == 0 {
                return None;
            }
            // A thread that a signal handler took out of the library never releases its permits.
            let (waited, result) =
                self.freed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            if result.timed_out() {
                return None;
            }
            state = waited;
        }
    }

    /// Forgets a reader that failed.
    fn forget(&self, reader: &Arc<Reader>) {
        self.state().readers.retain(|shared| !Arc::ptr_eq(&shared.reader, reader));
        self.freed.notify_all();
    }

    /// Copies a range. It fetches as many frames at a time as it has permits for.
    ///
    /// `None`: not all of the range can be read. Some of the target may be written.
    pub fn copy(
        &self,
        range: Range<u64>,
        target: &mut Target<'_>,
        make: impl Fn() -> Option<Reader>,
    ) -> Option<()> {
        let mut fetches = VecDeque::new();
        let mut at = range.start;
        while at < range.end || !fetches.is_empty() {
            if at < range.end
                && fetches.len() < MAX_RANGES_HELD
                && let Some(permit) = self.permit(fetches.is_empty(), &make)
            {
                // The cache shares overlapping ranges with other processes if no range crosses such a multiple.
                let end = ((at / FRAME as u64 + 1) * FRAME as u64).min(range.end);
                match permit.reader.ranges.fetch(at, (end - at) as usize) {
                    Ok(fetch) => fetches.push_back((fetch, permit)),
                    Err(_) => {
                        self.forget(&permit.reader);
                        return None;
                    }
                }
                at = end;
                continue;
            }
            let (fetch, permit) = fetches.pop_front()?;
            let Some(bytes) = wait(fetch) else {
                self.forget(&permit.reader);
                return None;
            };
            target.append(&bytes);
            if !bytes.is_held() {
                self.forget(&permit.reader);
                return None;
            }
            // The range must be dropped before its permit.
            drop(bytes);
        }
        Some(())
    }
}
