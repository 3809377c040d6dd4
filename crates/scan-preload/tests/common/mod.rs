//! The common parts of the tests: the library, a daemon in the test's process, and large files with known content.
#![allow(dead_code)]

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_scan::{Daemon, Options, Service, Stopper, resident_bytes};
use bedplate_suite_support::programs;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

/// Time for which a file must be unchanged in these tests. It is longer than a write takes.
pub const SETTLING_TIME: Duration = Duration::from_millis(300);

/// Minimum size of a file that is served.
pub const MINIMUM: u64 = 1 << 20;

/// The library, built as this test was.
pub fn library() -> PathBuf {
    programs::build(&["scan-preload"]).unwrap();
    programs::folder().unwrap().join("libbedplate_scan_preload.so")
}

/// A daemon in this process, a folder on a disk, and the library.
pub struct Setup {
    pub folder: TempDir,
    library: PathBuf,
    pub socket: PathBuf,
    pub service: Service,
    daemon: Option<(Stopper, JoinHandle<()>)>,
}

impl Setup {
    /// Returns `None`, and prints a line that says why, if files of the build's folder are not read past the page cache.
    pub fn new() -> Option<Self> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let service = Service::builder().settling_time(SETTLING_TIME).build().unwrap();
        let socket = folder.path().join("socket");
        let daemon = Daemon::bind(service.clone(), &socket, &Options::default()).unwrap();
        let stopper = daemon.stopper();
        let thread = std::thread::spawn(move || daemon.run().unwrap());
        let daemon = Some((stopper, thread));
        let setup = Self { library: library(), folder, socket, service, daemon };
        let probe = setup.file("probe", 2 << 20);
        match setup.service.reader(&probe) {
            Ok(_) => Some(setup),
            Err(error) => {
                println!("skipped: files of the build's folder cannot be served: {error}");
                None
            }
        }
    }

    /// A settled file of `bytes` bytes that is not in the page cache. Its content is that of `word`, at generation 0.
    pub fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.folder.path().join(name);
        write_file(&path, bytes);
        settle();
        forget(&path);
        path
    }

    /// A program's command under the library.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", &self.library)
            .env("BEDPLATE_SCAN_SOCKET", &self.socket)
            .env("BEDPLATE_SCAN_MINIMUM", MINIMUM.to_string())
            // Whether a read is served must not depend on the load of the machine.
            .env("BEDPLATE_SCAN_PATIENCE", "60000")
            .env("BEDPLATE_SCAN_STATISTICS", self.statistics_file());
        command
    }

    fn statistics_file(&self) -> PathBuf {
        self.folder.path().join("statistics")
    }

    /// The sums of all processes' statistics so far.
    pub fn statistics(&self) -> HashMap<String, u64> {
        let mut sums = HashMap::new();
        let text = std::fs::read_to_string(self.statistics_file()).unwrap_or_default();
        for (name, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
            if let Ok(value) = value.parse::<u64>() {
                *sums.entry(name.to_owned()).or_default() += value;
            }
        }
        sums
    }

    /// Ends the daemon.
    pub fn stop(&mut self) {
        if let Some((stopper, thread)) = self.daemon.take() {
            stopper.stop();
            thread.join().unwrap();
        }
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The eight bytes at a multiple of eight, as in `program/file.c`.
pub fn word(offset: u64, generation: u64) -> u64 {
    (offset / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xffff_ffff_ffff | generation << 48
}

fn write_file(path: &Path, bytes: u64) {
    let mut file = std::io::BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    let whole = (0..bytes / 8).map(|at| word(at * 8, 0));
    whole.for_each(|word| file.write_all(&word.to_le_bytes()).unwrap());
    file.write_all(&word(bytes / 8 * 8, 0).to_le_bytes()[..(bytes % 8) as usize]).unwrap();
    file.into_inner().unwrap().sync_all().unwrap();
}

/// Waits until earlier changes are old enough.
pub fn settle() {
    std::thread::sleep(SETTLING_TIME + Duration::from_millis(50));
}

/// Removes a file from the page cache.
pub fn forget(path: &Path) {
    let file = OpenOptions::new().read(true).open(path).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        // The kernel may be using a page at this moment.
        if resident_bytes(&file, 0..file.metadata().unwrap().len()).unwrap() == 0 {
            return;
        }
        assert!(Instant::now() < end, "the page cache keeps {}", path.display());
    }
}

/// Builds a C program of these tests, from all C files of its folder, in another folder.
pub fn build_program(folder: &Path, name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    let files = sources.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread", "-o"]).arg(&program);
    compiler.args(files.filter(|path| path.extension().is_some_and(|extension| extension == "c")));
    assert!(compiler.status().unwrap().success());
    program
}
