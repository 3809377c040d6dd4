//! Checkpoints and logs of a database that is being written. Money moves between accounts, and its sum
//! is the same in every image.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb::store::restore;
use bedplate_kerneldb::{Database, Durability, Result, Session, SetOptions};

use super::super::{LONG, config, contents, open, set};

const ACCOUNTS: u64 = 200;
const START: i64 = 1000;

/// Ends the writers when dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn key(account: u64) -> Vec<u8> {
    format!("account {account}").into_bytes()
}

fn transfer(session: &mut Session, from: u64, to: u64, amount: i64) -> Result<()> {
    session.begin()?;
    for (account, change) in [(from, -amount), (to, amount)] {
        let value = session.get(&key(account))?.expect("accounts are never closed").data;
        let balance = i64::from_le_bytes(value.try_into().unwrap()) + change;
        session.set(&key(account), &balance.to_le_bytes(), SetOptions::default())?;
    }
    session.commit().map(drop)
}

fn check_sum(database: &Database) {
    let all = contents(database);
    assert_eq!(all.len() as u64, ACCOUNTS);
    let sum: i64 = all.iter().map(|(_, v, _)| i64::from_le_bytes(v[..].try_into().unwrap())).sum();
    assert_eq!(sum, ACCOUNTS as i64 * START);
}

#[test]
fn every_checkpoint_is_consistent() {
    for partitions in [1, 2] {
        let temp = tempfile::tempdir().unwrap();
        let mut config = config(Durability::Async);
        config.database.partitions = partitions;
        config.database.versions = 8;
        let data = temp.path().join("data");
        let (store, _) = open(config.clone(), &data);
        let mut session = store.database().session().unwrap();
        for account in 0..ACCOUNTS {
            set(&mut session, &key(account), &START.to_le_bytes()).unwrap();
        }
        let stop = AtomicBool::new(false);
        let done = AtomicU64::new(0);
        let mut images = Vec::new();
        let errors = Mutex::new(BTreeMap::<String, u64>::new());
        std::thread::scope(|scope| {
            // A failed assertion must not leave the writers running.
            let _stop = Stop(&stop);
            for worker in 0..3u64 {
                let (store, stop, done, errors) = (&store, &stop, &done, &errors);
                scope.spawn(move || {
                    let mut session = store.database().session().unwrap();
                    let mut random = worker + 1;
                    while !stop.load(Ordering::Relaxed) {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let (from, to) = ((random >> 33) % ACCOUNTS, (random >> 45) % ACCOUNTS);
                        if from == to {
                            continue;
                        }
                        match transfer(&mut session, from, to, (random >> 20) as i64 & 7) {
                            Ok(()) => drop(done.fetch_add(1, Ordering::Relaxed)),
                            Err(e) => {
                                *errors.lock().unwrap().entry(e.to_string()).or_default() += 1;
                                session.rollback().unwrap();
                                // The log's writer needs the processors, too.
                                std::thread::sleep(Duration::from_millis(1));
                            }
                        }
                    }
                });
            }
            let mut last = 0;
            for i in 0..5 {
                // The machine may be busy, and memory is slow the first time, so wait for progress,
                // not for time.
                let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
                while done.load(Ordering::Relaxed) < before + 50 {
                    assert!(started.elapsed() < LONG, "writers are stuck: {:?}", errors.lock().unwrap());
                    std::thread::sleep(Duration::from_millis(1));
                }
                let info = store.checkpoint().unwrap();
                assert!(info.ts >= last + 50);
                last = info.ts;
                let copy = temp.path().join(format!("image {i}"));
                std::fs::copy(&info.path, &copy).unwrap();
                images.push((copy, info));
            }
        });
        assert!(done.load(Ordering::Relaxed) > 100);
        let end = contents(store.database());
        check_sum(store.database());
        drop(store);
        for (i, (image, info)) in images.iter().enumerate() {
            let restored = temp.path().join(format!("restored {i}"));
            restore(image, &restored, &mut |_| ()).unwrap();
            let (store, report) = open(config.clone(), &restored);
            assert_eq!((report.recovered_ts, report.checkpoint_entries), (info.ts, info.entries));
            check_sum(store.database());
        }
        // The newest checkpoint and the log after it are the end state.
        let (store, report) = open(config.clone(), &data);
        assert_eq!(contents(store.database()), end, "{report:?}");
    }
}
