//! `kv-local`: the engines without a network (paper 6.2, Figure 8).
//!
//! Threads drive GETs and SETs through `BPF_PROG_TEST_RUN`, in batches and one operation per call. The
//! arena engine and the hash-map engine hold the same keys at the same time and take turns on the same
//! traces. The unit is operations per second of CPU time of the driving threads, so that other programs
//! on the machine cost precision, not fairness.

pub mod driver;
pub mod floor;
pub mod run;
pub mod sides;
pub mod trace;

use std::time::Duration;

use bedplate_kerneldb::{Config, Database, EngineKind};

use crate::bpf;
use crate::keys::Distribution;
use crate::sample::Samples;
use crate::{Benchmark, Fields, Mode, Options, Report, Result, Sink, Step};
use driver::Driving;
use run::{Window, engine_name};
use sides::Plan;
use trace::Workload;

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-local",
    about: "arena engine against hash-map engine without a network (paper 6.2, Figure 8)",
    run,
};

const ENGINES: [EngineKind; 2] = [EngineKind::Arena, EngineKind::HashMap];

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    // (keys, value bytes) of the data sets.
    let sets: &[(u64, usize)] = options.pick(
        &[(1_000_000, 16), (200_000, 1024)],
        &[(1_000_000, 16), (1_000_000, 1024), (10_000_000, 16), (10_000_000, 1024)],
    );
    let rounds = options.pick(3, 7);
    let window = Duration::from_millis(options.pick(120, 500));
    let floor = floor::per_call_ns(rounds, 20_000)?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("window_ms", window.as_millis() as u64)
        .with("per_call_floor_ns", floor.median());
    let mut report = Report::new(BENCH.name, config);
    let mut skipped = Vec::new();
    let mut over = Vec::new();
    for (done, &(keys, value_len)) in sets.iter().enumerate() {
        let base = Workload { keys, value_len, set_percent: 50, distribution: Distribution::Uniform };
        let Some(versions) = versions_that_fit(&base) else {
            skipped.push(format!("{keys} keys of {value_len} B (more than a partition of 4 GiB)"));
            continue;
        };
        let need = run::memory_need(&base, versions) * ENGINES.len() as u64;
        if need > bedplate_kerneldb::available_memory().unwrap_or(0) {
            skipped.push(format!("{keys} keys of {value_len} B (needs {need} bytes)"));
            continue;
        }
        sink(Step { done, total: sets.len(), label: &format!("loading {keys} keys of {value_len} B") });
        let databases =
            ENGINES.iter().map(|&engine| filled(&base, versions, engine)).collect::<Result<Vec<_>>>()?;
        for cell in cells(&base, options.mode) {
            let label = format!(
                "{keys} keys, {value_len} B, {} % SET, {}, {} threads, {}",
                cell.workload.set_percent,
                cell.workload.distribution.name(),
                cell.threads,
                cell.driving.name()
            );
            sink(Step { done, total: sets.len(), label: &label });
            let plan = Plan { rounds, window, threads: cell.threads, driving: cell.driving };
            let sides = sides::measure(&databases.iter().collect::<Vec<_>>(), &cell.workload, &plan)?;
            for (engine, windows) in ENGINES.iter().zip(&sides) {
                report.rows.push(cell.row(*engine, versions, windows));
            }
            if cell.driving == Driving::Batch {
                over.push(sides::ratio(&sides[0], &sides[1]));
            }
        }
    }
    if !skipped.is_empty() {
        report.config.set("skipped", skipped.join("; "));
    }
    let over: Samples = over.into_iter().collect();
    report.ratio("arena_over_hashmap_min", over.min());
    report.ratio("arena_over_hashmap_median", over.median());
    Ok(report)
}

/// A filled database of an engine. The kernel must show that the baseline has hash maps.
fn filled(workload: &Workload, versions: u32, engine: EngineKind) -> Result<Database> {
    let before = bpf::program_ids();
    let database = run::filled(workload, Config { engine, versions, key_bytes: 16, ..Config::default() })?;
    if engine == EngineKind::HashMap {
        bpf::hash_maps_of_programs_since(&before)?;
    }
    Ok(database)
}

/// The largest number of versions, at most the default, that fits into one partition of 4 GiB. Traces
/// run within one partition.
fn versions_that_fit(workload: &Workload) -> Option<u32> {
    (1..=Config::default().versions).rev().find(|v| run::memory_need(workload, *v) <= 1 << 32)
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    workload: Workload,
    threads: usize,
    driving: Driving,
}

impl Cell {
    fn row(&self, engine: EngineKind, versions: u32, windows: &[Window]) -> Fields {
        let mut row = Fields::new()
            .with("keys", self.workload.keys)
            .with("value_bytes", self.workload.value_len)
            .with("set_pct", self.workload.set_percent)
            .with("distribution", self.workload.distribution.name())
            .with("threads", self.threads)
            .with("driving", self.driving.name())
            .with("versions", versions)
            .with("engine", engine_name(engine));
        sides::fill_row(&mut row, windows);
        row
    }
}

fn cells(base: &Workload, mode: Mode) -> Vec<Cell> {
    let mut cells = Vec::new();
    for distribution in [Distribution::Uniform, Distribution::Zipf] {
        for set_percent in [10, 50, 90] {
            let workload = Workload { set_percent, distribution, ..*base };
            for threads in [1, 2] {
                cells.push(Cell { workload, threads, driving: Driving::Batch });
                if mode == Mode::Full || (threads == 1 && distribution == Distribution::Uniform) {
                    cells.push(Cell { workload, threads, driving: Driving::OnePerCall });
                }
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sets_get_the_versions_that_fit() {
        let of = |keys, value_len| {
            versions_that_fit(&Workload {
                keys,
                value_len,
                set_percent: 0,
                distribution: Distribution::Uniform,
            })
        };
        assert_eq!(of(1_000_000, 16), Some(4));
        assert!(of(1_000_000, 1024).is_some_and(|v| (1..4).contains(&v)));
        assert_eq!(of(10_000_000, 1024), None);
    }

    #[test]
    fn quick_cells_cover_every_mix_in_batches() {
        let base = Workload { keys: 1, value_len: 16, set_percent: 0, distribution: Distribution::Uniform };
        let quick = cells(&base, Mode::Quick);
        assert_eq!(quick.iter().filter(|c| c.driving == Driving::Batch).count(), 2 * 3 * 2);
        assert!(quick.iter().any(|c| c.driving == Driving::OnePerCall));
        assert!(cells(&base, Mode::Full).len() > quick.len());
    }
}
