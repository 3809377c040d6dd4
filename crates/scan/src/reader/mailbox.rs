//! The mailbox in which a cache puts arrivals for a reader in its own process.
//!
//! Lock: the mailbox's own. A thread must not take another lock or call a waker while it holds this lock.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::cache::{Arrival, Recipient};
use crate::{Error, Result};

#[derive(Default)]
struct State {
    arrivals: VecDeque<Arrival>,
    /// The next arrival wakes it, and so does the end of the arrivals.
    waker: Option<Waker>,
    /// Nothing more arrives.
    is_over: bool,
}

/// The reader's side.
#[derive(Default)]
pub struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next arrival. `None`: nothing has arrived yet, and `waits` is false.
    ///
    /// # Errors
    /// [`Error::Gone`]: the mailbox is empty and nothing more arrives.
    pub fn take(&self, waits: bool) -> Result<Option<Arrival>> {
        let mut state = self.state();
        loop {
            match state.arrivals.pop_front() {
                Some(arrival) => return Ok(Some(arrival)),
                None if state.is_over => return Err(Error::Gone),
                None if !waits => return Ok(None),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Wakes the waker once, when there is an arrival to take or nothing more arrives.
    pub fn wake_at_arrival(&self, waker: Waker) {
        let mut state = self.state();
        if state.arrivals.is_empty() && !state.is_over {
            state.waker = Some(waker);
        } else {
            drop(state);
            waker.wake();
        }
    }
}

/// The cache's side. Dropping it ends the arrivals.
pub struct Sender(pub Arc<Mailbox>);

impl Recipient for Sender {
    fn arrive(&mut self, arrival: Arrival) -> Option<Waker> {
        let mut state = self.0.state();
        state.arrivals.push_back(arrival);
        self.0.changed.notify_all();
        state.waker.take()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        self.0.changed.notify_all();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
