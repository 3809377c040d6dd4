//! Old snapshots that give way to writers, through the library, on every configuration with snapshots.

mod common;

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use bedplate_kerneldb::{Database, Error, Session, SetOptions, Written};
use common::{can_run, variants};

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

/// Retries a write, which can meet the collector.
fn put_eventually(s: &mut Session, key: &[u8], value: &[u8]) {
    eventually("the key can be written", || match put(s, key, value) {
        Ok(()) => true,
        Err(e) if e.is_transient() => false,
        Err(e) => panic!("{e}"),
    });
}

/// Sets the grace periods of snapshots and scans in milliseconds; 0 = none.
fn grace(db: &Database, snapshot_ms: u64, scan_ms: u64) {
    db.timeouts().snapshot_grace_ms.store(snapshot_ms, Relaxed);
    db.timeouts().scan_grace_ms.store(scan_ms, Relaxed);
}

/// Configurations with snapshots, and the number of versions of each.
fn with_snapshots() -> impl Iterator<Item = (&'static str, Database)> {
    variants().into_iter().filter(|(_, db)| db.config().versions > 1)
}

/// Idle snapshots stop the writer of a key until they are older than their grace period. Snapshots that the writer
/// does not need to revoke keep reading the same values.
#[test]
fn old_snapshots_give_way_to_a_writer() {
    if !can_run() {
        return;
    }
    for transaction in [false, true] {
        for (name, db) in with_snapshots() {
            let versions = db.config().versions as usize;
            let mut w = db.session().unwrap();
            grace(&db, 0, 0);
            let mut readers = Vec::new();
            put(&mut w, b"other", b"value").unwrap();
            for i in 0..versions {
                put(&mut w, b"k", &[i as u8]).unwrap();
                let mut reader = db.session().unwrap();
                reader.begin_read_only().unwrap();
                readers.push(reader);
            }
            let mut write = |value: &[u8]| {
                if !transaction {
                    return put(&mut w, b"k", value);
                }
                w.begin()?;
                let done = put(&mut w, b"k", value).and_then(|()| w.commit().map(drop));
                w.rollback()?;
                done
            };
            assert!(matches!(write(b"x"), Err(Error::NoVersion)), "{name}");
            grace(&db, 3_600_000, 3_600_000);
            std::thread::sleep(Duration::from_millis(20));
            assert!(matches!(write(b"x"), Err(Error::NoVersion)), "{name}: the snapshots are young");
            grace(&db, 1, 3_600_000);
            db.verify().unwrap();
            eventually("the oldest snapshot gives way", || match write(b"new") {
                Ok(()) => true,
                Err(Error::NoVersion | Error::Conflict) => false,
                Err(e) => panic!("{name}: {e}"),
            });
            assert_eq!(db.stats().snapshots_revoked, 1, "{name}");
            let mut readers = readers.into_iter();
            let mut oldest = readers.next().unwrap();
            assert!(matches!(oldest.get(b"k"), Err(Error::SnapshotTooOld)), "{name}");
            assert!(matches!(oldest.get(b"other"), Err(Error::Aborted)), "{name}");
            oldest.rollback().unwrap();
            assert_eq!(data(&mut oldest, b"k").unwrap(), b"new", "{name}");
            for (mut reader, i) in readers.zip(1u8..) {
                assert_eq!(data(&mut reader, b"k").unwrap(), [i], "{name}");
                reader.commit().unwrap();
            }
            drop((oldest, w));
            assert_eq!(db.stats().active_snapshots, 0, "{name}");
            db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

/// A scan has a grace period of its own. Its reads after it was revoked are refused, and so is a dump.
#[test]
fn a_scan_gives_way_after_its_own_grace_period_and_says_so() {
    if !can_run() {
        return;
    }
    for (name, db) in with_snapshots() {
        let versions = db.config().versions;
        let mut w = db.session().unwrap();
        grace(&db, 1, 0);
        let mut scans = Vec::new();
        for i in 0..versions {
            put(&mut w, b"k", &[i as u8]).unwrap();
            scans.push(db.snapshot().unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(matches!(put(&mut w, b"k", b"x"), Err(Error::NoVersion)), "{name}: scans do not give way");
        grace(&db, 0, 1);
        // Housekeeping passes the grace periods to the programs. Meanwhile, a writer that looks for the oldest
        // snapshot may find another one.
        db.verify().unwrap();
        put_eventually(&mut w, b"k", b"new");
        assert_eq!(db.stats().snapshots_revoked, 1, "{name}");
        for (scan, i) in scans.iter().zip(0u8..) {
            let mut seen = Vec::new();
            let done = scan.scan(0, scan.positions(), &mut |item| seen.push(item.value.to_vec()));
            match i {
                0 => assert!(matches!(done, Err(Error::SnapshotTooOld)), "{name}"),
                _ => assert_eq!((done.is_ok(), seen), (true, vec![vec![i]]), "{name}"),
            }
        }
        drop((scans, w));
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Readers and scans whose snapshots are revoked all the time see values of one moment, or an error.
#[test]
fn values_read_while_snapshots_are_revoked_are_of_the_snapshot() {
    if !can_run() {
        return;
    }
    const KEYS: u8 = 4;
    for (name, db) in with_snapshots() {
        let value = |number: u64| [number.to_le_bytes(); 40].concat();
        let mut w = db.session().unwrap();
        w.begin().unwrap();
        for key in 0..KEYS {
            put(&mut w, &[key], &value(0)).unwrap();
        }
        w.commit().unwrap();
        grace(&db, 1, 1);
        let (stop, too_old, complete) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let start = Instant::now();
        let check = |bytes: &[u8]| {
            let first = &bytes[..8];
            assert!(bytes.len() == 320 && bytes.chunks(8).all(|word| word == first), "{name}: torn value");
            u64::from_le_bytes(first.try_into().unwrap())
        };
        std::thread::scope(|scope| {
            // With the newest version and the one that is being written, the snapshots need more versions than there
            // are.
            for _ in 0..db.config().versions {
                scope.spawn(|| {
                    let mut s = db.session().unwrap();
                    while !stop.load(Relaxed) {
                        s.begin_read_only().unwrap();
                        let mut seen = None;
                        let done = (0..KEYS).cycle().take(40).try_for_each(|key| {
                            let number = check(&s.get(&[key])?.expect("the key exists").data);
                            assert_eq!(*seen.get_or_insert(number), number, "{name}: not one moment");
                            // The pause is long enough for several commits, so that the snapshots are of different
                            // moments.
                            std::thread::sleep(Duration::from_millis(1));
                            Ok(())
                        });
                        match done {
                            Ok(()) => drop(complete.fetch_add(1, Relaxed)),
                            Err(Error::SnapshotTooOld) => drop(too_old.fetch_add(1, Relaxed)),
                            Err(e) => panic!("{name}: {e}"),
                        }
                        s.rollback().unwrap();
                    }
                });
            }
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let snapshot = db.snapshot().unwrap();
                    std::thread::sleep(Duration::from_millis(3));
                    let mut seen = Vec::new();
                    match snapshot.scan(0, snapshot.positions(), &mut |item| seen.push(item.value.to_vec())) {
                        Ok(_) => {
                            assert_eq!(seen.len(), usize::from(KEYS), "{name}");
                            let numbers: Vec<_> = seen.iter().map(|value| check(value)).collect();
                            assert!(numbers.iter().all(|n| *n == numbers[0]), "{name}: not one moment");
                        }
                        Err(Error::SnapshotTooOld) => {}
                        Err(e) => panic!("{name}: {e}"),
                    }
                }
            });
            let mut number = 1;
            let enough = |number: u64| {
                let (old, whole) = (too_old.load(Relaxed), complete.load(Relaxed));
                (old >= 5 && number > 50) || (start.elapsed() > Duration::from_secs(60) && old + whole > 0)
            };
            let mut log = db.log_reader();
            while !enough(number) {
                if let Some(log) = &mut log {
                    log.drain(1 << 20, &mut |_| ());
                }
                w.begin().unwrap();
                let done = (0..KEYS).try_for_each(|key| put(&mut w, &[key], &value(number)));
                match done.and_then(|()| w.commit().map(drop)) {
                    Ok(()) => number += 1,
                    Err(e) => assert!(e.is_transient(), "{name}: {e}"),
                }
                w.rollback().unwrap();
            }
            stop.store(true, Relaxed);
        });
        assert!(too_old.load(Relaxed) > 0, "{name}: no snapshot was revoked while it was read");
        drop(w);
        assert_eq!(db.stats().active_snapshots, 0, "{name}");
        db.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
