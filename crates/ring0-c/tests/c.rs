//! Tests of the C interface from C: the header in the repository is up to date, it compiles as C and C++, and the
//! examples work.

use std::path::Path;

use bedplate_c_tests::{Interface, compile};
use bedplate_vm::{Captured, File, Job, Kernel, Machine, Series};

const C: Interface = bedplate_c_tests::interface!("ring0", "gnu99");

#[test]
fn the_header_is_up_to_date() {
    C.check_header();
}

/// Compiles an example, and runs it in a guest by a shell command, in which the program is `/example`.
fn run_example(name: &str, command: &str, further: &[File]) -> String {
    let folder = C.folder();
    let program = C.program(&format!("examples/{name}.c"), folder.path(), &[]);
    let library = C.libraries().join("libbedplate_ring0.so");
    let machine = Machine::new(Kernel::get(Series::V6_1).unwrap())
        .file(File { host: program, guest: "/example".into() })
        .file(File { host: library, guest: "/lib/libbedplate_ring0.so".into() });
    let machine = further.iter().fold(machine, |machine, file| machine.file(file.clone()));
    let job = Job::new(["sh", "-c", command]).env("LD_LIBRARY_PATH", "/lib");
    let Captured { report, out, err } =
        machine.capture_despite_losses(&[job], |why| println!("{why}")).unwrap();
    assert!(report.succeeded(), "{report:?}\n{out}{err}");
    out
}

#[test]
fn the_header_is_cpp_too() {
    let folder = C.folder();
    let cpp = folder.path().join("header.cpp");
    std::fs::write(&cpp, "#include <bedplate/ring0.h>\n").unwrap();
    let include = format!("-I{}/include", C.folder);
    compile("c++", &["-std=c++17", "-fsyntax-only", &include, cpp.to_str().unwrap()]);
}

#[test]
fn the_example_works_in_ring_0() {
    let expected = "in ring 0: yes, on processor 0\nthe breakpoint's handler says 42\n\
                    the system call's handler says 42\nLinux made the other system calls\n";
    assert_eq!(run_example("hello", "/example", &[]), expected);
}

#[test]
fn memory_and_processors_are_managed_from_c() {
    let expected = "101 pages on demand, 10 copied for the snapshot, 2 interrupts, a call, ticks\n";
    assert_eq!(run_example("pages", "/example", &[]), expected);
}

#[test]
fn strace_shows_proxied_calls() {
    let strace = Path::new("/usr/bin/strace");
    if !strace.exists() {
        eprintln!("skipped: strace is not installed");
        return;
    }
    let file = File { host: strace.into(), guest: "/strace".into() };
    let out = run_example("hello", "/strace -f -o /trace /example >/dev/null && cat /trace", &[file]);
    // Before its first output, in ring 0, the C library queries the type of its output file with fstat.
    let lines: Vec<&str> = out.lines().collect();
    let between_runs = |window: &[&str]| {
        window[0].contains("KVM_RUN") && window[1].contains("fstat") && window[2].contains("KVM_RUN")
    };
    assert!(lines.windows(3).any(between_runs), "{out}");
}
