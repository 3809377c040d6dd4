//! A service for other processes: it listens on a Unix socket, and whoever may connect opens channels by it.
//!
//! Trust goes one way. Clients trust the service as they trust the kernel that they would otherwise read by. The service believes
//! nothing: messages are parsed with limits ([`crate::wire`]), files are read by the descriptors that clients opened
//! ([`files`]), boards are audited, frames are sealed so that only the service writes to them, and memory that was lent is not
//! used for another channel.
//!
//! Threads: one that accepts, and one for each connection, which sleeps in its socket and rings the control loop's bell for the
//! worker; workers get no bell of their own, because who can ring an eventfd can silence it. A connection's thread owns what
//! was opened on it, so a worker that is gone, however it went, is noticed by its socket, and leaves at once.
//! Lock: the list of connections ([`Ending`]); nothing else is taken while it is held.

mod budget;
mod connection;
mod files;
mod listen;
mod reader;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::engine::Bell;
use crate::service::{Service, Shared};
use crate::wire::{Reply, Socket};
use crate::{Error, Result};
use budget::Budget;
use connection::Connection;
use listen::Listener;

/// What clients may have of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Connections: channels and pools.
    pub connections: usize,
    /// Bytes of frames, of all clients.
    pub memory: u64,
    /// Files of one channel or pool.
    pub files: u32,
}

impl Default for Limits {
    /// 256 connections, a quarter of the machine's memory, and 256 files.
    fn default() -> Self {
        let system = rustix::system::sysinfo();
        let memory = system.totalram as u64 * u64::from(system.mem_unit) / 4;
        Self { connections: 256, memory, files: 256 }
    }
}

/// How a daemon is to listen.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The group that may connect beside the owner; its number.
    pub group: Option<u32>,
    /// What clients may have.
    pub limits: Limits,
}

/// A service that listens. It ends with [`Stopper::stop`].
pub struct Daemon {
    service: Service,
    listener: Listener,
    limits: Limits,
    ending: Arc<Ending>,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("path", &self.listener.path()).finish_non_exhaustive()
    }
}

/// Who is connected, and whether that is to end.
struct Ending {
    bell: Bell,
    over: AtomicBool,
    connections: Mutex<HashMap<usize, Arc<Socket>>>,
}

impl Ending {
    fn connections(&self) -> MutexGuard<'_, HashMap<usize, Arc<Socket>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stops a daemon from elsewhere, for instance from a signal handler's thread.
#[derive(Clone)]
pub struct Stopper(Arc<Ending>);

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopper")
    }
}

impl Stopper {
    /// How many connections the daemon has now.
    pub fn connections(&self) -> usize {
        self.0.connections().len()
    }

    /// Tells the daemon to end; its clients learn that it is gone.
    pub fn stop(&self) {
        self.0.over.store(true, Ordering::Release);
        self.0.bell.ring();
    }
}

impl Daemon {
    /// Listens at a path. A socket there that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// Somebody listens there, something else is there, or nothing can be; the service is another process's.
    pub fn bind(service: Service, path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        if service.shared().is_none() {
            return Err(Error::Invalid("a service of another process cannot be served by this one".into()));
        }
        let listener = Listener::bind(path.as_ref(), options.group)?;
        let ending =
            Ending { bell: Bell::new()?, over: AtomicBool::new(false), connections: Mutex::default() };
        Ok(Self { service, listener, limits: options.limits, ending: Arc::new(ending) })
    }

    /// Where it listens.
    pub fn path(&self) -> PathBuf {
        self.listener.path().to_owned()
    }

    /// What stops it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.ending.clone())
    }

    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// Nothing can be accepted any more; the service has ended.
    pub fn run(self) -> Result<()> {
        let shared = self.service.shared().expect("checked when it was made").clone();
        let mut threads: HashMap<usize, JoinHandle<()>> = HashMap::new();
        let budget = Budget::new(self.limits.memory);
        let mut next = 0;
        let result = loop {
            match self.wait(&shared) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => Arc::new(Socket::from(socket)),
                Ok(None) => continue,
                Err(error) => break Err(error),
            };
            threads.retain(|_, thread| !thread.is_finished());
            if threads.len() >= self.limits.connections {
                let text = format!("it has {} connections, and takes no more", self.limits.connections);
                // There is room for this in an empty socket.
                socket.send_now(&Reply::Failed { invalid: false, text }, &[]);
                continue;
            }
            next += 1;
            match self.serve(next, socket, &shared, &budget) {
                Ok(thread) => drop(threads.insert(next, thread)),
                Err(error) => tracing::warn!("a connection gets no thread: {error}"),
            }
        };
        // Who connects from now on is not heard.
        self.ending.connections().values().for_each(|socket| socket.end());
        for thread in threads.into_values() {
            let _ = thread.join();
        }
        result
    }

    /// Waits until somebody connects. `false`: it is to end.
    fn wait(&self, shared: &Shared) -> Result<bool> {
        loop {
            let mut news = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(self.ending.bell.descriptor(), PollFlags::IN),
            ];
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            match poll(&mut news, Some(&second)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Error::system("waiting for connections")(error)),
            }
            if self.ending.over.load(Ordering::Acquire) {
                return Ok(false);
            }
            if !shared.is_alive() {
                return Err(Error::Gone);
            }
            if news[0].revents().contains(PollFlags::IN) {
                return Ok(true);
            }
        }
    }

    /// Gives a connection its thread.
    fn serve(
        &self,
        number: usize,
        socket: Arc<Socket>,
        shared: &Arc<Shared>,
        budget: &Budget,
    ) -> std::io::Result<JoinHandle<()>> {
        /// Packets are on the heap.
        const STACK: usize = 256 << 10;
        let (ending, limits) = (self.ending.clone(), self.limits);
        let connection = Connection::new(socket.clone(), shared.clone(), budget.clone(), limits);
        ending.connections().insert(number, socket);
        let listed = Listed { ending, number };
        let builder = std::thread::Builder::new().name("scan-client".into()).stack_size(STACK);
        bedplate_threads::spawn(builder, move || {
            let _listed = listed;
            match connection.run() {
                // It has what it wanted, or is gone.
                Ok(()) | Err(Error::Gone) => {}
                Err(error) => tracing::debug!("a connection ends: {error}"),
            }
        })
    }
}

/// A connection on the list.
struct Listed {
    ending: Arc<Ending>,
    number: usize,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.ending.connections().remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
