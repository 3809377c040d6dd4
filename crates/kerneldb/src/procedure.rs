//! Procedures: eBPF programs of an application that run operators inside the kernel (paper 5.2).
//!
//! A procedure is a C file that includes `<bedplate/kdb.h>`, compiled to an object of its own. It is
//! loaded beside the database's programs and shares their maps, so it may come and go while the data
//! stays. Its entry is a raw tracepoint program with two arguments: the index of its session in
//! `kdb_contexts` and the index of its I/O buffer in `kdb_ios`. A procedure takes a byte string and
//! returns one: both are in the buffer's `val`, with `vlen` bytes.

use std::sync::Arc;

use crate::{
    Database, Error, Result, Session, VALUE_MAX,
    bpf::{self, LoadedObject, ObjectSpec, Program},
    database::Inner,
    session::{self, Io},
};

/// A loaded procedure. `Send + Sync`: every call uses the caller's session. Dropping it unloads it.
pub struct Procedure {
    db: Arc<Inner>,
    program: Program,
    _object: LoadedObject,
}

impl Database {
    /// Loads the program `entry` of a compiled object on this database's data.
    ///
    /// [`Error::Kernel`] if the verifier refuses it; [`Error::Config`] if the object has no such program,
    /// or the database has more than one partition (a program sees the keys of one).
    pub fn load_procedure(&self, elf: &[u8], entry: &str) -> Result<Procedure> {
        let db = self.inner();
        if db.config.partitions != 1 {
            return Err(Error::Config("procedures need a database with one partition".into()));
        }
        let object = bpf::load(&ObjectSpec {
            name: entry,
            elf,
            config: db.object_config(0),
            reuse: &db.share_maps(0)?,
            entries: &[],
            arena_address: None,
        })?;
        Ok(Procedure { db: db.clone(), program: object.program(entry)?, _object: object })
    }
}

impl Procedure {
    /// Calls the procedure with `input` as its byte string and returns the byte string that it left.
    ///
    /// The session must belong to the same database and have no transaction open ([`Error::State`]); a
    /// transaction that the procedure leaves open stays open. An enum kdb_status that the program returns
    /// becomes this crate's error.
    pub fn call(&self, session: &mut Session, input: &[u8]) -> Result<Vec<u8>> {
        if !session.belongs_to(&self.db) || session.in_transaction() {
            return Err(Error::State);
        }
        let mut io = Io::claim(&self.db);
        io.value(input)?;
        let status = self.program.run(&mut [u64::from(session.index()), u64::from(io.index())])?;
        if status != 0 {
            return Err(session::error(status));
        }
        let buffer = self.db.ios.get(io.index());
        // SAFETY: the buffer is claimed until `io` is dropped and the program is done; the length is
        // kept within the buffer, all of which is initialized.
        Ok(unsafe {
            let len = ((*buffer).vlen as usize).min(VALUE_MAX);
            std::slice::from_raw_parts((&raw const (*buffer).val).cast::<u8>(), len).to_vec()
        })
    }
}
