//! The C interface from C and C++. The header is the one in the repository, and compiles as both. The examples work. A misuse by
//! a program is an error, not an access to memory.

use std::process::{Command, Output};

use bedplate_c_tests::{Interface, compile, text, under};
use bedplate_vm::{Captured, File, Job, Kernel, Machine, Series};

const C: Interface = bedplate_c_tests::interface!("snapshot", "gnu11");

/// The exit code of an example whose engine does not work here.
const UNAVAILABLE: i32 = 3;

/// Prints why something is skipped: the output of a program.
fn skipped(output: &Output) {
    let said = [&output.stdout[..], &output.stderr].concat();
    println!("skipped: {}", String::from_utf8_lossy(&said).trim());
}

#[test]
fn the_header_is_up_to_date() {
    C.check_header();
}

/// The manual lists exactly the contents of the header.
#[test]
fn the_manual_has_all_functions() {
    assert_eq!(C.check_manual(30), [""; 0]);
}

#[test]
fn the_header_is_cpp_too() {
    let source = "#include <bedplate/snapshot.h>\n\
                  int main() { bp_snapshot snapshot{}; bp_snapshot_memory memory{}; bp_snapshot_task task{};\n\
                  bp_snapshot_output output{};\n\
                  const size_t largest = BP_SNAPSHOT_LARGEST_ALIGNMENT; static_assert(largest == 2 << 20, \"\");\n\
                  auto work = [](void *, const bp_snapshot_view *, bp_snapshot_output) { return 0; };\n\
                  return bp_snapshot_create(nullptr, nullptr) != BP_SNAPSHOT_ERROR_NULL\n\
                      || bp_snapshot_take(memory, &snapshot) != BP_SNAPSHOT_ERROR_HANDLE\n\
                      || bp_snapshot_spawn(memory, work, nullptr, &task) != BP_SNAPSHOT_ERROR_HANDLE\n\
                      || bp_snapshot_write(output, nullptr, 0) != BP_SNAPSHOT_ERROR_HANDLE; }\n";
    C.check_cpp(source, &["c++11", "c++17"]);
}

/// A program needs only the C standard of 1999.
#[test]
fn the_header_is_strict_c() {
    let folder = C.folder();
    let source = folder.path().join("header.c");
    std::fs::write(&source, "#include <bedplate/snapshot.h>\nint main(void) { return 0; }\n").unwrap();
    let (include, output) = (format!("-I{}/include", C.folder), folder.path().join("header"));
    let (source, output) = (source.to_str().unwrap(), output.to_str().unwrap());
    compile("cc", &["-std=c99", "-pedantic-errors", &include, source, "-o", output]);
}

#[test]
fn a_table_is_saved_while_it_is_written() {
    let folder = C.folder();
    let save = C.program("examples/save.c", folder.path(), &[]);
    let output = C.run(Command::new(&save).arg(folder.path().join("accounts")));
    let said = text(&output);
    if said.contains("the fork engine does not work here") {
        skipped(&output);
        return;
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "saved 1000000 accounts, the sum is right\n", "{said}");
    assert!(output.status.success(), "{said}");
    let saved = std::fs::read(folder.path().join("accounts")).unwrap();
    assert_eq!(saved.len(), 8_000_000usize.next_multiple_of(4096));
    let output = C.run(&mut Command::new(save));
    assert!(!output.status.success() && text(&output).contains("usage"), "{}", text(&output));
}

#[test]
fn a_checkpoint_is_brought_up_to_date() {
    let folder = C.folder();
    let checkpoint = C.program("examples/checkpoint.c", folder.path(), &[]);
    let output = C.run(Command::new(checkpoint).arg(folder.path().join("file")));
    if output.status.code() == Some(UNAVAILABLE) {
        skipped(&output);
        return;
    }
    let expected = "checkpoint 0: all\ncheckpoint 1: a part\ncheckpoint 2: a part\ncheckpoint 3: a part\n\
                    the file is what the memory is\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn containers_of_cpp_are_read_in_a_child() {
    let folder = C.folder();
    let output = C.run(&mut Command::new(C.program("examples/heap.cpp", folder.path(), &[])));
    let expected = format!("a child saw {} characters\n", 1000 * (0..100).sum::<u32>());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
    assert!(output.status.success(), "{}", text(&output));
}

/// After installation, `pkg-config` has the flags to link with either library.
#[test]
fn the_static_library_is_complete() {
    let folder = C.folder();
    let output = Command::new(C.static_program("examples/heap.cpp", folder.path())).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// Runs a test in C with one engine.
fn test(name: &str, engine: &str, tool: &[&str]) {
    let folder = C.folder();
    let program = C.program(&format!("tests/{name}.c"), folder.path(), &[]);
    let mut command = under(tool, program);
    let output = C.run(command.arg(engine));
    if output.status.code() == Some(UNAVAILABLE) {
        skipped(&output);
        return;
    }
    assert!(output.status.success(), "{engine}: {}", text(&output));
}

const ENGINES: [&str; 4] = ["auto", "remap", "uffd", "fork"];

#[test]
fn misuse_is_an_error() {
    ENGINES.into_iter().for_each(|engine| test("misuse", engine, &[]));
}

#[test]
fn snapshots_are_read_by_threads_and_compared() {
    ENGINES.into_iter().for_each(|engine| test("snapshots", engine, &[]));
}

#[test]
fn tasks_return_what_they_found() {
    ENGINES.into_iter().for_each(|engine| test("tasks", engine, &[]));
}

#[test]
fn heaps_know_their_blocks() {
    ENGINES.into_iter().for_each(|engine| test("heap", engine, &[]));
}

#[test]
fn misuse_touches_no_memory_that_is_not_there() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    // The other engines need system calls that valgrind does not know.
    for name in ["misuse", "tasks", "heap"] {
        test(name, "fork", &["valgrind", "-q", "--error-exitcode=9"]);
    }
}

#[test]
fn an_exception_ends_the_child_only() {
    let folder = C.folder();
    let output = C.run(&mut Command::new(C.program("tests/exception.cpp", folder.path(), &[])));
    assert!(output.status.success(), "{}", text(&output));
}

/// The engine ring0, in a virtual machine that supports it.
#[test]
fn tasks_run_in_ring_0() {
    let folder = C.folder();
    let program = C.program("tests/ring0.c", folder.path(), &[]);
    let library = C.libraries().join("libbedplate_snapshot.so");
    let machine = Machine::new(Kernel::get(Series::V6_1).unwrap())
        .file(File { host: program, guest: "/ring0".into() })
        .file(File { host: library, guest: "/lib/libbedplate_snapshot.so".into() });
    let job = Job::new(["sh", "-c", "/ring0 ring0"]).env("LD_LIBRARY_PATH", "/lib");
    let Captured { report, out, err } =
        machine.capture_despite_losses(&[job], |why| println!("{why}")).unwrap();
    assert!(report.succeeded(), "{:?}\n{out}{err}", report.statuses);
}
