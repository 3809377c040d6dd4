//! Procedures in continuation-passing and in direct style: the Voter application (paper 5.2).

mod common;

use bedplate_kerneldb::limits::SNAPSHOTS_MAX;
use bedplate_kerneldb::sdk::{self, Target};
use bedplate_kerneldb::{
    Application, Config, Database, EngineKind, Error, Procedure, Session, SetOptions, VOTER, VOTER_HASHMAP,
    VOTER_STEPS,
};
use common::{can_run, has_arenas, hash_maps, small};

const CONFLICT: u32 = 16;
/// A latch was not acquired within the time that a program waits: the thread that holds it has lost its processor.
const BUSY: u32 = 24;

fn key(table: u8, id: u64, bytes: usize) -> Vec<u8> {
    let word = u64::from(table) | id << 8;
    word.to_le_bytes()[..1 + bytes].to_vec()
}

/// A database with 12 contestants and 100 area codes, and both forms of the procedure.
fn voter_on(config: Config) -> (Database, Application, [Procedure; 2]) {
    let elf = match config.engine {
        EngineKind::Arena => VOTER,
        EngineKind::HashMap => VOTER_HASHMAP,
    };
    let db = Database::create(config).unwrap();
    let mut s = db.session().unwrap();
    for contestant in 1..=12 {
        s.set(&key(b'c', contestant, 4), b"somebody", SetOptions::default()).unwrap();
    }
    for area in 200..300 {
        s.set(&key(b'a', area, 4), b"PA", SetOptions::default()).unwrap();
    }
    let app = db.load_application(elf, 0).unwrap();
    for (index, step) in VOTER_STEPS.iter().enumerate() {
        app.set_program("voter_programs", index as u32, &app.procedure(step).unwrap()).unwrap();
    }
    let procedures = [app.procedure("voter_begin").unwrap(), app.procedure("voter_direct").unwrap()];
    (db, app, procedures)
}

fn voter() -> (Database, Application, [Procedure; 2]) {
    voter_on(small())
}

fn votes_of(s: &mut Session, phone: u64) -> u64 {
    s.get(&key(b'p', phone, 7)).unwrap().map_or(0, |v| u64::from_le_bytes(v.data.try_into().unwrap()))
}

#[test]
fn both_styles_validate_and_count() {
    if !can_run() {
        return;
    }
    let configs = [hash_maps(), small()]
        .into_iter()
        .filter(|config| config.engine != EngineKind::Arena || has_arenas());
    for config in configs {
        let (db, _app, procedures) = voter_on(config);
        let mut s = db.session().unwrap();
        for (i, vote) in procedures.iter().enumerate() {
            let phone = 2_120_000_000 + i as u64;
            assert_eq!(vote.run(&mut s, &[phone, 3, 2]).unwrap(), 0);
            assert_eq!(vote.run(&mut s, &[phone, 12, 2]).unwrap(), 0);
            assert_eq!(vote.run(&mut s, &[phone, 1, 2]).unwrap(), 3, "over the limit");
            assert_eq!(vote.run(&mut s, &[phone, 13, 9]).unwrap(), 2, "no such contestant");
            assert_eq!(vote.run(&mut s, &[9_120_000_000, 1, 2]).unwrap(), 1, "no such area code");
            assert!(!s.in_transaction());
            assert_eq!(votes_of(&mut s, phone), 2);
            let mut record = key(b'v', phone, 7);
            record.extend_from_slice(&2u64.to_le_bytes());
            assert_eq!(s.get(&record).unwrap().unwrap().data, 12u64.to_le_bytes());
        }
    }
}

#[test]
fn concurrent_votes_are_serializable() {
    if !can_run() {
        return;
    }
    let (db, _app, procedures) = voter();
    let counted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                let (db, vote) = (&db, &procedures[t as usize % 2]);
                scope.spawn(move || {
                    let mut s = db.session().unwrap();
                    let mut counted = 0;
                    for i in 0..5000u64 {
                        match vote.run(&mut s, &[2_120_000_000 + i % 7, 1 + i % 12, u64::MAX]).unwrap() {
                            0 => counted += 1,
                            status => assert!(matches!(status, CONFLICT | BUSY), "status {status}"),
                        }
                        assert!(!s.in_transaction());
                    }
                    counted
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    let mut s = db.session().unwrap();
    assert!(counted > 0);
    assert_eq!((0..7).map(|i| votes_of(&mut s, 2_120_000_000 + i)).sum::<u64>(), counted);
    drop(s);
    assert_eq!(db.verify().unwrap().keys, 12 + 100 + 7 + counted);
}

/// A database with the programs of `libraries/steps.bpf.c`.
fn steps(config: Config) -> (Database, Application) {
    let target = match config.engine {
        EngineKind::Arena => Target::Arena,
        EngineKind::HashMap => Target::HashMap,
    };
    let folder = tempfile::tempdir().unwrap();
    sdk::write_headers(folder.path()).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libraries/steps.bpf.c");
    let object = folder.path().join("steps.o");
    let compiled = sdk::compiler(target, folder.path(), source.as_ref(), &object).unwrap().status().unwrap();
    assert!(compiled.success());
    let db = Database::create(config).unwrap();
    let app = db.load_application(&std::fs::read(object).unwrap(), 0).unwrap();
    for (index, step) in ["cas_alone", "cas"].into_iter().enumerate() {
        app.set_program("steps", index as u32, &app.procedure(step).unwrap()).unwrap();
    }
    (db, app)
}

/// Every state of an operator has its continuation.
#[test]
fn operators_continue_in_the_state_they_end_in() {
    if !can_run() {
        return;
    }
    let configs =
        [hash_maps(), small()].into_iter().filter(|c| c.engine != EngineKind::Arena || has_arenas());
    for config in configs {
        let (db, app) = steps(Config { max_sessions: 2048, ..config });
        let mut s = db.session().unwrap();
        for (name, [done, not_found, mismatch]) in
            [("change_alone", [10, 11, 12]), ("change_begin", [21, 22, 23])]
        {
            let change = app.procedure(name).unwrap();
            assert_eq!(change.run(&mut s, &[1, 2]).unwrap(), not_found, "{name}");
            s.set(b"k", &1u64.to_le_bytes(), SetOptions::default()).unwrap();
            assert_eq!(change.run(&mut s, &[2, 3]).unwrap(), mismatch, "{name}");
            assert_eq!(change.run(&mut s, &[1, 3]).unwrap(), done, "{name}");
            assert_eq!(s.get(b"k").unwrap().unwrap().data, 3u64.to_le_bytes());
            assert!(!s.in_transaction());
            // The Error state: another transaction has the key.
            let mut other = db.session().unwrap();
            other.begin().unwrap();
            other.delete(b"k").unwrap();
            let error = if name == "change_alone" { 13 } else { 25 };
            assert_eq!(change.run(&mut s, &[3, 4]).unwrap(), error, "{name}");
            other.commit().unwrap();
        }
        let read = app.procedure("read_begin").unwrap();
        assert_eq!(read.run(&mut s, &[]).unwrap(), 31, "no such key");
        s.set(b"k", b"v", SetOptions::default()).unwrap();
        assert_eq!(read.run(&mut s, &[]).unwrap(), 30);
        // All snapshots are in use.
        let mut readers = Vec::new();
        let busy = loop {
            let mut reader = db.session().unwrap();
            match reader.begin_read_only() {
                Ok(()) => readers.push(reader),
                Err(error) => break error,
            }
        };
        assert!(matches!(busy, Error::Busy) && readers.len() == SNAPSHOTS_MAX, "{busy} {}", readers.len());
        assert_eq!(read.run(&mut s, &[]).unwrap(), 40);
        readers.pop();
        assert_eq!(read.run(&mut s, &[]).unwrap(), 30);
        // A transaction is open already.
        s.begin().unwrap();
        assert_eq!(read.run(&mut s, &[]).unwrap(), 41);
        s.rollback().unwrap();
    }
}

/// Programs are replaced while the procedure runs, and the data stays (3.2, 4.1).
#[test]
fn programs_are_replaced_in_use() {
    if !can_run() {
        return;
    }
    let (db, app, procedures) = voter();
    let counted = std::thread::scope(|scope| {
        let voting = scope.spawn(|| {
            let mut s = db.session().unwrap();
            (0..20_000u64)
                .filter(|i| procedures[0].run(&mut s, &[2_120_000_000, 1 + i % 12, u64::MAX]).unwrap() == 0)
                .count()
        });
        // A program tail calls through its own object's array, so objects stay loaded while one may be in
        // use.
        let mut loaded = Vec::new();
        let own: Vec<_> = VOTER_STEPS.iter().map(|step| app.procedure(step).unwrap()).collect();
        while !voting.is_finished() {
            let newer = db.load_application(VOTER, 0).unwrap();
            let steps: Vec<_> = VOTER_STEPS.iter().map(|step| newer.procedure(step).unwrap()).collect();
            for array_of in [&newer, &app] {
                for (index, step) in steps.iter().enumerate() {
                    array_of.set_program("voter_programs", index as u32, step).unwrap();
                }
            }
            for (index, step) in own.iter().enumerate() {
                app.set_program("voter_programs", index as u32, step).unwrap();
            }
            loaded.push(newer);
        }
        assert!(!loaded.is_empty());
        voting.join().unwrap()
    });
    let mut s = db.session().unwrap();
    assert_eq!(counted, 20_000);
    assert_eq!(votes_of(&mut s, 2_120_000_000), 20_000);
}
