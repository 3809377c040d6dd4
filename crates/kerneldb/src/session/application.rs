//! Applications: eBPF objects that a user writes, which include `bedplate/kdb.h` and work on a database.
//!
//! An application's object shares the database's maps, so it can be loaded, replaced and unloaded while the
//! data stays (paper 3.2, 4.1).

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use super::Procedure;
use crate::{
    Result,
    attach::{self, Attachment, LoadedObject, MapFds},
    engine::Engine,
};

/// A loaded application. The kernel unloads its programs once the application is dropped and no program array or
/// attachment refers to them.
pub struct Application {
    db: Arc<Engine>,
    object: LoadedObject,
}

impl Application {
    pub(crate) fn load(db: Arc<Engine>, elf: &[u8], partition: u32) -> Result<Self> {
        let attachment = Attachment {
            name: "kdb_application",
            elf,
            partition,
            constants: &[],
            maps: MapFds::new(),
            entries: &[],
            leave_out: None,
        };
        let object = attach::load(&db, attachment)?;
        Ok(Application { db, object })
    }

    /// Finds a program by the name of its C function. The caller attaches a program elsewhere by its descriptor
    /// ([`AsFd`]).
    pub fn procedure(&self, name: &str) -> Result<Procedure> {
        Ok(Procedure::new(self.db.clone(), self.object.program(name)?))
    }

    /// Puts a program into a program array of this application. It replaces the previous program atomically, also
    /// while the procedure is in use.
    pub fn set_program(&self, array: &str, index: u32, procedure: &Procedure) -> Result<()> {
        self.object.update_map(array, &index.to_ne_bytes(), &procedure.as_fd().as_raw_fd().to_ne_bytes())
    }
}

/// The Voter example (`bpf/examples/voter.bpf.c`), for the tests and benchmarks.
pub const VOTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/voter.bpf.o"));

/// Its steps in continuation-passing style, in the order of the program array `voter_programs`.
pub const VOTER_STEPS: [&str; 7] = [
    "voter_area",
    "voter_contestant",
    "voter_phone",
    "voter_count",
    "voter_vote",
    "voter_commit",
    "voter_rollback",
];

/// The Voter example for the hash-map engine.
pub const VOTER_HASHMAP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/voter_hashmap.bpf.o"));

/// The library of the example `bpf/examples/voter_procedures.bpf.c`, for tests and benchmarks.
pub const VOTER_PROCEDURES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/voter_procedures.o"));

/// The library of the example `bpf/examples/accounts.bpf.c`, for tests.
pub const ACCOUNTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/accounts.o"));
