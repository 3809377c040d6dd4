//! The process that is killed. It runs one operation of a store, and reports each phase and each commit on its standard output.
//!
//! It kills itself, because only then a kill is exact to a system call. To the store, this does not differ from a kill by another
//! process, because SIGKILL runs no code.

use std::fmt;
use std::io::{self, Read};
use std::panic;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, RwLock, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_btree::store::{LoadPolicy, NamedTree, Result, Store};

use super::calls;
use super::workload::{self, Dump, THREADS};

/// The variable that has the folder of the child.
pub const FOLDER: &str = "BEDPLATE_TEST_STORE";
/// The variable that has the task of the child.
pub const TASK: &str = "BEDPLATE_TEST_STORE_TASK";
/// Transactions of each thread in [`Operation::Commit`].
const TRANSACTIONS: u64 = 60;
/// Number of records after which a compaction reports its progress.
const PROGRESS_RECORDS: u64 = 1000;

/// The operation that a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates a store.
    Create,
    /// Opens the store, which was not closed.
    Recover,
    /// Several threads commit, and there are checkpoints.
    Commit,
    /// Copies the store while threads commit.
    Backup,
    /// Loads a dump into the store. Threads commit until the trees appear.
    Load(Dump),
    /// Makes a new store from a dump.
    Build,
    /// Rebuilds the pages.
    Compact,
}

impl Operation {
    pub const ALL: [Self; 9] = [
        Self::Create,
        Self::Recover,
        Self::Commit,
        Self::Backup,
        Self::Load(Dump::Refuse),
        Self::Load(Dump::Replace),
        Self::Load(Dump::Merge),
        Self::Build,
        Self::Compact,
    ];

    /// Its phases, in order.
    pub fn phases(self) -> &'static [&'static str] {
        match self {
            Self::Create => &["create"],
            Self::Recover => &["recover"],
            Self::Commit => &["commit", "checkpoint", "close"],
            Self::Backup => &["backup pages", "backup log"],
            Self::Load(Dump::Refuse) => &["load refuse stage", "load refuse publish"],
            Self::Load(Dump::Replace) => &["load replace stage", "load replace publish"],
            Self::Load(Dump::Merge) => &["load merge stage", "load merge transactions"],
            Self::Build => &["build pages", "build publish"],
            Self::Compact => &["compact plan", "compact pages", "compact publish"],
        }
    }
}

/// The moment when the child dies, counted from the beginning of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    Never,
    /// At the n-th system call that changes files.
    Call(u64),
    /// After this number of microseconds.
    Micros(u64),
}

/// The task of a child. In the environment it is four words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// An index of [`Operation::ALL`].
    pub operation: usize,
    /// Whether it loads the odd one of the two dumps.
    pub odd: bool,
    /// An index of the operation's phases.
    pub phase: usize,
    pub kill: Kill,
}

impl Task {
    pub fn operation(&self) -> Operation {
        Operation::ALL[self.operation]
    }

    pub fn phase(&self) -> &'static str {
        self.operation().phases()[self.phase]
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, amount) = match self.kill {
            Kill::Never => ("never", 0),
            Kill::Call(n) => ("call", n),
            Kill::Micros(micros) => ("micros", micros),
        };
        write!(f, "{} {} {} {kind} {amount}", self.operation, u8::from(self.odd), self.phase)
    }
}

impl FromStr for Task {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let words: Vec<_> = text.split(' ').collect();
        let amount = words[4].parse()?;
        let kill = match words[3] {
            "call" => Kill::Call(amount),
            "micros" => Kill::Micros(amount),
            _ => Kill::Never,
        };
        Ok(Self { operation: words[0].parse()?, odd: words[1] == "1", phase: words[2].parse()?, kill })
    }
}

static CURRENT: OnceLock<(Task, Instant)> = OnceLock::new();

/// Reports that a phase begins. The line has the calls and the microseconds since the start of the process.
fn phase(name: &str) {
    let (task, start) = CURRENT.get().expect("the task is known");
    println!("@phase {} {} {name}", calls::count(), start.elapsed().as_micros());
    if name != task.phase() {
        return;
    }
    match task.kill {
        Kill::Never => {}
        Kill::Call(n) => calls::kill_at(n),
        Kill::Micros(micros) => {
            thread::spawn(move || {
                thread::sleep(Duration::from_micros(micros));
                calls::kill();
            });
        }
    }
}

/// Runs transactions of one thread, until the condition is false. The thread holds the gate for reading during each transaction.
fn commit(
    store: &Store,
    trees: &[NamedTree; 2],
    thread: u64,
    gate: &RwLock<()>,
    goes_on: impl Fn(u64) -> bool,
) {
    let first = {
        // This includes a transaction that reads.
        let _gate = gate.read().unwrap();
        workload::last(store, trees, thread).unwrap() + 1
    };
    let mut n = first;
    while goes_on(n - first) {
        {
            let _gate = gate.read().unwrap();
            store.update(|transaction| workload::write(transaction, trees, thread, n)).unwrap();
        }
        println!("@committed {thread} {n}");
        n += 1;
    }
}

/// Runs an operation while threads commit.
fn beside_commits<T>(store: &Store, gate: &RwLock<()>, operation: impl FnOnce() -> T) -> T {
    let trees = workload::trees(store).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (trees, done) = (&trees, &done);
            scope.spawn(move || commit(store, trees, thread, gate, |_| !done.load(Ordering::Relaxed)));
        }
        let result = operation();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// A dump in memory. At its end it takes the gate, because no transaction may be active when the trees of a load appear.
struct Gated<'g> {
    dump: &'g [u8],
    gate: &'g RwLock<()>,
    phase: &'static str,
    closed: Option<RwLockWriteGuard<'g, ()>>,
}

impl Read for Gated<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.dump.read(buffer)?;
        if self.dump.is_empty() && self.closed.is_none() {
            self.closed = Some(self.gate.write().unwrap());
            phase(self.phase);
        }
        Ok(read)
    }
}

fn operate(task: &Task, folder: &Path) -> Result<()> {
    let store = folder.join("store");
    let gate = RwLock::new(());
    let phases = task.operation().phases();
    let dump = |dump: Dump| std::fs::read(folder.join(dump.file(task.odd))).unwrap();
    match task.operation() {
        Operation::Create => {
            phase("create");
            let store = workload::open(&folder.join("created"))?;
            for name in workload::TREES {
                store.create_tree(name)?;
                println!("@created {name}");
            }
            store.close()
        }
        Operation::Recover => {
            phase("recover");
            workload::open(&store).map(drop)
        }
        Operation::Commit => {
            let store = workload::open(&store)?;
            let trees = workload::trees(&store)?;
            phase("commit");
            thread::scope(|scope| {
                let (store, trees, gate) = (&store, &trees, &gate);
                let writer = |thread| {
                    scope.spawn(move || commit(store, trees, thread, gate, |done| done < TRANSACTIONS))
                };
                let writers: Vec<_> = (0..THREADS).map(writer).collect();
                let has_ended = || writers.iter().all(|writer| writer.is_finished());
                let mut is_first = true;
                while !has_ended() {
                    let end = store.statistics().commits + THREADS * TRANSACTIONS / 4;
                    while store.statistics().commits < end && !has_ended() {
                        thread::yield_now();
                    }
                    if std::mem::take(&mut is_first) {
                        phase("checkpoint");
                    }
                    store.checkpoint().unwrap();
                }
            });
            phase("close");
            store.close()
        }
        Operation::Backup => {
            let store = workload::open(&store)?;
            beside_commits(&store, &gate, || {
                phase("backup pages");
                let mut progress = |at: bedplate_btree::store::Progress| {
                    if at.done == at.total {
                        phase("backup log");
                    }
                };
                store.backup(folder.join("backup"), &mut progress).map(drop)
            })
        }
        Operation::Load(kind) => {
            let store = workload::open(&store)?;
            let policy = match kind {
                Dump::Refuse => LoadPolicy::Refuse,
                Dump::Replace => LoadPolicy::Replace,
                Dump::Merge => LoadPolicy::Merge,
            };
            let dump = dump(kind);
            beside_commits(&store, &gate, || {
                phase(phases[0]);
                let input = Gated { dump: &dump, gate: &gate, phase: phases[1], closed: None };
                store.load(input, policy, &mut |_| {}).map(drop)
            })
        }
        Operation::Build => {
            phase(phases[0]);
            let dump = dump(Dump::Replace);
            let input = Gated { dump: &dump, gate: &gate, phase: phases[1], closed: None };
            Store::create_from_dump(folder.join("built"), input, &mut |_| {}).map(drop)
        }
        Operation::Compact => {
            phase("compact plan");
            let mut is_last = false;
            let mut planned = |_: &_| {
                phase("compact pages");
                true
            };
            let mut progress = |at: bedplate_btree::store::Progress| {
                if at.done + PROGRESS_RECORDS > at.total && !is_last {
                    is_last = true;
                    phase("compact publish");
                }
            };
            let compaction = workload::builder(&store).compact(&mut planned, &mut progress)?;
            assert!(compaction.is_some());
            Ok(())
        }
    }
}

/// Runs the task of the environment, if there is one.
pub fn run() {
    let (Some(folder), Ok(task)) = (std::env::var_os(FOLDER), std::env::var(TASK)) else { return };
    let task: Task = task.parse().unwrap();
    // A thread that panics ends the process, so that the parent does not take the child for a killed one.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
    CURRENT.set((task, Instant::now())).unwrap();
    if let Err(error) = calls::watch() {
        println!("@uncounted {error}");
    }
    operate(&task, Path::new(&folder)).unwrap();
    println!("@phase {} {} end", calls::count(), CURRENT.get().unwrap().1.elapsed().as_micros());
}
