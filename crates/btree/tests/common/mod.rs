//! Pools for tests. Most are far too small for their content.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::Path;

use bedplate_bufpool::{Choice, PageSize, Pool};
use tempfile::TempDir;

/// Opens the pool in `directory` with this number of frames.
pub fn open(directory: &Path, pages: usize) -> Pool {
    open_with(directory, pages, engine())
}

/// Whether this runs in a virtual machine, which has a ring 0.
pub fn in_guest() -> bool {
    std::env::var_os(bedplate_vm::MARK).is_some()
}

/// Reduces the number of repetitions of a test, because a software processor is some hundred times slower.
pub fn scaled(natively: usize) -> usize {
    if in_guest() { natively / 12 } else { natively }
}

/// The engine that the pool chooses here. In a virtual machine, which has a ring 0, the engine that needs it.
#[cfg(feature = "ring0")]
pub fn engine() -> Choice {
    if in_guest() { Choice::Only(bedplate_bufpool::Kind::Ring0) } else { Choice::Auto }
}

/// The engine that the pool chooses here. In a virtual machine, these tests must run with the engine in ring 0.
#[cfg(not(feature = "ring0"))]
pub fn engine() -> Choice {
    assert!(!in_guest(), "build the tests with the feature `ring0` to run them in a virtual machine");
    Choice::Auto
}

/// The same with a certain engine.
pub fn open_with(directory: &Path, pages: usize, engine: Choice) -> Pool {
    let builder =
        Pool::builder(directory.join("pool")).memory(pages * PageSize::MIN.bytes()).capacity(256 << 20);
    builder.engine(engine).open().expect("the pool opens")
}

/// The page sizes of tests that run with several: the smallest, the largest, and one between them. In a virtual machine, only the
/// first, because the engine there has no other.
pub fn page_sizes() -> Vec<PageSize> {
    let sizes = [4096, 16384, 65536].into_iter().take(if in_guest() { 1 } else { 3 });
    sizes.map(|bytes| PageSize::new(bytes).expect("a page size")).collect()
}

/// Opens or creates the pool in `directory` with this number of frames of this size.
pub fn open_sized(directory: &Path, pages: usize, size: PageSize) -> Pool {
    let builder = Pool::builder(directory.join("pool")).memory(pages * size.bytes()).capacity(1 << 30);
    builder.page_size(size.bytes()).engine(engine()).open().expect("the pool opens")
}

/// A new pool, which is removed with the directory.
pub fn pool(pages: usize) -> (TempDir, Pool) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pool = open(directory.path(), pages);
    (directory, pool)
}

/// A pseudo-random number, different for each argument.
pub fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
