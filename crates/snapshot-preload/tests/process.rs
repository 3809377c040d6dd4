//! A process under the library does everything that any process may do: it has many children, locks its memory, dumps core, runs
//! under limits, and its memory is counted once.

mod common;

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use common::program::{Program, succeeds};

#[test]
fn more_children_live_than_there_could_be_snapshots() {
    let program = Program::new("process.c", &[]);
    succeeds(&program.command("remap", "", "children").output().unwrap());
    assert!(program.had_instant_snapshots());
}

#[test]
fn memory_is_locked_as_far_as_it_is_used() {
    let program = Program::new("process.c", &[]);
    succeeds(&program.command("remap", "", "locked").output().unwrap());
}

#[test]
fn memory_is_resident_once() {
    let program = Program::new("process.c", &[]);
    succeeds(&program.command("remap", "", "resident").output().unwrap());
    assert!(program.had_instant_snapshots());
}

#[test]
fn a_core_dump_has_what_is_used() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.trim() != "core" {
        println!("skipped: core dumps go to {:?}, not to the folder", pattern.trim());
        return;
    }
    for engine in ["remap", "uffd"] {
        let program = Program::new("process.c", &[]);
        let output = program.command(engine, "ulimit -c unlimited", "dump").output().unwrap();
        assert!(output.status.core_dumped(), "{engine}: {output:?}");
        let core = std::fs::read_dir(program.folder())
            .unwrap()
            .map(|entry| entry.unwrap())
            .find(|entry| entry.file_name().to_string_lossy().starts_with("core"));
        let core = core.expect("a core dump").metadata().unwrap();
        let mib = |bytes: u64| bytes >> 20;
        // This is the memory that the program has used, and the region's own data.
        assert!((32..200).contains(&mib(core.blocks() * 512)), "{engine}: {} MiB", mib(core.blocks() * 512));
        assert!(mib(core.size()) < 400, "{engine}: {} MiB with holes", mib(core.size()));
    }
}

#[test]
fn memory_that_is_given_back_beside_a_child_is_free() {
    let program = Program::new("process.c", &[]);
    succeeds(&program.command("remap", "", "discards").output().unwrap());
    assert!(program.had_instant_snapshots());
}

#[test]
fn memory_of_which_a_part_is_locked_is_given_back_and_shared_again() {
    let program = Program::new("process.c", &[]);
    succeeds(&program.command("remap", "", "locked_part").output().unwrap());
}

#[test]
fn a_mapping_with_a_hole_is_replaced() {
    let program = Program::new("process.c", &[]);
    for engine in ["remap", "uffd"] {
        succeeds(&program.command(engine, "", "fixed").output().unwrap());
    }
}

#[test]
fn a_child_of_vfork_gives_the_owners_memory_back() {
    let program = Program::new("process.c", &[]);
    for engine in ["remap", "uffd"] {
        succeeds(&program.command(engine, "", "vforks").output().unwrap());
    }
}

#[test]
fn a_mapping_is_replaced_beside_a_thread_that_maps() {
    let program = Program::new("process.c", &[]);
    for engine in ["remap", "uffd"] {
        succeeds(&program.command(engine, "", "replaced").output().unwrap());
    }
}

#[test]
fn a_child_that_is_forked_beside_writers_gets_few_page_tables() {
    let program = Program::new("process.c", &[]);
    succeeds(&program.command("remap", "", "writers").output().unwrap());
}

#[test]
fn a_child_that_becomes_another_program_is_left_alone() {
    let program = Program::new("process.c", &[]);
    for engine in ["remap", "uffd"] {
        succeeds(&program.command(engine, "", "programs").output().unwrap());
    }
}

#[test]
fn memory_that_had_other_rights_can_be_used_again() {
    let program = Program::new("process.c", &[]);
    for engine in ["remap", "uffd"] {
        succeeds(&program.command(engine, "", "rights").output().unwrap());
    }
}

#[test]
fn code_needs_an_engine_whose_parts_have_rights() {
    let program = Program::new("process.c", &[]);
    for (engine, refuses) in [("remap", true), ("uffd", false)] {
        let output = program.command(engine, "", "code").output().unwrap();
        succeeds(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.contains("--engine uffd"), refuses, "{engine}: {said}");
    }
}

/// A limit on the size of files also applies to memory files.
#[test]
fn a_program_with_a_limit_on_files_runs_without_snapshots() {
    let program = Program::new("process.c", &[]);
    for engine in ["remap", "uffd"] {
        let output = program.command(engine, "ulimit -f 1024", "children").output().unwrap();
        succeeds(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("ulimit -f") && said.lines().count() == 1, "{engine}: {said}");
    }
}

/// A user who may open the device needs no capability.
#[test]
fn an_ordinary_user_has_snapshots() {
    // The test has its own device, which every user may open, in place of the machine's.
    const OPEN_TO_ALL: &str = r#"
        set -e
        mkdir "$FOLDER/dev"
        mount -t tmpfs none "$FOLDER/dev"
        mknod "$FOLDER/dev/userfaultfd" c $(cut -d: -f1 /sys/class/misc/userfaultfd/dev) $(cut -d: -f2 /sys/class/misc/userfaultfd/dev)
        chmod 666 "$FOLDER/dev/userfaultfd"
        mount --bind "$FOLDER/dev/userfaultfd" /dev/userfaultfd
    "#;
    let program = Program::new("process.c", &[]);
    let as_nobody =
        "AS='setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all'";
    let mut command = Command::new("unshare");
    let inner = program.command("remap", &format!("{OPEN_TO_ALL}\n{as_nobody}"), "children");
    command.arg("--mount").arg(inner.get_program()).args(inner.get_args());
    command
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(program.folder());
    let output = command.output().unwrap();
    if !output.status.success() && !Path::new("/sys/class/misc/userfaultfd/dev").exists() {
        println!("skipped: this kernel has no /dev/userfaultfd");
        return;
    }
    succeeds(&output);
    assert!(program.had_instant_snapshots(), "{output:?}");
}
