//! Loads, attaches and exchanges the server's eBPF programs.
//!
//! The maps belong to the first object and are reused by every later one, so a reload keeps all
//! connections: it only swaps the entries of the two program arrays behind the attached trampolines.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::ServerConfig;
use super::layout::{SRV_INLINE, srv_config, srv_conn, srv_output, srv_stats};
use super::listener::Listener;
use super::local::{LocalPath, netns_cookie};
use super::table::Table;
use crate::bpf::{self, ArrayMapping, LoadedObject, MapFds, ObjectSpec, kernel_error};
use crate::database::Inner;
use crate::{Error, Result};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/server_arena.bpf.o"));
const LOCAL_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/local_path_arena.bpf.o"));

/// Reply buffers per CPU. Each holds the replies to one packet until it is sent, if they are long.
const OUTPUTS_PER_CPU: u32 = 32;
/// Request buffers per CPU: how deep verdict runs can nest (softirqs in preempted process contexts).
const INPUTS_PER_CPU: u32 = 4;

/// Maps of a later object that are those of the first one.
const SHARED_MAPS: [&str; 11] = [
    "srv_socks",
    "srv_cookies",
    "srv_conns",
    "srv_smalls",
    "srv_inputs",
    "srv_outputs",
    "srv_records",
    "srv_counters",
    "srv_verdicts",
    "srv_senders",
    "srv_peers",
];

/// The loaded programs and their maps.
pub(super) struct Programs {
    database: Arc<Inner>,
    maps: Vec<MapHandle>,
    config: srv_config,
    /// Holds the trampolines, which stay for the life of the server.
    _first: LoadedObject,
    /// The object whose programs are in the program arrays, if it is not the first one.
    current: Mutex<Option<LoadedObject>>,
    /// The local fast path, if it is on; not part of a reload.
    local: Mutex<Option<LocalPath>>,
}

fn load(
    elf: &[u8],
    database: &Inner,
    config: &srv_config,
    reuse: &MapFds,
    entries: &[(&str, u32)],
) -> Result<LoadedObject> {
    // SAFETY: `srv_config` is integers without padding, so all of its bytes are initialized.
    let constants = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(config).cast::<u8>(), size_of::<srv_config>())
    };
    bpf::load(&ObjectSpec {
        name: "kdb_server",
        elf,
        config: database.object_config(0),
        constants: &[(".rodata.srv", constants)],
        reuse,
        entries,
        sizes: &[],
        arena_address: None,
    })
}

impl Programs {
    /// Loads the programs with maps for `max_clients` connections and attaches the trampolines.
    pub(super) fn load(database: Arc<Inner>, server: &ServerConfig, listener: &Listener) -> Result<Programs> {
        if database.hash.is_some() {
            return Err(Error::Config("the server's programs are for the arena engine".into()));
        }
        let cpus =
            libbpf_rs::num_possible_cpus().map_err(|e| kernel_error("cannot count the CPUs", e))? as u32;
        let config = srv_config {
            cpus,
            inputs: cpus * INPUTS_PER_CPU,
            outputs: cpus * OUTPUTS_PER_CPU,
            port: listener.addr().port().into(),
            netns: netns_cookie(listener.fd())?,
        };
        let entries = [
            ("srv_socks", server.max_clients),
            ("srv_cookies", server.max_clients),
            ("srv_peers", server.max_clients),
            ("srv_conns", server.max_clients),
            ("srv_smalls", server.max_clients * SRV_INLINE),
            ("srv_inputs", config.inputs),
            ("srv_outputs", config.outputs),
            ("srv_records", server.records_bytes),
        ];
        let first = load(OBJECT, &database, &config, &database.share_maps(0)?, &entries)?;
        let maps = SHARED_MAPS.iter().map(|name| first.map(name)).collect::<Result<Vec<_>>>()?;
        let programs = Programs {
            database,
            maps,
            config,
            _first: first,
            current: Mutex::default(),
            local: Mutex::default(),
        };
        programs.activate(&programs._first)?;
        for entry in ["srv_verdict_entry", "srv_sender_entry"] {
            programs._first.attach_to_sockmap(entry, programs.map("srv_socks").as_fd())?;
        }
        if server.local_fast_path {
            let entries = [("srv_locals", server.max_clients)];
            let object = load(LOCAL_OBJECT, &programs.database, &config, &programs.reuse()?, &entries)?;
            programs.put("srv_senders", 1, &object, "srv_local_sender")?;
            *programs.local.lock().unwrap_or_else(|e| e.into_inner()) = Some(LocalPath::attach(object)?);
        }
        Ok(programs)
    }

    /// The maps that a further object shares with the first one.
    fn reuse(&self) -> Result<MapFds> {
        let mut reuse = self.database.share_maps(0)?;
        for (name, map) in SHARED_MAPS.iter().zip(&self.maps) {
            let fd = map.as_fd().try_clone_to_owned();
            reuse.insert((*name).into(), fd.map_err(|e| Error::io("cannot duplicate a map descriptor", e))?);
        }
        Ok(reuse)
    }

    /// Loads the programs again and lets them take over; connections stay.
    pub(super) fn reload(&self) -> Result<()> {
        let object = load(OBJECT, &self.database, &self.config, &self.reuse()?, &[])?;
        let mut current = self.current.lock().unwrap_or_else(|e| e.into_inner());
        self.activate(&object)?;
        *current = Some(object);
        Ok(())
    }

    /// Puts an object's programs behind the trampolines.
    fn activate(&self, object: &LoadedObject) -> Result<()> {
        self.put("srv_verdicts", 0, object, "srv_verdict")?;
        self.put("srv_senders", 0, object, "srv_sender")
    }

    fn put(&self, array: &str, index: u32, object: &LoadedObject, program: &str) -> Result<()> {
        let program = object.program(program)?;
        let fd = (program.as_fd().as_raw_fd() as u32).to_ne_bytes();
        self.map(array)
            .update(&index.to_ne_bytes(), &fd, MapFlags::ANY)
            .map_err(|e| kernel_error("cannot exchange the server's programs", e))
    }

    /// One of [`SHARED_MAPS`].
    pub(super) fn map(&self, name: &str) -> &MapHandle {
        &self.maps[SHARED_MAPS.iter().position(|n| *n == name).expect("a known map")]
    }

    /// Maps the connection table.
    pub(super) fn table(&self) -> Result<Table> {
        let conns = self.map("srv_conns");
        let outputs = self.map("srv_outputs");
        Ok(Table::new(
            ArrayMapping::<srv_conn>::new(conns.as_fd(), conns.max_entries())?,
            ArrayMapping::<srv_output>::new(outputs.as_fd(), outputs.max_entries())?,
        ))
    }

    /// The kernel's counters, summed over CPUs.
    pub(super) fn stats(&self) -> Result<srv_stats> {
        let per_cpu = self
            .map("srv_counters")
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| kernel_error("cannot read the server's counters", e))?
            .unwrap_or_default();
        let mut sum = [0u64; size_of::<srv_stats>() / 8];
        for cpu in &per_cpu {
            for (at, word) in sum.iter_mut().zip(cpu.chunks_exact(8)) {
                *at = at.wrapping_add(u64::from_ne_bytes(word.try_into().expect("8 bytes")));
            }
        }
        // SAFETY: `srv_stats` is u64 fields only, so the array has its size, alignment and meaning.
        Ok(unsafe { std::mem::transmute::<[u64; size_of::<srv_stats>() / 8], srv_stats>(sum) })
    }
}
