//! Rebuilds the database with other options, while clients stay connected ([`super::super::rebuild`] has the request).
//!
//! 1. The gate closes. The event loop runs no request that would begin work on the database. Open transactions and commands of several
//!    steps go on.
//! 2. When no transaction is open, and no administrative task is under way, the options are checked and a checkpoint is taken, if there
//!    is a data directory. An error up to here changes nothing.
//! 3. The sessions are closed. From here on the event loop does nothing else. Packets wait in their sockets: one program that needs no
//!    database passes them on.
//! 4. The store is rebuilt: the old database is closed, and a new one is filled from the data directory, or from an image in memory.
//!    Meanwhile the kernel verifies programs for the new one.
//! 5. Each connection gets a session of the new database, the programs are put into use, and the gate opens.
//!
//! If step 4 fails, step 5 is taken with the old options. If that fails as well, the server stops; the data directory has the data, if
//! there is one.

use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use super::{EventLoop, LOG};
use crate::command::{DatabaseOptions, Services};
use crate::limits::SWEEP_INTERVAL;
use crate::server::backend::NO_STORE;
use crate::server::client::Client;
use crate::server::data::Data;
use crate::server::layout::SRV_NO_SESSION;
use crate::server::programs::{Loaded, Programs};
use crate::server::rebuild::Work;
use bedplate_kerneldb::wal::DurableWatch;
use bedplate_kerneldb::{Database, Error, RebuildError, Result, Store, StoreConfig};
use rustix::event::epoll::{self, EventData, EventFlags};

/// A store and the programs for its database, if the kernel answers.
type Complete = (Store, Option<Loaded>);

impl EventLoop {
    /// Takes the next step of a change of the database's options or of an upgrade, if clients have asked for one.
    pub(super) fn run_rebuild(&mut self) -> Result<()> {
        let Some(request) = self.backend.rebuild_requests().request() else { return Ok(()) };
        let server = self.backend.server().clone();
        let stays = match request.work {
            Work::Rebuild(_) => "the database stays as it is",
            Work::HandOver => "the server stays as it is",
        };
        let stops = self.stop || self.wake.stopped() || server.shutdown.is_under_way();
        if !stops && !server.clients.is_paused_for_rebuild() {
            self.pause_for_rebuild(true);
        }
        // A client whose task ends after this is one with news.
        let has_no_tasks = self.backend.has_no_tasks();
        let count = |what: fn(&Client) -> bool| self.clients.iter().flatten().filter(|c| what(c)).count();
        let (held, with_news) = (count(Client::holds_database), count(Client::has_news));
        let is_late = Instant::now() >= request.until;
        // Those who have not heard the news by then do not read.
        let waits_for_news = matches!(request.work, Work::HandOver) && with_news > 0 && !is_late;
        let result = if stops {
            Err("ERR the server is shutting down".into())
        } else if held == 0 && has_no_tasks && !waits_for_news {
            match &request.work {
                Work::Rebuild(options) => self.rebuild(options)?,
                Work::HandOver => match self.hand_over(&request)? {
                    Ok(handover) => {
                        tracing::info!(connections = handover.connections(), "the next program goes on");
                        self.handover = Some(handover);
                        self.stop = true;
                        return Ok(());
                    }
                    Err(error) => Err(error),
                },
            }
        } else if !is_late {
            return Ok(());
        } else if held > 0 {
            Err(format!("TRYAGAIN {stays}: transactions of {held} clients are open"))
        } else {
            Err(format!("TRYAGAIN {stays}: an administrative task is running"))
        };
        match (&result, &request.work) {
            (Ok(()), _) => tracing::info!(work = ?request.work, "the database was rebuilt"),
            (Err(error), Work::Rebuild(options)) => {
                tracing::warn!(error, ?options, "the database was not rebuilt")
            }
            (Err(error), Work::HandOver) => tracing::warn!(error, "no upgrade"),
        }
        self.pause_for_rebuild(false);
        self.backend.rebuild_requests().finish(result.map(|()| String::new()));
        // The event loop has not read what clients sent meanwhile, so a sweep would take them for idle ones.
        self.next_sweep = Instant::now() + SWEEP_INTERVAL;
        Ok(())
    }

    fn pause_for_rebuild(&self, on: bool) {
        self.backend.server().clients.pause_for_rebuild(on);
        self.backend.pauses_changed();
    }

    /// Rebuilds the database. The inner error is the client's reply; the data is then as before. The outer one stops the server.
    fn rebuild(&mut self, options: &DatabaseOptions) -> Result<std::result::Result<(), String>> {
        let reply = |error: Error| format!("ERR {error}");
        let totals = self.backend.totals();
        let config = match self.prepare_rebuild(options) {
            Ok(config) => config,
            Err(error) => return Ok(Err(reply(error))),
        };
        for client in self.clients.iter_mut().flatten() {
            client.dialogue().leave_database();
        }
        let store = match self.take_store() {
            Ok(store) => store,
            Err(reply) => {
                self.enter_database(None)?;
                return Ok(Err(reply));
            }
        };
        if let Some(Err(error)) = self.kernel.programs.as_ref().map(|programs| programs.leave()) {
            self.backend.current().put(Arc::new(Data::of_store(Arc::new(store))?));
            self.enter_database(None)?;
            return Ok(Err(reply(error)));
        }
        self.stop_watching_log();
        let (complete, outcome) = match rebuild_or_restore(store, config, self.kernel.programs.as_deref()) {
            Ok(complete) => (complete, Ok(())),
            Err(failure) => match *failure {
                (error, Some(complete)) => (complete, Err(reply(error))),
                (error, None) => return Err(error),
            },
        };
        if outcome.is_ok() {
            self.backend.server().settings.set_database_options(*options);
        }
        self.put_store(complete)?;
        if let Ok(totals) = totals {
            self.backend.count_on(&totals);
        }
        self.backend.settings_changed();
        Ok(outcome)
    }

    /// Checks the options as far as that is possible before the change, and takes a checkpoint.
    fn prepare_rebuild(&self, options: &DatabaseOptions) -> Result<StoreConfig> {
        // The gate has waited for this as well, but it does not report errors.
        self.backend.database().wait_for_programs()?;
        let store = self.backend.store().ok_or(Error::State)?;
        let config = self.backend.rebuild_requests().config(store.config(), options);
        store.prepare_rebuild(&config)?;
        Ok(config)
    }

    /// Takes the store out of the server's hands. The error is the client's reply.
    fn take_store(&self) -> std::result::Result<Store, String> {
        let current = self.backend.current();
        let Some(data) = current.take() else { return Err("ERR there is no database".into()) };
        let data = Arc::try_unwrap(data).map_err(|data| {
            current.put(data);
            "ERR another thread of the server uses the database"
        })?;
        let Data { database, store: Some(store), positions } = data else {
            return Err(NO_STORE.into());
        };
        Arc::try_unwrap(store).map_err(|store| {
            current.put(Arc::new(Data { database, store: Some(store), positions }));
            "ERR the program that runs the server holds a reference to the store".into()
        })
    }

    pub(super) fn stop_watching_log(&mut self) {
        if let Some(log) = self.log.take() {
            let _ = epoll::delete(&self.epoll, log.fd());
        }
    }

    /// Watches the log of a store, if it has one.
    pub(super) fn watch_log(&mut self, store: &Store) -> Result<()> {
        let Some(wal) = store.wal() else { return Ok(()) };
        let log: DurableWatch = wal.watch()?;
        epoll::add(&self.epoll, log.fd(), EventData::new_u64(LOG), EventFlags::IN)
            .map_err(super::io("watch a descriptor"))?;
        self.log = Some(log);
        Ok(())
    }

    /// Serves a store from now on.
    fn put_store(&mut self, (store, loaded): Complete) -> Result<()> {
        self.watch_log(&store)?;
        self.backend.current().put(Arc::new(Data::of_store(Arc::new(store))?));
        self.backend.rebuild_requests().count_database();
        self.enter_database(loaded)
    }

    /// Gives each connection a session of the present database, and puts programs for it into use.
    pub(super) fn enter_database(&mut self, loaded: Option<Loaded>) -> Result<()> {
        let mut lost = Vec::new();
        for index in 0..self.clients.len() as u32 {
            let Some(client) = self.clients[index as usize].as_mut() else { continue };
            let cookie = client.cookie;
            let has_session = !client.is_without_session();
            let dialogue = client.dialogue();
            let entered = dialogue.enter_database();
            let (session, mode) = (dialogue.session(), dialogue.mode());
            self.table.set_session(index, if has_session { session } else { SRV_NO_SESSION }, mode);
            let named = match &loaded {
                _ if entered.is_err() => Ok(()),
                Some(loaded) => loaded.name_connection(cookie, index, session),
                None => self.name_connection(cookie, index, session),
            };
            if entered.is_err() || named.is_err() {
                lost.push(index);
            }
        }
        if let (Some(programs), Some(loaded)) = (&self.kernel.programs, loaded) {
            programs.enter(loaded)?;
        }
        for index in lost {
            self.close(index, "it cannot be served by the new database");
        }
        Ok(())
    }
}

/// Rebuilds a store, and loads programs for its database meanwhile. An error has the store with its old configuration, if it could be
/// opened again.
fn rebuild_or_restore(
    store: Store,
    config: StoreConfig,
    programs: Option<&Programs>,
) -> std::result::Result<Complete, Box<(Error, Option<Complete>)>> {
    let old_config = store.config().clone();
    let failed = match rebuild_with_programs(store, config, programs) {
        Ok(complete) => return Ok(complete),
        Err(failed) => *failed,
    };
    let restored = match failed.left {
        None => None,
        Some((store, Some(loaded))) => Some((store, loaded)),
        // The new database is there, but the kernel refuses the server's programs for it.
        Some((store, None)) => rebuild_with_programs(store, old_config, programs)
            .inspect_err(|second| tracing::error!(error = %second.error, "the server cannot go on with the old database"))
            .ok(),
    };
    Err(Box::new((failed.error, restored)))
}

/// An attempt that has failed.
struct Failed {
    error: Error,
    /// A store, and the programs for its database unless the kernel has refused them.
    left: Option<(Store, Option<Option<Loaded>>)>,
}

/// One attempt of [`rebuild_or_restore`].
fn rebuild_with_programs(
    store: Store,
    config: StoreConfig,
    programs: Option<&Programs>,
) -> std::result::Result<Complete, Box<Failed>> {
    thread::scope(|scope| {
        let mut loading: Option<Loading<'_>> = None;
        let rebuilt = store.rebuild(config, &mut |database| {
            // Programs for a database that is given up are dropped before the next one takes memory.
            drop(loading.take().map(Loading::join));
            loading = programs.map(|programs| {
                let (database, of) = (database.clone(), database.clone());
                Loading { of, thread: scope.spawn(move || programs.load_for(database)) }
            });
        });
        let (store, error) = match rebuilt {
            Ok(store) => (store, None),
            Err(RebuildError { error, store: Some(store) }) => (*store, Some(error)),
            Err(RebuildError { error, store: None }) => return Err(Box::new(Failed { error, left: None })),
        };
        let database = store.database();
        let loaded = match (loading.filter(|loading| Arc::ptr_eq(&loading.of, database)), programs) {
            (Some(loading), _) => loading.join().map(Some),
            // The store was not closed at all.
            (None, Some(programs)) => programs.load_for(database.clone()).map(Some),
            (None, None) => Ok(None),
        };
        let failed = match (loaded, error) {
            (Ok(loaded), None) => return Ok((store, loaded)),
            (Ok(loaded), Some(error)) => Failed { error, left: Some((store, Some(loaded))) },
            (Err(error), None) => Failed { error, left: Some((store, None)) },
            (Err(second), Some(error)) => {
                tracing::error!(error = %second, "the programs cannot be loaded again");
                Failed { error, left: None }
            }
        };
        Err(Box::new(failed))
    })
}

/// Programs that are being loaded for a database.
struct Loading<'scope> {
    of: Arc<Database>,
    thread: ScopedJoinHandle<'scope, Result<Loaded>>,
}

impl Loading<'_> {
    fn join(self) -> Result<Loaded> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
