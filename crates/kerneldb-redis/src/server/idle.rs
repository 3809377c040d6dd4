//! Measures the idle time of the machine's processors.

use std::collections::VecDeque;
use std::fs;

/// Number of measurements that a percentage spans, because the kernel counts times in hundredths of a second.
const WINDOW: usize = 4;

/// Times of all processors since the machine started, in hundredths of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    idle: u64,
    all: u64,
}

impl Times {
    /// Reads the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. These contain the other
    /// numbers.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> = line.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
        (times.len() == 8).then(|| Times { idle: times[3] + times[4], all: times.iter().sum() })
    }
}

/// Measures the idle time of the processors.
#[derive(Debug, Default)]
pub(super) struct Idle {
    looks: VecDeque<Times>,
}

impl Idle {
    /// The idle percentage of all processors' time over the last [`WINDOW`] calls; `None` before there were as many, or
    /// if the kernel does not report it.
    pub(super) fn percent(&mut self) -> Option<u64> {
        self.look(Times::parse(&fs::read_to_string("/proc/stat").ok()?)?)
    }

    fn look(&mut self, now: Times) -> Option<u64> {
        self.looks.push_back(now);
        if self.looks.len() <= WINDOW {
            return None;
        }
        let then = self.looks.pop_front()?;
        // The idle time may go backwards when a processor goes offline or comes back.
        let idle = now.idle.saturating_sub(then.idle);
        (100 * idle).checked_div(now.all.saturating_sub(then.all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_that_of_the_last_looks() {
        let mut idle = Idle::default();
        let at = |idle, all| Times { idle, all };
        assert_eq!([at(0, 0), at(0, 10), at(0, 20), at(0, 30)].map(|times| idle.look(times)), [None; 4]);
        assert_eq!(idle.look(at(0, 40)), Some(0));
        assert_eq!(idle.look(at(10, 50)), Some(25));
        assert_eq!(idle.look(at(9, 60)), Some(22));
        assert_eq!([at(9, 60); 4].map(|times| idle.look(times))[3], None, "no time has passed");
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        let stat = "cpu  1 2 3 40 5 6 7 8 9 10\ncpu0 1 2 3 40 5 6 7 8 9 10\n";
        assert_eq!(Times::parse(stat), Some(Times { idle: 45, all: 72 }));
        for stat in ["", "cpu", "cpu  1 2 3", "cpu0 1 2 3 4 5 6 7 8 9 10", "cpu  1 2 x 4 5 6 7 8"] {
            assert_eq!(Times::parse(stat), None, "{stat}");
        }
        assert!(Times::parse(&fs::read_to_string("/proc/stat").unwrap()).is_some());
    }
}
