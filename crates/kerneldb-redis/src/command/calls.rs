//! Counts the calls of each command and subcommand, for INFO commandstats and LATENCY HISTOGRAM.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::spec::{self, Found, Resolved, full_name};

/// Buckets of a histogram. Bucket `i` has the calls of at most `2^i` microseconds, and the last one all others.
const BUCKETS: usize = 32;

/// Calls of one command.
#[derive(Debug, Default)]
struct Call {
    calls: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    us: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Calls of every command in user space.
#[derive(Debug)]
pub struct Calls(Vec<Call>);

impl Default for Calls {
    fn default() -> Self {
        Calls(spec::all().map(|_| Call::default()).collect())
    }
}

impl Calls {
    /// Counts a call. `failed`: the reply is an error.
    pub(super) fn note(&self, resolved: Resolved, took: Duration, failed: bool) {
        let call = &self.0[spec::number(resolved.found())];
        let us = took.as_micros() as u64;
        call.calls.fetch_add(1, Relaxed);
        call.failed.fetch_add(failed.into(), Relaxed);
        call.us.fetch_add(us, Relaxed);
        let bucket = us.max(1).next_power_of_two().trailing_zeros() as usize;
        call.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    /// Counts a call that was not executed, because it was not admitted.
    pub(super) fn reject(&self, resolved: Resolved) {
        self.0[spec::number(resolved.found())].rejected.fetch_add(1, Relaxed);
    }

    pub(super) fn reset(&self) {
        for call in &self.0 {
            let counters = [&call.calls, &call.failed, &call.rejected, &call.us];
            counters.into_iter().chain(&call.buckets).for_each(|counter| counter.store(0, Relaxed));
        }
    }

    /// The line of each command that was called. `kernel` are the calls that the kernel has answered. Their time is
    /// not measured. `refusals` are those of CALL among them that failed.
    pub(super) fn lines(&self, kernel: &[(&'static str, u64)], refusals: u64) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        for (call, found) in self.0.iter().zip(spec::all()) {
            let [calls, failed, rejected, us] =
                [&call.calls, &call.failed, &call.rejected, &call.us].map(|counter| counter.load(Relaxed));
            let name = full_name(found);
            let kernel = kernel.iter().find(|(command, _)| *command == name).map_or(0, |(_, calls)| *calls);
            if calls + rejected + kernel > 0 {
                let failed = if name == "call" { failed + refusals } else { failed };
                let per_call = if calls == 0 { 0.0 } else { us as f64 / calls as f64 };
                lines.push((
                    format!("cmdstat_{name}"),
                    format!(
                        "calls={},usec={us},usec_per_call={per_call:.2},rejected_calls={rejected},failed_calls={failed}",
                        calls + kernel
                    ),
                ));
            }
        }
        lines
    }

    /// The names of the chosen commands that were called, and for each bucket with calls its microseconds and the number of calls up to
    /// it.
    pub(super) fn histograms(&self, chosen: impl Fn(Found) -> bool) -> Vec<(String, Vec<(u64, u64)>)> {
        let mut histograms = Vec::new();
        for (call, found) in self.0.iter().zip(spec::all()) {
            if !chosen(found) {
                continue;
            }
            let (mut total, mut buckets) = (0, Vec::new());
            for (i, bucket) in call.buckets.iter().enumerate() {
                let calls = bucket.load(Relaxed);
                total += calls;
                if calls > 0 {
                    buckets.push((1 << i, total));
                }
            }
            if total > 0 {
                histograms.push((full_name(found), buckets));
            }
        }
        histograms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(name: &str, sub: &str) -> Resolved {
        let parent = spec::find(name.as_bytes()).unwrap();
        let spec = parent.sub(sub.as_bytes()).unwrap_or(parent);
        Resolved { cmd: parent.cmd.unwrap(), spec, parent }
    }

    #[test]
    fn every_command_has_a_counter_of_its_own() {
        let calls = Calls::default();
        for (parent, spec) in spec::all() {
            let parent = parent.unwrap_or(spec);
            calls.note(Resolved { cmd: parent.cmd.unwrap(), spec, parent }, Duration::from_micros(3), false);
        }
        assert!(calls.0.iter().all(|call| call.calls.load(Relaxed) == 1));
        calls.note(resolved("get", ""), Duration::from_micros(5), true);
        calls.note(resolved("config", "set"), Duration::from_micros(2), false);
        calls.reject(resolved("config", "set"));
        let lines = calls.lines(&[("get", 2), ("ping", 1), ("call", 7)], 3);
        let line = |name: &str| lines.iter().find(|(n, _)| n == name).unwrap().1.clone();
        assert_eq!(line("cmdstat_get"), "calls=4,usec=8,usec_per_call=4.00,rejected_calls=0,failed_calls=1");
        assert_eq!(line("cmdstat_ping"), "calls=2,usec=3,usec_per_call=3.00,rejected_calls=0,failed_calls=0");
        assert_eq!(line("cmdstat_call"), "calls=8,usec=3,usec_per_call=3.00,rejected_calls=0,failed_calls=3");
        assert_eq!(
            line("cmdstat_config|set"),
            "calls=2,usec=5,usec_per_call=2.50,rejected_calls=1,failed_calls=0"
        );
        calls.reset();
        assert!(calls.lines(&[], 0).is_empty());
        assert_eq!(calls.lines(&[("get", 2)], 0).len(), 1, "the kernel's calls alone");
        assert!(calls.histograms(|_| true).is_empty());
    }

    #[test]
    fn histograms_are_cumulative() {
        let calls = Calls::default();
        for us in [0, 1, 2, 3, 4, 5, 1000, 1 << 40] {
            calls.note(resolved("get", ""), Duration::from_micros(us), false);
        }
        calls.note(resolved("config", "get"), Duration::from_micros(1), false);
        let of = |name: &str| calls.histograms(|(parent, spec)| parent.unwrap_or(spec).name == name);
        assert_eq!(
            of("get"),
            [("get".into(), vec![(1, 2), (2, 3), (4, 5), (8, 6), (1024, 7), (1 << 31, 8)])]
        );
        assert_eq!(of("config"), [("config|get".into(), vec![(1, 1)])]);
        assert_eq!(of("set"), []);
    }
}
