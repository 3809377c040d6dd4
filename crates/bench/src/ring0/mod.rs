//! `ring0-cost`: the costs of the mechanisms of a privileged process, compared with native Linux (paper 4.1, 7.2 and
//! 7.3, Figures 1 and 11).
//!
//! Where the processor's time stamp counts instructions (`bedplate vm run --icount`), figures are instructions, the
//! same in every run; elsewhere they are nanoseconds. Instructions do not show the effects of caches and TLBs, or the
//! cost of an exit on hardware, so reports name the unit.
//!
//! The sides take turns. The native one has a process of its own, started before this one is a virtual machine.

mod calls;
pub(crate) mod clock;
mod guest;
pub(crate) mod native;

pub(crate) use bedplate_ring0::virtualizes;

use crate::sample::{Samples, interleave};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

use clock::Clock;

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "ring0-cost",
    about: "fork, faults and system calls natively and in a privileged process (paper 7.2, 7.3, Figures 1 and 11)",
    run,
};

/// Bytes of which a snapshot is taken.
pub(crate) const MEMORY: usize = 256 << 20;
const PAGE: usize = 4096;
/// Number of pages that are written after the snapshot.
pub(crate) const WRITTEN: usize = 8000;

/// The cost of every operation in one round.
pub(crate) type Costs = Vec<(String, f64)>;

pub(crate) const NATIVE: &str = "native";
pub(crate) const RING0: &str = "ring 0";

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    if !virtualizes() {
        return Err(Error::Missing {
            what: "this processor shows no VT-x or AMD-V, so ring 0 would be emulated".to_owned(),
            hint: "run it in a virtual machine: bedplate vm run --icount -- bedplate bench ring0-cost",
        });
    }
    let clock = Clock::detect();
    let rounds = options.pick(5, 15);
    // The native side starts first, while this process has no part in a virtual machine.
    let mut native = native::Side::start(clock, &options.directory)?;
    let ring0 = guest::Side::start(clock, &options.directory)?;
    let mut done = 0;
    let sides = interleave(rounds, 2, |side, _| {
        sink(Step { done, total: 2 * rounds, label: [NATIVE, RING0][side] });
        done += 1;
        if side == 0 { native.round() } else { ring0.round() }
    })?;

    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("unit", clock.unit())
        .with("memory_bytes", MEMORY)
        .with("file", ring0.file())
        .with("rounds", rounds);
    let mut report = Report::new(BENCH.name, config);
    let cost = |operation: &str, side: &[Costs]| {
        let costs = side.iter().flatten().filter(|(name, _)| name == operation);
        costs.map(|(_, cost)| *cost).collect::<Samples>()
    };
    let over =
        |(a, a_side): (&str, &[Costs]), (b, b_side): (&str, &[Costs])| cost(a, a_side).over(&cost(b, b_side));
    let (native, ring0) = (sides[0].as_slice(), sides[1].as_slice());
    report.ratio("fork_over_table_copy", over((native::FORK, native), (guest::COPY, ring0)));
    report
        .ratio("fork_fault_over_pcow_fault", over((native::FORK_FAULT, native), (guest::PCOW_FAULT, ring0)));
    for (name, operation) in [
        ("proxied_over_native_empty", calls::EMPTY),
        ("proxied_over_native_cached_read", calls::CACHED_READ),
        ("proxied_over_native_cached_write", calls::CACHED_WRITE),
        ("proxied_over_native_uncached_read", calls::UNCACHED_READ),
        ("proxied_over_native_uncached_write", calls::UNCACHED_WRITE),
    ] {
        report.ratio(name, over((operation, ring0), (operation, native)));
    }
    for (name, operation) in [
        ("not_present_fault", guest::NOT_PRESENT_FAULT),
        ("proxied_getppid", calls::EMPTY),
        ("enter_leave", guest::ENTER_LEAVE),
    ] {
        report.ratio(&format!("{name}{}", clock.suffix()), cost(operation, ring0).median());
    }
    for (name, costs) in [(NATIVE, native), (RING0, ring0)] {
        for (operation, _) in costs.iter().take(1).flatten() {
            let cost = cost(operation, costs);
            let fields = Fields::new().with("operation", operation.as_str()).with("side", name);
            report.rows.push(fields.with(clock.key(), cost.median()).with("spread", cost.spread()));
        }
    }
    Ok(report)
}
