//! Drivers that pass operations of a trace to an engine from user space (paper 6.2 and Figure 6b).
//! They use `BPF_PROG_TEST_RUN`, with one operation or a batch per call.

use bedplate_kerneldb::{Database, Session, SetOptions, TRACE_OPS, Trace};

use super::trace::{TraceOp, Workload, key};
use crate::cpu::thread_cpu_ns;
use crate::{Error, Result};

/// Results of the operations of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Completed operations.
    pub done: u64,
    /// Operations that ended in an Error state and were rolled back. [`super::run::Refused`] has
    /// the reasons.
    pub rolled_back: u64,
    /// CPU time of the driving thread in nanoseconds, without the preparation of the operations.
    pub cpu_ns: u64,
}

impl Outcome {
    /// Adds another one's counts.
    pub fn add(&mut self, other: Outcome) {
        self.done += other.done;
        self.rolled_back += other.rolled_back;
        self.cpu_ns += other.cpu_ns;
    }

    /// Counts one operation's result. Returns errors that no workload should cause.
    fn count<T>(&mut self, result: bedplate_kerneldb::Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => {
                self.done += 1;
                Ok(Some(value))
            }
            Err(e) if e.is_transient() => {
                self.rolled_back += 1;
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }
}

/// Drives operations of a workload. One driver belongs to one thread.
pub trait Driver: Send {
    /// Runs the operations in order.
    fn run(&mut self, ops: &[TraceOp]) -> Result<Outcome>;
}

/// The way in which operations reach the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driving {
    /// [`TRACE_OPS`] operations per call; needs a database of one partition.
    Batch,
    /// One operation per call.
    OnePerCall,
}

impl Driving {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Driving::Batch => "batch",
            Driving::OnePerCall => "one per call",
        }
    }

    /// A driver of this kind.
    pub fn driver(self, database: &Database, workload: &Workload) -> Result<Box<dyn Driver>> {
        Ok(match self {
            Driving::Batch => Box::new(Batch::new(database, workload)?),
            Driving::OnePerCall => Box::new(OnePerCall::new(database, workload)?),
        })
    }
}

/// One system call per operation.
pub struct OnePerCall {
    session: Session,
    value: Vec<u8>,
}

impl OnePerCall {
    /// A driver on a session of its own.
    pub fn new(database: &Database, workload: &Workload) -> Result<Self> {
        Ok(OnePerCall { session: database.session()?, value: vec![b'v'; workload.value_len] })
    }

    /// Runs one operation without measuring its CPU time.
    pub fn one(&mut self, op: TraceOp, outcome: &mut Outcome) -> Result<()> {
        let key = key(op.key());
        if op.is_set() {
            outcome.count(self.session.set(&key, &self.value, SetOptions::default()))?;
        } else if let Some(found) = outcome.count(self.session.get(&key))? {
            let len = found.map(|v| v.data.len());
            if len != Some(self.value.len()) {
                return Err(Error::engine(format!("key {} has a value of length {len:?}", op.key())));
            }
        }
        Ok(())
    }
}

impl Driver for OnePerCall {
    fn run(&mut self, ops: &[TraceOp]) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let start = thread_cpu_ns();
        for op in ops {
            self.one(*op, &mut outcome)?;
        }
        outcome.cpu_ns = thread_cpu_ns() - start;
        Ok(outcome)
    }
}

/// A trace of operations per system call.
struct Batch {
    session: Session,
    trace: Trace,
    value: Vec<u8>,
}

impl Batch {
    fn new(database: &Database, workload: &Workload) -> Result<Self> {
        Ok(Batch {
            session: database.session()?,
            trace: database.trace()?,
            value: vec![b'v'; workload.value_len],
        })
    }
}

impl Driver for Batch {
    fn run(&mut self, ops: &[TraceOp]) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for batch in ops.chunks(TRACE_OPS) {
            self.trace.clear();
            let mut gets = 0;
            for op in batch {
                let key = key(op.key());
                if op.is_set() {
                    self.trace.set(&key, self.value.len());
                } else {
                    self.trace.get(&key);
                    gets += 1;
                }
            }
            let start = thread_cpu_ns();
            let ran = self.trace.run(&mut self.session, &self.value)?;
            outcome.cpu_ns += thread_cpu_ns() - start;
            if ran.found + ran.errors < gets {
                return Err(Error::engine(format!("{} of {gets} keys were found", ran.found)));
            }
            outcome.rolled_back += ran.errors;
            outcome.done += batch.len() as u64 - ran.errors;
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use bedplate_kerneldb::Error as DbError;

    use super::*;

    #[test]
    fn results_are_counted_by_kind() {
        let mut o = Outcome::default();
        assert_eq!(o.count(Ok(5)).unwrap(), Some(5));
        for e in [DbError::Conflict, DbError::Busy, DbError::NoVersion, DbError::WalFull] {
            assert_eq!(o.count::<()>(Err(e)).unwrap(), None);
        }
        assert!(o.count::<()>(Err(DbError::NoMemory)).is_err());
        assert_eq!(o, Outcome { done: 1, rolled_back: 4, cpu_ns: 0 });
    }
}
