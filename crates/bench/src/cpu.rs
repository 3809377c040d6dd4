//! CPU time used by this thread, a process, the kernel's own threads, and the whole machine.
//!
//! All figures come from the scheduler's nanosecond clocks, not from tick sampling, except where a
//! function says so. On kernels without interrupt time accounting (the usual build) the time of a
//! softirq belongs to the task that it interrupted.

use std::collections::HashMap;
use std::{fs, io};

use rustix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// CPU time of all threads of this process in nanoseconds, those that ended included.
pub fn own_cpu_ns() -> u64 {
    clock_ns(ClockId::ProcessCPUTime)
}

fn clock_ns(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// User and kernel CPU time in nanoseconds. The sum is exact; how it is split is sampled by ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel, softirqs that interrupted it included.
    pub system_ns: u64,
}

impl CpuTime {
    /// Processor time of the calling thread.
    pub fn of_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    /// Processor time of all threads of this process, those that have ended included.
    pub fn of_process() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    /// Processor time of this process's children that have ended and been waited for, and of their children.
    pub fn of_children() -> Self {
        Self::of(libc::RUSAGE_CHILDREN)
    }

    fn of(whom: libc::c_int) -> Self {
        // SAFETY: a zeroed rusage is a valid out-parameter, and it outlives the call.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(whom, &mut usage);
            usage
        };
        let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
        CpuTime { user_ns: ns(usage.ru_utime), system_ns: ns(usage.ru_stime) }
    }

    /// User and system time.
    pub fn total_ns(self) -> u64 {
        self.user_ns + self.system_ns
    }

    /// CPU time added since `earlier`.
    pub fn since(self, earlier: CpuTime) -> CpuTime {
        CpuTime {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }

    /// Sum of both.
    #[must_use]
    pub fn plus(self, other: CpuTime) -> CpuTime {
        CpuTime { user_ns: self.user_ns + other.user_ns, system_ns: self.system_ns + other.system_ns }
    }
}

/// CPU time of all live threads of a process in nanoseconds (without threads that have ended).
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading.
        if let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) {
            total += run_ns(&text).unwrap_or(0);
        }
    }
    Ok(total)
}

/// First field of `schedstat`: time on a processor in nanoseconds.
fn run_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// CPU times of the kernel threads that do network work for others: kworkers and ksoftirqd.
#[derive(Clone, Debug, Default)]
pub struct KernelThreads(HashMap<u32, u64>);

impl KernelThreads {
    /// Reads the CPU times of all of them.
    pub fn sample() -> io::Result<Self> {
        let mut threads = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(|s| s.parse::<u32>().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            if !is_network_worker(&stat) {
                continue;
            }
            if let Some(ns) =
                fs::read_to_string(entry.path().join("schedstat")).ok().as_deref().and_then(run_ns)
            {
                threads.insert(pid, ns);
            }
        }
        Ok(KernelThreads(threads))
    }

    /// Nanoseconds added since `earlier`; a thread created in between counts from its creation.
    pub fn since(&self, earlier: &KernelThreads) -> u64 {
        self.0.iter().map(|(pid, ns)| ns.saturating_sub(*earlier.0.get(pid).unwrap_or(&0))).sum()
    }
}

/// Whether a `/proc/PID/stat` line is that of a kernel thread named kworker/… or ksoftirqd/….
fn is_network_worker(stat: &str) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else { return false };
    let name = &stat[open + 1..close];
    // After the name: state, ppid, pgrp, session, tty_nr, tpgid, flags.
    let flags = stat[close + 1..].split_whitespace().nth(6).and_then(|f| f.parse::<u64>().ok());
    (name.starts_with("kworker/") || name.starts_with("ksoftirqd/"))
        && flags.is_some_and(|f| f & PF_KTHREAD != 0)
}

/// Busy time of the whole machine. Idle time comes from the scheduler's idle clock and is exact;
/// `/proc/stat` rounds it down to 10 ms per processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineCpu {
    idle_ticks: u64,
    stolen_ticks: u64,
    cpus: u64,
}

impl MachineCpu {
    /// Reads `/proc/stat`.
    pub fn sample() -> io::Result<Self> {
        parse_stat(&fs::read_to_string("/proc/stat")?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected format of /proc/stat"))
    }

    /// Nanoseconds of CPU that were neither idle nor stolen by the hypervisor in the `wall_ns` since
    /// `earlier`, over all processors.
    pub fn busy_since(self, earlier: MachineCpu, wall_ns: u64) -> u64 {
        const TICK_NS: u64 = 10_000_000; // USER_HZ is 100 on every architecture that Linux has now.
        let idle =
            (self.idle_ticks + self.stolen_ticks).saturating_sub(earlier.idle_ticks + earlier.stolen_ticks);
        (wall_ns * self.cpus).saturating_sub(idle * TICK_NS)
    }
}

fn parse_stat(stat: &str) -> Option<MachineCpu> {
    let mut total = MachineCpu::default();
    for line in stat.lines() {
        let mut fields = line.split_whitespace();
        let Some(name) = fields.next() else { continue };
        if !name.starts_with("cpu") {
            continue;
        }
        if name != "cpu" {
            total.cpus += 1;
            continue;
        }
        // user nice system idle iowait irq softirq steal
        let ticks: Vec<u64> = fields.map_while(|f| f.parse().ok()).collect();
        total.idle_ticks = ticks.get(3)? + ticks.get(4)?;
        total.stolen_ticks = *ticks.get(7)?;
    }
    (total.cpus > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn burn(ms: u64) {
        let start = thread_cpu_ns();
        while thread_cpu_ns() - start < ms * 1_000_000 {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn clocks_advance_with_work() {
        let (t, p) = (CpuTime::of_thread(), process_cpu_ns(std::process::id()).unwrap());
        burn(30);
        assert!(CpuTime::of_thread().since(t).total_ns() >= 25_000_000);
        assert!(process_cpu_ns(std::process::id()).unwrap() - p >= 20_000_000);
    }

    #[test]
    fn a_sleeping_thread_uses_no_cpu() {
        let before = thread_cpu_ns();
        std::thread::sleep(Duration::from_millis(50));
        assert!(thread_cpu_ns() - before < 25_000_000);
    }

    #[test]
    fn machine_busy_covers_this_thread() {
        let (before, start) = (MachineCpu::sample().unwrap(), Instant::now());
        burn(100);
        let busy = MachineCpu::sample().unwrap().busy_since(before, start.elapsed().as_nanos() as u64);
        assert!(busy >= 60_000_000, "{busy}");
    }

    #[test]
    fn proc_stat_is_parsed() {
        let text = "cpu  10 0 5 700 30 0 1 9 0 0\ncpu0 5 0 2 350 15 0 1 4 0 0\ncpu1 5 0 3 350 15 0 0 5 0 0\nintr 1\n";
        let a = parse_stat(text).unwrap();
        assert_eq!(a, MachineCpu { idle_ticks: 730, stolen_ticks: 9, cpus: 2 });
        let b = MachineCpu { idle_ticks: 830, stolen_ticks: 19, cpus: 2 };
        assert_eq!(b.busy_since(a, 1_000_000_000), 2_000_000_000 - 110 * 10_000_000);
        assert!(parse_stat("nothing").is_none());
    }

    #[test]
    fn only_kernel_workers_are_counted() {
        let kworker = "12 (kworker/0:1-events) I 2 0 0 0 -1 69238880 0 0 0";
        let impostor = "13 (kworker/0:1) S 2 0 0 0 -1 4194304 0 0 0";
        let other = "14 (kswapd0) S 2 0 0 0 -1 69238880 0 0 0";
        assert!(is_network_worker(kworker));
        assert!(!is_network_worker(impostor) && !is_network_worker(other) && !is_network_worker(""));
    }

    #[test]
    fn kernel_threads_only_grow() {
        let a = KernelThreads::sample().unwrap();
        let b = KernelThreads::sample().unwrap();
        assert!(b.since(&a) < 1_000_000_000);
    }
}
