//! Pages for tasks: an asynchronous stream of pages that own themselves, for any executor.
//!
//! One thread of the process waits for the descriptors of all streams whose tasks wait, and wakes these. So it does not matter
//! which runtime runs a task, or which process reads. The thread begins with the first stream that has to wait, and stays. A forked
//! child begins one of its own.
//! Lock: the wakers; nothing else is taken while it is held, and no waker is called.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bedplate_threads::forks::PerProcess;
use futures_core::Stream;
use rustix::event::epoll;
use rustix::io::Errno;

use super::{Channel, OwnedGot, OwnedPage};
use crate::{Error, Result};

/// Events that the thread takes at a time.
const EVENTS: usize = 64;

/// What waits for the descriptors of all streams.
struct Reactor {
    epoll: OwnedFd,
    wakers: Mutex<HashMap<u64, Waker>>,
}

impl Reactor {
    /// The process's own.
    fn get() -> Result<&'static Self> {
        /// The reactor, and a lock that one thread holds while it starts it.
        #[derive(Default)]
        struct Own {
            reactor: OnceLock<&'static Reactor>,
            starting: Mutex<()>,
        }
        // The parent's has no thread in a forked child, and its epoll is the parent's.
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
        // It stays as long as the process, as its thread does.
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
                Err(error) => panic!("waiting for channels: {error}"),
            }
            for event in &events {
                let waker = self.wakers().remove(&event.data.u64());
                if let Some(waker) = waker {
                    // A waker that panics is not everybody's end.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
                }
            }
        }
    }
}

/// A channel's pages as a [`Stream`] of [`OwnedPage`]s. A page that cannot be had is an error, and the stream goes on after it. So it
/// does after [`Error::Held`], when as many pages are out as may be: return some before you ask again.
///
/// It does not need a runtime: see [`Channel::descriptor`] for one's own.
#[derive(Debug)]
pub struct PageStream {
    channel: Channel,
    /// By what the reactor knows it, if it does.
    id: Option<u64>,
}

impl PageStream {
    /// Of a channel.
    pub fn new(channel: Channel) -> Self {
        Self { channel, id: None }
    }

    /// The channel, to add or cancel ranges, or to look at its statistics.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// The task is to be woken when there is something.
    fn wait(&mut self, waker: &Waker) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let reactor = Reactor::get()?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let id = self.id.unwrap_or_else(|| NEXT.fetch_add(1, Relaxed));
        let data = epoll::EventData::new_u64(id);
        let descriptor = self.channel.descriptor()?;
        // Before the descriptor is watched: the event may come at once.
        reactor.wakers().insert(id, waker.clone());
        let watched = match self.id {
            Some(_) => epoll::modify(&reactor.epoll, descriptor, data, flags),
            None => epoll::add(&reactor.epoll, descriptor, data, flags),
        };
        if let Err(error) = watched {
            reactor.wakers().remove(&id);
            return Err(Error::system("waiting for a channel")(error));
        }
        self.id = Some(id);
        Ok(())
    }
}

impl Stream for PageStream {
    type Item = Result<OwnedPage>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        // The descriptor is there before the worker says that it has nothing, which arms it.
        if let Err(error) = this.channel.descriptor().map(|_| ()) {
            return Poll::Ready(Some(Err(error)));
        }
        match this.channel.get_owned() {
            Ok(OwnedGot::Page(page)) => Poll::Ready(Some(Ok(page))),
            Ok(OwnedGot::End) => Poll::Ready(None),
            Ok(OwnedGot::NotYet) => match this.wait(context.waker()) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Some(Err(error))),
            },
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl Drop for PageStream {
    fn drop(&mut self) {
        // The parent's reactor waits for its own stream by the same epoll.
        if self.channel.is_inherited() {
            return;
        }
        if let (Some(id), Ok(reactor)) = (self.id, Reactor::get()) {
            if let Ok(descriptor) = self.channel.descriptor() {
                let _ = epoll::delete(&reactor.epoll, descriptor);
            }
            reactor.wakers().remove(&id);
        }
    }
}
