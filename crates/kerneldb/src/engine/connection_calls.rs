//! The procedures as programs on connections call them (`bpf/include/bedplate/connection.h`): their maps and slots.
//!
//! A program finds a procedure's slot by its name. A slot that no name leads to any more is used again after a grace period only, so
//! the programs that have found it are not affected. A library is replaced in between: its names are withdrawn, sessions get the
//! new procedures, and then the names are entered again. Meanwhile the event loop runs the calls. The caller holds the database's lock of changes.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::bpf::{GracePeriod, MapFds, Program, create_map, duplicate_map, kernel_error};
use crate::layout::{
    KDB_MAX_PARTITIONS, KDB_PROCEDURE_NAME, KDB_PROCEDURE_SLOTS, kdb_connection, kdb_procedure,
};
use crate::{Error, Result};

/// The number of a slot.
type Slot = u32;

/// A procedure that is to be found by programs on connections.
pub(crate) struct NewProcedure<'a> {
    pub name: &'a str,
    pub read_only: bool,
    /// The program for each partition.
    pub programs: &'a [Program],
}

/// The maps of `connection.h`, and which slots are in use.
pub(crate) struct ConnectionCalls {
    connections: MapHandle,
    names: MapHandle,
    procedures: MapHandle,
    programs: MapHandle,
    returns: MapHandle,
    slots: Mutex<Slots>,
    has_server: AtomicBool,
}

struct Slots {
    free: Vec<Slot>,
    /// No name leads to these any more, but a program may still run them.
    withdrawn: Vec<Slot>,
    by_name: BTreeMap<String, Slot>,
}

fn update(map: &MapHandle, key: &[u8], value: &[u8]) -> Result<()> {
    map.update(key, value, MapFlags::ANY).map_err(|error| kernel_error("cannot enter a procedure", error))
}

/// A name as a key. [`super::Procedures::check`] refuses longer names.
fn key(name: &str) -> [u8; KDB_PROCEDURE_NAME as usize] {
    let mut key = [0; KDB_PROCEDURE_NAME as usize];
    key[..name.len()].copy_from_slice(name.as_bytes());
    key
}

/// Where the program of a slot for a partition is.
fn program_index(slot: Slot, partition: usize) -> [u8; 4] {
    (slot * KDB_MAX_PARTITIONS + partition as u32).to_ne_bytes()
}

impl ConnectionCalls {
    /// Creates the maps for up to `connections` connections.
    pub fn new(connections: u32) -> Result<Self> {
        let programs = KDB_PROCEDURE_SLOTS * KDB_MAX_PARTITIONS;
        let name = KDB_PROCEDURE_NAME as usize;
        let free = (0..KDB_PROCEDURE_SLOTS).rev().collect();
        Ok(ConnectionCalls {
            connections: create_map(
                MapType::Hash,
                "kdb_connections",
                8,
                size_of::<kdb_connection>(),
                connections,
            )?,
            names: create_map(MapType::Hash, "kdb_procedure_names", name, 4, KDB_PROCEDURE_SLOTS)?,
            procedures: create_map(
                MapType::Array,
                "kdb_procedures",
                4,
                size_of::<kdb_procedure>(),
                KDB_PROCEDURE_SLOTS,
            )?,
            programs: create_map(MapType::ProgArray, "kdb_call_programs", 4, 4, programs)?,
            returns: create_map(MapType::ProgArray, "kdb_call_returns", 4, 4, 2 * KDB_MAX_PARTITIONS)?,
            slots: Mutex::new(Slots { free, withdrawn: Vec::new(), by_name: BTreeMap::new() }),
            has_server: AtomicBool::new(false),
        })
    }

    /// The maps by the names that programs have for them.
    pub fn share_maps(&self) -> Result<MapFds> {
        [
            ("kdb_connections", &self.connections),
            ("kdb_procedure_names", &self.names),
            ("kdb_procedures", &self.procedures),
            ("kdb_call_programs", &self.programs),
            ("kdb_call_returns", &self.returns),
        ]
        .into_iter()
        .map(|(name, map)| Ok((name.to_owned(), duplicate_map(map)?)))
        .collect()
    }

    /// Whether the caller becomes the server whose programs calls return to. One server at a time can be it.
    pub fn claim_server(&self) -> bool {
        !self.has_server.swap(true, Ordering::AcqRel)
    }

    /// Removes the programs of the server. None of its connections is left.
    pub fn release_server(&self) {
        for index in 0..2 * KDB_MAX_PARTITIONS {
            // Without a program there is nothing to remove.
            let _ = self.returns.delete(&index.to_ne_bytes());
        }
        self.has_server.store(false, Ordering::Release);
    }

    /// Lets programs on connections find none of these procedures any more, and waits until no program runs one. The event loop runs
    /// their calls from then on. After an error some of them may still be found.
    pub fn withdraw(&self, names: &[String], grace: &GracePeriod) -> Result<()> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            let Some(&slot) = slots.by_name.get(name) else { continue };
            let removed = self.names.delete(&key(name));
            removed.map_err(|error| kernel_error("cannot remove a procedure", error))?;
            slots.by_name.remove(name);
            slots.withdrawn.push(slot);
        }
        if slots.withdrawn.is_empty() {
            return Ok(());
        }
        grace.wait()?;
        for slot in std::mem::take(&mut slots.withdrawn) {
            for partition in 0..KDB_MAX_PARTITIONS as usize {
                // Only the partitions of this database have a program.
                let _ = self.programs.delete(&program_index(slot, partition));
            }
            slots.free.push(slot);
        }
        Ok(())
    }

    /// Lets programs on connections find a procedure. After an error they do not find it, and the event loop runs its calls.
    pub fn enter(&self, procedure: &NewProcedure<'_>) -> Result<()> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = slots.free.pop() else {
            return Err(Error::Library("the kernel has room for no more procedures".into()));
        };
        let entered = self.fill(slot, procedure);
        match entered {
            Ok(()) => _ = slots.by_name.insert(procedure.name.to_owned(), slot),
            Err(_) => slots.free.push(slot),
        }
        entered
    }

    /// Fills a free slot, and then enters the name. The name is last, because a program may find the slot from then on.
    fn fill(&self, slot: Slot, procedure: &NewProcedure<'_>) -> Result<()> {
        for (partition, program) in procedure.programs.iter().enumerate() {
            let fd = program.as_fd().as_raw_fd().to_ne_bytes();
            update(&self.programs, &program_index(slot, partition), &fd)?;
        }
        let name = key(procedure.name);
        let mut entry = [0; size_of::<kdb_procedure>()];
        entry[offset_of!(kdb_procedure, name)..][..name.len()].copy_from_slice(&name);
        entry[offset_of!(kdb_procedure, read_only)..][..4]
            .copy_from_slice(&u32::from(procedure.read_only).to_ne_bytes());
        update(&self.procedures, &slot.to_ne_bytes(), &entry)?;
        update(&self.names, &name, &slot.to_ne_bytes())
    }
}
