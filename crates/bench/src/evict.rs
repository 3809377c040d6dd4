//! `pool-evict`: the cost of replacing a page, without storage (paper 7.4, Figure 21). A page is missed, another one
//! is evicted for it, and it is mapped and touched.
//!
//! All sides are the same pool with different engines. vmcache returns the memory of each page to the kernel, and gets
//! other memory by a page fault. It runs with its thread in ring 3 and in ring 0. The other sides are TABBY without
//! and with its parts. The native side is another process, which is not a virtual machine.
//!
//! Where the time stamp counts instructions (`bedplate vm run --icount`), figures are instructions. On machines with
//! several processors, two threads also replace pages at the same time, and interrupts, exits and stale translations
//! are counted.

mod counts;

use bedplate_bufpool::{Choice, Kind, PAGE, PageId, Parts, Pool};

use crate::nothing::Nothing;
use crate::ring0::clock::Clock;
use crate::ring0::{Costs, native, virtualizes};
use crate::sample::{Samples, interleave};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "pool-evict",
    about: "replacing a page of the buffer pool without storage, in instructions, part by part (paper 7.4, Figure 21)",
    run,
};

/// Pages in memory.
const FRAMES: usize = 2048;
/// Pages that are used in turn, so that each use is a miss.
const PAGES: usize = 8 * FRAMES;
/// Pages that a round replaces.
const ROUND: usize = 2 * FRAMES;

const NATIVE: &str = "vmcache";
const IN_RING0: &str = "vmcache in ring 0";
const TABBY: &str = "TABBY with one list of free frames, which it clears";
const LISTS: &str = "TABBY with lists of the processors, clearing frames";
const ALL: &str = "TABBY";

/// The sides in ring 0.
const SIDES: [(&str, Kind, Parts); 4] = [
    (IN_RING0, Kind::Vmcache, Parts::ALL),
    (TABBY, Kind::Ring0, Parts { local_lists: false, no_clearing: false }),
    (LISTS, Kind::Ring0, Parts { local_lists: true, no_clearing: false }),
    (ALL, Kind::Ring0, Parts::ALL),
];

/// Adapter for `map_err`.
fn failed(error: bedplate_bufpool::Error) -> Error {
    Error::io("a pool")(std::io::Error::other(error))
}

/// A pool and the next page to use.
struct Subject {
    pool: Pool,
    first: u64,
    pages: usize,
    next: usize,
}

impl Subject {
    fn open(kind: Kind, parts: Parts) -> Result<Self> {
        Self::of(kind, parts, FRAMES, PAGES)
    }

    fn of(kind: Kind, parts: Parts, frames: usize, pages: usize) -> Result<Self> {
        let builder = Pool::builder("").storage(Box::new(Nothing::default())).memory(frames * PAGE);
        // The measured thread evicts by itself.
        let builder = builder.provider_threads(0);
        let pool =
            builder.capacity(1 << 30).engine(Choice::Only(kind)).parts(parts).open().map_err(failed)?;
        let first = pool.allocate().map_err(failed)?.page().0;
        for _ in 1..pages {
            drop(pool.allocate().map_err(failed)?);
        }
        pool.sync().map_err(failed)?;
        let mut subject = Self { pool, first, pages, next: 0 };
        // Now all pages are clean. Each is used once before the measurement.
        subject.replace(pages)?;
        Ok(subject)
    }

    /// Uses a page.
    fn touch(&self, page: usize) -> Result<()> {
        self.pool.bring_in_unread(PageId(self.first + page as u64)).map_err(failed)
    }

    /// Replaces `pages` pages.
    fn replace(&mut self, pages: usize) -> Result<()> {
        for _ in 0..pages {
            self.touch(self.next)?;
            self.next = (self.next + 1) % self.pages;
        }
        Ok(())
    }

    fn round(&mut self, name: &str, clock: Clock) -> Result<Costs> {
        let before = self.pool.statistics().evicted;
        let cost = clock.time(ROUND, || self.replace(ROUND))?;
        let evicted = self.pool.statistics().evicted - before;
        // The pool evicts in batches, so the numbers may differ a little.
        if evicted.abs_diff(ROUND as u64) > FRAMES as u64 / 4 {
            return Err(Error::engine(format!("{evicted} pages were evicted for {ROUND}")));
        }
        Ok(vec![(name.to_owned(), cost)])
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    if !virtualizes() {
        return Err(Error::Missing {
            what: "this processor shows no VT-x or AMD-V, so ring 0 would be emulated".to_owned(),
            hint: "run it in a virtual machine: bedplate vm run --icount -- bedplate bench pool-evict",
        });
    }
    let clock = Clock::detect();
    let rounds = options.pick(5, 15);
    // The native side starts first, while this process has no part in a virtual machine.
    let mut native = native::Side::start_with(move || {
        let mut subject = Subject::open(Kind::Vmcache, Parts::ALL)?;
        Ok(Box::new(move || subject.round(NATIVE, clock)))
    })?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut counted = Vec::new();
    if processors > 1 {
        counted.push((NATIVE, counts::natively()?));
    }
    let process =
        bedplate_ring0::Process::this().map_err(|error| Error::io("ring 0")(std::io::Error::other(error)))?;
    let mut subjects: Vec<_> = SIDES
        .iter()
        .map(|(name, kind, parts)| Ok((*name, Subject::open(*kind, *parts)?)))
        .collect::<Result<_>>()?;
    let mut done = 0;
    let steps = rounds * (1 + SIDES.len());
    let mut others = counts::Others::default();
    let sides = interleave(rounds, 1 + SIDES.len(), |side, _| {
        let name = if side == 0 { NATIVE } else { SIDES[side - 1].0 };
        sink(Step { done, total: steps, label: name });
        done += 1;
        if side == 0 {
            return native.round();
        }
        let (name, subject) = &mut subjects[side - 1];
        process
            .run(|cpu| {
                let before = counts::Alone::now(cpu);
                let round = subject.round(name, clock);
                if *name == ALL {
                    others.add(before.since(cpu), ROUND);
                }
                round
            })
            .map_err(|error| Error::io("ring 0")(std::io::Error::other(error)))?
    })?;
    drop(subjects);
    if processors > 1 {
        counted.push((IN_RING0, counts::in_ring0(process, Kind::Vmcache)?));
        counted.push((ALL, counts::in_ring0(process, Kind::Ring0)?));
    }
    Ok(report(options, clock, processors, &sides, &others, &counted))
}

fn report(
    options: &Options,
    clock: Clock,
    processors: usize,
    sides: &[Vec<Costs>],
    alone: &counts::Others,
    counted: &[(&str, counts::Counts)],
) -> Report {
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("unit", clock.unit())
        .with("frames", FRAMES)
        .with("pages", PAGES)
        .with("processors", processors);
    let mut report = Report::new(BENCH.name, config);
    let cost = |operation: &str| {
        let costs = sides.iter().flatten().flatten().filter(|(name, _)| name == operation);
        costs.map(|(_, cost)| *cost).collect::<Samples>()
    };
    for (name, over, under) in [
        ("vmcache_over_ring0", NATIVE, ALL),
        ("vmcache_in_ring0_over_vmcache", IN_RING0, NATIVE),
        ("vmcache_in_ring0_over_tabby", IN_RING0, TABBY),
        ("one_list_over_local_lists", TABBY, LISTS),
        ("clearing_over_not", LISTS, ALL),
    ] {
        let suffix = if name == "vmcache_over_ring0" { clock.suffix() } else { "" };
        report.ratio(&format!("{name}{suffix}"), cost(over).over(&cost(under)));
    }
    report.ratio("ring0_ipis", alone.interrupts);
    report.ratio("ring0_exits", alone.exits);
    for name in std::iter::once(NATIVE).chain(SIDES.map(|(name, ..)| name)) {
        let cost = cost(name);
        let fields = Fields::new().with("side", name).with("threads", 1);
        report.rows.push(fields.with(clock.key(), cost.median()).with("spread", cost.spread()));
    }
    for (name, counts) in counted {
        let fields = Fields::new().with("side", *name).with("threads", 2);
        report.rows.push(counts.fields(fields));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_that_is_used_in_turn_is_replaced() {
        let mut subject = Subject::open(Kind::Vmcache, Parts::ALL).unwrap();
        let costs = subject.round(NATIVE, Clock::Nanoseconds).unwrap();
        assert!(costs[0].1 > 0.0);
    }
}
