//! Isolation: the anomalies that strict two-phase locking and snapshots have to prevent, and invariants
//! after many random transactions from several threads.

mod common;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use bedplate_kerneldb::{Config, Database, Error, LogTxn, Op, Session, SetOptions, Written};
use common::{can_run, small, variants};
use proptest::prelude::*;

fn put(s: &mut Session, key: &[u8], value: &[u8]) -> Result<(), Error> {
    s.set(key, value, SetOptions::default()).map(drop)
}

fn number(s: &mut Session, key: &[u8]) -> Result<i64, Error> {
    Ok(s.get(key)?.map_or(0, |v| i64::from_le_bytes(v.data.try_into().unwrap())))
}

/// A small deterministic generator, one per thread.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Transfers keep the sum; read-only transactions see a constant sum and never fail.
#[test]
fn transfers_keep_the_sum() {
    if !can_run() {
        return;
    }
    const ACCOUNTS: u64 = 24;
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        for a in 0..ACCOUNTS {
            put(&mut s, &a.to_le_bytes(), &1000i64.to_le_bytes()).unwrap();
        }
        let mut log = db.log_reader();
        let (stop, committed, sums) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|t| {
                    let (db, committed) = (&db, &committed);
                    scope.spawn(move || {
                        let mut s = db.session().unwrap();
                        let mut rng = Rng(0x9e37_79b9 + t);
                        for _ in 0..1500 {
                            let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
                            let amount = rng.below(50) as i64;
                            s.begin().unwrap();
                            let done = (|| {
                                let a = number(&mut s, &from.to_le_bytes())?;
                                put(&mut s, &from.to_le_bytes(), &(a - amount).to_le_bytes())?;
                                let b = number(&mut s, &to.to_le_bytes())?;
                                put(&mut s, &to.to_le_bytes(), &(b + amount).to_le_bytes())?;
                                s.commit()
                            })();
                            match done {
                                Ok(_) => drop(committed.fetch_add(1, Ordering::Relaxed)),
                                Err(e) => {
                                    assert!(e.is_transient() || matches!(e, Error::Aborted), "{name}: {e}");
                                    s.rollback().unwrap();
                                }
                            }
                        }
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut s = db.session().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    s.begin_read_only().unwrap();
                    let sum = (0..ACCOUNTS).map(|a| number(&mut s, &a.to_le_bytes())).sum::<Result<i64, _>>();
                    match sum {
                        Ok(sum) => assert_eq!(sum, 1000 * ACCOUNTS as i64, "{name}"),
                        // Readers may meet a lock only in single-version mode.
                        Err(e) => assert!(db.config().versions == 1, "{name}: {e}"),
                    }
                    s.rollback().unwrap();
                    if db.config().versions > 1 {
                        let snapshot = db.snapshot().unwrap();
                        let mut sum = 0;
                        snapshot
                            .scan(0, snapshot.positions(), &mut |item| {
                                sum += i64::from_le_bytes(item.value.try_into().unwrap());
                            })
                            .unwrap();
                        assert_eq!(sum, 1000 * ACCOUNTS as i64, "{name}: snapshot {}", snapshot.timestamp());
                    }
                    sums.fetch_add(1, Ordering::Relaxed);
                }
            });
            while !writers.iter().all(|w| w.is_finished()) {
                if let Some(log) = &mut log {
                    log.drain(usize::MAX, &mut |_| {});
                }
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert!(committed.load(Ordering::Relaxed) > 100, "{name}");
        assert!(sums.load(Ordering::Relaxed) > 0);
        let sum: i64 = (0..ACCOUNTS).map(|a| number(&mut s, &a.to_le_bytes()).unwrap()).sum();
        assert_eq!(sum, 1000 * ACCOUNTS as i64, "{name}");
        drop(s);
        db.verify().unwrap();
    }
}

#[test]
fn lost_update_and_write_skew() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let (mut a, mut b) = (db.session().unwrap(), db.session().unwrap());
        put(&mut a, b"x", &1i64.to_le_bytes()).unwrap();
        put(&mut a, b"y", &1i64.to_le_bytes()).unwrap();
        // Lost update: both read x, both want to write x.
        a.begin().unwrap();
        b.begin().unwrap();
        number(&mut a, b"x").unwrap();
        number(&mut b, b"x").unwrap();
        assert!(put(&mut a, b"x", &2i64.to_le_bytes()).is_err(), "{name}");
        assert!(put(&mut b, b"x", &3i64.to_le_bytes()).is_err(), "{name}");
        a.rollback().unwrap();
        b.rollback().unwrap();
        // Write skew: each reads both and clears one, to keep x + y > 0.
        a.begin().unwrap();
        b.begin().unwrap();
        let sum_a = number(&mut a, b"x").unwrap() + number(&mut a, b"y").unwrap();
        let sum_b = number(&mut b, b"x").unwrap() + number(&mut b, b"y").unwrap();
        assert_eq!((sum_a, sum_b), (2, 2));
        let first = put(&mut a, b"x", &0i64.to_le_bytes()).and_then(|()| a.commit());
        let second = put(&mut b, b"y", &0i64.to_le_bytes()).and_then(|()| b.commit());
        assert!(first.is_err() || second.is_err(), "{name}");
        a.rollback().unwrap();
        b.rollback().unwrap();
        assert!(number(&mut a, b"x").unwrap() + number(&mut a, b"y").unwrap() > 0);
    }
}

/// The read-only anomaly: a snapshot between two dependent updates sees none or both of a transaction.
#[test]
fn read_only_transactions_see_whole_transactions() {
    if !can_run() {
        return;
    }
    let db = Database::create(small()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut s = db.session().unwrap();
            for i in 0..4000i64 {
                s.begin().unwrap();
                for key in 0..8u8 {
                    put(&mut s, &[key], &i.to_le_bytes()).unwrap();
                }
                s.commit().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        let mut s = db.session().unwrap();
        let mut last = 0;
        while !stop.load(Ordering::Relaxed) {
            s.begin_read_only().unwrap();
            let seen: Vec<i64> = (0..8u8).map(|key| number(&mut s, &[key]).unwrap()).collect();
            assert!(seen.iter().all(|n| *n == seen[0]), "{seen:?}");
            assert!(seen[0] >= last);
            last = seen[0];
            s.commit().unwrap();
        }
    });
    db.verify().unwrap();
}

/// A key is deleted while a snapshot keeps its value. The next write drops the value, then the tombstone, and takes the
/// tombstone's place. The write is rolled back, so no reader may see it.
#[test]
fn a_rolled_back_write_in_place_of_a_tombstone_is_never_read() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut log = db.log_reader();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut s = db.session().unwrap();
                let mut reads = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(Some(value)) = s.get(b"k") {
                        assert_eq!(value.data, b"committed", "{name}");
                    }
                    reads += 1;
                }
                reads
            });
            let (mut s, mut keeper) = (db.session().unwrap(), db.session().unwrap());
            for _ in 0..3000 {
                put(&mut s, b"k", b"committed").unwrap();
                put(&mut s, b"k", b"committed").unwrap();
                keeper.begin_read_only().unwrap();
                let _ = s.delete(b"k");
                keeper.commit().unwrap();
                s.begin().unwrap();
                let _ = put(&mut s, b"k", b"rolled back");
                s.rollback().unwrap();
                if let Some(log) = &mut log {
                    log.drain(usize::MAX, &mut |_| {});
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0, "{name}");
        });
        db.verify().unwrap();
    }
}

/// Inserts and deletes of new keys do not use up memory, because the collector removes their entries.
#[test]
fn churn_is_collected() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        let mut log = db.log_reader();
        let mut used = 0;
        for round in 0..10u64 {
            for i in 0..2000u64 {
                let key = (round * 2000 + i).to_le_bytes();
                put(&mut s, &key, &[1; 100]).unwrap();
                assert!(matches!(s.delete(&key).unwrap(), Written::Done { .. }), "{name}");
                if let Some(log) = &mut log {
                    log.drain(usize::MAX, &mut |_| {});
                }
            }
            let verified = db.verify().unwrap();
            assert_eq!((verified.keys, verified.entries), (0, 0), "{name}");
            if round == 1 {
                used = db.stats().memory_used;
            }
        }
        assert!(db.stats().memory_used <= used + (1 << 20), "{name}: {} {used}", db.stats().memory_used);
        assert!(db.stats().entries_collected >= 10_000);
    }
}

/// Replaying the log of several threads gives the contents of the database.
#[test]
fn the_log_reproduces_the_database() {
    if !can_run() {
        return;
    }
    for partitions in [1, 2] {
        let config = Config { partitions, wal_ring_bytes: 1 << 20, ..small() };
        let db = Database::create(config.clone()).unwrap();
        let mut log = db.log_reader().unwrap();
        let mut txns: Vec<LogTxn> = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3u64)
                .map(|t| {
                    let db = &db;
                    scope.spawn(move || {
                        let mut s = db.session().unwrap();
                        let mut rng = Rng(77 + t);
                        for i in 0..4000u64 {
                            s.set_logged(!i.is_multiple_of(50));
                            let transaction = rng.below(3) == 0;
                            if transaction {
                                s.begin().unwrap();
                            }
                            for _ in 0..if transaction { rng.below(6) } else { 1 } {
                                let key = rng.below(200).to_le_bytes();
                                let done = match rng.below(4) {
                                    0 => s.delete(&key).map(drop),
                                    1 => s.get(&key).map(drop),
                                    _ => put(&mut s, &key, &vec![t as u8; rng.below(300) as usize]),
                                };
                                assert!(done.is_ok() || transaction || done.is_err_and(|e| e.is_transient()));
                            }
                            if transaction && (rng.below(5) == 0 || s.commit().is_err()) {
                                s.rollback().unwrap();
                            }
                        }
                    })
                })
                .collect();
            while !threads.iter().all(|t| t.is_finished()) {
                log.drain(1 << 16, &mut |txn| txns.push(txn));
                std::thread::yield_now();
            }
        });
        while log.drain(usize::MAX, &mut |txn| txns.push(txn)) > 0 {}
        for (i, txn) in txns.iter().enumerate() {
            assert_eq!(txn.commit_ts, i as u64 + 1, "dense");
        }
        assert_eq!(txns.len() as u64, db.clock());
        // The log does not contain writes of sessions that were not logged, so their keys are left out.
        let model = contents(&db);
        let mut replayed: BTreeMap<Vec<u8>, (u64, Vec<u8>)> = BTreeMap::new();
        let copy = Database::create(config).unwrap();
        for txn in &txns {
            copy.replay(txn).unwrap();
            for op in &txn.ops {
                match op {
                    Op::Put { key, value, .. } => {
                        replayed.insert(key.clone(), (txn.commit_ts, value.clone()));
                    }
                    Op::Delete { key } => drop(replayed.remove(key)),
                }
            }
        }
        copy.set_clock(txns.len() as u64).unwrap();
        assert_eq!(contents(&copy), replayed);
        let mut same = 0;
        for (key, (ts, value)) in &model {
            if !txns[*ts as usize - 1].ops.is_empty() {
                assert_eq!(replayed.get(key), Some(&(*ts, value.clone())));
                same += 1;
            }
        }
        assert!(same > 50);
        copy.verify().unwrap();
        db.verify().unwrap();
    }
}

/// Recovery overwrites more values than fit into the memory, and the log goes on correctly afterwards.
#[test]
fn replay_needs_no_more_memory_than_the_data() {
    if !can_run() {
        return;
    }
    let db = Database::create(Config { wal_ring_bytes: 1 << 20, ..small() }).unwrap();
    let replayer = &mut db.replayer().unwrap();
    let put_of =
        |i: u64| Op::Put { key: vec![(i % 10) as u8], value: vec![i as u8; 60_000], expire_at_ms: None };
    for ts in 1..=3000 {
        replayer.replay(&LogTxn { commit_ts: ts, ops: vec![put_of(ts)] }).unwrap();
    }
    db.set_clock(3000).unwrap();
    let mut log = db.log_reader().unwrap();
    let mut s = db.session().unwrap();
    for i in 0..20u64 {
        put(&mut s, b"k", &vec![i as u8; 5000]).unwrap();
    }
    let mut txns = Vec::new();
    while log.drain(usize::MAX, &mut |txn| txns.push(txn)) > 0 {}
    for (i, txn) in (0..20u64).zip(&txns) {
        let op = Op::Put { key: b"k".to_vec(), value: vec![i as u8; 5000], expire_at_ms: None };
        assert_eq!((txn.commit_ts, &txn.ops[..]), (3001 + i, &[op][..]));
    }
    assert_eq!(db.len(), 11);
    db.verify().unwrap();
}

/// Records refer to large values. A value stays until the log's reader has it, however often its key is written
/// meanwhile, and its memory is free afterwards.
#[test]
fn logged_values_outlive_their_versions() {
    if !can_run() {
        return;
    }
    for versions in [1, 4] {
        let config = Config { versions, wal_ring_bytes: 1 << 20, ..small() };
        let db = Database::create(config).unwrap();
        let mut log = db.log_reader().unwrap();
        let mut s = db.session().unwrap();
        // The writes need more than the whole memory unless it is reused.
        for round in 0..100u64 {
            let value = |i: u64| vec![(round ^ i) as u8; 65 + (i as usize * 37) % 3000];
            for i in 0..500 {
                put(&mut s, &(i % 3u64).to_le_bytes(), &value(i)).unwrap();
            }
            for i in 0..3u64 {
                s.delete(&i.to_le_bytes()).unwrap();
            }
            let mut txns = Vec::new();
            while log.drain(100_000, &mut |txn| txns.push(txn)) > 0 {}
            assert_eq!(txns.len(), 503);
            for (i, txn) in (0..500u64).zip(&txns) {
                let key = (i % 3).to_le_bytes().to_vec();
                assert_eq!(txn.ops, [Op::Put { key, value: value(i), expire_at_ms: None }]);
            }
        }
        db.verify().unwrap();
        let stats = db.stats();
        // Nearly all blocks were dropped before they were read.
        assert!(stats.blocks_waited > 100 * 450, "{stats:?}");
    }
}

fn contents(db: &Database) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let snapshot = db.snapshot().unwrap();
    snapshot
        .scan(0, snapshot.positions(), &mut |item| {
            all.insert(item.key.to_vec(), (item.commit_ts, item.value.to_vec()));
        })
        .unwrap();
    all
}

/// Repeats an operation until it is not [`Error::Busy`]: the thread that holds a latch may have lost its processor.
fn persist<T>(mut operation: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match operation() {
            Err(Error::Busy) => std::thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin,
    Commit,
    RollBack,
    Get(u8),
    Set(u8, u16),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Begin),
        1 => Just(Step::Commit),
        1 => Just(Step::RollBack),
        5 => (0u8..24).prop_map(Step::Get),
        6 => (0u8..24, 0u16..2000).prop_map(|(k, v)| Step::Set(k, v)),
        3 => (0u8..24).prop_map(Step::Delete),
    ]
}

/// One session against a `BTreeMap`, on all configurations, each used for all cases in turn.
#[test]
fn one_session_behaves_like_a_map() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let log = std::cell::RefCell::new(db.log_reader());
        let mut runner =
            proptest::test_runner::TestRunner::new(ProptestConfig { cases: 60, ..Default::default() });
        runner
            .run(&prop::collection::vec(step(), 1..200), |steps| {
                let mut s = db.session().unwrap();
                for k in 0..24u8 {
                    s.delete(&[k]).unwrap();
                }
                let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
                let mut saved = None;
                for step in steps {
                    match step {
                        Step::Begin => {
                            let result = s.begin();
                            prop_assert_eq!(result.is_ok(), saved.is_none());
                            saved.get_or_insert_with(|| model.clone());
                        }
                        Step::Commit => {
                            prop_assert_eq!(s.commit().is_ok(), saved.take().is_some());
                        }
                        Step::RollBack => {
                            s.rollback().unwrap();
                            if let Some(before) = saved.take() {
                                model = before;
                            }
                        }
                        Step::Get(k) => {
                            let value = persist(|| s.get(&[k]));
                            prop_assert_eq!(value.map(|v| v.data), model.get(&k).cloned());
                        }
                        Step::Set(k, len) => {
                            let value = vec![len as u8; usize::from(len)];
                            persist(|| put(&mut s, &[k], &value));
                            model.insert(k, value);
                        }
                        Step::Delete(k) => {
                            let done = matches!(persist(|| s.delete(&[k])), Written::Done { .. });
                            prop_assert_eq!(done, model.remove(&k).is_some());
                        }
                    }
                    if let Some(log) = log.borrow_mut().as_mut() {
                        log.drain(usize::MAX, &mut |_| {});
                    }
                }
                if let Some(before) = saved.take() {
                    s.rollback().unwrap();
                    model = before;
                }
                prop_assert_eq!(db.len(), model.len() as u64, "{}", name);
                Ok(())
            })
            .unwrap();
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Several changes of one key in one transaction: only the last change is valid, also in recovery.
#[test]
fn replay_keeps_the_last_change_of_a_key() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let change = |value: Option<&[u8]>| match value {
            Some(value) => Op::Put { key: b"k".to_vec(), value: value.to_vec(), expire_at_ms: None },
            None => Op::Delete { key: b"k".to_vec() },
        };
        let ops = |values: &[Option<&[u8]>]| values.iter().map(|v| change(*v)).collect();
        db.replay(&LogTxn { commit_ts: 1, ops: ops(&[Some(b"old")]) }).unwrap();
        db.replay(&LogTxn { commit_ts: 2, ops: ops(&[Some(b"new"), None]) }).unwrap();
        db.set_clock(2).unwrap();
        let mut s = db.session().unwrap();
        assert_eq!((s.get(b"k").unwrap(), db.len()), (None, 0), "{name}");
        db.replay(&LogTxn { commit_ts: 3, ops: ops(&[Some(b"1"), None, Some(b"2"), Some(b"3")]) }).unwrap();
        db.set_clock(3).unwrap();
        assert_eq!(s.get(b"k").unwrap().unwrap().data, b"3", "{name}");
        assert_eq!(db.len(), 1, "{name}");
    }
}

/// Every committed key is in a snapshot, whatever the number of versions.
#[test]
fn snapshots_are_complete() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        for i in 0..50u8 {
            for _ in 0..3 {
                put(&mut s, &[i], b"auto").unwrap();
            }
        }
        s.begin().unwrap();
        put(&mut s, b"t", b"transaction").unwrap();
        s.commit().unwrap();
        assert_eq!(contents(&db).len(), 51, "{name}");
    }
}
