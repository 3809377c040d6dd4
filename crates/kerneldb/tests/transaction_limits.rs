//! The limits on the size, the age and the idleness of transactions, through the library, on every configuration.

mod common;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use bedplate_kerneldb::{
    Config, Database, Error, KEY_MAX, LogTxn, Op, Session, SetOptions, Store, StoreConfig, TX_KEYS_MAX,
    VALUE_MAX, Written,
    limits::{TX_BYTES_MAX, TX_WRITE_BYTES},
    wal::WalConfig,
};
use common::{can_run, small, variants};

fn put(s: &mut Session, key: &[u8], value: &[u8]) -> Result<(), Error> {
    s.set(key, value, SetOptions::default()).map(|written| assert!(matches!(written, Written::Done { .. })))
}

fn data(s: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    s.get(key).unwrap().map(|value| value.data)
}

/// Waits up to a minute, which is much longer than any step takes.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sets the limits on transactions in milliseconds; 0 = none.
fn limit(db: &Database, transaction_ms: u64, idle_ms: u64) {
    db.timeouts().transaction_ms.store(transaction_ms, Relaxed);
    db.timeouts().idle_ms.store(idle_ms, Relaxed);
}

/// Retries a write, which can meet the collector.
fn put_eventually(s: &mut Session, key: &[u8], value: &[u8]) {
    eventually("the key can be written", || match put(s, key, value) {
        Ok(()) => true,
        Err(e) if e.is_transient() => false,
        Err(e) => panic!("{e}"),
    });
}

/// Empties the log rings into a map, as a log writer would.
fn drain(log: &mut Option<bedplate_kerneldb::LogReader<'_>>, recovered: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    let Some(log) = log else { return };
    let mut apply = |txn: LogTxn| {
        for op in txn.ops {
            match op {
                Op::Put { key, value, .. } => drop(recovered.insert(key, value)),
                Op::Delete { key } => drop(recovered.remove(&key)),
            }
        }
    };
    while log.drain(1 << 20, &mut apply) > 0 {}
}

/// A transaction may write exactly TX_BYTES_MAX, with rewrites counted, and not one byte more.
#[test]
fn a_transaction_of_the_largest_size_commits_and_one_byte_more_fails() {
    if !can_run() {
        return;
    }
    const KEY: &[u8] = b"key";
    // The hash-map engine's allocator needs time to reuse large values; these values are small enough.
    const VALUE: usize = 8000;
    const WHOLE: usize = TX_WRITE_BYTES + KEY.len() + VALUE;
    for over in [0, 1] {
        for (name, db) in variants() {
            let mut s = db.session().unwrap();
            let mut log = db.log_reader();
            let mut recovered = BTreeMap::new();
            s.begin().unwrap();
            for i in 0..TX_BYTES_MAX / WHOLE {
                put(&mut s, KEY, &vec![i as u8; VALUE]).unwrap_or_else(|e| panic!("{name}: write {i}: {e}"));
                drain(&mut log, &mut recovered);
            }
            let last = vec![0xee; TX_BYTES_MAX % WHOLE - TX_WRITE_BYTES - KEY.len() + over];
            let written = put(&mut s, KEY, &last);
            if over == 0 {
                written.unwrap_or_else(|e| panic!("{name}: {e}"));
                s.commit().unwrap();
                assert_eq!(data(&mut s, KEY).unwrap(), last, "{name}");
                drain(&mut log, &mut recovered);
                assert!(log.is_none() || recovered[KEY] == last, "{name}");
            } else {
                assert!(matches!(written, Err(Error::TransactionTooLarge)), "{name}: {written:?}");
                assert!(s.is_failed(), "{name}");
                assert!(matches!(put(&mut s, KEY, b"x"), Err(Error::Aborted)), "{name}");
                assert!(matches!(s.commit(), Err(Error::Aborted)), "{name}");
                assert_eq!(data(&mut s, KEY), None, "{name}");
                drain(&mut log, &mut recovered);
                assert!(recovered.is_empty(), "{name}");
            }
            assert_eq!(db.stats().transactions_too_large, over as u64, "{name}");
            drop((s, log));
            db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

/// The limit leaves room for as many of the longest keys and values as a transaction can lock.
#[test]
fn the_longest_keys_and_values_fit_into_a_transaction() {
    if !can_run() || !common::has_arenas() {
        return;
    }
    let db = Database::create(Config { wal_ring_bytes: 1 << 24, ..small() }).unwrap();
    let mut s = db.session().unwrap();
    s.begin().unwrap();
    for i in 0..TX_KEYS_MAX {
        let mut key = vec![b'k'; KEY_MAX];
        key[0] = i as u8;
        put(&mut s, &key, &vec![i as u8; VALUE_MAX]).unwrap();
    }
    s.commit().unwrap();
    let mut log = db.log_reader().unwrap();
    let mut ops = 0;
    while log.drain(1 << 20, &mut |txn| ops += txn.ops.len()) > 0 {}
    assert_eq!(ops, TX_KEYS_MAX);
}

/// Everything that was committed before the store is closed is there after it is opened again, even a large
/// transaction that the log writer has not begun to read.
#[test]
fn the_largest_transaction_survives_an_immediate_stop() {
    if !can_run() || !common::has_arenas() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        // The rings hold all of it, so the log writer need not keep up.
        database: Config { memory_bytes: 160 << 20, wal_ring_bytes: 32 << 20, ..small() },
        wal: Some(WalConfig::default()),
        ..StoreConfig::default()
    };
    let open = || Store::open(config.clone(), dir.path(), &mut |_| ()).unwrap().0;
    for round in 0..3u8 {
        let store = open();
        let mut s = store.database().session().unwrap();
        s.begin().unwrap();
        for i in 0..TX_KEYS_MAX as u8 {
            put(&mut s, &[b'k', i], &vec![i ^ round; VALUE_MAX]).unwrap();
        }
        // Rewrites are a part of the transaction.
        for i in 0..100 {
            put(&mut s, b"k\x07", &vec![i; VALUE_MAX]).unwrap();
        }
        s.commit().unwrap();
        drop(s);
        store.close(false).unwrap();
        drop(store);
        let store = open();
        let mut s = store.database().session().unwrap();
        for i in 0..TX_KEYS_MAX as u8 {
            let expected = if i == 7 { 99 } else { i ^ round };
            assert!(
                data(&mut s, &[b'k', i]).is_some_and(|v| v == vec![expected; VALUE_MAX]),
                "{round}: key {i}"
            );
        }
        drop(s);
        store.close(false).unwrap();
    }
}

/// Open transactions rewrite keys at the same time, four times as much as the rings hold. The reader neither waits for
/// the rings' space nor loses or repeats anything, and recovery has the committed values.
#[test]
fn rewrites_of_open_transactions_are_recovered() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut log = db.log_reader();
        let mut recovered = BTreeMap::new();
        let mut model = BTreeMap::new();
        let mut sessions: Vec<_> = (0..3).map(|_| db.session().unwrap()).collect();
        for round in 0..3u32 {
            let mut writes = vec![BTreeMap::new(); sessions.len()];
            sessions.iter_mut().for_each(|s| s.begin().unwrap());
            for i in 0..4000u32 {
                let which = (i % 3) as usize;
                let key = format!("{which} {}", i * 7 % 11).into_bytes();
                let value = [format!("{round} {i}").as_bytes(), &[b'.'; 300]].concat();
                put(&mut sessions[which], &key, &value).unwrap_or_else(|e| panic!("{name}: {i}: {e}"));
                writes[which].insert(key, value);
                if i % 50 == 0 {
                    drain(&mut log, &mut recovered);
                }
            }
            for (which, s) in sessions.iter_mut().enumerate() {
                if (round as usize + which).is_multiple_of(3) {
                    s.rollback().unwrap();
                } else {
                    s.commit().unwrap();
                    model.append(&mut writes[which]);
                }
            }
        }
        drain(&mut log, &mut recovered);
        assert!(log.is_none() || recovered == model, "{name}");
        drop((sessions, log));
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// An idle transaction loses its locks. Its session gets an error, and goes on after it has ended the transaction.
#[test]
fn an_idle_transaction_is_rolled_back_and_releases_its_locks() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let (mut idle, mut other) = (db.session().unwrap(), db.session().unwrap());
        put(&mut other, b"read", b"1").unwrap();
        put(&mut other, b"written", b"1").unwrap();
        for end in ["commit", "rollback", "drop"] {
            limit(&db, 0, 0);
            idle.begin().unwrap();
            // The transaction has more locks than the reaper releases at once, in every partition.
            for i in 0..60u8 {
                eventually("the transaction has its locks", || put(&mut idle, &[b'k', i], b"2").is_ok());
            }
            assert_eq!(data(&mut idle, b"read").unwrap(), b"1", "{name}");
            put(&mut idle, b"written", b"2").unwrap();
            assert!(matches!(put(&mut other, b"written", b"3"), Err(Error::Conflict)), "{name}");
            assert!(matches!(put(&mut other, b"read", b"3"), Err(Error::Conflict)), "{name}");
            let timed_out = db.stats().transactions_timed_out;
            limit(&db, 0, 20);
            eventually("the transaction times out", || db.stats().transactions_timed_out > timed_out);
            put_eventually(&mut other, b"written", b"1");
            put_eventually(&mut other, b"read", b"1");
            for i in 0..60u8 {
                assert_eq!(data(&mut other, &[b'k', i]), None, "{name}");
            }
            assert!(idle.is_failed() && idle.in_transaction(), "{name}");
            assert!(matches!(idle.get(b"read"), Err(Error::TimedOut)), "{name}");
            assert!(matches!(put(&mut idle, b"read", b"9"), Err(Error::TimedOut)), "{name}");
            match end {
                "commit" => assert!(matches!(idle.commit(), Err(Error::TimedOut)), "{name}"),
                "rollback" => idle.rollback().unwrap(),
                _ => idle = db.session().unwrap(),
            }
            assert!(!idle.in_transaction());
            assert_eq!(data(&mut idle, b"written").unwrap(), b"1", "{name}");
        }
        assert_eq!(db.stats().transactions_timed_out, 3, "{name}");
        drop((idle, other));
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// A transaction that failed before holds its locks as well, and a read-only one its snapshot.
#[test]
fn failed_and_read_only_transactions_time_out_too() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let (mut a, mut b) = (db.session().unwrap(), db.session().unwrap());
        limit(&db, 0, 0);
        a.begin().unwrap();
        put(&mut a, b"a", b"1").unwrap();
        b.begin().unwrap();
        put(&mut b, b"b", b"1").unwrap();
        assert!(matches!(put(&mut b, b"a", b"2"), Err(Error::Conflict)), "{name}");
        a.rollback().unwrap();
        a.begin_read_only().unwrap();
        limit(&db, 0, 20);
        eventually("both time out", || db.stats().transactions_timed_out == 2);
        assert_eq!(db.stats().active_snapshots, 0, "{name}");
        assert!(matches!(a.get(b"a"), Err(Error::TimedOut)), "{name}");
        assert!(matches!(a.commit(), Err(Error::TimedOut)), "{name}");
        assert!(matches!(b.commit(), Err(Error::TimedOut)), "{name}");
        put_eventually(&mut a, b"b", b"3");
        drop((a, b));
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// The limit on age ends a transaction that is used all the time; the limit on idleness does not.
#[test]
fn the_limit_on_age_ends_a_busy_transaction() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        limit(&db, 0, 10_000);
        s.begin().unwrap();
        let start = Instant::now();
        put(&mut s, b"k", b"v").unwrap();
        while start.elapsed() < Duration::from_millis(100) {
            s.get(b"k").unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        limit(&db, 150, 0);
        eventually("the transaction times out", || match s.get(b"k") {
            Ok(_) => false,
            Err(e) => matches!(e, Error::TimedOut),
        });
        s.rollback().unwrap();
        assert_eq!(data(&mut s, b"k"), None, "{name}");
        drop(s);
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Several threads transfer between accounts, and pause at random while transactions time out all the time. No update
/// is lost, no lock stays, and no lock is released twice.
#[test]
fn the_reaper_and_running_operators_do_not_disturb_each_other() {
    if !can_run() {
        return;
    }
    const ACCOUNTS: u64 = 12;
    const THREADS: u64 = 4;
    for (name, db) in variants() {
        let mut s = db.session().unwrap();
        for account in 0..ACCOUNTS {
            put(&mut s, &account.to_le_bytes(), &1000i64.to_le_bytes()).unwrap();
        }
        limit(&db, 30, 3);
        let (committed, timed_out, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (db, committed, timed_out, stop) = (&db, &committed, &timed_out, &stop);
                scope.spawn(move || {
                    let mut s = db.session().unwrap();
                    let mut random = 0x9e37_79b9_7f4a_7c15u64 + thread;
                    let mut below = move |n: u64| {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        (random >> 20) % n
                    };
                    while !stop.load(Relaxed) {
                        let (from, to) = (below(ACCOUNTS), below(ACCOUNTS));
                        s.begin().unwrap();
                        let done = (|| {
                            let mut change = |s: &mut Session, account: u64, by: i64| {
                                let value = s.get(&account.to_le_bytes())?.expect("the account exists").data;
                                let value = i64::from_le_bytes(value.try_into().unwrap());
                                // The pause is sometimes longer than the limit on idleness, so that operators meet the
                                // reaper.
                                if below(20) == 0 {
                                    std::thread::sleep(Duration::from_micros(below(30_000)));
                                }
                                put(s, &account.to_le_bytes(), &(value + by).to_le_bytes())
                            };
                            change(&mut s, from, -5)?;
                            change(&mut s, to, 5)?;
                            s.commit()
                        })();
                        match done {
                            Ok(_) => drop(committed.fetch_add(1, Relaxed)),
                            Err(Error::TimedOut) => drop(timed_out.fetch_add(1, Relaxed)),
                            Err(e) => assert!(e.is_transient(), "{name}: {e}"),
                        }
                        s.rollback().unwrap();
                    }
                });
            }
            let done = || committed.load(Relaxed) >= 500 && timed_out.load(Relaxed) >= 20;
            let start = Instant::now();
            while !done() && start.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(2));
            }
            stop.store(true, Relaxed);
        });
        assert!(
            committed.load(Relaxed) >= 500 && timed_out.load(Relaxed) >= 20,
            "{name}: not within a minute"
        );
        let mut sum = 0;
        for account in 0..ACCOUNTS {
            sum += i64::from_le_bytes(data(&mut s, &account.to_le_bytes()).unwrap().try_into().unwrap());
        }
        assert_eq!(sum, 1000 * ACCOUNTS as i64, "{name}");
        // A lock that was not released would conflict now.
        s.begin().unwrap();
        for account in 0..ACCOUNTS {
            eventually("no lock is left", || put(&mut s, &account.to_le_bytes(), b"0").is_ok());
        }
        s.commit().unwrap();
        drop(s);
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Random transactions of every size up to the limit, many of them with far more rewrites than a ring holds. After the
/// store is closed and opened again, exactly the committed values are there.
#[test]
fn every_transaction_that_commits_is_recovered() {
    if !can_run() || !common::has_arenas() {
        return;
    }
    let seed =
        std::env::var("BEDPLATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
        });
    println!("BEDPLATE_TEST_SEED={seed}");
    let mut random = seed | 1;
    let mut below = move |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) as usize % n
    };
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        database: Config { partitions: 2, memory_bytes: 160 << 20, wal_ring_bytes: 8 << 20, ..small() },
        wal: Some(WalConfig::default()),
        ..StoreConfig::default()
    };
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for round in 0..4 {
        let store = Store::open(config.clone(), dir.path(), &mut |_| ()).unwrap().0;
        let mut s = store.database().session().unwrap();
        for key in 0..24u8 {
            let found = data(&mut s, &[key]);
            assert!(found.as_ref() == model.get(&[key][..]), "seed {seed}, round {round}: key {key}");
        }
        for _ in 0..12 {
            let mut writes = model.clone();
            let mut counted = 0;
            let longest = [100, 5000, VALUE_MAX][below(3)];
            s.begin().unwrap();
            let done = (0..below(600)).try_for_each(|_| {
                let key = [below(24) as u8];
                if below(10) == 0 {
                    if matches!(s.delete(&key)?, Written::Done { .. }) {
                        counted += TX_WRITE_BYTES + 1;
                        writes.remove(&key[..]);
                    }
                    return Ok(());
                }
                let value = vec![below(256) as u8; below(longest + 1)];
                put(&mut s, &key, &value)?;
                counted += TX_WRITE_BYTES + 1 + value.len();
                writes.insert(key.to_vec(), value);
                Ok(())
            });
            assert!(counted <= TX_BYTES_MAX, "seed {seed}");
            match done {
                Ok(()) if below(4) > 0 => {
                    match s.commit() {
                        Ok(_) => model = writes,
                        // A full log ring leaves the transaction open.
                        Err(_) => s.rollback().unwrap(),
                    }
                }
                Ok(()) => s.rollback().unwrap(),
                Err(e) => {
                    let full = matches!(e, Error::WalFull | Error::Conflict | Error::NoMemory);
                    let large =
                        matches!(e, Error::TransactionTooLarge) && counted + VALUE_MAX > TX_BYTES_MAX - 100;
                    assert!(full || large, "seed {seed}: {e} after {counted} bytes");
                    s.rollback().unwrap();
                }
            }
        }
        drop(s);
        store.close(false).unwrap();
    }
}
