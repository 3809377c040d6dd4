//! Libraries: eBPF objects with procedures that sessions call by name.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::{
    Error, Result,
    attach::{self, Attachment, MapFds},
    engine::{Engine, Library, Registered, VerifiedProcedure},
    limits::{LIBRARY_BYTES_MAX, LIBRARY_NAME_MAX},
};

/// Sections of the programs that are procedures, as `procedure.h` names them, and whether they only read.
const SECTIONS: [(&str, bool); 2] = [("raw_tp/procedure", false), ("raw_tp/read_only_procedure", true)];

/// What the name of the program on connections has behind the procedure's.
const ON_CONNECTION: &str = "_on_connection";

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

/// Lets the kernel verify the procedures of a library that is to be loaded.
fn verify(db: &Arc<Engine>, library: &str, elf: &[u8]) -> Result<Library> {
    check_name(library)?;
    if elf.len() > LIBRARY_BYTES_MAX {
        return Err(Error::Library(format!("an object has at most {} MiB", LIBRARY_BYTES_MAX >> 20)));
    }
    let mut procedures = Library::new();
    for partition in 0..db.config().partitions {
        let attachment =
            Attachment { name: library, elf, partition, constants: &[], maps: MapFds::new(), entries: &[] };
        let object = attach::load(db, attachment).map_err(|error| match error {
            Error::Kernel { .. } => {
                Error::Library(format!("{error}; the standard error of this process has the reason"))
            }
            error => error,
        })?;
        for (name, section) in object.programs() {
            let Some((_, read_only)) = SECTIONS.iter().find(|(known, _)| section == *known) else { continue };
            let program = object.program(&name)?;
            let on_connection = object.program(&format!("{name}{ON_CONNECTION}"))?;
            let procedure = procedures.entry(name).or_insert_with(|| VerifiedProcedure {
                registered: Registered {
                    library: library.into(),
                    read_only: *read_only,
                    programs: Vec::new(),
                },
                on_connections: Vec::new(),
            });
            procedure.registered.programs.push(program);
            procedure.on_connections.push(on_connection);
        }
    }
    match procedures.is_empty() {
        true => Err(Error::Library("the object has no procedure: define one with KDB_PROCEDURE".into())),
        false => Ok(procedures),
    }
}

/// Loads a library; returns the names of its procedures. `keep` is called before anybody can call them. Its error prevents
/// the load.
pub(crate) fn load(
    db: &Arc<Engine>,
    library: &str,
    elf: &[u8],
    replace: bool,
    keep: impl FnOnce() -> Result<()>,
) -> Result<Vec<String>> {
    let procedures = verify(db, library, elf)?;
    let names = procedures.keys().cloned().collect();
    let _changes = db.procedures.lock_changes();
    db.procedures.check(library, &procedures, replace)?;
    keep()?;
    db.put_library(library, procedures)?;
    Ok(names)
}
