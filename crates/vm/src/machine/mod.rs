//! A machine: boots a kernel, runs jobs in it, and tells how they ended.

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

/// A guest that has not booted after this time will not.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// So long an idle machine of today takes to boot a guest in software. A time limit is stretched by how much longer it
/// took: the machine is slower, or has much else to do, and the jobs take longer as well.
const USUAL_BOOT: Duration = Duration::from_secs(4);

/// The most that a limit is stretched by.
const MOST_STRETCH: f64 = 8.0;

/// A guest that is done has nothing more to say when it has been silent for so long.
const SILENCE: Duration = Duration::from_millis(500);

/// So much of the end of the console is kept for errors, in bytes.
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

/// What became of the jobs.
#[derive(Clone, Debug)]
pub struct Report {
    /// Exit status of every job, as a shell tells it: 128 + N for signal N.
    pub statuses: Vec<i32>,
    /// The kernel's log.
    pub log: String,
    /// Lines of the log in which the kernel complains about itself: bugs, warnings, oopses, stalls.
    pub complaints: Vec<String>,
    /// From the start of QEMU to the first job.
    pub boot: Duration,
    /// From the start of QEMU to its end.
    pub whole: Duration,
}

impl Report {
    /// Whether every job ended with status 0 and the kernel did not complain.
    pub fn succeeded(&self) -> bool {
        self.statuses.iter().all(|status| *status == 0) && self.complaints.is_empty()
    }
}

impl Machine {
    /// A machine with 2 processors, 2 GiB of memory and a time limit of 5 minutes.
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

    /// How many processors the jobs may use. In software the guest has one more, if they are several.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Machine {
        self.cpus = cpus.max(1);
        self
    }

    /// The guest's memory in bytes, what it runs included; whole mebibytes count.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Machine {
        self.memory = bytes;
        self
    }

    /// So long the jobs may take together, counted from the first one's start; then the guest is killed. The limit is
    /// for a machine that boots a guest in four seconds, and stretched on one that takes longer.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Machine {
        self.limit = limit;
        self
    }

    /// Makes the guest's clock count instructions: one processor, one nanosecond an instruction, so that what
    /// a program measures is the same in every run.
    #[must_use]
    pub fn count_instructions(mut self) -> Machine {
        self.count_instructions = true;
        self.cpus = 1;
        self.acceleration = Acceleration::Software;
        self
    }

    /// Further arguments of the kernel.
    #[must_use]
    pub fn append(mut self, arguments: &str) -> Machine {
        self.append = arguments.into();
        self
    }

    /// A further module to load, with those it depends on.
    #[must_use]
    pub fn module(mut self, name: impl Into<String>) -> Machine {
        self.modules.push(name.into());
        self
    }

    /// A scratch file system at `/disk`: ext4 on a loop device of so many bytes in the guest's memory. So direct access
    /// (`O_DIRECT`) works there, and what it takes is counted like everything else.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Machine {
        self.disk = Some(bytes);
        self
    }

    /// An NVMe device of so many bytes, all zero and gone with the guest: `/dev/nvme0n1`, and `/dev/ng0n1` for its own
    /// commands. QEMU keeps it in a sparse file.
    #[must_use]
    pub fn nvme(mut self, bytes: u64) -> Machine {
        self.nvme = Some(bytes);
        self
    }

    /// A file of the host that the jobs find.
    #[must_use]
    pub fn file(mut self, file: File) -> Machine {
        self.files.push(file);
        self
    }

    /// A program of the host, found in `$PATH`, that scripts of the guest find under its name: in `/usr/local/bin`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not installed.
    pub fn program(self, name: &str) -> Result<Machine> {
        let problem = || "is in no folder of $PATH; make setup installs what tests run".into();
        let host =
            job::in_path(name).ok_or_else(|| Error::NotFound { path: name.into(), problem: problem() })?;
        Ok(self.file(File { host, guest: Path::new("/usr/local/bin").join(name) }))
    }

    /// An environment variable of all jobs.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Machine {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// What executes the guest.
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    /// Boots the kernel, runs the jobs one after the other and ends the machine. The jobs' output and errors
    /// are written as they come.
    ///
    /// # Errors
    /// [`Error::Died`] and [`Error::TimedOut`] if the guest did not come to the end of the jobs;
    /// [`Error::NotFound`] if a program or one of its libraries is not there; [`Error::Missing`] without QEMU
    /// or busybox; [`Error::Qemu`] if QEMU does not start. That a job fails is no error: see [`Report`].
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

    /// Whether the guest has one more processor than its jobs: the first, which they are kept away from. QEMU in
    /// software (7.2 to 10.0) changes a word of that processor's state from the threads of all others, without a lock,
    /// whenever they load the state of their floating-point unit (`cpu_clear_ignne`). In that word is whether the
    /// processor has nested page tables and lets interrupts in: a virtual machine that runs there loses its memory now
    /// and then, and triple-faults, or the guest's own kernel does (docs/vm.md).
    fn has_spare(&self) -> bool {
        self.acceleration == Acceleration::Software && self.cpus > 1 && !self.count_instructions
    }
}

/// Makes a file of holes.
fn sparse(path: &Path, bytes: u64) -> Result<PathBuf> {
    let what = Error::io(format!("create {}", path.display()));
    std::fs::File::create(path).and_then(|file| file.set_len(bytes)).map_err(what)?;
    Ok(path.to_owned())
}

/// A piece of what came out of a port.
struct Piece {
    port: usize,
    bytes: Vec<u8>,
}

/// What the guest has said so far.
#[derive(Default)]
struct Said {
    console: Vec<u8>,
    control: Vec<u8>,
    statuses: Vec<i32>,
    log: String,
    boot: Option<Duration>,
    done: bool,
}

/// A machine while it runs.
struct Session {
    start: Instant,
    /// Of booting, and then of the jobs.
    deadline: Instant,
    limit: Duration,
    said: Said,
}

/// A limit on a machine that took so long to boot the guest.
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
            // Read all the time: a QEMU that has much to warn about must not wait for us.
            let words = scope.spawn(move || {
                let mut text = String::new();
                // What is not UTF-8 is not worth an error.
                let _ = words.map(|mut words| words.read_to_string(&mut text));
                text
            });
            for (port, reader) in ports.into_iter().enumerate() {
                let sender = sender.clone();
                scope.spawn(move || forward(port, reader, &sender));
            }
            drop(sender);
            let complete = self.until_closed(&pieces, out, err);
            // Ends the threads, too: their pipes close.
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
            // A guest that resets or panics while it boots ends QEMU as one does that is done. What QEMU said before then were
            // warnings.
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

    /// Takes what comes until all ports are closed, or silent after the guest is done: true; or until the time is over:
    /// false.
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

    /// Understands the complete lines of the control port.
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

/// A pipe at its end.
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
