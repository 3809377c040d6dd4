//! A separate process for each side. So its CPU time, its memory and its threads are its own, and its allocations do
//! not affect the other sides.
//!
//! The process answers each line with a line. It ends on request, or when the process that started it has ended.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::budget::Group;
use crate::{Error, Result};

type Answer<T> = std::result::Result<T, String>;

/// The function by which a side answers a question.
pub type Serve<Q, A> = Box<dyn FnMut(Q) -> Result<A>>;

/// The process.
pub struct Apart<Q, A> {
    name: String,
    ask: PipeWriter,
    answers: BufReader<PipeReader>,
    process: libc::pid_t,
    /// Removed after the process has ended.
    _group: Option<Group>,
    _types: PhantomData<fn(Q) -> A>,
}

impl<Q: Serialize + DeserializeOwned, A: Serialize + DeserializeOwned> Apart<Q, A> {
    /// Starts the process, with a memory limit if a group is given. Returns the reason if it could not begin.
    pub fn start(
        name: &str,
        limit: Option<(Group, u64)>,
        begin: impl FnOnce() -> Result<Serve<Q, A>>,
    ) -> Result<Answer<Self>> {
        let pipe = || std::io::pipe().map_err(Error::io("create a pipe"));
        let ((questions, ask), (answers, mut answer)) = (pipe()?, pipe()?);
        // SAFETY: the only lock of another thread that the child may need is that of the allocator, which the C library
        // makes usable after a fork.
        let process = match unsafe { libc::fork() } {
            -1 => return Err(Error::io("fork")(std::io::Error::last_os_error())),
            0 => {
                drop((ask, answers));
                let served = catch_unwind(AssertUnwindSafe(|| {
                    let begun = match &limit {
                        Some((group, bytes)) => group
                            .enter()
                            .and_then(|()| group.allow(*bytes))
                            .map_err(Error::io("limit the memory")),
                        None => Ok(()),
                    };
                    serve(begun.and_then(|()| begin()), questions, &mut answer);
                }));
                // SAFETY: the child must skip the buffers and the cleanup at exit, which belong to the parent.
                unsafe { libc::_exit(served.is_err().into()) }
            }
            process => process,
        };
        drop((questions, answer));
        let answers = BufReader::new(answers);
        let group = limit.map(|(group, _)| group);
        let mut apart =
            Self { name: name.to_owned(), ask, answers, process, _group: group, _types: PhantomData };
        Ok(apart.answer::<()>()?.map(|()| apart))
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, question: &Q) -> Result<A> {
        let line = serde_json::to_string(question).map_err(|problem| self.failed(problem))? + "\n";
        self.ask.write_all(line.as_bytes()).map_err(|problem| self.failed(problem))?;
        self.answer()?.map_err(|problem| self.failed(problem))
    }

    fn answer<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Answer<T>> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|problem| self.failed(problem))?;
        serde_json::from_str(&line).map_err(|_| self.failed("its process has ended"))
    }

    fn failed(&self, problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::io(format!("side {}", self.name))(std::io::Error::other(problem))
    }
}

impl<Q, A> Drop for Apart<Q, A> {
    fn drop(&mut self) {
        // An empty line ends the process. Closing the pipe is not enough, because other sides' processes have it open,
        // too.
        let _ = self.ask.write_all(b"\n");
        // SAFETY: a child of this process that nobody else waits for.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// Reports whether the side could begin, and then answers until an empty line or the end.
fn serve<Q: DeserializeOwned, A: Serialize>(
    begun: Result<Serve<Q, A>>,
    questions: PipeReader,
    answers: &mut PipeWriter,
) {
    let is_there = begun.as_ref().map(|_| ()).map_err(ToString::to_string);
    let (Some(()), Ok(mut side)) = (say(answers, &is_there), begun) else { return };
    for line in BufReader::new(questions).lines() {
        let Some(question) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { return };
        let answer = side(question).map_err(|problem| problem.to_string());
        if say(answers, &answer).is_none() {
            return;
        }
    }
}

fn say<T: Serialize>(answers: &mut PipeWriter, answer: &Answer<T>) -> Option<()> {
    let line = serde_json::to_string(answer).ok()? + "\n";
    answers.write_all(line.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;

    type Adder = Apart<u64, u64>;

    fn adder(limit: Option<(Group, u64)>) -> Adder {
        let begin = || {
            let mut sum = 0;
            Ok(Box::new(move |more: u64| {
                sum += more;
                if more == 99 { Err(Error::engine("too much".to_owned())) } else { Ok(sum) }
            }) as Serve<u64, u64>)
        };
        Apart::start("adder", limit, begin).unwrap().unwrap()
    }

    rusty_fork_test! {
    #[test]
    fn it_answers_fails_and_ends() {
        let (mut one, mut two) = (adder(None), adder(None));
        assert_eq!((one.ask(&3).unwrap(), two.ask(&4).unwrap(), one.ask(&5).unwrap()), (3, 4, 8));
        assert!(one.ask(&99).unwrap_err().to_string().contains("too much"));
        // The first process must end although the second one has its pipe open.
        drop(one);
        assert_eq!(two.ask(&1).unwrap(), 5);
        let refused: Answer<Adder> =
            Apart::start("none", None, || Err(Error::engine("not here".to_owned()))).unwrap();
        assert!(refused.err().unwrap().contains("not here"));
    }

    #[test]
    fn page_cache_is_limited_where_there_are_control_groups() {
        let group = match Group::create("test") {
            Ok(group) => group,
            Err(reason) => return println!("skipped: {reason}"),
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let begin = move || {
            Ok(Box::new(move |bytes: u64| {
                let io = |e: std::io::Error| Error::io("write")(e);
                let mut file = std::fs::File::create_new(&path).map_err(io)?;
                for _ in 0..bytes >> 20 {
                    file.write_all(&vec![1u8; 1 << 20]).and_then(|()| file.sync_data()).map_err(io)?;
                }
                Ok(bedplate_scan::resident_bytes(&file, 0..bytes)?)
            }) as Serve<u64, u64>)
        };
        let mut apart: Apart<u64, u64> =
            Apart::start("cache", Some((group, 24 << 20)), begin).unwrap().unwrap();
        let resident = apart.ask(&(64 << 20)).unwrap();
        assert!((1..28 << 20).contains(&resident), "{resident}");
    }
    }
}
