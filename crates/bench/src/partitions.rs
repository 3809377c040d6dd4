//! `kv-partitions`: one partition against four (paper 6.7, Figure 11), uniform keys, two threads.
//!
//! Operations are driven one per call, since traces run within one partition.

use std::time::Duration;

use bedplate_kerneldb::Config;

use crate::keys::Distribution;
use crate::local::driver::Driving;
use crate::local::run::{filled, memory_need, require_memory};
use crate::local::sides::{Plan, fill_row, measure, ratio};
use crate::local::trace::Workload;
use crate::sample::Samples;
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark =
    Benchmark { name: "kv-partitions", about: "one partition against four (paper 6.7, Figure 11)", run };

const PARTITIONS: [u32; 2] = [1, 4];

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let plan = Plan {
        rounds: options.pick(5, 9),
        window: Duration::from_millis(options.pick(150, 500)),
        threads: 2,
        driving: Driving::OnePerCall,
    };
    let data: [(u64, usize); 2] =
        options.pick([(500_000, 16), (100_000, 1024)], [(4_000_000, 16), (500_000, 1024)]);
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", plan.rounds)
        .with("window_ms", plan.window.as_millis() as u64)
        .with("threads", plan.threads)
        .with("distribution", Distribution::Uniform.name());
    let mut report = Report::new(BENCH.name, config);
    let mut over = Vec::new();
    for (done, (keys, value_len)) in data.into_iter().enumerate() {
        let base = Workload { keys, value_len, set_percent: 0, distribution: Distribution::Uniform };
        require_memory(memory_need(&base, Config::default().versions) * PARTITIONS.len() as u64)?;
        sink(Step { done, total: data.len(), label: &format!("{keys} keys of {value_len} B") });
        let databases = PARTITIONS
            .iter()
            .map(|&partitions| filled(&base, Config { partitions, ..Config::default() }))
            .collect::<Result<Vec<_>>>()?;
        for set_percent in [10, 50, 90] {
            let workload = Workload { set_percent, ..base };
            let sides = measure(&databases.iter().collect::<Vec<_>>(), &workload, &plan)?;
            for (partitions, windows) in PARTITIONS.iter().zip(&sides) {
                let mut row = Fields::new()
                    .with("keys", keys)
                    .with("value_bytes", value_len)
                    .with("set_pct", set_percent)
                    .with("partitions", *partitions);
                fill_row(&mut row, windows);
                report.rows.push(row);
            }
            over.push(ratio(&sides[1], &sides[0]));
        }
    }
    let over: Samples = over.into_iter().collect();
    report.ratio("four_over_one_min", over.min());
    report.ratio("four_over_one_median", over.median());
    report.ratio("four_over_one_max", over.max());
    Ok(report)
}
