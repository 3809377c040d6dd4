//! A program's reads return the same with and without the library. The C program has a scenario for each way of reading
//! (`program/`).

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Setup, build_program};

/// Bytes of the file that programs read.
const BYTES: u64 = (48 << 20) + 1234;

/// Bytes of the file that several threads read. The kernel's read-ahead for all of them must leave some of it.
const BYTES_OF_THREADS: u64 = 192 << 20;

/// Runs a scenario without the library, to show that the scenario is right, and with it. `is_served` says whether the library
/// serves reads in it, if that does not depend on timing.
fn run(scenario: &str, is_served: Option<bool>) {
    let Some(setup) = Setup::new() else { return };
    let program = build_program(setup.folder.path(), "program");
    for with_library in [false, true] {
        let bytes = if scenario == "threads" { BYTES_OF_THREADS } else { BYTES };
        let file = setup.file(if with_library { "served" } else { "plain" }, bytes);
        let mut command = if with_library { setup.command(&program) } else { Command::new(&program) };
        let output = command.arg(scenario).arg(&file).stdin(Stdio::null()).output().unwrap();
        let text = format!("{scenario}, with the library: {with_library}: {output:?}");
        assert!(output.status.success() && output.stdout == b"as it is\n", "{text}");
        assert!(output.stderr.is_empty(), "{text}");
    }
    let statistics = setup.statistics();
    let served = statistics.get("reads_served").copied().unwrap_or(0);
    assert_eq!(served > 0, is_served.unwrap_or(served > 0), "{scenario}: {statistics:?}");
}

macro_rules! scenarios {
    ($($name:ident: $is_served:expr),+ $(,)?) => {$(
        #[test]
        fn $name() {
            run(stringify!($name), $is_served);
        }
    )+};
}

scenarios! {
    reads: Some(true),
    preads_of_any_size: Some(true),
    vectors: Some(true),
    vectors_with_flags: Some(true),
    large_reads_anywhere: Some(true),
    jumps: Some(true),
    short_reads_after_a_scan: Some(true),
    threads: Some(true),
    duplicates: Some(true),
    modes: Some(true),
    forks: Some(true),
    signals: Some(true),
    forks_in_handlers: Some(true),
    forks_in_reads: Some(true),
    connections_are_closed: Some(true),
    // A thread that jumps out of the library is no longer served, and prints no statistics.
    jumps_out_of_reads: None,
    cancelled_threads: Some(true),
    bad_buffers: Some(true),
    cancelled_where_served: Some(true),
    vfork_and_close: Some(true),
    bare_forks: Some(true),
    leased: Some(false),
    few_addresses: Some(false),
    // It prints no statistics.
    strict_filter: None,
    lowest_numbers: Some(true),
    closes_all: Some(true),
    few_descriptors: None,
    overwritten: Some(true),
    stored_by_a_mapping: Some(true),
    time_set_back: Some(true),
    punched: Some(true),
    cut_and_grown: Some(true),
    replaced: Some(true),
    other_files: Some(false),
}

/// Unmodified programs print the same with the library.
#[test]
fn programs_print_the_same() {
    let Some(setup) = Setup::new() else { return };
    let script = "import sys, hashlib, mmap, os\n\
        f = open(sys.argv[1], 'rb')\n\
        h = hashlib.blake2b()\n\
        [h.update(part) for part in iter(lambda: f.read(100000), b'')]\n\
        f.seek(-10, os.SEEK_END)\n\
        print(h.hexdigest(), f.read(), f.tell())\n";
    let commands: [&[&str]; 6] = [
        &["wc", "-c", "-l"],
        &["grep", "-c", "--text", "abc"],
        &["dd", "bs=8k", "status=none", "conv=swab", "if="],
        &["cat"],
        &["sha256sum"],
        &["/usr/bin/python3", "-c", script],
    ];
    for words in commands {
        let outputs = [false, true].map(|with_library| {
            let file = setup.file("file", BYTES);
            let program = Path::new(words[0]);
            let mut command = if with_library { setup.command(program) } else { Command::new(program) };
            match words.last() {
                Some(&"if=") => {
                    command.args(&words[1..words.len() - 1]).arg(format!("if={}", file.display()))
                }
                _ => command.args(&words[1..]).arg(&file),
            };
            command.output().unwrap()
        });
        assert!(outputs[0].status.success(), "{words:?}: {:?}", outputs[0].stderr);
        assert!(outputs[0] == outputs[1], "{words:?}");
    }
    // `sha256sum` reads with the C library's buffers, which the library does not see.
    let text = std::fs::read_to_string(setup.folder.path().join("statistics")).unwrap();
    for program in ["wc", "grep", "dd", "cat", "python3"] {
        let line =
            text.lines().find(|line| line.contains(&format!("program={program}"))).unwrap_or_else(|| {
                panic!("{program} was not served: {text}");
            });
        assert!(!line.contains("reads_served=0 "), "{line}");
    }
}
