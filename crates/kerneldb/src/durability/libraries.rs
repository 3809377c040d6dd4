//! The libraries of a data directory: objects with procedures that are loaded again at each start.
//!
//! A library is the file `procedures/NAME.o`. It is written under another name, synced, and renamed, so a crash leaves the old
//! library or the new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{Database, Error, Result};

/// Folder of the libraries in a data directory.
const FOLDER: &str = "procedures";
const SUFFIX: &str = ".o";

fn path(data: &Path, library: &str) -> PathBuf {
    data.join(FOLDER).join(format!("{library}{SUFFIX}"))
}

fn failed(what: &str, path: &Path) -> impl Fn(io::Error) -> Error {
    let what = format!("{what} {}", path.display());
    move |error| Error::io(what.clone(), error)
}

/// Loads a library and keeps it in the data directory. An error changes nothing.
pub(super) fn load(
    data: &Path,
    database: &Database,
    library: &str,
    elf: &[u8],
    replace: bool,
) -> Result<Vec<String>> {
    let folder = data.join(FOLDER);
    let written = folder.join(format!("new{SUFFIX}.partial"));
    fs::create_dir_all(&folder).map_err(failed("cannot create", &folder))?;
    let write = || -> io::Result<()> {
        let mut file = File::create(&written)?;
        file.write_all(elf)?;
        file.sync_all()
    };
    let loaded = write()
        .map_err(failed("cannot write", &written))
        .and_then(|()| database.load_library(library, elf, replace));
    let names = loaded.inspect_err(|_| drop(fs::remove_file(&written)))?;
    let target = path(data, library);
    let publish = || -> io::Result<()> {
        fs::rename(&written, &target)?;
        File::open(&folder)?.sync_all()?;
        File::open(data)?.sync_all()
    };
    publish().map_err(failed("cannot write", &target))?;
    Ok(names)
}

/// Removes a library, also from the data directory; false if there is none.
pub(super) fn unload(data: &Path, database: &Database, library: &str) -> Result<bool> {
    // The name of a loaded library is a file's name.
    if !database.procedures().iter().any(|procedure| procedure.library == library) {
        return Ok(false);
    }
    let target = path(data, library);
    match fs::remove_file(&target) {
        Ok(()) => File::open(data.join(FOLDER)).and_then(|folder| folder.sync_all()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
    .map_err(failed("cannot remove", &target))?;
    Ok(database.unload_library(library))
}

/// Loads the libraries of a data directory. One that cannot be loaded is logged and left out, because the data can be served
/// without it.
pub(super) fn load_all(data: &Path, database: &Database) {
    let mut files: Vec<PathBuf> = match fs::read_dir(data.join(FOLDER)) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => return,
    };
    files.sort();
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(SUFFIX));
        let Some(library) = name else { continue };
        let loaded = fs::read(&file)
            .map_err(failed("cannot read", &file))
            .and_then(|elf| database.load_library(library, &elf, true));
        match loaded {
            Ok(names) => tracing::info!(library, procedures = names.len(), "loaded"),
            Err(error) => tracing::error!(library, %error, "its procedures are missing"),
        }
    }
}
