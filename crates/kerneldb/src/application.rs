//! Applications: eBPF objects of a user's own that include `bedplate/kdb.h` and work on a database.
//!
//! An application's object shares the database's maps, so it can be loaded, replaced and unloaded while the
//! data stays (paper 3.2, 4.1).

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use crate::{
    Procedure, Result,
    attach::{self, Attachment, LoadedObject, MapFds},
    database::Inner,
};

/// A loaded application. Its programs are unloaded when it is dropped and nothing else refers to them
/// (program arrays, attachments).
pub struct Application {
    db: Arc<Inner>,
    object: LoadedObject,
}

impl Application {
    pub(crate) fn load(db: Arc<Inner>, elf: &[u8], partition: u32) -> Result<Self> {
        let attachment = Attachment {
            name: "kdb_application",
            elf,
            partition,
            constants: &[],
            maps: MapFds::new(),
            entries: &[],
        };
        let object = attach::load(&db, attachment)?;
        Ok(Application { db, object })
    }

    /// A program by its C function name. Programs that are to be attached somewhere are attached by their
    /// descriptor ([`AsFd`]).
    pub fn procedure(&self, name: &str) -> Result<Procedure> {
        Ok(Procedure::new(self.db.clone(), self.object.program(name)?))
    }

    /// Puts a program into a program array of this application; replaces what is there, atomically, also
    /// while the procedure is in use.
    pub fn set_program(&self, array: &str, index: u32, procedure: &Procedure) -> Result<()> {
        self.object.update_map(array, &index.to_ne_bytes(), &procedure.as_fd().as_raw_fd().to_ne_bytes())
    }
}

/// The Voter example (`bpf/examples/voter.bpf.c`), for the tests and benchmarks.
pub const VOTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/voter.bpf.o"));
