//! Compiling procedures: the headers that they include, and the compiler.
//!
//! The headers are those of this build, so an object fits the database that this build makes.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::{Error, Result, toolchain};

/// The engine's headers: paths below the folder of headers, and contents.
const HEADERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/headers.rs"));

/// The header that identifies the others.
const ABI_HEADER: (&str, &str) =
    ("include/bedplate/abi.h", include_str!(concat!(env!("OUT_DIR"), "/include/bedplate/abi.h")));

/// Folders that the compiler searches, below the folder of headers.
const INCLUDES: [&str; 2] = ["include", "libbpf"];

/// Writes the headers into a folder, which is created if it does not exist.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be written.
pub fn write_headers(folder: &Path) -> Result<()> {
    let write = |path: &Path, text: &str| -> io::Result<()> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, text)
    };
    let libbpf =
        libbpf_rs::libbpf_sys::API_HEADERS.iter().map(|(name, text)| (format!("libbpf/bpf/{name}"), *text));
    let engine = HEADERS.iter().chain([&ABI_HEADER]).map(|(name, text)| ((*name).to_owned(), *text));
    for (name, text) in engine.chain(libbpf) {
        let path = folder.join(name);
        write(&path, text).map_err(|error| Error::io(format!("cannot write {}", path.display()), error))?;
    }
    Ok(())
}

/// The command that compiles a C file with procedures into an object for
/// [`Database::load_library`](crate::Database::load_library). [`write_headers`] has written `headers`.
///
/// # Errors
///
/// [`Error::Io`] if there is no clang.
pub fn compiler(headers: &Path, source: &Path, object: &Path) -> Result<Command> {
    let clang = toolchain::clang().ok_or_else(|| {
        let text = "there is none: install clang 19 or newer, or set CLANG";
        Error::io("cannot run clang", io::Error::new(io::ErrorKind::NotFound, text))
    })?;
    let mut command = Command::new(clang);
    command.args(["-target", "bpf"]).args(toolchain::OPTIONS).args(toolchain::ARENA);
    for include in INCLUDES {
        command.arg("-I").arg(headers.join(include));
    }
    command.arg("-isystem").arg(toolchain::system_include());
    command.arg("-c").arg(source).arg("-o").arg(object);
    Ok(command)
}
