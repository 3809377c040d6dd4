//! A machine: it boots a kernel, runs jobs in it, and reports how they ended.

mod clock;
mod job;
mod lost;
mod qemu;

use std::io::{PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

pub use job::Job;
pub use lost::Captured;
pub use qemu::Acceleration;
use qemu::{Qemu, Settings};

use crate::complaints::complaints;
use crate::initramfs::{Contents, File};
use crate::{Error, Kernel, MARK, Result};

/// Time limit of booting.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// The time that an idle current machine takes to boot a guest in software. If booting takes longer, the time limit
/// of the jobs is extended by the same factor. The machine is then slower or busy, and the jobs take longer as
/// well.
const USUAL_BOOT: Duration = Duration::from_secs(4);

/// The largest factor by which a limit is extended.
const MOST_STRETCH: f64 = 8.0;

/// After a guest is done, its output counts as complete when there was none for this time.
const SILENCE: Duration = Duration::from_millis(500);

/// Number of bytes of the end of the console's output that are kept for errors.
const CONSOLE_END: usize = 16 << 10;

/// Settings of a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    kernel: Kernel,
    acceleration: Acceleration,
    cpus: u32,
    memory: u64,
    limit: Duration,
    count_instructions: bool,
    append: String,
    modules: Vec<String>,
    disk: Option<u64>,
    nvme: Option<u64>,
    files: Vec<File>,
    environment: Vec<(String, String)>,
}

/// The results of the jobs.
#[derive(Clone, Debug)]
pub struct Report {
    /// Exit status of every job in the shell's form: 128 + N for signal N.
    pub statuses: Vec<i32>,
    /// The kernel's log.
    pub log: String,
    /// Lines of the log that report errors of the kernel: bugs, warnings, oopses, stalls.
    pub complaints: Vec<String>,
    /// Time from the start of QEMU to the first job.
    pub boot: Duration,
    /// Time from the start of QEMU to its end.
    pub whole: Duration,
}

impl Report {
    /// Whether every job ended with status 0 and the log has no complaints.
    pub fn succeeded(&self) -> bool {
        self.statuses.iter().all(|status| *status == 0) && self.complaints.is_empty()
    }
}

impl Machine {
    /// Creates a machine with 2 processors, 2 GiB of memory and a time limit of 5 minutes.
    pub fn new(kernel: Kernel) -> Machine {
        Machine {
            kernel,
            acceleration: Acceleration::detect(),
            cpus: 2,
            memory: 2 << 30,
            limit: Duration::from_secs(300),
            count_instructions: false,
            append: String::new(),
            modules: Vec::new(),
            disk: None,
            nvme: None,
            files: Vec::new(),
            environment: vec![(MARK.into(), "1".into())],
        }
    }

    /// Sets the number of processors that the jobs may use. If there are several, a guest in software has one more.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Machine {
        self.cpus = cpus.max(1);
        self
    }

    /// Sets the guest's memory in bytes, rounded down to whole mebibytes. It includes the programs of the guest.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Machine {
        self.memory = bytes;
        self
    }

    /// Sets the time limit of all jobs together, counted from the start of the first job. When it is exceeded, the
    /// guest is killed. The limit applies to a machine that boots a guest in four seconds, and is extended on
    /// slower machines, at most by a factor of 8.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Machine {
        self.limit = limit;
        self
    }

    /// Makes the guest's clock count instructions. The guest gets one processor, and each instruction takes one
    /// nanosecond. Measurements in the guest are therefore the same in every run.
    #[must_use]
    pub fn count_instructions(mut self) -> Machine {
        self.count_instructions = true;
        self.cpus = 1;
        self.acceleration = Acceleration::Software;
        self
    }

    /// Sets further arguments of the kernel.
    #[must_use]
    pub fn append(mut self, arguments: &str) -> Machine {
        self.append = arguments.into();
        self
    }

    /// Adds a module to load, with those it depends on.
    #[must_use]
    pub fn module(mut self, name: impl Into<String>) -> Machine {
        self.modules.push(name.into());
        self
    }

    /// Adds a scratch file system at `/disk`: ext4 on a loop device of `bytes` bytes in the guest's memory. It
    /// supports direct access (`O_DIRECT`). Its contents count towards the guest's memory.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Machine {
        self.disk = Some(bytes);
        self
    }

    /// Adds an NVMe device of `bytes` bytes, initially zero and discarded with the guest. It is `/dev/nvme0n1`, and
    /// `/dev/ng0n1` for NVMe commands. QEMU keeps its contents in a sparse file.
    #[must_use]
    pub fn nvme(mut self, bytes: u64) -> Machine {
        self.nvme = Some(bytes);
        self
    }

    /// Adds a file of the host for the jobs.
    #[must_use]
    pub fn file(mut self, file: File) -> Machine {
        self.files.push(file);
        self
    }

    /// Adds a program of the host that is found in `$PATH`. Scripts of the guest find it under its name, in
    /// `/usr/local/bin`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not installed.
    pub fn program(self, name: &str) -> Result<Machine> {
        let problem = || "is in no folder of $PATH; make setup installs what tests run".into();
        let host =
            job::in_path(name).ok_or_else(|| Error::NotFound { path: name.into(), problem: problem() })?;
        Ok(self.file(File { host, guest: Path::new("/usr/local/bin").join(name) }))
    }

    /// Sets an environment variable of all jobs.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Machine {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The method by which the guest's instructions are executed.
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    /// Boots the kernel, runs the jobs one after the other, and ends the machine. The jobs' output and errors are
    /// written as they arrive. A failed job is no error; see [`Report`].
    ///
    /// # Errors
    /// [`Error::Died`] and [`Error::TimedOut`] if the guest did not finish the jobs; [`Error::NotFound`] if a
    /// program or one of its libraries does not exist; [`Error::Missing`] without QEMU or busybox; [`Error::Qemu`]
    /// if QEMU does not start.
    pub fn run(&self, jobs: &[Job], out: &mut dyn Write, err: &mut dyn Write) -> Result<Report> {
        let folder = tempfile::tempdir().map_err(Error::io("create a temporary folder"))?;
        let initramfs = folder.path().join("initramfs");
        let nvme = self.nvme.map(|bytes| sparse(&folder.path().join("nvme"), bytes)).transpose()?;
        let spare = self.has_spare();
        let contents = Contents {
            kernel: &self.kernel,
            modules: &self.modules,
            disk: self.disk,
            nvme: self.nvme.is_some(),
            files: &self.files,
            jobs,
            kept_off: spare.then_some(self.cpus),
            environment: &self.environment,
        };
        contents.write(&initramfs)?;
        let start = Instant::now();
        let qemu = Qemu::start(&Settings {
            kernel: &self.kernel,
            initramfs: &initramfs,
            nvme: nvme.as_deref(),
            acceleration: self.acceleration,
            cpus: self.cpus,
            spare,
            memory: self.memory,
            count_instructions: self.count_instructions,
            append: &self.append,
        })?;
        let mut session =
            Session { start, deadline: start + BOOT_LIMIT, limit: self.limit, said: Said::default() };
        session.listen(qemu, jobs.len(), out, err)
    }

    /// Whether the guest has one more processor than its jobs use. The jobs must not use the first processor,
    /// because of an error in QEMU's emulation (7.2 to 10.0). The threads of all other processors change a word of
    /// the first processor's state without a lock, whenever they load the state of their floating-point unit
    /// (`cpu_clear_ignne`). This word says whether the processor uses nested page tables and has interrupts
    /// enabled. A virtual machine on that processor therefore sometimes loses its memory and triple-faults; the
    /// guest's kernel may fail in the same way (docs/vm.md).
    fn has_spare(&self) -> bool {
        self.acceleration == Acceleration::Software && self.cpus > 1 && !self.count_instructions
    }
}

/// Creates a sparse file.
fn sparse(path: &Path, bytes: u64) -> Result<PathBuf> {
    let what = Error::io(format!("create {}", path.display()));
    std::fs::File::create(path).and_then(|file| file.set_len(bytes)).map_err(what)?;
    Ok(path.to_owned())
}

/// A piece of the output of a serial port.
struct Piece {
    port: usize,
    bytes: Vec<u8>,
}

/// The guest's output so far.
#[derive(Default)]
struct Said {
    console: Vec<u8>,
    control: Vec<u8>,
    statuses: Vec<i32>,
    log: String,
    boot: Option<Duration>,
    done: bool,
}

/// A running machine.
struct Session {
    start: Instant,
    /// Deadline of booting, and later of the jobs.
    deadline: Instant,
    limit: Duration,
    said: Said,
}

/// The limit on a machine that took the time `boot` to boot the guest.
fn stretched(limit: Duration, boot: Duration) -> Duration {
    limit.mul_f64((boot.as_secs_f64() / USUAL_BOOT.as_secs_f64()).clamp(1.0, MOST_STRETCH))
}

impl Session {
    fn listen(
        &mut self,
        mut qemu: Qemu,
        jobs: usize,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> Result<Report> {
        let (sender, pieces) = channel();
        let ports = std::mem::replace(&mut qemu.ports, [0; 4].map(|_| closed()));
        let words = qemu.child.stderr.take();
        let (complete, last) = std::thread::scope(|scope| {
            // Read continuously, so that a QEMU with many warnings does not block.
            let words = scope.spawn(move || {
                let mut text = String::new();
                // Output that is not UTF-8 is ignored.
                let _ = words.map(|mut words| words.read_to_string(&mut text));
                text
            });
            for (port, reader) in ports.into_iter().enumerate() {
                let sender = sender.clone();
                scope.spawn(move || forward(port, reader, &sender));
            }
            drop(sender);
            let complete = self.until_closed(&pieces, out, err);
            // This ends the threads too, because their pipes close.
            let _ = qemu.child.kill();
            complete.map(|complete| (complete, words.join().unwrap_or_default()))
        })?;
        let ended = qemu.child.wait();
        let console = || String::from_utf8_lossy(&self.said.console).into_owned();
        if !complete {
            let limit = if self.said.boot.is_some() { self.limit } else { BOOT_LIMIT };
            return Err(Error::TimedOut { limit, console: console() });
        }
        let Some(boot) = self.said.boot else {
            let last = last.trim();
            // A guest that resets or panics while it boots ends QEMU with success, as a guest that is done. The
            // output of QEMU then contains only warnings.
            let started = ended.is_ok_and(|status| status.success()) || !self.said.console.is_empty();
            if started || last.is_empty() {
                return Err(self.died(console()));
            }
            return Err(Error::Qemu(last.lines().last().unwrap_or(last).to_owned()));
        };
        if !self.said.done || self.said.statuses.len() != jobs {
            return Err(self.died(console()));
        }
        Ok(Report {
            statuses: std::mem::take(&mut self.said.statuses),
            complaints: complaints(&self.said.log),
            log: std::mem::take(&mut self.said.log),
            boot,
            whole: self.start.elapsed(),
        })
    }

    fn died(&self, console: String) -> Error {
        let why = complaints(&console).into_iter().find(|line| line.contains("panic"));
        Error::Died { why, console }
    }

    /// Processes output until all ports are closed, or until there is silence after the guest is done. Returns true
    /// in these cases, and false if the deadline has passed.
    fn until_closed(
        &mut self,
        pieces: &Receiver<Piece>,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> Result<bool> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let piece = match pieces.recv_timeout(if self.said.done { SILENCE } else { left }) {
                Ok(piece) => piece,
                Err(RecvTimeoutError::Disconnected) => return Ok(true),
                Err(RecvTimeoutError::Timeout) => return Ok(self.said.done),
            };
            let written = match piece.port {
                1 => out.write_all(&piece.bytes).and_then(|()| out.flush()),
                2 => err.write_all(&piece.bytes).and_then(|()| err.flush()),
                0 => {
                    self.said.console.extend(piece.bytes);
                    let excess = self.said.console.len().saturating_sub(CONSOLE_END);
                    self.said.console.drain(..excess);
                    Ok(())
                }
                _ => {
                    self.said.control.extend(piece.bytes);
                    self.control();
                    Ok(())
                }
            };
            written.map_err(Error::io("pass the guest's output on"))?;
        }
    }

    /// Processes the complete lines of the control port.
    fn control(&mut self) {
        let said = &mut self.said;
        let Some(end) = said.control.iter().rposition(|byte| *byte == b'\n') else { return };
        let lines: Vec<u8> = said.control.drain(..=end).collect();
        for line in String::from_utf8_lossy(&lines).lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "begin" if said.boot.is_none() => {
                    let boot = self.start.elapsed();
                    said.boot = Some(boot);
                    self.limit = stretched(self.limit, boot);
                    self.deadline = Instant::now() + self.limit;
                }
                "begin" => {}
                "end" => {
                    said.statuses.extend(rest.split(' ').nth(1).and_then(|status| status.parse::<i32>().ok()))
                }
                "log" => said.log += &format!("{rest}\n"),
                "done" => said.done = true,
                _ => tracing::debug!(line, "the guest says something unknown"),
            }
        }
    }
}

/// A pipe whose writing end is closed.
fn closed() -> PipeReader {
    std::io::pipe().expect("a pipe was just created").0
}

fn forward(port: usize, mut reader: PipeReader, to: &Sender<Piece>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(n @ 1..) = reader.read(&mut buffer) {
        if to.send(Piece { port, bytes: buffer[..n].to_vec() }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_stretched_on_slow_machines_only() {
        let seconds = Duration::from_secs;
        assert_eq!(stretched(seconds(10), seconds(1)), seconds(10));
        assert_eq!(stretched(seconds(10), seconds(12)), seconds(30));
        assert_eq!(stretched(seconds(10), seconds(1000)), seconds(80));
    }

    #[test]
    fn programs_come_along_under_their_names() {
        let machine = || Machine::new(Kernel::from_image(Path::new("/proc/version")).unwrap());
        let file = &machine().program("sh").unwrap().files[0];
        assert_eq!(file.guest, Path::new("/usr/local/bin/sh"));
        assert!(file.host.is_file() && !file.host.is_symlink(), "{file:?}");
        assert!(matches!(machine().program("no-such-program"), Err(Error::NotFound { .. })));
    }
}
