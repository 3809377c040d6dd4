//! Opening, closing, checkpointing and moving a database.

use std::time::Duration;

use bedplate_kerneldb::checkpoint::{CheckpointConfig, verify};
use bedplate_kerneldb::store::{dump, load, restore, verify_data_dir};
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{
    Config, Database, Durability, EngineKind, Error, Image, SetOptions, Store, StoreConfig,
};

use super::super::{LONG, config, contents, open, set};

/// Writes keys of all kinds: overwritten, deleted, expiring, large, empty, in transactions, rolled
/// back.
fn fill(database: &Database, round: u8) {
    let mut session = database.session().unwrap();
    for i in 0..300u32 {
        set(&mut session, format!("key {i}").as_bytes(), &vec![round; i as usize]).unwrap();
    }
    for i in (0..300).step_by(7) {
        session.delete(format!("key {i}").as_bytes()).unwrap();
    }
    set(&mut session, &[round; 255], &vec![round; 65536]).unwrap();
    set(&mut session, b"empty", b"").unwrap();
    let options = SetOptions { expire_at_ms: Some(4_000_000_000_000), ..SetOptions::default() };
    session.set(b"expires", &[round], options).unwrap();
    session.begin().unwrap();
    for i in 0..100u32 {
        session.set(format!("txn {i}").as_bytes(), &[round, i as u8], SetOptions::default()).unwrap();
    }
    session.set(b"txn 5", b"twice", SetOptions::default()).unwrap();
    session.delete(b"txn 6").unwrap();
    assert!(session.commit().unwrap() > 0);
    session.begin().unwrap();
    session.set(b"never", b"was", SetOptions::default()).unwrap();
    session.rollback().unwrap();
}

#[test]
fn what_was_committed_is_there_after_a_restart() {
    for partitions in [1, 3] {
        let temp = tempfile::tempdir().unwrap();
        let mut config = config(Durability::Async);
        config.database.partitions = partitions;
        let (store, report) = open(config.clone(), temp.path());
        assert_eq!(report.recovered_ts, 0);
        fill(store.database(), 1);
        let (before, clock) = (contents(store.database()), store.database().clock());
        store.close(false).unwrap();
        drop(store);

        let (store, report) = open(config.clone(), temp.path());
        assert_eq!((report.recovered_ts, report.checkpoint_entries), (clock, 0));
        assert_eq!(contents(store.database()), before);
        assert_eq!(store.database().clock(), clock);
        assert_eq!(store.database().len(), before.len() as u64);
        // The store goes on from there, twice, the second time without closing.
        fill(store.database(), 2);
        let before = contents(store.database());
        drop(store);
        let (store, _) = open(config, temp.path());
        assert_eq!(contents(store.database()), before);
    }
}

#[test]
fn checkpoint_and_log_together_are_the_database() {
    let temp = tempfile::tempdir().unwrap();
    let mut config = config(Durability::Async);
    config.wal.as_mut().unwrap().segment_bytes = 64 << 10;
    let (store, _) = open(config.clone(), temp.path());
    for round in 1..=4 {
        fill(store.database(), round);
        let info = store.checkpoint().unwrap();
        assert_eq!(info.ts, store.database().clock());
        assert_eq!(info.entries, store.database().len());
        assert_eq!(verify(&info.path, &mut |_| ()).unwrap().entries, info.entries);
        assert_eq!(store.checkpoint_status().last.unwrap(), info);
    }
    let status = store.checkpoint_status();
    assert_eq!((status.completed, status.failed), (4, 0));
    let checkpoints = std::fs::read_dir(temp.path().join("checkpoint")).unwrap().count();
    assert_eq!(checkpoints, 2);
    let segments = store.wal().unwrap().stats().segments;
    fill(store.database(), 5);
    let before = contents(store.database());
    drop(store);
    let report = verify_data_dir(temp.path(), &mut |_| ()).unwrap();
    assert!(report.checkpoint_entries > 300);
    let (store, report) = open(config.clone(), temp.path());
    assert_eq!(contents(store.database()), before);
    assert!(report.txns > 0 && report.txns < 600, "{report:?}");
    // Four rounds of segments were written; the log of about two is kept.
    assert!(segments < 12, "{segments}");
    drop(store);

    // Without the newest checkpoint the previous one suffices, because the log reaches back to it.
    let newest = report.checkpoint.unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    assert!(matches!(verify_data_dir(temp.path(), &mut |_| ()), Err(Error::Corrupt(_))));
    let (store, report) = open(config, temp.path());
    assert_eq!(report.checkpoints_skipped.len(), 1);
    assert_eq!(contents(store.database()), before);
}

#[test]
fn without_a_log_checkpoints_are_what_there_is() {
    let temp = tempfile::tempdir().unwrap();
    let config = StoreConfig { wal: None, ..config(Durability::Off) };
    let (store, _) = open(config.clone(), temp.path());
    assert_eq!(store.durability(), Durability::Off);
    assert!(store.wal().is_none());
    assert!(store.wait_durable(1000, Duration::ZERO).unwrap());
    fill(store.database(), 1);
    let before = contents(store.database());
    store.close(true).unwrap();
    drop(store);
    let (store, _) = open(config, temp.path());
    assert_eq!(contents(store.database()), before);
}

/// A rebuilt store has the same data with another configuration, also on the other engine. One that cannot be rebuilt stays as it is.
#[test]
fn a_rebuild_keeps_the_data() {
    let temp = tempfile::tempdir().unwrap();
    let (mut store, _) = open(config(Durability::Async), temp.path());
    fill(store.database(), 1);
    let mut before = contents(store.database());
    let with = |change: fn(&mut StoreConfig)| {
        let mut config = config(Durability::Async);
        change(&mut config);
        config
    };
    let changes: [fn(&mut StoreConfig); 5] = [
        |config| config.database.versions = 16,
        |config| config.database.engine = EngineKind::HashMap,
        |config| config.wal = None,
        |config| config.database.partitions = 2,
        |config| config.database.memory_bytes = 96 << 20,
    ];
    for (round, change) in (2..).zip(changes) {
        let config = with(change);
        store = store.rebuild(config.clone(), &mut |_| ()).unwrap();
        assert_eq!(contents(store.database()), before);
        assert_eq!(store.database().config().versions, config.database.versions);
        assert_eq!(
            (store.wal().is_some(), store.config().wal.is_some()),
            (config.wal.is_some(), config.wal.is_some())
        );
        fill(store.database(), round);
        before = contents(store.database());
        let refused = store.rebuild(with(|config| config.database.versions = 65), &mut |_| ()).unwrap_err();
        assert!(refused.error.to_string().contains("versions must be 1 to 64"), "{refused:?}");
        // This is found when the old database is gone.
        let ring = with(|config| config.database.wal_ring_bytes = 1 << 30);
        let failed = refused.store.unwrap().rebuild(ring, &mut |_| ()).unwrap_err();
        store = *failed.store.unwrap();
        assert_eq!(contents(store.database()), before);
    }
    drop(store);
    assert_eq!(contents(open(config(Durability::Async), temp.path()).0.database()), before);
}

/// The same without a data directory. There can be no log.
#[test]
fn a_rebuild_in_memory_keeps_the_data() {
    let off = || StoreConfig { wal: None, ..config(Durability::Off) };
    let mut store = Store::in_memory(off().database).unwrap();
    assert!(store.checkpoint().is_err() && store.data_dir().is_none());
    let before = contents(store.database());
    store = store.rebuild(off(), &mut |_| ()).unwrap();
    assert_eq!(contents(store.database()), before, "an empty one");
    let changes: [fn(&mut StoreConfig); 4] = [
        |config| config.database.versions = 16,
        |config| config.database.engine = EngineKind::HashMap,
        |config| config.database.partitions = 2,
        |config| config.database.memory_bytes = 96 << 20,
    ];
    for (round, change) in (1..).zip(changes) {
        fill(store.database(), round);
        set(&mut store.database().session().unwrap(), b"a key of more than sixteen bytes", b"v").unwrap();
        let (before, clock) = (contents(store.database()), store.database().clock());
        let mut config = off();
        change(&mut config);
        store = store.rebuild(config.clone(), &mut |_| ()).unwrap();
        assert_eq!(contents(store.database()), before);
        assert!(store.database().clock() >= clock);
        assert_eq!(store.database().config().versions, config.database.versions);
        assert_eq!(store.database().config().engine, config.database.engine);
        // It is as it was: without a directory and without a log.
        assert!(store.data_dir().is_none() && store.wal().is_none() && store.checkpoint().is_err());
        let refused = store.rebuild(StoreConfig { wal: Some(WalConfig::default()), ..off() }, &mut |_| ());
        let refused = refused.unwrap_err();
        assert!(refused.error.to_string().contains("a log needs a data directory"), "{refused:?}");
        // It is found when the old database is gone that a key is too long.
        let mut short = off();
        short.database = Config { engine: EngineKind::HashMap, key_bytes: 16, ..short.database };
        let failed = refused.store.unwrap().rebuild(short, &mut |_| ()).unwrap_err();
        assert!(matches!(failed.error, Error::TooLarge(_)), "{failed:?}");
        store = *failed.store.unwrap();
        assert_eq!(contents(store.database()), before);
    }
    // As from one process to the next.
    let before = contents(store.database());
    let image = Image::from_file(store.image().unwrap().to_file().unwrap()).unwrap();
    drop(store);
    let logged = StoreConfig { wal: Some(WalConfig::default()), ..off() };
    assert!(matches!(Store::open_image(logged, &image, &mut |_| ()), Err(Error::Config(_))));
    for _ in 0..2 {
        let store = Store::open_image(off(), &image, &mut |_| ()).unwrap();
        assert_eq!(contents(store.database()), before);
    }
    let wrong = tempfile::tempfile().unwrap();
    assert!(matches!(Image::from_file(wrong), Err(Error::Corrupt(_))));
}

#[test]
fn checkpoints_come_by_themselves() {
    let temp = tempfile::tempdir().unwrap();
    let mut config = config(Durability::Async);
    config.checkpoint =
        CheckpointConfig { interval: Some(Duration::from_secs(1)), ..CheckpointConfig::default() };
    let (store, _) = open(config, temp.path());
    fill(store.database(), 1);
    let started = std::time::Instant::now();
    while store.checkpoint_status().completed == 0 {
        assert!(started.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(20));
    }
    // No further checkpoint is taken while nothing changes.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(store.checkpoint_status().completed <= 2);
}

#[test]
fn checkpoints_come_by_the_size_of_the_log() {
    let temp = tempfile::tempdir().unwrap();
    let mut config = config(Durability::Async);
    config.checkpoint.log_bytes = Some(1 << 20);
    let (store, _) = open(config, temp.path());
    let mut session = store.database().session().unwrap();
    set(&mut session, b"small", b"").unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(store.checkpoint_status().completed, 0);
    for i in 0..40u32 {
        set(&mut session, &i.to_le_bytes(), &[7; 50_000]).unwrap();
    }
    let started = std::time::Instant::now();
    while store.checkpoint_status().completed == 0 {
        assert!(started.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(store.checkpoint_status().last.unwrap().entries > 20);
}

#[test]
fn an_open_store_verifies_itself() {
    let temp = tempfile::tempdir().unwrap();
    let (store, _) = open(config(Durability::Async), temp.path());
    fill(store.database(), 1);
    let info = store.checkpoint().unwrap();
    fill(store.database(), 2);
    assert!(store.wait_durable(store.database().clock(), LONG).unwrap());
    let report = store.verify(&mut |_| ()).unwrap();
    assert_eq!(report.recovered_ts, store.database().clock());
    let mut bytes = std::fs::read(&info.path).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&info.path, bytes).unwrap();
    assert!(matches!(store.verify(&mut |_| ()), Err(Error::Corrupt(_))));
}

#[test]
fn one_process_per_directory() {
    let temp = tempfile::tempdir().unwrap();
    let (store, _) = open(config(Durability::Async), temp.path());
    let error = Store::open(config(Durability::Async), temp.path(), &mut |_| ()).err().unwrap();
    assert!(error.to_string().contains("uses it"), "{error}");
    assert!(verify_data_dir(temp.path(), &mut |_| ()).is_err());
    drop(store);
    verify_data_dir(temp.path(), &mut |_| ()).unwrap();
}

#[test]
fn dump_load_and_restore_move_everything() {
    let temp = tempfile::tempdir().unwrap();
    let source = Store::in_memory(config(Durability::Off).database).unwrap();
    assert!(source.checkpoint().is_err() && source.request_checkpoint().is_err());
    fill(source.database(), 3);
    let mut file = Vec::new();
    let mut last = Default::default();
    let info = dump(source.database(), &mut file, &mut |p| last = p).unwrap();
    assert_eq!((info.entries, info.bytes), (source.database().len(), file.len() as u64));
    assert_eq!(last.done, last.total);

    let target = Database::create(Config { memory_bytes: 64 << 20, ..Config::default() }).unwrap();
    load(&target, &mut &file[..], &mut |_| ()).unwrap();
    assert_eq!(contents(&target), contents(source.database()));
    // Half a dump is an error.
    let half = &file[..file.len() / 2];
    assert!(matches!(load(&target, &mut &half[..], &mut |_| ()), Err(Error::Corrupt(_))));

    let path = temp.path().join("dump.kdb");
    std::fs::write(&path, &file).unwrap();
    let data = temp.path().join("data");
    let restored = restore(&path, &data, &mut |_| ()).unwrap();
    assert_eq!(restored.entries, info.entries);
    assert!(restore(&path, &data, &mut |_| ()).is_err());
    let (store, report) = open(config(Durability::Sync), &data);
    assert_eq!(report.checkpoint_entries, info.entries);
    assert_eq!(contents(store.database()), contents(source.database()));
}

#[test]
fn after_close_writes_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let (store, _) = open(config(Durability::Sync), temp.path());
    let mut session = store.database().session().unwrap();
    set(&mut session, b"a", b"1").unwrap();
    store.close(true).unwrap();
    store.close(true).unwrap();
    assert!(matches!(session.set(b"a", b"2", SetOptions::default()), Err(Error::WalFailed)));
    assert_eq!(session.get(b"a").unwrap().unwrap().data, b"1");
}

/// A host's signal handlers are for its own threads.
#[test]
fn threads_of_a_store_take_no_signals() {
    let temp = tempfile::tempdir().unwrap();
    let (store, _) = open(config(Durability::Async), temp.path());
    store.checkpoint().unwrap();
    // The threads delete expired keys, housekeep, drain and flush the log, and take checkpoints.
    let (threads, signals) = bedplate_threads::deliverable(5, |name| name.starts_with("kdb-")).unwrap();
    assert!(threads >= 5, "{threads}");
    assert_eq!(signals, 0);
}
