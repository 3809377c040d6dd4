//! Procedures that are called by name: effects, refusals, transactions, limits, and libraries that come and go.

mod common;

use bedplate_kerneldb::limits::{CALL_ARGUMENTS_MAX, CALL_BYTES_MAX, LIBRARY_BYTES_MAX, LIBRARY_NAME_MAX};
use bedplate_kerneldb::sdk;
use bedplate_kerneldb::{ACCOUNTS, Config, Database, EngineKind, Error, Reply, SetOptions, VOTER};
use common::calls::{balance, compiled, partitioned, refused};
use common::{can_run, has_arenas, hash_maps, small};

/// Configurations of both engines, and of one of them with several partitions, if this kernel has them.
fn engines() -> Vec<Config> {
    match (can_run(), has_arenas()) {
        (false, _) => Vec::new(),
        (true, false) => vec![hash_maps()],
        (true, true) => vec![small(), partitioned(), hash_maps()],
    }
}

/// Databases of both engines with the procedures on accounts.
fn accounts() -> Vec<Database> {
    let database = |config| {
        let database = Database::create(config).unwrap();
        let names = database.load_library("accounts", ACCOUNTS, false).unwrap();
        assert_eq!(names, ["account_balance", "account_open", "account_transfer"]);
        database
    };
    engines().into_iter().map(database).collect()
}

#[test]
fn a_call_has_all_of_its_effects_or_none() {
    for database in accounts() {
        let mut session = database.session().unwrap();
        assert_eq!(session.call("account_open", &[b"ann", b"100"]).unwrap(), Reply::Ok);
        assert_eq!(session.call("account_open", &[b"bob", b"-5"]).unwrap(), Reply::Ok);
        assert_eq!(
            refused(session.call("account_open", &[b"ann", b"7"])),
            "EXISTS the account exists already"
        );
        assert_eq!(session.call("account_transfer", &[b"ann", b"bob", b"30"]).unwrap(), Reply::Integer(70));
        assert_eq!((balance(&mut session, b"ann"), balance(&mut session, b"bob")), (70, 25));
        assert_eq!(session.call("account_balance", &[b"eve"]).unwrap(), Reply::Nil);
        // The first account is written before the second one is found to be missing.
        let reason = refused(session.call("account_transfer", &[b"ann", b"eve", b"1"]));
        assert!(reason.starts_with("NOACCOUNT "), "{reason}");
        let reason = refused(session.call("account_transfer", &[b"ann", b"bob", b"71"]));
        assert!(reason.starts_with("OVERDRAWN "), "{reason}");
        for arguments in [&[&b"ann"[..], b"bob"][..], &[b"ann", b"bob", b"1", b"2"], &[]] {
            let reason = refused(session.call("account_transfer", arguments));
            assert!(reason.contains("number of arguments"), "{reason}");
        }
        assert_eq!(balance(&mut session, b"ann"), 70);
        assert!(!session.in_transaction());
        database.verify().unwrap();
    }
}

/// The parser and the formatter of `procedure.h` against Rust's.
#[test]
fn numbers_are_those_that_redis_accepts() {
    for database in accounts() {
        let mut session = database.session().unwrap();
        let numbers =
            [0, 1, 9, 10, 99, 100, 12345, i64::MAX - 1, i64::MAX, -1, -9, -10, i64::MIN + 1, i64::MIN];
        for (i, number) in numbers.into_iter().enumerate() {
            let name = format!("n{i}");
            session.call("account_open", &[name.as_bytes(), number.to_string().as_bytes()]).unwrap();
            assert_eq!(balance(&mut session, name.as_bytes()), number);
        }
        let wrong = [
            "",
            "-",
            "+1",
            " 1",
            "1 ",
            "01",
            "-0",
            "-01",
            "1.0",
            "0x1",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "99999999999999999999",
            "100000000000000000000000",
        ];
        for text in wrong {
            let reason = refused(session.call("account_open", &[b"x", text.as_bytes()]));
            assert!(reason.contains("not an integer"), "{text}: {reason}");
        }
        // The formatter.
        session.call("account_open", &[b"rich", b"1000000000000"]).unwrap();
        session.call("account_open", &[b"poor", b"-1000000000000"]).unwrap();
        let mut left = 1_000_000_000_000i64;
        for amount in [1, 9, 90, 900, 99_000, 900_000, 99_000_000, 999_900_000_000] {
            let arguments: [&[u8]; 3] = [b"rich", b"poor", &amount.to_string().into_bytes()];
            left -= amount;
            // The poor account stays below zero.
            assert!(refused(session.call("account_transfer", &arguments)).starts_with("OVERDRAWN"));
            session.set(b"poor", b"0", SetOptions::default()).unwrap();
            assert_eq!(session.call("account_transfer", &arguments).unwrap(), Reply::Integer(left));
            assert_eq!((balance(&mut session, b"rich"), balance(&mut session, b"poor")), (left, amount));
            session.set(b"poor", b"-1000000000000", SetOptions::default()).unwrap();
        }
    }
}

#[test]
fn a_call_is_a_part_of_the_open_transaction() {
    for database in accounts() {
        let mut session = database.session().unwrap();
        session.begin().unwrap();
        session.call("account_open", &[b"ann", b"10"]).unwrap();
        session.call("account_open", &[b"bob", b"10"]).unwrap();
        session.call("account_transfer", &[b"ann", b"bob", b"4"]).unwrap();
        assert_eq!(balance(&mut session, b"ann"), 6);
        let other = database.session().unwrap().set(b"ann", b"1", SetOptions::default());
        assert!(matches!(other, Err(Error::Conflict)), "{other:?}");
        // A refusal before the first write leaves the transaction open.
        assert!(refused(session.call("account_transfer", &[b"ann", b"bob", b"70"])).starts_with("OVERDRAWN"));
        assert!(matches!(session.call("nothing", &[]), Err(Error::NoProcedure(_))));
        assert!(!session.is_failed());
        session.commit().unwrap();
        assert_eq!(balance(&mut session, b"bob"), 14);
        // A refusal after a write fails it.
        session.begin().unwrap();
        session.set(b"other", b"1", SetOptions::default()).unwrap();
        assert!(refused(session.call("account_transfer", &[b"ann", b"eve", b"1"])).starts_with("NOACCOUNT"));
        assert!(session.is_failed());
        assert!(matches!(session.call("account_balance", &[b"ann"]), Err(Error::Aborted)));
        session.rollback().unwrap();
        assert_eq!(session.get(b"other").unwrap(), None);
        assert_eq!(balance(&mut session, b"ann"), 6);
        // Too many arguments are an error before the procedure runs.
        session.begin().unwrap();
        let many = vec![&b"1"[..]; CALL_ARGUMENTS_MAX + 1];
        assert!(matches!(session.call("account_balance", &many), Err(Error::TooLarge(_))));
        assert!(!session.is_failed());
        session.commit().unwrap();
        // Snapshots: a procedure that reads works on them, and one that writes does not.
        session.begin_read_only().unwrap();
        let mut writer = database.session().unwrap();
        writer.call("account_transfer", &[b"ann", b"bob", b"1"]).unwrap();
        assert_eq!(balance(&mut session, b"ann"), 6);
        assert!(session.call("account_transfer", &[b"ann", b"bob", b"1"]).is_err());
        session.rollback().unwrap();
        assert_eq!(balance(&mut session, b"ann"), 5);
    }
}

#[test]
fn transfers_on_all_threads_keep_the_sum() {
    for database in accounts() {
        let name = |i: u64| format!("account{i}").into_bytes();
        let mut session = database.session().unwrap();
        for i in 0..8 {
            session.call("account_open", &[&name(i), b"1000"]).unwrap();
        }
        let done: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|t| {
                    let database = &database;
                    scope.spawn(move || {
                        let mut session = database.session().unwrap();
                        (0..3000u64)
                            .filter(|i| {
                                let (from, to) = ((t + i) % 8, (t * 3 + i * 5 + 1) % 8);
                                let moved = session.call("account_transfer", &[&name(from), &name(to), b"3"]);
                                match moved {
                                    Ok(_) => true,
                                    Err(Error::Conflict | Error::Busy | Error::Refused(_)) => false,
                                    Err(error) => panic!("{error}"),
                                }
                            })
                            .count() as u64
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(done > 0);
        assert_eq!((0..8).map(|i| balance(&mut session, &name(i))).sum::<i64>(), 8000);
        database.verify().unwrap();
    }
}

#[test]
fn one_past_each_limit_is_an_error() {
    for database in accounts() {
        let mut session = database.session().unwrap();
        let many = vec![&b"1"[..]; CALL_ARGUMENTS_MAX];
        assert!(refused(session.call("account_balance", &many)).contains("number of arguments"));
        let more = vec![&b"1"[..]; CALL_ARGUMENTS_MAX + 1];
        assert!(matches!(session.call("account_balance", &more), Err(Error::TooLarge(_))));
        let long = vec![b'k'; CALL_BYTES_MAX];
        assert!(matches!(session.call("account_balance", &[&long]), Err(Error::TooLarge(_))), "as a key");
        assert!(matches!(session.call("account_balance", &[&long, b"1"]), Err(Error::TooLarge(_))));
        assert_eq!(session.call("account_balance", &[&long[..255]]).unwrap(), Reply::Nil);
        assert!(matches!(session.call("account_balance", &[&long[..256]]), Err(Error::TooLarge(_))));
        assert!(matches!(session.call("account_balance", &[b""]), Err(Error::TooLarge(_))));
        assert!(!session.in_transaction());
        for name in ["", "a/b", "..", &"x".repeat(LIBRARY_NAME_MAX + 1)] {
            assert!(matches!(database.load_library(name, ACCOUNTS, false), Err(Error::Library(_))), "{name}");
        }
        let huge = vec![0; LIBRARY_BYTES_MAX + 1];
        let error = database.load_library("huge", &huge, false).unwrap_err().to_string();
        assert!(error.contains("16 MiB"), "{error}");
    }
}

#[test]
fn libraries_come_and_go_while_calls_run() {
    for database in accounts() {
        let mut session = database.session().unwrap();
        session.call("account_open", &[b"ann", b"10"]).unwrap();
        let message = |result: Result<Vec<String>, Error>| result.unwrap_err().to_string();
        assert!(message(database.load_library("accounts", ACCOUNTS, false)).contains("loaded already"));
        assert!(message(database.load_library("other", ACCOUNTS, false)).contains("in the library accounts"));
        // Both files are no more than an object for the arena engine.
        let reasons = match (database.config().engine, database.config().partitions) {
            (EngineKind::Arena, 1) => ["no procedure", "cannot open"],
            _ => ["for the arena engine"; 2],
        };
        assert!(message(database.load_library("voter", VOTER, false)).contains(reasons[0]));
        assert!(message(database.load_library("text", b"no object", true)).contains(reasons[1]));
        assert_eq!(database.procedures().len(), 3);
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| {
                let mut session = database.session().unwrap();
                (0..5000).for_each(|_| assert_eq!(balance(&mut session, b"ann"), 10));
            });
            while !calling.is_finished() {
                database.load_library("accounts", ACCOUNTS, true).unwrap();
            }
            calling.join().unwrap();
        });
        assert!(
            database.unload_library("accounts").unwrap() && !database.unload_library("accounts").unwrap()
        );
        assert!(matches!(session.call("account_balance", &[b"ann"]), Err(Error::NoProcedure(_))));
        database.load_library("accounts", ACCOUNTS, false).unwrap();
        assert_eq!(balance(&mut session, b"ann"), 10);
    }
}

/// Calls get memory as writes of a session do.
#[test]
fn calls_fill_the_memory_up_to_its_limit() {
    for config in engines() {
        let memory_bytes = u64::from(config.partitions).max(2) << 24;
        let database = Database::create(Config { memory_bytes, ..config }).unwrap();
        database.load_library("accounts", ACCOUNTS, false).unwrap();
        let mut session = database.session().unwrap();
        let mut opened = 0u32;
        let error = loop {
            match session.call("account_open", &[&opened.to_be_bytes(), b"1"]) {
                Ok(_) => opened += 1,
                Err(error) if error.is_transient() => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NoMemory), "{error}");
        // The tables of the hash maps have a fixed size.
        let least = if database.config().engine == EngineKind::Arena { 50_000 } else { 20_000 };
        assert!(opened > least, "{opened} accounts of about 100 bytes each");
        assert_eq!(u64::from(opened), database.verify().unwrap().keys);
    }
}

#[test]
fn a_procedure_that_only_reads_cannot_write() {
    for database in accounts() {
        database.load_library("test", compiled(), false).unwrap();
        let mut session = database.session().unwrap();
        session.set(b"k", b"v", SetOptions::default()).unwrap();
        for name in ["liar_write", "liar_delete"] {
            assert!(matches!(session.call(name, &[b"k"]), Err(Error::State)));
            session.begin().unwrap();
            assert!(matches!(session.call(name, &[b"k"]), Err(Error::State)));
            assert!(!session.is_failed(), "it has no effects");
            session.commit().unwrap();
        }
        assert_eq!(session.get(b"k").unwrap().unwrap().data, b"v");
    }
}

#[test]
fn a_call_does_not_see_what_earlier_calls_have_left() {
    for database in accounts() {
        database.load_library("test", compiled(), false).unwrap();
        let mut session = database.session().unwrap();
        session.call("account_open", &[b"secret", b"1234567"]).unwrap();
        assert_eq!(balance(&mut session, b"secret"), 1_234_567);
        assert_eq!(session.call("empty_value", &[]).unwrap(), Reply::Value(Vec::new()));
        assert_eq!(session.call("missing_value", &[]).unwrap(), Reply::Value(Vec::new()));
        assert!(matches!(session.call("empty_key", &[]), Err(Error::TooLarge(_))));
        for call in 1..=3 {
            assert_eq!(session.call("count", &[]).unwrap(), Reply::Integer(call));
        }
        // The next session gets the index of the last one.
        drop(session);
        let mut session = database.session().unwrap();
        assert_eq!(session.call("count", &[]).unwrap(), Reply::Integer(1));
    }
}

#[test]
fn an_expiry_is_a_unix_time() {
    for database in accounts() {
        database.load_library("test", compiled(), false).unwrap();
        let mut session = database.session().unwrap();
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
        let Reply::Integer(began) = session.call("until", &[b"k", b"v"]).unwrap() else { panic!() };
        // The database's clock may differ by the time between two looks at the system's.
        assert!((now - 1000..now + 60_000).contains(&began), "{began} {now}");
        let expiry = session.get(b"k").unwrap().unwrap().expire_at_ms;
        assert_eq!(expiry, Some(began as u64 + 60_000));
    }
}

#[test]
fn limits_on_transactions_hold_for_calls() {
    // A call on several partitions meets the limit on visits first.
    for database in accounts().into_iter().filter(|database| database.config().partitions == 1) {
        database.load_library("test", compiled(), false).unwrap();
        let mut session = database.session().unwrap();
        session.call("many", &[b"v", b"128"]).unwrap();
        assert!(matches!(session.call("many", &[b"v", b"129"]), Err(Error::TooManyLocks)));
        assert_eq!(database.stats().keys, 128);
        session.begin().unwrap();
        assert!(matches!(session.call("many", &[b"v", b"129"]), Err(Error::TooManyLocks)));
        assert!(session.is_failed());
        session.rollback().unwrap();
    }
}

/// A call that cannot be in the log ring as a whole is an error, and one that can waits for the log's reader.
#[test]
fn a_call_that_exceeds_the_log_ring_is_an_error() {
    for config in engines() {
        let each = 256 << 10;
        let ring = match config.engine {
            EngineKind::Arena => each,
            // All processors share one.
            EngineKind::HashMap => each * libbpf_rs::num_possible_cpus().unwrap().next_power_of_two() as u32,
        };
        if ring > 4 << 20 {
            println!("skipped on hash maps: the ring of so many processors has room for every call");
            continue;
        }
        let database = Database::create(Config { wal_ring_bytes: each, ..config }).unwrap();
        database.load_library("test", compiled(), false).unwrap();
        let mut session = database.session().unwrap();
        let value = vec![7; 60_000];
        let full = |result: Result<Reply, Error>| match result {
            Err(Error::WalFull) => false,
            Err(Error::CallTooLarge(bytes)) => bytes == ring,
            other => panic!("{other:?}"),
        };
        // Nobody reads the ring.
        assert!(full(session.call("many", &[&value, b"128"])));
        assert!(!session.in_transaction());
        let mut small_calls = 0;
        let error = loop {
            match session.call("many", &[&value, b"1"]) {
                Ok(_) => small_calls += 1,
                error => break error,
            }
        };
        assert!(!full(error), "one write fits when there is room, after {small_calls}");
    }
}

#[test]
fn an_object_of_another_version_is_refused() {
    for database in accounts() {
        let object = compiled();
        database.load_library("test", object, false).unwrap();
        let folder = tempfile::tempdir().unwrap();
        sdk::write_headers(folder.path()).unwrap();
        let header = std::fs::read_to_string(folder.path().join("include/bedplate/abi.h")).unwrap();
        let number = header.split("0x").nth(1).unwrap().split("ull").next().unwrap();
        let number = u64::from_str_radix(number, 16).unwrap().to_le_bytes();
        let places = object.windows(8).enumerate().filter(|(_, window)| *window == number);
        let places: Vec<_> = places.map(|(at, _)| at).collect();
        assert_eq!(places.len(), 3, "one for each kind of database");
        let mut other = object.to_vec();
        places.iter().for_each(|at| other[*at] ^= 1);
        let error = database.load_library("test", &other, true).unwrap_err().to_string();
        assert_eq!(error, "test was compiled with the headers of another version: compile it again");
        assert_eq!(database.procedures().len(), 3 + 10);
    }
}
