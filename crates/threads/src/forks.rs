//! Forks: tells whether an object was made in this process, or was inherited from the parent process.
//!
//! A forked child has a copy of its parent's memory and one thread. So an object that has a thread, or shares memory or kernel
//! objects with its parent's copy, must not be used in the child. Its destructor must not change shared state there. A lock
//! that another thread held during the fork stays locked in the child. This module takes no lock.
//!
//! A handler of `pthread_atfork` counts forks. The C library calls it for `fork`, and not for a bare `clone` system call. The
//! C library removes the handler when it unloads the object that has this code.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

/// Number of counted forks from an ancestor to this process. A child has another number than all of its ancestors.
static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCHED: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    FORKS.fetch_add(1, Relaxed);
}

/// Counts forks from now on. Returns `false` if there is no memory for that.
pub fn watch() -> bool {
    // Two threads that begin at once count each fork twice, which does no harm.
    if !WATCHED.load(Acquire) {
        // SAFETY: the handler only adds to a word.
        let is_watched = unsafe { libc::pthread_atfork(None, None, Some(forked)) } == 0;
        WATCHED.fetch_or(is_watched, AcqRel);
    }
    WATCHED.load(Acquire)
}

/// Number of counted forks from an ancestor to this process.
pub fn count() -> u32 {
    FORKS.load(Relaxed)
}

/// The process in which an object was made. Forks must be [counted](watch) before one is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The calling process.
    pub fn current() -> Self {
        Self(count())
    }

    /// Whether it is the calling process.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// A static object of which each process makes its own. A child leaks the parent's object, because the fork may have left it
/// in any state.
pub struct PerProcess<T: 'static> {
    made: AtomicPtr<(Process, T)>,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// A static without an object yet.
    pub const fn new() -> Self {
        Self { made: AtomicPtr::new(ptr::null_mut()) }
    }

    /// This process's own object, if it is made. This allocates nothing, so signal handlers may call it.
    pub fn made(&self) -> Option<&'static T> {
        // SAFETY: null, or an object that was leaked.
        let (process, object) = unsafe { self.made.load(Acquire).as_ref() }?;
        process.is_current().then_some(object)
    }

    /// This process's own object, which the first call makes. Forks must be [counted](watch) before.
    pub fn get(&self) -> &'static T {
        if let Some(object) = self.made() {
            return object;
        }
        let known = self.made.load(Acquire);
        let new = Box::into_raw(Box::new((Process::current(), T::default())));
        let made = match self.made.compare_exchange(known, new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(theirs) => {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                theirs
            }
        };
        // SAFETY: it is leaked. If another thread made it, that was in this process.
        unsafe { &(*made).1 }
    }
}

impl<T: Default + Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Whether a check succeeds in a forked child, by the child's exit status.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs the check, which takes no lock that another thread may have, and exits.
        match unsafe { libc::fork() } {
            0 => {
                let status = i32::from(!check());
                // SAFETY: it ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(status) }
            }
            child => {
                let mut status = -1;
                // SAFETY: the status is writable.
                let waited = unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!(waited, child);
                status == 0
            }
        }
    }

    #[test]
    fn a_child_is_another_process_and_makes_its_own_objects() {
        static OWN: PerProcess<Mutex<u32>> = PerProcess::new();
        assert!(watch());
        let parent = Process::current();
        let mut locked = OWN.get().lock().unwrap();
        *locked = 7;
        assert!(parent.is_current());
        assert!(in_child(|| !parent.is_current()
            && Process::current().is_current()
            // The parent's object is locked for ever in the child.
            && OWN.get().try_lock().is_ok_and(|own| *own == 0)
            && in_child(|| !parent.is_current() && OWN.get().try_lock().is_ok())));
        assert!(parent.is_current());
        drop(locked);
        assert_eq!(*OWN.get().lock().unwrap(), 7);
    }
}
