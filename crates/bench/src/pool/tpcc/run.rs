//! Terminals at work, for a time or for a number of transactions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::input::{Input, KINDS, Terminals};
use super::scale::Database;
use super::transactions::{Shown, execute};
use crate::latency::Latencies;
use crate::pool::store::{Store, Verdict};
use crate::{Error, Result};

/// The transactions that were done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Committed, by kind.
    pub committed: [u64; KINDS.len()],
    /// New orders rolled back, as the specification requires for one in a hundred.
    pub rolled_back: u64,
    /// Latencies of the new orders that committed.
    pub new_orders: Latencies,
}

impl Done {
    /// All transactions that ended, with new orders that were rolled back.
    pub fn total(&self) -> u64 {
        self.committed.iter().sum::<u64>() + self.rolled_back
    }

    /// Adds the transactions of another one.
    pub fn add(&mut self, other: &Done) {
        for (sum, count) in self.committed.iter_mut().zip(other.committed) {
            *sum += count;
        }
        self.rolled_back += other.rolled_back;
        self.new_orders.merge(&other.new_orders);
    }
}

/// The end of a run: after a time, or after a number of transactions entered by each thread.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    window: Option<Duration>,
    transactions: u64,
}

impl Until {
    /// The end after a time.
    pub fn elapsed(window: Duration) -> Self {
        Self { window: Some(window), transactions: u64::MAX }
    }

    /// The end after a number of transactions of each thread.
    #[cfg(any(test, target_arch = "x86_64"))]
    pub fn transactions(transactions: u64) -> Self {
        Self { window: None, transactions }
    }
}

/// Runs the terminals on some threads. Deliveries that still wait at the end are made, but not counted.
pub fn run<S: Store>(store: &S, database: &Database, threads: u32, until: Until, seed: u64) -> Result<Done> {
    let over = AtomicBool::new(false);
    let mut done = Done::default();
    let results: Vec<Result<Done>> = std::thread::scope(|scope| {
        let over = &over;
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let seed = seed.wrapping_mul(1009).wrapping_add(thread.into());
                let terminals = Terminals::new(database, thread, threads, seed);
                scope.spawn(move || {
                    let done =
                        Worker::new(store, database).and_then(|worker| worker.work(terminals, until, over));
                    over.fetch_or(done.is_err(), Ordering::Relaxed);
                    done
                })
            })
            .collect();
        if let Some(window) = until.window {
            std::thread::sleep(window);
            over.store(true, Ordering::Relaxed);
        }
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    for result in results {
        done.add(&result?);
    }
    Worker::new(store, database)?.deliver()?;
    Ok(done)
}

/// Runs the terminals on the calling thread, for a number of transactions. Deliveries that still wait at the end are made and
/// counted.
#[cfg(target_arch = "x86_64")]
pub fn run_alone<S: Store>(store: &S, database: &Database, transactions: u64, seed: u64) -> Result<Done> {
    let terminals = Terminals::new(database, 0, 1, seed);
    let worker = Worker::new(store, database)?;
    let mut done = worker.work(terminals, Until::transactions(transactions), &AtomicBool::new(false))?;
    done.add(&Worker::new(store, database)?.deliver()?);
    Ok(done)
}

fn panicked() -> Error {
    Error::engine("a terminal panicked".to_owned())
}

struct Worker<'s, S: Store + 's> {
    session: S::Session<'s>,
    database: &'s Database,
    locks: bool,
    done: Done,
    shown: Shown,
}

impl<'s, S: Store> Worker<'s, S> {
    fn new(store: &'s S, database: &'s Database) -> Result<Self> {
        let locks = !store.isolates();
        Ok(Self {
            session: store.session()?,
            database,
            locks,
            done: Done::default(),
            shown: Shown::default(),
        })
    }

    /// Runs the terminals. After each of their transactions, one deferred delivery is made.
    fn work(mut self, mut terminals: Terminals<'_>, until: Until, over: &AtomicBool) -> Result<Done> {
        for _ in 0..until.transactions {
            if over.load(Ordering::Relaxed) {
                break;
            }
            match terminals.next(now()) {
                Input::Delivery(delivery) => self.database.defer(delivery),
                input => {
                    self.one(&input)?;
                    if let Some(delivery) = self.database.deferred() {
                        self.one(&Input::Delivery(delivery))?;
                    }
                }
            }
        }
        Ok(self.done)
    }

    /// Makes all deferred deliveries.
    fn deliver(mut self) -> Result<Done> {
        while let Some(delivery) = self.database.deferred() {
            self.one(&Input::Delivery(delivery))?;
        }
        Ok(self.done)
    }

    fn one(&mut self, input: &Input) -> Result<()> {
        let begin = Instant::now();
        let held = self.locks.then(|| self.database.locks.take(input));
        let verdict = execute(&mut self.session, input, &mut self.shown)?;
        drop(held);
        match verdict {
            Verdict::Commit => self.done.committed[input.kind()] += 1,
            Verdict::RollBack => self.done.rolled_back += 1,
        }
        if matches!((input, verdict), (Input::NewOrder(_), Verdict::Commit)) {
            self.done.new_orders.record(begin.elapsed().as_nanos() as u64);
        }
        Ok(())
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() as i64)
}
