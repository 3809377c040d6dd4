//! Statistics: on a page for other processes while this one runs, and in a file when it ends.

use std::fs::File;
use std::io::Write;

use bedplate_snapshot::statistics::page::Page;

use crate::settings::settings;
use crate::{arenas, forks, provider};

/// Writes the statistics when the process ends by `exit` or by returning from `main`.
pub fn at_exit() {
    if settings().statistics.is_some() {
        // SAFETY: a function without preconditions, for the end of the process.
        unsafe { libc::atexit(write) };
    }
}

/// Publishes the reason why this process runs without snapshots.
pub fn publish_reason(why: &dyn std::fmt::Display) {
    // The page exists as long as the process. Without memory or descriptors for a page, there is none.
    std::mem::forget(Page::new(None, &why.to_string()));
}

/// The counts of children that run in ring 0.
#[cfg(target_arch = "x86_64")]
fn in_children() -> String {
    let Some(arena) = arenas::in_ring0() else { return String::new() };
    let of = arena.children();
    format!(" children={} child_pages={} child_pages_let_go={}", of.children, of.pages_used, of.pages_let_go)
}

#[cfg(not(target_arch = "x86_64"))]
fn in_children() -> String {
    String::new()
}

extern "C" fn write() {
    let path = &settings().statistics;
    let (Some(arena), Some(path), false) = (arenas::arena(), path, forks::is_snapshot()) else { return };
    let of = arena.statistics();
    let counts = [
        ("snapshots", of.snapshots),
        ("active", of.active),
        ("instantaneous", of.instantaneous),
        ("incomplete", of.incomplete),
        ("faults", of.faults),
        ("pages_copied", of.pages_copied),
        ("pages_private", of.pages_private),
        ("pages_unarmed", of.pages_unarmed),
        ("pages_armed_at_snapshots", of.pages_armed_at_snapshots),
        ("pages_armed_ahead", of.pages_armed_ahead),
        ("extra_bytes", of.extra_bytes),
        ("longest_pause_ns", of.longest_pause_ns),
        ("latest_pause_ns", of.latest_pause_ns),
    ];
    let counts: String = counts.map(|(name, count)| format!(" {name}={count}")).concat();
    let more = in_children();
    let malloc = if provider::is_bundled() { "bundled" } else { "own" };
    let text = format!("pid={} engine={} malloc={malloc}{counts}{more}\n", std::process::id(), arena.kind());
    // At the end of a process, an error cannot be reported.
    if let Ok(mut file) = File::options().append(true).create(true).open(path) {
        let _ = file.write_all(text.as_bytes());
    }
}
