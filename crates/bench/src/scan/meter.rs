//! The cost of a pass over the file, and its parts.
//!
//! All processor times are from the scheduler's nanosecond clocks. They include all threads of the side's process, also
//! those that the kernel runs for its io_uring. They include the kernel's own workers of the whole machine, because a
//! loop device needs them. So other programs on the machine affect only the part of the kernel's workers. The time of a
//! device's interrupt belongs to the thread that it interrupts, as everywhere in Linux.

use std::time::Duration;

use bedplate_scan::Clock;
use serde::{Deserialize, Serialize};

use super::GIB;
use super::calls::Calls;
use crate::cpu::{KernelThreads, own_cpu_ns, thread_cpu_ns};
use crate::{Error, Fields, Result};

/// The sum of a word of every cache line, which is the least work of a filter on a column of a row store.
pub fn sum(bytes: &[u8]) -> u64 {
    let word = |line: &[u8; 64]| u64::from_le_bytes(*line.first_chunk::<8>().expect("a line has 64 bytes"));
    bytes.as_chunks::<64>().0.iter().fold(0, |sum, line| sum.wrapping_add(word(line)))
}

/// The cost of a pass.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Pass {
    /// Bytes that were consumed, and their sum.
    pub bytes: u64,
    pub sum: u64,
    /// The pass was complete before its time was over.
    pub whole: bool,
    pub wall_ns: u64,
    pub consume_ns: u64,
    /// Processor time of the consuming thread, of its process, and of the kernel's workers.
    pub worker_ns: u64,
    pub process_ns: u64,
    pub kernel_ns: u64,
    /// System calls from the first page to the last, if they were counted.
    pub calls: Option<u64>,
    /// Bytes that the process had devices read, if the kernel reports them.
    pub device: Option<u64>,
}

impl Pass {
    fn per_gib(&self, ns: u64) -> f64 {
        ns as f64 / 1e9 / (self.bytes as f64 / GIB)
    }

    pub fn gib_per_s(&self) -> f64 {
        1.0 / self.per_gib(self.wall_ns)
    }

    /// Processor seconds of the process and of the kernel's workers for a GiB.
    pub fn cpu(&self) -> f64 {
        self.per_gib(self.process_ns + self.kernel_ns)
    }

    pub fn calls_per_gib(&self) -> Option<f64> {
        self.calls.map(|calls| calls as f64 / (self.bytes as f64 / GIB))
    }

    /// Bytes that were read and not wanted. `None` for an incomplete pass, because the bytes that were read ahead would have
    /// been wanted.
    pub fn over_read(&self) -> Option<f64> {
        self.device.filter(|_| self.whole).map(|device| device as f64 - self.bytes as f64)
    }

    /// Figure 6: the parts of the time of a GiB. They are consuming; the worker's other work, which is copies and calls;
    /// waiting for data or for a processor; the work of other threads, which is control.
    pub fn breakdown(passes: &[Pass], fields: Fields) -> Fields {
        let median = |of: &dyn Fn(&Pass) -> u64| {
            crate::sample::samples(passes, |pass| pass.per_gib(of(pass))).median()
        };
        fields
            .with("consume_s_per_gib", median(&|pass| pass.consume_ns))
            .with("copy_and_calls_s_per_gib", median(&|pass| pass.worker_ns.saturating_sub(pass.consume_ns)))
            .with("wait_s_per_gib", median(&|pass| pass.wall_ns.saturating_sub(pass.worker_ns)))
            .with(
                "control_s_per_gib",
                median(&|pass| (pass.process_ns + pass.kernel_ns).saturating_sub(pass.worker_ns)),
            )
    }
}

/// Consumes pages, up to a number of bytes and a time.
pub struct Meter {
    clock: Clock,
    wanted: u64,
    until: u64,
    calls: Option<Calls>,
    pass: Pass,
}

impl Meter {
    /// Consumes a page. Returns `false` for the last one.
    pub fn consume(&mut self, page: &[u8]) -> bool {
        if self.pass.bytes == 0
            && let Some(calls) = &self.calls
        {
            calls.begin();
        }
        let begun = self.clock.now();
        self.pass.sum = self.pass.sum.wrapping_add(sum(page));
        let now = self.clock.now();
        self.pass.consume_ns += now - begun;
        self.pass.bytes += page.len() as u64;
        let (all, over) = (self.pass.bytes >= self.wanted, now >= self.until);
        if all || over {
            // System calls from now on are not for reads.
            self.pass.calls = self.calls.take().and_then(|calls| calls.end().ok());
            self.pass.whole = all;
        }
        !all && !over
    }
}

/// The resources that a pass of this process has used so far.
pub struct Usage {
    process_ns: u64,
    kernel: KernelThreads,
    device: Option<u64>,
}

/// The resources used since a [`Usage`]: the process's, the kernel workers', and the device's where the kernel reports
/// them.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    pub process_ns: u64,
    pub kernel_ns: u64,
    pub device: Option<u64>,
}

impl Usage {
    pub fn now() -> Result<Self> {
        let kernel = KernelThreads::sample().map_err(Error::io("look at the kernel's threads"))?;
        Ok(Self { kernel, device: device_bytes(), process_ns: own_cpu_ns() })
    }

    pub fn until_now(&self) -> Result<Used> {
        let process_ns = own_cpu_ns() - self.process_ns;
        let now = Self::now()?;
        let device = self.device.zip(now.device).map(|(before, now)| now - before);
        Ok(Used { process_ns, kernel_ns: now.kernel.since(&self.kernel), device })
    }
}

/// Measures a pass that is to consume `wanted` bytes, in a time of at most `most`. With `count`, its calls are counted
/// if possible.
pub fn measure(
    wanted: u64,
    most: Duration,
    count: bool,
    pass: impl FnOnce(&mut Meter) -> Result<()>,
) -> Result<Pass> {
    let clock = Clock::best();
    let calls = if count { Calls::new().ok() } else { None };
    let (usage, start, worker) = (Usage::now()?, clock.now(), thread_cpu_ns());
    // A pass that ends too early counts as whole, and the check of its sum reports it.
    let until = start + most.as_nanos() as u64;
    let mut meter = Meter { clock, wanted, until, calls, pass: Pass { whole: true, ..Pass::default() } };
    pass(&mut meter)?;
    let mut pass = meter.pass;
    pass.wall_ns = clock.now() - start;
    pass.worker_ns = thread_cpu_ns() - worker;
    let used = usage.until_now()?;
    (pass.process_ns, pass.kernel_ns, pass.device) = (used.process_ns, used.kernel_ns, used.device);
    Ok(pass)
}

/// Bytes that this process has requested from devices since it began, past the page cache or not.
fn device_bytes() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consume(wanted: u64, most: Duration) -> Pass {
        let page = [3u8; 4096];
        measure(wanted, most, false, |meter| {
            while meter.consume(&page) {}
            Ok(())
        })
        .unwrap()
    }

    #[test]
    fn a_pass_is_counted_until_its_time_is_over() {
        let pass = consume(u64::MAX, Duration::from_millis(20));
        assert!(pass.wall_ns >= 20_000_000 && pass.consume_ns > 0 && pass.consume_ns < pass.wall_ns);
        assert!(pass.bytes >= 4096 && pass.worker_ns <= pass.process_ns + 1_000_000 && !pass.whole);
        assert_eq!(pass.sum, (pass.bytes / 64).wrapping_mul(0x0303_0303_0303_0303));
    }

    #[test]
    fn a_pass_ends_with_what_is_wanted() {
        let pass = consume(8192, Duration::from_secs(3600));
        assert_eq!((pass.bytes, pass.whole), (8192, true));
    }

    #[test]
    fn what_was_read_ahead_is_not_read_for_nothing() {
        let pass = Pass { bytes: 10, device: Some(15), whole: true, ..Pass::default() };
        assert_eq!(pass.over_read(), Some(5.0));
        assert_eq!(Pass { whole: false, ..pass }.over_read(), None);
        assert_eq!(Pass { device: None, ..pass }.over_read(), None);
    }
}
