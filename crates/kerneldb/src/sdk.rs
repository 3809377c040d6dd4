//! Compiling procedures: the headers that they include, and the compiler.
//!
//! The headers are those of this build, so an object fits the database that this build makes.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::{Error, Result};

/// The engine's headers: paths below the folder of headers, and contents.
const HEADERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/headers.rs"));

/// Identifies the headers. Objects that were compiled with others are refused.
pub(crate) const ABI: u64 = include!(concat!(env!("OUT_DIR"), "/abi.rs"));

/// The header with that number.
const ABI_HEADER: (&str, &str) =
    ("include/bedplate/abi.h", include_str!(concat!(env!("OUT_DIR"), "/include/bedplate/abi.h")));

/// Folders that the compiler searches, below the folder of headers.
const INCLUDES: [&str; 2] = ["include", "libbpf"];

/// Compilers that are tried, unless the environment variable CLANG names one. Clang 19 is the first that knows arenas.
const CLANGS: [&str; 5] = ["clang-19", "clang-20", "clang-21", "clang-22", "clang"];

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

/// The compiler: the first of those known that runs.
fn clang() -> Result<String> {
    let named = std::env::var("CLANG").ok();
    let mut candidates = named.into_iter().chain(CLANGS.map(String::from));
    let runs = |clang: &String| {
        Command::new(clang).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let none = || {
        let text = "there is none: install clang 19 or newer, or set CLANG";
        Error::io("cannot run clang", io::Error::new(io::ErrorKind::NotFound, text))
    };
    candidates.find(runs).ok_or_else(none)
}

/// The command that compiles a C file with procedures into an object for
/// [`Database::load_library`](crate::Database::load_library). [`write_headers`] has written `headers`.
///
/// # Errors
///
/// [`Error::Io`] if there is no clang.
pub fn compiler(headers: &Path, source: &Path, object: &Path) -> Result<Command> {
    let mut command = Command::new(clang()?);
    // The C library's headers for this processor, which clang does not look for when it compiles for another one.
    let multiarch = Command::new("gcc").arg("-print-multiarch").output().ok();
    let multiarch = multiarch.and_then(|output| String::from_utf8(output.stdout).ok());
    let multiarch = multiarch.filter(|name| !name.trim().is_empty());
    let multiarch = multiarch.unwrap_or_else(|| format!("{}-linux-gnu", std::env::consts::ARCH));
    command.args(["-target", "bpf", "-mcpu=v4", "-O2", "-g", "-Wall", "-Wno-unused-function"]);
    command.arg("-DKDB_ENGINE_ARENA");
    for include in INCLUDES {
        command.arg("-I").arg(headers.join(include));
    }
    command.arg("-isystem").arg(format!("/usr/include/{}", multiarch.trim()));
    let object: OsString = object.into();
    command.arg("-c").arg(source).arg("-o").arg(object);
    Ok(command)
}
