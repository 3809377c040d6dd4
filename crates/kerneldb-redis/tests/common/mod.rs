//! Helpers that the tests on a real kernel share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use bedplate_kerneldb::Config;

/// Whether eBPF programs can be loaded here; if not, prints the reason, once per test.
pub fn can_run() -> bool {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: loading eBPF programs needs root");
        return false;
    }
    true
}

/// A small database.
pub fn small() -> Config {
    Config { memory_bytes: 64 << 20, max_sessions: 64, ..Config::default() }
}

/// Whether cgroup2 is mounted, which the local fast path needs.
pub fn has_cgroup2() -> bool {
    std::fs::read_to_string("/proc/self/mounts").unwrap().contains(" cgroup2 ")
}
