//! The roles of this test's binary when it starts itself again: a daemon, or a worker. Both end at the end of their input.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bedplate_scan::{AccessKey, Channel, Daemon, Error, FRAME, Options, Scan, Service};

use crate::common::is_right;

/// The exit code of a worker whose daemon is gone.
pub const GONE: i32 = 3;
/// The exit code of a worker that may not join.
pub const REFUSED: i32 = 4;

const ROLE: &str = "BEDPLATE_SCAN_ROLE";
const SOCKET: &str = "BEDPLATE_SCAN_SOCKET";
const TARGET: &str = "BEDPLATE_SCAN_TARGET";
const SIZE: &str = "BEDPLATE_SCAN_SIZE";
const PACE: &str = "BEDPLATE_SCAN_PACE";

/// A process with a role. Dropping this object kills the process.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The target of a worker's scan.
pub enum Target<'a> {
    /// A file that the worker scans alone.
    File(&'a Path),
    /// A pool that the worker joins.
    Pool(AccessKey),
}

impl Process {
    fn start(role: &str, socket: &Path, set: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture"]).env(ROLE, role).env(SOCKET, socket);
        set(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, input, lines }
    }

    /// Starts a daemon, and waits until it listens.
    pub fn daemon(socket: &Path) -> Self {
        let mut daemon = Self::start("daemon", socket, |_| {});
        daemon.hear("listens");
        daemon
    }

    /// Starts a worker, which joins the pool or opens its file, and begins after [`say_go`](Self::say_go). It spends `pace` on
    /// each chunk.
    pub fn worker(socket: &Path, target: &Target<'_>, size: u64, pace: Duration) -> Self {
        Self::start("worker", socket, |command| {
            let target = match target {
                Target::File(path) => path.display().to_string(),
                Target::Pool(key) => key.to_bytes().map(|byte| format!("{byte:02x}")).concat(),
            };
            command.env(TARGET, target).env(SIZE, size.to_string()).env(PACE, pace.as_millis().to_string());
        })
    }

    /// Waits up to 20 s until the process prints a line that ends with `what`.
    pub fn hear(&mut self, what: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.ends_with(what) => return,
                Ok(_) => {}
                Err(error) => panic!("no {what}: {error}; {:?}", self.child.try_wait()),
            }
        }
    }

    /// The number of new lines of the process that end with `what`.
    pub fn count(&self, what: &str) -> usize {
        self.lines.try_iter().filter(|line| line.ends_with(what)).count()
    }

    pub fn say_go(&mut self) {
        use std::io::Write;
        // Errors are ignored, because the exit code tells if the process has already ended.
        let _ = self.input.as_mut().unwrap().write_all(b"go\n");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the signal goes to a child of this process that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Closes the process's input, and waits until the process ends.
    pub fn end(&mut self) -> ExitStatus {
        self.input = None;
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("process {} does not end", self.child.id());
    }

    /// The targets of the process's descriptors, as the kernel names them. A descriptor that is closed in the meantime is left
    /// out.
    pub fn descriptors(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let mut all: Vec<_> = all.filter_map(|one| std::fs::read_link(one.unwrap().path()).ok()).collect();
        all.sort();
        all
    }
}

/// Runs the role for which this process was started, if any.
pub fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let code = match role.as_str() {
        "daemon" => daemon(&socket),
        _ => match worker(&socket) {
            Ok(()) => 0,
            Err(Error::Gone) => GONE,
            Err(Error::Invalid(_) | Error::File { .. }) => REFUSED,
            Err(error) => panic!("{error}"),
        },
    };
    std::process::exit(code);
}

/// Waits for a line, or for the end of the input.
fn told() -> bool {
    std::io::stdin().lock().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0)
}

fn daemon(socket: &Path) -> i32 {
    let daemon = Daemon::bind(Service::start().unwrap(), socket, &Options::default()).unwrap();
    let stopper = daemon.stopper();
    std::thread::spawn(move || {
        while told() {}
        stopper.stop();
    });
    println!("\nlistens");
    daemon.run().unwrap();
    0
}

fn worker(socket: &Path) -> Result<(), Error> {
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (target, size, pace) =
        (std::env::var(TARGET).unwrap(), number(SIZE), Duration::from_millis(number(PACE)));
    let service = Service::connect(socket).map_err(|_| Error::Gone)?;
    let begin = || match target.starts_with('/') {
        true => service.open(Scan::of([&target]).page_size(16_384)?),
        false => {
            let byte = |at| u8::from_str_radix(&target[2 * at..2 * at + 2], 16).unwrap();
            service.join(AccessKey::from_bytes(std::array::from_fn(byte)), 16_384)
        }
    };
    let mut first = Some(begin()?);
    println!("\njoined");
    while told() {
        let mut channel = first.take().map_or_else(begin, Ok)?;
        read(&mut channel, size, pace)?;
        drop(channel);
        println!("\ndone");
    }
    Ok(())
}

/// Reads every page, and checks that each comes once.
fn read(channel: &mut Channel, size: u64, pace: Duration) -> Result<(), Error> {
    let (mut seen, mut bytes) = (HashSet::new(), 0);
    while let Some(page) = channel.next_page()? {
        assert!(is_right(page.file(), page.offset(), &page), "wrong bytes at {}", page.offset());
        assert!(seen.insert(page.offset()), "{} twice", page.offset());
        bytes += page.len() as u64;
        drop(page);
        if bytes.is_multiple_of(FRAME as u64) {
            std::thread::sleep(pace);
        }
    }
    assert_eq!(bytes, size);
    Ok(())
}
