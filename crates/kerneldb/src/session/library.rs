//! Libraries: files of eBPF objects with procedures that sessions call by name, and with handlers of events.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::{
    EngineKind, Error, HandlerKind, Result,
    attach::{self, Attachment, LoadedObject, MapFds},
    bpf::duplicate_map,
    engine::{Engine, HandlerProgram, Library, Registered, RegisteredHandler, Trigger, VerifiedProcedure},
    layout::kdb_handler,
    library_file,
    limits::{LIBRARY_BYTES_MAX, LIBRARY_NAME_MAX},
};

/// Sections of the programs that are procedures, as `procedure.h` names them, and whether they only read.
const SECTIONS: [(&str, bool); 2] = [("raw_tp/procedure", false), ("raw_tp/read_only_procedure", true)];

/// The end of the name of a program on connections, after the name of its procedure.
const ON_CONNECTION: &str = "_on_connection";
/// The end of the name of the map with a handler's counts, after the name of the handler.
const HANDLER_COUNTS: &str = "_handler";
/// The end of the name of the program that has a handler's place while there is no database.
const STAND_IN: &str = "_stand_in";
/// With several partitions: the ends of the names of a handler's visitor (`visit.h`), and of the map with the visitors of all partitions.
const VISITOR: &str = "_visitor";
const VISITORS: &str = "_visitors";
/// The map with the buffers of handlers, as `handler.h` names it.
const SLOTS: &str = "kdb_handler_slots";

/// A procedure that can be called by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureInfo {
    /// Its name.
    pub name: String,
    /// The library that it is in.
    pub library: String,
    /// Whether it only reads.
    pub read_only: bool,
}

/// All procedures in the order of their names.
pub(crate) fn list(db: &Engine) -> Vec<ProcedureInfo> {
    let info = |(name, procedure): (String, Arc<Registered>)| ProcedureInfo {
        name,
        library: procedure.library.to_string(),
        read_only: procedure.read_only,
    };
    db.procedures.all().into_iter().map(info).collect()
}

/// Whether a library can have this name, which is also that of a file.
fn check_name(name: &str) -> Result<()> {
    let fits = (1..=LIBRARY_NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    match fits {
        true => Ok(()),
        false => Err(Error::Library(format!(
            "a library's name has 1 to {LIBRARY_NAME_MAX} letters, digits, dashes and underscores"
        ))),
    }
}

/// Reads an object from a file; returns the name of its library, which is the file's name up to the first dot, and its content. A longer
/// file than [`LIBRARY_BYTES_MAX`] is cut off one byte past it, and refused when it is loaded.
///
/// # Errors
///
/// [`Error::Io`] if the file cannot be read or is not a regular file.
pub fn read(file: &Path) -> Result<(String, Vec<u8>)> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let library = name.split('.').next().unwrap_or_default().to_owned();
    let mut elf = Vec::new();
    // A pipe would block the thread until somebody writes to it.
    let open = || -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = File::from(rustix::fs::open(file, flags, Mode::empty())?);
        match opened.metadata()?.is_file() {
            true => Ok(opened),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    };
    open()
        .and_then(|opened| opened.take(LIBRARY_BYTES_MAX as u64 + 1).read_to_end(&mut elf))
        .map_err(|error| Error::io(format!("cannot read {}", file.display()), error))?;
    Ok((library, elf))
}

/// The events of a handler, by the section of its program, as `handler.h` names it.
fn handler_kind(section: &str) -> Option<HandlerKind> {
    match section {
        "tc" => Some(HandlerKind::Tc),
        "xdp" => Some(HandlerKind::Xdp),
        // With several partitions, user space runs the program.
        "syscall" | "raw_tp/timer" => Some(HandlerKind::Timer),
        _ => section.strip_prefix("tp_btf/").map(|name| HandlerKind::Tracepoint(name.into())),
    }
}

/// Lets the kernel verify the programs of a library that is to be loaded. The verifier grants programs on connections less than it grants
/// those for user space, for instance less stack. If it refuses them, sessions run the library's procedures.
fn verify(db: &Arc<Engine>, library: &str, file: &[u8]) -> Result<Library> {
    check_name(library)?;
    if file.len() > LIBRARY_BYTES_MAX {
        return Err(Error::Library(format!("a library has at most {} MiB", LIBRARY_BYTES_MAX >> 20)));
    }
    let elf = match (library_file::split(file), db.config().engine, db.config().partitions) {
        (Some(objects), EngineKind::Arena, 1) => objects.arena,
        (Some(objects), EngineKind::Arena, _) => objects.partitions,
        (Some(objects), EngineKind::HashMap, _) => objects.hash_maps,
        // An object that the user's own compiler has written.
        (None, EngineKind::Arena, 1) => file,
        (None, ..) => {
            let text = "the object is for the arena engine with one partition, and this database has another engine or \
                        several partitions: compile it with `bedplate kv build-procedure`";
            return Err(Error::Library(text.into()));
        }
    };
    if db.config().engine == EngineKind::HashMap {
        // Programs on connections need arenas.
        return verify_programs(db, library, elf, false).map_err(with_place_of_reason);
    }
    db.load_visitors()?;
    let complete = verify_programs(db, library, elf, true);
    let Err(refused @ Error::Kernel { .. }) = complete else { return complete };
    let verified = verify_programs(db, library, elf, false).map_err(with_place_of_reason);
    let verified = verified.map_err(|error| match (error, db.config().partitions) {
        (Error::Library(text), 2..) => Error::Library(format!(
            "{text}; code for databases with several partitions has rules of its own, which docs/procedures.md names"
        )),
        (error, _) => error,
    })?;
    tracing::warn!(library, %refused, "the event loop runs all calls: the kernel refuses the programs on connections");
    Ok(verified)
}

/// Says where the verifier's reason is, because an error of the kernel has its number only.
fn with_place_of_reason(error: Error) -> Error {
    match error {
        Error::Kernel { .. } => {
            Error::Library(format!("{error}; the standard error of this process has the reason"))
        }
        error => error,
    }
}

/// Lets the kernel verify the programs of a library, with those on connections or without.
fn verify_programs(db: &Arc<Engine>, library: &str, elf: &[u8], on_connections: bool) -> Result<Library> {
    let mut verified = Library::default();
    // Objects for hash maps have no programs on connections, so such a name is that of a procedure.
    let has_some = db.config().engine == EngineKind::Arena;
    let leave_out = (has_some && !on_connections).then_some(ON_CONNECTION);
    // Those of handlers. The first partition's object creates them.
    let mut visitors = MapFds::new();
    let partitions = db.config().partitions;
    for partition in 0..partitions {
        let object = load_object(db, library, elf, partition, leave_out, &visitors)?;
        let partition = (partitions > 1).then_some(partition);
        if db.config().engine == EngineKind::HashMap
            && object.has_map(HANDLER_COUNTS, size_of::<kdb_handler>())
        {
            let text = "handlers need the arena engine, which needs Linux 6.14 or newer";
            return Err(Error::Library(text.into()));
        }
        for (name, section) in object.programs() {
            if let Some((_, read_only)) = SECTIONS.iter().find(|(known, _)| section == *known) {
                let program = object.program(&name)?;
                let on_connection = match on_connections {
                    true => Some(object.program(&format!("{name}{ON_CONNECTION}"))?),
                    false => None,
                };
                let procedure = verified.procedures.entry(name).or_insert_with(|| VerifiedProcedure {
                    registered: Registered {
                        library: library.into(),
                        read_only: *read_only,
                        programs: Vec::new(),
                    },
                    on_connections: Vec::new(),
                });
                procedure.registered.programs.push(program);
                procedure.on_connections.extend(on_connection);
                continue;
            }
            if let Some(handler) = handler(library, &object, (&name, &section), partition, &mut visitors)? {
                verified.handlers.insert(name, handler);
            }
        }
    }
    match verified.procedures.is_empty() && verified.handlers.is_empty() {
        true => Err(Error::Library("the object has no procedure: define one with KDB_PROCEDURE".into())),
        false => Ok(verified),
    }
}

/// The handler whose program has this name and section; none if it is no handler's, or not in the first partition, where handlers run.
/// `partition` is the object's, or none if there is only one. Its visitor goes into the map of all partitions' visitors.
fn handler(
    library: &str,
    object: &LoadedObject,
    (name, section): (&str, &str),
    partition: Option<u32>,
    visitors: &mut MapFds,
) -> Result<Option<RegisteredHandler>> {
    let Some(kind) = handler_kind(section) else { return Ok(None) };
    // Other programs of these sections are the library's own business.
    let Ok(counts) = object.share_map(&format!("{name}{HANDLER_COUNTS}")) else { return Ok(None) };
    let mut map_of_visitors = None;
    if let Some(partition) = partition {
        let map = format!("{name}{VISITORS}");
        let visitor = object.program(&format!("{name}{VISITOR}"))?;
        object.update_map(&map, &partition.to_ne_bytes(), &visitor.as_fd().as_raw_fd().to_ne_bytes())?;
        if partition > 0 {
            return Ok(None);
        }
        map_of_visitors = Some(object.map(&map)?);
        visitors.insert(map.clone(), object.share_map(&map)?);
    }
    let trigger = match (&kind, partition) {
        (HandlerKind::Timer, None) => Trigger::KernelTimer(object.map(&format!("{name}_timer"))?),
        (HandlerKind::Timer, Some(_)) => Trigger::Thread,
        _ => Trigger::Links { stand_in: object.program(&format!("{name}{STAND_IN}"))? },
    };
    let program = HandlerProgram::new(object.program(name)?, map_of_visitors);
    Ok(Some(RegisteredHandler::new(library, kind, program, counts, trigger)))
}

/// Loads the object of a library for a partition. All libraries share the buffers of handlers, which the first one with handlers creates.
fn load_object(
    db: &Arc<Engine>,
    library: &str,
    elf: &[u8],
    partition: u32,
    leave_out: Option<&str>,
    visitors: &MapFds,
) -> Result<LoadedObject> {
    let mut slots = db.handlers.lock_slots();
    let mut maps = MapFds::new();
    for (name, fd) in visitors {
        maps.insert(name.clone(), duplicate_map(fd)?);
    }
    if let Some(slots) = &*slots {
        maps.insert(SLOTS.into(), duplicate_map(slots)?);
    }
    let entries = [(SLOTS, db.handlers.slot_count())];
    let attachment =
        Attachment { name: library, elf, partition, constants: &[], maps, entries: &entries, leave_out };
    let object = attach::load(db, attachment)?;
    if slots.is_none() {
        *slots = object.share_map(SLOTS).ok();
    }
    Ok(object)
}

/// Loads a library; returns the names of its procedures and handlers. `keep` is called before anybody can call them. Its error prevents
/// the load.
pub(crate) fn load(
    db: &Arc<Engine>,
    library: &str,
    elf: &[u8],
    replace: bool,
    keep: impl FnOnce() -> Result<()>,
) -> Result<Vec<String>> {
    let new = verify(db, library, elf)?;
    let names = new.procedures.keys().chain(new.handlers.keys()).cloned().collect();
    let _changes = db.procedures.lock_changes();
    if !replace && db.has_library(library) {
        return Err(Error::Library(format!("the library {library} is loaded already")));
    }
    db.procedures.check(library, &new.procedures, replace)?;
    db.handlers.check(library, new.handlers.keys())?;
    keep()?;
    db.put_library(library, new)?;
    db.procedures.set_file(library, Some(elf.into()));
    Ok(names)
}
