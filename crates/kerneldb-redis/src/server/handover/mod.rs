//! A server hands its sockets and the state of its connections to the program that follows it at an upgrade.
//!
//! The process replaces its program by `exec`, so descriptors keep their numbers. A file in memory has the rest ([`Handover::save`]). The
//! database is not part of it: its data is in the data directory, or in an image
//! ([`Store::image`](bedplate_kerneldb::Store::image)).

mod handlers;
pub(super) mod sockets;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::dialogue::CarriedDialogue;
use crate::command::{DatabaseOptions, ServerState, Settings, Startup};
use bedplate_kerneldb::{Database, Error, Result, SuspendedHandler};
use handlers::CarriedHandler;

/// The beginning of a file's first line, which ends with the number of the format.
const NAME: &str = "bedplate kerneldb handover ";

/// Bytes of the first line at most.
const LINE_BYTES_MAX: u64 = 64;

/// The format that [`Handover::save`] writes. It changes if a program cannot read an older one's file any more.
pub const FORMAT: u32 = 3;

/// The formats that [`Handover::load`] reads.
pub const READABLE_FORMATS: &[u32] = &[1, 2, FORMAT];

/// The parts of a server that has stopped so that another program can go on. Dropping it closes all connections.
#[derive(Debug)]
pub struct Handover {
    pub(super) listener: TcpListener,
    pub(super) clients: Vec<CarriedClient>,
    pub(super) state: CarriedState,
    /// Handlers that were attached, and whose stand-ins are.
    pub(super) handlers: Vec<SuspendedHandler>,
    /// The map with the sockets of local clients, if there is one: with it, the kernel would free replies that they have not read.
    pub(super) fastpath_sockets: Option<OwnedFd>,
    /// How the upgrade ended, for the client that asked for it.
    pub(super) outcome: std::result::Result<(), String>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct CarriedClient {
    pub(super) stream: TcpStream,
    pub(super) talk: CarriedTalk,
}

/// The state of a connection. As with [`CarriedConnection`](crate::command::CarriedConnection), fields are only ever added.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CarriedTalk {
    /// Replies that are not sent.
    pub(super) output: ByteBuf,
    /// Bytes of requests yet to come that the kernel has executed.
    pub(super) skip: u64,
    pub(super) dialogue: CarriedDialogue,
}

/// The state of the server.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CarriedState {
    /// Parameters that CONFIG SET has changed.
    pub(super) changed: Vec<(String, ByteBuf)>,
    /// Number of databases that have held the data.
    pub(super) databases: u64,
    /// Largest number of a connection.
    pub(super) last_client: u64,
    /// CLIENT PAUSE.
    pub(super) pause_until_ms: u64,
    pub(super) pause_reads_too: bool,
    /// Libraries of procedures that are in no data directory, by name.
    pub(super) libraries: Vec<(String, ByteBuf)>,
    /// Texts of the Lua scripts that are kept for EVALSHA, the oldest first.
    pub(super) scripts: Vec<ByteBuf>,
    /// The libraries of functions as FUNCTION DUMP returns them; `None` from a program that has no functions.
    pub(super) functions: Option<ByteBuf>,
    /// The users as ACL SAVE writes them; `None` from a program that has no users.
    pub(super) users: Option<ByteBuf>,
}

/// The contents of a file after its first line, with owned or borrowed parts.
#[derive(Serialize, Deserialize)]
struct Document<Talk, State> {
    listener: RawFd,
    clients: Vec<(RawFd, Talk)>,
    state: State,
    #[serde(default)]
    handlers: Vec<CarriedHandler>,
    #[serde(default)]
    fastpath_sockets: Option<RawFd>,
}

impl Handover {
    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.clients.len()
    }

    /// Writes a file for the next program, and lets it and all descriptors stay open at an exec. [`Handover::load`] reads it there.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the handover is as before, and can be continued in this process.
    pub fn save(&self) -> Result<OwnedFd> {
        let failed = |e| Error::io("writing a file for the next program", e);
        let document = Document {
            listener: self.listener.as_raw_fd(),
            clients: self.clients.iter().map(|client| (client.stream.as_raw_fd(), &client.talk)).collect(),
            state: &self.state,
            handlers: self.handlers.iter().map(CarriedHandler::of).collect(),
            fastpath_sockets: self.fastpath_sockets.as_ref().map(AsRawFd::as_raw_fd),
        };
        let written = || -> io::Result<File> {
            let file = File::from(memfd_create("bedplate-handover", MemfdFlags::CLOEXEC)?);
            let mut out = BufWriter::new(file);
            writeln!(out, "{NAME}{FORMAT}")?;
            ciborium::into_writer(&document, &mut out).map_err(io::Error::other)?;
            let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.rewind()?;
            fcntl_setfd(&file, FdFlags::empty())?;
            Ok(file)
        };
        let file = written().map_err(failed)?;
        self.close_at_exec(false).map_err(|e| failed(e.into()))?;
        Ok(file.into())
    }

    /// Whether an exec closes the descriptors. Programs that this process starts must not get them.
    fn close_at_exec(&self, close: bool) -> rustix::io::Result<()> {
        let flags = if close { FdFlags::CLOEXEC } else { FdFlags::empty() };
        let clients = self.clients.iter().map(|client| client.stream.as_fd());
        let handlers = self.handlers.iter().flat_map(|handler| {
            let links = handler.events.iter().filter_map(|(_, link)| link.as_ref());
            links.chain([&handler.counts_map]).map(AsFd::as_fd)
        });
        let fastpath_sockets = self.fastpath_sockets.as_ref().map(AsFd::as_fd);
        let mut all = clients.chain([self.listener.as_fd()]).chain(handlers).chain(fastpath_sockets);
        all.try_for_each(|fd| fcntl_setfd(fd, flags))
    }

    /// The exec has failed, so this process continues the connections itself. The client that asked for the upgrade gets this error.
    pub fn stays(&mut self, error: &str) -> Result<()> {
        self.outcome = Err(format!("ERR {error}"));
        self.close_at_exec(true).map_err(|e| Error::io("keeping the connections", e.into()))
    }

    /// Loads the file that the program before this one has written, in the same process.
    ///
    /// # Safety
    ///
    /// The file is one of [`Handover::save`], from the program that this process had before, and nobody else uses the descriptors that it
    /// names.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if it is another file, or of a version that this program does not know; [`Error::Io`].
    pub unsafe fn load(file: OwnedFd) -> Result<Handover> {
        let failed = |e| Error::io("reading the file of the program before", e);
        let mut input = BufReader::new(File::from(file));
        let mut line = Vec::new();
        input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(failed)?;
        let format =
            std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix(NAME)?.trim_end().parse().ok());
        if !format.is_some_and(|format: u32| READABLE_FORMATS.contains(&format)) {
            return Err(corrupt("it has another format"));
        }
        let document: Document<CarriedTalk, CarriedState> =
            ciborium::from_reader(input).map_err(|e| corrupt(&e.to_string()))?;
        let mut seen = HashSet::new();
        let handlers = document.handlers.iter().flat_map(CarriedHandler::descriptors);
        let clients = document.clients.iter().map(|(fd, _)| *fd);
        for fd in clients.chain([document.listener]).chain(handlers).chain(document.fastpath_sockets) {
            // SAFETY: The descriptor is only looked at.
            let open = fd >= 0 && fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok();
            if !open || !seen.insert(fd) {
                return Err(corrupt("its descriptors are not open, or not different"));
            }
        }
        // SAFETY: The descriptors are open and different. The program before this one has left them to this one.
        let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
        let handover = Handover {
            listener: own(document.listener).into(),
            clients: document
                .clients
                .into_iter()
                .map(|(fd, talk)| CarriedClient { stream: own(fd).into(), talk })
                .collect(),
            state: document.state,
            handlers: document.handlers.into_iter().map(|handler| handler.into_suspended(own)).collect(),
            fastpath_sockets: document.fastpath_sockets.map(own),
            outcome: Ok(()),
        };
        handover.close_at_exec(true).map_err(|e| failed(e.into()))?;
        Ok(handover)
    }
}

impl CarriedState {
    /// The options of the database, of which clients have changed some. `configured` are those that the server was started with.
    pub(super) fn database_options(&self, configured: DatabaseOptions) -> DatabaseOptions {
        Settings::new(Startup { database: configured, ..Startup::default() }).change_again(self.changed())
    }

    /// Leaves out the options of the database that clients have changed.
    pub(super) fn forget_database_options(&mut self) {
        self.changed.retain(|(name, _)| !Settings::is_database_option(name));
    }

    /// Sets the parameters that clients have changed, and keeps their scripts and functions. The database has its options already.
    pub(super) fn set_again(&self, server: &ServerState) {
        server.settings.change_again(self.changed());
        let restored = match &self.users {
            Some(users) => server.load_users(users, "the users of the program before"),
            None => self.set_password_again(server),
        };
        if let Err(error) = restored {
            tracing::error!(error, "nobody can do anything: start the server again");
            let locked = server.load_users(b"user default off", "no users");
            locked.expect("the line has no mistake");
        }
        for script in &self.scripts {
            if let Err(error) = server.scripts.put(script) {
                tracing::warn!(error, "a script of the program before is not kept");
            }
        }
        if let Some(Err(error)) = self.functions.as_ref().map(|payload| server.functions.restore(payload)) {
            tracing::error!(error, "the libraries of functions were lost at the upgrade");
        }
    }

    /// Sets the password that clients of a program without users have changed. Otherwise, the user `default` keeps the one of the start or of
    /// the ACL file. The absence of a password does not override the ACL file.
    fn set_password_again(&self, server: &ServerState) -> std::result::Result<(), String> {
        let changed = self.changed().find(|(name, _)| *name == "requirepass");
        let sets = |password: &[u8]| !password.is_empty() || server.settings.acl_file().is_none();
        if changed.is_some_and(|(_, password)| sets(password)) { server.apply_password() } else { Ok(()) }
    }

    /// Loads libraries, unless others of these names are loaded.
    pub(super) fn load_again(&self, database: &Database) {
        let loaded = database.libraries();
        for (name, file) in self.libraries.iter().filter(|(name, _)| !loaded.contains_key(name)) {
            if let Err(error) = database.load_library(name, file, false) {
                tracing::error!(library = name, %error, "a library of procedures was lost at the upgrade");
            }
        }
    }

    fn changed(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.changed.iter().map(|(name, value)| (&**name, &***value))
    }
}

fn corrupt(why: &str) -> Error {
    Error::Corrupt(format!("the program before this one has left a file that cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use bedplate_kerneldb::HandlerCounts;

    use super::*;

    #[test]
    fn a_program_without_users_leaves_the_users_of_the_file() {
        let file = b"user default on >x ~* +@all\nuser low on >y\n";
        let continued = |acl_file: Option<&str>, password: &str, changed: Option<&str>| {
            let startup = Startup {
                acl_file: acl_file.map(Into::into),
                password: password.into(),
                ..Startup::default()
            };
            let server = ServerState::new(startup);
            if acl_file.is_some() {
                server.load_users(file, "f").unwrap();
            }
            let changed = changed.map(|value| ("requirepass".into(), ByteBuf::from(value)));
            let state = CarriedState { changed: changed.into_iter().collect(), ..CarriedState::default() };
            let before = server.users_text();
            state.set_again(&server);
            (before == server.users_text(), String::from_utf8(server.users_text()).unwrap())
        };
        assert!(continued(Some("f"), "", None).0);
        assert!(continued(Some("f"), "", Some("")).0);
        let (is_unchanged, users) = continued(Some("f"), "", Some("z"));
        assert!(!is_unchanged && !users.contains("nopass"), "{users}");
        assert!(continued(None, "p", None).0);
        let (_, users) = continued(None, "p", Some(""));
        assert!(users.starts_with("user default on nopass "), "{users}");
    }

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    fn handover() -> Handover {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let talk = CarriedTalk { output: ByteBuf::from(*b"+OK\r\n"), skip: 7, ..CarriedTalk::default() };
        let state = CarriedState {
            changed: vec![
                ("versions".into(), ByteBuf::from(*b"9")),
                ("timeout".into(), ByteBuf::from(*b"3")),
            ],
            databases: 4,
            ..CarriedState::default()
        };
        let handler = SuspendedHandler {
            name: "count".into(),
            events: vec![
                ("tc:eth0/ingress".parse().unwrap(), Some(file())),
                ("timer:5s".parse().unwrap(), None),
            ],
            counts: HandlerCounts { runs: 3, committed: 2, failed: 1, ..HandlerCounts::default() },
            counts_map: file(),
        };
        Handover {
            listener,
            clients: vec![CarriedClient { stream, talk }],
            state,
            handlers: vec![handler],
            fastpath_sockets: Some(file()),
            outcome: Ok(()),
        }
    }

    /// As an exec does: only the numbers stay.
    fn exec(handover: Handover) -> OwnedFd {
        let file = handover.save().unwrap();
        assert_eq!(fcntl_getfd(&file).unwrap(), FdFlags::empty());
        all_have(&handover, FdFlags::empty());
        std::mem::forget(handover);
        file
    }

    fn all_have(handover: &Handover, flags: FdFlags) {
        let handler = &handover.handlers[0];
        let link = handler.events[0].1.as_ref().unwrap();
        for fd in [
            handover.listener.as_fd(),
            handover.clients[0].stream.as_fd(),
            link.as_fd(),
            handler.counts_map.as_fd(),
            handover.fastpath_sockets.as_ref().unwrap().as_fd(),
        ] {
            assert_eq!(fcntl_getfd(fd).unwrap(), flags);
        }
    }

    #[test]
    fn the_next_program_gets_everything() {
        let before = handover();
        let (address, peer) = (before.listener.local_addr().unwrap(), before.clients[0].stream.peer_addr());
        let file = exec(before);
        // SAFETY: `exec` has left the descriptors.
        let mut after = unsafe { Handover::load(file) }.unwrap();
        assert_eq!(after.listener.local_addr().unwrap(), address);
        assert_eq!(after.clients[0].stream.peer_addr().unwrap(), peer.unwrap());
        all_have(&after, FdFlags::CLOEXEC);
        let handler = &after.handlers[0];
        let events: Vec<_> =
            handler.events.iter().map(|(event, link)| (event.to_string(), link.is_some())).collect();
        assert_eq!(events, [("tc:eth0/ingress".to_owned(), true), ("timer:5000ms".to_owned(), false)]);
        assert_eq!((&*handler.name, handler.counts.runs, handler.counts.failed), ("count", 3, 1));
        assert_eq!((&after.clients[0].talk.output[..], after.clients[0].talk.skip), (&b"+OK\r\n"[..], 7));
        assert_eq!(after.state.databases, 4);
        let options =
            after.state.database_options(DatabaseOptions { versions: 2, ..DatabaseOptions::default() });
        assert_eq!(options, DatabaseOptions { versions: 9, ..DatabaseOptions::default() });
        let file = after.save().unwrap();
        after.stays("no").unwrap();
        assert_eq!(after.outcome, Err("ERR no".into()));
        all_have(&after, FdFlags::CLOEXEC);
        drop((after, file));
    }

    #[test]
    fn another_file_is_refused() {
        let file = |bytes: &[u8]| -> OwnedFd {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            file.rewind().unwrap();
            file.into()
        };
        let head = || format!("{NAME}{FORMAT}\n").into_bytes();
        let document = |listener, clients: &[RawFd]| {
            let mut bytes = head();
            let clients = clients.iter().map(|fd| (*fd, CarriedTalk::default())).collect();
            let document = Document {
                listener,
                clients,
                state: CarriedState::default(),
                handlers: Vec::new(),
                fastpath_sockets: None,
            };
            ciborium::into_writer(&document, &mut bytes).unwrap();
            bytes
        };
        for (bytes, reason) in [
            (b"".to_vec(), "another format"),
            (b"bedplate kerneldb handover 4\n...".to_vec(), "another format"),
            (head(), "cannot be read"),
            (document(-1, &[]), "descriptors"),
            (document(1_000_000, &[]), "descriptors"),
            (document(0, &[0]), "descriptors"),
        ] {
            // SAFETY: No such file names a descriptor that could be owned, so none is.
            let error = unsafe { Handover::load(file(&bytes)) }.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
