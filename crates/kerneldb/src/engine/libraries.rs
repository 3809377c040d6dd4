//! Adds, replaces and removes libraries: for sessions, and for programs on connections.
//!
//! The caller holds the database's lock of changes ([`Procedures::lock_changes`](super::Procedures)).

use std::collections::BTreeMap;

use super::connection_calls::NewProcedure;
use super::{Engine, Registered};
use crate::{Error, bpf::Program};

/// The procedures of a library that the kernel has verified, by name.
pub(crate) type Library = BTreeMap<String, VerifiedProcedure>;

/// A procedure that the kernel has verified.
pub(crate) struct VerifiedProcedure {
    pub registered: Registered,
    /// The program on connections for each partition.
    pub on_connections: Vec<Program>,
}

impl Engine {
    fn names(&self, library: &str) -> Vec<String> {
        let all = self.procedures.all().into_iter();
        all.filter(|(_, procedure)| &*procedure.library == library).map(|(name, _)| name).collect()
    }

    /// Adds a library, in the place of the one of that name if there is one. [`super::Procedures::check`] has accepted it.
    pub(crate) fn put_library(&self, library: &str, new: Library) {
        let old = self.names(library);
        let read_only = |procedure: &VerifiedProcedure| procedure.registered.read_only;
        let entries: Vec<_> = new
            .iter()
            .map(|(name, procedure)| NewProcedure {
                name,
                read_only: read_only(procedure),
                programs: &procedure.on_connections,
            })
            .collect();
        let entered = self.connection_calls.replace(&old, &entries, &self.grace);
        report(library, entered);
        let registered = new.into_iter().map(|(name, procedure)| (name, procedure.registered)).collect();
        self.procedures.put(library, registered);
    }

    /// Removes a library; false if there is none.
    pub(crate) fn remove_library(&self, library: &str) -> bool {
        report(library, self.connection_calls.replace(&self.names(library), &[], &self.grace));
        self.procedures.remove(library)
    }
}

/// Sessions call what programs on connections do not find.
fn report(library: &str, entered: Result<(), Error>) {
    if let Err(error) = entered {
        tracing::warn!(library, %error, "its procedures are not called on connections");
    }
}
