//! The handshake by which the two sides wake each other. Neither side makes a system call while the other is awake.
//!
//! Both directions use the same handshake. The side that is about to sleep announces it, *then* checks once more for work. The
//! other side makes its work visible, *then* checks whether its peer sleeps. Each side executes a sequentially consistent fence
//! between its two steps. So at least one side sees the other's first step.

use super::words::{AtomicU32, Ordering, fence};

/// The events for which the worker must wake the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Want {
    /// None: the service checks the board by itself.
    Nothing = 0,
    /// The worker has nothing to read. The service waits for this while it holds pages back to deliver them just in time.
    Starving = 1,
    /// The worker has returned a page. The service waits for this while no timer runs for the channel.
    Returned = 2,
}

/// The service's side of the handshake: the service sleeps, and the worker rings.
#[derive(Debug)]
#[repr(transparent)]
pub struct Bell(AtomicU32);

impl Bell {
    /// Creates a bell that wants no ring.
    pub fn new() -> Self {
        Self(AtomicU32::new(Want::Nothing as u32))
    }

    /// Service side: sets the event that it wants to be woken for. It must then check the board once more before it sleeps.
    pub fn want(&self, what: Want) {
        self.0.store(what as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Worker side, after the event `what`: returns whether the worker must ring. If several threads ask at once, at most one of
    /// them gets `true`.
    pub fn must_ring(&self, what: Want) -> bool {
        fence(Ordering::SeqCst);
        let wanted = self.0.load(Ordering::Relaxed);
        wanted != Want::Nothing as u32
            && (what == Want::Starving || wanted == what as u32)
            && self.0.swap(Want::Nothing as u32, Ordering::Relaxed) != Want::Nothing as u32
    }
}

/// The worker's side of the handshake. A worker that sleeps waits for the word by futex, and the service wakes it. A worker that
/// watches waits for a descriptor, which the service makes readable. A worker that polls only informs the service.
#[derive(Debug)]
#[repr(transparent)]
pub struct Sleeper(AtomicU32);

/// The value of the word while the worker sleeps in the futex.
pub const SLEEPS: u32 = 1;
/// The worker polls: it wants a page as urgently as a worker that sleeps, but asks repeatedly.
const POLLS: u32 = 2;
/// The worker waits for its descriptor to become readable.
const WATCHES: u32 = 3;

/// The way in which the service must wake a worker after it has published something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The service does nothing.
    Nothing,
    /// The service wakes the worker, which sleeps.
    Sleeper,
    /// The service makes the worker's descriptor readable.
    Descriptor,
}

impl Sleeper {
    /// Creates the word of a worker that is awake.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Worker side: announces that it is about to sleep. It must then check the board once more, and sleep only while the word is
    /// [`SLEEPS`].
    pub fn prepare(&self) {
        self.0.store(SLEEPS, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Worker side: announces that it found nothing and polls. It must then check the board once more and call
    /// [`Bell::must_ring`].
    ///
    /// Returns `false` if the worker announced it before and the service has published nothing since. The service already knows
    /// then, because it checks this word before each sleep. Another ring would only keep the service awake.
    pub fn poll(&self) -> bool {
        let news = self.0.load(Ordering::Relaxed) != POLLS;
        if news {
            self.0.store(POLLS, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        news
    }

    /// Worker side: announces that it waits for its descriptor. It must then check the board once more.
    ///
    /// Returns `false` if the worker announced it before and the service has not made the descriptor readable since. Only the
    /// service withdraws the announcement. It does so once, and then makes the descriptor readable once. A worker that watches
    /// must neither poll nor sleep.
    pub fn watch(&self) -> bool {
        let news = self.0.load(Ordering::Relaxed) != WATCHES;
        if news {
            // Release: the service must see the descriptor, which the worker requested earlier.
            self.0.store(WATCHES, Ordering::Release);
            fence(Ordering::SeqCst);
        }
        news
    }

    /// Worker side: announces that it has found something or is awake again.
    pub fn awake(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Service side, after it has published something: returns how it must wake the worker.
    ///
    /// This also withdraws the announcement of a worker that polls. Such a worker finds the page by itself, and announces again
    /// when it wants more. Otherwise a worker that stopped polling would count as starving for ever, and the service would keep
    /// reading for it.
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

    /// Service side, after [`Bell::want`]: returns whether the worker has nothing to read.
    pub fn starves(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// The word that the worker's futex waits on.
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
