//! A shutdown that waits for its checkpoint.
//!
//! The server answers reads until the checkpoint is written; writes wait. The event loop asks
//! [`Shutdown::poll`] whether to stop. A checkpoint that fails, or SHUTDOWN ABORT, ends the shutdown, and the
//! clients that asked for it get an error.
//!
//! There is one lock, held for a few instructions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::services::AdminTaskTicket;

/// The shutdown of a server.
#[derive(Debug, Default)]
pub struct Shutdown(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The checkpoint that the shutdown waits for.
    checkpoint: Option<Arc<AdminTaskTicket>>,
    /// Number of shutdowns that did not happen.
    ended: u64,
}

/// A shutdown that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShutdownNumber(u64);

impl Shutdown {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the shutdown that is under way, if there is one.
    pub(super) fn join(&self) -> Option<ShutdownNumber> {
        let state = self.lock();
        state.checkpoint.is_some().then_some(ShutdownNumber(state.ended))
    }

    /// Begins a shutdown that waits for a checkpoint.
    pub(super) fn begin(&self, checkpoint: Arc<AdminTaskTicket>) -> ShutdownNumber {
        let mut state = self.lock();
        state.checkpoint = Some(checkpoint);
        ShutdownNumber(state.ended)
    }

    /// Whether a shutdown was aborted or has failed.
    pub(super) fn has_ended(&self, number: ShutdownNumber) -> bool {
        self.lock().ended > number.0
    }

    /// Ends the shutdown that is under way; false if there is none.
    pub(super) fn abort(&self) -> bool {
        let mut state = self.lock();
        let under_way = state.checkpoint.take().is_some();
        state.ended += u64::from(under_way);
        under_way
    }

    /// Whether a shutdown is under way, so that the event loop must call [`Shutdown::poll`] again soon.
    pub fn is_under_way(&self) -> bool {
        self.lock().checkpoint.is_some()
    }

    /// `Ok` if the server has to stop now; the error if the shutdown's checkpoint has just failed; `None` otherwise.
    pub fn poll(&self) -> Option<Result<(), String>> {
        let mut state = self.lock();
        let result = state.checkpoint.as_ref()?.result()?.clone();
        if result.is_err() {
            state.checkpoint = None;
            state.ended += 1;
        }
        Some(result.map(drop))
    }
}
