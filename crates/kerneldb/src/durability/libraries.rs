//! The libraries of a data directory: objects with procedures that are loaded again at each start.
//!
//! A library is the file `procedures/NAME.o`. The caller holds the database's lock of changes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::replace::replace_file;
use crate::{Database, Error, Result, session::read_library};

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

/// Writes a library, in the place of one of the same name. After an error the next start may find the old library or the new one.
pub(super) fn write(data: &Path, library: &str, elf: &[u8]) -> Result<()> {
    let folder = data.join(FOLDER);
    let write = || -> io::Result<()> {
        if !folder.is_dir() {
            fs::create_dir(&folder)?;
            File::open(data)?.sync_all()?;
        }
        replace_file(&folder, &format!("{library}{SUFFIX}"), &[elf], 0o644)
    };
    write().map_err(failed("cannot write", &path(data, library)))
}

/// Removes the file of a library, if there is one.
pub(super) fn remove(data: &Path, library: &str) -> Result<()> {
    let target = path(data, library);
    match fs::remove_file(&target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => File::open(data.join(FOLDER)).and_then(|folder| folder.sync_all()),
    }
    .map_err(failed("cannot remove", &target))
}

/// Loads the libraries of a data directory. One that cannot be loaded is logged and left out, because the data can be served
/// without it.
pub(super) fn load_all(data: &Path, database: &Database) {
    let folder = data.join(FOLDER);
    let files = fs::read_dir(&folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut files: Vec<PathBuf> = match files {
        Ok(files) => files,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::error!(%error, folder = %folder.display(), "cannot read the libraries: all procedures are missing");
            }
            return;
        }
    };
    files.sort();
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(SUFFIX));
        let Some(library) = name else { continue };
        let loaded = read_library(&file).and_then(|(_, elf)| database.load_library(library, &elf, true));
        match loaded {
            Ok(names) => tracing::info!(library, procedures = names.len(), "loaded"),
            Err(error) => tracing::error!(library, %error, "its procedures are missing"),
        }
    }
}
