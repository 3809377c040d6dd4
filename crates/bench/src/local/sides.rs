//! Several databases driven in turns on the same traces, and the columns of the results.

use std::time::Duration;

use bedplate_kerneldb::Database;

use super::driver::{Driver, Driving};
use super::run::{Window, drive};
use super::trace::{TraceOp, Workload, draw};
use crate::sample::{interleave, samples};
use crate::{Fields, Result};

/// Operations drawn per thread, which repeats them.
const TRACE_LEN: usize = 1 << 20;

/// Settings of the measurement of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Length of each side's turn in a round.
    pub window: Duration,
    /// Driving threads.
    pub threads: usize,
    /// The way in which operations reach the engine.
    pub driving: Driving,
}

/// Drivers of one kind on one database, one per thread.
pub fn drivers(database: &Database, workload: &Workload, plan: &Plan) -> Result<Vec<Box<dyn Driver>>> {
    (0..plan.threads).map(|_| plan.driving.driver(database, workload)).collect()
}

/// One trace per thread.
pub fn traces(workload: &Workload, threads: usize) -> Vec<Vec<TraceOp>> {
    (0..threads as u64).map(|t| draw(workload, TRACE_LEN, 0x5eed + t)).collect()
}

/// Measures interleaved windows of all sides, which get the same operations. Before that, every
/// side runs unmeasured for a quarter of a window, to warm caches and memory.
pub fn measure(databases: &[&Database], workload: &Workload, plan: &Plan) -> Result<Vec<Vec<Window>>> {
    let traces = traces(workload, plan.threads);
    let mut sides = databases.iter().map(|d| drivers(d, workload, plan)).collect::<Result<Vec<_>>>()?;
    for (database, side) in databases.iter().zip(&mut sides) {
        drive(database, side, &traces, 0, plan.window / 4)?;
    }
    interleave(plan.rounds, sides.len(), |side, round| {
        drive(databases[side], &mut sides[side], &traces, round * TRACE_LEN / plan.rounds, plan.window)
    })
}

/// Median over rounds of side `a`'s operations per CPU second ÷ side `b`'s.
pub fn ratio(a: &[Window], b: &[Window]) -> f64 {
    samples(a, Window::per_cpu_s).over(&samples(b, Window::per_cpu_s))
}

/// The columns of one side's windows.
pub fn fill_row(row: &mut Fields, windows: &[Window]) {
    let cpu = samples(windows, Window::per_cpu_s);
    row.set("ops_per_cpu_s", cpu.median());
    row.set("spread", cpu.spread());
    row.set("cpu_ns_per_op", 1e9 / cpu.median());
    row.set("ops_per_s", samples(windows, Window::per_s).median());
    row.set("rolled_back_per_s", samples(windows, Window::rolled_back_per_s).median());
}
