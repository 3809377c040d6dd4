//! A snapshot that stays until it is released, and is checked then.

use std::io::{PipeWriter, Read, Write};
use std::sync::atomic::Ordering;

use bedplate_snapshot::{Memory, Task};

use crate::{Error, Result};

/// A snapshot whose task waits. It shares all pages of the memory, and uses no processor.
pub struct Held {
    task: Task,
    release: PipeWriter,
    /// The sum of the memory's words before the snapshot.
    sum: u64,
}

/// The sum of all words of a memory, which no other thread writes to.
pub fn sum(memory: &Memory) -> u64 {
    memory.words().iter().fold(0, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
}

/// The sum of all words of a snapshot.
pub fn sum_of(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

/// A task's result that is a number.
pub fn number(bytes: &[u8]) -> Result<u64> {
    let bytes =
        bytes.try_into().map_err(|_| Error::engine(format!("a task returned {} bytes", bytes.len())))?;
    Ok(u64::from_le_bytes(bytes))
}

impl Held {
    /// Takes a snapshot with `take`, which gets the task. No other thread may write to the memory meanwhile. When this
    /// returns, the task waits.
    pub fn take(memory: &Memory, take: impl FnOnce(TaskOf) -> Result<Task>) -> Result<Held> {
        let pipe = || std::io::pipe().map_err(Error::io("create a pipe"));
        let ((mut is_ready, mut ready), (mut wait, release)) = (pipe()?, pipe()?);
        let sum = sum(memory);
        let task = take(Box::new(move |view| {
            // The other end reports a pipe that fails.
            let _ = ready.write_all(&[1]);
            let _ = wait.read_exact(&mut [0]);
            sum_of(view.words()).to_le_bytes().to_vec()
        }))?;
        is_ready.read_exact(&mut [0]).map_err(Error::io("wait for a snapshot's task"))?;
        Ok(Held { task, release, sum })
    }

    /// Ends the snapshot.
    ///
    /// # Errors
    /// Also if the snapshot differs from the memory at the time when it was taken.
    pub fn end(mut self) -> Result<()> {
        self.release.write_all(&[1]).map_err(Error::io("let a snapshot's task go on"))?;
        let found = number(&self.task.join()?)?;
        if found == self.sum {
            return Ok(());
        }
        let expected = self.sum;
        Err(Error::engine(format!(
            "a snapshot's words sum up to {found}, the memory's were {expected} before it"
        )))
    }
}

/// The function that a held snapshot's task runs.
pub type TaskOf = Box<dyn FnOnce(&bedplate_snapshot::View<'_>) -> Vec<u8> + Send>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sides::{FORK, write};

    #[test]
    fn a_snapshot_that_is_not_what_the_memory_was_is_an_error() {
        let memory = FORK.memory(1 << 20).unwrap();
        let take = |memory: &Memory, late: bool| {
            FORK.alone(memory, || {
                Held::take(memory, |task| {
                    if late {
                        write(memory, 3, 77);
                    }
                    Ok(memory.spawn(task)?)
                })
            })
        };
        let held = take(&memory, false).unwrap();
        // This write is after the snapshot.
        write(&memory, 3, 76);
        held.end().unwrap();
        let error = take(&memory, true).unwrap().end().unwrap_err().to_string();
        assert!(error.contains("sum up to"), "{error}");
    }
}
