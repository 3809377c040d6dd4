//! Recovery of many changes, which several threads apply.

use bedplate_kerneldb::{Durability, Error, Result, Session, SetOptions};

use super::super::{config, contents, open, set};

/// Changes a key three times in one transaction.
fn rewrite(session: &mut Session, key: &[u8], last: &[u8]) -> Result<()> {
    session.begin()?;
    session.set(key, b"first", SetOptions::default())?;
    session.delete(key)?;
    session.set(key, last, SetOptions::default())?;
    session.commit().map(drop)
}

/// Four threads write, rewrite and delete their own keys; most keys change many times, so the order of their
/// changes matters.
#[test]
fn every_key_has_its_last_change_after_a_restart() {
    for partitions in [1, 4] {
        let temp = tempfile::tempdir().unwrap();
        let mut config = config(Durability::Async);
        config.database.memory_bytes = 128 << 20;
        config.database.partitions = partitions;
        let (store, _) = open(config.clone(), temp.path());
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let database = store.database();
                scope.spawn(move || {
                    let mut session = database.session().unwrap();
                    for i in 0..12_000u32 {
                        let key = format!("key {thread} {}", i.wrapping_mul(2_654_435_761) % 700);
                        let length = (i % 19) * (i % 23);
                        match i % 11 {
                            0 => drop(session.delete(key.as_bytes())),
                            1 => {
                                // The log ring may be full. A transaction that is rolled back has changed
                                // nothing.
                                if rewrite(&mut session, key.as_bytes(), &i.to_le_bytes()).is_err() {
                                    session.rollback().unwrap();
                                }
                            }
                            _ => drop(
                                set(&mut session, key.as_bytes(), &vec![i as u8; length as usize]).unwrap(),
                            ),
                        }
                    }
                });
            }
        });
        let (before, clock) = (contents(store.database()), store.database().clock());
        assert!(before.len() > 1000);
        drop(store);
        // Recover from the log, then from a checkpoint.
        for from_checkpoint in [false, true] {
            let (store, report) = open(config.clone(), temp.path());
            assert_eq!((report.recovered_ts, report.checkpoint.is_some()), (clock, from_checkpoint));
            assert_eq!(contents(store.database()), before);
            assert_eq!(store.database().verify().unwrap().keys, before.len() as u64);
            store.checkpoint().unwrap();
        }
    }
}

#[test]
fn a_database_that_does_not_fit_is_an_error_and_stays_as_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let big = config(Durability::Async);
    let (store, _) = open(big.clone(), temp.path());
    let mut session = store.database().session().unwrap();
    // The keys take more than the limit and the reserve of recovery.
    for i in 0..900u32 {
        set(&mut session, &i.to_le_bytes(), &vec![i as u8; 60_000]).unwrap();
    }
    drop(session);
    let before = contents(store.database());
    drop(store);
    let mut small = big.clone();
    small.database.memory_bytes = 32 << 20;
    let refused = bedplate_kerneldb::Store::open(small, temp.path(), &mut |_| ());
    assert!(matches!(refused, Err(Error::NoMemory)), "{:?}", refused.err());
    let (store, _) = open(big, temp.path());
    assert_eq!(contents(store.database()), before);
}
