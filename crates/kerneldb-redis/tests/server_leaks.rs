//! A server leaves nothing behind in the kernel.

mod common;
mod server;

use std::collections::BTreeSet;

use common::can_run;
use libbpf_rs::libbpf_sys;
use libbpf_rs::query::LinkInfoIter;
use server::{config, eventually, start};

/// Numbers of the maps and programs that this process has open, as `map 7`.
fn ours() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for fd in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let info = std::fs::read_to_string(fd.path()).unwrap_or_default();
        for line in info.lines() {
            for (field, kind) in [("map_id:", "map"), ("prog_id:", "program")] {
                if let Some(id) = line.strip_prefix(field) {
                    found.insert(format!("{kind} {}", id.trim()));
                }
            }
        }
    }
    found
}

/// All maps and programs of the kernel, by number only. An iterator over their descriptions would open them. The kernel
/// leaks a program array that is opened and closed while it is being freed.
fn all() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let kinds: [(&str, unsafe extern "C" fn(u32, *mut u32) -> i32); 2] =
        [("map", libbpf_sys::bpf_map_get_next_id), ("program", libbpf_sys::bpf_prog_get_next_id)];
    for (kind, next) in kinds {
        let mut id = 0;
        // SAFETY: the function stores the number of the next one behind `id`.
        while unsafe { next(id, &mut id) } == 0 {
            found.insert(format!("{kind} {id}"));
        }
    }
    found
}

fn open_sockets() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter(|fd| {
            std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
        })
        .count()
}

/// The only test of this file: it looks at everything that its process has open.
#[test]
fn nothing_is_left_behind() {
    if !can_run() {
        return;
    }
    let sockets = open_sockets();
    let links = LinkInfoIter::default().count();
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let running = start(config());
        let mut c = running.client();
        c.ask("SET k v", "+OK");
        seen.extend(ours());
        running.server.reload().unwrap();
        c.ask("GET k", "$1\r\nv");
        c.ask("INCR n", ":1");
        seen.extend(ours());
        // The connection is still open.
        running.server.shutdown().unwrap();
        assert_eq!(c.rest(), b"");
    }
    assert!(seen.iter().filter(|s| s.starts_with("map")).count() >= 30, "{seen:?}");
    assert!(seen.iter().filter(|s| s.starts_with("program")).count() >= 12, "{seen:?}");
    eventually("the kernel has freed everything", || all().is_disjoint(&seen));
    assert_eq!(open_sockets(), sockets);
    assert!(LinkInfoIter::default().count() <= links);
}
