//! Counts of interrupts, exits and stale translations while pages are replaced.

use std::fs;

use bedplate_bufpool::{Kind, Parts};
use bedplate_ring0::{Cpu, Process};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Subject;
use crate::{Error, Fields, Result};

/// Threads that replace pages at the same time.
const THREADS: u64 = 2;
/// Pages in memory, and number of page uses of each thread.
const FRAMES: usize = 256;
const USES: usize = 8192;

/// Events on one processor in ring 0.
#[derive(Clone, Copy)]
pub struct Alone {
    exits: u64,
    interrupts: u64,
}

impl Alone {
    pub fn now(cpu: Cpu) -> Self {
        let interrupts = cpu.process().shootdown_statistics().interrupts + cpu.statistics().interrupts;
        Self { exits: cpu.statistics().exits, interrupts }
    }

    pub fn since(self, cpu: Cpu) -> Self {
        let now = Self::now(cpu);
        Self { exits: now.exits - self.exits, interrupts: now.interrupts - self.interrupts }
    }
}

/// The same events for each page, over all rounds.
#[derive(Default)]
pub struct Others {
    pages: usize,
    exited: u64,
    interrupted: u64,
    pub exits: f64,
    pub interrupts: f64,
}

impl Others {
    pub fn add(&mut self, round: Alone, pages: usize) {
        self.pages += pages;
        self.exited += round.exits;
        self.interrupted += round.interrupts;
        self.exits = self.exited as f64 / self.pages as f64;
        self.interrupts = self.interrupted as f64 / self.pages as f64;
    }
}

/// Events that two threads caused, for each replaced page.
pub struct Counts {
    pages: f64,
    interrupts: f64,
    exits: Option<f64>,
    /// The total, not per page.
    stale: Option<u64>,
}

impl Counts {
    pub fn fields(&self, fields: Fields) -> Fields {
        let mut fields = fields.with("ipis_per_page", self.interrupts);
        if let Some(exits) = self.exits {
            fields.set("exits_per_page", exits);
        }
        if let Some(stale) = self.stale {
            fields.set("stale_translations", stale);
        }
        fields.with("pages", self.pages)
    }
}

/// TLB shootdowns and cross-processor function calls that Linux has counted, on all processors.
fn interrupts_of_linux() -> u64 {
    let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let rows = text.lines().filter(|line| ["TLB:", "CAL:"].iter().any(|row| line.trim().starts_with(row)));
    rows.flat_map(|row| row.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok())).sum()
}

/// A pool with half of its pages in memory.
fn small(kind: Kind) -> Result<Subject> {
    Subject::of(kind, Parts::ALL, FRAMES, 2 * FRAMES)
}

/// Two threads use the same pages at random. Returns the number of replaced pages.
fn replace(subject: &Subject, before: impl Fn() + Sync) -> Result<f64> {
    let evicted = subject.pool.statistics().evicted;
    let work = |seed: u64| -> Result<()> {
        before();
        let mut random = SmallRng::seed_from_u64(seed);
        (0..USES).try_for_each(|_| subject.touch(random.random_range(0..subject.pages)))
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::engine("a thread panicked".to_owned())))
        })
    })?;
    Ok((subject.pool.statistics().evicted - evicted) as f64)
}

/// Counts of vmcache in ring 3. This process must not be a virtual machine yet.
pub fn natively() -> Result<Counts> {
    let subject = small(Kind::Vmcache)?;
    let before = interrupts_of_linux();
    let replaced = replace(&subject, || {})?;
    let interrupts = (interrupts_of_linux() - before) as f64 / replaced;
    Ok(Counts { pages: replaced, interrupts, exits: None, stale: None })
}

/// Counts of an engine with its threads in ring 0.
pub fn in_ring0(process: &'static Process, kind: Kind) -> Result<Counts> {
    let subject = small(kind)?;
    let (linux, statistics, shootdowns) =
        (interrupts_of_linux(), process.statistics(), process.shootdown_statistics());
    let stale = subject.pool.statistics().stale;
    let replaced = replace(&subject, || {
        // A thread that cannot enter ring 0 continues in ring 3, which the counts show.
        let _ = process.enter();
    })?;
    let happened = process.statistics() - statistics;
    let ours = process.shootdown_statistics().interrupts - shootdowns.interrupts;
    let interrupts = match kind {
        // Linux's own interrupts of other processors belong to this engine's calls.
        Kind::Vmcache => interrupts_of_linux() - linux + ours,
        _ => ours + happened.interrupts,
    };
    Ok(Counts {
        pages: replaced,
        interrupts: interrupts as f64 / replaced,
        exits: Some(happened.exits as f64 / replaced),
        stale: Some(subject.pool.statistics().stale - stale),
    })
}
