//! Functions (FUNCTION, FCALL): the libraries of a server, and their interpreter.
//!
//! The catalog has the libraries' codes and the functions that they have registered. The interpreter has those libraries whose functions
//! were called, and loads others when they are. Local variables of a library keep their values between calls while the interpreter
//! stays. It is another one after a function has used up its memory, and in the next program after an upgrade.
//!
//! A change of the libraries has two steps, because a file is written in between: `change` checks it, and `publish` lets it
//! take effect. Only one change is under way at a time.
//!
//! Locks, in order: the interpreter's, `catalog`. The first one is held while a function runs.

pub(super) mod catalog;
mod header;
mod payload;
pub(super) mod registry;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::interpreter::Interpreter;
use super::slot::InterpreterSlot;
use catalog::{Catalog, Library};

/// The functions of a server, and their interpreter, which the first library creates.
#[derive(Default)]
pub struct Functions {
    interpreter: InterpreterSlot,
    catalog: Mutex<Arc<Catalog>>,
    /// Number of the last library or catalog.
    last_id: AtomicU64,
    /// A change is under way.
    is_changing: Arc<AtomicBool>,
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions").field("catalog", &self.catalog()).finish_non_exhaustive()
    }
}

/// A change of the libraries that does not have effect yet. While one exists, no other one can be made.
#[derive(Clone)]
pub struct FunctionsChange(Arc<Change>);

struct Change {
    catalog: Arc<Catalog>,
    /// The library that is loaded; otherwise empty.
    loaded: String,
    /// The flag of the functions that are changed.
    is_changing: Arc<AtomicBool>,
}

impl Drop for Change {
    fn drop(&mut self) {
        self.is_changing.store(false, Relaxed);
    }
}

impl FunctionsChange {
    /// The libraries after the change, as FUNCTION DUMP returns them.
    pub fn payload(&self) -> Vec<u8> {
        payload_of(&self.0.catalog)
    }
}

impl PartialEq for FunctionsChange {
    fn eq(&self, other: &FunctionsChange) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for FunctionsChange {}

impl fmt::Debug for FunctionsChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FunctionsChange").field(&self.0.catalog).finish()
    }
}

/// The treatment of the existing libraries by FUNCTION RESTORE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestorePolicy {
    /// They are deleted.
    Flush,
    /// They stay, and a library of the same name is an error.
    Append,
    /// They stay, except those of the same names.
    Replace,
}

/// A change that was asked for.
pub(crate) enum Wanted<'a> {
    Load { code: &'a [u8], replace: bool },
    Delete(&'a [u8]),
    Flush,
    Restore { payload: &'a [u8], policy: RestorePolicy },
}

fn payload_of(catalog: &Catalog) -> Vec<u8> {
    payload::write(catalog.libraries().map(|library| &library.code[..]))
}

impl Functions {
    fn lock(&self) -> MutexGuard<'_, Arc<Catalog>> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The libraries that there are.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.lock().clone()
    }

    /// The libraries as bytes.
    pub(crate) fn payload(&self) -> Vec<u8> {
        payload_of(&self.catalog())
    }

    /// Calls `f` with the interpreter. The error is the client's reply.
    pub(crate) fn with_interpreter<T>(&self, f: impl FnOnce(&mut Interpreter) -> T) -> Result<T, String> {
        let catalog = self.catalog();
        self.interpreter.with(|interpreter| {
            interpreter.follow_catalog(&catalog);
            f(interpreter)
        })
    }

    /// Begins a change; `None` while another one is under way. The error is the client's reply.
    pub(crate) fn change(&self, wanted: &Wanted<'_>) -> Option<Result<FunctionsChange, String>> {
        if self.is_changing.swap(true, Relaxed) {
            return None;
        }
        // If the change fails, its end resets the flag.
        let is_changing = self.is_changing.clone();
        let mut change = Change { catalog: self.catalog(), loaded: String::new(), is_changing };
        let changed = self.changed(&change.catalog, wanted);
        Some(changed.map(|(mut catalog, loaded)| {
            catalog.number = self.next_id();
            (change.catalog, change.loaded) = (Arc::new(catalog), loaded);
            FunctionsChange(Arc::new(change))
        }))
    }

    /// Lets a change take effect; returns the name of the library that is loaded.
    pub(crate) fn publish(&self, change: &FunctionsChange) -> String {
        *self.lock() = change.0.catalog.clone();
        change.0.loaded.clone()
    }

    fn changed(&self, catalog: &Catalog, wanted: &Wanted<'_>) -> Result<(Catalog, String), String> {
        let changed = match wanted {
            Wanted::Load { code, replace } => {
                let library = Arc::new(self.load(catalog, code, *replace)?);
                return Ok((catalog.with(&library)?, library.name.clone()));
            }
            Wanted::Delete(name) => {
                let name = std::str::from_utf8(name).ok();
                name.and_then(|name| catalog.without(name)).ok_or("ERR Library not found")?
            }
            Wanted::Flush => Catalog::default(),
            Wanted::Restore { payload, policy } => {
                let mut restored = Catalog::default();
                for code in payload::read(payload)? {
                    let library = self.load(&restored, &code, false)?;
                    restored = restored.with(&Arc::new(library))?;
                }
                match policy {
                    RestorePolicy::Flush => restored,
                    policy => catalog.joined(&restored, *policy == RestorePolicy::Replace)?,
                }
            }
        };
        Ok((changed, String::new()))
    }

    fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    /// Runs a library, so that it registers its functions.
    fn load(&self, catalog: &Catalog, code: &[u8], replace: bool) -> Result<Library, String> {
        let (name, body) = header::parse(code)?;
        if !replace && catalog.contains(&name) {
            return Err(format!("ERR Library '{name}' already exists"));
        }
        let id = self.next_id();
        let loaded = self.interpreter.with(|interpreter| interpreter.load_library(id, body))?;
        let functions = loaded.map_err(|error| format!("ERR {error}"))?;
        if functions.is_empty() {
            return Err("ERR No functions registered".into());
        }
        Ok(Library { id, name, code: code.to_vec(), functions })
    }

    /// Replaces all libraries by those of a payload. The error is one line, and nothing has changed then.
    pub(crate) fn restore(&self, payload: &[u8]) -> Result<(), String> {
        let wanted = Wanted::Restore { payload, policy: RestorePolicy::Flush };
        let change = self.change(&wanted).ok_or("another change is under way")?;
        let change = change.map_err(|error| error.trim_start_matches("ERR ").to_owned())?;
        self.publish(&change);
        Ok(())
    }
}

impl Library {
    /// The code without the first line.
    pub(super) fn body(&self) -> &[u8] {
        let end = self.code.iter().position(|byte| *byte == b'\n').unwrap_or(self.code.len());
        &self.code[end..]
    }
}
