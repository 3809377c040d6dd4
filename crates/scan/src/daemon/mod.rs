//! A service for other processes: it listens on a Unix socket. Processes that may connect open channels through it.
//!
//! Trust goes one way. Clients trust the service as they trust the kernel. The service does not trust clients:
//! messages are parsed with limits ([`crate::wire`]), files are read through the descriptors that clients opened
//! ([`files`]), boards are audited, frames are sealed so that only the service writes to them, and memory that was lent is not
//! used for another channel.
//!
//! Threads: one thread accepts. Each connection has a thread, which sleeps in its socket and rings the control loop's bell for
//! the worker. Workers get no bell of their own, because a process that can ring an eventfd can also silence it. A connection's
//! thread owns everything that was opened on it. It learns from the socket that a worker is gone, for any reason, and then closes
//! the channel at once.
//!
//! Lock: the list of connections ([`Ending`]). A thread that holds it takes no other lock.

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

/// The limits on what a daemon's clients may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Largest number of connections. Each is a channel, a pool or a reader.
    pub connections: usize,
    /// Largest number of bytes of frames of all clients together.
    pub memory: u64,
    /// Largest number of files of one channel or pool.
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

/// Options of a daemon that listens.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The number of the group that may connect, beside the owner.
    pub group: Option<u32>,
    /// The limits of the clients.
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

/// The list of connections, and whether the daemon must end.
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

/// Stops a daemon from another thread, for instance from one that handles signals.
#[derive(Clone)]
pub struct Stopper(Arc<Ending>);

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopper")
    }
}

impl Stopper {
    /// The number of connections that the daemon has now.
    pub fn connections(&self) -> usize {
        self.0.connections().len()
    }

    /// Makes the daemon end. Its clients notice that it is gone.
    pub fn stop(&self) {
        self.0.over.store(true, Ordering::Release);
        self.0.bell.ring();
    }
}

impl Daemon {
    /// Listens at a path. A socket at this path at which no process listens is replaced.
    ///
    /// # Errors
    /// Another process listens at the path, the path is not a socket, or no socket can be made there.
    /// The service belongs to another process.
    pub fn bind(service: Service, path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        if service.shared().is_none() {
            return Err(Error::Invalid("a service of another process cannot be served by this one".into()));
        }
        let listener = Listener::bind(path.as_ref(), options.group)?;
        let ending =
            Ending { bell: Bell::new()?, over: AtomicBool::new(false), connections: Mutex::default() };
        Ok(Self { service, listener, limits: options.limits, ending: Arc::new(ending) })
    }

    /// The path at which the daemon listens.
    pub fn path(&self) -> PathBuf {
        self.listener.path().to_owned()
    }

    /// A handle that stops the daemon.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.ending.clone())
    }

    /// Serves until it is stopped. The calling thread, and threads that it starts later, run in short slices from then on.
    ///
    /// # Errors
    /// The daemon can accept no more connections, or the service has ended.
    pub fn run(self) -> Result<()> {
        let shared = self.service.shared().expect("checked when it was made").clone();
        // Clients wait for this thread and for those of their connections, which it starts. They may use all processors. It also
        // works without short slices.
        let _ = bedplate_threads::slice::shorten();
        let mut threads: HashMap<usize, JoinHandle<()>> = HashMap::new();
        let budget = Budget::new(self.limits.memory);
        reader::keep_memory_ready(&shared, &budget);
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
                // An empty socket has room for this message.
                socket.send_now(&Reply::Failed { invalid: false, text }, &[]);
                continue;
            }
            next += 1;
            match self.serve(next, socket, &shared, &budget) {
                Ok(thread) => drop(threads.insert(next, thread)),
                Err(error) => tracing::warn!("a connection gets no thread: {error}"),
            }
        };
        // The daemon serves no client that connects from now on.
        self.ending.connections().values().for_each(|socket| socket.end());
        for thread in threads.into_values() {
            let _ = thread.join();
        }
        result
    }

    /// Waits until a client connects. `false`: the daemon must end.
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

    /// Starts the thread of a connection.
    fn serve(
        &self,
        number: usize,
        socket: Arc<Socket>,
        shared: &Arc<Shared>,
        budget: &Budget,
    ) -> std::io::Result<JoinHandle<()>> {
        /// A small stack is enough, because packets are on the heap.
        const STACK: usize = 256 << 10;
        let (ending, limits) = (self.ending.clone(), self.limits);
        let connection = Connection::new(socket.clone(), shared.clone(), budget.clone(), limits);
        ending.connections().insert(number, socket);
        let listed = Listed { ending, number };
        let builder = std::thread::Builder::new().name("scan-client".into()).stack_size(STACK);
        bedplate_threads::spawn(builder, move || {
            let _listed = listed;
            match connection.run() {
                // The client has received its answer, or is gone.
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
