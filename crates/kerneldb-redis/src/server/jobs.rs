//! Long work that clients ask for (SAVE, BEDPLATE VERIFY), on one thread.
//!
//! Requests wait in a queue with a limit. When the thread is free, it takes the oldest request and all others
//! of the same kind, and one run answers them: it begins after each of them was made, so a checkpoint has
//! everything that was committed before.
//!
//! One lock, `queue`, never held while a job runs.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::command::{Job, JobResult, JobTicket};
use crate::limits::JOBS_WAITING;
use bedplate_kerneldb::{Error, Result};

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Job, Arc<JobTicket>)>,
    running: bool,
    stop: bool,
}

#[derive(Default)]
struct JobQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for requests; returns the oldest one's kind and all requests of that kind. `None` at the end.
    fn next(&self) -> Option<(Job, Vec<Arc<JobTicket>>)> {
        let mut queue = self.lock();
        queue.running = false;
        loop {
            if queue.stop {
                return None;
            }
            if let Some((kind, _)) = queue.waiting.front() {
                let kind = *kind;
                let (same, others) =
                    std::mem::take(&mut queue.waiting).into_iter().partition(|(job, _)| *job == kind);
                queue.waiting = others;
                queue.running = true;
                let same: VecDeque<(Job, Arc<JobTicket>)> = same;
                return Some((kind, same.into_iter().map(|(_, ticket)| ticket).collect()));
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread and its queue. Dropping it gives requests that wait an error; a job that runs goes on, and the
/// thread ends after it.
pub(super) struct Jobs {
    shared: Arc<JobQueue>,
    thread: Option<JoinHandle<()>>,
}

impl Jobs {
    /// Starts the thread, which runs jobs by `run`.
    pub(super) fn start(mut run: impl FnMut(Job) -> JobResult + Send + 'static) -> Result<Jobs> {
        let shared = Arc::new(JobQueue::default());
        let thread = std::thread::Builder::new()
            .name("kdb-jobs".into())
            .spawn({
                let shared = shared.clone();
                move || {
                    while let Some((job, tickets)) = shared.next() {
                        let result = run(job);
                        tickets.into_iter().for_each(|ticket| ticket.finish(result.clone()));
                    }
                }
            })
            .map_err(|e| Error::io("start the thread for checkpoints and verifications", e))?;
        Ok(Jobs { shared, thread: Some(thread) })
    }

    /// Asks for a run of a job that begins after this call.
    pub(super) fn submit(&self, job: Job) -> std::result::Result<Arc<JobTicket>, String> {
        let mut queue = self.shared.lock();
        if queue.waiting.len() >= JOBS_WAITING {
            return Err(format!("ERR {JOBS_WAITING} checkpoints and verifications wait already"));
        }
        let ticket = Arc::new(JobTicket::default());
        queue.waiting.push_back((job, ticket.clone()));
        self.shared.changed.notify_one();
        Ok(ticket)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.stop = true;
        let (waiting, running) = (std::mem::take(&mut queue.waiting), queue.running);
        drop(queue);
        self.shared.changed.notify_one();
        waiting.into_iter().for_each(|(_, ticket)| ticket.finish(Err("ERR the server stops".into())));
        if let Some(thread) = self.thread.take().filter(|_| !running) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn wait(ticket: &JobTicket) -> JobResult {
        loop {
            if let Some(result) = ticket.result() {
                return result.clone();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A queue whose jobs wait for a message each, and what it has begun.
    fn stepwise() -> (Jobs, mpsc::Sender<()>, mpsc::Receiver<Job>) {
        let (go, steps) = mpsc::channel();
        let (begun, began) = mpsc::channel();
        let mut runs = 0;
        let jobs = Jobs::start(move |job| {
            begun.send(job).unwrap();
            let _ = steps.recv();
            runs += 1;
            Ok(format!("run {runs}"))
        });
        (jobs.unwrap(), go, began)
    }

    #[test]
    fn requests_that_wait_share_a_run_that_begins_after_them() {
        let (jobs, go, began) = stepwise();
        let first = jobs.submit(Job::Checkpoint).unwrap();
        assert_eq!(began.recv(), Ok(Job::Checkpoint));
        // The first run has begun: it may lack what these clients have written.
        let second = jobs.submit(Job::Checkpoint).unwrap();
        let verify = jobs.submit(Job::Verify).unwrap();
        let third = jobs.submit(Job::Checkpoint).unwrap();
        (0..3).for_each(|_| go.send(()).unwrap());
        assert_eq!(wait(&first), Ok("run 1".into()));
        assert_eq!(wait(&second), Ok("run 2".into()));
        assert_eq!(wait(&third), Ok("run 2".into()));
        assert_eq!(wait(&verify), Ok("run 3".into()));
        assert_eq!([began.recv(), began.recv()], [Ok(Job::Checkpoint), Ok(Job::Verify)]);
    }

    #[test]
    fn one_request_past_the_limit_is_refused() {
        let (jobs, go, began) = stepwise();
        let running = jobs.submit(Job::Verify).unwrap();
        assert_eq!(began.recv(), Ok(Job::Verify));
        let waiting: Vec<_> = (0..JOBS_WAITING).map(|_| jobs.submit(Job::Verify).unwrap()).collect();
        assert!(jobs.submit(Job::Checkpoint).unwrap_err().starts_with("ERR 64 "));
        (0..2).for_each(|_| go.send(()).unwrap());
        assert_eq!(wait(&running), Ok("run 1".into()));
        assert!(waiting.iter().all(|ticket| wait(ticket) == Ok("run 2".into())));
        jobs.submit(Job::Checkpoint).unwrap();
    }

    #[test]
    fn the_end_answers_requests_that_wait() {
        let (jobs, go, began) = stepwise();
        let running = jobs.submit(Job::Verify).unwrap();
        assert_eq!(began.recv(), Ok(Job::Verify));
        let waiting = jobs.submit(Job::Checkpoint).unwrap();
        drop(jobs);
        assert!(waiting.result().unwrap().is_err() && running.result().is_none());
        go.send(()).unwrap();
        assert_eq!(wait(&running), Ok("run 1".into()));
    }
}
