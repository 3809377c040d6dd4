//! What the tests share: servers, a sequence of numbers that is written to them, and scenarios.
#![allow(dead_code, unused_imports)]

mod numbers;
pub mod scenarios;
mod server;

use std::path::PathBuf;
use std::process::Command;

pub use numbers::{KEYS, exact_prefix, fill, number_of, under_load, value};
pub use server::{
    Server, Statistics, bgsave, child_of, free_port, info, kill, replicate, rewrite_log, saved,
    wait_for_replica,
};

/// Where the guest has the library.
pub const IN_GUEST: &str = "/lib/bedplate/preload.so";

/// Whether this runs in a virtual machine, where the engine is the one of ring 0.
pub fn in_guest() -> bool {
    std::env::var_os(bedplate_vm::MARK).is_some()
}

/// The library, built as this test was.
pub fn library() -> PathBuf {
    if in_guest() {
        return IN_GUEST.into();
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--locked", "--quiet", "-p", "bedplate-snapshot-preload"]);
    assert!(command.status().unwrap().success());
    // This test is target/PROFILE/deps/NAME.
    let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    folder.join("libbedplate_snapshot_preload.so")
}
