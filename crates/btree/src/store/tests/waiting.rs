//! Operations that wait for storage, and operations that must not wait for them.

use std::io;
use std::sync::{Arc, Condvar, Mutex, mpsc};

use bedplate_bufpool::PAGE;

use super::blocking::{Blocking, LIMIT};
use super::devices::Devices;
use crate::store::disk::{Disk, Segment};
use crate::store::limits::LOG_BUFFER_BYTES;
use crate::store::{Durability, Store};

#[test]
fn a_commit_that_waits_for_a_leaf_holds_up_no_other_commit() {
    let directory = tempfile::tempdir().unwrap();
    let (devices, storage) = (Devices::new(1), Blocking::new(&directory.path().join("pages")));
    let open = || {
        let builder = Store::builder(directory.path()).memory(64 * PAGE).capacity(64 << 20);
        let log = std::sync::Arc::new(devices.log.clone());
        builder.durability(Durability::Async).devices(Box::new(storage.clone()), log).open().unwrap()
    };
    let store = open();
    let tree = store.create_tree("t").unwrap();
    for n in 0..400u64 {
        store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), &[1; 900])).unwrap();
    }
    store.close().unwrap();
    let store = open();
    let tree = store.tree("t").unwrap();
    let (absent, present) = (0u64.to_be_bytes(), 399u64.to_be_bytes());
    store.read().unwrap().get(&tree, &present).unwrap();
    storage.shut(0..1000);
    std::thread::scope(|scope| {
        let put = |key: [u8; 8]| store.update(|transaction| transaction.put(&tree, &key, b"new"));
        scope.spawn(move || put(absent).unwrap());
        storage.waiting().unwrap();
        let (sender, committed) = mpsc::channel();
        scope.spawn(move || {
            put(present).unwrap();
            sender.send(()).unwrap();
        });
        let outcome = committed.recv_timeout(LIMIT);
        storage.open_all();
        outcome.expect("the second commit waits for the first one's leaf");
    });
    let snapshot = store.read().unwrap();
    for key in [absent, present] {
        assert_eq!(snapshot.get(&tree, &key).unwrap().as_deref(), Some(&b"new"[..]));
    }
}

/// A log whose syncs wait while the gate is shut.
struct SlowLog {
    log: Arc<dyn Disk>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_shut: bool,
    waiting: usize,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().unwrap().is_shut = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.is_shut).unwrap();
        state.waiting -= 1;
    }

    /// Returns when a thread waits, or false if none does within the limit.
    fn wait_for_one(&self) -> bool {
        let state = self.state.lock().unwrap();
        !self.changed.wait_timeout_while(state, LIMIT, |state| state.waiting == 0).unwrap().1.timed_out()
    }
}

struct SlowSegment {
    segment: Box<dyn Segment>,
    gate: Arc<Gate>,
}

impl SlowLog {
    fn slow(&self, segment: Box<dyn Segment>) -> Box<dyn Segment> {
        Box::new(SlowSegment { segment, gate: Arc::clone(&self.gate) })
    }
}

impl Disk for SlowLog {
    fn list(&self) -> io::Result<Vec<u64>> {
        self.log.list()
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        self.log.read(number)
    }

    fn create(&self, number: u64, content: &[u8], reserve: u64) -> io::Result<Box<dyn Segment>> {
        self.log.create(number, content, reserve).map(|segment| self.slow(segment))
    }

    fn reopen(&self, number: u64, content: &[u8]) -> io::Result<Box<dyn Segment>> {
        self.log.reopen(number, content).map(|segment| self.slow(segment))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.log.remove(number)
    }
}

impl Segment for SlowSegment {
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.segment.reserve(bytes)
    }

    fn trim(&mut self) -> io::Result<()> {
        self.segment.trim()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.segment.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.gate.pass();
        self.segment.sync()
    }
}

/// Commits that are made during a sync. Each takes twice the 256 KiB of its value in the log, because the value's pages have images.
const MORE: u64 = 6;

/// An asynchronous commit that finds the log long writes it. Others continue until as many bytes have been appended again.
#[test]
fn asynchronous_commits_do_not_wait_for_a_sync_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let devices = Devices::new(1);
    let gate = Arc::new(Gate::default());
    let log = Arc::new(SlowLog { log: Arc::new(devices.log.clone()), gate: Arc::clone(&gate) });
    let builder = Store::builder(directory.path()).memory(4096 * PAGE).capacity(64 << 20);
    let store = builder.durability(Durability::Async).devices(Box::new(devices.pages.clone()), log);
    let store = store.open().unwrap();
    let tree = store.create_tree("t").unwrap();
    let value = vec![1; 256 << 10];
    let put = |n: u64| store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), &value)).unwrap();
    std::thread::scope(|scope| {
        gate.set(true);
        scope.spawn(|| (0..LOG_BUFFER_BYTES >> 18).for_each(put));
        let is_there = gate.wait_for_one();
        let before = store.log.pending();
        let (sender, committed) = mpsc::channel();
        scope.spawn(move || {
            // Reservations of these commits cross a step of the log's space.
            for n in 1000..1000 + MORE {
                put(n);
            }
            sender.send(()).unwrap();
        });
        let outcome = committed.recv_timeout(LIMIT);
        gate.set(false);
        assert!(is_there, "nobody syncs the log");
        assert!((LOG_BUFFER_BYTES..2 * LOG_BUFFER_BYTES - MORE * (600 << 10)).contains(&before), "{before}");
        outcome.expect("the commits wait for the sync");
    });
}
