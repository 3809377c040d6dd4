//! The memory that the machine uses in addition while a function runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time between two readings.
const INTERVAL: Duration = Duration::from_millis(20);

/// Returns the result of `f`, and the most memory that the machine used meanwhile beyond its use before, in bytes. The
/// machine must be quiet otherwise.
pub fn most_beside<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let is_over = AtomicBool::new(false);
    let before = in_use(&meminfo());
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = before;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(in_use(&meminfo()));
                std::thread::sleep(INTERVAL);
            }
            most
        });
        let result = f();
        is_over.store(true, Ordering::Relaxed);
        (result, watch.join().unwrap_or(f64::NAN) - before)
    })
}

fn meminfo() -> String {
    std::fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// The anonymous and shared memory of all processes in bytes. To report the memory of one process, the kernel would have
/// to count its pages, and would delay its forks meanwhile.
fn in_use(meminfo: &str) -> f64 {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1024.0
    };
    of("AnonPages:") + of("Shmem:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_and_shared_memory_count() {
        let text = "MemTotal: 999 kB\nAnonPages:         3 kB\nShmem:   4 kB\nShmemHugePages: 50 kB\n";
        assert_eq!(in_use(text), 7.0 * 1024.0);
        assert!(in_use("MemTotal: 999 kB\n").is_nan());
    }

    #[test]
    fn a_kernel_says_how_much_is_in_use() {
        let (result, extra) = most_beside(|| 7);
        assert_eq!(result, 7);
        assert!(extra >= 0.0, "{extra}");
    }
}
