//! A task that runs on a snapshot.

use std::thread::JoinHandle;
use std::time::Duration;

use crate::Error;

/// The completion of a task, independent of how the task runs.
pub(crate) trait Completion: Send {
    /// Waits for the task and returns its result.
    fn join(self: Box<Self>) -> Result<Vec<u8>, Error>;
    /// Whether `join` would return without waiting.
    fn is_finished(&self) -> bool;
}

/// A task that runs on a snapshot of its own. When the task has ended, the resources of the snapshot are released.
/// Dropping the value does not wait: the task continues.
pub struct Task {
    completion: Box<dyn Completion>,
    epoch: u64,
    pause: Duration,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("epoch", &self.epoch).field("pause", &self.pause).finish_non_exhaustive()
    }
}

impl Task {
    pub(crate) fn new(completion: Box<dyn Completion>, epoch: u64, pause: Duration) -> Self {
        Self { completion, epoch, pause }
    }

    /// The number of its snapshot. Later snapshots of a memory have larger numbers (section 4.1).
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Time that the memory's writers had to wait for the snapshot.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.completion.is_finished()
    }

    /// Waits for the task and returns its result.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if the snapshot was abandoned for lack of memory; [`Error::Task`] if the task panicked
    /// or its process was killed. The result is lost in both cases.
    pub fn join(self) -> Result<Vec<u8>, Error> {
        self.completion.join()
    }
}

/// A thread with a task. The task's snapshot has ended when the thread has ended.
pub(crate) struct Thread(pub JoinHandle<Result<Vec<u8>, Error>>);

impl Completion for Thread {
    fn join(self: Box<Self>) -> Result<Vec<u8>, Error> {
        self.0.join().unwrap_or_else(|_| Err(Error::Task("it panicked".into())))
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}
