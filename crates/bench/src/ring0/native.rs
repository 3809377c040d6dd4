//! The native side: fork, the faults after it, and system calls.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::Path;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Error, Result};

use super::calls::Files;
use super::clock::Clock;
use super::{Costs, MEMORY, PAGE, WRITTEN};

pub const FORK: &str = "fork of 256 MiB";
pub const FORK_FAULT: &str = "first write to a page after fork";

/// Memory in pages of 4 KiB, all of them touched.
struct Memory(*mut u8);

impl Memory {
    fn new() -> Result<Memory> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice, and advice about it.
        let base = unsafe {
            let base = mmap_anonymous(ptr::null_mut(), MEMORY, ProtFlags::READ | ProtFlags::WRITE, flags)
                .map_err(Error::io("mapping memory"))?;
            madvise(base, MEMORY, Advice::LinuxNoHugepage).map_err(Error::io("asking for small pages"))?;
            base
        };
        let memory = Memory(base.cast());
        memory.write(MEMORY / PAGE);
        Ok(memory)
    }

    /// Writes to the first pages.
    fn write(&self, pages: usize) {
        for page in 0..pages {
            // SAFETY: inside of the mapping.
            unsafe { self.0.add(page * PAGE).cast::<u64>().write_volatile(page as u64) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`. A failure leaves it until the process ends.
        let _ = unsafe { munmap(self.0.cast(), MEMORY) };
    }
}

/// A child that waits until it is dropped.
struct Child(libc::pid_t);

impl Child {
    fn fork() -> Result<Child> {
        // SAFETY: the child calls only functions that may be called after a fork.
        match unsafe { libc::fork() } {
            -1 => Err(Error::io("forking")(std::io::Error::last_os_error())),
            0 => loop {
                // SAFETY: waits for the signal that ends it.
                unsafe { libc::pause() };
            },
            child => Ok(Child(child)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this process that nobody else waits for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, ptr::null_mut(), 0);
        }
    }
}

/// The native side.
struct Native {
    clock: Clock,
    memory: Memory,
    files: Files,
}

impl Native {
    fn round(&self) -> Result<Costs> {
        let mut child = None;
        let fork = self.clock.time(1, || {
            child = Some(Child::fork()?);
            Ok(())
        })?;
        let fault = self.clock.time(WRITTEN, || {
            self.memory.write(WRITTEN);
            Ok(())
        })?;
        drop(child);
        // The next fork finds all pages writable again, as this one did.
        self.memory.write(MEMORY / PAGE);
        let mut costs = vec![(FORK.to_owned(), fork), (FORK_FAULT.to_owned(), fault)];
        costs.extend(self.files.measure(self.clock)?);
        Ok(costs)
    }
}

/// The process that measures the native side, one round per request. It is not the other side's process, because
/// Linux notifies KVM of every page of a virtual machine that it protects or unmaps, which makes it slower.
///
/// The process ends when this is dropped, or when the process that has this ends.
pub struct Side {
    ask: Option<PipeWriter>,
    answers: BufReader<PipeReader>,
    process: libc::pid_t,
}

type Answer = std::result::Result<Costs, String>;

/// Measures a round.
pub type Round = Box<dyn FnMut() -> Result<Costs>>;

impl Side {
    /// Starts the process with the native operations. The calling process must have one thread, and must not be a
    /// virtual machine yet.
    pub fn start(clock: Clock, directory: &Path) -> Result<Side> {
        let directory = directory.to_owned();
        Side::start_with(move || {
            let native = Native { clock, memory: Memory::new()?, files: Files::create(&directory)? };
            Ok(Box::new(move || native.round()))
        })
    }

    /// Like [`Self::start`], with the function that `begin` returns in the process.
    pub fn start_with(begin: impl FnOnce() -> Result<Round>) -> Result<Side> {
        let pipe = || std::io::pipe().map_err(Error::io("creating a pipe"));
        let ((questions, ask), (answers, answer)) = (pipe()?, pipe()?);
        // SAFETY: there is no other thread whose locks the child could inherit.
        match unsafe { libc::fork() } {
            -1 => Err(Error::io("forking")(std::io::Error::last_os_error())),
            0 => {
                drop((ask, answers));
                serve(begin(), questions, answer);
                // SAFETY: the child must skip the buffers and the cleanup at exit, which belong to the parent.
                unsafe { libc::_exit(0) }
            }
            process => Ok(Side { ask: Some(ask), answers: BufReader::new(answers), process }),
        }
    }

    /// Measures a round.
    pub fn round(&mut self) -> Result<Costs> {
        let mut line = String::new();
        let asked = self.ask.as_mut().map_or(Ok(()), |ask| ask.write_all(b"\n"));
        asked
            .and_then(|()| self.answers.read_line(&mut line))
            .map_err(Error::io("asking the native side"))?;
        let failed = |problem: String| Error::io("the native side")(std::io::Error::other(problem));
        serde_json::from_str::<Answer>(&line).map_err(|_| failed("it has ended".to_owned()))?.map_err(failed)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.ask.take());
        // SAFETY: a child of this process that nobody else waits for; it ends as its pipe is closed.
        unsafe { libc::waitpid(self.process, ptr::null_mut(), 0) };
    }
}

/// Answers each line with a line, until there are no more.
fn serve(mut round: Result<Round>, questions: PipeReader, mut answers: PipeWriter) {
    for _ in BufReader::new(questions).lines() {
        let answer: Answer = match &mut round {
            Ok(round) => round().map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let written = serde_json::to_string(&answer).map(|line| answers.write_all((line + "\n").as_bytes()));
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_told_by_the_other_process() {
        let mut side = Side::start(Clock::Nanoseconds, Path::new("/no/such/folder")).unwrap();
        let error = side.round().unwrap_err().to_string();
        assert!(error.contains("creating a file"), "{error}");
    }
}
