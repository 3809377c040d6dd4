//! The engine of threads that call `pread`, for kernels and containers without io_uring.
//!
//! The engine starts more threads when it has more queued reads than idle threads, up to [`THREADS`]. One lock guards the queue,
//! the results, the count of idle threads and the end flag.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::{Bell, Completion, Engine, Kind, Read};
use crate::memory::Buffer;
use crate::{Error, Result};

/// Maximum number of threads, and so of concurrent reads. About this many keep a device busy.
const THREADS: usize = 16;

/// A read, and references that keep its file and memory alive.
struct Job {
    read: Read,
    file: Arc<OwnedFd>,
    memory: Buffer,
}

#[derive(Default)]
struct Work {
    queue: VecDeque<Job>,
    complete: Vec<Completion>,
    idle: usize,
    over: bool,
}

struct Shared {
    work: Mutex<Work>,
    more: Condvar,
    bell: Arc<Bell>,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut work = self.work();
        loop {
            if let Some(job) = work.queue.pop_front() {
                drop(work);
                let completion = Completion { token: job.read.token, result: job.perform() };
                drop(job);
                work = self.work();
                work.complete.push(completion);
                // The bell has already rung for the earlier results, which the loop has not taken yet.
                if work.complete.len() == 1 {
                    self.bell.ring();
                }
            } else if work.over {
                return;
            } else {
                work.idle += 1;
                work = self.more.wait(work).unwrap_or_else(PoisonError::into_inner);
                work.idle -= 1;
            }
        }
    }
}

impl Job {
    fn perform(&self) -> std::result::Result<usize, Errno> {
        let Read { offset, at, len, .. } = self.read;
        assert!(at.checked_add(len).is_some_and(|end| end <= self.memory.bytes()));
        // SAFETY: the range is within the buffer, and nothing else refers to a frame during a read into it.
        let buffer = unsafe { std::slice::from_raw_parts_mut(self.memory.start().add(at), len) };
        rustix::io::pread(self.file.as_fd(), buffer, offset)
    }
}

pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    files: Vec<Option<Arc<OwnedFd>>>,
    memories: Vec<Option<Buffer>>,
    submitted: Vec<Job>,
    reason: String,
}

impl Threads {
    /// Creates the engine with one thread. `reason` says why there is no better engine.
    ///
    /// # Errors
    /// The first thread cannot be started.
    pub fn new(bell: Arc<Bell>, reason: String) -> Result<Self> {
        let shared = Arc::new(Shared { work: Mutex::default(), more: Condvar::new(), bell });
        let mut engine = Self {
            shared,
            threads: Vec::new(),
            files: Vec::new(),
            memories: Vec::new(),
            submitted: Vec::new(),
            reason,
        };
        // The engine needs at least one thread. It tolerates failures to start more.
        engine.start().map_err(|_| Error::System { what: "starting a thread", source: Errno::AGAIN })?;
        Ok(engine)
    }

    fn start(&mut self) -> std::io::Result<()> {
        let shared = self.shared.clone();
        let name = format!("scan-read-{}", self.threads.len());
        let thread = bedplate_threads::spawn(std::thread::Builder::new().name(name), move || shared.run())?;
        self.threads.push(thread);
        Ok(())
    }

    fn begin(&mut self) {
        let count = self.submitted.len();
        if count == 0 {
            return;
        }
        let mut work = self.shared.work();
        work.queue.extend(self.submitted.drain(..));
        let missing = work.queue.len().saturating_sub(work.idle);
        drop(work);
        for _ in 0..missing.min(THREADS - self.threads.len()) {
            if self.start().is_err() {
                break;
            }
        }
        for _ in 0..count {
            self.shared.more.notify_one();
        }
    }
}

fn place<T>(table: &mut Vec<Option<T>>, item: T) -> usize {
    match table.iter().position(Option::is_none) {
        Some(free) => {
            table[free] = Some(item);
            free
        }
        None => {
            table.push(Some(item));
            table.len() - 1
        }
    }
}

impl Engine for Threads {
    fn kind(&self) -> Kind {
        Kind::Threads
    }

    fn about(&self) -> String {
        format!("up to {THREADS} threads that call pread ({})", self.reason)
    }

    fn add_file(&mut self, file: Arc<OwnedFd>) -> Result<usize> {
        Ok(place(&mut self.files, file))
    }

    fn remove_file(&mut self, file: usize) {
        self.files[file] = None;
    }

    fn add_memory(&mut self, memory: Buffer) -> Result<usize> {
        Ok(place(&mut self.memories, memory))
    }

    fn remove_memory(&mut self, memory: usize) {
        self.memories[memory] = None;
    }

    fn submit(&mut self, read: Read) {
        let file = self.files[read.file].clone().expect("the loop uses what it added");
        let memory = self.memories[read.memory].clone().expect("the loop uses what it added");
        self.submitted.push(Job { read, file, memory });
    }

    fn wait(&mut self, timeout: Option<Duration>, complete: &mut Vec<Completion>) {
        self.begin();
        let there = std::mem::take(&mut self.shared.work().complete);
        if !there.is_empty() {
            complete.extend(there);
            return;
        }
        let time =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        let bell = self.shared.bell.descriptor();
        // A signal that interrupts the wait only makes it shorter.
        let _ = poll(&mut [PollFd::new(bell, PollFlags::IN)], time.as_ref());
        // The loop resets the bell before it takes the results. A thread that completes a read later then rings again.
        self.shared.bell.quiet();
        complete.append(&mut self.shared.work().complete);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.work().over = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
