//! A timer of a handler in a database with several partitions: a thread that runs the handler's program again and again.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{Error, Result};

/// The thread. It ends when this is dropped, after the run that is under way.
pub(super) struct Timer {
    /// The thread ends when it is dropped.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Timer {
    /// Starts the thread, which runs the program by `program`, with this time between the end of a run and the next one.
    pub fn start(interval: Duration, program: impl Fn() -> Result<()> + Send + 'static) -> Result<Timer> {
        let (running, stop) = channel::<()>();
        let run = move || {
            let mut has_failed = false;
            while stop.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                match program() {
                    Err(error) if !has_failed => {
                        tracing::error!(%error, "the handler of a timer does not run");
                        has_failed = true;
                    }
                    done => has_failed = done.is_err(),
                }
            }
        };
        let thread = thread::Builder::new().name("kdb-timer".into()).spawn(run);
        let thread = thread.map_err(|error| Error::io("cannot start a thread for a timer", error))?;
        Ok(Timer { running: Some(running), thread: Some(thread) })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.running = None;
        let ended = self.thread.take().map(JoinHandle::join);
        debug_assert!(matches!(ended, Some(Ok(()))), "the thread has panicked");
    }
}
