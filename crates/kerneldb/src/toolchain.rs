//! The compiler of eBPF programs. The build script compiles this file as well, so the file uses nothing of this crate.

use std::process::Command;

/// Options for all eBPF programs. Clang 22 makes jump tables for the instruction set v4, which most kernels do not
/// know.
pub const OPTIONS: [&str; 5] = ["-O2", "-g", "-Wall", "-Wno-unused-function", "-fno-jump-tables"];

/// Options for programs on the arena engine.
pub const ARENA: [&str; 2] = ["-DKDB_ENGINE_ARENA", "-mcpu=v4"];

/// Options for the procedures of databases with several partitions on the arena engine.
pub const PARTITIONS: [&str; 3] = ["-DKDB_ENGINE_ARENA", "-DKDB_SEVERAL_PARTITIONS", "-mcpu=v4"];

/// Options for programs on the hash-map engine. It is for kernels without arenas, which do not know the instruction set v4 either.
pub const HASH_MAPS: [&str; 2] = ["-DKDB_ENGINE_HASHMAP", "-mcpu=v3"];

/// Compilers that are tried, unless the environment variable CLANG names one. Clang 19 is the first that knows the address spaces
/// of arenas and the instruction set v4.
const CLANGS: [&str; 5] = ["clang-19", "clang-20", "clang-21", "clang-22", "clang"];

/// The compiler that CLANG names, or the first one that runs; none if the one that is named does not run.
pub fn clang() -> Option<String> {
    let runs = |clang: &String| {
        Command::new(clang).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    match std::env::var("CLANG") {
        Ok(named) => Some(named).filter(runs),
        Err(_) => CLANGS.map(String::from).into_iter().find(runs),
    }
}

/// Folder of the C library's headers for this processor. Clang does not look there when it compiles for another one.
pub fn system_include() -> String {
    let multiarch = Command::new("gcc").arg("-print-multiarch").output().ok();
    let multiarch = multiarch.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    format!("/usr/include/{}", multiarch.trim())
}
