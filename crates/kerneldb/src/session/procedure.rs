//! Programs of an application that run operators inside the kernel and that a process runs by itself (paper 5.2). Clients call
//! procedures by name instead (`call`).
//!
//! An application is a C file that includes `<bedplate/kdb.h>`, compiled to an object of its own. It is
//! loaded beside the database's programs and shares their maps, so it can be loaded and unloaded while
//! the data stays. Its entry is a raw tracepoint program with two arguments: the index of its session in
//! `kdb_contexts` and the index of its I/O buffer in `kdb_ios`.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use super::{Session, operators::Io};
use crate::{Error, Result, bpf::Program, engine::Engine, limits::PROCEDURE_ARGUMENTS_MAX};

/// A program of an application. `Send + Sync`: every call uses the caller's session.
pub struct Procedure {
    db: Arc<Engine>,
    program: Program,
}

impl Procedure {
    pub(crate) fn new(db: Arc<Engine>, program: Program) -> Self {
        Procedure { db, program }
    }

    /// Runs a raw tracepoint program for a session on the current CPU. Its arguments are the session's
    /// index, the index of an I/O buffer, and up to [`PROCEDURE_ARGUMENTS_MAX`] further ones. Returns the
    /// program's return value.
    pub fn run(&self, session: &mut Session, arguments: &[u64]) -> Result<u32> {
        if !session.belongs_to(&self.db) {
            return Err(Error::State);
        }
        if arguments.len() > PROCEDURE_ARGUMENTS_MAX {
            return Err(Error::Config(format!(
                "a procedure has at most {PROCEDURE_ARGUMENTS_MAX} arguments"
            )));
        }
        let io = Io::claim(&self.db);
        let mut args = [0; 2 + PROCEDURE_ARGUMENTS_MAX];
        args[0] = u64::from(session.index());
        args[1] = u64::from(io.index());
        args[2..2 + arguments.len()].copy_from_slice(arguments);
        self.program.run(&mut args[..2 + arguments.len()])
    }
}

impl AsFd for Procedure {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
