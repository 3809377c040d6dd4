//! Code that the tests share: the process, and skipping tests where there is no real ring 0.

#![allow(dead_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bedplate_ring0::Process;

/// Set in the virtual machine of the tests, and by users whose machine has real ring 0.
pub const ENABLED: &str = "BEDPLATE_VM";

/// Whether guest code may run here; if not, prints why. A software KVM would start it and then fail.
pub fn enabled() -> bool {
    let enabled = std::env::var_os(ENABLED).is_some();
    if !enabled {
        eprintln!(
            "skipped: needs ring 0 of a real processor, or of the test machine; set {ENABLED}=1 where there is one"
        );
    }
    enabled
}

/// The process, built on first use.
pub fn process() -> &'static Process {
    static BUILT: OnceLock<&Process> = OnceLock::new();
    BUILT.get_or_init(|| Process::builder().build().expect("ring 0 can be had"))
}

/// A time limit longer than any successful operation, even on a slow and busy machine. It ends a test that would
/// otherwise hang. No test measures it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `thread`, a thread of this process, sleeps in the system call `number`, according to Linux.
pub fn wait_until_blocked(thread: i32, number: i64) {
    let (path, start) = (format!("/proc/self/task/{thread}/syscall"), Instant::now());
    loop {
        // The file contains "0 0x3 ..." for a thread that sleeps in system call 0, and "running" for a thread that
        // does not sleep.
        let text = std::fs::read_to_string(&path).unwrap();
        if text.split(' ').next().and_then(|word| word.parse().ok()) == Some(number) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "thread {thread} does not sleep in call {number}: {text}");
        std::thread::yield_now();
    }
}

/// The kernel's number of this thread.
pub fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Evaluates to the process, or returns from the test if there is no ring 0.
#[macro_export]
macro_rules! ring0_or_skip {
    () => {
        if common::enabled() { common::process() } else { return }
    };
}
