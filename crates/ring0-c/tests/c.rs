//! The C interface from C: the header is the one in the repository, compiles as C and C++, and the example works.

use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_vm::{File, Job, Kernel, Machine, Series};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Where the library is, built as this test was.
fn libraries() -> PathBuf {
    let status =
        Command::new(env!("CARGO")).args(["build", "--locked", "--quiet", "-p", "bedplate-ring0-c"]).status();
    assert!(status.unwrap().success());
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

fn compile(compiler: &str, arguments: &[&str]) {
    let output =
        Command::new(compiler).args(["-Wall", "-Wextra", "-Werror"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_header_is_up_to_date() {
    let generated = std::fs::read_to_string(concat!(env!("OUT_DIR"), "/ring0.h")).unwrap();
    let path = Path::new(FOLDER).join("include/bedplate/ring0.h");
    if std::env::var_os("BEDPLATE_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == generated, "{} is old: run this test with BEDPLATE_UPDATE=1", path.display());
}

#[test]
fn the_example_works_in_ring_0() {
    let folder = tempfile::tempdir().unwrap();
    let include = format!("-I{FOLDER}/include");
    let program = folder.path().join("hello");
    let libraries = libraries();
    let search = format!("-L{}", libraries.display());
    let source = format!("{FOLDER}/examples/hello.c");
    compile(
        "cc",
        &["-std=gnu99", &include, &source, &search, "-lbedplate_ring0", "-o", program.to_str().unwrap()],
    );
    let cpp = folder.path().join("header.cpp");
    std::fs::write(&cpp, "#include <bedplate/ring0.h>\n").unwrap();
    compile("c++", &["-std=c++17", "-fsyntax-only", &include, cpp.to_str().unwrap()]);
    let library = libraries.join("libbedplate_ring0.so");
    let machine = Machine::new(Kernel::get(Series::V6_1).unwrap())
        .file(File { host: program, guest: "/hello".into() })
        .file(File { host: library, guest: "/lib/libbedplate_ring0.so".into() });
    let job = Job::new(["sh", "-c", "LD_LIBRARY_PATH=/lib /hello"]);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let report = machine.run(&[job], &mut out, &mut err).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(report.succeeded(), "{report:?}\n{out}{}", String::from_utf8_lossy(&err));
    let expected = "in ring 0: yes, on processor 0\nthe breakpoint's handler says 42\n\
                    the system call's handler says 42\nLinux made the other system calls\n";
    assert_eq!(out, expected);
}
