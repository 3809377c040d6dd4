//! The resources that a server's process holds, and those that are left when it has ended.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys;

/// The size of a running server.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// Anonymous resident memory of the process in bytes: its heap and stacks.
    pub resident: u64,
    /// Resident memory of its other mappings in bytes: the database's memory that was ever used, rings, and files.
    pub mapped: u64,
    /// Memory of the database in bytes (INFO's used_memory).
    pub used: u64,
    pub descriptors: usize,
    pub threads: usize,
}

impl Footprint {
    /// Measures a process; `used` is the server's own figure.
    pub fn of(process: u32, used: u64) -> Footprint {
        let entries = |folder| std::fs::read_dir(format!("/proc/{process}/{folder}")).unwrap().count();
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let bytes = |field: &str| {
            let figure = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
            figure.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
        };
        Footprint {
            resident: bytes("RssAnon"),
            mapped: bytes("RssFile") + bytes("RssShmem"),
            used,
            descriptors: entries("fd"),
            threads: entries("task"),
        }
    }
}

/// The kernel's objects that a process has open, as "map 7".
pub fn kernel_objects(process: u32) -> BTreeSet<String> {
    kernel_objects_where(process, |_| true)
}

/// Those of them whose description in `/proc/PID/fdinfo` is as wanted.
pub fn kernel_objects_where(process: u32, is_wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for descriptor in std::fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap().flatten() {
        let info = std::fs::read_to_string(descriptor.path()).unwrap_or_default();
        if !is_wanted(&info) {
            continue;
        }
        for line in info.lines() {
            for (field, kind) in [("map_id:", "map"), ("prog_id:", "program"), ("link_id:", "link")] {
                if let Some(id) = line.strip_prefix(field) {
                    found.insert(format!("{kind} {}", id.trim()));
                }
            }
        }
    }
    found
}

/// All maps, programs and links of the kernel. This must not open them, because the kernel leaks a program array that is
/// opened while it is being freed.
fn all_kernel_objects() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let kinds: [(&str, unsafe extern "C" fn(u32, *mut u32) -> i32); 3] = [
        ("map", libbpf_sys::bpf_map_get_next_id),
        ("program", libbpf_sys::bpf_prog_get_next_id),
        ("link", libbpf_sys::bpf_link_get_next_id),
    ];
    for (kind, next) in kinds {
        let mut id = 0;
        // SAFETY: the function only stores the number of the next object in `id`.
        while unsafe { next(id, &mut id) } == 0 {
            found.insert(format!("{kind} {id}"));
        }
    }
    found
}

/// Whether the kernel still has one of these objects.
#[allow(dead_code, reason = "one of the two tests uses it")]
pub fn exist(objects: &[&String]) -> bool {
    let all = all_kernel_objects();
    objects.iter().any(|object| all.contains(*object))
}

/// Whether a socket of this machine listens on a port.
fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().and_then(|address| address.rsplit(':').next());
            let state = fields.nth(1);
            local == Some(&format!("{port:04X}")) && state == Some(LISTEN)
        })
    })
}

/// Waits until nothing is left of a server that has ended. Returns the remains.
pub fn remains(process: u32, port: u16, objects: &BTreeSet<String>) -> Vec<String> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let started = Instant::now();
    loop {
        let mut left: Vec<_> = all_kernel_objects().intersection(objects).cloned().collect();
        if listens(port) {
            left.push(format!("a socket that listens on port {port}"));
        }
        if std::path::Path::new(&format!("/proc/{process}")).exists() {
            left.push(format!("process {process}"));
        }
        if left.is_empty() || started.elapsed() > PATIENCE {
            return left;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
