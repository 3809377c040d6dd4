//! Stops servers on signals: the first signal ends them in order, a later one at once.
//!
//! A server that is still starting has acknowledged nothing yet. So a signal ends its process at once, like `kill -9`. From the moment
//! when it may acknowledge something, a signal ends it in order.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Ends a running server in order.
type Stop = Box<dyn Fn() + Send>;

/// The effect of the first signal.
enum Server {
    /// It ends the process.
    Starts,
    /// It waits for the way to stop the server, which serves already, or will in a moment.
    Serves,
    /// It has come, and waits.
    IsToStop,
    /// It calls this.
    Stops(Stop),
}

/// A thread that waits for signals which stop a server.
pub struct Stops {
    server: Arc<Mutex<Server>>,
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Stops {
    /// Makes a signal end this process with exit code 0, until [`Stops::serves`].
    pub fn catch() -> anyhow::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("handling signals")?;
        let handle = signals.handle();
        let server = Arc::new(Mutex::new(Server::Starts));
        let thread = thread::Builder::new()
            .name("signals".into())
            .spawn({
                let server = server.clone();
                move || watch(&mut signals, &server)
            })
            .context("starting a thread")?;
        Ok(Self { server, handle, thread })
    }

    /// To be called before the server may acknowledge anything. The first signal waits for [`Stops::started`] from now on.
    pub fn serves(&self) {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*server, Server::Starts) {
            *server = Server::Serves;
        }
    }

    /// Makes the first signal call `stop`, at once if it has come already. A signal that comes more than a second later ends the
    /// process. Data that was acknowledged as durable is durable even then.
    pub fn started(&self, stop: impl Fn() + Send + 'static) {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).started(Box::new(stop));
    }

    /// Ends the thread, after the server has ended.
    pub fn end(self) {
        self.handle.close();
        // The thread ends when the handle is closed; a panic of it has been reported by itself.
        let _ = self.thread.join();
    }
}

impl Server {
    fn started(&mut self, stop: Stop) {
        if matches!(self, Server::IsToStop) {
            stop();
        }
        *self = Server::Stops(stop);
    }

    /// The first signal. False: the process is to end.
    fn stop(&mut self) -> bool {
        match self {
            Server::Starts => return false,
            Server::Serves | Server::IsToStop => *self = Server::IsToStop,
            Server::Stops(stop) => stop(),
        }
        true
    }
}

fn watch(signals: &mut Signals, server: &Mutex<Server>) {
    let mut first: Option<Instant> = None;
    for signal in signals.forever() {
        let name = signal_hook::low_level::signal_name(signal);
        match first {
            None => {
                // The lock is held meanwhile, so that the server does not start to serve.
                let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
                // The stop comes first, because a log that cannot be written must not keep the server running.
                if !server.stop() {
                    tracing::info!(signal = name, "stopped while it started");
                    std::process::exit(0);
                }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_signal_stops_whatever_may_have_acknowledged_something() {
        let stops = Arc::new(AtomicU32::new(0));
        let stop = || -> Stop {
            let stops = stops.clone();
            Box::new(move || _ = stops.fetch_add(1, Ordering::Relaxed))
        };
        assert!(!Server::Starts.stop());
        // Before anybody knows how the server is stopped.
        let mut server = Server::Serves;
        assert!(server.stop() && server.stop());
        server.started(stop());
        assert_eq!(stops.load(Ordering::Relaxed), 1);
        // Afterwards.
        let mut server = Server::Serves;
        server.started(stop());
        assert_eq!(stops.load(Ordering::Relaxed), 1);
        assert!(server.stop());
        assert_eq!(stops.load(Ordering::Relaxed), 2);
    }
}
