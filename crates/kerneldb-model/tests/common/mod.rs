//! The models that the tests run, on the engine itself and on its mutants.

#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::{Arc, Mutex};

use bedplate_kerneldb_model::layout::*;
use bedplate_kerneldb_model::workload::{self, Client, TxStep, Work, random_client, random_work};
use bedplate_kerneldb_model::world::{self, Kind, Setup, Stores};
use bedplate_kerneldb_model::{Engine, history::History, invariant, schedule};
use shuttle::rand::{RngCore, thread_rng};

fn below(bound: u64) -> u64 {
    thread_rng().next_u64() % bound
}

/// A model, and the number of schedules that are tried.
#[derive(Clone, Copy)]
pub struct Model {
    pub name: &'static str,
    pub run: fn(Engine),
    pub executions: usize,
}

/// All randomized models.
pub const MODELS: &[Model] = &[
    Model { name: "mixed", run: mixed, executions: 6000 },
    Model { name: "removal", run: removal, executions: 6000 },
    Model { name: "snapshots", run: snapshots, executions: 6000 },
    Model { name: "updates", run: updates, executions: 3000 },
    Model { name: "owners", run: owners, executions: 3000 },
    Model { name: "blocks", run: blocks, executions: 3000 },
    Model { name: "reaped", run: reaped, executions: 4000 },
    Model { name: "revoked", run: revoked, executions: 3000 },
    Model { name: "moved", run: moved, executions: 4000 },
];

pub fn model(name: &str) -> &'static Model {
    MODELS.iter().find(|model| model.name == name).expect("a model of the list")
}

impl Model {
    pub fn explore(&self, engine: Engine, executions: usize) {
        let run = self.run;
        schedule::randomized(executions, move || run(engine));
    }
}

/// A deleted key whose value is still there. The tombstone lies behind the value that it hides, so a reader meets the value
/// first.
fn tombstone_behind_its_value() -> Vec<Work> {
    vec![Work::Set(b'a', 8), Work::Set(b'a', 8), Work::DuringSnapshot(vec![Work::Del(b'a')])]
}

/// Clients for which every schedule with a few delays is tried.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub delays: usize,
    pub slabs: u32,
    pub versions: u32,
    pub before: fn() -> Vec<Work>,
    pub clients: fn() -> Vec<Client>,
}

/// All cases for exhaustive search.
pub const CASES: &[Case] = &[
    Case {
        name: "two writers of an absent key",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![],
        clients: || {
            vec![Client::thread(0, vec![Work::Set(b'a', 8)]), Client::thread(1, vec![Work::Set(b'a', 8)])]
        },
    },
    Case {
        name: "a writer and a snapshot",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8)],
        clients: || {
            let snapshot = Work::Snapshot(vec![b'a', b'a']);
            vec![Client::thread(0, vec![Work::Set(b'a', 8)]), Client::thread(1, vec![snapshot])]
        },
    },
    Case {
        name: "a writer and a read before a snapshot",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8)],
        clients: || {
            let reads = vec![Work::Get(b'a'), Work::Snapshot(vec![b'a'])];
            vec![Client::thread(0, vec![Work::Set(b'a', 8)]), Client::thread(1, reads)]
        },
    },
    Case {
        name: "a commit and reads",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8)],
        clients: || {
            let commit = Work::Commit(vec![TxStep::Set(b'a', 8)]);
            vec![Client::thread(0, vec![commit]), Client::thread(1, vec![Work::Get(b'a'), Work::Get(b'a')])]
        },
    },
    Case {
        name: "a read and a transaction that writes a key twice",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8)],
        clients: || {
            let commit = Work::Commit(vec![TxStep::Set(b'a', 8), TxStep::Set(b'a', 100)]);
            vec![Client::thread(0, vec![commit]), Client::thread(1, vec![Work::Get(b'a')])]
        },
    },
    Case {
        name: "two read-modify-writes",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8)],
        clients: || {
            let update = Work::Commit(vec![TxStep::Get(b'a'), TxStep::Set(b'a', 8)]);
            vec![Client::thread(0, vec![update.clone()]), Client::thread(1, vec![update])]
        },
    },
    Case {
        name: "the collector and a writer",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8), Work::Del(b'a')],
        clients: || {
            vec![Client::thread(0, vec![Work::Collect(1)]), Client::thread(1, vec![Work::Set(b'a', 8)])]
        },
    },
    Case {
        name: "an entry's memory that serves another key, and a writer",
        delays: 2,
        slabs: 1,
        versions: 4,
        before: || vec![Work::Set(b'a', 8), Work::Set(b'b', 8), Work::Del(b'a')],
        clients: || {
            let reuse = vec![Work::Collect(1), Work::Set(b'c', 8)];
            // With one slab, the second processor allocates from the first one's.
            vec![Client::thread(0, vec![Work::Set(b'a', 8), Work::Get(b'c')]), Client::thread(1, reuse)]
        },
    },
    Case {
        name: "a snapshot and the removal of a tombstone with what it hides",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: tombstone_behind_its_value,
        clients: || {
            let snapshot = Work::Snapshot(vec![b'a']);
            vec![Client::thread(0, vec![Work::Collect(1)]), Client::thread(1, vec![snapshot])]
        },
    },
    Case {
        name: "a snapshot and a write that takes the place of a tombstone",
        delays: 2,
        slabs: 8,
        versions: 2,
        // Both slots are in use. The write drops the value, then the tombstone, and takes the tombstone's slot.
        before: tombstone_behind_its_value,
        clients: || {
            let snapshot = Work::Snapshot(vec![b'a']);
            vec![Client::thread(0, vec![Work::Set(b'a', 8)]), Client::thread(1, vec![snapshot])]
        },
    },
    Case {
        name: "a read and a transaction that takes the place of a tombstone",
        delays: 2,
        slabs: 8,
        versions: 2,
        before: tombstone_behind_its_value,
        clients: || {
            let rolled_back = Work::Rollback(vec![TxStep::Set(b'a', 8)]);
            vec![Client::thread(0, vec![rolled_back]), Client::thread(1, vec![Work::Get(b'a')])]
        },
    },
    Case {
        name: "a snapshot and a session that begins its next transaction",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![],
        clients: || {
            let work = vec![Work::Commit(vec![TxStep::Set(b'a', 8)]), Work::Commit(vec![])];
            vec![Client::thread(0, work), Client::thread(1, vec![Work::Snapshot(vec![b'a'])])]
        },
    },
    Case {
        name: "an interrupt",
        delays: 1,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8)],
        clients: || {
            let commit = Work::Commit(vec![TxStep::Get(b'a'), TxStep::Set(b'a', 100)]);
            let interrupt = vec![Work::Set(b'a', 100), Work::Set(b'b', 100), Work::Get(b'a')];
            vec![Client::thread(0, vec![Work::Set(b'c', 100), commit]), Client::interrupt(0, interrupt)]
        },
    },
    Case {
        name: "the reaper and a transaction",
        delays: 1,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8)],
        clients: || {
            let work = vec![Work::Commit(vec![TxStep::Set(b'a', 8), TxStep::Get(b'b')]), Work::Get(b'a')];
            vec![Client::thread(0, work), Client::thread(1, vec![Work::Reap(0), Work::Set(b'a', 8)])]
        },
    },
    Case {
        name: "a snapshot that gives way while it is read",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 8)],
        clients: || {
            let writes = vec![Work::Tick, Work::Set(b'a', 8), Work::Set(b'a', 8)];
            vec![Client::thread(0, vec![Work::Snapshot(vec![b'a', b'a'])]), Client::thread(1, writes)]
        },
    },
    Case {
        name: "a value that moves while it is read and written",
        delays: 2,
        slabs: 8,
        versions: 4,
        before: || vec![Work::Set(b'a', 100)],
        clients: || {
            let work = vec![Work::Get(b'a'), Work::Set(b'a', 100), Work::Get(b'a')];
            vec![Client::thread(0, work), Client::thread(1, vec![Work::Evacuate(0)])]
        },
    },
];

pub fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("a case of the list")
}

impl Case {
    /// Runs every schedule with at most `delays` delays, up to `bound` schedules.
    pub fn explore(&self, engine: Engine, stores: Stores, bound: u64) -> schedule::Covered {
        let case = *self;
        schedule::exhaustive(case.delays, bound, move || {
            let clients = (case.clients)();
            let setup = suited(
                Setup { stores, slabs: case.slabs, versions: case.versions, ..Setup::default() },
                &clients,
            );
            workload::run(engine, &setup, &(case.before)(), &clients);
        })
    }
}

fn random_setup() -> Setup {
    Setup {
        versions: [1, 2, 4, 6][below(4) as usize],
        wal: below(3) == 0,
        buckets: [1, 2][below(2) as usize],
        // With few slabs, processors allocate from each other's slabs.
        slabs: [3, 8][below(2) as usize],
        stores: if below(4) == 0 { Stores::Sequential } else { Stores::Random },
        ..Setup::default()
    }
}

/// All operations on up to three keys: two processors, interrupts, and threads that preempt each other.
fn mixed(engine: Engine) {
    let keys = 1 + below(3);
    let mut clients = vec![random_client(0, Kind::Thread, 3, keys), random_client(1, Kind::Thread, 3, keys)];
    if below(2) == 0 {
        clients.push(random_client(0, Kind::Interrupt, 2, keys));
    }
    if below(3) == 0 {
        clients.push(random_client(1, Kind::Thread, 2, keys));
    }
    workload::run(engine, &random_setup(), &[], &clients);
}

/// Keys are deleted and collected, and their memory serves other keys, while they are read and written.
fn removal(engine: Engine) {
    let before =
        [Work::Set(b'a', 8), Work::Set(b'b', 8), Work::Set(b'c', 8), Work::Del(b'b'), Work::Del(b'c')];
    let victim = [b'a', b'b', b'c'][below(3) as usize];
    let other = [b'b', b'd'][below(2) as usize];
    let remover =
        vec![Work::Del(victim), Work::Collect(4), Work::Set(other, 8), Work::Del(other), Work::Collect(4)];
    let user: Vec<Work> = (0..1 + below(3))
        .map(|_| match below(6) {
            0 => Work::Get(victim),
            1 => Work::Set(victim, 8),
            2 => Work::Snapshot(vec![victim, other]),
            3 => Work::Commit(vec![TxStep::Get(victim)]),
            4 => Work::Set(other, 8),
            _ => Work::Commit(vec![TxStep::Set(victim, 8), TxStep::Set(other, 8)]),
        })
        .collect();
    let clients = [Client::thread(0, remover), Client::thread(1, user), random_client(1, Kind::Thread, 2, 4)];
    let clients = &clients[..2 + below(2) as usize];
    workload::run(engine, &random_setup(), &before, clients);
}

/// Snapshots that read keys twice, while the keys are written, deleted and pruned.
fn snapshots(engine: Engine) {
    let before = [Work::Set(b'a', 8), Work::Set(b'b', 8)];
    let write = |_| match below(5) {
        0 => Work::Del(b'a'),
        1 => Work::Commit(vec![TxStep::Set(b'a', 8), TxStep::Set(b'b', 100)]),
        2 => Work::Set(b'a', 100),
        _ => Work::Set(b'a', 8),
    };
    let writes = (0..2 + below(3)).map(write).collect();
    let read = |_| match below(4) {
        0 => Work::Get(b'a'),
        _ => Work::Snapshot(vec![b'a', b'b', b'a']),
    };
    let reads = (0..1 + below(3)).map(read).collect();
    let mut clients = vec![Client::thread(0, writes), Client::thread(1, reads)];
    if below(3) == 0 {
        clients.push(Client::thread(1, vec![Work::Collect(4)]));
    }
    let setup = Setup { versions: [2, 4][below(2) as usize], ..random_setup() };
    workload::run(engine, &setup, &before, &clients);
}

/// Read-modify-write of one key by transactions and by compare-and-set.
fn updates(engine: Engine) {
    let update = |_| match below(2) {
        0 => Work::Cas(b'a', 8),
        _ => Work::Commit(vec![TxStep::Get(b'a'), TxStep::Set(b'a', 8)]),
    };
    let clients: Vec<Client> =
        (0..2 + below(2)).map(|i| Client::thread(i as usize % 2, (0..2).map(update).collect())).collect();
    workload::run(engine, &random_setup(), &[Work::Set(b'a', 8)], &clients);
}

/// The number of holders of a key's lock, as the holders count them.
#[derive(Default)]
struct Holders {
    shared: u32,
    exclusive: u32,
}

/// Transactions lock one key, and check whether they are its only holders.
fn owners(engine: Engine) {
    world::start(&Setup { cpus: 2, ..random_setup() });
    let holders = Arc::new(Mutex::new(Holders::default()));
    let history = Arc::new(Mutex::new(History::default()));
    let tasks: Vec<_> = (0..3)
        .map(|i| {
            let (holders, history) = (holders.clone(), history.clone());
            world::spawn(i % 2, Kind::Thread, move || {
                let session = i + 1;
                let client = workload::Session::new(engine, session, history);
                for _ in 0..2 {
                    client.fill(b'a', 0, 8);
                    assert_eq!(engine.run(KDB_OP_BEGIN, session), KDB_OK);
                    let mut mode = None;
                    for exclusive in [below(2) == 0, true] {
                        if engine.lock(session, exclusive) != KDB_OK {
                            break;
                        }
                        let mut holders = holders.lock().expect("no task panicked");
                        if mode == Some(false) && exclusive {
                            holders.shared -= 1;
                        }
                        if mode != Some(true) {
                            if exclusive {
                                holders.exclusive += 1
                            } else {
                                holders.shared += 1
                            }
                            mode = Some(exclusive);
                        }
                        let (shared, exclusive) = (holders.shared, holders.exclusive);
                        assert!(exclusive <= 1, "two transactions hold an exclusive lock");
                        assert!(exclusive == 0 || shared == 0, "a lock is both shared and exclusive");
                    }
                    {
                        let mut holders = holders.lock().expect("no task panicked");
                        match mode {
                            Some(true) => holders.exclusive -= 1,
                            Some(false) => holders.shared -= 1,
                            None => {}
                        }
                    }
                    assert_eq!(engine.run(KDB_OP_ROLLBACK, session), KDB_OK);
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().expect("no task panicked");
    }
}

/// Blocks move between processors through each other's free lists.
fn blocks(engine: Engine) {
    const LENGTH: u32 = 20_000;
    world::start(&Setup { slabs: 1, stores: Stores::Random, ..Setup::default() });
    let owned = Arc::new(Mutex::new(Vec::<u32>::new()));
    let tasks: Vec<_> = [(0, Kind::Thread), (1, Kind::Thread), (0, Kind::Interrupt), (1, Kind::Thread)]
        .into_iter()
        .take(2 + below(3) as usize)
        .map(|(cpu, kind)| {
            let owned = owned.clone();
            world::spawn(cpu, kind, move || {
                let mut mine = Vec::new();
                for _ in 0..4 {
                    if below(2) == 0 {
                        let block = engine.alloc(LENGTH);
                        if block != 0 {
                            let mut owned = owned.lock().expect("no task panicked");
                            assert!(!owned.contains(&block), "block {block} was handed out twice");
                            owned.push(block);
                            mine.push(block);
                        }
                    } else if !mine.is_empty() {
                        let block = mine.swap_remove(below(mine.len() as u64) as usize);
                        owned.lock().expect("no task panicked").retain(|&other| other != block);
                        engine.free(block);
                    }
                }
                // Some blocks stay in use.
                let kept = below(3) as usize;
                for block in mine.into_iter().skip(kept) {
                    owned.lock().expect("no task panicked").retain(|&other| other != block);
                    engine.free(block);
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().expect("no task panicked");
    }
    // Every other block is free, once, and would be found. A slab may have changed its size class meanwhile.
    world::settle();
    let held = owned.lock().expect("no task panicked").clone();
    invariant::check_slabs(engine, &held, &History::default());
}

/// The reaper rolls back transactions at any moment, while others want their locks.
fn reaped(engine: Engine) {
    let keys = 1 + below(2);
    let reaps = (0..1 + below(3)).flat_map(|_| [Work::Reap(0), random_work(keys)]).collect();
    let mut clients = vec![
        Client::thread(0, transactions(keys)),
        Client::thread(1, reaps),
        random_client(1, Kind::Thread, 2, keys),
    ];
    if below(2) == 0 {
        clients[1] = Client::interrupt(0, vec![Work::Reap(0)]);
    }
    workload::run(engine, &suited(random_setup(), &clients), &[Work::Set(b'a', 8)], &clients);
}

fn transactions(keys: u64) -> Vec<Work> {
    let step = || {
        let key = b'a' + below(keys) as u8;
        if below(3) == 0 { TxStep::Get(key) } else { TxStep::Set(key, [8, 100][below(2) as usize]) }
    };
    let steps = || (0..1 + below(3)).map(|_| step()).collect();
    (0..1 + below(2))
        .map(|_| if below(4) == 0 { Work::Snapshot(vec![b'a', b'a']) } else { Work::Commit(steps()) })
        .collect()
}

/// Snapshots that give way to writers while they are read.
fn revoked(engine: Engine) {
    let writes =
        (0..3 + below(3)).flat_map(|_| [Work::Tick, Work::Set(b'a', [8, 100][below(2) as usize])]).collect();
    let reads = || (0..1 + below(2)).map(|_| Work::Snapshot(vec![b'a'; 3])).collect();
    let clients = [Client::thread(0, writes), Client::thread(1, reads()), Client::thread(1, reads())];
    let clients = &clients[..2 + below(2) as usize];
    workload::run(engine, &suited(random_setup(), clients), &[Work::Set(b'a', 8)], clients);
}

/// Values and arrays of versions move out of their slabs while they are read, written and freed.
fn moved(engine: Engine) {
    let before = [Work::Set(b'a', 100), Work::Set(b'b', 100)];
    let moves = (0..1 + below(3)).map(|_| Work::Evacuate(below(5) as u32)).collect();
    let use_ = |_| match below(6) {
        0 => Work::Get(b'a'),
        1 => Work::Del(b'a'),
        2 => Work::Snapshot(vec![b'a', b'b', b'a']),
        3 => Work::Commit(vec![TxStep::Set(b'a', 100), TxStep::Get(b'b')]),
        _ => Work::Set(b'a', 100),
    };
    let uses = || (0..2 + below(3)).map(use_).collect();
    let clients = [
        Client::thread(0, moves),
        Client::thread(1, uses()),
        Client::thread(1, vec![Work::Snapshot(vec![b'a', b'a'])]),
    ];
    workload::run(engine, &random_setup(), &before, &clients[..2 + below(2) as usize]);
}

/// The setup that the clients' work needs.
fn suited(setup: Setup, clients: &[Client]) -> Setup {
    let works = || clients.iter().flat_map(|client| &client.work);
    let revoke = works().any(|work| *work == Work::Tick);
    let versions = if revoke { 2 } else { setup.versions };
    Setup { versions, revoke, reaper: works().any(|work| matches!(work, Work::Reap(_))), ..setup }
}
