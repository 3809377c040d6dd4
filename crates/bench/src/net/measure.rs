//! One measurement of one server under one load, with the CPU time that each party used.
//!
//! On loopback, a packet is received in the context of its sender, so "the server's CPU" needs a
//! definition. Per right reply:
//!
//! - `server_cpu_ns`: CPU time of the server's process + of the kernel threads that work for sockets
//!   (kworker, ksoftirqd) + the run time of the server's eBPF programs in the *client's* context. The
//!   last one is zero for a server in user space. For Bedplate, a separate calibration run takes it
//!   from the kernel's run-time statistics, because these statistics cost time themselves.
//! - `machine_cpu_ns`: busy time of the whole machine − user time of the load generator. It contains
//!   the generator's own system calls and both directions of TCP. These are the same work for every
//!   server, so ratios of it are nearer to 1. It leaves no work out, so it is meaningful only on a
//!   machine that does nothing else.
//! - `both_cpu_ns`: CPU time of the server's process, of the socket workers and of the load generator with its system
//!   calls, each once. It bounds the rate on a saturated machine. Unlike `machine_cpu_ns`, it excludes other programs
//!   on the machine.
//! - `client_cpu_ns`: CPU time of the load generator, its system calls included.

use std::time::Instant;

use super::load::{self, Load, Schedule, Seen};
use super::server::Server;
use super::wire::Traffic;
use crate::bpf::{self, ProgramType, RunTimeStats};
use crate::cpu::{KernelThreads, MachineCpu, process_cpu_ns};
use crate::{Error, Fields, Result};

/// Results of one window.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Results of the load generator.
    pub seen: Seen,
    /// CPU time of the server's process, in nanoseconds.
    pub process_ns: u64,
    /// CPU time of the kernel's socket workers, in nanoseconds.
    pub kernel_threads_ns: u64,
    /// Busy time of the machine, in nanoseconds.
    pub busy_ns: u64,
}

impl Measured {
    fn per_reply(&self, ns: f64) -> f64 {
        ns / self.seen.replies as f64
    }

    /// See the module's documentation; `bpf_ns` is the calibrated run time per reply of the programs that
    /// ran in the client's context.
    pub fn server_cpu_ns(&self, bpf_ns: f64) -> f64 {
        self.per_reply((self.process_ns + self.kernel_threads_ns) as f64) + bpf_ns
    }

    /// CPU time of the server's process per reply.
    pub fn process_cpu_ns(&self) -> f64 {
        self.per_reply(self.process_ns as f64)
    }

    /// CPU time of the kernel's socket workers per reply.
    pub fn kernel_threads_cpu_ns(&self) -> f64 {
        self.per_reply(self.kernel_threads_ns as f64)
    }

    /// See the module's documentation.
    pub fn machine_cpu_ns(&self) -> f64 {
        self.per_reply(self.busy_ns as f64 - self.seen.cpu.user_ns as f64)
    }

    /// See the module's documentation.
    pub fn both_cpu_ns(&self) -> f64 {
        self.per_reply((self.process_ns + self.kernel_threads_ns + self.seen.cpu.total_ns()) as f64)
    }

    /// See the module's documentation.
    pub fn client_cpu_ns(&self) -> f64 {
        self.per_reply(self.seen.cpu.total_ns() as f64)
    }
}

struct Edge {
    process_ns: u64,
    threads: KernelThreads,
    machine: MachineCpu,
    at: Instant,
}

impl Edge {
    fn sample(server: &Server) -> Result<Edge> {
        Ok(Edge {
            process_ns: process_cpu_ns(server.pid()).map_err(Error::io("CPU time of the server"))?,
            threads: KernelThreads::sample().map_err(Error::io("CPU times of kernel threads"))?,
            machine: MachineCpu::sample().map_err(Error::io("/proc/stat"))?,
            at: Instant::now(),
        })
    }
}

/// Runs the load once.
pub fn measure(server: &Server, load: &Load) -> Result<Measured> {
    measure_traffic(server, &load.schedule, |thread| load.traffic(thread)).map(|(measured, _)| measured)
}

/// Does the same as [`measure`] for any requests; see [`load::run_traffic`].
pub fn measure_traffic<R: Traffic>(
    server: &Server,
    schedule: &Schedule,
    traffic: impl Fn(usize) -> R,
) -> Result<(Measured, Vec<R>)> {
    let (seen, [begin, end], traffics) =
        load::run_traffic(server.address(), schedule, traffic, || Edge::sample(server))?;
    if seen.replies == 0 {
        return Err(Error::Protocol {
            server: server.address().to_string(),
            problem: format!("no right reply within {:?} ({} refused)", schedule.window, seen.refused),
        });
    }
    let wall_ns = (end.at - begin.at).as_nanos() as u64;
    let measured = Measured {
        seen,
        process_ns: end.process_ns.saturating_sub(begin.process_ns),
        kernel_threads_ns: end.threads.since(&begin.threads),
        busy_ns: end.machine.busy_since(begin.machine, wall_ns),
    };
    Ok((measured, traffics))
}

/// Run time per reply, in nanoseconds, of all programs of a type; `None` if the kernel does not report it.
pub fn calibrate_bpf(server: &Server, load: &Load, kind: ProgramType) -> Result<Option<f64>> {
    calibrate_traffic(server, &load.schedule, |thread| load.traffic(thread), kind).map(|(ns, _)| ns)
}

/// Does the same as [`calibrate_bpf`] for any requests; see [`load::run_traffic`].
pub fn calibrate_traffic<R: Traffic>(
    server: &Server,
    schedule: &Schedule,
    traffic: impl Fn(usize) -> R,
    kind: ProgramType,
) -> Result<(Option<f64>, Vec<R>)> {
    let Ok(_on) = RunTimeStats::enable() else {
        tracing::warn!("no run-time statistics of eBPF programs: there is no server_cpu_ns");
        return Ok((None, Vec::new()));
    };
    let (seen, [before, after], traffics) =
        load::run_traffic(server.address(), schedule, traffic, || Ok(bpf::programs()))?;
    let ns = bpf::run_ns_between(&before, &after, |p| bpf::same_kind(p.kind, kind));
    Ok((Some(ns as f64 / seen.replies.max(1) as f64), traffics))
}

/// Medians over the rounds of one server in one cell, as columns of a row. `bpf_ns`: see [`calibrate_bpf`]; without it there
/// is no `server_cpu_ns`.
pub fn fill_row(row: &mut Fields, rounds: &[Measured], bpf_ns: Option<f64>) {
    let median = |f: &dyn Fn(&Measured) -> f64| crate::sample::samples(rounds, f).median();
    let rates = crate::sample::samples(rounds, |m| m.seen.rate());
    let mut merged = crate::latency::Latencies::default();
    let mut lag = crate::latency::Latencies::default();
    for m in rounds {
        merged.merge(&m.seen.latencies);
        lag.merge(&m.seen.lag);
    }
    row.set("rate_per_s", rates.median());
    row.set("rate_spread", rates.spread());
    merged.fill(row);
    if let Some(bpf_ns) = bpf_ns {
        row.set("server_cpu_ns", median(&|m| m.server_cpu_ns(bpf_ns)));
        row.set("of_it_bpf_in_client_ns", bpf_ns);
    }
    row.set("of_it_process_ns", median(&Measured::process_cpu_ns));
    row.set("of_it_kernel_threads_ns", median(&Measured::kernel_threads_cpu_ns));
    row.set("both_cpu_ns", median(&Measured::both_cpu_ns));
    row.set("machine_cpu_ns", median(&Measured::machine_cpu_ns));
    row.set("client_cpu_ns", median(&Measured::client_cpu_ns));
    row.set("refused", rounds.iter().map(|m| m.seen.refused).sum::<u64>());
    if lag.count() > 0 {
        row.set("sent_late_p99_ns", lag.percentile(99.0));
    }
}
