//! How servers are stopped: the first signal ends them in order, a later one at once.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Signals that stop a server, which are kept until there is one to be stopped.
pub struct Stops(Signals);

/// A thread that waits for them.
pub struct Watch {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Stops {
    /// From here on signals do not end this process.
    pub fn catch() -> anyhow::Result<Self> {
        Ok(Self(Signals::new([SIGINT, SIGTERM]).context("handling signals")?))
    }

    /// Calls `stop` at the first signal. One that comes a while later, because the user has run out of patience, ends the process:
    /// what was acknowledged as durable is.
    pub fn watch(mut self, stop: impl Fn() + Send + 'static) -> anyhow::Result<Watch> {
        let handle = self.0.handle();
        let thread = thread::Builder::new()
            .name("signals".into())
            .spawn(move || watch(&mut self.0, stop))
            .context("starting a thread")?;
        Ok(Watch { handle, thread })
    }
}

impl Watch {
    /// The server has ended.
    pub fn end(self) {
        self.handle.close();
        // The thread ends when the handle is closed; a panic of it has been reported by itself.
        let _ = self.thread.join();
    }
}

fn watch(signals: &mut Signals, stop: impl Fn()) {
    let mut first: Option<Instant> = None;
    for signal in signals.forever() {
        match first {
            None => {
                // First, because a log that cannot be written must not keep the server running.
                stop();
                tracing::info!(signal = signal_hook::low_level::signal_name(signal), "stopping");
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
