//! `snapshot-latency`: how long a memory's writers stand still for a snapshot (paper 7.3, Figure 20a).

use super::sides::{
    FORK, FORK_HUGE, Pattern, REMAP, REMAP_SMALL, REMAP_THREAD, Side, UFFD, UFFD_CHILD, UFFD_HUGE,
    wait_for_end, write,
};
use crate::sample::{Samples, interleave};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "snapshot-latency",
    about: "the pause for a snapshot, by size of the memory (paper 7.3, Figure 20a)",
    run,
};

const PAGE: usize = bedplate_snapshot::PAGE;
const MIB: usize = 1 << 20;

/// What happened to a memory before its snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    /// Everything was written, and nothing armed.
    Cold,
    /// What can be done ahead was, all armed or folded; then such a part of the pages was written.
    Armed { written: f64, pattern: Pattern },
}

const fn armed(written: f64, pattern: Pattern) -> Before {
    Before::Armed { written, pattern }
}

/// The case by which sides are compared that do not arm: processors' caches are as cold for each of them.
const SETTLED: Before = armed(0.05, Pattern::Scattered);

const CASES: [(Side, Before); 17] = [
    (FORK, SETTLED),
    (FORK_HUGE, SETTLED),
    (REMAP, armed(0.0, Pattern::Ranges)),
    (REMAP, SETTLED),
    (REMAP_SMALL, SETTLED),
    (REMAP_THREAD, SETTLED),
    (UFFD, Before::Cold),
    (UFFD, armed(0.0, Pattern::Ranges)),
    (UFFD, armed(0.05, Pattern::Ranges)),
    (UFFD, armed(0.01, Pattern::Scattered)),
    (UFFD, SETTLED),
    (UFFD_HUGE, Before::Cold),
    (UFFD_HUGE, armed(0.0, Pattern::Ranges)),
    (UFFD_HUGE, armed(0.01, Pattern::Ranges)),
    (UFFD_HUGE, armed(0.05, Pattern::Ranges)),
    (UFFD_HUGE, SETTLED),
    (UFFD_CHILD, armed(0.05, Pattern::Ranges)),
];

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let sizes: &[usize] = options.pick(&[256, 1024], &[256, 1024, 4096, 8192]);
    let rounds = options.pick(5, 9);
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("memory", "touched before; the pages of a side stay the same for all rounds");
    let mut report = Report::new(BENCH.name, config);
    // As many memories at a time as fit.
    let groups = sizes.iter().flat_map(|&mib| {
        let (mut remap, mut uffd) = (vec![FORK, REMAP], vec![FORK, UFFD_HUGE]);
        if mib <= 4096 {
            remap.extend([FORK_HUGE, REMAP_THREAD]);
            uffd.extend([FORK_HUGE, UFFD]);
        }
        if mib <= 1024 {
            remap.push(REMAP_SMALL);
            uffd.push(UFFD_CHILD);
        }
        [(mib, remap), (mib, uffd)]
    });
    let mut of_remap = Vec::new();
    for (done, (mib, sides)) in groups.enumerate() {
        let bytes = mib * MIB;
        sink(Step { done, total: sizes.len() * 2, label: &format!("{mib} MiB") });
        let memories =
            sides.iter().map(|side| Ok((*side, side.memory(bytes)?))).collect::<Result<Vec<_>>>()?;
        let cases: Vec<_> = CASES.into_iter().filter(|(side, _)| sides.contains(side)).collect();
        let mut seed = 0;
        let results = interleave(rounds, cases.len(), |case, _| {
            let (side, before) = cases[case];
            let (_, memory) = memories.iter().find(|(of, _)| *of == side).expect("each side has one");
            let pages = bytes / PAGE;
            seed += 1;
            match before {
                Before::Cold => (0..pages).for_each(|page| write(memory, page, seed)),
                Before::Armed { written, pattern } => {
                    memory.settle();
                    let count = (pages as f64 * written) as usize;
                    pattern.choose(pages, count, seed).into_iter().for_each(|page| write(memory, page, seed));
                }
            }
            side.alone(memory, || {
                let snapshot = memory.spawn(|view| view.words()[0].to_le_bytes().to_vec())?;
                let pause = snapshot.pause().as_nanos() as f64;
                snapshot.join()?;
                wait_for_end(memory);
                // What is not folded the next side's children would inherit.
                memory.settle();
                Ok(pause)
            })
        })?;
        let pauses = |case: usize| results[case].iter().copied().collect::<Samples>();
        for (case, (side, before)) in cases.iter().enumerate() {
            let (before, written) = match before {
                Before::Cold => ("cold", None),
                Before::Armed { written, pattern } => (pattern.name(), Some(written * 100.0)),
            };
            let pause = pauses(case);
            report.rows.push(
                Fields::new()
                    .with("memory_mib", mib)
                    .with("side", side.name)
                    .with("written", before)
                    .with("written_pct", written)
                    .with("pause_ns", pause.median())
                    .with("shortest_ns", pause.min())
                    .with("longest_ns", pause.max()),
            );
        }
        let find = |wanted: (Side, Before)| cases.iter().position(|case| *case == wanted).map(pauses);
        let label = if mib < 1024 { format!("{mib}m") } else { format!("{}g", mib / 1024) };
        let ahead = armed(0.05, Pattern::Ranges);
        of_remap.extend(find((REMAP, SETTLED)));
        for (name, over, under) in [
            ("fork_over_remap", (FORK, SETTLED), (REMAP, SETTLED)),
            ("thp_fork_over_remap", (FORK_HUGE, SETTLED), (REMAP, SETTLED)),
            ("fork_over_remap_small", (FORK, SETTLED), (REMAP_SMALL, SETTLED)),
            ("fork_over_remap_thread", (FORK, SETTLED), (REMAP_THREAD, SETTLED)),
            ("fork_over_uffd_huge_armed", (FORK, SETTLED), (UFFD_HUGE, ahead)),
            ("thp_fork_over_uffd_huge_armed", (FORK_HUGE, SETTLED), (UFFD_HUGE, ahead)),
            ("fork_over_uffd_huge_cold", (FORK, SETTLED), (UFFD_HUGE, Before::Cold)),
            ("fork_over_uffd_armed", (FORK, SETTLED), (UFFD, ahead)),
            ("thp_fork_over_uffd_armed", (FORK_HUGE, SETTLED), (UFFD, ahead)),
            ("fork_over_uffd_cold", (FORK, SETTLED), (UFFD, Before::Cold)),
            ("fork_over_uffd_scattered", (FORK, SETTLED), (UFFD, SETTLED)),
            ("fork_over_uffd_untouched", (FORK, SETTLED), (UFFD, armed(0.0, Pattern::Ranges))),
        ] {
            if let (Some(over), Some(under)) = (find(over), find(under)) {
                report.ratio(&format!("{name}_{label}"), over.over(&under));
            }
        }
    }
    if let [smallest, .., largest] = &of_remap[..] {
        report.ratio("remap_largest_over_smallest", largest.over(smallest));
    }
    Ok(report)
}
