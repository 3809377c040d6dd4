//! `scan-share`: workers that scan one file at the same time (paper 5.4, Figure 10).
//!
//! Every worker has a pace of its own, as a query has, so that neither the device nor the processors limit the workers.
//! They are threads of the service's process, or processes that join the pool by its key at this process's daemon. For
//! comparison, threads have a channel each, so that the file is read once for each worker. If the processors were busy
//! anyway, times are shown and have no target.

mod cell;
mod workers;

use super::{report, write};
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step, Target};
pub(super) use cell::settle;
use cell::{Cell, Cost, POOL, SLOWER, Stage, Way};
pub(super) use workers::{Had, Paced};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-share",
    about: "1 to 32 workers on one file, sharing and not, one of them slow or none (zicIO paper, Figure 10)",
    run,
};

const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Workers where one of them is slow.
const WITH_SLOW: usize = 8;
/// Bytes that a worker consumes in a second.
pub(super) const PACE: f64 = (128 << 20) as f64;
/// The part of all processors that may be busy before there is a lack of them.
const ENOUGH: f64 = 0.9;

fn cells(alone: &[usize]) -> Vec<Cell> {
    let pools = [Way::Threads, Way::Processes];
    let mut cells: Vec<Cell> =
        alone.iter().map(|workers| Cell { way: Way::Alone, workers: *workers, slow: false }).collect();
    for way in pools {
        cells.extend(COUNTS.map(|workers| Cell { way, workers, slow: false }));
        cells.push(Cell { way, workers: WITH_SLOW, slow: true });
    }
    cells
}

/// The cost of a cell in each round.
struct Seen {
    cell: Cell,
    costs: Vec<Cost>,
}

impl Seen {
    fn of(&self, quantity: impl Fn(&Cost) -> f64) -> Samples {
        samples(&self.costs, quantity)
    }

    fn row(&self) -> Fields {
        let memory = match self.cell.way {
            Way::Alone => None,
            _ => Some(POOL),
        };
        Fields::new()
            .with("workers", self.cell.workers)
            .with("as", self.cell.way.name())
            .with("one_slow", if self.cell.slow { "yes" } else { "no" })
            .with("device_over_file", self.of(|cost| cost.device_over_file).median())
            .with("spread", self.of(|cost| cost.device_over_file).spread())
            .with("wall_s", self.of(|cost| cost.wall_s).median())
            .with("busy_processors", self.of(|cost| cost.busy).median())
            .with("pool_bytes", memory)
            .with("pool_used_bytes", memory.map(|_| self.of(|cost| cost.used_bytes).max()))
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let (rounds, size) = options.pick((3, 128 << 20), (5, 512 << 20));
    let alone: &[usize] = options.pick(&[1, 8], &COUNTS);
    let cells = cells(alone);
    let mut report = report(&BENCH, options, rounds, size);
    report.config.set("worker_bytes_per_s", PACE);
    report.config.set("slow_worker_bytes_per_s", PACE / SLOWER);
    let total = rounds * cells.len() + 1;
    sink(Step { done: 0, total, label: "writing the file" });
    let data = write(options, size)?;
    let most = COUNTS.iter().copied().max().unwrap_or(1);
    let mut stage = Stage::new(data, PACE, most)?;
    let mut done = 0;
    let costs = interleave(rounds, cells.len(), |index, _| {
        let cell = cells[index];
        done += 1;
        sink(Step { done, total, label: &format!("{} {}", cell.workers, cell.way.name()) });
        stage.run(cell)
    })?;
    let seen: Vec<Seen> = cells.into_iter().zip(costs).map(|(cell, costs)| Seen { cell, costs }).collect();
    report.rows.extend(seen.iter().map(Seen::row));
    judge(&mut report, &seen);
    for headline in ["device_over_file_32", "device_over_file_outlier", "time_32_over_1"] {
        let ways = [Way::Threads, Way::Processes];
        let of = |way: Way| report.ratios.get(&format!("{headline}_{}", way.name())).copied();
        let worst = ways.into_iter().filter_map(of).fold(f64::NAN, f64::max);
        report.ratio(headline, worst);
    }
    Ok(report)
}

/// Adds the ratios and their targets.
fn judge(report: &mut Report, all: &[Seen]) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    for seen in all.iter().filter(|seen| seen.cell.way != Way::Alone) {
        let Cell { way, workers, slow } = seen.cell;
        let read = seen.of(|cost| cost.device_over_file).median();
        if slow {
            let name = format!("device_over_file_outlier_{}", way.name());
            report.target(&name, read, Target::AtMost(1.6));
            continue;
        }
        report.target(&format!("device_over_file_{workers}_{}", way.name()), read, Target::AtMost(1.1));
        let single = all.iter().find(|one| one.cell == Cell { workers: 1, ..seen.cell });
        let Some(single) = single.filter(|_| workers > 1) else { continue };
        let time = seen.of(|cost| cost.wall_s).over(&single.of(|cost| cost.wall_s));
        let name = format!("time_{workers}_over_1_{}", way.name());
        if seen.of(|cost| cost.busy).median() < ENOUGH * processors {
            report.target(&name, time, Target::AtMost(1.15));
        } else {
            report.ratio(&name, time);
            report.config.set(&format!("no_target_{name}"), "the processors were busy");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(workers: usize, slow: bool, read: f64, wall_s: f64, busy: f64) -> Seen {
        let cost = Cost { device_over_file: read, wall_s, used_bytes: 0.0, busy };
        Seen { cell: Cell { way: Way::Threads, workers, slow }, costs: vec![cost; 3] }
    }

    #[test]
    fn misses_are_told_and_times_of_busy_machines_are_not_judged() {
        let mut report = Report::new(BENCH.name, Fields::new());
        let all = [
            seen(1, false, 1.0, 1.0, 0.1),
            seen(2, false, 1.2, 1.1, 0.1),
            seen(4, false, 1.1, 2.0, 1e6),
            seen(8, true, 1.7, 9.0, 0.1),
        ];
        judge(&mut report, &all);
        let told = |row: &Fields| format!("{} {}", row.get("target").unwrap(), row.get("verdict").unwrap());
        let told = report.rows.iter().map(told).collect::<Vec<_>>().join(", ").replace('"', "");
        let expected = "device_over_file_1_threads met, device_over_file_2_threads MISSED, time_2_over_1_threads met, \
                        device_over_file_4_threads met, device_over_file_outlier_threads MISSED";
        assert_eq!(told, expected);
        assert_eq!(report.ratios["time_4_over_1_threads"], 2.0);
        assert!(report.config.get("no_target_time_4_over_1_threads").is_some());
    }
}
