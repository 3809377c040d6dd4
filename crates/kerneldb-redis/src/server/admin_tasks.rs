//! Administrative tasks: long work that clients ask for (SAVE, BEDPLATE VERIFY, PROC LOAD), on one thread.
//!
//! Requests wait in a queue with a limit. When the thread is free, it takes the oldest request and all others
//! of the same kind, and answers them with one run. The run begins after each of them was made, so a checkpoint has
//! everything that was committed before.
//!
//! There is one lock, `queue`. It is never held while a task runs.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::command::{AdminTask, AdminTaskResult, AdminTaskTicket};
use crate::limits::ADMIN_TASKS_WAITING;
use bedplate_kerneldb::{Error, Result};

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(AdminTask, Arc<AdminTaskTicket>)>,
    running: bool,
    stop: bool,
}

#[derive(Default)]
struct AdminTaskQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl AdminTaskQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for requests; returns the oldest one's kind and all requests of that kind. `None` at the end.
    fn next(&self) -> Option<(AdminTask, Vec<Arc<AdminTaskTicket>>)> {
        let mut queue = self.lock();
        queue.running = false;
        loop {
            if queue.stop {
                return None;
            }
            if let Some((kind, _)) = queue.waiting.front() {
                let kind = kind.clone();
                let (same, others) =
                    std::mem::take(&mut queue.waiting).into_iter().partition(|(task, _)| *task == kind);
                queue.waiting = others;
                queue.running = true;
                let same: VecDeque<(AdminTask, Arc<AdminTaskTicket>)> = same;
                return Some((kind, same.into_iter().map(|(_, ticket)| ticket).collect()));
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread and its queue. Dropping it gives requests that wait an error. A running task continues, and the thread
/// ends after it.
pub(super) struct AdminTasks {
    queue: Arc<AdminTaskQueue>,
    thread: Option<JoinHandle<()>>,
}

impl AdminTasks {
    /// Starts the thread, which runs tasks by `run`.
    pub(super) fn start(
        mut run: impl FnMut(AdminTask) -> AdminTaskResult + Send + 'static,
    ) -> Result<AdminTasks> {
        let queue = Arc::new(AdminTaskQueue::default());
        let thread = std::thread::Builder::new()
            .name("kdb-admin-tasks".into())
            .spawn({
                let queue = queue.clone();
                move || {
                    while let Some((task, tickets)) = queue.next() {
                        let result = run(task);
                        tickets.into_iter().for_each(|ticket| ticket.finish(result.clone()));
                    }
                }
            })
            .map_err(|e| Error::io("start the thread for administrative tasks", e))?;
        Ok(AdminTasks { queue, thread: Some(thread) })
    }

    /// Whether no task waits or runs.
    pub(super) fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.waiting.is_empty() && !queue.running
    }

    /// Asks for a run of a task that begins after this call.
    pub(super) fn submit(&self, task: AdminTask) -> std::result::Result<Arc<AdminTaskTicket>, String> {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= ADMIN_TASKS_WAITING {
            return Err(format!("ERR {ADMIN_TASKS_WAITING} administrative tasks wait already"));
        }
        let ticket = Arc::new(AdminTaskTicket::default());
        queue.waiting.push_back((task, ticket.clone()));
        self.queue.changed.notify_one();
        Ok(ticket)
    }
}

impl Drop for AdminTasks {
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.stop = true;
        let (waiting, running) = (std::mem::take(&mut queue.waiting), queue.running);
        drop(queue);
        self.queue.changed.notify_one();
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

    fn wait(ticket: &AdminTaskTicket) -> AdminTaskResult {
        loop {
            if let Some(result) = ticket.result() {
                return result.clone();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A queue in which each task waits for a message, and a channel that reports each begun task.
    fn stepwise() -> (AdminTasks, mpsc::Sender<()>, mpsc::Receiver<AdminTask>) {
        let (go, steps) = mpsc::channel();
        let (begun, began) = mpsc::channel();
        let mut runs = 0;
        let tasks = AdminTasks::start(move |task| {
            begun.send(task).unwrap();
            let _ = steps.recv();
            runs += 1;
            Ok(format!("run {runs}"))
        });
        (tasks.unwrap(), go, began)
    }

    #[test]
    fn requests_that_wait_share_a_run_that_begins_after_them() {
        let (tasks, go, began) = stepwise();
        let first = tasks.submit(AdminTask::Checkpoint).unwrap();
        assert_eq!(began.recv(), Ok(AdminTask::Checkpoint));
        // The first run has begun, so it may lack these clients' writes.
        let second = tasks.submit(AdminTask::Checkpoint).unwrap();
        let verify = tasks.submit(AdminTask::Verify).unwrap();
        let third = tasks.submit(AdminTask::Checkpoint).unwrap();
        (0..3).for_each(|_| go.send(()).unwrap());
        assert_eq!(wait(&first), Ok("run 1".into()));
        assert_eq!(wait(&second), Ok("run 2".into()));
        assert_eq!(wait(&third), Ok("run 2".into()));
        assert_eq!(wait(&verify), Ok("run 3".into()));
        assert_eq!([began.recv(), began.recv()], [Ok(AdminTask::Checkpoint), Ok(AdminTask::Verify)]);
    }

    #[test]
    fn one_request_past_the_limit_is_refused() {
        let (tasks, go, began) = stepwise();
        let running = tasks.submit(AdminTask::Verify).unwrap();
        assert_eq!(began.recv(), Ok(AdminTask::Verify));
        let waiting: Vec<_> =
            (0..ADMIN_TASKS_WAITING).map(|_| tasks.submit(AdminTask::Verify).unwrap()).collect();
        assert!(tasks.submit(AdminTask::Checkpoint).unwrap_err().starts_with("ERR 64 "));
        (0..2).for_each(|_| go.send(()).unwrap());
        assert_eq!(wait(&running), Ok("run 1".into()));
        assert!(waiting.iter().all(|ticket| wait(ticket) == Ok("run 2".into())));
        tasks.submit(AdminTask::Checkpoint).unwrap();
    }

    #[test]
    fn the_end_answers_requests_that_wait() {
        let (tasks, go, began) = stepwise();
        let running = tasks.submit(AdminTask::Verify).unwrap();
        assert_eq!(began.recv(), Ok(AdminTask::Verify));
        let waiting = tasks.submit(AdminTask::Checkpoint).unwrap();
        drop(tasks);
        assert!(waiting.result().unwrap().is_err() && running.result().is_none());
        go.send(()).unwrap();
        assert_eq!(wait(&running), Ok("run 1".into()));
    }
}
