//! Clients of the modelled database: each runs some work in a session and records the results.

use std::sync::{Arc, Mutex};

use crate::history::{Action, History, Step, Transaction};
use crate::layout::*;
use crate::random;
use crate::world::{self, Kind, Setup};
use crate::{Engine, invariant};

/// The first status that is an Error state.
pub const FIRST_ERROR: u32 = KDB_ERR_CONFLICT;

/// A step of an explicit transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxStep {
    /// GET of a key.
    Get(u8),
    /// SET of a key to a new value of this many bytes.
    Set(u8, u32),
    /// DELETE of a key.
    Del(u8),
}

/// A piece of a client's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Auto-commit GET of a key.
    Get(u8),
    /// Auto-commit SET of a key to a new value of this many bytes.
    Set(u8, u32),
    /// Auto-commit DELETE of a key.
    Del(u8),
    /// GET, then compare-and-set to a new value of this many bytes, both auto-commit.
    Cas(u8, u32),
    /// BEGIN, the steps, COMMIT.
    Commit(Vec<TxStep>),
    /// BEGIN, the steps, ROLLBACK.
    Rollback(Vec<TxStep>),
    /// A read-only transaction.
    Snapshot(Vec<u8>),
    /// Auto-commit work while the session's own snapshot keeps versions.
    DuringSnapshot(Vec<Work>),
    /// The collector, for up to this many entries.
    Collect(u32),
    /// The log's reader takes all commits.
    Drain,
    /// The coarse clock advances.
    Tick,
    /// The reaper rolls back the transaction of a client, counted from 0.
    Reap(usize),
    /// Values and arrays of versions move out of a slab, counted from 0.
    Evacuate(u32),
}

/// A client: its processor, its kind, and its work.
#[derive(Clone, Debug)]
pub struct Client {
    /// The processor on which it runs.
    pub cpu: usize,
    /// A thread, or an interrupt.
    pub kind: Kind,
    /// The work that it does.
    pub work: Vec<Work>,
}

impl Client {
    /// A thread on processor `cpu`.
    pub fn thread(cpu: usize, work: Vec<Work>) -> Client {
        Client { cpu, kind: Kind::Thread, work }
    }

    /// An interrupt of processor `cpu`.
    pub fn interrupt(cpu: usize, work: Vec<Work>) -> Client {
        Client { cpu, kind: Kind::Interrupt, work }
    }
}

/// A session of a client, which records into a history.
pub struct Session {
    engine: Engine,
    session: usize,
    values: u64,
    history: Arc<Mutex<History>>,
}

impl Session {
    /// Session `session` of the engine.
    pub fn new(engine: Engine, session: usize, history: Arc<Mutex<History>>) -> Session {
        Session { engine, session, values: 0, history }
    }

    fn next_value(&mut self) -> u64 {
        self.values += 1;
        (self.session as u64 + 1) << 32 | self.values
    }

    /// Puts a key into the I/O buffer, and a value whose words all have the same bits.
    pub fn fill(&self, key: u8, value: u64, bytes: u32) {
        // SAFETY: the buffer belongs to this session, which runs no operator now.
        let io = unsafe { &mut *world::io(self.session) };
        io.key[..8].fill(0);
        io.key[0] = key;
        io.klen = 1;
        io.vlen = bytes;
        io.flags = 0;
        for word in io.val[..bytes as usize].chunks_mut(8) {
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
    }

    fn expect(&self, value: u64, bytes: u32) {
        // SAFETY: as in `fill`.
        let io = unsafe { &mut *world::io(self.session) };
        io.elen = bytes;
        for word in io.expect[..bytes as usize].chunks_mut(8) {
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
    }

    /// The value in the I/O buffer and its length. Panics when it is a mixture of several.
    fn result(&self) -> (u64, u32) {
        // SAFETY: as in `fill`.
        let io = unsafe { &*world::io(self.session) };
        let bytes = &io.val[..io.vlen as usize];
        assert!(bytes.len() >= 8, "no value has {} bytes", bytes.len());
        let value = &bytes[..8];
        for word in bytes.chunks(8) {
            assert_eq!(word, &value[..word.len()], "a read value is a mixture of several");
        }
        (u64::from_le_bytes(value.try_into().expect("eight bytes")), io.vlen)
    }

    fn run(&self, op: u32) -> u32 {
        self.engine.run(op, self.session)
    }

    fn commit_ts(&self) -> u64 {
        // SAFETY: as in `fill`.
        unsafe { (*world::io(self.session)).commit_ts }
    }

    fn count_error(&self) {
        self.history.lock().expect("no task panicked").errors += 1;
    }

    fn record(&self, start: u64, ts: u64, snapshot: Option<u64>, steps: Vec<Step>) {
        let end = world::event();
        let transaction = Transaction { start, end, ts, snapshot, steps };
        self.history.lock().expect("no task panicked").transactions.push(transaction);
    }

    /// GET by the operator `op`. `None` after an Error state.
    fn get(&self, op: u32, key: u8) -> Option<Step> {
        self.fill(key, 0, 0);
        let status = self.run(op);
        if status >= FIRST_ERROR {
            return None;
        }
        let found = status == KDB_OK;
        let (value, version) = if found { (self.result().0, self.commit_ts()) } else { (0, 0) };
        Some(Step { action: Action::Get, key, value, status, version })
    }

    fn auto_write(&self, start: u64, op: u32, action: Action, key: u8, value: u64) -> Option<u32> {
        let status = self.run(op);
        if status >= FIRST_ERROR {
            self.count_error();
            return None;
        }
        let ts = if status == KDB_OK { self.commit_ts() } else { 0 };
        self.record(start, ts, None, vec![Step { action, key, value, status, version: 0 }]);
        Some(status)
    }

    /// One step of an explicit transaction; `None` after an Error state.
    fn step(&mut self, step: TxStep) -> Option<Step> {
        let (op, action, key, value) = match step {
            TxStep::Get(key) => return self.get(KDB_OP_GET, key),
            TxStep::Set(key, bytes) => {
                let value = self.next_value();
                self.fill(key, value, bytes);
                (KDB_OP_SET, Action::Set, key, value)
            }
            TxStep::Del(key) => {
                self.fill(key, 0, 0);
                (KDB_OP_DEL, Action::Del, key, 0)
            }
        };
        let status = self.run(op);
        (status < FIRST_ERROR).then_some(Step { action, key, value, status, version: 0 })
    }

    fn transaction(&mut self, steps: &[TxStep], commit: bool) {
        let start = world::event();
        assert_eq!(self.run(KDB_OP_BEGIN), KDB_OK);
        let mut done = Vec::new();
        for &step in steps {
            match self.step(step) {
                Some(step) => done.push(step),
                None => break,
            }
        }
        if commit && done.len() == steps.len() && self.run(KDB_OP_COMMIT) == KDB_OK {
            let ts = world::own_context(self.session).0;
            self.record(start, ts, None, done);
            return;
        }
        if commit {
            self.count_error();
        }
        assert_eq!(self.run(KDB_OP_ROLLBACK), KDB_OK);
    }

    fn snapshot(&self, keys: &[u8]) {
        let start = world::event();
        if self.run(KDB_OP_BEGIN_RO) != KDB_OK {
            self.count_error();
            return;
        }
        let snapshot = world::own_context(self.session).1;
        let done: Vec<Step> = keys.iter().map_while(|&key| self.get(KDB_OP_GET_RO, key)).collect();
        if done.len() < keys.len() {
            self.count_error();
            assert_eq!(self.run(KDB_OP_ROLLBACK), KDB_OK);
            return;
        }
        let status = self.run(KDB_OP_COMMIT_RO);
        if status == KDB_ERR_TX_TIMED_OUT {
            self.count_error();
            assert_eq!(self.run(KDB_OP_ROLLBACK), KDB_OK);
            return;
        }
        assert_eq!(status, KDB_OK);
        let versions = configured_versions();
        self.record(start, 0, (versions > 1).then_some(snapshot), done);
    }

    /// Runs a piece of work.
    pub fn work(&mut self, work: &Work) {
        let start = world::event();
        match *work {
            Work::Get(key) => match self.get(KDB_OP_GET_AUTO, key) {
                Some(step) => self.record(start, 0, None, vec![step]),
                None => self.count_error(),
            },
            Work::Set(key, bytes) => {
                let value = self.next_value();
                self.fill(key, value, bytes);
                self.auto_write(start, KDB_OP_SET_AUTO, Action::Set, key, value);
            }
            Work::Del(key) => {
                self.fill(key, 0, 0);
                self.auto_write(start, KDB_OP_DEL_AUTO, Action::Del, key, 0);
            }
            Work::Cas(key, bytes) => {
                let Some(read) = self.get(KDB_OP_GET_AUTO, key) else { return self.count_error() };
                let length = if read.value == 0 { 8 } else { self.result().1 };
                self.record(start, 0, None, vec![read]);
                let start = world::event();
                let value = self.next_value();
                self.fill(key, value, bytes);
                self.expect(read.value, length);
                self.auto_write(start, KDB_OP_CAS_AUTO, Action::Cas(read.value), key, value);
            }
            Work::Commit(ref steps) => self.transaction(steps, true),
            Work::Rollback(ref steps) => self.transaction(steps, false),
            Work::Snapshot(ref keys) => self.snapshot(keys),
            Work::DuringSnapshot(ref work) => {
                assert_eq!(self.run(KDB_OP_BEGIN_RO), KDB_OK);
                for work in work {
                    self.work(work);
                }
                assert_eq!(self.run(KDB_OP_COMMIT_RO), KDB_OK);
            }
            Work::Collect(budget) => {
                self.engine.collect(budget);
            }
            Work::Drain => self.engine.drain(),
            Work::Tick => self.engine.tick(),
            Work::Reap(client) => {
                self.engine.reap(client + 1);
            }
            Work::Evacuate(slab) => self.engine.evacuate(slab),
        }
    }
}

fn configured_versions() -> u32 {
    world::configuration().versions
}

/// Runs the clients at once, after `before` has run alone; then checks the history and the memory.
pub fn run(engine: Engine, setup: &Setup, before: &[Work], clients: &[Client]) -> History {
    world::start(setup);
    let history = Arc::new(Mutex::new(History::default()));
    let mut first = Session::new(engine, 0, history.clone());
    for work in before {
        first.work(work);
    }
    let tasks: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(i, client)| {
            let mut session = Session::new(engine, i + 1, history.clone());
            let work = client.work.clone();
            world::spawn(client.cpu, client.kind, move || {
                for work in &work {
                    session.work(work);
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().expect("no client panics");
    }
    world::settle();
    for key in keys(before, clients) {
        first.work(&Work::Get(key));
    }
    let history = history.lock().expect("no client panicked").clone();
    invariant::check(engine, &history);
    history
}

/// All keys of the work.
fn keys(before: &[Work], clients: &[Client]) -> Vec<u8> {
    let mut keys: Vec<u8> = Vec::new();
    let mut left: Vec<&Work> = before.iter().chain(clients.iter().flat_map(|client| &client.work)).collect();
    while let Some(work) = left.pop() {
        match work {
            Work::DuringSnapshot(work) => left.extend(work),
            Work::Get(key) | Work::Set(key, _) | Work::Del(key) | Work::Cas(key, _) => keys.push(*key),
            Work::Commit(steps) | Work::Rollback(steps) => keys.extend(steps.iter().map(|step| match step {
                TxStep::Get(key) | TxStep::Set(key, _) | TxStep::Del(key) => *key,
            })),
            Work::Snapshot(of) => keys.extend(of),
            Work::Collect(_) | Work::Drain | Work::Tick | Work::Reap(_) | Work::Evacuate(_) => {}
        }
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// A random client on processor `cpu`, with up to `pieces` pieces of work on the first `keys` keys.
pub fn random_client(cpu: usize, kind: Kind, pieces: u64, keys: u64) -> Client {
    let work = (0..1 + random::below(pieces)).map(|_| random_work(keys)).collect();
    Client { cpu, kind, work }
}

fn random_key(keys: u64) -> u8 {
    b'a' + random::below(keys) as u8
}

/// A size for a cell of any entry, for a cell of a larger one, or for a block.
fn random_size() -> u32 {
    [8, 40, 100][random::below(3) as usize]
}

/// A random piece of work.
pub fn random_work(keys: u64) -> Work {
    match random::below(18) {
        0..=2 => Work::Get(random_key(keys)),
        3..=5 => Work::Set(random_key(keys), random_size()),
        6..=7 => Work::Del(random_key(keys)),
        8 => Work::Cas(random_key(keys), random_size()),
        9..=12 => {
            let steps = (0..1 + random::below(3)).map(|_| match random::below(6) {
                0..=1 => TxStep::Get(random_key(keys)),
                2..=4 => TxStep::Set(random_key(keys), random_size()),
                _ => TxStep::Del(random_key(keys)),
            });
            let steps = steps.collect();
            if random::below(5) == 0 { Work::Rollback(steps) } else { Work::Commit(steps) }
        }
        13..=14 => Work::Snapshot((0..1 + random::below(3)).map(|_| random_key(keys)).collect()),
        15 => Work::Evacuate(random::below(6) as u32),
        16 => Work::Drain,
        _ => Work::Collect(4),
    }
}
