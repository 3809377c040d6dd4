//! Adds, replaces and removes libraries: for sessions, for programs on connections, and for events of the kernel.
//!
//! The caller holds the database's lock of changes ([`Procedures::lock_changes`](super::Procedures)).

use std::collections::BTreeMap;

use super::connection_calls::NewProcedure;
use super::{Engine, Registered, RegisteredHandler, SuspendedHandler};
use crate::{Result, bpf::Program};

/// The procedures and handlers of a library that the kernel has verified, by name.
#[derive(Default)]
pub(crate) struct Library {
    pub procedures: BTreeMap<String, VerifiedProcedure>,
    pub handlers: BTreeMap<String, RegisteredHandler>,
}

/// A procedure that the kernel has verified.
pub(crate) struct VerifiedProcedure {
    pub registered: Registered,
    /// The program on connections for each partition; empty if the kernel has refused it.
    pub on_connections: Vec<Program>,
}

impl Engine {
    fn names(&self, library: &str) -> Vec<String> {
        let all = self.procedures.all().into_iter();
        all.filter(|(_, procedure)| &*procedure.library == library).map(|(name, _)| name).collect()
    }

    /// Whether a library is loaded.
    pub(crate) fn has_library(&self, library: &str) -> bool {
        self.procedures.has_library(library) || self.handlers.has_library(library)
    }

    /// Adds a library, in the place of the one of that name if there is one. [`super::Procedures::check`] has accepted it.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`]; then sessions call the old procedures.
    pub(crate) fn put_library(&self, library: &str, new: Library) -> Result<()> {
        self.connection_calls.withdraw(&self.names(library), &self.grace)?;
        let mut registered = BTreeMap::new();
        let mut on_connections = Vec::new();
        for (name, procedure) in new.procedures {
            on_connections.push((name.clone(), procedure.registered.read_only, procedure.on_connections));
            registered.insert(name, procedure.registered);
        }
        self.procedures.put(library, registered);
        self.handlers.put(library, new.handlers);
        self.handlers.drop_detached(&self.grace);
        for (name, read_only, programs) in on_connections.iter().filter(|(.., programs)| !programs.is_empty())
        {
            let entered =
                self.connection_calls.enter(&NewProcedure { name, read_only: *read_only, programs });
            if let Err(error) = entered {
                tracing::warn!(library, procedure = name, %error, "the event loop runs all of its calls");
            }
        }
        Ok(())
    }

    /// Removes a library, whose handlers are detached; false if there is none.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`]; then the library is still there.
    pub(crate) fn remove_library(&self, library: &str) -> Result<bool> {
        self.connection_calls.withdraw(&self.names(library), &self.grace)?;
        let is_loaded = self.has_library(library);
        self.procedures.remove(library);
        self.handlers.remove(library);
        self.handlers.drop_detached(&self.grace);
        self.procedures.set_file(library, None);
        Ok(is_loaded)
    }

    /// Leaves the events of all handlers to their stand-ins; after an error, everything is as before.
    pub(crate) fn suspend_handlers(&self) -> Result<Vec<SuspendedHandler>> {
        self.handlers.suspend(&self.grace)
    }

    /// Takes the events of handlers back from the stand-ins.
    pub(crate) fn resume_handlers(&self, suspended: Vec<SuspendedHandler>) {
        self.handlers.resume(suspended, &self.grace);
    }
}
