//! `pool-ring0`: YCSB A and C, and TPC-C, over the bare B+tree on the pool's engines, in instructions (paper 7.4, Figures
//! 17, 18, 20 and 21). The engine in ring 0 is included.
//!
//! Where the time stamp counts instructions (`bedplate vm run --icount`), figures are instructions of the whole machine per
//! operation. They include those of the kernel, of KVM and of the copy to and from storage. Instructions do not show the
//! effects of caches and TLBs, or the time of an interrupt or an exit on hardware. A ratio below 1 is in favour of `ring0`.
//!
//! Every side is a process with one thread, and works on a copy of the same pool. Out of memory, an eighth of the bytes of keys
//! and values is in memory. The measured thread evicts and writes pages itself, because no side has a page provider. The sides
//! take turns, and the first round is not counted.
//!
//! - Stages `memory`, `oom`, `drill_down` and `tpcc` have their pages in a file, which the sides read by system calls.
//!   `ring0` does so, too: its polling thread would compete with the measured thread for the only processor.
//! - Stages with `_ram` have them in the process's own memory ([`ram`]), without system calls.

mod ram;
mod side;

use std::path::PathBuf;

use bedplate_bufpool::PAGE;

use self::side::{
    ARRAY, Answer, CLEARING, Device, HASHTABLE, ONE_LIST, Question, RING0, SEED, STOCK, Setting, Side,
    VMCACHE, VMCACHE_IN_RING0, open, reason_of_stock,
};
use super::store::Store;
use super::tpcc::load::load as load_tpcc;
use super::tpcc::scale::{Database, Scale};
use super::tree::TreeStore;
use super::ycsb::run::{VALUE, load as load_ycsb};
use super::ycsb::trace::{Mix, Popularity, SKEW};
use crate::ring0::clock::Clock;
use crate::ring0::virtualizes;
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "pool-ring0",
    about: "YCSB and TPC-C on each pool engine and on the one in ring 0, in instructions (paper 7.4, Figures 17 to 21)",
    run,
};

/// Bytes of pages in memory where everything fits.
const LARGE: usize = 64 << 20;
/// The fewest bytes of pages in memory, so that an operation and a batch of evictions always find frames.
const SMALLEST: usize = 256 << 10;
/// Bytes of a key of YCSB.
const KEY: usize = 8;

/// The sides of a stage that compares engines.
const ENGINES: [Side; 5] = [VMCACHE, STOCK, HASHTABLE, ARRAY, RING0];
/// The sides of the drill-down (Figure 21).
const PARTS: [Side; 5] = [VMCACHE, VMCACHE_IN_RING0, ONE_LIST, CLEARING, RING0];

/// The extent of the measurement.
struct Size {
    records: u32,
    operations: usize,
    scale: Scale,
    transactions: u64,
    rounds: usize,
}

impl Size {
    fn of(options: &Options) -> Self {
        Self {
            records: options.pick(65_536, 262_144),
            operations: options.pick(1000, 10_000),
            scale: Scale {
                warehouses: 1,
                customers: options.pick(150, 600),
                items: options.pick(2000, 10_000),
            },
            transactions: options.pick(100, 1000),
            rounds: options.pick(2, 5),
        }
    }

    /// Bytes of pages in memory where not everything fits.
    fn eighth(&self) -> usize {
        self.records as usize * (KEY + VALUE) / 8
    }
}

/// The work of all sides of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    Ycsb(Mix, Popularity),
    Tpcc,
}

impl Workload {
    fn name(self) -> String {
        match self {
            Workload::Ycsb(mix, _) => format!("{mix:?}"),
            Workload::Tpcc => "TPC-C".to_owned(),
        }
    }

    fn distribution(self) -> Option<&'static str> {
        match self {
            Workload::Ycsb(_, popularity) => Some(popularity.name()),
            Workload::Tpcc => None,
        }
    }

    fn question(self, size: &Size, round: usize) -> Question {
        let seed = round as u64 + 1;
        match self {
            Workload::Ycsb(mix, popularity) => {
                Question::Ycsb { mix, popularity, records: size.records, operations: size.operations, seed }
            }
            Workload::Tpcc => Question::Tpcc { transactions: size.transactions, seed: SEED + seed },
        }
    }
}

/// Sides that run together, on copies of the same pool.
struct Stage {
    name: &'static str,
    setting: Setting,
    sides: Vec<Side>,
    workloads: Vec<Workload>,
}

/// The answers of a side in one workload of a stage, one for each round.
struct Cell {
    stage: &'static str,
    workload: Workload,
    side: Side,
    answers: Vec<Answer>,
}

/// Bytes of pages in memory for TPC-C: an eighth of the pages of the population.
fn tpcc_memory(image: &Image) -> usize {
    (image.bytes / 8).max(SMALLEST)
}

fn stages(size: &Size, ycsb: &Image, tpcc: &Image, has_ring0: bool) -> Vec<Stage> {
    use {Mix::*, Popularity::*};
    let mixes: Vec<_> =
        [(C, Uniform), (C, Zipf), (A, Uniform), (A, Zipf)].map(|(a, b)| Workload::Ycsb(a, b)).to_vec();
    let stage = |name, image: &Image, device, memory, sides: &[Side], workloads: &[Workload]| Stage {
        name,
        setting: Setting { image: image.file.clone(), device, memory, scale: size.scale },
        sides: sides.iter().copied().filter(|side| has_ring0 || !side.is_in_ring0).collect(),
        workloads: workloads.to_vec(),
    };
    let (eighth, tpcc_eighth) = (size.eighth(), tpcc_memory(tpcc));
    vec![
        stage("memory", ycsb, Device::File, LARGE, &ENGINES, &mixes),
        stage("oom", ycsb, Device::File, eighth, &ENGINES, &mixes),
        stage("oom_ram", ycsb, Device::Ram, eighth, &ENGINES, &mixes),
        stage("drill_down", ycsb, Device::File, eighth, &PARTS, &mixes[..1]),
        stage("drill_down_ram", ycsb, Device::Ram, eighth, &PARTS, &mixes[..1]),
        stage("tpcc", tpcc, Device::File, tpcc_eighth, &ENGINES, &[Workload::Tpcc]),
        stage("tpcc_ram", tpcc, Device::Ram, tpcc_eighth, &ENGINES, &[Workload::Tpcc]),
    ]
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    if !virtualizes() {
        return Err(Error::Missing {
            what: "this processor shows no VT-x or AMD-V, so ring 0 would be emulated".to_owned(),
            hint: "run it in a virtual machine: bedplate vm run --icount -- bedplate bench pool-ring0",
        });
    }
    run_sized(options, &Size::of(options), true, sink)
}

/// A pool that was filled and closed.
struct Image {
    file: PathBuf,
    /// Bytes of its pages.
    bytes: usize,
}

impl Image {
    /// Fills a pool on the engine `array`.
    fn fill(file: PathBuf, load: impl FnOnce(&TreeStore) -> Result<()>) -> Result<Self> {
        let store = open(ARRAY, &file, Device::File, LARGE)?;
        load(&store)?;
        let bytes = store.statistics().allocated as usize * PAGE;
        store.close()?;
        Ok(Self { file, bytes })
    }
}

fn run_sized(options: &Options, size: &Size, has_ring0: bool, sink: Sink<'_>) -> Result<Report> {
    let clock = Clock::detect();
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("unit", clock.unit())
        .with("records", size.records)
        .with("value_bytes", VALUE)
        .with("zipf", SKEW)
        .with("operations", size.operations)
        .with("oom_bytes", size.eighth())
        .with("customers", size.scale.customers)
        .with("items", size.scale.items)
        .with("transactions", size.transactions)
        .with("rounds", size.rounds)
        .with("directory", options.directory.display().to_string());
    let mut report = Report::new(BENCH.name, config);
    let folder = tempfile::Builder::new()
        .prefix("bedplate-pool-ring0-")
        .tempdir_in(&options.directory)
        .map_err(Error::io("create a directory"))?;
    sink(Step { done: 0, total: 1, label: "loading" });
    let ycsb = Image::fill(folder.path().join("ycsb"), |store| load_ycsb(store, size.records).map(drop))?;
    let tpcc = Image::fill(folder.path().join("tpcc"), |store| {
        load_tpcc(&mut store.session()?, &Database::new(size.scale, SEED), SEED)
    })?;
    let stages = stages(size, &ycsb, &tpcc, has_ring0);
    report.config.set("stock", reason_of_stock()?);
    report.config.set("tpcc_oom_bytes", tpcc_memory(&tpcc));
    let total = stages.iter().map(|stage| stage.workloads.len()).sum();
    let (mut done, mut cells) = (0, Vec::new());
    for stage in &stages {
        run_stage(stage, size, clock, &mut cells, &mut |label| {
            sink(Step { done, total, label });
            done += 1;
        })?;
    }
    for cell in &cells {
        report.rows.push(row(cell, &stages, clock));
    }
    ratios(&cells, &mut report);
    Ok(report)
}

fn run_stage(
    stage: &Stage,
    size: &Size,
    clock: Clock,
    cells: &mut Vec<Cell>,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let mut running =
        stage.sides.iter().map(|side| side.start(&stage.setting, clock)).collect::<Result<Vec<_>>>()?;
    let is_tpcc = stage.workloads == [Workload::Tpcc];
    let verify = if is_tpcc { Question::Check } else { Question::Warm { records: size.records } };
    // In memory, this reads every page once.
    for side in &mut running {
        side.ask(&verify)?;
    }
    for &workload in &stage.workloads {
        progress(&format!("{}: {}", stage.name, workload.name()));
        let answers = interleave(size.rounds + 1, running.len(), |side, round| {
            running[side].ask(&workload.question(size, round))
        })?;
        for (side, answers) in stage.sides.iter().zip(answers) {
            // The first round brings the side to its steady state.
            let answers = answers.into_iter().skip(1).collect();
            cells.push(Cell { stage: stage.name, workload, side: *side, answers });
        }
    }
    for side in &mut running {
        side.ask(&verify)?;
    }
    Ok(())
}

fn row(cell: &Cell, stages: &[Stage], clock: Clock) -> Fields {
    let device =
        stages.iter().find(|stage| stage.name == cell.stage).map(|stage| stage.setting.device.name());
    let median = |quantity: fn(&Answer) -> f64| samples(&cell.answers, quantity).median();
    let costs = samples(&cell.answers, |answer| answer.cost);
    let exits = cell.side.is_in_ring0.then(|| median(|answer| answer.exits.unwrap_or(f64::NAN)));
    Fields::new()
        .with("stage", cell.stage)
        .with("device", device)
        .with("workload", cell.workload.name())
        .with("distribution", cell.workload.distribution())
        .with("side", cell.side.name)
        .with(clock.key(), costs.median())
        .with("spread", costs.spread())
        .with("reads_per_op", median(|answer| answer.reads))
        .with("writes_per_op", median(|answer| answer.writes))
        .with("evictions_per_op", median(|answer| answer.evictions))
        .with("exits_per_op", exits)
}

/// The largest ratio of two sides' costs in a stage, over the workloads that have this name. NaN if nothing was measured.
fn worst(cells: &[Cell], stage: &str, workload: &str, side: Side, other: Side) -> f64 {
    let of = |side: Side| {
        cells
            .iter()
            .filter(move |cell| cell.stage == stage && cell.workload.name() == workload && cell.side == side)
    };
    let cost = |cell: &Cell| samples(&cell.answers, |answer| answer.cost);
    of(side)
        .filter_map(|cell| {
            let other = of(other).find(|other| other.workload == cell.workload)?;
            Some(cost(cell).over(&cost(other)))
        })
        .fold(f64::NAN, f64::max)
}

fn ratios(cells: &[Cell], report: &mut Report) {
    for other in [VMCACHE, STOCK, HASHTABLE, ARRAY] {
        for (stage, suffix) in [("memory", "mem"), ("oom", "oom"), ("oom_ram", "oom_ram")] {
            for (workload, letter) in [("A", 'a'), ("C", 'c')] {
                let name = format!("ring0_over_{}_{suffix}_{letter}", other.name);
                report.ratio(&name, worst(cells, stage, workload, RING0, other));
            }
        }
        for stage in ["tpcc", "tpcc_ram"] {
            let name = format!("ring0_over_{}_{stage}", other.name);
            report.ratio(&name, worst(cells, stage, "TPC-C", RING0, other));
        }
    }
    for stage in ["drill_down", "drill_down_ram"] {
        for (name, side, other) in [
            ("vmcache_in_ring0_over_vmcache", VMCACHE_IN_RING0, VMCACHE),
            ("one_list_over_vmcache_in_ring0", ONE_LIST, VMCACHE_IN_RING0),
            ("local_lists_over_one_list", CLEARING, ONE_LIST),
            ("not_clearing_over_clearing", RING0, CLEARING),
        ] {
            report.ratio(&format!("{stage}_{name}"), worst(cells, stage, "C", side, other));
        }
    }
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;
    use crate::Mode;

    // The test has its own process, because sides are forked, and threads of other tests would interfere.
    rusty_fork_test! {
    #[test]
    fn a_small_run_measures_every_side_and_leaves_nothing() {
        // The sides in ring 0 run only in the virtual machine, because the host's KVM may be emulated.
        let has_ring0 = std::env::var_os("BEDPLATE_VM").is_some() && virtualizes();
        let folder = tempfile::tempdir().unwrap();
        let options = Options { directory: folder.path().to_owned(), ..Options::new(Mode::Quick) };
        let scale = Scale { warehouses: 1, customers: 60, items: 200 };
        let size = Size { records: 20_000, operations: 500, scale, transactions: 100, rounds: 1 };
        let report = run_sized(&options, &size, has_ring0, &mut |_| {}).unwrap();
        let rows = |stage: &str| -> Vec<&Fields> {
            report.rows.iter().filter(|row| row.get("stage").is_some_and(|name| name == stage)).collect()
        };
        // Stages, their rows, and their rows with ring 0.
        for (stage, without, with) in [
            ("memory", 16, 20), ("oom", 16, 20), ("oom_ram", 16, 20), ("drill_down", 1, 5),
            ("drill_down_ram", 1, 5), ("tpcc", 4, 5), ("tpcc_ram", 4, 5),
        ] {
            let rows = rows(stage);
            let count = if has_ring0 { with } else { without };
            assert_eq!(rows.len(), count, "{stage}: {}", report.to_table(None));
            for row in rows {
                let is_small = stage != "memory";
                assert!(row.number(Clock::detect().key()) > Some(0.0), "{row:?}");
                assert_eq!(row.number("reads_per_op") > Some(0.0), is_small, "{row:?}");
                assert_eq!(row.number("evictions_per_op") > Some(0.0), is_small, "{row:?}");
            }
        }
        // Every ratio has a side in ring 0: 32 of the stages that compare engines, 8 of the drill-downs.
        assert_eq!(report.ratios.len(), if has_ring0 { 40 } else { 0 }, "{:?}", report.ratios);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    }

    #[test]
    fn a_ratio_is_the_worst_of_both_distributions() {
        let cell = |popularity, side, cost| Cell {
            stage: "oom",
            workload: Workload::Ycsb(Mix::A, popularity),
            side,
            answers: vec![Answer { cost, reads: 0.0, writes: 0.0, evictions: 0.0, exits: None }],
        };
        let cells = [
            cell(Popularity::Uniform, RING0, 1.0),
            cell(Popularity::Uniform, VMCACHE, 4.0),
            cell(Popularity::Zipf, RING0, 2.0),
            cell(Popularity::Zipf, VMCACHE, 4.0),
        ];
        assert_eq!(worst(&cells, "oom", "A", RING0, VMCACHE), 0.5);
        assert!(worst(&cells, "oom", "C", RING0, VMCACHE).is_nan());
        assert!(worst(&cells, "memory", "A", RING0, VMCACHE).is_nan());
    }
}
