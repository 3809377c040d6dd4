//! A window of time: writers, and a scan beside them.
//!
//! Every transaction adds 1 to each of [`UPDATES`] words, so the sum of all words gives the number of transactions in a
//! snapshot. A snapshot must have every transaction that ended before it, and none that began after it. After the
//! window, the memory must have every transaction.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use bedplate_snapshot::Memory;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::schedule::{self, Schedule};
use crate::cpu::CpuTime;
use crate::latency::Latencies;
use crate::snapshot::held::{number, sum, sum_of};
use crate::snapshot::machine_memory;
use crate::snapshot::sides::wait_for_end;
use crate::{Error, Result};

/// Words that a transaction updates.
pub const UPDATES: u64 = 4;

/// The data that a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scan {
    /// Nothing.
    Nothing,
    /// The memory itself, repeatedly, while it changes.
    Live,
    /// All of every snapshot. The next snapshot is taken when a scan has ended.
    Snapshots,
}

/// The load of a window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Load {
    pub writers: usize,
    /// Transactions that are due in a second, of all writers; `None` for a closed loop.
    pub due_per_s: Option<f64>,
    pub scan: Scan,
    pub window: Duration,
    pub seed: u64,
}

/// The measurements of a window. Without scans there are no ages; without snapshots, no pauses.
#[derive(Serialize, Deserialize)]
pub struct Window {
    /// Time from when a transaction was due until it had ended; in a closed loop, from the window's beginning.
    pub latencies: Latencies,
    /// Transactions that ended in the window.
    pub rate_per_s: f64,
    /// Whole scans.
    pub scans_per_s: f64,
    pub pause_ns: Option<f64>,
    /// Age of a snapshot when its result is complete: the mean and the oldest.
    pub age_ns: Option<f64>,
    pub oldest_ns: Option<f64>,
    /// Processor time of the process and its children, until the remaining work of the snapshots is done.
    pub cpu_ns: f64,
    /// The length of that time.
    pub settled_ns: f64,
    /// The most memory that the machine used beyond what it had used before.
    pub extra_bytes: f64,
}

/// Progress of a writer. Each writer has its own cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Progress {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The measurements of one writer.
struct Written {
    latencies: Latencies,
    /// Transactions that ended after the window; they were due in it.
    late: u64,
}

/// The measurements of the scanning thread.
#[derive(Default)]
struct Scanned {
    scans: u64,
    snapshots: u64,
    pauses_ns: f64,
    ages_ns: f64,
    oldest_ns: f64,
}

/// The writers of a window and its end.
struct Writers<'a> {
    memory: &'a Memory,
    load: Load,
    /// Set when all threads are ready.
    begin: OnceLock<Instant>,
    /// Threads wait here until all are ready, and then until the window has begun.
    threads: Barrier,
    /// End of the window, in nanoseconds from its beginning; `u64::MAX` until that is known.
    end_ns: AtomicU64,
    progress: Vec<Progress>,
}

/// Measures a window. The memory's snapshots have ended before and afterwards.
///
/// # Errors
/// Also if a snapshot or the memory does not have the transactions that it must have.
pub fn measure(memory: &Memory, load: Load) -> Result<Window> {
    memory.settle();
    let before = sum(memory);
    let cpu = processor_time();
    let writers = Writers {
        memory,
        load,
        begin: OnceLock::new(),
        threads: Barrier::new(load.writers + 1),
        end_ns: AtomicU64::new(u64::MAX),
        progress: (0..load.writers).map(|_| Progress::default()).collect(),
    };
    let (result, extra_bytes) = machine_memory::most_beside(|| writers.run(before));
    let (written, scanned) = result?;
    let wall_ns = writers.end_ns.load(Ordering::Relaxed) as f64;
    wait_for_end(memory);
    memory.settle();
    let (cpu_ns, settled_ns) = (processor_time().since(cpu).total_ns() as f64, writers.now_ns() as f64);
    let transactions = writers.count(|progress| &progress.ended);
    let (found, expected) = (sum(memory).wrapping_sub(before), transactions * UPDATES);
    if found != expected {
        return Err(Error::engine(format!("the memory has {found} updates of {expected} that were made")));
    }
    let mut latencies = Latencies::default();
    written.iter().for_each(|written| latencies.merge(&written.latencies));
    let late: u64 = written.iter().map(|written| written.late).sum();
    let mean = |total: f64, count: u64| (count > 0).then(|| total / count as f64);
    Ok(Window {
        latencies,
        rate_per_s: (transactions - late) as f64 * 1e9 / wall_ns,
        scans_per_s: scanned.scans as f64 * 1e9 / wall_ns,
        pause_ns: mean(scanned.pauses_ns, scanned.snapshots),
        age_ns: mean(scanned.ages_ns, scanned.snapshots),
        oldest_ns: (scanned.snapshots > 0).then_some(scanned.oldest_ns),
        cpu_ns,
        settled_ns,
        extra_bytes,
    })
}

fn processor_time() -> CpuTime {
    CpuTime::of_process().plus(CpuTime::of_children())
}

impl Writers<'_> {
    /// The time since the window's beginning; nothing before it.
    fn elapsed(&self) -> Duration {
        self.begin.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    fn now_ns(&self) -> u64 {
        self.elapsed().as_nanos() as u64
    }

    fn count(&self, of: impl Fn(&Progress) -> &AtomicU64) -> u64 {
        self.progress.iter().map(|progress| of(progress).load(Ordering::SeqCst)).sum()
    }

    /// Runs the writers, and scans on this thread. The window ends with the first scan that ends after its time.
    fn run(&self, before: u64) -> Result<(Vec<Written>, Scanned)> {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.load.writers).map(|writer| scope.spawn(move || self.write(writer))).collect();
            self.threads.wait();
            self.begin.get_or_init(Instant::now);
            self.threads.wait();
            let scanned = self.scan(before);
            self.end_ns.store(self.now_ns(), Ordering::SeqCst);
            let written = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| Error::engine("a writer panicked".to_owned())));
            let written = written.collect::<Result<Vec<_>>>()?;
            Ok((written, scanned?))
        })
    }

    /// Executes each transaction when it is due, or as soon as the writer can, until all that were due in the window have
    /// ended.
    fn write(&self, writer: usize) -> Written {
        // The default slack of 50 µs would delay every transaction for which the writer waits.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
        let schedule = match self.load.due_per_s {
            Some(rate) => Schedule::new(rate, self.load.writers, writer),
            None => Schedule::closed_loop(),
        };
        let is_open = self.load.due_per_s.is_some();
        let mut random = SmallRng::seed_from_u64(self.load.seed ^ (writer as u64) << 32);
        let (words, progress) = (self.memory.words(), &self.progress[writer]);
        let mut written = Written { latencies: Latencies::default(), late: 0 };
        // The first access of a thread may take it to ring 0.
        std::hint::black_box(words[0].load(Ordering::Relaxed));
        self.threads.wait();
        self.threads.wait();
        for transaction in 0.. {
            let due_ns = schedule.due_ns(transaction);
            while let Some(wait) = schedule::wait(due_ns, self.now_ns()) {
                std::thread::sleep(wait);
            }
            let end_ns = self.end_ns.load(Ordering::SeqCst);
            if due_ns >= end_ns || (!is_open && end_ns != u64::MAX) {
                break;
            }
            progress.begun.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            for _ in 0..UPDATES {
                words[random.random_range(0..words.len())].fetch_add(1, Ordering::Relaxed);
            }
            progress.ended.fetch_add(1, Ordering::SeqCst);
            let now_ns = self.now_ns();
            written.latencies.record(schedule::latency_ns(due_ns, now_ns));
            written.late += u64::from(now_ns > end_ns);
        }
        written
    }

    fn scan(&self, before: u64) -> Result<Scanned> {
        let mut scanned = Scanned::default();
        while self.elapsed() < self.load.window {
            match self.load.scan {
                Scan::Nothing => {
                    std::thread::sleep(self.load.window.saturating_sub(self.elapsed()));
                    continue;
                }
                Scan::Live => {
                    std::hint::black_box(sum(self.memory));
                }
                Scan::Snapshots => self.scan_a_snapshot(before, &mut scanned)?,
            }
            scanned.scans += 1;
        }
        Ok(scanned)
    }

    fn scan_a_snapshot(&self, before: u64, scanned: &mut Scanned) -> Result<()> {
        let (ended, at) = (self.count(|progress| &progress.ended), Instant::now());
        let task = self.memory.spawn(|view| sum_of(view.words()).to_le_bytes().to_vec())?;
        let begun = self.count(|progress| &progress.begun);
        scanned.pauses_ns += task.pause().as_nanos() as f64;
        let updates = number(&task.join()?)?.wrapping_sub(before);
        let age_ns = at.elapsed().as_nanos() as f64;
        check(updates, ended, begun)?;
        scanned.snapshots += 1;
        scanned.ages_ns += age_ns;
        scanned.oldest_ns = scanned.oldest_ns.max(age_ns);
        Ok(())
    }
}

/// Checks that a snapshot with `updates` updates has all transactions that had ended before it, and only those that had
/// begun.
fn check(updates: u64, ended: u64, begun: u64) -> Result<()> {
    let possible = ended * UPDATES..=begun * UPDATES;
    if possible.contains(&updates) {
        return Ok(());
    }
    Err(Error::engine(format!(
        "a snapshot has {updates} updates: it is not one moment's image, which has {} to {}",
        possible.start(),
        possible.end()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sides::FORK;

    fn load(due_per_s: Option<f64>, scan: Scan) -> Load {
        Load { writers: 2, due_per_s, scan, window: Duration::from_millis(200), seed: 1 }
    }

    #[test]
    fn every_transaction_that_was_due_is_counted() {
        let memory = FORK.memory(1 << 20).unwrap();
        for scan in [Scan::Nothing, Scan::Live, Scan::Snapshots] {
            let (rate, begin) = (2000.0, Instant::now());
            let seen = FORK.alone(&memory, || measure(&memory, load(Some(rate), scan))).unwrap();
            // The last scan ends the window, so the window is shorter than this call.
            let least = (rate * 0.2) as u64;
            let most = (rate * begin.elapsed().as_secs_f64()) as u64 + 2;
            assert!(
                (least..=most).contains(&seen.latencies.count()),
                "{} {least} {most}",
                seen.latencies.count()
            );
            assert!(seen.rate_per_s > 0.0 && seen.rate_per_s < rate * 1.01 + 10.0, "{}", seen.rate_per_s);
            assert!(seen.cpu_ns > 0.0 && seen.settled_ns >= 200e6);
            assert_eq!(seen.scans_per_s > 0.0, scan != Scan::Nothing);
            assert_eq!(seen.age_ns.is_some(), scan == Scan::Snapshots);
            assert!(seen.oldest_ns >= seen.age_ns && seen.pause_ns <= seen.age_ns);
        }
    }

    #[test]
    fn a_closed_loop_ends_with_the_window() {
        let memory = FORK.memory(1 << 20).unwrap();
        let seen = measure(&memory, load(None, Scan::Nothing)).unwrap();
        assert!(seen.rate_per_s > 0.0 && seen.latencies.count() > 0);
    }

    #[test]
    fn a_rate_that_no_machine_reaches_is_not_reached_and_charged() {
        let memory = FORK.memory(1 << 20).unwrap();
        let rate = 1e9;
        let short = Duration::from_millis(1);
        let seen = measure(&memory, Load { window: short, ..load(Some(rate), Scan::Nothing) }).unwrap();
        assert!(seen.rate_per_s < rate / 2.0, "{}", seen.rate_per_s);
        // All transactions were executed, most of them after the window.
        assert!(seen.latencies.count() as f64 >= rate * short.as_secs_f64());
        assert!(seen.latencies.max() > short.as_nanos() as u64);
    }

    #[test]
    fn a_snapshot_of_more_than_one_moment_is_an_error() {
        assert!(check(5 * UPDATES, 5, 9).is_ok() && check(9 * UPDATES, 5, 9).is_ok());
        for updates in [5 * UPDATES - 1, 9 * UPDATES + 1] {
            assert!(check(updates, 5, 9).unwrap_err().to_string().contains("one moment"));
        }
    }
}
