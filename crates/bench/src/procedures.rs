//! Compiles libraries of procedures and handlers, and measures calls.

use std::path::Path;

use bedplate_kerneldb::{Database, Reply, sdk};
use tempfile::TempDir;

use crate::cpu::thread_cpu_ns;
use crate::{Error, Result};

/// A folder with the headers of procedures and handlers.
pub(crate) struct Compiler(TempDir);

impl Compiler {
    pub fn new() -> Result<Compiler> {
        let folder = tempfile::tempdir().map_err(Error::io("creating a folder for the headers"))?;
        sdk::write_headers(folder.path())?;
        Ok(Compiler(folder))
    }

    /// Compiles a source in C to a library.
    pub fn object(&self, source: &str) -> Result<Vec<u8>> {
        let folder: &Path = self.0.path();
        let file = folder.join("procedures.c");
        std::fs::write(&file, source).map_err(Error::io("writing the source of procedures"))?;
        Ok(sdk::compile(folder, &file, &[])?)
    }
}

/// Calls a procedure with each of the arguments; returns the nanoseconds of this thread's processor time for each call, the kernel's
/// included. A reply that is not right is an error.
pub(crate) fn cpu_ns_per_call(
    database: &Database,
    procedure: &str,
    arguments: &[Vec<String>],
    is_right: impl Fn(&Reply) -> bool,
) -> Result<f64> {
    let arguments: Vec<Vec<&[u8]>> =
        arguments.iter().map(|texts| texts.iter().map(String::as_bytes).collect()).collect();
    let mut session = database.session()?;
    let found = session.find_procedure(procedure)?;
    let start = thread_cpu_ns();
    for arguments in &arguments {
        let reply = session.call_found(&found, arguments)?;
        if !is_right(&reply) {
            return Err(Error::engine(format!("{procedure} replied {reply:?}")));
        }
    }
    Ok((thread_cpu_ns() - start) as f64 / arguments.len() as f64)
}
