//! The number of instructions that the kernel's verifier looks at before it takes a program. It refuses a program of which it looks
//! at more than a million.
//!
//! `tests/verifier` has the numbers of some kernels and compilers. A number that is not the recorded one any more is no defect, but
//! it must not grow unseen: the test prints the new record, which then replaces the old one.
//!
//! The programs are also compiled by a newer compiler than the one of this build, if there is one. Servers on those programs then have
//! conversations, too.

mod calls;
mod common;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use bedplate_kerneldb::sdk::{self, Target};
use bedplate_kerneldb::testing::with_objects;
use bedplate_kerneldb::{ACCOUNTS, Config, EngineKind};
use bedplate_kerneldb_redis::server::ServerConfig;
use common::{can_run, has_cgroup2, small};
use libbpf_rs::query::ProgInfoIter;
use server::traffic::{mixed_pipelines, split_everywhere};
use server::{Running, config, start_with};

/// The records: the first two numbers of a kernel's version, the first number of the version of clang, and the numbers.
const RECORDS: [(&str, &str, &str); 5] = [
    ("6.1", "19", include_str!("verifier/linux-6.1-clang-19.txt")),
    ("6.12", "19", include_str!("verifier/linux-6.12-clang-19.txt")),
    ("6.18", "19", include_str!("verifier/linux-6.18-clang-19.txt")),
    ("6.18", "22", include_str!("verifier/linux-6.18-clang-22.txt")),
    ("7.3", "19", include_str!("verifier/linux-7.3-clang-19.txt")),
];

/// The kernel and the compiler with whose record those without a record are compared.
const DEVELOPED_ON: (&str, &str) = ("6.18", "19");

/// The first number of the version of the compiler that compiled the programs.
const CLANG: &str = env!("BEDPLATE_CLANG_VERSION");

/// A number may differ from its record by this many percent, because minor versions of kernels and compilers differ.
const TOLERANCE: u32 = 10;

/// A number may exceed the record of another kernel or compiler by this many percent.
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
/// instructions. If programs share a name, the largest number counts.
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

/// Calls `f` for a server on each database. If `compiler` is given, it has compiled the programs. Returns a line for each program: the database,
/// a tabulator, the program, a tabulator, the number.
fn measured(compiler: Option<&str>, f: impl Fn(&Running)) -> String {
    // One test after the other, because `programs` finds those of the whole process.
    static LOCK: Mutex<()> = Mutex::new(());
    let _lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text = String::new();
    let mut objects_of: Option<(EngineKind, Vec<_>)> = None;
    for (database, options) in databases() {
        let local_fast_path = options.engine == EngineKind::Arena && has_cgroup2();
        let server = ServerConfig { local_fast_path, ..config() };
        if let Some(compiler) = compiler
            && objects_of.as_ref().is_none_or(|(engine, _)| *engine != options.engine)
        {
            objects_of = Some((options.engine, objects(compiler, options.engine)));
        }
        let objects = objects_of.iter().flat_map(|(_, objects)| objects);
        let objects: Vec<_> = objects.map(|(name, object)| (*name, object.as_slice())).collect();
        let running = with_objects(&objects, || start_with(options, server));
        for (program, instructions) in programs() {
            writeln!(text, "{database}\t{program}\t{instructions}").unwrap();
        }
        f(&running);
        running.finish();
    }
    text
}

/// The newest compiler here, if it is newer than the one of this build, and its version.
fn newer_compiler() -> Option<(String, String)> {
    let runs =
        |clang: &str| Command::new(clang).arg("--version").output().is_ok_and(|done| done.status.success());
    let ours: u32 = CLANG.parse().unwrap();
    let newer = (ours + 1..30).rev().map(|version| (format!("clang-{version}"), version.to_string()));
    newer.into_iter().find(|(clang, _)| runs(clang))
}

/// Compiles a C file by a compiler; returns the object.
fn compiled(compiler: &str, target: Target, source: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    sdk::write_headers(folder.path()).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let ours = sdk::compiler(target, folder.path(), &source, "-".as_ref()).unwrap();
    let output = Command::new(compiler).args(ours.get_args()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The programs of a server, by the names of their objects.
fn objects(compiler: &str, engine: EngineKind) -> Vec<(&'static str, Vec<u8>)> {
    let operators = "../kerneldb/bpf/calls.bpf.c";
    match engine {
        EngineKind::Arena => vec![
            ("kdb_call", compiled(compiler, Target::Arena, operators)),
            ("kdb_server", compiled(compiler, Target::Arena, "bpf/server.bpf.c")),
            ("kdb_local_path", compiled(compiler, Target::Arena, "bpf/local.bpf.c")),
        ],
        EngineKind::HashMap => vec![("kdb_call", compiled(compiler, Target::HashMap, operators))],
    }
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

fn record_of(kernel: &str, clang: &str) -> Option<&'static str> {
    RECORDS.into_iter().find(|record| (record.0, record.1) == (kernel, clang)).map(|record| record.2)
}

#[test]
fn the_verifiers_work_is_as_recorded() {
    if !can_run() {
        return;
    }
    compare(CLANG, &measured(None, |_| ()));
}

#[test]
fn a_newer_compiler_makes_programs_that_work() {
    if !can_run() {
        return;
    }
    let Some((compiler, version)) = newer_compiler() else {
        println!("skipped: there is no compiler newer than clang-{CLANG}");
        return;
    };
    let measured = measured(Some(&compiler), |running| {
        // One database of each engine.
        if running.db.config().wal_ring_bytes == 0 {
            return;
        }
        split_everywhere(running, 3);
        mixed_pipelines(running);
        let procedures = match running.db.config().engine {
            EngineKind::Arena => {
                compiled(&compiler, Target::Arena, "../kerneldb/bpf/examples/accounts.bpf.c")
            }
            EngineKind::HashMap => ACCOUNTS.to_vec(),
        };
        running.db.load_library("accounts", &procedures, false).unwrap();
        calls::converse(&mut running.client());
        running.db.verify().unwrap();
    });
    compare(&version, &measured);
    if EngineKind::of_this_kernel().unwrap() != EngineKind::Arena {
        return;
    }
    // Objects for several partitions, and procedures that use all of them.
    let mut objects = objects(&compiler, EngineKind::Arena);
    let libraries = [("kdb_visit", "visitors"), ("accounts", "examples/accounts")];
    objects.extend(libraries.map(|(name, source)| {
        let target = if name == "kdb_visit" { Target::Arena } else { Target::Partitions };
        (name, compiled(&compiler, target, &format!("../kerneldb/bpf/{source}.bpf.c")))
    }));
    let objects: Vec<_> = objects.iter().map(|(name, object)| (*name, object.as_slice())).collect();
    let database = Config { partitions: 3, memory_bytes: 96 << 20, max_sessions: 256, ..small() };
    let running = with_objects(&objects, || {
        let running = start_with(database, config());
        running.db.load_library("accounts", ACCOUNTS, false).unwrap();
        running
    });
    mixed_pipelines(&running);
    calls::converse(&mut running.client());
    running.db.verify().unwrap();
    running.finish();
}

/// Compares new numbers with the record of this kernel and a version of the compiler.
fn compare(clang: &str, new: &str) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version = release.trim().split('.').take(2).collect::<Vec<_>>().join(".");
    let now = numbers(new);
    assert!(now.len() > 10, "{now:?}");
    let most = now.values().max().unwrap();
    assert!(*most < INSTRUCTIONS_MAX, "the largest program takes {most} instructions");
    let exact = record_of(&version, clang);
    let old = exact.or_else(|| record_of(DEVELOPED_ON.0, DEVELOPED_ON.1)).unwrap();
    let before = numbers(old);
    let is_as_recorded = |key: &(&str, &str)| match (before.get(key), now.get(key)) {
        (Some(&before), Some(&now)) if exact.is_some() => before.abs_diff(now) <= before * TOLERANCE / 100,
        (Some(&before), Some(&now)) => now <= before + before * TOLERANCE_OF_OTHERS / 100,
        // An older kernel has no arenas. The programs of local clients are loaded where there are control groups.
        (Some(_), None) => exact.is_none() || (key.1.starts_with("srv_local") && !has_cgroup2()),
        (None, _) => false,
    };
    let keys: BTreeSet<_> = before.keys().chain(now.keys()).collect();
    let differ: Vec<String> = keys
        .into_iter()
        .filter(|key| !is_as_recorded(key))
        .map(|key| format!("{key:?}: {:?}, recorded {:?}", now.get(key), before.get(key)))
        .collect();
    assert!(
        differ.is_empty(),
        "{}\nIf that is meant, write to tests/verifier/linux-{version}-clang-{clang}.txt:\n{new}",
        differ.join("\n")
    );
}
