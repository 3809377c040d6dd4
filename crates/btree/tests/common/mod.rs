//! Pools for tests, of which most are far too small for what is put into them.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::Path;

use bedplate_bufpool::{Choice, Kind, PAGE, Pool};
use tempfile::TempDir;

/// Opens the pool in `directory` with that many pages in memory.
pub fn open(directory: &Path, pages: usize) -> Pool {
    open_with(directory, pages, engine())
}

/// The engine that the pool chooses here; in a virtual machine, where there is a ring 0, the one that needs it.
pub fn engine() -> Choice {
    match std::env::var_os(bedplate_vm::MARK) {
        Some(_) => Choice::Only(Kind::Ring0),
        None => Choice::Auto,
    }
}

/// The same with a certain engine.
pub fn open_with(directory: &Path, pages: usize, engine: Choice) -> Pool {
    let builder = Pool::builder(directory.join("pool")).memory(pages * PAGE).capacity(256 << 20);
    builder.engine(engine).open().expect("the pool opens")
}

/// A new pool, which goes away with the directory.
pub fn pool(pages: usize) -> (TempDir, Pool) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pool = open(directory.path(), pages);
    (directory, pool)
}

/// A number that looks random, for each number another one.
pub fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
