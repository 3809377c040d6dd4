//! Sets the scheduling class of the threads that send the kernel's replies.
//!
//! A reply leaves through a worker of the processor on which its request arrived. For clients on the same
//! machine that is the processor of the client, and a worker that wakes interrupts the task that runs there.
//! With many busy connections that is two context switches per reply. Workers of the batch class wait until
//! the processor is free or the running task's time slice ends, and then send for all connections at once.
//!
//! The whole machine uses the workers, so other programs' deferred work waits as well, for a time slice at most. The
//! server therefore leaves the workers alone unless its configuration says otherwise.
//!
//! Looking for workers reads a file of every process, so a separate thread does it. That thread keeps the list of
//! changed workers. It restores their class when it ends, even if it or its owner panics. Only a process that
//! is killed leaves the workers changed.

use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::activity::Activity;
use bedplate_kerneldb::{Error, Result};

/// Interval at which the thread checks whether clients are busy.
const TICK: Duration = Duration::from_millis(50);
/// Interval at which the thread looks for new workers, because the kernel starts and ends them by load.
const LOOK: Duration = Duration::from_secs(2);

const PF_KTHREAD: u64 = 0x0020_0000;

/// Keeps the machine's per-processor kernel workers in the scheduler's batch class. Dropping it restores the
/// class of those that it has changed. Needs CAP_SYS_NICE.
pub struct BatchWorkers {
    /// Nothing is ever sent. The thread ends when this is dropped.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BatchWorkers {
    /// Changes the existing workers, and later each new one.
    pub fn new() -> Result<Self> {
        let mut changed = Changed::default();
        changed.look();
        Self::start(LOOK, Some(changed), || true)
    }

    /// Changes workers while clients are busy, and restores them when they are not.
    pub(super) fn while_busy(mut activity: Activity) -> Result<Self> {
        Self::start(TICK, None, move || activity.is_busy())
    }

    /// Changes workers while `wanted` returns true. The thread calls it at the interval `every`.
    fn start(
        every: Duration,
        mut changed: Option<Changed>,
        mut wanted: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Self> {
        let (alive, owner) = mpsc::channel();
        let mut looked = Instant::now();
        let thread = thread::Builder::new()
            .name("kdb-workers".into())
            .spawn(move || {
                while owner.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    if !wanted() {
                        changed = None;
                    } else if changed.is_none() || looked.elapsed() >= LOOK {
                        changed.get_or_insert_default().look();
                        looked = Instant::now();
                    }
                }
            })
            .map_err(|e| Error::io("start the thread that looks for the kernel's workers", e))?;
        Ok(BatchWorkers { alive: Some(alive), thread: Some(thread) })
    }
}

impl Drop for BatchWorkers {
    fn drop(&mut self) {
        self.alive = None;
        // The thread restores the workers even if it panics.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The changed workers: start times by PID, because another thread can have the PID later.
#[derive(Default)]
struct Changed(HashMap<i32, u64>);

impl Changed {
    fn look(&mut self) {
        let mut now = HashMap::new();
        for (pid, started) in workers() {
            let known = self.0.get(&pid) == Some(&started);
            // Workers of another class (an administrator's choice, or another server's) are left alone.
            if known || exchange_class(pid, libc::SCHED_OTHER, libc::SCHED_BATCH) {
                now.insert(pid, started);
            }
        }
        self.0 = now;
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        for (pid, started) in workers() {
            if self.0.get(&pid) == Some(&started) {
                exchange_class(pid, libc::SCHED_BATCH, libc::SCHED_OTHER);
            }
        }
    }
}

/// Puts a thread from one scheduling class into another; false if it was not in it or may not be changed.
fn exchange_class(pid: i32, from: i32, to: i32) -> bool {
    let plain = libc::sched_param { sched_priority: 0 };
    // SAFETY: both calls take a PID by value; the second reads `plain`, which outlives it.
    unsafe { libc::sched_getscheduler(pid) == from && libc::sched_setscheduler(pid, to, &plain) == 0 }
}

/// PIDs and start times of the normal workers that are bound to a processor.
fn workers() -> impl Iterator<Item = (i32, u64)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let started = worker_start(&fs::read_to_string(entry.path().join("stat")).ok()?)?;
        Some((pid, started))
    })
}

/// The start time in a line of `/proc/PID/stat`, if the thread is such a worker, `kworker/CPU:ID`. Workers of high
/// priority (`kworker/CPU:IDH`), unbound ones (`kworker/uN:ID`) and rescuers (`kworker/R-…`) are not.
fn worker_start(stat: &str) -> Option<u64> {
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let name = stat[open + 1..close].strip_prefix("kworker/")?;
    // The name of the current work follows the worker's name.
    let name = name.split(['-', '+']).next()?;
    let (cpu, id) = name.split_once(':')?;
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    // After the name: state, ppid, pgrp, session, tty_nr, tpgid, flags, … starttime is the 20th.
    let fields: Vec<&str> = stat[close + 1..].split_whitespace().collect();
    let flags: u64 = fields.get(6)?.parse().ok()?;
    let started = fields.get(19)?.parse().ok()?;
    (number(cpu) && number(id) && flags & PF_KTHREAD != 0).then_some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, flags: u64) -> String {
        format!("12 ({name}) I 2 0 0 0 -1 {flags} 0 0 0 0 0 7 0 0 20 0 1 0 4711 0 0 18446744073709551615")
    }

    #[test]
    fn only_bound_normal_workers_count() {
        for name in ["kworker/0:1", "kworker/13:2-events", "kworker/1:0+mm_percpu_wq"] {
            assert_eq!(worker_start(&stat(name, PF_KTHREAD)), Some(4711), "{name}");
            assert_eq!(worker_start(&stat(name, 0)), None, "{name} of a user");
        }
        for name in ["kworker/0:1H-kblockd", "kworker/u8:1-flush", "kworker/R-netns", "ksoftirqd/0", "a) ("] {
            assert_eq!(worker_start(&stat(name, PF_KTHREAD)), None, "{name}");
        }
        assert_eq!(worker_start(""), None);
        assert_eq!(worker_start("1 (kworker/0:1) I 2"), None);
    }
}
