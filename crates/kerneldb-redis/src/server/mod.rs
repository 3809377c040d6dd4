//! The Redis-protocol server: eBPF programs on the connections' sockets answer commands
//! (paper 5.2); one event loop executes the others on the same data.
//!
//! # How a request is answered in the kernel
//!
//! A packet that arrives runs the *verdict* program, which executes its commands and queues the
//! replies. The packet itself then carries them: it is redirected, its length unchanged, to the sending
//! side of its own socket. There the *sender* program exchanges its content for the reply. A packet with
//! anything else (rarer commands, incomplete commands, long values, errors that need a retry) is passed to
//! the event loop, which reads it from the socket. So are all later packets of that
//! connection until the event loop has answered everything. Replies are therefore always in the order of
//! the requests. TCP slows down a client that sends faster than the event loop reads.
//!
//! # Modules
//!
//! `layout` (shared with the programs), `maps` and `programs` (load, attach, reload), both of them in `kernel_side`, `table` (the
//! shared connection table), `turn` (which side answers), `signals` (which connections to look at),
//! `listener`, `local` (the fast path of local clients), `ends` (of connections), `client` (one connection),
//! `event_loop` (the thread), `dialogue` and `backend` (the seam to the command layer
//! and to the database), `data` (the database behind the server), `rebuild` (its change to one with other options) and `handover` (to another program), `workers` (scheduling of the kernel's senders), `activity` and `idle` (the load that decides it),
//! `admin_tasks` (checkpoints, verifications and libraries), `functions_file` (the libraries of functions), `users_file` (the users), `gate` (pauses), `wake`, `stats`,
//! `statistics` (for INFO), `config`, `descriptors` (the number of connections that the limit on open files allows).

mod activity;
mod admin_tasks;
mod backend;
mod client;
mod config;
mod data;
mod descriptors;
mod dialogue;
mod ends;
mod event_loop;
mod functions_file;
mod gate;
mod handover;
mod idle;
mod kernel_side;
mod layout;
mod listener;
mod local;
mod maps;
mod programs;
mod rebuild;
mod signals;
mod statistics;
mod stats;
mod table;
mod turn;
mod users_file;
mod verify;
mod wake;
mod workers;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

pub use config::{Batching, ServerConfig, UpgradeCheck};
pub use handover::{FORMAT as HANDOVER_FORMAT, Handover, READABLE_FORMATS};
pub use stats::ServerStats;
pub use workers::BatchWorkers;

use crate::command::{DatabaseOptions, ServerState, Services, Startup};
use backend::Backend;
use bedplate_kerneldb::limits::{HASH_MAP_VERSIONS_MAX, LOG_RING_BYTES_DEFAULT};
use bedplate_kerneldb::{
    Config, Database, Durability, EngineKind, Error, Result, Store, StoreConfig, SuspendedHandler,
};
use data::{CurrentData, Data};
use event_loop::EventLoop;
use handover::{CarriedClient, CarriedState};
use kernel_side::KernelSide;
use listener::Listener;
use stats::Counters;
use wake::Wake;

/// Starts servers.
pub struct Server;

/// A running server. `Send + Sync`. Dropping it stops the server and closes all connections.
pub struct ServerHandle {
    addr: SocketAddr,
    kernel: KernelSide,
    current: Arc<CurrentData>,
    counters: Arc<Counters>,
    wake: Arc<Wake>,
    backend: Weak<Backend>,
    thread: Option<JoinHandle<Result<Option<Handover>>>>,
}

/// The store behind a server, which is another one after each change of the database's options.
#[derive(Clone)]
pub struct ServedStore(Arc<CurrentData>);

impl ServedStore {
    /// The present store; `None` if there is none, and while the database is rebuilt. A rebuild needs the only share of the store: it
    /// fails while this one exists.
    pub fn get(&self) -> Option<Arc<Store>> {
        self.0.store()
    }
}

/// Stops a server from another thread, for instance from a signal handler's thread.
#[derive(Clone)]
pub struct Stopper(Arc<Wake>);

impl Stopper {
    /// Asks the server to stop; returns at once.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// Upgrades a server from another thread, for instance from a signal handler's thread.
#[derive(Clone)]
pub struct Upgrader {
    backend: Weak<Backend>,
    wake: Arc<Wake>,
}

impl Upgrader {
    /// Asks for an upgrade, as BEDPLATE UPGRADE does; returns at once. The log has the reason if there is none.
    pub fn request(&self) {
        let Some(backend) = self.backend.upgrade() else { return };
        match backend.request_upgrade() {
            Ok(_) => self.wake.ring(),
            Err(error) => tracing::warn!(error, "no upgrade"),
        }
    }
}

impl Server {
    /// Takes the address, for a server that starts later. Clients are refused until then.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a configuration that does not work here, [`Error::Io`] if the address is in use.
    pub fn prepare(config: ServerConfig) -> Result<Preparation> {
        config.check()?;
        // A mistake in the file is reported before recovery, which may take long.
        load_users(&config, &ServerState::new(Startup::default()))?;
        let listener = Arc::new(Listener::bind(config.bind)?);
        Ok(Preparation::new(config, listener))
    }

    /// The same for a server that goes on with the connections of another one. It listens on the same socket, unless the configuration
    /// has another address. Clients that connect meanwhile wait.
    ///
    /// # Errors
    ///
    /// Those of [`Server::prepare`].
    pub fn resume(config: ServerConfig, handover: Handover) -> Result<Preparation> {
        config.check()?;
        let Handover { listener, clients, state, handlers, fastpath_sockets, outcome } = handover;
        let listener = match Listener::of(listener, config.bind) {
            Ok(listener) => listener,
            Err(old) => match Listener::bind(config.bind) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::error!(%error, "the server listens at its old address");
                    Listener::at_its_address(old)?
                }
            },
        };
        Ok(Preparation {
            handover: Some((clients, state, outcome)),
            handlers,
            fastpath_sockets: fastpath_sockets.map(Arc::new),
            ..Preparation::new(config, Arc::new(listener))
        })
    }

    /// Starts a server on a store: writes are as durable as the store makes them. Clients can change options of the database
    /// (CONFIG SET maxmemory) only while the server has the only share of the store.
    pub fn start(store: Arc<Store>, config: ServerConfig) -> Result<ServerHandle> {
        Server::prepare(config)?.start(store)
    }

    /// Starts a server on a database in memory: nothing is logged, and checkpoints are refused.
    pub fn start_in_memory(database: Arc<Database>, config: ServerConfig) -> Result<ServerHandle> {
        Server::prepare(config)?.launch(database, None)
    }
}

/// A server that has its address. Its eBPF programs can be loaded while the database is recovered, which saves the time
/// that the kernel takes to verify them.
pub struct Preparation {
    config: ServerConfig,
    listener: Arc<Listener>,
    loading: Option<(Arc<Database>, JoinHandle<Result<KernelSide>>)>,
    handover: Option<Continued>,
    /// Handlers of the program before, whose stand-ins are attached.
    handlers: Vec<SuspendedHandler>,
    /// The map with the sockets of local clients, of the program before.
    fastpath_sockets: Option<Arc<OwnedFd>>,
    /// The options of the database without the changes of the clients, if they differ.
    configured: Option<DatabaseOptions>,
}

/// The parts of a [`Handover`] that are used when the event loop starts.
type Continued = (Vec<CarriedClient>, CarriedState, std::result::Result<(), String>);

impl Preparation {
    fn new(config: ServerConfig, listener: Arc<Listener>) -> Preparation {
        let (handlers, fastpath_sockets) = (Vec::new(), None);
        Preparation {
            config,
            listener,
            loading: None,
            handover: None,
            handlers,
            fastpath_sockets,
            configured: None,
        }
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// Whether it goes on with the connections of another server.
    pub fn is_resumed(&self) -> bool {
        self.handover.is_some()
    }

    /// Checks the configuration against the engine of the database that is to be opened, which may take long.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a server of such a database cannot have it.
    pub fn check_engine(&self, engine: EngineKind) -> Result<()> {
        self.config.check_engine(engine)
    }

    /// The configuration of a store, with the options of the database that clients of the program before have changed. Those that this
    /// program's storage engine cannot have are lost.
    pub fn store_config(&mut self, configured: StoreConfig) -> StoreConfig {
        let Some((_, state, _)) = &mut self.handover else { return configured };
        let at_start = configured_options(&configured);
        let mut options = state.database_options(at_start);
        if configured.database.engine == EngineKind::HashMap && options.versions > HASH_MAP_VERSIONS_MAX {
            let versions = HASH_MAP_VERSIONS_MAX;
            tracing::error!(wanted = options.versions, versions, "hash maps do not have as many versions");
            options.versions = versions;
        }
        self.configured = Some(at_start);
        let changed = rebuild::config_with(&configured, self.config.log.as_ref(), &options);
        match changed.check() {
            Ok(()) => changed,
            Err(error) => {
                tracing::error!(%error, "options of the database that clients have changed are lost");
                state.forget_database_options();
                configured
            }
        }
    }

    /// Begins to load the programs for a database, on another thread. Programs that were loaded for another database
    /// are dropped.
    pub fn load(&mut self, database: &Arc<Database>) {
        // Only one of them can attach its programs to the map of local clients.
        drop(self.loading.take().map(|(_, thread)| thread.join()));
        let (listener, config, fastpath_sockets) =
            (self.listener.clone(), self.config.clone(), self.fastpath_sockets.clone());
        let thread = std::thread::Builder::new().name("kerneldb-load".into()).spawn({
            let database = database.clone();
            move || KernelSide::load(database, &config, &listener, fastpath_sockets)
        });
        // If there is no thread, the programs are loaded when the server starts.
        self.loading = thread.ok().map(|thread| (database.clone(), thread));
    }

    /// Loads libraries of the program before that are in no data directory, and attaches its handlers to their events again.
    /// [`Preparation::start`] does it otherwise. Before that, the events are still those of stand-ins, and another handler may not be
    /// attachable to them.
    pub fn resume_handlers(&mut self, database: &Database) {
        if let Some((_, state, _)) = &self.handover {
            state.load_again(database);
        }
        database.resume_handlers(std::mem::take(&mut self.handlers));
    }

    /// Starts the server on a store.
    pub fn start(self, store: Arc<Store>) -> Result<ServerHandle> {
        self.launch(store.database().clone(), Some(store))
    }

    fn launch(self, database: Arc<Database>, store: Option<Arc<Store>>) -> Result<ServerHandle> {
        let parts = self.parts(database, store)?;
        let addr = parts.listener.addr();
        let (kernel, wake, counters) = (parts.kernel.clone(), parts.wake.clone(), parts.counters.clone());
        let backend = Arc::downgrade(&parts.backend);
        let current = parts.backend.current().clone();
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("kerneldb-server".into())
            .spawn(move || {
                // The ring buffer's consumer belongs to its thread, so the loop is made here.
                match parts.event_loop() {
                    Ok(mut event_loop) => {
                        let _ = ready.send(Ok(()));
                        event_loop.run().inspect_err(|e| tracing::error!(error = %e, "the server stopped"))
                    }
                    Err(e) => {
                        let _ = ready.send(Err(e));
                        Ok(None)
                    }
                }
            })
            .map_err(|e| Error::io("start the server's thread", e))?;
        started.recv().expect("the thread reports before it ends")?;
        tracing::info!(%addr, "listening");
        Ok(ServerHandle { addr, kernel, current, counters, wake, backend, thread: Some(thread) })
    }

    /// Loads the programs, unless they are loaded, and listens.
    fn parts(mut self, database: Arc<Database>, store: Option<Arc<Store>>) -> Result<Parts> {
        let loaded = self.loading.take().filter(|(of, _)| Arc::ptr_eq(of, &database));
        let kernel = match loaded {
            Some((_, thread)) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            None => KernelSide::load(
                database.clone(),
                &self.config,
                &self.listener,
                self.fastpath_sockets.take(),
            )?,
        };
        self.resume_handlers(&database);
        let (config, listener) = (self.config, self.listener);
        let addr = listener.addr();
        listener.listen()?;
        let wake = Arc::new(Wake::new()?);
        let counters = Arc::new(Counters::default());
        let options = options_of(&database, store.as_deref());
        let carried = self.handover.as_ref().map_or(0, |(clients, ..)| clients.len());
        let server = ServerState::new(Startup {
            timeouts: database.timeouts().clone(),
            bind: addr.ip().to_string(),
            port: addr.port(),
            dir: store
                .as_ref()
                .and_then(|s| s.data_dir())
                .map_or_else(String::new, |d| d.display().to_string()),
            database: self.configured.unwrap_or(options),
            max_clients: descriptors::connections(config.max_clients, carried)?.into(),
            timeout_s: config.idle_timeout.map_or(0, |t| t.as_secs().max(1)),
            engine: database.config().engine,
            eviction: config.eviction,
            password: config.password.clone(),
            acl_file: config.acl_file.clone(),
        });
        let maps = kernel.maps.clone();
        let carries_functions = self.handover.as_ref().is_some_and(|(_, state, _)| state.functions.is_some());
        if let Some(data_dir) = store.as_ref().and_then(|store| store.data_dir())
            && !carries_functions
            && let Some(payload) = functions_file::read(data_dir)?
        {
            let restored = server.functions.restore(&payload);
            restored.map_err(|reason| functions_file::damaged(data_dir, &reason))?;
        }
        let data = Data::new(database, store)?;
        server.settings.set_database_options(options);
        if self.handover.as_ref().is_none_or(|(_, state, _)| state.users.is_none()) {
            load_users(&config, &server)?;
        }
        if let Some((_, state, _)) = &self.handover {
            state.set_again(&server);
        }
        if is_open_to_others(&server, addr.ip()) {
            tracing::warn!(
                %addr,
                "everybody who can reach this address can do what the user default may, without a password: set one"
            );
        }
        let backend = Arc::new(Backend::new(data, maps, server, &config)?);
        backend.settings_changed();
        Ok(Parts { config, listener, kernel, wake, counters, backend, handover: self.handover })
    }
}

/// Whether other machines may reach a server that asks for no password.
fn is_open_to_others(server: &ServerState, address: IpAddr) -> bool {
    server.is_open() && !address.is_loopback()
}

/// Loads the ACL file, if there is one. The error names the file and each bad line.
fn load_users(config: &ServerConfig, server: &ServerState) -> Result<()> {
    let Some(path) = &config.acl_file else { return Ok(()) };
    server.load_users(&users_file::read(path)?, &path.display().to_string()).map_err(Error::Config)
}

/// The options of a database that clients can see and change.
fn options_of(database: &Database, store: Option<&Store>) -> DatabaseOptions {
    match store {
        Some(store) => configured_options(store.config()),
        None => options_with(database.config(), Durability::Off),
    }
}

fn configured_options(config: &StoreConfig) -> DatabaseOptions {
    options_with(&config.database, config.wal.as_ref().map_or(Durability::Off, |wal| wal.durability))
}

fn options_with(config: &Config, durability: Durability) -> DatabaseOptions {
    let ring = |bytes| if bytes == 0 { LOG_RING_BYTES_DEFAULT } else { bytes };
    DatabaseOptions {
        durability,
        memory_bytes: config.memory_bytes,
        versions: config.versions,
        wal_ring_bytes: ring(config.wal_ring_bytes),
    }
}

/// The parts of a server before its thread runs.
struct Parts {
    config: ServerConfig,
    listener: Arc<Listener>,
    kernel: KernelSide,
    wake: Arc<Wake>,
    counters: Arc<Counters>,
    backend: Arc<Backend>,
    handover: Option<Continued>,
}

impl Parts {
    /// Makes the event loop, which belongs to the calling thread.
    fn event_loop(self) -> Result<EventLoop> {
        let Parts { config, listener, kernel, wake, counters, backend, handover } = self;
        let mut event_loop = EventLoop::new(config, kernel, listener, wake, counters, backend)?;
        if let Some((clients, state, outcome)) = handover {
            event_loop.continue_clients(clients, &state, &outcome);
        }
        Ok(event_loop)
    }
}

impl ServerHandle {
    /// The address listened on.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The store behind the server, for those who need it after the server's end as well.
    pub fn store(&self) -> ServedStore {
        ServedStore(self.current.clone())
    }

    /// The present statistics.
    pub fn stats(&self) -> Result<ServerStats> {
        Ok(ServerStats::new(&self.kernel.maps.stats()?, &self.counters))
    }

    /// Loads the eBPF programs again and replaces those in use, while connections and data stay
    /// (paper 3.2, 4.1). On an error the programs in use stay in use. For a database on hash maps, this does nothing.
    pub fn reload(&self) -> Result<()> {
        self.kernel.programs.as_ref().map_or(Ok(()), |programs| programs.reload())
    }

    /// A handle that stops this server from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.wake.clone())
    }

    /// A handle that upgrades this server from another thread.
    pub fn upgrader(&self) -> Upgrader {
        Upgrader { backend: self.backend.clone(), wake: self.wake.clone() }
    }

    /// Waits until the server has stopped: [`Stopper::stop`], a client's SHUTDOWN, or an error. At an upgrade it returns the parts with
    /// which another program goes on; the store is complete, and nobody uses it.
    pub fn wait(mut self) -> Result<Option<Handover>> {
        self.join()
    }

    /// Stops the server: closes the listening socket and all connections, rolls back their
    /// transactions, and detaches the programs.
    pub fn shutdown(mut self) -> Result<()> {
        self.wake.stop();
        self.join().map(drop)
    }

    fn join(&mut self) -> Result<Option<Handover>> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(None),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.wake.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_password_is_open_to_other_machines() {
        for (users, is_open) in [
            ("", true),
            ("user low on >x +get ~*", true),
            ("user default on nopass +get ~*", true),
            ("user default on >x +@all ~*", false),
            ("user default off nopass\nuser low on nopass", false),
        ] {
            let server = ServerState::new(Startup::default());
            server.load_users(users.as_bytes(), "f").unwrap();
            assert_eq!(is_open_to_others(&server, "0.0.0.0".parse().unwrap()), is_open, "{users}");
            assert!(!is_open_to_others(&server, "127.0.0.1".parse().unwrap()));
        }
    }
}
