//! Procedures of databases with several partitions: keys of all partitions, memory, limits, and what the kernel refuses there only.

mod common;

use bedplate_kerneldb::limits::CALL_VISITS_MAX;
use bedplate_kerneldb::{ACCOUNTS, Config, Database, Error, Reply, SetOptions, sdk};
use common::calls::{balance, compiled, partitioned, refused};
use common::{can_run, has_arenas, small};

/// The names of accounts in all partitions, and a database that has them with a balance of 1000 each.
fn accounts_in_partitions(database: &Database) -> Vec<Vec<u8>> {
    database.load_library("accounts", ACCOUNTS, false).unwrap();
    let mut session = database.session().unwrap();
    let names: Vec<Vec<u8>> = (0..24).map(|i| format!("account{i}").into_bytes()).collect();
    for name in &names {
        session.call("account_open", &[name, b"1000"]).unwrap();
    }
    names
}

/// The first argument chooses the partition in which a procedure runs; its other keys may be anywhere.
#[test]
fn a_procedure_uses_keys_of_all_partitions() {
    if !can_run() || !has_arenas() {
        return;
    }
    let database = Database::create(partitioned()).unwrap();
    let names = accounts_in_partitions(&database);
    let mut session = database.session().unwrap();
    for to in &names[1..] {
        session.call("account_transfer", &[&names[0], to, b"1"]).unwrap();
        assert_eq!(refused(session.call("account_transfer", &[&names[0], to, b"0"])).get(..4), Some("ERR "));
        // The other account is read, and written, before the refusal.
        let reason = refused(session.call("account_transfer", &[to, &names[0], b"9999"]));
        assert!(reason.starts_with("OVERDRAWN "), "{reason}");
        session.begin().unwrap();
        session.call("account_transfer", &[to, &names[0], b"1"]).unwrap();
        session.call("account_transfer", &[&names[0], to, b"2"]).unwrap();
        session.rollback().unwrap();
        session.begin().unwrap();
        session.call("account_transfer", &[to, &names[0], b"3"]).unwrap();
        session.commit().unwrap();
    }
    let balances: Vec<i64> = names.iter().map(|name| balance(&mut session, name)).collect();
    assert_eq!(balances[0], 1000 + 2 * 23);
    assert!(balances[1..].iter().all(|balance| *balance == 998), "{balances:?}");
    // Snapshots are of all partitions.
    let mut reader = database.session().unwrap();
    reader.begin_read_only().unwrap();
    session.call("account_transfer", &[&names[0], &names[1], b"5"]).unwrap();
    assert_eq!((balance(&mut reader, &names[0]), balance(&mut reader, &names[1])), (1046, 998));
    reader.commit().unwrap();
    assert!(!session.in_transaction());
    database.verify().unwrap();
}

#[test]
fn transfers_between_partitions_neither_make_nor_lose_money() {
    if !can_run() || !has_arenas() {
        return;
    }
    let database = Database::create(partitioned()).unwrap();
    let names = accounts_in_partitions(&database);
    let transfers = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let (database, names, transfers) = (&database, &names, &transfers);
            scope.spawn(move || {
                let mut session = database.session().unwrap();
                for i in 0..4000usize {
                    let (from, to) = ((i * 7 + thread) % 24, (i * 5 + 3 * thread + 1) % 24);
                    match session.call("account_transfer", &[&names[from], &names[to], b"3"]) {
                        Ok(_) => _ = transfers.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
                        Err(error) => {
                            assert!(error.is_transient() || matches!(error, Error::Refused(_)), "{error}")
                        }
                    }
                    assert!(!session.in_transaction());
                }
            });
        }
    });
    let mut session = database.session().unwrap();
    assert_eq!(names.iter().map(|name| balance(&mut session, name)).sum::<i64>(), 24_000);
    let transfers = transfers.into_inner();
    assert!(transfers > 1000, "{transfers}");
    database.verify().unwrap();
}

/// The kernel refuses such a library for several partitions only.
#[test]
fn a_step_in_a_function_that_is_not_inlined_needs_one_partition() {
    if !can_run() || !has_arenas() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    sdk::write_headers(folder.path()).unwrap();
    let source = folder.path().join("apart.bpf.c");
    let text = "#include <bedplate/procedure.h>\n\
                KDB_LICENSE(\"Dual MIT/GPL\");\n\
                static __noinline int read_key(struct kdb_proc *p) { return kdb_read(p); }\n\
                KDB_PROCEDURE(apart) { KDB_TRY(kdb_key_argument(p, 0)); KDB_TRY(read_key(p)); return kdb_reply_value(p); }\n";
    std::fs::write(&source, text).unwrap();
    let library = sdk::compile(folder.path(), &source, &[]).unwrap();
    let one = Database::create(small()).unwrap();
    one.load_library("apart", &library, false).unwrap();
    let mut session = one.session().unwrap();
    session.set(b"k", b"v", SetOptions::default()).unwrap();
    assert_eq!(session.call("apart", &[b"k"]).unwrap(), Reply::Value(b"v".to_vec()));
    let several = Database::create(partitioned()).unwrap();
    let error = several.load_library("apart", &library, false).unwrap_err().to_string();
    assert!(error.contains("rules of its own, which docs/procedures.md names"), "{error}");
    // Nothing of it is left.
    assert!(several.procedures().is_empty());
    several.load_library("test", compiled(), false).unwrap();
}

#[test]
fn one_visit_past_the_limit_ends_a_call() {
    if !can_run() || !has_arenas() {
        return;
    }
    let database = Database::create(partitioned()).unwrap();
    database.load_library("test", compiled(), false).unwrap();
    let mut session = database.session().unwrap();
    // Writes the key as often as it is told; the first argument chooses the partition.
    let mut write = |first: &[u8], times: usize| {
        session.call("often", &[first, b"key", times.to_string().as_bytes()]).map(drop)
    };
    write(b"key", 100).unwrap();
    let elsewhere = (0..50u8).map(|i| [i]).find(|first| write(first, CALL_VISITS_MAX + 1).is_err()).unwrap();
    for _ in 0..2 {
        write(&elsewhere, CALL_VISITS_MAX).unwrap();
        let error = write(&elsewhere, CALL_VISITS_MAX + 1).unwrap_err();
        assert!(matches!(error, Error::TooManyVisits) && !error.is_transient(), "{error}");
        assert!(error.to_string().contains("a procedure may have 32,"), "{error}");
    }
    assert_eq!(session.get(b"key").unwrap().unwrap().data, CALL_VISITS_MAX.to_string().as_bytes());
    database.verify().unwrap();
}

/// Memory is made available where the keys are, not where the call runs.
#[test]
fn calls_fill_the_memory_of_other_partitions() {
    if !can_run() || !has_arenas() {
        return;
    }
    let database = Database::create(Config { memory_bytes: 48 << 20, ..partitioned() }).unwrap();
    database.load_library("test", compiled(), false).unwrap();
    let mut session = database.session().unwrap();
    let value = [7; 1000];
    let mut written = 0u32;
    let error = loop {
        match session.call("write_second", &[b"home", &written.to_be_bytes(), &value]) {
            Ok(_) => written += 1,
            Err(error) if error.is_transient() => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoMemory), "{error}");
    assert!(written > 25_000, "{written} values of 1000 bytes");
    assert_eq!(u64::from(written), database.verify().unwrap().keys);
}

/// A transaction that stays open finds memory in all partitions: without it, the transaction would fail.
#[test]
fn calls_of_an_open_transaction_find_memory_in_other_partitions() {
    if !can_run() || !has_arenas() {
        return;
    }
    let database = Database::create(partitioned()).unwrap();
    database.load_library("test", compiled(), false).unwrap();
    let mut session = database.session().unwrap();
    let value = vec![7; 60_000];
    for transaction in 0..4u8 {
        session.begin().unwrap();
        for i in 0..100u8 {
            session.call("write_second", &[b"home", &[transaction, i], &value]).unwrap();
        }
        session.commit().unwrap();
    }
    assert_eq!(database.verify().unwrap().keys, 400);
}
