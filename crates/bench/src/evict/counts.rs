//! What happens on the processors while pages are replaced.

use std::fs;

use bedplate_bufpool::{Kind, PageId, Parts};
use bedplate_ring0::{Cpu, Process};

use super::{PAGES, ROUND, Subject, failed};
use crate::{Error, Fields, Result};

/// Threads that replace pages at the same time.
const THREADS: usize = 2;

/// What happened on one processor in ring 0.
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

/// The same for each page, of all rounds.
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

/// What two threads did to each other, for each page.
pub struct Counts {
    interrupts: f64,
    exits: Option<f64>,
    stale: Option<f64>,
}

impl Counts {
    pub fn fields(&self, fields: Fields) -> Fields {
        let mut fields = fields.with("ipis_per_page", self.interrupts);
        for (name, value) in [("exits_per_page", self.exits), ("stale_translations_per_page", self.stale)] {
            if let Some(value) = value {
                fields.set(name, value);
            }
        }
        fields
    }
}

/// TLB shootdowns and calls of functions on other processors that Linux has counted, on all processors.
fn interrupts_of_linux() -> u64 {
    let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let rows = text.lines().filter(|line| ["TLB:", "CAL:"].iter().any(|row| line.trim().starts_with(row)));
    rows.flat_map(|row| row.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok())).sum()
}

/// Two threads, which go through the same pages in two orders, and so use each other's.
fn replace(subject: &Subject, before: impl Fn() + Sync) -> Result<()> {
    let work = |thread: usize| -> Result<()> {
        before();
        for index in 0..ROUND {
            let page = index * (1 + 2 * thread) % PAGES;
            subject.pool.bring_in_unread(PageId(subject.first + page as u64)).map_err(failed)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::engine("a thread panicked".to_owned())))
        })
    })
}

const REPLACED: f64 = (THREADS * ROUND) as f64;

/// vmcache in ring 3. This process is no virtual machine yet.
pub fn natively() -> Result<Counts> {
    let subject = Subject::open(Kind::Vmcache, Parts::ALL)?;
    let before = interrupts_of_linux();
    replace(&subject, || {})?;
    let interrupts = (interrupts_of_linux() - before) as f64 / REPLACED;
    Ok(Counts { interrupts, exits: None, stale: None })
}

/// An engine with its threads in ring 0.
pub fn in_ring0(process: &'static Process, kind: Kind) -> Result<Counts> {
    let subject = Subject::open(kind, Parts::ALL)?;
    let (linux, statistics, shootdowns) =
        (interrupts_of_linux(), process.statistics(), process.shootdown_statistics());
    let stale = subject.pool.statistics().stale;
    replace(&subject, || {
        // Who cannot enter goes on natively, and is seen in the counts.
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
        interrupts: interrupts as f64 / REPLACED,
        exits: Some(happened.exits as f64 / REPLACED),
        stale: Some((subject.pool.statistics().stale - stale) as f64 / REPLACED),
    })
}
