//! Threads that a library starts in its host.
//!
//! A host's signal handlers are written for its own threads; PostgreSQL's, for example, jump out of the code that they
//! interrupt. The kernel delivers a signal of the process to any thread that does not block it. So the threads of a library
//! block all signals but those that an instruction of their own causes. A forked child has none of these threads: [`forks`]
//! tells which objects it inherited. A child also inherits locks of files: [`outwait()`] waits until the child has released
//! them. [`mod@slice`] is for threads on which others wait.

#![cfg(target_os = "linux")]

pub mod forks;
mod outwait;
pub mod slice;

use std::io;
use std::marker::PhantomData;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

pub use outwait::{PATIENCE, outwait};

/// Signals that an instruction causes. If a thread blocks one of them, the signal ends the process. A handler may be able to
/// handle it: threads enter ring 0 by SIGSEGV.
const OF_INSTRUCTIONS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

/// Starts a thread, as [`Builder::spawn`] does, that blocks all signals but those that its own instructions cause. The caller's
/// signals are as before when this returns.
///
/// # Errors
/// The errors of [`Builder::spawn`].
pub fn spawn<F, T>(builder: Builder, body: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // The new thread inherits the mask, so there is no moment at which it takes a signal.
    let _blocked = BlockedSignals::all_but_faults();
    builder.spawn(body)
}

/// Blocks signals in this thread, and in those that it starts meanwhile, until it is dropped.
#[must_use]
pub struct BlockedSignals {
    before: SigSet,
    _of_this_thread: PhantomData<*mut ()>,
}

impl BlockedSignals {
    /// Blocks all signals. An instruction that causes one ends the process.
    pub fn all() -> Self {
        Self::block(SigSet::all())
    }

    /// Blocks all signals but those that an instruction of this thread's causes.
    pub fn all_but_faults() -> Self {
        let mut signals = SigSet::all();
        OF_INSTRUCTIONS.into_iter().for_each(|signal| signals.remove(signal));
        Self::block(signals)
    }

    fn block(signals: SigSet) -> Self {
        let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).expect("the kernel knows SIG_BLOCK");
        Self { before, _of_this_thread: PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // It cannot fail, because the set is one that the kernel returned.
        let _ = self.before.thread_set_mask();
    }
}

/// Counts the threads of this process whose names pass `is_such`; Linux keeps 15 bytes of a name. Also gives the set of signals
/// that may be delivered to one of them or more (bit N − 1 for signal N), without those that instructions cause. A thread gets
/// its name when it first runs, so this waits for `least` such threads, up to ten seconds. It is for tests of crates that use
/// this one.
///
/// # Errors
/// `/proc` cannot be read.
pub fn deliverable(least: usize, is_such: impl Fn(&str) -> bool) -> io::Result<(usize, u64)> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let now = deliverable_now(&is_such)?;
        if now.0 >= least || Instant::now() > end {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn deliverable_now(is_such: impl Fn(&str) -> bool) -> io::Result<(usize, u64)> {
    /// SIGKILL, SIGSTOP, and the signals that the C library reserves.
    const NEVER_BLOCKED: u64 = 1 << (9 - 1) | 1 << (19 - 1) | 1 << (32 - 1) | 1 << (33 - 1);
    let of_instructions: u64 = OF_INSTRUCTIONS.into_iter().map(|signal| 1 << (signal as i32 - 1)).sum();
    let (mut threads, mut signals) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task")? {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(task?.path().join("status")) else { continue };
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        if !field("Name:").is_some_and(&is_such) {
            continue;
        }
        let blocked = field("SigBlk:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        threads += 1;
        signals |= !blocked.unwrap_or(0) & !NEVER_BLOCKED & !of_instructions;
    }
    Ok((threads, signals))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn mine() -> SigSet {
        SigSet::thread_get_mask().unwrap()
    }

    #[test]
    fn a_thread_blocks_what_its_host_may_handle_and_the_host_does_not() {
        let before = mine();
        let (end, wait) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let body = move || {
            ready.send(mine()).unwrap();
            let _ = wait.recv();
        };
        let thread = spawn(Builder::new().name("of-a-library".into()), body).unwrap();
        let its = is_ready.recv().unwrap();
        assert!(
            its.contains(Signal::SIGTERM) && its.contains(Signal::SIGUSR1) && its.contains(Signal::SIGALRM)
        );
        assert!(!its.contains(Signal::SIGSEGV) && !its.contains(Signal::SIGBUS));
        assert_eq!(mine(), before);
        assert_eq!(deliverable(1, |name| name == "of-a-library").unwrap(), (1, 0));
        drop(end);
        thread.join().unwrap();
        assert_eq!(mine(), before);
    }

    #[test]
    fn signals_are_blocked_until_the_guard_is_dropped() {
        let before = mine();
        assert!(!before.contains(Signal::SIGUSR1) && !before.contains(Signal::SIGSEGV));
        let some = BlockedSignals::all_but_faults();
        assert!(mine().contains(Signal::SIGUSR1) && !mine().contains(Signal::SIGSEGV));
        let all = BlockedSignals::all();
        assert!(mine().contains(Signal::SIGUSR1) && mine().contains(Signal::SIGSEGV));
        drop(all);
        assert!(mine().contains(Signal::SIGUSR1) && !mine().contains(Signal::SIGSEGV));
        drop(some);
        assert_eq!(mine(), before);
    }

    #[test]
    fn a_thread_that_takes_signals_is_told_apart() {
        let (end, wait) = mpsc::channel::<()>();
        let thread = Builder::new().name("of-the-host".into()).spawn(move || wait.recv().is_ok()).unwrap();
        let (threads, seen) = deliverable(1, |name| name == "of-the-host").unwrap();
        assert_eq!(threads, 1);
        assert_ne!(seen & 1 << (Signal::SIGTERM as i32 - 1), 0);
        drop(end);
        thread.join().unwrap();
    }
}
