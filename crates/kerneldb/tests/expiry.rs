//! Keys are deleted after their expiry without being accessed.

mod common;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bedplate_kerneldb::limits::EXPIRE_EFFORT_MAX;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Database, Durability, Error, SetOptions, Store, StoreConfig, Written};
use common::{can_run, has_arenas, small, variants};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn expires_in(ms: u64) -> SetOptions {
    SetOptions { expire_at_ms: Some(now_ms() + ms), ..SetOptions::default() }
}

/// Waits up to a minute for a condition.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn expired_keys_leave_without_being_touched() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        let mut session = db.session().unwrap();
        for i in 0..300 {
            session.set(format!("gone{i}").as_bytes(), b"value", expires_in(30)).unwrap();
            session.set(format!("stay{i}").as_bytes(), b"value", expires_in(3_600_000)).unwrap();
            session.set(format!("ever{i}").as_bytes(), b"value", SetOptions::default()).unwrap();
        }
        eventually(&format!("{name}: the keys are deleted"), || db.len() == 600);
        eventually(&format!("{name}: their entries are collected"), || db.stats().entries == 600);
        assert_eq!(db.stats().expiring_keys, 300, "{name}");
        assert_eq!(db.stats().expired, 300, "{name}");
        assert_eq!(db.expiry_stats().deleted, 300, "{name}");
        eventually(&format!("{name}: the time to live is known"), || {
            (3_000_000..=3_600_000).contains(&db.expiry_stats().average_ttl_ms)
        });
        assert!(session.get(b"stay1").unwrap().is_some() && session.get(b"ever1").unwrap().is_some());
        // Overwriting, persisting and deleting keep the count right.
        session.set(b"stay1", b"v", SetOptions::default()).unwrap();
        session.delete(b"stay2").unwrap();
        session.begin().unwrap();
        session.set(b"stay3", b"v", SetOptions { keep_ttl: true, ..SetOptions::default() }).unwrap();
        session.set(b"ever1", b"v", expires_in(3_600_000)).unwrap();
        session.commit().unwrap();
        assert_eq!(db.stats().expiring_keys, 299, "{name}");
        drop(session);
        db.verify().unwrap();
    }
}

/// The operator decides by the newest version, whatever the thread has read earlier.
#[test]
fn delete_expired_leaves_live_keys_alone() {
    if !can_run() {
        return;
    }
    for (name, db) in variants() {
        db.set_expire_effort(0).unwrap();
        let mut session = db.session().unwrap();
        session.set(b"live", b"v", expires_in(3_600_000)).unwrap();
        session.set(b"ever", b"v", SetOptions::default()).unwrap();
        session.set(b"expired", b"v", SetOptions { expire_at_ms: Some(1), ..SetOptions::default() }).unwrap();
        for key in [&b"live"[..], b"ever", b"never"] {
            assert_eq!(session.delete_expired(key).unwrap(), Written::ConditionFailed, "{name}");
        }
        assert_eq!(db.len(), 3, "{name}");
        let entries = db.stats().entries;
        assert!(matches!(session.delete_expired(b"expired").unwrap(), Written::Done { .. }), "{name}");
        assert_eq!(session.delete_expired(b"expired").unwrap(), Written::ConditionFailed, "{name}");
        assert_eq!((db.len(), db.stats().expired), (2, 1), "{name}");
        assert!(db.stats().entries <= entries, "{name}: a key that does not exist gets no entry");
        session.begin().unwrap();
        assert!(matches!(session.delete_expired(b"live"), Err(Error::State)), "{name}");
        session.rollback().unwrap();
        assert_eq!(db.stats().deletes, 0, "{name}: expiry is no DELETE of a client");
    }
}

#[test]
fn a_key_in_use_is_deleted_afterwards() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(small()).unwrap();
    let (mut owner, mut other) = (db.session().unwrap(), db.session().unwrap());
    db.set_expire_effort(0).unwrap();
    other.set(b"used", b"v", expires_in(20)).unwrap();
    other.set(b"free", b"v", expires_in(20)).unwrap();
    owner.begin().unwrap();
    // The transaction locks the key, whether it is expired or not.
    owner.get(b"used").unwrap();
    db.set_expire_effort(1).unwrap();
    eventually("the other key is deleted", || db.len() == 1);
    owner.rollback().unwrap();
    eventually("the key is deleted when the transaction is over", || db.is_empty());
}

/// Deleting takes no memory: a database that is full of expired keys becomes usable by itself.
#[test]
fn expired_keys_leave_a_full_database() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(Config { memory_bytes: 16 << 20, ..small() }).unwrap();
    db.set_expire_effort(0).unwrap();
    let mut session = db.session().unwrap();
    let value = [7; 1000];
    let expire_at = now_ms() + 100;
    let mut keys = 0u32;
    loop {
        let options = SetOptions { expire_at_ms: Some(expire_at), ..SetOptions::default() };
        match session.set(&keys.to_le_bytes(), &value, options) {
            Ok(_) => keys += 1,
            Err(Error::NoMemory) => break,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(keys > 1000);
    eventually("the keys are expired", || now_ms() > expire_at);
    assert_eq!(db.len(), u64::from(keys));
    db.set_expire_effort(EXPIRE_EFFORT_MAX).unwrap();
    eventually("all are deleted", || db.is_empty());
    for i in 0..keys / 2 {
        session.set(&i.to_le_bytes(), &value, SetOptions::default()).unwrap();
    }
}

#[test]
fn checkpoints_and_recovery_leave_expired_keys_out() {
    if !can_run() || !has_arenas() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config = StoreConfig {
            database: small(),
            wal: Some(WalConfig { durability: Durability::Async, ..WalConfig::default() }),
            ..StoreConfig::default()
        };
        Store::open(config, dir.path(), &mut |_| {}).unwrap()
    };
    let (store, _) = open();
    let db = store.database();
    db.set_expire_effort(0).unwrap();
    let mut session = db.session().unwrap();
    let soon = SetOptions { expire_at_ms: Some(now_ms() + 50), ..SetOptions::default() };
    for i in 0..100 {
        session.set(format!("gone{i}").as_bytes(), b"v", soon).unwrap();
        session.set(format!("stay{i}").as_bytes(), b"v", expires_in(3_600_000)).unwrap();
    }
    eventually("the keys are expired", || session.get(b"gone99").unwrap().is_none());
    assert_eq!(db.len(), 200);
    assert_eq!(store.checkpoint().unwrap().entries, 100, "the checkpoint has live keys only");
    // An older live value must not come back when the newer one is expired by the time of the recovery.
    let late = SetOptions { expire_at_ms: Some(now_ms() + 50), ..SetOptions::default() };
    for i in 0..50 {
        session.set(format!("stay{i}").as_bytes(), b"w", late).unwrap();
        session.set(format!("log{i}").as_bytes(), b"w", late).unwrap();
    }
    eventually("these are expired", || now_ms() > late.expire_at_ms.unwrap());
    drop(session);
    store.close(false).unwrap();
    drop(store);

    let (store, report) = open();
    let db = store.database();
    assert_eq!(report.checkpoint_entries, 100);
    eventually("nothing of the expired keys is left", || db.len() == 50);
    let mut session = db.session().unwrap();
    assert!(session.get(b"stay0").unwrap().is_none() && session.get(b"log0").unwrap().is_none());
    assert_eq!(session.get(b"stay99").unwrap().unwrap().data, b"v");
    drop(session);
    let clock = db.clock();
    store.close(false).unwrap();
    drop(store);
    let (store, report) = open();
    assert_eq!((report.recovered_ts, store.database().len()), (clock, 50), "the log has the deletions");
}

/// The thread's processor time stays within its share while nothing is expired.
#[test]
fn looking_for_expired_keys_takes_its_share_of_a_processor() {
    if !can_run() || !has_arenas() {
        return;
    }
    let db = Database::create(Config { memory_bytes: 128 << 20, ..small() }).unwrap();
    let mut session = db.session().unwrap();
    for i in 0..50_000u32 {
        session.set(&i.to_le_bytes(), b"value", expires_in(3_600_000)).unwrap();
    }
    let (started, before) = (Instant::now(), db.expiry_stats());
    std::thread::sleep(Duration::from_secs(2));
    let after = db.expiry_stats();
    let share = (after.cpu_time - before.cpu_time).as_secs_f64() / started.elapsed().as_secs_f64();
    assert!(share < 0.05, "{share}");
    assert!(after.average_ttl_ms > 0 && after.deleted == 0);
    let nothing = Database::create(small()).unwrap();
    nothing.session().unwrap().set(b"k", b"v", SetOptions::default()).unwrap();
    assert_eq!(nothing.expiry_stats().average_ttl_ms, 0);
    assert!(matches!(db.set_expire_effort(EXPIRE_EFFORT_MAX + 1), Err(Error::Config(_))));
}

/// Every session of the configuration is for users, because the thread has one of its own.
#[test]
fn the_thread_takes_no_session_of_a_user() {
    if !can_run() {
        return;
    }
    for config in [small(), common::hash_maps()] {
        if config.engine == bedplate_kerneldb::EngineKind::Arena && !has_arenas() {
            continue;
        }
        let db = Database::create(Config { max_sessions: 2, ..config }).unwrap();
        let (mut a, _b) = (db.session().unwrap(), db.session().unwrap());
        assert!(matches!(db.session(), Err(Error::NoSession(2))));
        a.set(b"k", b"v", expires_in(20)).unwrap();
        eventually("the key is deleted", || db.is_empty());
    }
}
