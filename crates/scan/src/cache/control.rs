//! The thread of a cache: it starts the reads that the tables ask for, closes files that nobody reads, and drops them some time later.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;

use super::{Cache, Load, idle_left};
use crate::engine::{self, Choice, Completion, Engine, Read};
use crate::limits::FRAMES_PER_SEGMENT;
use crate::{Error, FRAME, Result};

/// Starts the thread, which makes its engine.
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

/// Ends the cache when the thread ends, also by a panic.
struct Over(Arc<Cache>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What the engine knows of a cached file.
struct Known {
    /// `None`: the file is closed.
    file: Option<usize>,
    segments: Vec<usize>,
}

/// A read that is going on.
#[derive(Clone, Copy)]
struct Reading {
    file: u64,
    load: Load,
    /// Bytes that earlier parts of the read brought.
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

    /// Starts what is to be read, and drops idle files. How long the thread may sleep, or `None` if it is to end.
    fn start_loads(&mut self) -> Option<Option<Duration>> {
        let (loads, timeout) = {
            let mut state = self.cache.state();
            if state.is_over {
                return None;
            }
            let is_over = |since: Option<std::time::Instant>| since.is_some_and(|at| idle_left(at).is_zero());
            state.files.retain(|_, cached| {
                !(cached.table.readers() == 0 && cached.table.is_at_rest() && is_over(cached.idle_since))
            });
            let unread = state
                .files
                .values_mut()
                .filter(|cached| cached.table.readers() == 0 && cached.table.is_at_rest());
            unread.for_each(|cached| cached.descriptor = None);
            let left = state.files.values().filter(|cached| cached.table.readers() == 0);
            // A read that nobody waits for any more is complete soon, and then the thread looks again.
            let timeout = left.filter_map(|cached| cached.idle_since.map(idle_left)).min();
            (std::mem::take(&mut state.loads), timeout.map(|time| time.max(Duration::from_millis(1))))
        };
        self.forget_dropped();
        for (file, load) in loads {
            self.submit(Reading { file, load, done: 0 });
        }
        Some(timeout)
    }

    /// Takes files from the engine that are closed or cached no more.
    fn forget_dropped(&mut self) {
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
                known.segments.iter().for_each(|segment| engine.remove_memory(*segment));
            }
            cached.is_some()
        });
    }

    /// Submits a read, or what is left of it.
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
        let known = self.files.entry(file).or_insert(Known { file: None, segments: Vec::new() });
        let number = match known.file {
            Some(number) => number,
            None => {
                let descriptor = cached.descriptor.as_ref().ok_or(Error::Gone)?;
                *known.file.insert(self.engine.add_file(descriptor.clone())?)
            }
        };
        for frames in &cached.segments[known.segments.len()..] {
            known.segments.push(self.engine.add_memory(frames.clone())?);
        }
        let (from, len) = load.span.extent(cached.unit.into());
        self.next += 1;
        Ok(Read {
            token: self.next,
            file: number,
            offset: from + done as u64,
            memory: known.segments[load.frame as usize / FRAMES_PER_SEGMENT],
            at: load.frame as usize % FRAMES_PER_SEGMENT * FRAME + done,
            len: len as usize - done,
        })
    }

    fn complete(&mut self, completion: &Completion) {
        let reading = self.reads.remove(&completion.token).expect("reads complete once");
        let unit = {
            let state = self.cache.state();
            state.files.get(&reading.file).map_or(1, |cached| u64::from(cached.unit))
        };
        let (from, _) = reading.load.span.extent(unit);
        match completion.result {
            Ok(count) => {
                (self.cache.add_bytes)(count as u64);
                let done = reading.done + count;
                if from + done as u64 >= reading.load.span.end() {
                    self.finish(reading, Ok(()));
                } else if count > 0 && (done as u64).is_multiple_of(unit) {
                    self.submit(Reading { done, ..reading });
                } else {
                    // The file is shorter than it was.
                    self.finish(reading, Err(Errno::NODATA));
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => self.submit(reading),
            Err(error) => self.finish(reading, Err(error)),
        }
    }

    fn finish(&self, reading: Reading, result: std::result::Result<(), Errno>) {
        let mut state = self.cache.state();
        let Some(cached) = state.files.get_mut(&reading.file) else { return };
        let actions = cached.table.complete(reading.load.span, result);
        self.cache.perform(&mut state, reading.file, actions);
        Cache::release_and_wake(state);
    }
}
