//! Measurements of engines: the cost of some work, and the answers of clients that run at the same time.

use std::path::Path;
use std::time::Instant;

use super::engine::{Answer, Rows, Run, Together};
use super::{cold, fresh};
use crate::{Error, Result};

/// The cost of some work.
pub struct Measured {
    pub wall_ns: f64,
    pub cpu_ns: f64,
    /// As in [`Run`].
    pub device_bytes: Option<f64>,
}

/// Does some work and measures it. `folder`: the folder of the data; the reads of its device are counted. `is_limited`: the work
/// runs in a control group that is smaller than the data. `cpu_ns`: the processor time so far of all processes that take part.
pub fn measure<T>(
    folder: &Path,
    is_limited: bool,
    cpu_ns: impl Fn() -> Result<u64>,
    work: impl FnOnce() -> Result<T>,
) -> Result<(Measured, T)> {
    // A small control group has no room for this, and gets memory that the machine already has from its host.
    if !is_limited {
        fresh::touch(cold::bytes(folder)?);
    }
    let (cpu_before, device_before, start) = (cpu_ns()?, cold::device_bytes(folder), Instant::now());
    let done = work()?;
    let wall_ns = start.elapsed().as_nanos() as f64;
    let device = device_before.zip(cold::device_bytes(folder));
    let measured = Measured {
        wall_ns,
        cpu_ns: cpu_ns()?.saturating_sub(cpu_before) as f64,
        device_bytes: device.map(|(before, now)| now.saturating_sub(before) as f64),
    };
    Ok((measured, done))
}

impl Measured {
    /// The run that did this work.
    pub fn run(self, rows: Rows) -> Run {
        Run { wall_ns: self.wall_ns, cpu_ns: self.cpu_ns, device_bytes: self.device_bytes, rows }
    }

    /// The clients that did this work.
    pub fn together(self, answers: Vec<Answer>) -> Together {
        Together { wall_ns: self.wall_ns, cpu_ns: self.cpu_ns, device_bytes: self.device_bytes, answers }
    }
}

/// Runs each client in a thread of its own, all at the same time. Returns their results in the order of the clients.
pub fn at_once<C: Send, T: Send>(
    clients: impl IntoIterator<Item = C>,
    run: impl Fn(C) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || run(client))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(Error::engine("a client panicked".to_owned())))
        };
        threads.into_iter().map(join).collect()
    })
}

/// A client's answers to queries, each with its index and its text, one after the other.
pub fn answers<Q: AsRef<str>>(
    queries: impl IntoIterator<Item = (usize, Q)>,
    mut rows: impl FnMut(&str) -> Result<Rows>,
) -> Result<Vec<Answer>> {
    let answer = |(query, text): (usize, Q)| {
        let start = Instant::now();
        let rows = rows(text.as_ref())?;
        Ok(Answer { query, wall_ns: start.elapsed().as_nanos() as f64, rows })
    };
    queries.into_iter().map(answer).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn work_has_the_processor_time_that_passed_during_it() {
        let cpu = Cell::new(5);
        let folder = tempfile::tempdir().unwrap();
        let (measured, done) =
            measure(folder.path(), false, || Ok(cpu.get()), || Ok(cpu.replace(12))).unwrap();
        assert_eq!((measured.cpu_ns, done), (7.0, 5));
        assert!(measured.wall_ns > 0.0);
        let failure = measure(folder.path(), true, || Ok(0), || Err::<(), _>(Error::engine("no".to_owned())));
        assert!(failure.is_err());
    }

    #[test]
    fn clients_run_at_the_same_time_and_keep_their_order() {
        let barrier = Barrier::new(3);
        let results = at_once(0..3, |client| {
            barrier.wait();
            Ok(client * 2)
        });
        assert_eq!(results.unwrap(), [0, 2, 4]);
    }

    #[test]
    fn a_client_that_fails_or_panics_is_an_error() {
        let fail = |client| if client == 1 { Err(Error::engine("the second".to_owned())) } else { Ok(()) };
        assert!(at_once(0..3, fail).unwrap_err().to_string().contains("the second"));
        let panic = |client: i32| if client == 1 { panic!("this test panics") } else { Ok(()) };
        assert!(at_once(0..3, panic).unwrap_err().to_string().contains("a client panicked"));
    }

    #[test]
    fn answers_have_the_index_of_their_query() {
        let found = answers([(7, "a"), (3, "b")], |text| Ok(vec![vec![text.to_owned()]])).unwrap();
        let found: Vec<_> = found.into_iter().map(|answer| (answer.query, answer.rows)).collect();
        assert_eq!(found, [(7, vec![vec!["a".to_owned()]]), (3, vec![vec!["b".to_owned()]])]);
        assert!(answers([(0, "a")], |_| Err(Error::engine("no".to_owned()))).is_err());
    }
}
