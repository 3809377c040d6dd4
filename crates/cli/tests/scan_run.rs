//! Tests `bedplate scan run` as people run it: output and exit status of programs, and the end of the daemon.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bedplate_suite_support::programs;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

/// Longest time that a test waits for a daemon to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder on the disk of the build.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        programs::build(&["scan-preload"]).unwrap();
        Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file that is old enough for the daemon and not in the page cache, and its content.
    fn file(&self, name: &str) -> (PathBuf, Vec<u8>) {
        let path = self.path(name);
        let content: Vec<u8> = (0..40u32 << 20).map(|at| (at >> 12) as u8 ^ at as u8).collect();
        std::fs::write(&path, &content).unwrap();
        std::thread::sleep(Duration::from_millis(400));
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        (path, content)
    }

    /// `bedplate scan run` with options and a command.
    fn run(&self, options: &[&str], command: &[&str]) -> Output {
        let mut run = Command::new(env!("CARGO_BIN_EXE_bedplate"));
        run.args(["scan", "run", "--minimum", "1M"]).args(options).arg("--").args(command);
        // Started daemons then make their folders in this one.
        run.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", self.0.path());
        run.output().unwrap()
    }

    /// Folders of daemons that are running.
    fn daemons(&self) -> usize {
        let all = std::fs::read_dir(self.0.path()).unwrap();
        let is_one = |name: &str| name.starts_with("bedplate-scan-");
        all.filter(|entry| is_one(&entry.as_ref().unwrap().file_name().to_string_lossy())).count()
    }

    fn wait_for_the_end_of_daemons(&self) {
        let begin = Instant::now();
        while self.daemons() > 0 {
            assert!(begin.elapsed() < PATIENCE, "a daemon goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A number of the statistics, of all processes of a program. `None`: the program was not served at all.
    fn statistic(&self, program: &str, name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.path("statistics")).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains(&format!("program={program} ")));
        let values = lines.filter_map(|line| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
        });
        values.reduce(|sum, value| sum + value)
    }
}

/// Whether the file system of the build can be read past the page cache.
fn is_direct(path: &Path) -> bool {
    let is_direct = rustix::fs::open(
        path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT,
        rustix::fs::Mode::empty(),
    )
    .is_ok();
    if !is_direct {
        println!("skipped: the build's file system does not read past the page cache");
    }
    is_direct
}

const OPTIONS: [&str; 2] = ["--settling-time", "300"];

#[test]
fn a_program_prints_and_ends_as_it_does_alone() {
    let place = Place::new();
    let (file, content) = place.file("file");
    let statistics = place.path("statistics");
    let options = [&OPTIONS[..], &["--statistics", statistics.to_str().unwrap()]].concat();
    let output = place.run(&options, &["cat", file.to_str().unwrap()]);
    assert!(output.status.success() && output.stderr.is_empty(), "{:?}", output.stderr);
    assert!(output.stdout == content);
    if is_direct(&file) {
        let served = place.statistic("cat", "bytes_served").unwrap();
        assert!(served > content.len() as u64 / 2, "{served}");
    }
    let output = place.run(&options, &["sh", "-c", "echo to the error >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stderr, b"to the error\n");
    place.wait_for_the_end_of_daemons();
}

#[test]
fn a_daemon_stays_for_a_process_that_the_program_leaves_behind() {
    let place = Place::new();
    let (file, content) = place.file("file");
    let (statistics, out) = (place.path("statistics"), place.path("out"));
    let options = [&OPTIONS[..], &["--statistics", statistics.to_str().unwrap()]].concat();
    // The program ends at once, and leaves a process behind that reads two seconds later. The output goes through a second `cat`,
    // because into a file the first one would not read, but let the kernel copy.
    let script = format!("(sleep 2; cat {} | cat > {}) > /dev/null 2>&1 &", file.display(), out.display());
    let output = place.run(&options, &["sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.daemons(), 1);
    place.wait_for_the_end_of_daemons();
    assert!(std::fs::read(&out).unwrap() == content);
    if is_direct(&file) {
        assert!(place.statistic("cat", "bytes_served").unwrap() > 0);
    }
}

#[test]
fn the_daemon_keeps_nothing_of_its_starter_open() {
    let place = Place::new();
    // The pipe ends when the program ends, even if the daemon still runs.
    let script = format!(
        "{} scan run -- sh -c '(exec sleep 120) > /dev/null 2>&1 3>&- & echo $!' 3>&1",
        env!("CARGO_BIN_EXE_bedplate")
    );
    let begin = Instant::now();
    let output = Command::new("sh").args(["-c", &script]).env("TMPDIR", place.0.path()).output().unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(110),
        "something kept the pipe open: {:?}",
        begin.elapsed()
    );
    let left: i32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    // SAFETY: a signal to the process that the program left behind.
    assert_eq!(unsafe { libc::kill(left, libc::SIGKILL) }, 0);
}

#[test]
fn what_cannot_be_is_said_in_a_line() {
    let place = Place::new();
    let missing = place.path("no-socket");
    let output = place.run(&["--socket", missing.to_str().unwrap()], &["true"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.lines().count() <= 2 && error.contains("no-socket"), "{error}");
    let output = place.run(&[], &["no-such-program"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("no-such-program"), "{error}");
    place.wait_for_the_end_of_daemons();
    // A statically linked program runs without the library.
    let (source, program) = (place.path("program.c"), place.path("program"));
    std::fs::write(&source, "int main(void) { return 5; }").unwrap();
    assert!(
        Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).status().unwrap().success()
    );
    let output = place.run(&[], &[program.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5));
    assert!(error.contains("running without it") && error.contains("statically linked"), "{error}");
    assert_eq!(place.daemons(), 0, "none is started");
}
