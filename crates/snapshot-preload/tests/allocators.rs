//! Programs with any allocator have snapshots: with the C library's, which the bundled one replaces, and with an allocator of
//! their own.

mod common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Engine, Server, free_port, incomplete, libraries, scenarios};
use tempfile::TempDir;

with_each_engine!(
    a_program_with_the_c_librarys_malloc_has_snapshots,
    threads_allocate_while_another_forks,
    the_bundled_allocator_has_all_functions,
    a_program_that_is_not_position_independent_gets_the_bundled_allocator,
    a_python_program_that_forks_to_save_has_snapshots,
    a_program_with_jemalloc_linked_statically_keeps_it,
    tcmalloc_is_kept_and_has_snapshots,
    mimalloc_is_kept_and_has_snapshots,
    an_allocator_of_the_programs_own_is_kept_and_has_snapshots,
    the_bundled_allocator_can_replace_another,
    calls_that_are_not_the_allocators_are_the_kernels,
    a_script_and_what_it_starts_have_an_allocator_each,
    reservations_of_2_gib_are_covered_and_larger_ones_are_not,
);

/// The test's heap in MiB.
const HEAP: u64 = 200;

/// A program in a folder.
struct Program {
    folder: TempDir,
    file: PathBuf,
}

/// The output of a program about its memory, and the statistics of its library.
#[derive(Debug)]
struct Ended {
    /// MiB of the program's memory in the region, and elsewhere.
    shared: u64,
    others: u64,
    statistics: String,
}

impl Ended {
    /// A word of the statistics.
    #[track_caller]
    fn word(&self, name: &str) -> &str {
        let word =
            self.statistics.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.unwrap_or_else(|| panic!("no {name} in {:?}", self.statistics))
    }

    #[track_caller]
    fn number(&self, name: &str) -> u64 {
        self.word(name).parse().unwrap()
    }

    /// Checks that a large heap is completely in the region, and that its snapshots are complete, and instantaneous if the
    /// engine's are.
    #[track_caller]
    fn has_snapshots(&self, engine: Engine, snapshots: u64) {
        assert!(self.shared > HEAP * 9 / 10 && self.others < HEAP / 10, "{self:?}");
        assert_eq!((self.number("snapshots"), self.number("incomplete")), (snapshots, 0), "{self:?}");
        // A snapshot that begins while another is merged is not instantaneous.
        assert!(engine != "remap" || self.number("instantaneous") > 0, "{self:?}");
    }
}

impl Program {
    fn new(sources: &[&str], options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        let mut compiler = Command::new("cc");
        // Compilers know the effect of malloc, and would remove calls without effect.
        compiler.args(["-O1", "-fno-builtin", "-pthread", "-o"]).arg(&file);
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        compiler.args(sources.iter().map(|source| tests.join(source))).args(options);
        assert!(compiler.status().unwrap().success());
        Self { folder, file }
    }

    fn of_c() -> Self {
        Self::new(&["allocators.c"], &[])
    }

    fn python() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), file: "/usr/bin/python3".into() }
    }

    /// The program under both libraries, and others that are preloaded after them.
    fn command(&self, engine: Engine, arguments: &[&str], preloaded: &[&str]) -> Command {
        let mut command = Command::new(&self.file);
        command.args(arguments);
        with_libraries(&mut command, engine, preloaded, self.folder.path());
        command
    }

    fn run(&self, engine: Engine, arguments: &[&str], preloaded: &[&str]) -> Ended {
        self.ended(&self.command(engine, arguments, preloaded).output().unwrap())
    }

    #[track_caller]
    fn ended(&self, output: &Output) -> Ended {
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.ends_with("as it was\n"), "{output:?}");
        let number = |name: &str| {
            said.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok()).unwrap_or(0)
        };
        let statistics = std::fs::read_to_string(self.folder.path().join("statistics")).unwrap();
        Ended { shared: number("shared="), others: number("others="), statistics }
    }
}

/// Makes a command run under both libraries, and others that are preloaded after them.
fn with_libraries(command: &mut Command, engine: Engine, preloaded: &[&str], folder: &Path) {
    let mut all: Vec<OsString> = libraries().map(Into::into).into();
    all.extend(preloaded.iter().map(Into::into));
    command.env("LD_PRELOAD", all.join(OsString::from(":").as_os_str()));
    command.env("BEDPLATE_SNAPSHOT_REQUIRED", "1").env("BEDPLATE_SNAPSHOT_ENGINE", engine);
    command.env("BEDPLATE_SNAPSHOT_STATISTICS", folder.join("statistics"));
}

/// The heap test's arguments.
const LARGE: [&str; 2] = ["heap", "200"];

fn a_program_with_the_c_librarys_malloc_has_snapshots(engine: Engine) {
    let program = Program::of_c();
    let ended = program.run(engine, &LARGE, &[]);
    assert_eq!(ended.word("malloc"), "bundled");
    ended.has_snapshots(engine, 3);

    // Without the bundled allocator, the heap is elsewhere.
    let program = Program::of_c();
    let mut command = program.command(engine, &LARGE, &[]);
    let ended = program.ended(&command.env("LD_PRELOAD", &libraries()[0]).output().unwrap());
    assert!(
        ended.word("malloc") == "own" && ended.shared < HEAP / 10 && ended.others > HEAP * 9 / 10,
        "{ended:?}"
    );
}

fn threads_allocate_while_another_forks(engine: Engine) {
    let ended = Program::of_c().run(engine, &["server"], &[]);
    assert_eq!((ended.word("malloc"), ended.number("snapshots")), ("bundled", 40), "{ended:?}");
}

fn the_bundled_allocator_has_all_functions(engine: Engine) {
    let ended = Program::of_c().run(engine, &["functions"], &[]);
    assert_eq!(ended.word("malloc"), "bundled");
}

fn a_program_that_is_not_position_independent_gets_the_bundled_allocator(engine: Engine) {
    let ended = Program::new(&["allocators.c"], &["-no-pie", "-fno-pie"]).run(engine, &LARGE, &[]);
    assert_eq!(ended.word("malloc"), "bundled");
    ended.has_snapshots(engine, 3);
}

fn a_python_program_that_forks_to_save_has_snapshots(engine: Engine) {
    let program = Program::python();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/save.py");
    let ended = program.run(engine, &[script.to_str().unwrap()], &[]);
    assert_eq!((ended.word("malloc"), ended.number("snapshots")), ("bundled", 1), "{ended:?}");
    assert!(engine != "remap" || ended.number("instantaneous") == 1, "{ended:?}");
    // The memory has a million numbers and strings, and their table.
    assert!(ended.shared > 120 && ended.others < 20, "{ended:?}");
}

fn a_program_with_jemalloc_linked_statically_keeps_it(engine: Engine) {
    let program = Program::new(&["allocators.c"], &["-l:libjemalloc.a", "-lstdc++", "-lm"]);
    let ended = program.run(engine, &LARGE, &[]);
    assert_eq!(ended.word("malloc"), "own");
    ended.has_snapshots(engine, 3);
}

/// tcmalloc gets its memory from `sbrk`.
fn tcmalloc_is_kept_and_has_snapshots(engine: Engine) {
    let program = Program::of_c();
    for what in [&LARGE[..], &["server"]] {
        let ended = program.run(engine, what, &["libtcmalloc_minimal.so.4"]);
        assert_eq!(ended.word("malloc"), "own");
        if what == LARGE {
            ended.has_snapshots(engine, 3);
        }
    }
}

/// mimalloc reserves the first memory of each thread, and gets the access rights later.
fn mimalloc_is_kept_and_has_snapshots(engine: Engine) {
    let program = Program::of_c();
    let ended = program.run(engine, &LARGE, &["libmimalloc.so.2.0"]);
    assert_eq!(ended.word("malloc"), "own");
    ended.has_snapshots(engine, 3);
}

/// The program's allocator uses `sbrk`, and reserves addresses for which it gets the access rights later.
fn an_allocator_of_the_programs_own_is_kept_and_has_snapshots(engine: Engine) {
    let program = Program::new(&["allocators.c", "own_malloc.c"], &[]);
    let ended = program.run(engine, &LARGE, &[]);
    assert_eq!(ended.word("malloc"), "own");
    ended.has_snapshots(engine, 3);
}

fn the_bundled_allocator_can_replace_another(engine: Engine) {
    for (forced, expected) in [("auto", "own"), ("bundled", "bundled")] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start_configured(free_port(), "redis-server", folder.path(), &[], |command| {
            with_libraries(command, engine, &[], folder.path());
            command.env("BEDPLATE_SNAPSHOT_MALLOC", forced);
        });
        assert_eq!(incomplete(&scenarios::saves_under_load_are_exact_images(server, folder.path(), 1)), 0);
        let statistics = std::fs::read_to_string(folder.path().join("statistics")).unwrap();
        assert!(statistics.contains(&format!(" malloc={expected} ")), "{forced}: {statistics}");
    }
}

fn calls_that_are_not_the_allocators_are_the_kernels(engine: Engine) {
    let ended = Program::of_c().run(engine, &["others"], &[]);
    assert_eq!(ended.word("malloc"), "bundled");
}

/// The shell uses the C library's malloc, and one of the programs that it starts brings another one.
fn a_script_and_what_it_starts_have_an_allocator_each(engine: Engine) {
    let program = Program::of_c();
    let own = Program::new(&["allocators.c"], &["-l:libjemalloc.a", "-lstdc++", "-lm"]);
    let script = program.folder.path().join("script");
    let quoted = |file: &Path| format!("'{}'", file.display());
    let lines = format!("#!/bin/sh\n{} heap 5 && {} heap 5\n", quoted(&program.file), quoted(&own.file));
    std::fs::write(&script, lines.as_bytes()).unwrap();
    let mut command = Command::new("sh");
    with_libraries(command.arg(&script), engine, &[], program.folder.path());
    let ended = program.ended(&command.output().unwrap());
    let found: Vec<_> = ended
        .statistics
        .lines()
        .map(|line| if line.contains(" malloc=bundled ") { "bundled" } else { "own" })
        .collect();
    // The shell ends without its library noticing.
    assert_eq!(found, ["bundled", "own"], "{}", ended.statistics);
}

fn reservations_of_2_gib_are_covered_and_larger_ones_are_not(engine: Engine) {
    let ended = Program::new(&["allocators.c", "own_malloc.c"], &[]).run(engine, &["limit"], &[]);
    assert_eq!(ended.word("malloc"), "own");
}
