//! A process of its own for the side in ring 0. Linux tells KVM of every page of a virtual machine's that it protects or
//! takes away, and is slower for it: the other sides' process is no virtual machine.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::time::Duration;

use bedplate_snapshot::Memory;
use serde::{Deserialize, Serialize};

use super::htap::{Window, measure};
use super::sides::RING0;
use crate::{Error, Result};

/// The process. It ends when this is dropped, or the process that has this ends.
pub struct Apart {
    ask: Option<PipeWriter>,
    answers: BufReader<PipeReader>,
    process: libc::pid_t,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Question {
    /// Between snapshots; none is a window without.
    interval_ms: Option<u64>,
    seed: u64,
}

type Answer<T> = std::result::Result<T, String>;

impl Apart {
    /// Starts it, with a memory of its own; or says why there is no ring 0 here. This process has one thread.
    pub fn start(bytes: usize, window: Duration) -> Result<Answer<Self>> {
        let pipe = || std::io::pipe().map_err(Error::io("creating a pipe"));
        let ((questions, ask), (answers, answer)) = (pipe()?, pipe()?);
        // SAFETY: there is no other thread whose locks the child could inherit.
        let mut apart = match unsafe { libc::fork() } {
            -1 => return Err(Error::io("forking")(std::io::Error::last_os_error())),
            0 => {
                drop((ask, answers));
                serve(bytes, window, questions, answer);
                // SAFETY: what the parent has buffered and what it cleans up at its end is the parent's.
                unsafe { libc::_exit(0) }
            }
            process => Self { ask: Some(ask), answers: BufReader::new(answers), process },
        };
        Ok(apart.answer::<()>()?.map(|()| apart))
    }

    /// Measures a window there.
    pub fn measure(&mut self, interval: Option<u64>, seed: u64) -> Result<Window> {
        let question =
            serde_json::to_string(&Question { interval_ms: interval, seed }).map_err(failed)? + "\n";
        if let Some(ask) = &mut self.ask {
            ask.write_all(question.as_bytes()).map_err(failed)?;
        }
        self.answer::<Window>()?.map_err(failed)
    }

    fn answer<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Answer<T>> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(failed)?;
        serde_json::from_str(&line).map_err(|_| failed("it has ended"))
    }
}

fn failed(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::io("the side in ring 0")(std::io::Error::other(problem))
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.ask.take());
        // SAFETY: a child of this process that nobody else waits for; it ends as its pipe is closed.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// Says whether there is ring 0, and then answers a line to each line, until there are no more.
fn serve(bytes: usize, window: Duration, questions: PipeReader, mut answers: PipeWriter) {
    let memory = RING0.memory(bytes).map_err(|error| error.to_string());
    let is_there = memory.as_ref().map(|_| ()).map_err(Clone::clone);
    if say(&mut answers, &is_there).is_none() {
        return;
    }
    let Ok(memory) = memory else { return };
    for line in BufReader::new(questions).lines() {
        let Some(question) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { return };
        if say(&mut answers, &window_of(&memory, window, question)).is_none() {
            return;
        }
    }
}

fn window_of(memory: &Memory, window: Duration, question: Question) -> Answer<Window> {
    memory.settle();
    let interval = question.interval_ms.map(Duration::from_millis);
    measure(memory, window, interval, question.seed).map_err(|error| error.to_string())
}

fn say<T: Serialize>(answers: &mut PipeWriter, answer: &Answer<T>) -> Option<()> {
    let line = serde_json::to_string(answer).ok()? + "\n";
    answers.write_all(line.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_measures_where_there_is_ring_0_and_says_why_where_there_is_none() {
        match Apart::start(1 << 20, Duration::from_millis(50)).unwrap() {
            Ok(mut apart) => {
                let without = apart.measure(None, 1).unwrap();
                let with = apart.measure(Some(1), 1).unwrap();
                assert!(without.rate_per_s > 0.0 && without.latencies.count() > 0);
                assert!(with.snapshots_per_s > 0.0 && with.rate_per_s > 0.0);
            }
            Err(reason) => assert!(reason.contains("ring0"), "{reason}"),
        }
    }
}
