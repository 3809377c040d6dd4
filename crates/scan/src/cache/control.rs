//! The control thread of a cache. It starts the reads that the tables request. It closes files that have no readers, and drops
//! them after [`IDLE_TIME`](crate::limits::IDLE_TIME).

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;

use super::{Cache, CachedFile, Load, Over, idle_left};
use crate::engine::{self, Choice, Completion, Engine, Read};
use crate::limits::FRAMES_PER_SEGMENT;
use crate::{Error, Result};

/// Starts the control thread. The thread creates its own engine, because only the thread that made an engine may use it.
///
/// # Errors
/// The thread or its engine cannot be created.
pub fn start(cache: Arc<Cache>, choice: Choice) -> Result<JoinHandle<()>> {
    let (answer, answered) = mpsc::channel();
    let body = move || match engine::make(choice, cache.bell.clone()) {
        Ok(engine) => {
            let _over = Over(cache.clone());
            let _ = answer.send(Ok(()));
            Control { cache, engine, files: HashMap::new(), reads: HashMap::new(), next: 0 }.run();
        }
        Err(error) => {
            let _ = answer.send(Err(error));
        }
    };
    let thread = bedplate_threads::spawn(std::thread::Builder::new().name("scan-cache".into()), body)
        .map_err(|_| Error::System { what: "starting the cache's thread", source: Errno::AGAIN })?;
    answered.recv().unwrap_or(Err(Error::Gone))?;
    Ok(thread)
}

/// A cached file in the engine's terms.
struct Known {
    /// The engine's number of the file. `None`: the file is closed.
    file: Option<usize>,
    /// The engine's numbers of the buffers, indexed by frame.
    frames: Vec<usize>,
}

/// A read in progress.
#[derive(Clone, Copy)]
struct Reading {
    file: u64,
    load: Load,
    /// Bytes that the earlier parts of the read have delivered.
    done: usize,
}

struct Control {
    cache: Arc<Cache>,
    engine: Box<dyn Engine>,
    files: HashMap<u64, Known>,
    reads: HashMap<u64, Reading>,
    next: u64,
}

impl Control {
    fn run(mut self) {
        // Readers wait for this thread and may occupy all processors, so it asks the scheduler for a short slice. A failure is
        // harmless.
        let _ = bedplate_threads::slice::shorten();
        let mut complete = Vec::new();
        loop {
            let timeout = match self.start_loads() {
                Some(timeout) => timeout,
                None => return,
            };
            complete.clear();
            self.engine.wait(timeout, &mut complete);
            for completion in &complete {
                self.complete(completion);
            }
        }
    }

    /// Starts the requested reads and drops idle files. Returns how long the thread may sleep, or `None` if the thread must end.
    fn start_loads(&mut self) -> Option<Option<Duration>> {
        let (loads, timeout, dropped) = {
            let mut state = self.cache.state();
            if state.is_over {
                return None;
            }
            let is_over = |since: Option<std::time::Instant>| since.is_some_and(|at| idle_left(at).is_zero());
            let is_dropped = |_: &u64, cached: &mut CachedFile| {
                cached.table.readers() == 0 && cached.table.is_at_rest() && is_over(cached.idle_since)
            };
            let dropped: Vec<_> = state.files.extract_if(is_dropped).collect();
            let unread = state
                .files
                .values_mut()
                .filter(|cached| cached.table.readers() == 0 && cached.table.is_at_rest());
            unread.for_each(|cached| cached.descriptor = None);
            let left = state.files.values().filter(|cached| cached.table.readers() == 0);
            // Files with unfinished reads also count. Their reads complete soon and wake the thread, which then checks again.
            let timeout = left.filter_map(|cached| cached.idle_since.map(idle_left)).min();
            let timeout = timeout.map(|time| time.max(Duration::from_millis(1)));
            (std::mem::take(&mut state.loads), timeout, dropped)
        };
        // Freeing memory takes long, so the thread does it without the lock.
        drop(dropped);
        self.forget_dropped();
        for (file, load) in loads {
            self.submit(Reading { file, load, done: 0 });
        }
        Some(timeout)
    }

    /// Removes files from the engine that the cache has closed or dropped.
    fn forget_dropped(&mut self) {
        let mut forgotten = Vec::new();
        {
            let state = self.cache.state();
            let engine = &mut self.engine;
            self.files.retain(|id, known| {
                let cached = state.files.get(id);
                if cached.is_none_or(|cached| cached.descriptor.is_none())
                    && let Some(file) = known.file.take()
                {
                    engine.remove_file(file);
                }
                if cached.is_none() {
                    forgotten.append(&mut known.frames);
                }
                cached.is_some()
            });
        }
        // The engine has the last references to the memory, so this frees it. The lock is not held here.
        forgotten.into_iter().for_each(|frame| self.engine.remove_memory(frame));
    }

    /// Submits a read, or its remaining part.
    fn submit(&mut self, reading: Reading) {
        match self.read(reading) {
            Ok(read) => {
                self.reads.insert(read.token, reading);
                self.engine.submit(read);
            }
            Err(error) => {
                tracing::warn!("a file cannot be cached: {error}");
                self.finish(reading, Err(Errno::IO));
            }
        }
    }

    fn read(&mut self, Reading { file, load, done }: Reading) -> Result<Read> {
        let state = self.cache.state();
        let cached = state.files.get(&file).ok_or(Error::Gone)?;
        let known = self.files.entry(file).or_insert(Known { file: None, frames: Vec::new() });
        let number = match known.file {
            Some(number) => number,
            None => {
                let descriptor = cached.descriptor.as_ref().ok_or(Error::Gone)?;
                *known.file.insert(self.engine.add_file(descriptor.clone())?)
            }
        };
        for frame in known.frames.len()..=load.frame as usize {
            let segment = &cached.segments[frame / FRAMES_PER_SEGMENT];
            known.frames.push(self.engine.add_memory(segment.buffer(frame % FRAMES_PER_SEGMENT))?);
        }
        self.next += 1;
        Ok(Read {
            token: self.next,
            file: number,
            offset: load.start() + done as u64,
            memory: known.frames[load.frame as usize],
            at: load.at + done,
            len: load.len - done,
        })
    }

    fn complete(&mut self, completion: &Completion) {
        let reading = self.reads.remove(&completion.token).expect("reads complete once");
        match completion.result {
            Ok(count) => {
                (self.cache.add_bytes)(count as u64);
                let done = reading.done + count;
                if done >= reading.load.needed {
                    self.finish(reading, Ok(()));
                } else if count > 0 && done.is_multiple_of(self.unit_of(reading.file)) {
                    self.submit(Reading { done, ..reading });
                } else {
                    // The file has become shorter.
                    self.finish(reading, Err(Errno::NODATA));
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => self.submit(reading),
            Err(error) => self.finish(reading, Err(error)),
        }
    }

    /// Returns the unit of a file that is being read.
    fn unit_of(&self, file: u64) -> usize {
        self.cache.state().files[&file].unit as usize
    }

    fn finish(&self, reading: Reading, result: std::result::Result<(), Errno>) {
        let mut state = self.cache.state();
        let Some(cached) = state.files.get_mut(&reading.file) else { return };
        let actions = cached.table.complete(&reading.load, result);
        self.cache.perform(&mut state, reading.file, actions);
        Cache::release_and_wake(state);
    }
}
