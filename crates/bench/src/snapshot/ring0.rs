//! `snapshot-ring0`: the `ring0` engine beside fork, in instructions where the time stamp counts them (`bedplate vm run
//! --icount`), like `ring0-cost`.
//!
//! The native side is another process, which is no virtual machine. The engine measures a snapshot's pause: from its
//! request for exclusive use of main's tables to their release. Main has one thread, so the engine need not interrupt
//! another processor for that. All memory is written to before anything is measured.

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use bedplate_snapshot::{Choice, Kind, Memory, PAGE, Task};

use crate::ring0::clock::Clock;
use crate::ring0::{Costs, MEMORY, NATIVE, RING0, WRITTEN, native, virtualizes};
use crate::sample::{Samples, interleave};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "snapshot-ring0",
    about: "snapshots by page tables of the process's own beside fork, in instructions (paper 7.3, Figures 14 and 20)",
    run,
};

pub(crate) const COPIED: &str = "snapshot of 256 MiB that copies page tables: pause";
pub(crate) const COPIED_CALL: &str = "snapshot of 256 MiB that copies page tables: the whole call";
pub(crate) const INSTANT_SMALL: &str = "snapshot of 64 MiB made ahead: pause";
pub(crate) const INSTANT_LARGE: &str = "snapshot of 1 GiB made ahead: pause";
pub(crate) const FAULT: &str = "first write to a page after it";
pub(crate) const FAULT_SEEN: &str = "first write to a page that the task has read";

const SMALL: usize = 64 << 20;
const LARGE: usize = 1 << 30;

/// A memory in ring 0, all of it written to, and this thread in ring 0.
struct Subject {
    memory: Memory,
    clock: Clock,
}

impl Subject {
    fn new(bytes: usize, ahead: usize, clock: Clock) -> Result<Self> {
        let memory = Memory::builder(bytes).engine(Choice::Only(Kind::Ring0)).ahead(ahead).build()?;
        let subject = Self { memory, clock };
        subject.write(bytes / PAGE, 1);
        subject.memory.settle();
        Ok(subject)
    }

    /// Writes to the first pages.
    fn write(&self, pages: usize, value: u64) {
        let words = self.memory.words();
        for page in 0..pages {
            words[page * PAGE / 8].store(value, Ordering::Relaxed);
        }
    }

    /// Takes a snapshot whose task reads `reads` pages and then waits for its release.
    fn snapshot(&self, reads: usize) -> Result<Held> {
        let (ready, is_ready) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let task = move |view: &bedplate_snapshot::View<'_>| {
            let sum: u64 = view.words().iter().step_by(PAGE / 8).take(reads).sum();
            let _ = ready.send(black_box(sum));
            let _ = wait.recv();
            Vec::new()
        };
        let mut spawned = None;
        let call = self.clock.time(1, || {
            spawned = Some(self.memory.spawn(task)?);
            Ok(())
        })?;
        let task = spawned.ok_or_else(nothing)?;
        is_ready.recv().map_err(|_| nothing())?;
        Ok(Held { task, go, call })
    }

    /// The pause. On a machine that counts instructions, its virtual clock gives the pause in instructions.
    fn pause(&self, held: &Held) -> f64 {
        held.task.pause().as_nanos() as f64
    }

    fn end(&self, held: Held) -> Result<()> {
        let _ = held.go.send(());
        held.task.join()?;
        self.memory.settle();
        Ok(())
    }
}

/// A snapshot whose task waits.
struct Held {
    task: Task,
    go: mpsc::Sender<()>,
    /// The cost of the call that took the snapshot.
    call: f64,
}

fn nothing() -> Error {
    Error::Io { what: "a snapshot".to_owned(), source: std::io::Error::other("its task has ended") }
}

/// The engine's side. This thread is in ring 0 from the first time it writes to a memory.
pub(crate) struct Side {
    copied: Subject,
    small: Subject,
    large: Subject,
}

impl Side {
    pub(crate) fn start(clock: Clock) -> Result<Self> {
        Ok(Self {
            copied: Subject::new(MEMORY, 0, clock)?,
            small: Subject::new(SMALL, 1, clock)?,
            large: Subject::new(LARGE, 1, clock)?,
        })
    }

    /// Measures a round.
    pub(crate) fn round(&self) -> Result<Costs> {
        let mut costs = Vec::new();
        for (reads, name) in [(0, FAULT), (WRITTEN, FAULT_SEEN)] {
            let held = self.copied.snapshot(reads)?;
            if reads == 0 {
                costs.push((COPIED.to_owned(), self.copied.pause(&held)));
                costs.push((COPIED_CALL.to_owned(), held.call));
            }
            let fault = self.copied.clock.time(WRITTEN, || {
                self.copied.write(WRITTEN, 2);
                Ok(())
            })?;
            costs.push((name.to_owned(), fault));
            self.copied.end(held)?;
        }
        for (subject, name) in [(&self.small, INSTANT_SMALL), (&self.large, INSTANT_LARGE)] {
            let before = subject.memory.statistics().instantaneous;
            let held = subject.snapshot(0)?;
            costs.push((name.to_owned(), subject.pause(&held)));
            subject.end(held)?;
            if subject.memory.statistics().instantaneous != before + 1 {
                return Err(Error::Io {
                    what: "a snapshot made ahead".to_owned(),
                    source: std::io::Error::other("its tables were not ready"),
                });
            }
        }
        Ok(costs)
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    if !virtualizes() {
        return Err(Error::Missing {
            what: "this processor shows no VT-x or AMD-V, so ring 0 would be emulated".to_owned(),
            hint: "run it in a virtual machine: bedplate vm run --icount --memory 4G -- bedplate bench snapshot-ring0",
        });
    }
    let clock = Clock::detect();
    let rounds = options.pick(5, 15);
    // The native side starts first, while this process has no part in a virtual machine.
    let mut native = native::Side::start(clock, &options.directory)?;
    let ring0 = Side::start(clock)?;
    let mut done = 0;
    let sides = interleave(rounds, 2, |side, _| {
        sink(Step { done, total: 2 * rounds, label: [NATIVE, RING0][side] });
        done += 1;
        if side == 0 { native.round() } else { ring0.round() }
    })?;

    let config =
        Fields::new().with("mode", options.mode.name()).with("unit", clock.unit()).with("rounds", rounds);
    let mut report = Report::new(BENCH.name, config);
    let cost = |operation: &str| {
        let costs = sides.iter().flatten().flatten().filter(|(name, _)| name == operation);
        costs.map(|(_, cost)| *cost).collect::<Samples>()
    };
    for (name, over, under) in [
        ("fork_over_ring0_copy", native::FORK, COPIED),
        ("fork_over_ring0_copy_call", native::FORK, COPIED_CALL),
        ("ring0_instant_1g_over_64m", INSTANT_LARGE, INSTANT_SMALL),
        ("fork_fault_over_ring0_fault", native::FORK_FAULT, FAULT),
        ("fork_fault_over_ring0_fault_seen", native::FORK_FAULT, FAULT_SEEN),
    ] {
        report.ratio(name, cost(over).over(&cost(under)));
    }
    for (side, operations) in [
        (NATIVE, &[native::FORK, native::FORK_FAULT][..]),
        (RING0, &[COPIED, COPIED_CALL, INSTANT_SMALL, INSTANT_LARGE, FAULT, FAULT_SEEN]),
    ] {
        for operation in operations {
            let cost = cost(operation);
            let fields = Fields::new().with("operation", *operation).with("side", side);
            report.rows.push(fields.with(clock.key(), cost.median()).with("spread", cost.spread()));
        }
    }
    Ok(report)
}
