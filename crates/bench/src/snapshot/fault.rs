//! `snapshot-fault`: the first write to a page after a snapshot (paper 7.3, Figure 14).

use std::time::Instant;

use bedplate_snapshot::Memory;

use super::sides::{FORK, Pattern, REMAP, REMAP_SMALL, Side, UFFD, UFFD_CHILD, wait_for_end, write};
use crate::latency::Latencies;
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "snapshot-fault",
    about: "the first write to a page after a snapshot (paper 7.3, Figure 14)",
    run,
};

const MEMORY: usize = 256 << 20;
const SIDES: [Side; 5] = [FORK, UFFD, UFFD_CHILD, REMAP, REMAP_SMALL];

/// The order in which pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Scattered,
    Ascending,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::Scattered => "scattered",
            Self::Ascending => "ascending",
        }
    }

    fn pages(self, pages: usize, count: usize, seed: u64) -> Vec<usize> {
        match self {
            Self::Scattered => Pattern::Scattered.choose(pages, count, seed),
            Self::Ascending => (0..count).collect(),
        }
    }
}

struct Round {
    mean_ns: f64,
    latencies: Latencies,
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let (rounds, writes) = options.pick((5, 4000), (15, 20_000));
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("memory_bytes", MEMORY)
        .with("rounds", rounds)
        .with("writes", writes)
        .with("threads", "one writes; the snapshot's task waits");
    let mut report = Report::new(BENCH.name, config);
    let memories = SIDES.iter().map(|side| side.memory(MEMORY)).collect::<Result<Vec<_>>>()?;
    for (done, order) in [Order::Scattered, Order::Ascending].into_iter().enumerate() {
        sink(Step { done, total: 2, label: order.name() });
        let results = interleave(rounds, SIDES.len(), |side, round| {
            let memory = &memories[side];
            SIDES[side].alone(memory, || measure(memory, order, writes, round as u64 + 1))
        })?;
        for (side, rounds) in SIDES.iter().zip(&results) {
            let mut all = Latencies::default();
            rounds.iter().for_each(|round| all.merge(&round.latencies));
            let mut row = Fields::new().with("order", order.name()).with("side", side.name);
            row.set("write_ns", samples(rounds, |round| round.mean_ns).median());
            all.fill(&mut row);
            report.rows.push(row);
        }
        let means = |side: usize| samples(&results[side], |round| round.mean_ns);
        let suffix = if order == Order::Scattered { "" } else { "_ascending" };
        report.ratio(&format!("uffd_fault_over_fork_fault{suffix}"), means(1).over(&means(0)));
        report.ratio(&format!("uffd_child_fault_over_fork_fault{suffix}"), means(2).over(&means(0)));
        report.ratio(&format!("remap_fault_over_fork_fault{suffix}"), means(3).over(&means(0)));
    }
    Ok(report)
}

fn measure(memory: &Memory, order: Order, writes: usize, round: u64) -> Result<Round> {
    memory.settle();
    let pages = order.pages(memory.len() / bedplate_snapshot::PAGE, writes, round);
    let folder = tempfile::tempdir().map_err(Error::io("temporary directory"))?;
    let over = folder.path().join("over");
    let snapshot = memory.spawn({
        let over = over.clone();
        move |view| {
            // It shares all pages, and uses no processor.
            while !over.exists() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            view.words()[0].to_le_bytes().to_vec()
        }
    })?;
    let mut latencies = Latencies::default();
    let begin = Instant::now();
    let mut before = begin;
    for page in pages {
        write(memory, page, round + 1);
        let now = Instant::now();
        latencies.record((now - before).as_nanos() as u64);
        before = now;
    }
    let mean_ns = (before - begin).as_nanos() as f64 / writes as f64;
    std::fs::write(&over, "").map_err(Error::io("write a file"))?;
    snapshot.join()?;
    wait_for_end(memory);
    Ok(Round { mean_ns, latencies })
}
