//! The common parts of the tests of the `ring0` engine: a check for real ring 0, and memories.

#![allow(dead_code)]

use std::sync::atomic::AtomicU64;

use bedplate_snapshot::{Choice, Kind, Memory};

/// Set in the virtual machine that runs the tests, and by users whose own machine has real ring 0.
pub const ENABLED: &str = "BEDPLATE_VM";

/// Bytes of a page.
pub const PAGE: usize = bedplate_snapshot::PAGE;

/// Whether guest code may run here. Prints the reason if not.
pub fn enabled() -> bool {
    let enabled = std::env::var_os(ENABLED).is_some();
    if !enabled {
        eprintln!(
            "skipped: needs ring 0 of a real processor, or of the test machine; set {ENABLED}=1 where there is one"
        );
    }
    enabled
}

/// A memory of `pages` pages, with `ahead` snapshots prepared in advance.
pub fn memory(pages: usize, ahead: usize) -> Memory {
    let builder = Memory::builder(pages * PAGE).engine(Choice::Only(Kind::Ring0)).ahead(ahead);
    builder.build().expect("ring 0 can be had")
}

/// The first word of a page.
pub fn word(memory: &Memory, page: usize) -> &AtomicU64 {
    &memory.words()[page * PAGE / 8]
}

/// Leaves the test if there is no ring 0.
#[macro_export]
macro_rules! ring0_or_skip {
    () => {
        if !ring0_common::enabled() {
            return;
        }
    };
}
