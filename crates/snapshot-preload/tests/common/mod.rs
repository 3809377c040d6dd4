//! The common parts of the tests: servers, a sequence of numbers that is written to them, and scenarios.
#![allow(dead_code, unused_imports)]

mod numbers;
pub mod program;
pub mod scenarios;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_suite_support::programs;

pub use numbers::{KEYS, exact_prefix, fill, number_of, under_load, value};
pub use server::{
    Server, Statistics, bgsave, child_of, free_port, incomplete, info, kill, replicate, rewrite_log, saved,
    set_save_delay, statistics_of, wait_for_replica,
};

/// A value of `BEDPLATE_SNAPSHOT_ENGINE`.
pub type Engine = &'static str;

/// Makes tests of functions that take an engine, one for each engine that every machine has.
#[macro_export]
macro_rules! with_each_engine {
    ($($name:ident),+ $(,)?) => {
        mod remap {
            $(#[test]
            fn $name() {
                super::$name("remap");
            })+
        }
        mod uffd {
            $(#[test]
            fn $name() {
                super::$name("uffd");
            })+
        }
    };
}

/// The path of the library in the guest.
pub const IN_GUEST: &str = "/lib/bedplate/preload.so";

/// The path of the program of [`build_program`] in the guest.
pub const PROGRAM_IN_GUEST: &str = "/lib/bedplate/daemon";

/// Builds `daemon.c` in a folder.
pub fn build_program(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon.c");
    let program = folder.join("daemon");
    let compiler = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).status();
    assert!(compiler.unwrap().success());
    program
}

/// Runs that program, which checks that every process sees its own memory.
pub fn memory_is_as_it_was(program: &Path, how: &str, engine: Engine) {
    let mut command = Command::new(program);
    command.arg(how).env("LD_PRELOAD", library()).env("BEDPLATE_SNAPSHOT_REQUIRED", "1");
    command.env("BEDPLATE_SNAPSHOT_ENGINE", engine);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{how}: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "as it was\n", "{how}: {output:?}");
}

/// Whether this runs in a virtual machine, where the engine is that of ring 0.
pub fn in_guest() -> bool {
    std::env::var_os(bedplate_vm::MARK).is_some()
}

/// The library, built like this test.
pub fn library() -> PathBuf {
    if in_guest() {
        return IN_GUEST.into();
    }
    build("snapshot-preload")
}

/// The library of [`library`], and the library with the bundled allocator, which is preloaded after it.
pub fn libraries() -> [PathBuf; 2] {
    [library(), build("snapshot-malloc")]
}

/// Builds one of Bedplate's libraries, like this test.
fn build(name: &str) -> PathBuf {
    programs::build(&[name]).unwrap();
    programs::folder().unwrap().join(format!("libbedplate_{}.so", name.replace('-', "_")))
}
