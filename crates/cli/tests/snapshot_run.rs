//! Tests `bedplate snapshot run`: the allocator of programs, and the message about programs into which nothing can be preloaded.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bedplate_suite_support::programs;
use tempfile::TempDir;

/// The command in a folder with the libraries, as `make install` puts them.
struct Installed(TempDir);

impl Installed {
    fn new() -> Self {
        programs::build(&["snapshot-preload", "snapshot-malloc"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_bedplate"));
        for part in ["bin", "lib"] {
            std::fs::create_dir(folder.path().join(part)).unwrap();
        }
        std::fs::copy(built, folder.path().join("bin/bedplate")).unwrap();
        for library in ["preload", "malloc"].map(|name| format!("libbedplate_snapshot_{name}.so")) {
            std::fs::copy(built.with_file_name(&library), folder.path().join("lib").join(library)).unwrap();
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles a program that prints the libraries that are preloaded into it.
    fn compile(&self, compiler: &str, options: &[&str]) -> PathBuf {
        let (source, program) = (self.path("program.c"), self.path("program"));
        let text = r#"
            #include <stdio.h>
            #include <stdlib.h>
            int main(void) {
                const char *preloaded = getenv("LD_PRELOAD");
                puts(preloaded ? preloaded : "nothing");
                return 3;
            }"#;
        std::fs::write(&source, text).unwrap();
        let status = Command::new(compiler).args(options).arg("-o").arg(&program).arg(&source).status();
        assert!(status.unwrap().success());
        program
    }

    /// `bedplate snapshot run` with options and a command.
    fn run<S: AsRef<OsStr>>(&self, options: &[&str], command: &[S]) -> Output {
        let mut run = Command::new(self.path("bin/bedplate"));
        run.args(["snapshot", "run"]).args(options).arg("--").args(command).env_remove("LD_PRELOAD");
        run.output().unwrap()
    }

    /// The allocator in the statistics.
    fn malloc(&self, options: &[&str], program: &str) -> String {
        let statistics = self.path("statistics");
        let _ = std::fs::remove_file(&statistics);
        let mut all = vec!["--required", "--statistics", statistics.to_str().unwrap()];
        all.extend(options);
        let output = self.run(&all, &[program, "--version"]);
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(statistics).unwrap();
        text.split_whitespace().find_map(|word| word.strip_prefix("malloc=")).unwrap().into()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn programs_get_the_bundled_allocator_unless_they_bring_one() {
    let installed = Installed::new();
    for (options, of_python, of_redis) in [
        (&[][..], "bundled", "own"),
        (&["--malloc", "auto"], "bundled", "own"),
        (&["--malloc", "bundled"], "bundled", "bundled"),
        (&["--malloc", "own"], "own", "own"),
    ] {
        assert_eq!(installed.malloc(options, "/usr/bin/python3"), of_python, "{options:?}");
        assert_eq!(installed.malloc(options, "redis-server"), of_redis, "{options:?}");
    }
}

#[test]
fn the_users_libraries_are_preloaded_last() {
    let installed = Installed::new();
    let program = installed.compile("cc", &[]);
    let mut run = Command::new(installed.path("bin/bedplate"));
    let output = run.args(["snapshot", "run"]).arg(&program).env("LD_PRELOAD", "libm.so.6").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let names: Vec<_> =
        text(&output.stdout).trim().split(':').map(|path| path.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["libbedplate_snapshot_preload.so", "libbedplate_snapshot_malloc.so", "libm.so.6"]);
}

/// Nothing is preloaded, because programs of other loaders would crash.
#[test]
fn programs_that_cannot_have_snapshots_run_as_before_after_a_line() {
    let installed = Installed::new();
    for (compiler, options, why) in [
        ("cc", &["-static"][..], "is statically linked"),
        ("cc", &["-static-pie"], "is statically linked"),
        ("musl-gcc", &[], "the libraries need the GNU C library"),
    ] {
        let program = installed.compile(compiler, options);
        let output = installed.run(&[], &[&program]);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "nothing\n"), "{said}");
        assert!(
            said.starts_with("bedplate snapshot: running without snapshots: ") && said.contains(why),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");

        let output = installed.run(&["--required"], &[&program]);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(126), ""), "{said}");
        assert!(said.starts_with("error: ") && said.contains(why) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn a_missing_library_is_said() {
    let installed = Installed::new();
    std::fs::remove_file(installed.path("lib/libbedplate_snapshot_malloc.so")).unwrap();
    let output = installed.run(&[], &["true"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("libbedplate_snapshot_malloc.so is not beside"), "{output:?}");
    assert!(installed.run(&["--malloc", "own"], &["true"]).status.success());
}
