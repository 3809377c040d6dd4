//! `snapshot-latency`: the time for which a snapshot stops a memory's writers (paper 7.3, Figure 20a).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_snapshot::Memory;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::sides::{
    FORK, FORK_HUGE, Pattern, REMAP, REMAP_SMALL, REMAP_THREAD, Side, UFFD, UFFD_CHILD, UFFD_HUGE,
    wait_for_end, write,
};
use crate::cpu::CpuTime;
use crate::sample::{interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "snapshot-latency",
    about: "the pause for a snapshot, by size of the memory (paper 7.3, Figure 20a)",
    run,
};

const PAGE: usize = bedplate_snapshot::PAGE;
const MIB: usize = 1 << 20;

/// The state of a memory before its snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    /// All pages were written, and none was armed.
    Cold,
    /// The engine armed or merged all pages in advance; then this share of the pages was written.
    Armed { written: f64, pattern: Pattern },
}

const fn armed(written: f64, pattern: Pattern) -> Before {
    Before::Armed { written, pattern }
}

/// The case for the comparison of sides that do not arm. Processors' caches are equally cold for each of them.
const SETTLED: Before = armed(0.05, Pattern::Scattered);

/// Threads that write to the memory while its snapshot is taken.
const WRITERS: usize = 2;

/// A side, the state of its memory, and the number of threads that write to it meanwhile.
type Case = (Side, Before, usize);

const fn with_writers(side: Side) -> Case {
    (side, SETTLED, WRITERS)
}

const CASES: [Case; 23] = [
    with_writers(FORK),
    with_writers(FORK_HUGE),
    with_writers(REMAP),
    with_writers(REMAP_THREAD),
    (FORK, armed(0.05, Pattern::Ranges), 0),
    (REMAP, armed(0.05, Pattern::Ranges), 0),
    (FORK, SETTLED, 0),
    (FORK_HUGE, SETTLED, 0),
    (REMAP, armed(0.0, Pattern::Ranges), 0),
    (REMAP, SETTLED, 0),
    (REMAP_SMALL, SETTLED, 0),
    (REMAP_THREAD, SETTLED, 0),
    (UFFD, Before::Cold, 0),
    (UFFD, armed(0.0, Pattern::Ranges), 0),
    (UFFD, armed(0.05, Pattern::Ranges), 0),
    (UFFD, armed(0.01, Pattern::Scattered), 0),
    (UFFD, SETTLED, 0),
    (UFFD_HUGE, Before::Cold, 0),
    (UFFD_HUGE, armed(0.0, Pattern::Ranges), 0),
    (UFFD_HUGE, armed(0.01, Pattern::Ranges), 0),
    (UFFD_HUGE, armed(0.05, Pattern::Ranges), 0),
    (UFFD_HUGE, SETTLED, 0),
    (UFFD_CHILD, armed(0.05, Pattern::Ranges), 0),
];

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let sizes: &[usize] = options.pick(&[256, 1024], &[256, 1024, 4096, 8192]);
    let rounds = options.pick(5, 9);
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("memory", "touched before; the pages of a side stay the same for all rounds");
    let mut report = Report::new(BENCH.name, config);
    // Each group has as many memories as fit at a time.
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
        let cases: Vec<_> = CASES.into_iter().filter(|(side, ..)| sides.contains(side)).collect();
        let mut seed = 0;
        let results = interleave(rounds, cases.len(), |case, _| {
            let (side, before, writers) = cases[case];
            let (_, memory) = memories.iter().find(|(of, _)| *of == side).expect("each side has one");
            let pages = bytes / PAGE;
            seed += 1;
            match before {
                Before::Cold => (0..pages).for_each(|page| write(memory, page, seed)),
                Before::Armed { written, pattern } => {
                    memory.settle();
                    side.restore_huge_pages(memory);
                    let count = (pages as f64 * written) as usize;
                    pattern.choose(pages, count, seed).into_iter().for_each(|page| write(memory, page, seed));
                }
            }
            let huge_pct = side.huge_pct(memory);
            side.alone(memory, || {
                beside_writers(memory, writers, || {
                    let before = cpu_ns();
                    let snapshot = memory.spawn(|view| view.words()[0].to_le_bytes().to_vec())?;
                    let pause = snapshot.pause().as_nanos() as f64;
                    snapshot.join()?;
                    wait_for_end(memory);
                    // Children of the next side would inherit pages that are not merged.
                    memory.settle();
                    Ok(Taken { pause, cpu: cpu_ns() - before, huge_pct })
                })
            })
        })?;
        let pauses = |case: usize| samples(&results[case], |taken| taken.pause);
        for (case, (side, before, writers)) in cases.iter().enumerate() {
            let (before, written) = match before {
                Before::Cold => ("cold", None),
                Before::Armed { written, pattern } => (pattern.name(), Some(written * 100.0)),
            };
            let pause = pauses(case);
            let least_huge = results[case].iter().filter_map(|taken| taken.huge_pct).reduce(f64::min);
            report.rows.push(
                Fields::new()
                    .with("memory_mib", mib)
                    .with("side", side.name)
                    .with("written", before)
                    .with("written_pct", written)
                    .with("writers", *writers)
                    .with("pause_ns", pause.median())
                    .with("shortest_ns", pause.min())
                    .with("longest_ns", pause.max())
                    .with("huge_pct", least_huge)
                    // With writers, most of the CPU time is theirs.
                    .with(
                        "cpu_ns",
                        (*writers == 0).then(|| samples(&results[case], |taken| taken.cpu).median()),
                    ),
            );
        }
        let find = |wanted: Case| cases.iter().position(|case| *case == wanted).map(pauses);
        let settled = |side: Side| (side, SETTLED, 0);
        let label = if mib < 1024 { format!("{mib}m") } else { format!("{}g", mib / 1024) };
        let ahead = armed(0.05, Pattern::Ranges);
        of_remap.extend(find(settled(REMAP)));
        for (name, over, under) in [
            ("fork_over_remap", settled(FORK), settled(REMAP)),
            ("thp_fork_over_remap", settled(FORK_HUGE), settled(REMAP)),
            ("fork_over_remap_ranges", (FORK, ahead, 0), (REMAP, ahead, 0)),
            ("fork_over_remap_writers", with_writers(FORK), with_writers(REMAP)),
            ("thp_fork_over_remap_writers", with_writers(FORK_HUGE), with_writers(REMAP)),
            ("fork_over_remap_small", settled(FORK), settled(REMAP_SMALL)),
            ("fork_over_remap_thread", settled(FORK), settled(REMAP_THREAD)),
            ("fork_over_remap_thread_writers", with_writers(FORK), with_writers(REMAP_THREAD)),
            ("fork_over_uffd_huge_armed", settled(FORK), (UFFD_HUGE, ahead, 0)),
            ("thp_fork_over_uffd_huge_armed", settled(FORK_HUGE), (UFFD_HUGE, ahead, 0)),
            ("fork_over_uffd_huge_cold", settled(FORK), (UFFD_HUGE, Before::Cold, 0)),
            ("fork_over_uffd_armed", settled(FORK), (UFFD, ahead, 0)),
            ("thp_fork_over_uffd_armed", settled(FORK_HUGE), (UFFD, ahead, 0)),
            ("fork_over_uffd_cold", settled(FORK), (UFFD, Before::Cold, 0)),
            ("fork_over_uffd_scattered", settled(FORK), settled(UFFD)),
            ("fork_over_uffd_untouched", settled(FORK), (UFFD, armed(0.0, Pattern::Ranges), 0)),
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

/// A snapshot that was taken.
struct Taken {
    pause: f64,
    /// The share of the memory that huge pages mapped before the snapshot; `None` where the memory is a file.
    huge_pct: Option<f64>,
    /// Processor time of this process and of its children, from the snapshot's beginning until the memory is settled again.
    cpu: f64,
}

/// Runs `f` while threads write to the memory.
fn beside_writers<T>(memory: &Memory, writers: usize, f: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Time for which writers run before `f`.
    const AHEAD: Duration = Duration::from_millis(5);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(writer as u64);
                while !is_over.load(Ordering::Relaxed) {
                    let page = random.random_range(0..memory.len() / PAGE);
                    write(memory, page, random.random());
                }
            });
        }
        if writers > 0 {
            std::thread::sleep(AHEAD);
        }
        let result = f();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Processor time of this process and of its children that have ended.
fn cpu_ns() -> f64 {
    CpuTime::of_process().plus(CpuTime::of_children()).total_ns() as f64
}
