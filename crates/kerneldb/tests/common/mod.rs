//! Functions that the tests on a real kernel share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod calls;

use bedplate_kerneldb::{Config, Database, EngineKind};

/// Whether eBPF programs can be loaded here; if not, prints the reason once per test.
pub fn can_run() -> bool {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: loading eBPF programs needs root");
        return false;
    }
    true
}

/// Whether this kernel supports the arena engine; the hash-map engine runs on older kernels, too.
pub fn has_arenas() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    if version < (6, 14) {
        println!("not with arenas: Linux {}", release.trim());
    }
    version >= (6, 14)
}

/// A small database.
pub fn small() -> Config {
    Config { memory_bytes: 64 << 20, max_sessions: 64, ..Config::default() }
}

/// A small database of the hash-map engine.
pub fn hash_maps() -> Config {
    Config { engine: EngineKind::HashMap, ..small() }
}

/// Configurations that this kernel supports. Every operator has to behave the same on all of them.
pub fn variants() -> Vec<(&'static str, Database)> {
    [
        ("default", small()),
        ("single version", Config { versions: 1, ..small() }),
        ("eight versions", Config { versions: 8, ..small() }),
        ("log", Config { wal_ring_bytes: 1 << 20, ..small() }),
        (
            "three partitions",
            Config { partitions: 3, memory_bytes: 96 << 20, wal_ring_bytes: 1 << 20, ..small() },
        ),
        ("hash maps", hash_maps()),
        ("hash maps, single version", Config { versions: 1, ..hash_maps() }),
        ("hash maps, eight versions, log", Config { versions: 8, wal_ring_bytes: 1 << 20, ..hash_maps() }),
    ]
    .into_iter()
    .filter(|(_, config)| config.engine == EngineKind::HashMap || has_arenas())
    .map(|(name, config)| (name, Database::create(config).unwrap_or_else(|e| panic!("{name}: {e}"))))
    .collect()
}
