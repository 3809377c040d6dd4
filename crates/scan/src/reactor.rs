//! Wakes tasks when descriptors become readable, for any executor.
//!
//! One thread of the process waits for the descriptors of all waiting tasks, and wakes these tasks. So it does not matter which
//! runtime runs a task, or which process reads. The first task that has to wait starts the thread, which then runs as long as the
//! process. A forked child starts a thread of its own.
//!
//! Lock: the wakers. A thread that holds it takes no other lock and calls no waker.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use bedplate_threads::forks::PerProcess;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::{Error, Result};

/// The largest number of events that the thread takes at a time.
const EVENTS: usize = 64;

/// The epoll instance and the wakers of all waiting tasks.
struct Reactor {
    epoll: OwnedFd,
    wakers: Mutex<HashMap<u64, Waker>>,
}

impl Reactor {
    /// The reactor of this process. The first call starts it.
    fn get() -> Result<&'static Self> {
        /// The reactor, and a lock that one thread holds while it starts it.
        #[derive(Default)]
        struct Own {
            reactor: OnceLock<&'static Reactor>,
            starting: Mutex<()>,
        }
        // A forked child cannot use its parent's reactor: its thread does not run in the child, and its epoll instance is the
        // parent's.
        static OWN: PerProcess<Own> = PerProcess::new();
        let own = OWN.get();
        if let Some(reactor) = own.reactor.get() {
            return Ok(reactor);
        }
        let _starting = own.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reactor) = own.reactor.get() {
            return Ok(reactor);
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("creating an epoll"))?;
        // The reactor lives as long as the process, because its thread does.
        let reactor: &'static Self = Box::leak(Box::new(Self { epoll, wakers: Mutex::default() }));
        let builder = std::thread::Builder::new().name("scan-tasks".into());
        bedplate_threads::spawn(builder, || reactor.run()).map_err(|_| Error::System {
            what: "starting the thread that wakes tasks",
            source: Errno::AGAIN,
        })?;
        Ok(own.reactor.get_or_init(|| reactor))
    }

    fn wakers(&self) -> MutexGuard<'_, HashMap<u64, Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("waiting for descriptors: {error}"),
            }
            for event in &events {
                let waker = self.wakers().remove(&event.data.u64());
                if let Some(waker) = waker {
                    // A waker that panics must not end the thread, because other tasks need it.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
                }
            }
        }
    }
}

/// A descriptor for which a task waits. Its owner must [forget](Self::forget) it before the descriptor is closed.
#[derive(Debug, Default)]
pub struct Watched {
    /// The reactor's key for the waker. `None`: the reactor does not watch the descriptor.
    id: Option<u64>,
}

impl Watched {
    /// Wakes the waker once, as soon as the descriptor is readable. A waker of an earlier call is not called any more.
    ///
    /// # Errors
    /// The reactor's thread cannot be started, or the kernel cannot watch the descriptor.
    pub fn wake_when_readable(&mut self, descriptor: BorrowedFd<'_>, waker: Waker) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let reactor = Reactor::get()?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let id = self.id.unwrap_or_else(|| NEXT.fetch_add(1, Relaxed));
        let data = epoll::EventData::new_u64(id);
        // The waker is inserted before the descriptor is watched, because the event may come at once.
        reactor.wakers().insert(id, waker);
        let watched = match self.id {
            Some(_) => epoll::modify(&reactor.epoll, descriptor, data, flags),
            None => epoll::add(&reactor.epoll, descriptor, data, flags),
        };
        if let Err(error) = watched {
            reactor.wakers().remove(&id);
            return Err(Error::system("waiting for a descriptor")(error));
        }
        self.id = Some(id);
        Ok(())
    }

    /// Stops watching the descriptor. A forked child must not call this for a descriptor that its parent watched, because the
    /// parent's reactor waits by the same epoll instance.
    pub fn forget(&mut self, descriptor: BorrowedFd<'_>) {
        // A descriptor that was never watched needs no reactor, and this call starts none.
        let Some(id) = self.id.take() else { return };
        if let Ok(reactor) = Reactor::get() {
            let _ = epoll::delete(&reactor.epoll, descriptor);
            reactor.wakers().remove(&id);
        }
    }
}
