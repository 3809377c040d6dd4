//! Further eBPF programs on a database's data: a server's, or those of an [`Application`](crate::Application).
//!
//! Such an object includes `bedplate/kdb.h`, is compiled for the arena engine unless it says otherwise, and works on one
//! partition. It shares the maps of that partition's own programs, so it can be loaded, replaced and unloaded while the
//! data stays. The build script of a crate with such objects finds the headers through cargo's metadata
//! (`DEP_BEDPLATE_KERNELDB_INCLUDE`, see this crate's `build.rs`).

use std::mem::offset_of;

pub use crate::bpf::{ArrayMapping, LoadedObject, MapFds, Program, kernel_error};
use crate::{
    Error, Result,
    bpf::{self, ObjectSpec},
    engine::Engine,
    layout::kdb_connection,
};

/// An eBPF object to be loaded by [`Database::attach`](crate::Database::attach).
pub struct Attachment<'a> {
    /// Name in error messages and in the kernel.
    pub name: &'a str,
    /// The ELF object.
    pub elf: &'a [u8],
    /// The partition whose data the programs work on.
    pub partition: u32,
    /// Contents of constant sections, by the section's name.
    pub constants: &'a [(&'a str, &'a [u8])],
    /// Maps to be shared besides those of the database.
    pub maps: MapFds,
    /// `max_entries` by map name.
    pub entries: &'a [(&'a str, u32)],
    /// The end of the names of programs that are not loaded.
    pub leave_out: Option<&'a str>,
}

/// An element of `kdb_connections` (`bedplate/connection.h`): a connection's number, and the index of its session.
pub fn connection_entry(index: u32, session: u32) -> [u8; size_of::<kdb_connection>()] {
    let mut entry = [0; size_of::<kdb_connection>()];
    entry[offset_of!(kdb_connection, index)..][..4].copy_from_slice(&index.to_ne_bytes());
    entry[offset_of!(kdb_connection, session)..][..4].copy_from_slice(&session.to_ne_bytes());
    entry
}

/// Loads a further object onto a database; [`crate::Database::attach`].
pub(crate) fn load(db: &Engine, attachment: Attachment<'_>) -> Result<LoadedObject> {
    let Attachment { name, elf, partition, constants, maps: mut reuse, entries, leave_out } = attachment;
    if partition >= db.config().partitions {
        return Err(Error::Config(format!("there is no partition {partition}")));
    }
    reuse.extend(db.share_maps(partition)?);
    let config = db.object_config(partition);
    let object = bpf::load(&ObjectSpec {
        name,
        elf,
        config,
        constants,
        reuse: &reuse,
        entries,
        sizes: &[],
        arena_address: None,
        leave_out,
    })?;
    if object.map_fd(db.foreign_map()).is_ok() {
        return Err(Error::Config(format!(
            "the programs of {name} were compiled for the other storage engine"
        )));
    }
    Ok(object)
}
