//! `kv-versions`: the number of versions per key (paper 6.8 and 6.9, Figures 12 to 14, Table 2).
//!
//! 90 % SETs on Zipf keys make as many versions as possible. Three kinds of rows:
//!
//! - `throughput`: operations per CPU second and roll-backs for lack of a version, by versions per key.
//!   They are measured without and with a reader that keeps taking snapshots, whose versions cannot be
//!   pruned. One version is the single-version mode of 6.9.
//! - `latency`: one operation per call, due at a fixed rate, 1 KB values (Table 2). Latency counts from when an operation
//!   was due.
//! - `verifier`: size of each program and the verifier's work, by versions (Figure 13); exact counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb::limits::PARTITION_BYTES_MAX;
use bedplate_kerneldb::{Config, Database};

use crate::bpf;
use crate::keys::Distribution;
use crate::latency::Latencies;
use crate::local::driver::{Driving, OnePerCall, Outcome};
use crate::local::run::{Window, fill, memory_need, require_memory};
use crate::local::sides::{self, Plan, fill_row};
use crate::local::trace::{TraceOp, Workload, draw, key};
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-versions",
    about: "versions per key: throughput, roll-backs, latency, verifier's work (paper 6.8, 6.9)",
    run,
};

/// The version counts that the ratios compare.
const FEW: u32 = 2;
const DEFAULT: u32 = 4;
const MANY: u32 = 8;

struct Side {
    versions: u32,
    database: Database,
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let counts: &[u32] = options.pick(&[1, FEW, DEFAULT, MANY], &[1, FEW, 3, DEFAULT, 5, 6, 7, MANY, 16, 64]);
    let most: u32 = counts.iter().copied().max().unwrap_or(1);
    let workloads = [16, 1024].map(|value_len| {
        let keys = options.pick(50_000, 200_000);
        within_a_partition(
            Workload { keys, value_len, set_percent: 90, distribution: Distribution::Zipf },
            most,
        )
    });
    let plan = Plan {
        rounds: options.pick(3, 7),
        window: Duration::from_millis(options.pick(150, 500)),
        threads: 1,
        driving: Driving::Batch,
    };
    let rate = 100_000u64;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("keys_16b", workloads[0].keys)
        .with("keys_1k", workloads[1].keys)
        .with("rounds", plan.rounds)
        .with("window_ms", plan.window.as_millis() as u64)
        .with("set_pct", 90)
        .with("distribution", Distribution::Zipf.name())
        .with("latency_rate_per_s", rate);
    let mut report = Report::new(BENCH.name, config);
    for (done, workload) in workloads.into_iter().enumerate() {
        let value_len = workload.value_len;
        require_memory(counts.iter().map(|v| memory_need(&workload, *v)).sum())?;
        sink(Step { done, total: 2, label: &format!("{value_len} B: loading") });
        let sides =
            counts.iter().map(|&v| side(&workload, v, done == 0, &mut report)).collect::<Result<Vec<_>>>()?;
        for reader in [false, true] {
            sink(Step { done, total: 2, label: &format!("{value_len} B: throughput, reader: {reader}") });
            throughput(&sides, &workload, &plan, reader, &mut report)?;
        }
        if value_len == 1024 {
            sink(Step { done, total: 2, label: "latency at a fixed rate" });
            latency(&sides, &workload, &plan, rate, &mut report)?;
        }
    }
    Ok(report)
}

/// Reduces the number of keys until one partition has room for all of their versions, because a trace runs on one partition.
fn within_a_partition(mut workload: Workload, versions: u32) -> Workload {
    while memory_need(&workload, versions) > PARTITION_BYTES_MAX {
        workload.keys -= workload.keys / 16;
    }
    workload
}

/// A filled database with `versions` versions. Adds rows with its programs' sizes if `verifier`.
fn side(workload: &Workload, versions: u32, verifier: bool, report: &mut Report) -> Result<Side> {
    let before = bpf::programs();
    let need = memory_need(workload, versions);
    let database = Database::create(Config { versions, memory_bytes: need, ..Config::default() })?;
    if verifier {
        for program in bpf::programs().into_iter().filter(|p| !before.iter().any(|b| b.id == p.id)) {
            report.rows.push(
                Fields::new()
                    .with("kind", "verifier")
                    .with("versions", versions)
                    .with("program", program.name)
                    .with("size_insns", program.insns)
                    .with("verified_insns", program.verified_insns),
            );
        }
    }
    fill(&database, workload)?;
    Ok(Side { versions, database })
}

fn throughput(
    sides: &[Side],
    workload: &Workload,
    plan: &Plan,
    reader: bool,
    report: &mut Report,
) -> Result<()> {
    let databases: Vec<&Database> = sides.iter().map(|s| &s.database).collect();
    let stop = AtomicBool::new(false);
    let results = std::thread::scope(|scope| {
        let readers: Vec<_> = (if reader { sides } else { &[] })
            .iter()
            .map(|s| scope.spawn(|| keep_reading(&s.database, workload, &stop)))
            .collect();
        let results = sides::measure(&databases, workload, plan);
        stop.store(true, Ordering::Relaxed);
        for r in readers {
            r.join().expect("a reader does not panic")?;
        }
        results
    })?;
    for (side, windows) in sides.iter().zip(&results) {
        let mut row = Fields::new()
            .with("kind", "throughput")
            .with("value_bytes", workload.value_len)
            .with("snapshots", reader)
            .with("versions", side.versions);
        fill_row(&mut row, windows);
        row.set("no_version_per_s", samples(windows, no_version_per_s).median());
        report.rows.push(row);
    }
    let of = |versions| sides.iter().position(|s| s.versions == versions).map(|i| &results[i]);
    let size = if workload.value_len == 16 { "16b" } else { "1k" };
    let with = if reader { "_with_snapshots" } else { "" };
    if let (Some(one), Some(few), Some(default), Some(many)) = (of(1), of(FEW), of(DEFAULT), of(MANY)) {
        report.ratio(&format!("versions_8_over_2_{size}{with}"), sides::ratio(many, few));
        report.ratio(&format!("single_version_over_4_{size}{with}"), sides::ratio(one, default));
    }
    Ok(())
}

fn no_version_per_s(w: &Window) -> f64 {
    w.refused.no_version as f64 * 1e9 / w.wall_ns as f64
}

/// Repeatedly takes a snapshot, reads the most popular keys, and keeps the snapshot for a moment.
fn keep_reading(database: &Database, workload: &Workload, stop: &AtomicBool) -> Result<()> {
    let popular: Vec<TraceOp> = draw(workload, 16, 1);
    let mut session = database.session()?;
    while !stop.load(Ordering::Relaxed) {
        let mut transaction = || -> bedplate_kerneldb::Result<u64> {
            session.begin_read_only()?;
            for op in &popular {
                session.get(&key(op.key()))?;
            }
            std::thread::sleep(Duration::from_micros(500));
            session.commit()
        };
        match transaction() {
            Ok(_) => {}
            // In single-version mode a read-only transaction locks, and can meet a conflict.
            Err(e) if e.is_transient() => session.rollback()?,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn latency(sides: &[Side], workload: &Workload, plan: &Plan, rate: u64, report: &mut Report) -> Result<()> {
    let trace = draw(workload, 1 << 18, 3);
    let mut drivers =
        sides.iter().map(|s| OnePerCall::new(&s.database, workload)).collect::<Result<Vec<_>>>()?;
    let results = interleave(plan.rounds, sides.len(), |side, round| {
        paced(&mut drivers[side], &trace, round * 1000, rate, plan.window)
    })?;
    for (side, rounds) in sides.iter().zip(&results) {
        let mut merged = Latencies::default();
        rounds.iter().for_each(|l| merged.merge(l));
        let mut row = Fields::new()
            .with("kind", "latency")
            .with("value_bytes", workload.value_len)
            .with("versions", side.versions)
            .with("min_ns", merged.min())
            .with("p25_ns", merged.percentile(25.0))
            .with("p75_ns", merged.percentile(75.0));
        merged.fill(&mut row);
        report.rows.push(row);
    }
    Ok(())
}

/// Latencies of operations that are due at a fixed rate, from when they were due; the thread spins between them.
fn paced(
    driver: &mut OnePerCall,
    trace: &[TraceOp],
    from: usize,
    rate: u64,
    window: Duration,
) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut outcome = Outcome::default();
    let start = Instant::now();
    for i in 0.. {
        let due = Duration::from_nanos(i * 1_000_000_000 / rate);
        if due >= window {
            break;
        }
        while start.elapsed() < due {
            std::hint::spin_loop();
        }
        let op = trace[(from + i as usize) % trace.len()];
        driver.one(op, &mut outcome)?;
        latencies.record((start.elapsed() - due).as_nanos() as u64);
    }
    if latencies.count() == 0 {
        return Err(Error::Missing {
            what: "no operation was due within the window".to_owned(),
            hint: "use a longer window",
        });
    }
    Ok(latencies)
}
