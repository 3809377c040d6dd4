//! A side: an engine of the pool in a process of its own, with one thread, which may be in ring 0.

use std::path::{Path, PathBuf};

use bedplate_bufpool::storage::{File, Storage};
use bedplate_bufpool::{Choice, Kind, Parts, Pool};
use bedplate_ring0::{Cpu, Process};
use serde::{Deserialize, Serialize};

use super::ram::Ram;
use crate::nothing::Nothing;
use crate::pool::apart::{Apart, Serve};
use crate::pool::store::Store;
use crate::pool::tpcc::consistency::check;
use crate::pool::tpcc::run::run_alone;
use crate::pool::tpcc::scale::{Database, Scale};
use crate::pool::tree::TreeStore;
use crate::pool::ycsb::run::{replay, warm};
use crate::pool::ycsb::trace::{Mix, Popularity, draw};
use crate::ring0::clock::Clock;
use crate::{Error, Result};

/// Address space for the storage of a pool, in bytes.
const CAPACITY: u64 = 1 << 30;
/// The seed of the population of TPC-C.
pub const SEED: u64 = 42;

/// An engine and the ring in which its thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub name: &'static str,
    pub kind: Kind,
    pub parts: Parts,
    pub is_in_ring0: bool,
}

impl Side {
    const fn native(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, parts: Parts::ALL, is_in_ring0: false }
    }

    const fn in_ring0(name: &'static str, kind: Kind, parts: Parts) -> Self {
        Self { name, kind, parts, is_in_ring0: true }
    }
}

pub const VMCACHE: Side = Side::native("vmcache", Kind::Vmcache);
pub const STOCK: Side = Side::native("stock", Kind::Stock);
pub const HASHTABLE: Side = Side::native("hashtable", Kind::Hashtable);
pub const ARRAY: Side = Side::native("array", Kind::Array);
pub const RING0: Side = Side::in_ring0("ring0", Kind::Ring0, Parts::ALL);
pub const VMCACHE_IN_RING0: Side = Side::in_ring0("vmcache in ring 0", Kind::Vmcache, Parts::ALL);
pub const ONE_LIST: Side = Side::in_ring0(
    "ring0, one list of free frames, frames cleared",
    Kind::Ring0,
    Parts { local_lists: false, no_clearing: false },
);
pub const CLEARING: Side =
    Side::in_ring0("ring0, frames cleared", Kind::Ring0, Parts { local_lists: true, no_clearing: false });

/// The storage of pages that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A file in the directory of the benchmark.
    File,
    /// The memory of the process.
    Ram,
}

impl Device {
    pub fn name(self) -> &'static str {
        match self {
            Device::File => "file",
            Device::Ram => "ram",
        }
    }
}

/// The settings that all sides of a stage share.
#[derive(Clone, Debug)]
pub struct Setting {
    /// A pool that was closed. Every side works on a copy of it.
    pub image: PathBuf,
    pub device: Device,
    /// Bytes of pages in memory at most.
    pub memory: usize,
    pub scale: Scale,
}

/// A task of a side.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Question {
    /// The side reads all records, and fails unless there are at least as many.
    Warm { records: u32 },
    /// Operations of YCSB.
    Ycsb { mix: Mix, popularity: Popularity, records: u32, operations: usize, seed: u64 },
    /// Transactions of TPC-C.
    Tpcc { transactions: u64, seed: u64 },
    /// The consistency conditions of TPC-C.
    Check,
}

/// The cost of a task, per operation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// In the unit of the clock.
    pub cost: f64,
    pub reads: f64,
    pub writes: f64,
    pub evictions: f64,
    /// Returns of KVM to the process, if the thread is in ring 0.
    pub exits: Option<f64>,
}

/// Opens a pool without page provider: the measured thread evicts and writes by itself.
pub fn open(side: Side, file: &Path, device: Device, memory: usize) -> Result<TreeStore> {
    let open_file = || File::open(file, true).map_err(Error::io("open the file of a pool"));
    let storage: Box<dyn Storage> = match device {
        Device::File => Box::new(open_file()?),
        Device::Ram => Box::new(Ram::copy_of(file).map_err(Error::io("read the file of a pool"))?),
    };
    let builder = Pool::builder(file).storage(storage).memory(memory).capacity(CAPACITY);
    let builder = builder.provider_threads(0).engine(Choice::Only(side.kind)).parts(side.parts);
    TreeStore::on(builder.open()?)
}

/// Whether the engine `stock` releases pages in batches on this kernel, in the words of the pool.
pub fn reason_of_stock() -> Result<String> {
    let builder = Pool::builder("").storage(Box::new(Nothing::default())).capacity(CAPACITY);
    Ok(builder.engine(Choice::Only(Kind::Stock)).open()?.reason().to_owned())
}

impl Side {
    /// Starts the process, with a copy of the image.
    pub fn start(self, setting: &Setting, clock: Clock) -> Result<Apart<Question, Answer>> {
        let setting = setting.clone();
        let begin = move || {
            let own = setting.image.with_file_name(format!("own-{}", std::process::id()));
            std::fs::copy(&setting.image, &own).map_err(Error::io("copy a pool"))?;
            self.enter()?;
            let store = open(self, &own, setting.device, setting.memory)?;
            // The pool has the file open, or has read it.
            std::fs::remove_file(&own).map_err(Error::io("remove the copy of a pool"))?;
            let database = Database::new(setting.scale, SEED);
            Ok(Box::new(move |question| self.answer(question, &store, &database, clock))
                as Serve<Question, Answer>)
        };
        Apart::start(self.name, None, begin)?.map_err(Error::engine)
    }

    /// Moves the calling thread to ring 0, if the side runs there. A thread can lose ring 0 at any time.
    fn enter(self) -> Result<()> {
        if self.is_in_ring0 {
            let failed = |error| Error::io("ring 0")(std::io::Error::other(error));
            Process::this().and_then(Process::enter).map_err(failed)?;
        }
        Ok(())
    }

    fn answer(
        self,
        question: Question,
        store: &TreeStore,
        database: &Database,
        clock: Clock,
    ) -> Result<Answer> {
        self.enter()?;
        match question {
            Question::Warm { records } => self.measure(store, clock, || Ok(warm(store, records)?.operations)),
            Question::Ycsb { mix, popularity, records, operations, seed } => {
                let ops = draw(mix, popularity, records, operations, seed);
                self.measure(store, clock, || replay(store, &ops, seed))
            }
            Question::Tpcc { transactions, seed } => {
                self.measure(store, clock, || Ok(run_alone(store, database, transactions, seed)?.total()))
            }
            Question::Check => self.measure(store, clock, || {
                check(&mut store.session()?, database.scale)?;
                Ok(1)
            }),
        }
    }

    /// Measures work that returns its number of operations.
    fn measure(self, store: &TreeStore, clock: Clock, work: impl FnOnce() -> Result<u64>) -> Result<Answer> {
        let exits = || Cpu::current().map(|cpu| cpu.statistics().exits);
        let (before, exits_before) = (store.statistics(), exits());
        let mut operations = 0;
        let total = clock.time(1, || {
            operations = work()?;
            Ok(())
        })?;
        let (after, exits_after) = (store.statistics(), exits());
        if self.is_in_ring0 != exits_after.is_some() {
            return Err(Error::engine(format!("{}: the thread has lost ring 0", self.name)));
        }
        let each = |count: u64| count as f64 / operations as f64;
        Ok(Answer {
            cost: total / operations as f64,
            reads: each(after.read - before.read),
            writes: each(after.written - before.written),
            evictions: each(after.evicted - before.evicted),
            exits: exits_after.zip(exits_before).map(|(after, before)| each(after - before)),
        })
    }
}
