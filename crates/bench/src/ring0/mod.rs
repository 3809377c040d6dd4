//! `ring0-cost`: what the mechanisms of a privileged process cost beside what Linux does natively (paper 4.1, 7.2 and
//! 7.3, Figures 1 and 11).
//!
//! Where the processor's time stamp counts instructions (`bedplate vm run --icount`), figures are instructions, the
//! same in every run; elsewhere they are nanoseconds. Instructions know nothing of caches, TLBs, and what an exit
//! costs on hardware, so they are said to be what they are.
//!
//! The native side runs first, before the process is a virtual machine: afterwards, Linux would tell KVM of every
//! page it protects or takes away, and be slower for it.

mod calls;
mod clock;
mod guest;
mod native;

use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

use clock::Clock;

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "ring0-cost",
    about: "fork, faults and system calls natively and in a privileged process (paper 7.2, 7.3, Figures 1 and 11)",
    run,
};

/// What a snapshot is taken of.
const MEMORY: usize = 256 << 20;
const PAGE: usize = 4096;
/// How many pages are written after it.
const WRITTEN: usize = 8000;

/// One operation, measured on one side.
struct Row {
    operation: &'static str,
    side: &'static str,
    cost: f64,
}

const NATIVE: &str = "native";
const RING0: &str = "ring 0";

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    if !virtualizes() {
        return Err(Error::Missing {
            what: "this processor shows no VT-x or AMD-V, so ring 0 would be emulated".to_owned(),
            hint: "run it in a virtual machine: bedplate vm run --icount -- bedplate bench ring0-cost",
        });
    }
    let clock = Clock::detect();
    let rounds = options.pick(5, 15);
    let mut step = |done, label| sink(Step { done, total: 2, label });
    step(0, "natively");
    let mut rows = native::measure(clock, rounds, &options.directory)?;
    step(1, "in ring 0");
    rows.extend(guest::measure(clock, rounds, &options.directory)?);

    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("unit", clock.unit())
        .with("memory_bytes", MEMORY)
        .with("rounds", rounds);
    let mut report = Report::new(BENCH.name, config);
    let cost = |operation, side| {
        rows.iter()
            .find(|row| (row.operation, row.side) == (operation, side))
            .map_or(f64::NAN, |row| row.cost)
    };
    let over = |(a, a_side), (b, b_side)| cost(a, a_side) / cost(b, b_side);
    report.ratio("fork_over_table_copy", over((native::FORK, NATIVE), (guest::COPY, RING0)));
    report
        .ratio("fork_fault_over_pcow_fault", over((native::FORK_FAULT, NATIVE), (guest::PCOW_FAULT, RING0)));
    for (name, operation) in [
        ("proxied_over_native_empty", calls::EMPTY),
        ("proxied_over_native_cached_read", calls::CACHED_READ),
        ("proxied_over_native_cached_write", calls::CACHED_WRITE),
        ("proxied_over_native_uncached_read", calls::UNCACHED_READ),
        ("proxied_over_native_uncached_write", calls::UNCACHED_WRITE),
    ] {
        report.ratio(name, over((operation, RING0), (operation, NATIVE)));
    }
    for (name, operation) in [
        ("not_present_fault", guest::NOT_PRESENT_FAULT),
        ("proxied_getppid", calls::EMPTY),
        ("enter_leave", guest::ENTER_LEAVE),
    ] {
        report.ratio(&format!("{name}{}", clock.suffix()), cost(operation, RING0));
    }
    for row in &rows {
        let fields = Fields::new().with("operation", row.operation).with("side", row.side);
        report.rows.push(fields.with(clock.key(), row.cost));
    }
    Ok(report)
}

/// Whether the processor has VT-x or AMD-V, without which KVM emulates ring 0.
fn virtualizes() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}
