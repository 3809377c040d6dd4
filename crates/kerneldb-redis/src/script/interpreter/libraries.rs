//! The libraries of functions that the interpreter has loaded, and their callbacks.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlua::{ChunkMode, Error, Function, Lua, MultiValue, Result, String as LuaString, Table, Value};

use super::super::functions::catalog::{Catalog, FunctionInfo, Library};
use super::super::functions::registry::Registry;
use super::super::native::{NO_MEMORY, message};
use super::{Interpreter, no_memory_for};
use crate::limits::FUNCTION_LOAD_TIME_MAX;

impl Interpreter {
    /// Loads a library: runs its code, which registers functions. The error is the client's reply without its code.
    pub fn load_library(
        &mut self,
        id: u64,
        code: &[u8],
    ) -> std::result::Result<BTreeMap<String, FunctionInfo>, String> {
        let chunk = self.lua.load(code).set_name("@user_function").set_mode(ChunkMode::Text);
        let chunk = match chunk.into_function() {
            Ok(chunk) => chunk,
            Err(error) => {
                self.collect();
                return Err(format!("Error compiling function: {}", message(&error)));
            }
        };
        let registry = Registry::default();
        self.watchdog.start(FUNCTION_LOAD_TIME_MAX);
        // Like a script, a library may use too many values.
        let ended = catch_unwind(AssertUnwindSafe(|| self.register(chunk, &registry)));
        self.watchdog.rest();
        let failed = |reason: String| Err(format!("Error registering functions: {reason}"));
        let Ok(ended) = ended else {
            self.is_poisoned = true;
            return failed("ERR the library uses too many values at a time".into());
        };
        let loaded = match ended {
            _ if self.watchdog.has_timed_out() => failed("ERR FUNCTION LOAD timeout".into()),
            Ok(Ok(callbacks)) => match self.callbacks.raw_set(id as f64, callbacks) {
                Ok(()) => Ok(registry.into_functions()),
                Err(error) => failed(format!("ERR {}", message(&error))),
            },
            Ok(Err(Value::Table(failure))) => {
                let text: Option<LuaString> = failure.raw_get("err").ok();
                failed(text.map_or_else(|| "ERR unknown error".into(), |text| text.to_string_lossy()))
            }
            Ok(Err(Value::String(text))) if text.as_bytes() == NO_MEMORY.as_bytes() => {
                failed(no_memory_for("library"))
            }
            Ok(Err(failure)) => {
                let text = failure.to_string().unwrap_or_else(|error| message(&error));
                failed(format!("ERR {text}"))
            }
            Err(Error::MemoryError(_)) => failed(no_memory_for("library")),
            Err(error) => failed(format!("ERR {}", message(&error))),
        };
        self.is_poisoned |= self.release.call::<()>(()).is_err();
        match loaded.is_ok() {
            true => drop(self.libraries.insert(id)),
            false => self.collect(),
        }
        loaded
    }

    /// Runs the code of a library; returns its callbacks. The inner error is an error value.
    fn register(&self, chunk: Function, registry: &Registry) -> Result<std::result::Result<Table, Value>> {
        let callbacks = self.lua.create_table()?;
        self.lua.scope(|scope| {
            let register = scope.create_function(|lua: &Lua, arguments: MultiValue| {
                self.watchdog.check()?;
                registry.register(lua, &callbacks, arguments)
            })?;
            let (succeeded, failure): (bool, Value) = self.load.call((chunk, register))?;
            Ok(if succeeded { Ok(callbacks.clone()) } else { Err(failure) })
        })
    }

    /// Drops the libraries that are not in the catalog.
    pub fn follow_catalog(&mut self, catalog: &Catalog) {
        if self.catalog_number == catalog.number {
            return;
        }
        self.catalog_number = catalog.number;
        let stay: BTreeSet<u64> = catalog.libraries().map(|library| library.id).collect();
        let callbacks = &self.callbacks;
        self.libraries.retain(|id| stay.contains(id) || callbacks.raw_set(*id as f64, Value::Nil).is_err());
    }

    /// The callback of a function, whose library is loaded if necessary. The error is the client's reply.
    pub(super) fn callback(
        &mut self,
        library: &Library,
        name: &str,
    ) -> std::result::Result<Function, String> {
        if !self.libraries.contains(&library.id) {
            self.load_library(library.id, library.body()).map_err(|error| format!("ERR {error}"))?;
        }
        let callbacks = self.callbacks.raw_get::<Table>(library.id as f64);
        let callback = callbacks.and_then(|callbacks| callbacks.raw_get::<Function>(name));
        callback.map_err(|_| "ERR Function not found".to_owned())
    }
}
