//! How the two sides wake each other without either making a system call while the other is awake.
//!
//! Both directions are the same handshake. Who is about to sleep says so, *then* looks once more whether there is anything
//! to do; who has done something makes it visible, *then* looks whether anybody sleeps. A sequentially consistent
//! fence between the two steps of each side makes it impossible that both miss the other.

use super::words::{AtomicU32, Ordering, fence};

/// When the service wants to be told of what a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Want {
    /// It will look by itself.
    Nothing = 0,
    /// When the worker has nothing to read: pages were held back to be just in time.
    Starving = 1,
    /// When a page is returned: no timer runs for this channel.
    Returned = 2,
}

/// The service's side of the handshake: it sleeps, the worker rings.
#[derive(Debug)]
#[repr(transparent)]
pub struct Bell(AtomicU32);

impl Bell {
    /// The service wants nothing.
    pub fn new() -> Self {
        Self(AtomicU32::new(Want::Nothing as u32))
    }

    /// Service, before it looks at the board for the last time and sleeps.
    pub fn want(&self, what: Want) {
        self.0.store(what as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Worker, after it did `what`: whether it must ring. At most one of those who ask is told to.
    pub fn must_ring(&self, what: Want) -> bool {
        fence(Ordering::SeqCst);
        let wanted = self.0.load(Ordering::Relaxed);
        wanted != Want::Nothing as u32
            && (what == Want::Starving || wanted == what as u32)
            && self.0.swap(Want::Nothing as u32, Ordering::Relaxed) != Want::Nothing as u32
    }
}

/// The worker's side of the handshake: it sleeps on the word by futex, the service wakes it; it waits for a descriptor, which
/// the service makes readable; or it polls, and the service only has to know.
#[derive(Debug)]
#[repr(transparent)]
pub struct Sleeper(AtomicU32);

/// The value on which the worker sleeps.
pub const SLEEPS: u32 = 1;
/// The worker does not sleep, and wants a page as one that does: it asks again and again.
const POLLS: u32 = 2;
/// The worker waits for its descriptor to become readable.
const WATCHES: u32 = 3;

/// What the service does for a worker after it published something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Nothing.
    Nothing,
    /// It wakes the worker, which sleeps.
    Sleeper,
    /// It makes the worker's descriptor readable.
    Descriptor,
}

impl Sleeper {
    /// The worker is awake.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Worker, before it looks at the board for the last time and sleeps while the word is [`SLEEPS`].
    pub fn prepare(&self) {
        self.0.store(SLEEPS, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Worker, before it looks at the board for the last time and whether it must ring: it found nothing and does not sleep.
    /// `false`: it said so before, and nothing was published since. The service knows then, for it looks at this before it
    /// sleeps, each time; to ring again would only keep it from that.
    pub fn poll(&self) -> bool {
        let news = self.0.load(Ordering::Relaxed) != POLLS;
        if news {
            self.0.store(POLLS, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        news
    }

    /// Worker, before it looks at the board for the last time and waits for its descriptor. `false`: it said so before, and the
    /// service has not made the descriptor readable since. Only the service takes this back, once, and makes the descriptor
    /// readable once for it; a worker that watches neither polls nor sleeps.
    pub fn watch(&self) -> bool {
        let news = self.0.load(Ordering::Relaxed) != WATCHES;
        if news {
            // The service must see the descriptor, which the worker asked for before.
            self.0.store(WATCHES, Ordering::Release);
            fence(Ordering::SeqCst);
        }
        news
    }

    /// Worker: it found something, or is awake again.
    pub fn awake(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Service, after it published something: what it must do for the worker. One that polls has what it wanted either
    /// way, and says so anew when it wants more: if it stops to ask, nothing is read for it for ever.
    pub fn must_wake(&self) -> Wake {
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) == 0 {
            return Wake::Nothing;
        }
        match self.0.swap(0, Ordering::Acquire) {
            SLEEPS => Wake::Sleeper,
            WATCHES => Wake::Descriptor,
            _ => Wake::Nothing,
        }
    }

    /// Service, after it said what it wants ([`Bell::want`]): whether the worker has nothing to read.
    pub fn starves(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// What the futex is.
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Sleeper {
    fn default() -> Self {
        Self::new()
    }
}
