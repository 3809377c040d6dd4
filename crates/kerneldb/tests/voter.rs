//! The library of the Voter benchmark (`bpf/examples/voter_procedures.bpf.c`): its decisions and counts, with several threads and
//! across a restart.

mod common;

use std::collections::HashMap;

use bedplate_kerneldb::checkpoint::CheckpointConfig;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{
    Database, Durability, Error, Reply, Session, SetOptions, Store, StoreConfig, VOTER_PROCEDURES,
};
use common::{can_run, small};

const LIMIT: i64 = 2;
const CONTESTANTS: u64 = 12;

/// Loads the tables.
fn load(database: &Database) {
    let mut session = database.session().unwrap();
    let mut put = |key: String, value: &str| {
        session.set(key.as_bytes(), value.as_bytes(), SetOptions::default()).unwrap();
    };
    (1..=CONTESTANTS).for_each(|contestant| put(format!("contestant:{contestant}"), "somebody"));
    [("212", "NY"), ("415", "CA"), ("213", "CA")]
        .iter()
        .for_each(|(area, state)| put(format!("area:{area}"), state));
}

fn vote(session: &mut Session, phone: u64, contestant: u64) -> Result<Reply, Error> {
    let arguments = [phone.to_string(), contestant.to_string(), LIMIT.to_string()];
    session.call("voter_vote", &arguments.each_ref().map(|argument| argument.as_bytes()))
}

fn results(session: &mut Session, contestant: u64) -> i64 {
    match session.call("voter_results", &[contestant.to_string().as_bytes()]).unwrap() {
        Reply::Integer(votes) => votes,
        other => panic!("{other:?}"),
    }
}

fn text(session: &mut Session, key: &[u8]) -> Option<String> {
    session.get(key).unwrap().map(|value| String::from_utf8(value.data).unwrap())
}

#[test]
fn votes_are_validated_and_counted_by_contestant_and_state() {
    if !can_run() {
        return;
    }
    let database = Database::create(small()).unwrap();
    let names = database.load_library("voter_procedures", VOTER_PROCEDURES, false).unwrap();
    assert_eq!(names, ["voter_results", "voter_vote"]);
    load(&database);
    let mut session = database.session().unwrap();
    for (phone, contestant, outcome) in [
        (2_120_000_000, 3, 0),
        (2_120_000_000, 12, 0),
        (2_120_000_000, 3, 2),  // the third vote of this phone
        (2_120_000_001, 13, 1), // nobody
        (2_120_000_001, 0, 1),
        (2_120_000_000, 13, 1), // nobody counts before the limit
        (4_150_000_000, 3, 0),
        (2_139_999_999, 3, 0),
        (9_999_999_999, 3, 0), // an unknown area code
    ] {
        let reply = vote(&mut session, phone, contestant).unwrap();
        assert_eq!(reply, Reply::Integer(outcome), "{phone} {contestant}");
        assert!(!session.in_transaction());
    }
    let text = |session: &mut Session, key: &str| text(session, key.as_bytes());
    for (key, votes) in [("count:NY:3", "1"), ("count:NY:12", "1"), ("count:CA:3", "2"), ("count:XX:3", "1")]
    {
        assert_eq!(text(&mut session, key).as_deref(), Some(votes), "{key}");
    }
    assert_eq!(text(&mut session, "phone:2120000000").as_deref(), Some("2"));
    assert_eq!(text(&mut session, "phone:2120000001"), None, "a rejected vote leaves nothing");
    for (number, record) in [(1u64, "3 NY"), (2, "12 NY")] {
        let key = [&b"vote:2120000000"[..], &number.to_be_bytes()].concat();
        assert_eq!(session.get(&key).unwrap().unwrap().data, record.as_bytes());
    }
    let totals: Vec<i64> = (1..=13).map(|contestant| results(&mut session, contestant)).collect();
    assert_eq!((totals[2], totals[11], totals.iter().sum::<i64>()), (4, 1, 5));
    // Wrong arguments are refused, and have no effects.
    for arguments in [
        &[&b"2120000000"[..], b"3"][..],
        &[b"212000000", b"3", b"2"],
        &[b"21200000000", b"3", b"2"],
        &[b"-120000000", b"3", b"2"],
        &[b"212000000x", b"3", b"2"],
        &[b"2120000009", b"03", b"2"],
        &[b"2120000009", b"3", b"many"],
    ] {
        assert!(matches!(session.call("voter_vote", arguments), Err(Error::Refused(_))), "{arguments:?}");
    }
    // 12 contestants, 3 area codes, 4 counts, 4 phones, 5 votes.
    assert_eq!(database.verify().unwrap().keys, 12 + 3 + 4 + 4 + 5);
}

/// Outcomes of votes, as their threads count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    requests: u64,
    accepted: u64,
    rejected: u64,
}

/// Casts the votes of one thread: of 50 phones, so that most of them reach their limit. Votes that meet a conflict are cast
/// again.
fn cast(database: &Database, thread: u64, votes: u64) -> Tally {
    let mut session = database.session().unwrap();
    let mut tally = Tally::default();
    for i in 0..votes {
        let phone = 2_120_000_000 + i.wrapping_mul(2_654_435_761) % 50;
        let contestant = 1 + (i + thread * 5) % (CONTESTANTS + 1);
        tally.requests += 1;
        let outcome = loop {
            match vote(&mut session, phone, contestant) {
                Ok(Reply::Integer(outcome)) => break outcome,
                Err(error) if error.is_transient() => std::thread::yield_now(),
                other => panic!("{other:?}"),
            }
        };
        match outcome {
            0 => tally.accepted += 1,
            1 | 2 => tally.rejected += 1,
            other => panic!("{other}"),
        }
    }
    tally
}

/// Casts votes in two threads.
fn cast_in_threads(database: &Database, votes: u64) -> Tally {
    let tallies = std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || cast(database, thread, votes)));
        threads.map(|thread| thread.join().unwrap())
    });
    tallies.iter().fold(Tally::default(), |sum, tally| Tally {
        requests: sum.requests + tally.requests,
        accepted: sum.accepted + tally.accepted,
        rejected: sum.rejected + tally.rejected,
    })
}

/// The votes in the database are those that were accepted, and no phone has too many.
fn check(database: &Database, tally: Tally) {
    assert_eq!(tally.accepted + tally.rejected, tally.requests);
    let (mut phones, mut records) = (HashMap::new(), 0);
    let snapshot = database.snapshot().unwrap();
    let add = &mut |item: bedplate_kerneldb::SnapshotItem<'_>| {
        if let Some(phone) = item.key.strip_prefix(b"phone:") {
            let votes: i64 = std::str::from_utf8(item.value).unwrap().parse().unwrap();
            phones.insert(phone.to_vec(), votes);
        }
        records += u64::from(item.key.starts_with(b"vote:"));
    };
    snapshot.scan(0, snapshot.positions(), add).unwrap();
    assert!(phones.values().all(|votes| (1..=LIMIT).contains(votes)), "{phones:?}");
    assert_eq!(phones.values().sum::<i64>() as u64, tally.accepted);
    assert_eq!(records, tally.accepted);
    let mut session = database.session().unwrap();
    let totals = (1..=CONTESTANTS).map(|contestant| results(&mut session, contestant)).sum::<i64>();
    assert_eq!(totals as u64, tally.accepted);
}

#[test]
fn threads_keep_the_invariants_and_a_restart_keeps_the_votes() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let config = StoreConfig {
            database: small(),
            wal: Some(WalConfig { durability: Durability::Async, ..WalConfig::default() }),
            checkpoint: CheckpointConfig { interval: None, log_bytes: None, ..CheckpointConfig::default() },
            ..StoreConfig::default()
        };
        Store::open(config, folder.path(), &mut |_| ()).unwrap().0
    };
    let store = open();
    store.load_library("voter_procedures", VOTER_PROCEDURES, false).unwrap();
    load(store.database());
    // So few votes that not all phones have reached their limit.
    let before = cast_in_threads(store.database(), 40);
    check(store.database(), before);
    store.close(false).unwrap();
    drop(store);

    let store = open();
    check(store.database(), before);
    let more = cast_in_threads(store.database(), 2000);
    assert!(more.accepted > 0 && more.rejected > 2000, "{more:?}");
    let all = Tally {
        requests: before.requests + more.requests,
        accepted: before.accepted + more.accepted,
        rejected: before.rejected + more.rejected,
    };
    assert_eq!(all.accepted, 50 * LIMIT as u64, "each phone has cast all of its votes");
    check(store.database(), all);
}
