//! Stops servers on signals: the first signal ends them in order, a later one at once.
//!
//! A server that is still starting has acknowledged nothing yet. So a signal ends its process at once, like `kill -9`.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Ends a running server in order.
type Stop = Box<dyn Fn() + Send>;

/// A thread that waits for signals which stop a server.
pub struct Stops {
    /// None while the server starts.
    stop: Arc<Mutex<Option<Stop>>>,
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Stops {
    /// Makes a signal end this process with exit code 0, until [`Stops::started`].
    pub fn catch() -> anyhow::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("handling signals")?;
        let handle = signals.handle();
        let stop = Arc::new(Mutex::new(None));
        let thread = thread::Builder::new()
            .name("signals".into())
            .spawn({
                let stop = stop.clone();
                move || watch(&mut signals, &stop)
            })
            .context("starting a thread")?;
        Ok(Self { stop, handle, thread })
    }

    /// Makes the first signal call `stop`. A signal that comes more than a second later ends the process. Data that was
    /// acknowledged as durable is durable even then.
    pub fn started(&self, stop: impl Fn() + Send + 'static) {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(stop));
    }

    /// Ends the thread, after the server has ended.
    pub fn end(self) {
        self.handle.close();
        // The thread ends when the handle is closed; a panic of it has been reported by itself.
        let _ = self.thread.join();
    }
}

fn watch(signals: &mut Signals, stop: &Mutex<Option<Stop>>) {
    let mut first: Option<Instant> = None;
    for signal in signals.forever() {
        let name = signal_hook::low_level::signal_name(signal);
        match first {
            None => {
                // The lock is held meanwhile, so that the server does not start to serve.
                let stop = stop.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(stop) = &*stop else {
                    tracing::info!(signal = name, "stopped while it started");
                    std::process::exit(0);
                };
                // The stop comes first, because a log that cannot be written must not keep the server running.
                stop();
                tracing::info!(signal = name, "stopping");
                first = Some(Instant::now());
            }
            // The same key press may arrive twice, from the terminal and from a parent.
            Some(at) if at.elapsed() < Duration::from_secs(1) => {}
            Some(_) => {
                tracing::warn!("ended without waiting");
                std::process::exit(128 + signal);
            }
        }
    }
}
