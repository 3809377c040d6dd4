//! Checkpoints, log and recovery together, against a model, on a disk that fails and forgets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;
use proptest::test_runner::TestRng;

use super::*;
use crate::durability::checkpoint::source::SnapshotSource;
use crate::durability::disk::faulty::{Faults, FaultyDir};
use crate::durability::wal::remove_segments;
use crate::durability::wal::testing::Writer;
use crate::{LogTxn, Op, SnapshotItem};

const ID: [u8; 16] = *b"id of a database";

type Stored = (Vec<u8>, Option<u64>);
type Map = BTreeMap<Vec<u8>, Stored>;

fn apply(map: &mut Map, txn: &LogTxn) {
    for op in &txn.ops {
        match op {
            Op::Put { key, value, expire_at_ms } => {
                map.insert(key.clone(), (value.clone(), *expire_at_ms));
            }
            Op::Delete { key } => {
                map.remove(key);
            }
        }
    }
}

/// A database as recovery and checkpoints see it.
#[derive(Default)]
struct Model {
    map: RefCell<Map>,
    clock: RefCell<u64>,
    changes: RefCell<Vec<Op>>,
}

impl ReplayTarget for Model {
    fn begin(&self, commit_ts: u64) {
        assert!(commit_ts >= *self.clock.borrow(), "out of order");
        *self.clock.borrow_mut() = commit_ts;
    }

    fn change(&self, change: OpRef<'_>) {
        self.changes.borrow_mut().push(change.into());
    }

    fn end(&self) -> Result<()> {
        let txn = LogTxn { commit_ts: *self.clock.borrow(), ops: self.changes.take() };
        apply(&mut self.map.borrow_mut(), &txn);
        Ok(())
    }

    fn set_clock(&self, ts: u64) -> Result<()> {
        *self.clock.borrow_mut() = ts;
        Ok(())
    }
}

/// A snapshot of a map.
struct Image {
    items: Vec<(Vec<u8>, Stored)>,
    ts: u64,
}

impl SnapshotSource for Image {
    fn timestamp(&self) -> u64 {
        self.ts
    }
    fn positions(&self) -> u64 {
        self.items.len() as u64
    }
    fn expected(&self) -> u64 {
        self.items.len() as u64
    }
    fn scan(&mut self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<u64> {
        for (key, (value, expire_at_ms)) in &self.items[from as usize..to as usize] {
            f(SnapshotItem { key, value, expire_at_ms: *expire_at_ms, commit_ts: 1 });
        }
        Ok(to)
    }
}

fn image(history: &[LogTxn], ts: u64) -> Image {
    let mut map = Map::new();
    history[..ts as usize].iter().for_each(|txn| apply(&mut map, txn));
    Image { items: map.into_iter().collect(), ts }
}

/// The two directories; a crash hits both.
#[derive(Clone, Default)]
struct Disk {
    checkpoint: FaultyDir,
    wal: FaultyDir,
}

impl Disk {
    fn recover(&self, force: bool) -> Result<Recovered<Model>> {
        let sources =
            Sources { database_id: &ID, checkpoint: &self.checkpoint, wal: &self.wal, repair: true };
        let mut last = 0;
        recover(&sources, RecoveryOptions { force }, &mut || Ok(Model::default()), &mut |p| {
            assert!(p.done_bytes <= p.total_bytes);
            last = p.applied;
        })
    }

    /// The background job.
    fn checkpoint(&self, image: Image) -> Result<()> {
        let ts = image.ts;
        files::write(&self.checkpoint, Box::new(image), ID, None, &mut |_| ControlFlow::Continue(()))?;
        let oldest = files::publish(&self.checkpoint, ts, 2)?;
        remove_segments(&self.wal, oldest).map_err(|e| Error::io("cutting the log", e))?;
        Ok(())
    }

    fn set_faults(&self, faults: Faults) {
        self.checkpoint.set_faults(faults.clone());
        self.wal.set_faults(faults);
    }
}

fn history(n: u64) -> Vec<LogTxn> {
    (1..=n).map(|ts| txn(ts, ts as usize % 4, 20)).collect()
}

fn txn(ts: u64, n: usize, size: usize) -> LogTxn {
    let op = |i: usize| {
        let key = format!("key {}", (ts as usize * 7 + i) % 23).into_bytes();
        match (ts as usize + i) % 3 {
            0 => Op::Delete { key },
            r => Op::Put { key, value: vec![ts as u8; size], expire_at_ms: (r == 1).then_some(ts) },
        }
    };
    LogTxn { commit_ts: ts, ops: (0..n).map(op).collect() }
}

/// Logs `n` transactions, and takes checkpoints at `checkpoints`.
fn filled(n: u64, checkpoints: &[u64]) -> (Disk, Vec<LogTxn>) {
    let disk = Disk::default();
    let history = history(n);
    let mut writer = Writer::new(&disk.wal, ID, 0, 1);
    for txn in &history {
        writer.add(std::slice::from_ref(txn));
        writer.sync().unwrap();
        if checkpoints.contains(&txn.commit_ts) {
            disk.checkpoint(image(&history, txn.commit_ts)).unwrap();
        }
    }
    (disk, history)
}

fn check(got: &Recovered<Model>, history: &[LogTxn]) {
    let ts = got.report.recovered_ts;
    assert_eq!(*got.target.clock.borrow(), ts);
    let expected: Map = image(history, ts).items.into_iter().collect();
    assert_eq!(*got.target.map.borrow(), expected);
}

#[test]
fn nothing_is_an_empty_database() {
    let got = Disk::default().recover(false).unwrap();
    check(&got, &[]);
    assert_eq!(got.next_seq, 1);
}

#[test]
fn checkpoint_and_log() {
    for checkpoints in [&[][..], &[40], &[200], &[30, 90], &[10, 60, 111, 150], &[199, 200]] {
        let (disk, history) = filled(200, checkpoints);
        let got = disk.recover(false).unwrap();
        check(&got, &history);
        let newest = checkpoints.last().copied().unwrap_or(0);
        assert_eq!(got.report.recovered_ts, 200);
        assert_eq!(got.report.checkpoint_ts, newest);
        assert_eq!(got.report.txns, 200 - newest);
        assert_eq!(got.report.checkpoint.is_some(), newest > 0);
        // Only the newest two checkpoints stay.
        assert_eq!(files::list(&disk.checkpoint).unwrap().len(), checkpoints.len().min(2));
    }
}

#[test]
fn a_damaged_checkpoint_is_replaced_by_the_one_before() {
    let (disk, history) = filled(200, &[50, 100, 150]);
    let name = files::checkpoint_name(150);
    let whole = disk.checkpoint.contents(&name).unwrap();
    for at in [0, 40, 70, 100, whole.len() / 2, whole.len() - 60, whole.len() - 1] {
        let disk =
            Disk { checkpoint: disk.checkpoint.crash(&mut |n| n - 1), wal: disk.wal.crash(&mut |n| n - 1) };
        let mut bad = whole.clone();
        bad[at] ^= 4;
        disk.checkpoint.put(&name, bad);
        let got = disk.recover(false).unwrap();
        check(&got, &history);
        assert_eq!((got.report.recovered_ts, got.report.checkpoint_ts), (200, 100));
        assert_eq!(got.report.checkpoints_skipped.len(), 1);
        assert!(got.report.checkpoints_skipped[0].contains(&name));
        // A damaged checkpoint does not count as one of those to keep.
        assert_eq!(files::list(&disk.checkpoint).unwrap(), [100]);
    }
}

#[test]
fn damage_that_nothing_replaces_is_an_error() {
    // The log has no commits up to 50.
    let (disk, _) = filled(100, &[50, 100]);
    for ts in [50, 100] {
        disk.checkpoint.put(&files::checkpoint_name(ts), b"nonsense".to_vec());
    }
    let error = disk.recover(false).err().unwrap();
    assert!(matches!(&error, Error::Corrupt(text) if text.contains("no usable checkpoint")), "{error}");
    let got = disk.recover(true).unwrap();
    assert!(got.report.damage.is_some());
    assert_eq!(got.report.recovered_ts, 0);

    // Without any log the older checkpoint alone would lose commits.
    let (disk, history) = filled(100, &[50, 100]);
    let disk = Disk { wal: FaultyDir::new(), ..disk };
    disk.checkpoint.put(&files::checkpoint_name(100), b"nonsense".to_vec());
    let error = disk.recover(false).err().unwrap();
    assert!(matches!(&error, Error::Corrupt(text) if text.contains("reaches only to commit 50")), "{error}");
    let got = disk.recover(true).unwrap();
    check(&got, &history);
    assert_eq!(got.report.recovered_ts, 50);
}

#[test]
fn another_databases_checkpoint_is_refused() {
    let (disk, _) = filled(10, &[5]);
    let sources =
        Sources { database_id: &[0; 16], checkpoint: &disk.checkpoint, wal: &disk.wal, repair: true };
    let error = recover(&sources, RecoveryOptions { force: true }, &mut || Ok(Nothing), &mut |_| ());
    let error = error.err().unwrap();
    assert!(matches!(&error, Error::Io { source, .. } if source.to_string().contains("another database")));
}

#[test]
fn a_failed_checkpoint_leaves_the_old_one() {
    let (disk, history) = filled(100, &[50]);
    let segments = disk.wal.list().unwrap();
    let used = disk.checkpoint.contents(&files::checkpoint_name(50)).unwrap().len() as u64;
    disk.checkpoint.set_faults(Faults { capacity: Some(used + 100), ..Faults::default() });
    let error = disk.checkpoint(image(&history, 90)).unwrap_err();
    assert!(matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(libc::ENOSPC)));
    assert_eq!(disk.checkpoint.list().unwrap(), [files::checkpoint_name(50)]);
    assert_eq!(disk.wal.list().unwrap(), segments);
    disk.checkpoint.set_faults(Faults::default());
    check(&disk.recover(false).unwrap(), &history);
}

#[test]
fn a_checkpoint_can_be_given_up() {
    let (disk, history) = filled(20, &[]);
    let mut calls = 0;
    let result = files::write(&disk.checkpoint, Box::new(image(&history, 20)), ID, None, &mut |_| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert!(result.is_err());
    assert_eq!(calls, 1);
    assert!(disk.checkpoint.list().unwrap().is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Commit { txns: usize, size: usize },
    Sync,
    Write,
    Checkpoint,
    Crash,
    Kill,
    Faults { after: u64, errno: i32, more: u64 },
    Heal,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let errno = prop_oneof![Just(libc::EIO), Just(libc::ENOSPC)];
    let step = prop_oneof![
        6 => (1..6usize, 0..300usize).prop_map(|(txns, size)| Step::Commit { txns, size }),
        3 => Just(Step::Sync),
        2 => Just(Step::Write),
        3 => Just(Step::Checkpoint),
        2 => Just(Step::Crash),
        1 => Just(Step::Kill),
        2 => (1..9u64, errno, 0..4u64).prop_map(|(after, errno, more)| Step::Faults { after, errno, more }),
        1 => Just(Step::Heal),
    ];
    proptest::collection::vec(step, 1..60)
}

fn run(steps: &[Step], rng: &mut TestRng) {
    let mut disk = Disk::default();
    let mut writer = Writer::new(&disk.wal, ID, 0, 1);
    let mut history: Vec<LogTxn> = Vec::new();
    let mut durable = 0;
    for step in steps {
        match step {
            Step::Commit { txns, size } => {
                for _ in 0..*txns {
                    let one = txn(history.len() as u64 + 1, rng.random_range(0..4), *size);
                    writer.add(std::slice::from_ref(&one));
                    history.push(one);
                }
            }
            Step::Sync => drop(writer.sync()),
            Step::Write => drop(writer.write()),
            Step::Checkpoint => {
                // If the log cannot be written, the checkpoint also covers commits that the log
                // does not have on disk.
                let ts = history.len() as u64;
                let _ = writer.sync();
                if disk.checkpoint(image(&history, ts)).is_ok() {
                    durable = ts;
                }
            }
            Step::Faults { after, errno, more } => {
                for dir in [&disk.wal, &disk.checkpoint] {
                    let first = dir.calls() + after;
                    let at = (first..=first + more).map(|call| (call, *errno)).collect();
                    dir.set_faults(Faults { at, ..Faults::default() });
                }
            }
            Step::Heal => disk.set_faults(Faults::default()),
            Step::Crash | Step::Kill => {
                durable = durable.max(writer.durable_ts());
                if matches!(step, Step::Crash) {
                    let mut choose = |n| rng.random_range(0..n);
                    disk = Disk {
                        checkpoint: disk.checkpoint.crash(&mut choose),
                        wal: disk.wal.crash(&mut choose),
                    };
                }
                disk.set_faults(Faults::default());
                // Recovery itself may be interrupted, too.
                if rng.random_range(0..3) == 0 {
                    let at = disk.wal.calls() + rng.random_range(1..6);
                    disk.wal.set_faults(Faults { at: [(at, libc::EIO)].into(), ..Faults::default() });
                    let _ = disk.recover(false);
                    let mut choose = |n| rng.random_range(0..n);
                    disk = Disk {
                        checkpoint: disk.checkpoint.crash(&mut choose),
                        wal: disk.wal.crash(&mut choose),
                    };
                }
                files::discard(&disk.checkpoint);
                let got = disk.recover(false).unwrap();
                assert!(got.report.recovered_ts >= durable, "{:?}, {durable} durable", got.report);
                check(&got, &history);
                history.truncate(got.report.recovered_ts as usize);
                writer = Writer::new(&disk.wal, ID, got.report.recovered_ts, got.next_seq);
            }
        }
        durable = durable.max(writer.durable_ts());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_durable_is_lost(steps in steps(), seed in any::<[u8; 32]>()) {
        let mut rng = TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &seed);
        run(&[&steps[..], &[Step::Crash]].concat(), &mut rng);
    }
}
