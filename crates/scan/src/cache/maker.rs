//! The maker: the thread of a cache that makes frames. It touches fresh memory, which can take longer than a read from the
//! device.
//!
//! The maker makes a frame at once if a range waits for it. While the cache has readers, it limits its work on other frames to
//! one part in [`MAKER_SHARE`] of a processor's time.

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::io::Errno;

use super::table::Urgency;
use super::{Cache, Over, State};
use crate::limits::{FRAMES_PER_SEGMENT, MAKER_REST, MAKER_SHARE};
use crate::memory::Segment;
use crate::{Error, Result};

/// Starts the maker.
pub fn start(cache: Arc<Cache>) -> Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name("scan-memory".into());
    let body = move || {
        let _over = Over(cache.clone());
        Maker { cache, latest: 0, rested_at: Instant::now(), has_failed: false }.run();
    };
    bedplate_threads::spawn(builder, body)
        .map_err(|_| Error::System { what: "starting the thread that makes memory", source: Errno::AGAIN })
}

struct Maker {
    cache: Arc<Cache>,
    /// The file for which the maker made the latest frame. The maker serves files in turn.
    latest: u64,
    /// The maker makes no frame before this time unless a range waits for it.
    rested_at: Instant,
    /// The maker could not make the latest frame.
    has_failed: bool,
}

/// The next frame to make.
enum Task {
    /// A frame of this file.
    Frame(u64),
    /// A frame of the segment that is kept ready.
    Ready,
}

impl Maker {
    fn run(mut self) {
        while let Some(task) = self.next_task() {
            let begin = Instant::now();
            let is_made = match task {
                Task::Frame(file) => self.make_for(file),
                Task::Ready => self.make_ready(),
            };
            let end = Instant::now();
            self.rested_at = end + if is_made { (end - begin) * (MAKER_SHARE - 1) } else { MAKER_REST };
            self.has_failed = !is_made;
        }
    }

    /// Waits until there is a frame to make. `None`: the cache has ended.
    fn next_task(&self) -> Option<Task> {
        let mut state = self.cache.state();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(file) = self.file(&state, Urgency::Needed) {
                return Some(Task::Frame(file));
            }
            let wanted = self.file(&state, Urgency::Wanted).map(Task::Frame);
            let Some(task) = wanted.or_else(|| state.is_ready_missing().then_some(Task::Ready)) else {
                state = self.cache.to_make.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let rest = self.rested_at.saturating_duration_since(Instant::now());
            if rest.is_zero() || state.recipients.is_empty() && !self.has_failed {
                return Some(task);
            }
            let waited = self.cache.to_make.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The next file, in turn, that needs a frame of this urgency.
    fn file(&self, state: &State, urgency: Urgency) -> Option<u64> {
        let to_make = state.files.iter().filter(|(_, cached)| cached.table.frame_to_make() == Some(urgency));
        to_make.map(|(id, _)| *id).min_by_key(|id| (*id <= self.latest, *id))
    }

    /// Makes the next frame of a file. Returns `false` if there is no memory.
    fn make_for(&mut self, file: u64) -> bool {
        let begin = Instant::now();
        self.latest = file;
        let (made, segment) = {
            let state = self.cache.state();
            let Some(cached) = state.files.get(&file) else { return true };
            let made = cached.table.made() as usize;
            (made, cached.segments.get(made / FRAMES_PER_SEGMENT).cloned())
        };
        let segment = match segment {
            // The frame was made while the segment was the ready one.
            Some(segment) if segment.made() > made % FRAMES_PER_SEGMENT => Ok(segment),
            other => self.with_one_more(other),
        };
        let mut state = self.cache.state();
        state.frame_time = begin.elapsed();
        let time = state.frame_time;
        let Some(cached) = state.files.get_mut(&file) else { return true };
        let is_made = segment.is_ok();
        if cached.table.made() as usize != made {
            // The file has taken the ready segment in the meantime.
            return is_made;
        }
        let actions = match segment {
            Ok(segment) => {
                if cached.segments.len() == made / FRAMES_PER_SEGMENT {
                    cached.segments.push(segment);
                }
                cached.table.add_frame(time)
            }
            Err(error) => {
                tracing::warn!("there is no memory for a cached file: {error}");
                cached.table.cannot_add_frame(Errno::NOMEM)
            }
        };
        self.cache.perform(&mut state, file, actions);
        Cache::release_and_wake(state);
        is_made
    }

    /// Makes the next frame of the segment that is kept ready. Returns `false` if there is no memory.
    fn make_ready(&self) -> bool {
        let begin = Instant::now();
        let segment = self.cache.state().ready.clone();
        match self.with_one_more(segment) {
            Ok(segment) => {
                // A file may have taken the segment in the meantime. Then `make_for` finds the new frame in the segment.
                let mut state = self.cache.state();
                state.frame_time = begin.elapsed();
                if segment.made() == 1 {
                    state.ready = Some(segment);
                }
                true
            }
            Err(error) => {
                tracing::debug!("no memory is kept ready: {error}");
                false
            }
        }
    }

    /// Makes one more frame in a segment, or in a new one if there is none, and returns the segment.
    fn with_one_more(&self, segment: Option<Arc<Segment>>) -> Result<Arc<Segment>> {
        let segment = match segment {
            Some(segment) => segment,
            None => Arc::new(Segment::new(self.cache.options.reserved_pages)?),
        };
        segment.make_frame()?;
        Ok(segment)
    }
}
