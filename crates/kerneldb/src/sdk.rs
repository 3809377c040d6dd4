//! Compiling procedures: the headers that they include, and the compiler.
//!
//! The headers are those of this build, so an object fits the database that this build makes.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::library_file::Objects;
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

/// Compiles a C file with procedures and handlers into a library for [`Database::load_library`](crate::Database::load_library), which
/// all databases load. [`write_headers`] has written `headers`. `options` are further ones of the compiler, whose messages
/// go to the standard error.
///
/// # Errors
///
/// [`Error::Io`] if clang cannot be run; [`Error::Library`] if it refuses the source.
pub fn compile(headers: &Path, source: &Path, options: &[&str]) -> Result<Vec<u8>> {
    let object_for = |target: Target| -> Result<Vec<u8>> {
        let mut compiler = compiler(target, headers, source, "-".as_ref())?;
        compiler.args(options).stderr(Stdio::inherit());
        if target != Target::Arena && !options.contains(&"-Werror") {
            // Nearly all warnings have been printed for the first target.
            compiler.arg("-w");
        }
        let output = compiler.output().map_err(|error| Error::io("cannot run clang", error))?;
        if !output.status.success() {
            let name = match target {
                Target::Arena => "the arena engine",
                Target::Partitions => "the arena engine with several partitions",
                Target::HashMap => "the hash-map engine",
            };
            return Err(Error::Library(format!("the compiler refuses the source for {name}")));
        }
        Ok(output.stdout)
    };
    let [arena, partitions, hash_maps] = [Target::Arena, Target::Partitions, Target::HashMap].map(object_for);
    let (arena, partitions, hash_maps) = (arena?, partitions?, hash_maps?);
    Ok(Objects { arena: &arena, partitions: &partitions, hash_maps: &hash_maps }.join())
}

/// A kind of database that an object with procedures is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The arena engine with one partition.
    Arena,
    /// The arena engine with several partitions.
    Partitions,
    /// The hash-map engine.
    HashMap,
}

/// The command that compiles a C file with procedures into an object for one target. [`write_headers`] has written `headers`. The
/// object is the standard output if its path is `-`.
///
/// # Errors
///
/// [`Error::Io`] if there is no clang.
pub fn compiler(target: Target, headers: &Path, source: &Path, object: &Path) -> Result<Command> {
    let clang = toolchain::clang().ok_or_else(|| {
        let text = "there is none: install clang 19 or newer, or set CLANG";
        Error::io("cannot run clang", io::Error::new(io::ErrorKind::NotFound, text))
    })?;
    let mut command = Command::new(clang);
    let of_target = match target {
        Target::Arena => &toolchain::ARENA[..],
        Target::Partitions => &toolchain::PARTITIONS,
        Target::HashMap => &toolchain::HASH_MAPS,
    };
    command.args(["-target", "bpf"]).args(toolchain::OPTIONS).args(of_target);
    for include in INCLUDES {
        command.arg("-I").arg(headers.join(include));
    }
    command.arg("-isystem").arg(toolchain::system_include());
    command.arg("-c").arg(source).arg("-o").arg(object);
    Ok(command)
}
