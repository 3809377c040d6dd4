//! Visits: a procedure's operators on keys of other partitions than the one that it runs in (`bpf/include/bedplate/visit.h`).
//!
//! A database with one partition has none. With several, the program arrays exist from the beginning, and the first library loads the
//! programs in them.
//!
//! Locks: `loaded`, which is held while the programs are loaded.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use super::Engine;
use crate::Result;
use crate::bpf::{self, MapFds, ObjectSpec, Program, kernel_error};
use crate::layout::KDB_MAX_PARTITIONS;

/// The object with the programs.
const VISITORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/visitors.bpf.o"));

/// A program array of `visit.h`, and the program that each partition has in it.
struct Visitors {
    array: MapHandle,
    array_name: &'static str,
    program_name: &'static str,
}

/// The program arrays of a database.
pub(crate) struct Visits {
    of_kinds: Vec<Visitors>,
    loaded: Mutex<bool>,
}

impl Visits {
    /// Creates the program arrays, if there are several partitions.
    pub fn new(partitions: u32) -> Result<Self> {
        let kinds = [("kdb_visitors", "kdb_visitor"), ("kdb_connection_visitors", "kdb_connection_visitor")];
        let create = |(array_name, program_name)| {
            let array = bpf::create_map(MapType::ProgArray, array_name, 4, 4, KDB_MAX_PARTITIONS)?;
            Ok(Visitors { array, array_name, program_name })
        };
        let kinds = kinds.into_iter().filter(|_| partitions > 1);
        Ok(Visits { of_kinds: kinds.map(create).collect::<Result<_>>()?, loaded: Mutex::new(false) })
    }

    /// The program arrays by the names that programs have for them.
    pub fn share_maps(&self) -> Result<MapFds> {
        let share =
            |visitors: &Visitors| Ok((visitors.array_name.to_owned(), bpf::duplicate_map(&visitors.array)?));
        self.of_kinds.iter().map(share).collect()
    }
}

impl Visitors {
    fn enter(&self, partition: u32, program: &Program) -> Result<()> {
        let (key, value) = (partition.to_ne_bytes(), program.as_fd().as_raw_fd().to_ne_bytes());
        self.array
            .update(&key, &value, MapFlags::ANY)
            .map_err(|error| kernel_error("cannot enter a program for procedures", error))
    }
}

impl Engine {
    /// Loads the programs for visits of each partition, unless that was done before.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`]; then a later call tries again.
    pub(crate) fn load_visitors(&self) -> Result<()> {
        let visits = &self.visits;
        let mut loaded = visits.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if visits.of_kinds.is_empty() || *loaded {
            return Ok(());
        }
        for partition in 0..self.config().partitions {
            let object = bpf::load(&ObjectSpec {
                name: "kdb_visit",
                elf: VISITORS,
                config: self.object_config(partition),
                constants: &[],
                reuse: &self.share_maps(partition)?,
                entries: &[],
                sizes: &[],
                arena_address: None,
                leave_out: None,
            })?;
            for visitors in &visits.of_kinds {
                visitors.enter(partition, &object.program(visitors.program_name)?)?;
            }
        }
        *loaded = true;
        Ok(())
    }
}
