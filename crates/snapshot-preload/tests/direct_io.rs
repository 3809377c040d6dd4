//! Devices write into the memory of a program that forks. Their data is never lost.

mod common;

use common::Engine;
use common::program::{Program, succeeds};

/// The program's exit status if the machine lacks something that it needs.
const SKIPPED: i32 = 77;

fn program() -> Program {
    Program::new("direct.c", &["-l:liburing.so.2"])
}

/// Runs the program in a folder that allows direct reads. Returns its output, or none if it was skipped.
fn run(program: &Program, engine: Engine, what: &str) -> Option<String> {
    let output = program.command(engine, "", what).output().unwrap();
    if output.status.code() == Some(SKIPPED) {
        println!("skipped: {what}: {}", String::from_utf8_lossy(&output.stdout).trim());
        return None;
    }
    succeeds(&output);
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Checks that with `remap`, its forks were ordinary ones, and that one line said so.
fn forks_as_usual(what: &str) {
    let program = program();
    let Some(said) = run(&program, "remap", what) else { return };
    assert!(!program.had_instant_snapshots());
    assert!(said.contains("O_DIRECT") && said.lines().count() == 1, "{said}");
}

#[test]
fn what_a_ring_reads_beside_forks_is_not_lost() {
    forks_as_usual("ring");
    for engine in ["remap", "uffd"] {
        for what in ["ring", "late_ring", "bare_ring"] {
            run(&program(), engine, what);
        }
    }
}

#[test]
fn rings_are_noticed_however_they_are_set_up() {
    forks_as_usual("bare_ring");
    forks_as_usual("library");
}

#[test]
fn files_are_noticed_however_they_are_opened() {
    for what in ["open", "openat", "syscall", "fcntl"] {
        forks_as_usual(what);
    }
}

#[test]
fn direct_writes_leave_snapshots_as_they_are() {
    let program = program();
    if run(&program, "remap", "writes").is_some() {
        assert!(program.had_instant_snapshots());
    }
}

#[test]
fn a_child_without_handlers_changes_nothing() {
    let program = program();
    if run(&program, "remap", "bare_child").is_some() {
        assert!(program.had_instant_snapshots());
    }
}

#[test]
fn memory_that_stays_in_place_is_resident_once() {
    run(&program(), "remap", "memory");
}
