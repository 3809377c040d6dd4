//! The place of an interpreter, which its first use creates.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::interpreter::Interpreter;

/// An interpreter, if there is one at the moment. The lock is held while a script runs.
#[derive(Default)]
pub(super) struct InterpreterSlot(Mutex<Option<Interpreter>>);

impl InterpreterSlot {
    fn lock(&self) -> MutexGuard<'_, Option<Interpreter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the interpreter. If that leaves it in a bad state, the next call gets another one. The error is the client's reply.
    pub fn with<T>(&self, f: impl FnOnce(&mut Interpreter) -> T) -> Result<T, String> {
        let mut guard = self.lock();
        if guard.is_none() {
            let created = Interpreter::new();
            *guard =
                Some(created.map_err(|error| format!("ERR there is no interpreter of scripts: {error}"))?);
        }
        let done = guard.as_mut().map(f).ok_or_else(|| "ERR there is no interpreter of scripts".to_owned());
        if guard.as_ref().is_some_and(Interpreter::is_poisoned) {
            *guard = None;
        }
        done
    }

    /// Drops the interpreter with everything in it.
    pub fn clear(&self) {
        *self.lock() = None;
    }
}
