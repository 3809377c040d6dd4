//! Lua scripts (EVAL) and functions (FUNCTION): their interpreters, and the scripts and libraries that clients have sent.
//!
//! A script sees Redis's environment (`prelude.lua`): Lua 5.1 without files, processes and modules, `redis`, `cjson`, `cmsgpack`, `struct`
//! and `bit`. All scripts share one interpreter, and none can change what the others see. All functions share another one. This module
//! knows no commands: the caller runs those that a script calls, and decides about transactions.
//!
//! Locks, in order: `interpreter`, `cache`. The first one is held while a script runs.

mod arguments;
mod bits;
mod cache;
mod flags;
mod functions;
mod interpreter;
mod json;
mod msgpack;
mod native;
mod random;
mod shebang;
mod slot;
mod structs;
mod values;
mod watchdog;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cache::Cache;
pub(crate) use cache::Script;
pub(crate) use flags::Flags;
pub(crate) use functions::catalog::Library;
pub use functions::{Functions, FunctionsChange};
pub(crate) use functions::{RestorePolicy, Wanted};
pub(crate) use interpreter::{Call, CallResult, Inputs, Interpreter, Outcome, Program};
use slot::InterpreterSlot;

/// The scripts of a server, and their interpreter, which the first script creates.
#[derive(Default)]
pub struct Scripts {
    interpreter: InterpreterSlot,
    cache: Mutex<Cache>,
}

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripts").field("cached", &self.len()).finish_non_exhaustive()
    }
}

impl Scripts {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the interpreter. The error is the client's reply.
    pub(crate) fn with_interpreter<T>(&self, f: impl FnOnce(&mut Interpreter) -> T) -> Result<T, String> {
        self.interpreter.with(f)
    }

    /// The script with this text. It is kept for EVALSHA if the interpreter can compile it. The error is the client's reply.
    pub(crate) fn put(&self, text: &[u8]) -> Result<Arc<Script>, String> {
        if let Some(known) = self.cache().with_text(text) {
            return Ok(known);
        }
        let script = Arc::new(Script::new(text)?);
        self.with_interpreter(|interpreter| interpreter.compile(&script).map(drop))??;
        self.cache().put(&script);
        Ok(script)
    }

    /// The script whose text has this SHA-1, in 40 hexadecimal digits of any case.
    pub(crate) fn get(&self, sha: &[u8]) -> Option<Arc<Script>> {
        self.cache().get(&String::from_utf8_lossy(sha).to_ascii_lowercase())
    }

    /// Number of scripts that are kept.
    pub fn len(&self) -> usize {
        self.cache().len()
    }

    /// Whether no script is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of their texts.
    pub(crate) fn bytes(&self) -> usize {
        self.cache().bytes()
    }

    /// The texts of all scripts, the oldest first.
    pub(crate) fn texts(&self) -> Vec<Vec<u8>> {
        self.cache().texts()
    }

    /// Forgets all scripts, and everything in the interpreter.
    pub(crate) fn flush(&self) {
        self.interpreter.clear();
        *self.cache() = Cache::default();
    }
}
