//! Loads, attaches and exchanges the server's eBPF programs.
//!
//! A program works on one partition, so each object is loaded once for every partition. The programs of
//! the first partition begin a run; those of the others continue it where needed (`bpf/run.h`). The very first object
//! creates the server's maps, and every later one reuses them. So a reload keeps all connections:
//! it only swaps the entries of the program arrays behind the attached trampolines. In the same way the programs move to another
//! database. In between, one program that needs no database passes all packets to the event loop.
//!
//! There is one lock, `loaded`. It is not held while the kernel verifies programs.

use std::iter;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::ServerConfig;
use super::layout::{SRV_INLINE, srv_config};
use super::listener::Listener;
use super::local::{LocalPath, netns_cookie};
use super::maps::Maps;
use super::signals;
use crate::limits::{INPUTS_PER_CPU, OUTPUTS_PER_CPU, QUEUES};
use bedplate_kerneldb::attach::{Attachment, LoadedObject, MapFds, Program, connection_entry, kernel_error};
use bedplate_kerneldb::{Database, Error, Result};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/server_arena.bpf.o"));
const LOCAL_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/local_path_arena.bpf.o"));

/// Maps that every later object shares with the first one.
const SHARED_MAPS: [&str; 15] = [
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
];

/// The server's maps, its trampolines, and the programs behind them.
pub(super) struct Programs {
    maps: Arc<Maps>,
    /// Constants of the programs, but those that depend on the database.
    constants: srv_config,
    /// The maps and the sockops program of the local fast path, if it is on.
    local: Option<LocalPath>,
    /// Whether calls of procedures may return to this server's programs.
    kernel_path: bool,
    /// The programs in use; none while the database is rebuilt.
    loaded: Mutex<Option<Loaded>>,
}

/// The programs for one database.
pub(super) struct Loaded {
    database: Arc<Database>,
    constants: srv_config,
    objects: Vec<(&'static Path, u32, LoadedObject)>,
    /// If this server's programs are the ones that calls of procedures return to.
    call_returns: Option<CallReturns>,
    /// The database's map by which programs find a connection, and its array of the programs that calls return to.
    connections: MapHandle,
    returns: MapHandle,
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

/// The program of the local fast path in `srv_senders`.
const LOCAL_SENDER: u32 = 1;

/// The programs of one path in one object, and their program arrays.
struct Path {
    /// Name of the object in error messages.
    name: &'static str,
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

static SERVER: Path = Path {
    name: "kdb_server",
    elf: OBJECT,
    begin: &[("srv_verdicts", 0, "srv_verdict"), ("srv_senders", 0, "srv_sender")],
    jumps: "srv_jumps",
    on: "srv_verdict_on",
    exec: "srv_verdict_exec",
    continues_calls: true,
};
static LOCAL: Path = Path {
    name: "kdb_local_path",
    elf: LOCAL_OBJECT,
    begin: &[("srv_senders", LOCAL_SENDER, "srv_local_sender")],
    jumps: "srv_local_jumps",
    on: "srv_local_sender_on",
    exec: "srv_local_sender_exec",
    continues_calls: false,
};

fn load(
    path: &Path,
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
        name: path.name,
        elf: path.elf,
        partition,
        constants,
        maps,
        entries,
        leave_out: None,
    })
}

impl Loaded {
    /// The object of a path for a partition.
    fn object(&self, path: &Path, partition: u32) -> Result<&LoadedObject> {
        let mut objects = self.objects.iter();
        let found = objects.find(|(of, number, _)| std::ptr::eq(*of, path) && *number == partition);
        found.map(|(.., object)| object).ok_or(Error::State)
    }

    /// Lets programs find a connection by its socket's cookie.
    pub(super) fn name_connection(&self, cookie: u64, index: u32, session: u32) -> libbpf_rs::Result<()> {
        self.connections.update(&cookie.to_ne_bytes(), &connection_entry(index, session), MapFlags::ANY)
    }

    /// Lets programs find it no longer.
    fn forget_connection(&self, cookie: u64) {
        let _ = self.connections.delete(&cookie.to_ne_bytes());
    }
}

impl Programs {
    /// Loads the programs with maps for `max_clients` connections and attaches the trampolines. `fastpath_sockets` is the map with the sockets of
    /// local clients of the program before. These are answered by TCP, and clients that connect later by the local fast path.
    pub(super) fn load(
        database: Arc<Database>,
        server: &ServerConfig,
        listener: &Listener,
        fastpath_sockets: Option<&OwnedFd>,
    ) -> Result<Programs> {
        let cpus =
            libbpf_rs::num_possible_cpus().map_err(|e| kernel_error("cannot count the CPUs", e))? as u32;
        let constants = srv_config {
            cpus,
            inputs: cpus * INPUTS_PER_CPU,
            outputs: cpus * OUTPUTS_PER_CPU,
            queues: QUEUES.max(cpus),
            call_buffers: 0,
            port: listener.addr().port().into(),
            netns: netns_cookie(listener.fd())?,
        };
        let entries = [
            ("srv_socks", server.max_clients),
            ("srv_peers", server.max_clients),
            ("srv_conns", server.max_clients),
            ("srv_smalls", server.max_clients * SRV_INLINE),
            ("srv_inputs", constants.inputs),
            ("srv_outputs", constants.outputs),
            ("srv_queues", constants.queues),
            ("srv_signals", signals::words(server.max_clients)),
        ];
        let (call_returns, constants_here) = claim_calls(&database, constants, server.kernel_path);
        let first = load(&SERVER, &database, 0, &constants_here, MapFds::new(), &entries)?;
        let maps = Arc::new(Maps::of(&first, &SHARED_MAPS)?);
        for entry in ["srv_verdict_entry", "srv_sender_entry"] {
            first.attach_to_sockmap(entry, maps.get("srv_socks").as_fd())?;
        }
        let mut programs = Programs {
            maps,
            constants,
            local: None,
            kernel_path: server.kernel_path,
            loaded: Mutex::default(),
        };
        let mut objects: Vec<(&'static Path, u32, LoadedObject)> = vec![(&SERVER, 0, first)];
        if server.local_fast_path {
            let entries = [("srv_locals", server.max_clients)];
            let mut maps = programs.reuse()?;
            if let Some(fastpath_sockets) = fastpath_sockets {
                maps.insert("srv_locals".into(), fastpath_sockets.try_clone().map_err(duplicating)?);
            }
            let object = load(&LOCAL, &database, 0, &constants_here, maps, &entries)?;
            programs.local = Some(LocalPath::attach(&object)?);
            let places = object.map("srv_locals")?.max_entries();
            if places < server.max_clients {
                tracing::warn!(
                    places,
                    clients = server.max_clients,
                    "until a restart, the local fast path takes fewer clients"
                );
            }
            objects.push((&LOCAL, 0, object));
        }
        let loaded = programs.complete(database, constants_here, call_returns, objects)?;
        programs.enter(loaded)?;
        Ok(programs)
    }

    /// The maps that the programs share with the event loop.
    pub(super) fn maps(&self) -> &Arc<Maps> {
        &self.maps
    }

    /// The map with the sockets of local clients.
    pub(super) fn fastpath_sockets(&self) -> Option<Result<OwnedFd>> {
        self.local.as_ref().map(LocalPath::fastpath_sockets)
    }

    fn loaded(&self) -> MutexGuard<'_, Option<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The maps that a further object shares with the first one.
    fn reuse(&self) -> Result<MapFds> {
        let mut reuse = MapFds::new();
        for (name, map) in self.maps.iter().chain(self.local.iter().flat_map(LocalPath::maps)) {
            let fd = map.as_fd().try_clone_to_owned();
            reuse.insert(name.into(), fd.map_err(duplicating)?);
        }
        Ok(reuse)
    }

    /// Loads the objects that are not among `objects` yet.
    fn complete(
        &self,
        database: Arc<Database>,
        constants: srv_config,
        call_returns: Option<CallReturns>,
        mut objects: Vec<(&'static Path, u32, LoadedObject)>,
    ) -> Result<Loaded> {
        let paths = [Some(&SERVER), self.local.as_ref().map(|_| &LOCAL)];
        for path in paths.into_iter().flatten() {
            for partition in 0..database.config().partitions {
                let has = |(of, number, _): &(&Path, u32, _)| std::ptr::eq(*of, path) && *number == partition;
                if !objects.iter().any(has) {
                    let object = load(path, &database, partition, &constants, self.reuse()?, &[])?;
                    objects.push((path, partition, object));
                }
            }
        }
        let (_, _, object) = objects.first().ok_or(Error::State)?;
        let (connections, returns) = (object.map("kdb_connections")?, object.map("kdb_call_returns")?);
        Ok(Loaded { database, constants, objects, call_returns, connections, returns })
    }

    /// Loads the programs for a database, which [`Programs::enter`] puts into use.
    pub(super) fn load_for(&self, database: Arc<Database>) -> Result<Loaded> {
        let (call_returns, constants) = claim_calls(&database, self.constants, self.kernel_path);
        self.complete(database, constants, call_returns, Vec::new())
    }

    /// Takes a socket out of the socket map.
    pub(super) fn unmap(&self, index: u32) -> Result<()> {
        let unmapped = self.maps.get("srv_socks").delete(&index.to_ne_bytes());
        unmapped.map_err(|e| kernel_error("cannot take a socket back from the kernel", e))
    }

    /// Puts programs into use. Programs of another database have been taken out of use by [`Programs::leave`].
    pub(super) fn enter(&self, loaded: Loaded) -> Result<()> {
        self.activate(&loaded)?;
        *self.loaded() = Some(loaded);
        Ok(())
    }

    /// Takes the programs out of use and lets go of their database. All packets are passed to the event loop from now on. The caller
    /// has closed the gate, so no program works on the database. After an error the programs are still in use.
    pub(super) fn leave(&self) -> Result<()> {
        let mut current = self.loaded();
        let Some(loaded) = &*current else { return Ok(()) };
        let paused = loaded.object(&SERVER, 0)?.program("srv_verdict_paused")?;
        put(self.maps.get("srv_verdicts"), 0, &paused)?;
        for path in [&SERVER, &LOCAL] {
            let jumps = self.maps.get(path.jumps);
            // Only the partitions of this database have programs.
            (0..jumps.max_entries()).for_each(|index| drop(jumps.delete(&index.to_ne_bytes())));
        }
        let _ = self.maps.get("srv_senders").delete(&LOCAL_SENDER.to_ne_bytes());
        *current = None;
        Ok(())
    }

    /// Loads the programs again and replaces those in use; connections stay. While the database is rebuilt, this does nothing,
    /// because the new one gets new programs.
    pub(super) fn reload(&self) -> Result<()> {
        let Some((database, constants)) =
            self.loaded().as_ref().map(|loaded| (loaded.database.clone(), loaded.constants))
        else {
            return Ok(());
        };
        let mut new = self.complete(database, constants, None, Vec::new())?;
        let mut current = self.loaded();
        if let Some(old) = current.as_mut().filter(|old| Arc::ptr_eq(&old.database, &new.database)) {
            new.call_returns = old.call_returns.take();
            let activated = self.activate(&new);
            if activated.is_err() {
                old.call_returns = new.call_returns.take();
                return activated;
            }
            *old = new;
        }
        Ok(())
    }

    /// Puts programs into the program arrays.
    fn activate(&self, loaded: &Loaded) -> Result<()> {
        for (path, partition, object) in &loaded.objects {
            let returns = path.continues_calls && loaded.call_returns.is_some();
            for array in iter::once(self.maps.get(path.jumps)).chain(returns.then_some(&loaded.returns)) {
                put(array, 2 * partition, &object.program(path.on)?)?;
                put(array, 2 * partition + 1, &object.program(path.exec)?)?;
            }
            for &(array, index, program) in path.begin.iter().filter(|_| *partition == 0) {
                put(self.maps.get(array), index, &object.program(program)?)?;
            }
        }
        Ok(())
    }

    /// Lets programs find a connection by its socket's cookie.
    pub(super) fn name_connection(&self, cookie: u64, index: u32, session: u32) -> libbpf_rs::Result<()> {
        self.loaded().as_ref().map_or(Ok(()), |loaded| loaded.name_connection(cookie, index, session))
    }

    /// Lets programs find it no longer.
    pub(super) fn forget_connection(&self, cookie: u64) {
        if let Some(loaded) = &*self.loaded() {
            loaded.forget_connection(cookie);
        }
    }
}

/// Claims the returns of calls, if no other server has them. Without them the event loop runs this server's calls. Returns the constants
/// that say so.
fn claim_calls(
    database: &Arc<Database>,
    constants: srv_config,
    kernel_path: bool,
) -> (Option<CallReturns>, srv_config) {
    let claimed = kernel_path.then(|| CallReturns::claim(database)).flatten();
    let call_buffers = claimed.as_ref().map_or(0, |_| database.io_buffers());
    (claimed, srv_config { call_buffers, ..constants })
}

fn duplicating(error: std::io::Error) -> Error {
    Error::io("cannot duplicate a map descriptor", error)
}

/// Puts a program into a program array.
fn put(array: &MapHandle, index: u32, program: &Program) -> Result<()> {
    let fd = (program.as_fd().as_raw_fd() as u32).to_ne_bytes();
    array
        .update(&index.to_ne_bytes(), &fd, MapFlags::ANY)
        .map_err(|e| kernel_error("cannot exchange the server's programs", e))
}
