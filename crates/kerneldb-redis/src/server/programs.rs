//! Loads, attaches and exchanges the server's eBPF programs.
//!
//! A program works on one partition, so each object is loaded once for every partition. The programs of
//! the first partition begin a run; those of the others continue it where needed (`bpf/run.h`). The maps
//! belong to the very first object, and every later one reuses them. So a reload keeps all connections:
//! it only swaps the entries of the program arrays behind the attached trampolines.

use std::iter;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore, MapFlags};

use super::ServerConfig;
use super::layout::{SRV_INLINE, srv_config};
use super::listener::Listener;
use super::local::{LocalPath, netns_cookie};
use super::maps::Maps;
use super::signals;
use crate::limits::{INPUTS_PER_CPU, OUTPUTS_PER_CPU, QUEUES};
use bedplate_kerneldb::attach::{Attachment, LoadedObject, MapFds, kernel_error};
use bedplate_kerneldb::{Database, Error, Result};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/server_arena.bpf.o"));
const LOCAL_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/local_path_arena.bpf.o"));

/// Maps that every later object shares with the first one.
const SHARED_MAPS: [&str; 17] = [
    "srv_socks",
    "srv_conns",
    "srv_smalls",
    "srv_inputs",
    "srv_outputs",
    "srv_signals",
    "srv_bell",
    "srv_counters",
    "srv_gates",
    "srv_verdicts",
    "srv_senders",
    "srv_peers",
    "srv_queues",
    "srv_jumps",
    "srv_local_jumps",
    // The database's.
    "kdb_connections",
    "kdb_call_returns",
];

/// The loaded programs.
pub(super) struct Programs {
    database: Arc<Database>,
    maps: Arc<Maps>,
    config: srv_config,
    /// Holds the trampolines, which stay for the life of the server.
    _first: LoadedObject,
    /// The trampoline and the sockops program of the local fast path, if it is on.
    local: Option<LocalPath>,
    /// The objects whose programs are in the program arrays, except for those above.
    current: Mutex<Vec<LoadedObject>>,
    /// If this server's programs are the ones that calls of procedures return to.
    call_returns: Option<CallReturns>,
}

/// The right to have programs in `kdb_call_returns`.
struct CallReturns(Arc<Database>);

impl CallReturns {
    fn claim(database: &Arc<Database>) -> Option<Self> {
        database.claim_connection_calls().then(|| CallReturns(database.clone()))
    }
}

impl Drop for CallReturns {
    fn drop(&mut self) {
        self.0.release_connection_calls();
    }
}

/// The programs of one path in one object, and their program arrays.
struct Path {
    elf: &'static [u8],
    /// Called by the trampoline.
    begin: &'static [(&'static str, u32, &'static str)],
    /// The program array of the programs that continue a run, and these programs.
    jumps: &'static str,
    on: &'static str,
    exec: &'static str,
    /// Whether they also continue after calls of procedures.
    continues_calls: bool,
}

const SERVER: Path = Path {
    elf: OBJECT,
    begin: &[("srv_verdicts", 0, "srv_verdict"), ("srv_senders", 0, "srv_sender")],
    jumps: "srv_jumps",
    on: "srv_verdict_on",
    exec: "srv_verdict_exec",
    continues_calls: true,
};
const LOCAL: Path = Path {
    elf: LOCAL_OBJECT,
    begin: &[("srv_senders", 1, "srv_local_sender")],
    jumps: "srv_local_jumps",
    on: "srv_local_sender_on",
    exec: "srv_local_sender_exec",
    continues_calls: false,
};

fn load(
    elf: &[u8],
    database: &Database,
    partition: u32,
    config: &srv_config,
    maps: MapFds,
    entries: &[(&str, u32)],
) -> Result<LoadedObject> {
    // SAFETY: `srv_config` is integers without padding, so all of its bytes are initialized.
    let constants = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(config).cast::<u8>(), size_of::<srv_config>())
    };
    let constants = &[(".rodata.srv", constants)];
    database.attach(Attachment {
        name: "kdb_server",
        elf,
        partition,
        constants,
        maps,
        entries,
        leave_out: None,
    })
}

impl Programs {
    /// Loads the programs with maps for `max_clients` connections and attaches the trampolines.
    pub(super) fn load(
        database: Arc<Database>,
        server: &ServerConfig,
        listener: &Listener,
    ) -> Result<Programs> {
        let cpus =
            libbpf_rs::num_possible_cpus().map_err(|e| kernel_error("cannot count the CPUs", e))? as u32;
        // Calls return to the programs of one server, so the event loop of a second one runs its calls itself.
        let call_returns = server.kernel_path.then(|| CallReturns::claim(&database)).flatten();
        let config = srv_config {
            cpus,
            inputs: cpus * INPUTS_PER_CPU,
            outputs: cpus * OUTPUTS_PER_CPU,
            queues: QUEUES.max(cpus),
            call_buffers: call_returns.as_ref().map_or(0, |_| database.io_buffers()),
            port: listener.addr().port().into(),
            netns: netns_cookie(listener.fd())?,
        };
        let entries = [
            ("srv_socks", server.max_clients),
            ("srv_peers", server.max_clients),
            ("srv_conns", server.max_clients),
            ("srv_smalls", server.max_clients * SRV_INLINE),
            ("srv_inputs", config.inputs),
            ("srv_outputs", config.outputs),
            ("srv_queues", config.queues),
            ("srv_signals", signals::words(server.max_clients)),
        ];
        let first = load(OBJECT, &database, 0, &config, MapFds::new(), &entries)?;
        let maps = Arc::new(Maps::of(&first, &SHARED_MAPS)?);
        let mut programs = Programs {
            database,
            maps,
            config,
            _first: first,
            local: None,
            current: Mutex::default(),
            call_returns,
        };
        let mut others = Vec::new();
        programs.activate(&SERVER, 0, &programs._first)?;
        programs.load_others(&SERVER, &mut others)?;
        for entry in ["srv_verdict_entry", "srv_sender_entry"] {
            programs._first.attach_to_sockmap(entry, programs.maps.get("srv_socks").as_fd())?;
        }
        if server.local_fast_path {
            let entries = [("srv_locals", server.max_clients)];
            let object = programs.load_one(&LOCAL, 0, &entries)?;
            programs.activate(&LOCAL, 0, &object)?;
            programs.local = Some(LocalPath::attach(object)?);
            programs.load_others(&LOCAL, &mut others)?;
        }
        programs.current = Mutex::new(others);
        Ok(programs)
    }

    /// The maps that the programs share with the event loop.
    pub(super) fn maps(&self) -> &Arc<Maps> {
        &self.maps
    }

    /// The maps that a further object shares with the first one.
    fn reuse(&self) -> Result<MapFds> {
        let mut reuse = MapFds::new();
        for (name, map) in self.maps.iter() {
            let fd = map.as_fd().try_clone_to_owned();
            reuse.insert(name.into(), fd.map_err(|e| Error::io("cannot duplicate a map descriptor", e))?);
        }
        if let Some(local) = &self.local {
            for (name, fd) in local.share_maps()? {
                reuse.insert(name.into(), fd);
            }
        }
        Ok(reuse)
    }

    fn load_one(&self, path: &Path, partition: u32, entries: &[(&str, u32)]) -> Result<LoadedObject> {
        load(path.elf, &self.database, partition, &self.config, self.reuse()?, entries)
    }

    /// Loads and activates a path's programs for all partitions but the first.
    fn load_others(&self, path: &Path, objects: &mut Vec<LoadedObject>) -> Result<()> {
        for partition in 1..self.database.config().partitions {
            let object = self.load_one(path, partition, &[])?;
            self.activate(path, partition, &object)?;
            objects.push(object);
        }
        Ok(())
    }

    /// Loads the programs again and replaces those in use; connections stay.
    pub(super) fn reload(&self) -> Result<()> {
        let mut objects = Vec::new();
        let paths = [Some(&SERVER), self.local.as_ref().map(|_| &LOCAL)];
        for path in paths.into_iter().flatten() {
            for partition in 0..self.database.config().partitions {
                objects.push((path, partition, self.load_one(path, partition, &[])?));
            }
        }
        let mut current = self.current.lock().unwrap_or_else(|e| e.into_inner());
        for (path, partition, object) in &objects {
            self.activate(path, *partition, object)?;
        }
        *current = objects.into_iter().map(|(_, _, object)| object).collect();
        Ok(())
    }

    /// Puts an object's programs into the program arrays.
    fn activate(&self, path: &Path, partition: u32, object: &LoadedObject) -> Result<()> {
        let returns = path.continues_calls && self.call_returns.is_some();
        for array in iter::once(path.jumps).chain(returns.then_some("kdb_call_returns")) {
            self.put(array, 2 * partition, object, path.on)?;
            self.put(array, 2 * partition + 1, object, path.exec)?;
        }
        for &(array, index, program) in path.begin.iter().filter(|_| partition == 0) {
            self.put(array, index, object, program)?;
        }
        Ok(())
    }

    fn put(&self, array: &str, index: u32, object: &LoadedObject, program: &str) -> Result<()> {
        let program = object.program(program)?;
        let fd = (program.as_fd().as_raw_fd() as u32).to_ne_bytes();
        self.maps
            .get(array)
            .update(&index.to_ne_bytes(), &fd, MapFlags::ANY)
            .map_err(|e| kernel_error("cannot exchange the server's programs", e))
    }
}
