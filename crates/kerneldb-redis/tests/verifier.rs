//! The number of instructions that the kernel's verifier looks at before it takes a program. It refuses a program of which it looks
//! at more than a million.
//!
//! `tests/verifier` has the numbers of some kernels and compilers. A number that is not the recorded one any more is no defect, but
//! it must not grow unseen: the test prints the new record, which then replaces the old one.

mod common;
mod server;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use bedplate_kerneldb::{Config, EngineKind};
use bedplate_kerneldb_redis::server::ServerConfig;
use common::{can_run, has_cgroup2, small};
use libbpf_rs::query::ProgInfoIter;
use server::{config, start_with};

/// The records: the first two numbers of a kernel's version, the first number of the version of clang, and the numbers.
const RECORDS: [(&str, &str, &str); 5] = [
    ("6.1", "19", include_str!("verifier/linux-6.1-clang-19.txt")),
    ("6.12", "19", include_str!("verifier/linux-6.12-clang-19.txt")),
    ("6.18", "19", include_str!("verifier/linux-6.18-clang-19.txt")),
    ("6.18", "21", include_str!("verifier/linux-6.18-clang-21.txt")),
    ("7.3", "19", include_str!("verifier/linux-7.3-clang-19.txt")),
];

/// The index of the record with which kernels and compilers without a record are compared.
const DEVELOPED_ON: usize = 2;

/// The first number of the version of the compiler that compiled the programs.
const CLANG: &str = env!("BEDPLATE_CLANG_VERSION");

/// What a number may differ from its record, in percent: minor versions of a kernel and of the compiler differ, too.
const TOLERANCE: u32 = 10;

/// What a number may be larger than the record of another kernel or compiler, in percent.
const TOLERANCE_OF_OTHERS: u32 = 50;

/// The most instructions that a program may take: half of what a kernel allows.
const INSTRUCTIONS_MAX: u32 = 500_000;

/// Databases whose programs differ.
fn databases() -> Vec<(&'static str, Config)> {
    let small = || Config { max_sessions: 256, ..small() };
    let hash_maps = || Config { engine: EngineKind::HashMap, ..small() };
    let log = 1 << 20;
    let mut all = vec![
        ("hash maps", hash_maps()),
        ("hash maps, single version", Config { versions: 1, ..hash_maps() }),
        ("hash maps, eight versions, log", Config { versions: 8, wal_ring_bytes: log, ..hash_maps() }),
    ];
    if EngineKind::of_this_kernel().unwrap() == EngineKind::Arena {
        all.extend([
            ("arenas", small()),
            ("arenas, eight versions, log", Config { versions: 8, wal_ring_bytes: log, ..small() }),
        ]);
    }
    all
}

/// The programs that this process has loaded: their names, of which the kernel keeps 15 characters, with the number of
/// instructions. Of programs with one name it is the largest.
fn programs() -> BTreeMap<String, u32> {
    let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    // A descriptor of another thread may have been closed meanwhile.
    let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let ids: Vec<u32> = texts
        .filter_map(|text| text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok()))
        .collect();
    let mut found = BTreeMap::new();
    for program in ProgInfoIter::default().filter(|program| ids.contains(&program.id)) {
        let name = program.name.to_string_lossy().into_owned();
        let most = found.entry(name).or_insert(0);
        *most = program.verified_insns.max(*most);
    }
    found
}

/// A line for each program: the database, a tabulator, the program, a tabulator, the number.
fn measured() -> String {
    let mut text = String::new();
    for (database, options) in databases() {
        let local_fast_path = options.engine == EngineKind::Arena && has_cgroup2();
        let running = start_with(options, ServerConfig { local_fast_path, ..config() });
        for (program, instructions) in programs() {
            writeln!(text, "{database}\t{program}\t{instructions}").unwrap();
        }
        running.finish();
    }
    text
}

/// The numbers of a record by database and program.
fn numbers(record: &str) -> BTreeMap<(&str, &str), u32> {
    let parts = |line| -> Option<_> {
        let mut parts = str::split(line, '\t');
        Some(((parts.next()?, parts.next()?), parts.next()?.parse().ok()?))
    };
    record
        .lines()
        .map(|line| parts(line).unwrap_or_else(|| panic!("no line of a record: {line:?}")))
        .collect()
}

#[test]
fn the_verifiers_work_is_as_recorded() {
    if !can_run() {
        return;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version = release.trim().split('.').take(2).collect::<Vec<_>>().join(".");
    let new = measured();
    let now = numbers(&new);
    assert!(now.len() > 10, "{now:?}");
    let most = now.values().max().unwrap();
    assert!(*most < INSTRUCTIONS_MAX, "the largest program takes {most} instructions");
    let record = RECORDS.into_iter().find(|(kernel, clang, _)| *kernel == version && *clang == CLANG);
    let before = numbers(record.unwrap_or(RECORDS[DEVELOPED_ON]).2);
    let as_recorded = |key: &(&str, &str)| match (before.get(key), now.get(key), record) {
        // The programs of local clients are loaded where there are control groups, and those in arenas from Linux 6.14 on.
        (Some(_), None, _) => (key.1.starts_with("srv_local") && !has_cgroup2()) || record.is_none(),
        (Some(&before), Some(&now), Some(_)) => before.abs_diff(now) <= before * TOLERANCE / 100,
        (Some(&before), Some(&now), None) => now <= before + before * TOLERANCE_OF_OTHERS / 100,
        (None, ..) => false,
    };
    let differ: Vec<String> = before
        .keys()
        .chain(now.keys())
        .filter(|key| !as_recorded(key))
        .map(|key| format!("{key:?}: {:?}, recorded {:?}", now.get(key), before.get(key)))
        .collect();
    assert!(
        differ.is_empty(),
        "{}\nIf that is meant, write to tests/verifier/linux-{version}-clang-{CLANG}.txt:\n{new}",
        differ.join("\n")
    );
}
