//! An engine that wraps another one, and injects the faults of devices and kernels into reads.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bedplate_scan::{Buffer, Completion, Engine, Kind, Read, Result};
use rustix::io::Errno;

/// A fault of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The read fails.
    Fails(Errno),
    /// The read is cut to this number of bytes.
    Short(usize),
    /// The read takes this much longer.
    Slow(Duration),
    /// The read fails after this time.
    Late(Errno, Duration),
}

type Decide = Box<dyn FnMut(&Read, u64) -> Option<Fault> + Send>;
type AfterReading = Box<dyn FnMut(&Completion) + Send>;

/// Chooses the fault of each read, and counts reads.
#[derive(Clone)]
pub struct Faults {
    decide: Arc<Mutex<Decide>>,
    after_reading: Option<Arc<Mutex<AfterReading>>>,
    /// The number of reads that were submitted.
    pub reads: Arc<AtomicU64>,
    /// The largest number of reads in flight at once.
    pub most: Arc<AtomicU64>,
}

impl Faults {
    /// Calls `decide` with every read and its number, from 0.
    pub fn new(decide: impl FnMut(&Read, u64) -> Option<Fault> + Send + 'static) -> Self {
        let decide: Decide = Box::new(decide);
        Self {
            decide: Arc::new(Mutex::new(decide)),
            after_reading: None,
            reads: Arc::default(),
            most: Arc::default(),
        }
    }

    /// Calls `act` after every read of the inner engine, before the read's completion is visible.
    pub fn after_reading(mut self, act: impl FnMut(&Completion) + Send + 'static) -> Self {
        self.after_reading = Some(Arc::new(Mutex::new(Box::new(act))));
        self
    }

    /// The wrapper for [`Builder::wrap`](bedplate_scan::Builder::wrap).
    pub fn around(&self) -> impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send + 'static {
        let faults = self.clone();
        move |inner| {
            Box::new(Faulty { inner, faults, flying: HashMap::new(), late: Vec::new(), failed: Vec::new() })
        }
    }
}

struct Faulty {
    inner: Box<dyn Engine>,
    faults: Faults,
    /// Reads in flight, and the delays of the slow ones.
    flying: HashMap<u64, Option<Duration>>,
    /// Completions, each with the time when it becomes visible.
    late: Vec<(Instant, Completion)>,
    failed: Vec<Completion>,
}

impl Engine for Faulty {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }

    fn about(&self) -> String {
        self.inner.about()
    }

    fn add_file(&mut self, file: Arc<OwnedFd>) -> Result<usize> {
        self.inner.add_file(file)
    }

    fn remove_file(&mut self, file: usize) {
        self.inner.remove_file(file);
    }

    fn add_memory(&mut self, memory: Buffer) -> Result<usize> {
        self.inner.add_memory(memory)
    }

    fn remove_memory(&mut self, memory: usize) {
        self.inner.remove_memory(memory);
    }

    fn submit(&mut self, mut read: Read) {
        let number = self.faults.reads.fetch_add(1, Ordering::Relaxed);
        let mut slow = None;
        match (self.faults.decide.lock().unwrap())(&read, number) {
            Some(Fault::Fails(errno)) => {
                self.failed.push(Completion { token: read.token, result: Err(errno) });
                return;
            }
            Some(Fault::Late(errno, time)) => {
                let completion = Completion { token: read.token, result: Err(errno) };
                self.late.push((Instant::now() + time, completion));
                return;
            }
            Some(Fault::Short(len)) => read.len = read.len.min(len),
            Some(Fault::Slow(time)) => slow = Some(time),
            None => {}
        }
        self.flying.insert(read.token, slow);
        self.faults.most.fetch_max(self.flying.len() as u64, Ordering::Relaxed);
        self.inner.submit(read);
    }

    fn wait(&mut self, timeout: Option<Duration>, complete: &mut Vec<Completion>) {
        complete.append(&mut self.failed);
        let now = Instant::now();
        let next = self.late.iter().map(|(time, _)| time.saturating_duration_since(now)).min();
        let timeout =
            [timeout, next, (!complete.is_empty()).then_some(Duration::ZERO)].into_iter().flatten().min();
        let mut inner = Vec::new();
        self.inner.wait(timeout, &mut inner);
        for completion in inner {
            if let Some(act) = &self.faults.after_reading {
                (act.lock().unwrap())(&completion);
            }
            match self.flying.remove(&completion.token).expect("it was submitted") {
                Some(slow) => self.late.push((Instant::now() + slow, completion)),
                None => complete.push(completion),
            }
        }
        let now = Instant::now();
        self.late.retain(|(time, completion)| {
            let shows = *time <= now;
            if shows {
                complete.push(*completion);
            }
            !shows
        });
    }
}
