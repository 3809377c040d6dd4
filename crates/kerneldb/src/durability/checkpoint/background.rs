//! The thread that takes checkpoints: by time, by log size, on demand. It takes one at a time.
//!
//! There is one lock, `state`. It is never held while a checkpoint is written.

use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{CheckpointConfig, CheckpointInfo, CheckpointStatus, Progress};
use crate::{Error, Result};

/// After a failed automatic checkpoint the next one waits at least this long.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(10);
/// Interval at which the thread checks the log's size.
const LOOK: Duration = Duration::from_millis(500);

/// The interface of the database that the thread uses.
pub(crate) trait CheckpointTask: Send {
    /// Takes a checkpoint; gives up when `progress` returns `Break`.
    fn run(&mut self, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<CheckpointInfo>;
    /// Timestamp of the newest commit.
    fn clock(&self) -> u64;
    /// Bytes logged so far.
    fn log_bytes(&self) -> u64;
}

#[derive(Default)]
struct State {
    status: CheckpointStatus,
    /// Number of requests so far, and how many of them a finished checkpoint has served.
    requested: u64,
    served: u64,
    /// Answer to the requests up to `served`.
    answer: Option<std::result::Result<CheckpointInfo, Arc<Error>>>,
    stop: bool,
    /// Whether the thread has ended.
    ended: bool,
}

#[derive(Default)]
struct CheckpointRequests {
    state: Mutex<State>,
    changed: Condvar,
}

impl CheckpointRequests {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running thread; dropping it cancels a running checkpoint.
pub(crate) struct Checkpointer {
    shared: Arc<CheckpointRequests>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Checkpointer {
    /// `last` is the newest checkpoint that exists.
    pub(crate) fn start(
        config: CheckpointConfig,
        last: Option<CheckpointInfo>,
        task: Box<dyn CheckpointTask>,
    ) -> Result<Checkpointer> {
        let shared = Arc::new(CheckpointRequests::default());
        shared.lock().status.last = last;
        let worker = Worker { config, shared: shared.clone(), task };
        let thread =
            bedplate_threads::spawn(std::thread::Builder::new().name("kdb-checkpoint".into()), move || {
                worker.run()
            })
            .map_err(|e| Error::io("starting the thread kdb-checkpoint", e))?;
        Ok(Checkpointer { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Takes a checkpoint that begins after this call, and waits for it.
    pub(crate) fn take(&self) -> Result<CheckpointInfo> {
        let mut state = self.shared.lock();
        state.requested += 1;
        let mine = state.requested;
        self.shared.changed.notify_all();
        while state.served < mine {
            if state.ended || state.stop {
                return Err(Error::io("taking a checkpoint", std::io::ErrorKind::Interrupted.into()));
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.answer.as_ref().expect("there is an answer once a request is served") {
            Ok(info) => Ok(info.clone()),
            Err(e) => Err(copy(e)),
        }
    }

    /// Requests a checkpoint; false if one is running or requested already.
    pub(crate) fn request(&self) -> bool {
        let mut state = self.shared.lock();
        if state.status.running.is_some() || state.requested > state.served {
            return false;
        }
        state.requested += 1;
        self.shared.changed.notify_all();
        true
    }

    pub(crate) fn status(&self) -> CheckpointStatus {
        self.shared.lock().status.clone()
    }

    /// Ends the thread; idempotent.
    pub(crate) fn stop(&self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|t| t.join().is_err()) {
            tracing::error!("the checkpoint thread has panicked");
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes the same error for another caller.
fn copy(e: &Error) -> Error {
    match e {
        Error::Io { what, source } => {
            let source = match source.raw_os_error() {
                Some(errno) => std::io::Error::from_raw_os_error(errno),
                None => std::io::Error::new(source.kind(), source.to_string()),
            };
            Error::Io { what: what.clone(), source }
        }
        Error::Busy => Error::Busy,
        other => Error::io("taking a checkpoint", std::io::Error::other(other.to_string())),
    }
}

struct Worker {
    config: CheckpointConfig,
    shared: Arc<CheckpointRequests>,
    task: Box<dyn CheckpointTask>,
}

impl Worker {
    fn run(mut self) {
        struct Ended(Arc<CheckpointRequests>);
        impl Drop for Ended {
            fn drop(&mut self) {
                self.0.lock().ended = true;
                self.0.changed.notify_all();
            }
        }
        let _ended = Ended(self.shared.clone());
        let mut last_end = Instant::now();
        let mut last_bytes = self.task.log_bytes();
        let mut not_before = None;
        while let Some(serving) = self.wait(last_end, last_bytes, not_before) {
            let bytes = self.task.log_bytes();
            let shared = self.shared.clone();
            let result = self.task.run(&mut |progress| {
                let mut state = shared.lock();
                state.status.running = Some(progress);
                if state.stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            last_end = Instant::now();
            let mut state = self.shared.lock();
            state.status.running = None;
            match &result {
                Ok(info) => {
                    tracing::info!(ts = info.ts, entries = info.entries, bytes = info.bytes, took = ?info.took, "checkpoint");
                    last_bytes = bytes;
                    not_before = None;
                    state.status.completed += 1;
                    state.status.last = Some(info.clone());
                    state.status.last_error = None;
                }
                Err(e) => {
                    tracing::error!(error = %e, "the checkpoint failed; the previous one stays");
                    not_before = Some(last_end + PAUSE_AFTER_ERROR);
                    state.status.failed += 1;
                    state.status.last_error = Some(e.to_string());
                }
            }
            state.answer = Some(result.map_err(Arc::new));
            state.served = serving;
            self.shared.changed.notify_all();
        }
    }

    /// Waits until a checkpoint is due; returns the number of requests that it serves, or `None` if
    /// the thread must end.
    fn wait(&self, last_end: Instant, last_bytes: u64, not_before: Option<Instant>) -> Option<u64> {
        let mut state = self.shared.lock();
        loop {
            if state.stop {
                return None;
            }
            let by_time = self.config.interval.is_some_and(|i| last_end.elapsed() >= i);
            let by_size =
                self.config.log_bytes.is_some_and(|b| self.task.log_bytes().saturating_sub(last_bytes) >= b);
            let allowed = not_before.is_none_or(|t| t <= Instant::now());
            // Without new commits no new image is needed.
            let changed = || self.task.clock() != state.status.last.as_ref().map_or(0, |l| l.ts);
            if state.requested > state.served || ((by_time || by_size) && allowed && changed()) {
                let positions = Progress::default();
                state.status.running = Some(positions);
                return Some(state.requested);
            }
            let timeout = match (self.config.log_bytes, self.config.interval) {
                (None, None) => Duration::from_secs(3600),
                (Some(_), _) => LOOK,
                (None, Some(i)) => i.saturating_sub(last_end.elapsed()).max(LOOK),
            };
            state =
                self.shared.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
