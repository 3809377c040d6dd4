//! Millions of random operations of all kinds, several sessions interleaved, against a model. At the end
//! the test checks every invariant of the memory, the log, and the contents.
//!
//! `BEDPLATE_TEST_OPERATIONS` sets the number of operations per configuration (60,000),
//! `BEDPLATE_TEST_CONFIGURATIONS` selects configurations (by a part of the name), `BEDPLATE_TEST_SEED`
//! repeats a run.

mod common;
mod random {
    pub mod model;
}

use std::collections::{BTreeMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use bedplate_kerneldb::{
    Config, Database, EngineKind, Error, LogReader, LogTxn, Op, Session, SetCondition, SetOptions, Written,
};
use common::{can_run, hash_maps, small};
use random::model::{Bytes, LONGEST, Model, Seen, State, Val};

const KEYS: usize = 300;
const SESSIONS: usize = 6;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|n| n.parse().ok())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Different keys of all lengths.
fn key(number: usize) -> Vec<u8> {
    const LENGTHS: [usize; 15] = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 254, 255];
    let mut key: Vec<u8> = (0..LENGTHS[number % LENGTHS.len()]).map(|i| (i * 7) as u8).collect();
    key[0] = number as u8;
    if let Some(second) = key.get_mut(1) {
        *second = (number >> 8) as u8;
    }
    key
}

/// Mostly short lengths, and the borders of size classes.
fn length(random: &mut Random) -> usize {
    match random.below(100) {
        0..60 => random.below(65) as usize,
        60..75 => 1000 + random.below(48) as usize,
        75..92 => {
            let power = 1usize << (4 + random.below(9));
            (power + random.below(4) as usize * power / 4 + random.below(19) as usize).saturating_sub(17)
        }
        92..98 => random.below(4096) as usize,
        98 => LONGEST - random.below(20) as usize,
        _ => random.below(LONGEST as u64 + 1) as usize,
    }
}

fn pick_value(random: &mut Random) -> Val {
    let expire_at_ms = match random.below(20) {
        // Few keys expire soon: no session uses such a key until it has certainly expired.
        0 if random.below(100) == 0 => Some(now_ms() + random.below(30)),
        0 => Some(now_ms().saturating_sub(10_000)),
        1 => Some(now_ms() + (1 << 40)),
        _ => None,
    };
    Val { start: random.below(LONGEST as u64) as u32, len: length(random) as u32, expire_at_ms }
}

/// The operation on a key.
#[derive(Clone, Copy, Debug)]
enum Action {
    Get,
    Set(Val, SetCondition, /* keep the expiry */ bool),
    Delete,
    /// The operation of the active expiry; outside of transactions.
    DeleteExpired,
    /// The second field: whether the expected value is right.
    Cas(Val, bool),
}

fn pick_action(random: &mut Random) -> Action {
    let value = pick_value(random);
    match random.below(20) {
        0..7 => Action::Get,
        7..13 => Action::Set(value, SetCondition::Always, random.below(8) == 0),
        13 => Action::Set(value, SetCondition::IfAbsent, false),
        14 => Action::Set(value, SetCondition::IfPresent, random.below(2) == 0),
        15 | 16 => Action::Delete,
        17 => Action::DeleteExpired,
        n => Action::Cas(value, n == 18),
    }
}

/// Counts of errors, by whether the model knew a reason.
#[derive(Debug, Default)]
struct Counts {
    done: u64,
    conflicts: u64,
    no_version: u64,
    no_memory: u64,
    busy: u64,
    commits: u64,
}

type Expected = VecDeque<(u64, BTreeMap<usize, Option<Val>>)>;

struct Test<'a> {
    name: String,
    db: &'a Database,
    sessions: Vec<Session>,
    log: Option<LogReader<'a>>,
    /// The transactions that the log must contain.
    expected: Expected,
    numbers: BTreeMap<Vec<u8>, usize>,
    keys: Vec<Vec<u8>>,
    bytes: Bytes,
    model: Model,
    last_ts: u64,
    counts: Counts,
    single_version: bool,
    ordered: bool,
}

impl<'a> Test<'a> {
    fn new(name: String, db: &'a Database) -> Test<'a> {
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        Test {
            sessions: (0..SESSIONS).map(|_| db.session().unwrap()).collect(),
            log: db.log_reader(),
            expected: VecDeque::new(),
            numbers: keys.iter().cloned().zip(0..).collect(),
            keys,
            bytes: Bytes::new(),
            model: Model::new(KEYS, SESSIONS),
            last_ts: 0,
            counts: Counts::default(),
            single_version: db.config().versions == 1,
            ordered: db.config().versions > 1 || db.config().wal_ring_bytes > 0,
            db,
            name,
        }
    }

    fn step(&mut self, random: &mut Random) {
        let session = random.below(SESSIONS as u64) as usize;
        match &self.model.sessions[session] {
            State::Idle => match random.below(10) {
                0 => {
                    self.sessions[session].begin().unwrap();
                    self.model.sessions[session] = State::Writing(BTreeMap::new());
                }
                1 => {
                    self.sessions[session].begin_read_only().unwrap();
                    // With one version, locks take the place of a snapshot.
                    let until = if self.single_version { u64::MAX } else { self.model.clock };
                    self.model.sessions[session] = State::Reading(until);
                }
                _ => self.action(random, session),
            },
            State::Writing(_) => match random.below(12) {
                0 => self.commit(session),
                1 if random.below(2) == 0 => self.roll_back(session),
                _ => self.action(random, session),
            },
            State::Reading(_) => match random.below(12) {
                0 => self.commit(session),
                1 if random.below(2) == 0 => self.roll_back(session),
                _ => self.action(random, session),
            },
        }
    }

    fn roll_back(&mut self, session: usize) {
        self.sessions[session].rollback().unwrap();
        self.model.end(session, None);
    }

    fn commit(&mut self, session: usize) {
        let wrote = matches!(&self.model.sessions[session], State::Writing(own) if !own.is_empty());
        // The commit has no reason to fail.
        let ts = self.sessions[session].commit().unwrap_or_else(|e| panic!("{}: {e}", self.name));
        assert_eq!(ts != 0, wrote, "{}", self.name);
        let written = self.model.end(session, Some(ts));
        if wrote {
            self.committed(ts, written);
        }
    }

    fn committed(&mut self, ts: u64, written: BTreeMap<usize, Option<Val>>) {
        self.counts.commits += 1;
        if self.ordered {
            assert_eq!(ts, self.last_ts + 1, "{}: commit timestamps are dense", self.name);
            self.last_ts = ts;
        }
        if self.log.is_some() {
            self.expected.push_back((ts, written));
        }
    }

    fn action(&mut self, random: &mut Random, session: usize) {
        let key = random.below(KEYS as u64) as usize;
        let mut action = pick_action(random);
        let reading = matches!(self.model.sessions[session], State::Reading(_));
        let transaction = self.model.sessions[session] != State::Idle;
        let seen = self.model.read(session, key, now_ms());
        if seen == Seen::Unsure {
            return;
        }
        if reading && !matches!(action, Action::Get) {
            // Once in a while the session tries to write: the write must be refused, and change nothing.
            if random.below(50) == 0 {
                let refused = self.sessions[session].delete(&self.keys[key]);
                assert!(matches!(refused, Err(Error::State)), "{}: {refused:?}", self.name);
                return;
            }
            action = Action::Get;
        }
        if transaction && matches!(action, Action::DeleteExpired) {
            action = Action::Delete;
        }
        let found = match seen {
            Seen::Present(value, _) => Some(value),
            _ => None,
        };
        // The locks that the operator takes and meets.
        let exclusive = !matches!(action, Action::Get);
        let locking = transaction && (!reading || self.single_version);
        let blocked = self.model.locked(session, key, exclusive);
        let must_fail = blocked && (exclusive || locking);
        let what = format!("{}: {action:?} of key {key} by {session}, {seen:?}", self.name);
        let outcome = self.run(session, key, action, found, seen, &what);
        match outcome {
            Ok(change) => {
                assert!(!must_fail, "{what}: another session has it locked");
                self.counts.done += 1;
                if locking {
                    self.model.lock(session, key, exclusive);
                }
                if let Some((value, ts)) = change {
                    self.model.write(session, key, value, ts);
                    if !transaction {
                        self.committed(ts, BTreeMap::from([(key, value)]));
                    }
                }
            }
            Err(e) => {
                match e {
                    Error::Conflict if blocked => self.counts.conflicts += 1,
                    Error::NoVersion if self.model.snapshots() > 0 => self.counts.no_version += 1,
                    Error::NoMemory => self.counts.no_memory += 1,
                    // The collector holds a key for a moment; the transaction stays open.
                    Error::Busy => {
                        self.counts.busy += 1;
                        assert_eq!(self.sessions[session].in_transaction(), transaction, "{what}");
                        assert!(!self.sessions[session].is_failed(), "{what}");
                        return;
                    }
                    e => panic!("{what}: {e}"),
                }
                if transaction {
                    assert!(!reading || self.single_version, "{what}: {e}");
                    self.roll_back(session);
                }
            }
        }
    }

    /// Runs one operator and checks its result; returns its write, and the commit's timestamp.
    fn run(
        &mut self,
        session: usize,
        key: usize,
        action: Action,
        found: Option<Val>,
        seen: Seen,
        what: &str,
    ) -> Result<Option<(Option<Val>, u64)>, Error> {
        let expired = seen == Seen::Absent && self.model.has_value(key);
        let (session, bytes) = (&mut self.sessions[session], &self.bytes);
        let name = &self.keys[key];
        let (written, expect, value) = match action {
            Action::Get => {
                let got = session.get(name)?;
                let same = match (&got, seen) {
                    (None, Seen::Absent) => true,
                    (Some(got), Seen::Present(value, ts)) => {
                        got.data == bytes.of(value)
                            && got.expire_at_ms == value.expire_at_ms
                            && (got.commit_ts == ts || !self.ordered)
                    }
                    _ => false,
                };
                assert!(same, "{what}: {:?}", got.map(|v| (v.data.len(), v.expire_at_ms, v.commit_ts)));
                return Ok(None);
            }
            Action::Set(value, condition, keep_ttl) => {
                let options = SetOptions { expire_at_ms: value.expire_at_ms, keep_ttl, condition };
                let written = session.set(name, bytes.of(value), options)?;
                let expect = match condition {
                    SetCondition::Always => true,
                    SetCondition::IfAbsent => found.is_none(),
                    SetCondition::IfPresent => found.is_some(),
                };
                let kept = found.and_then(|value| value.expire_at_ms);
                let expire_at_ms = if keep_ttl { kept } else { value.expire_at_ms };
                (written, expect, Some(Val { expire_at_ms, ..value }))
            }
            Action::Delete => (session.delete(name)?, found.is_some(), None),
            Action::DeleteExpired => (session.delete_expired(name)?, expired, None),
            Action::Cas(new, right) => {
                let mut expected = found.map_or(b"nothing".to_vec(), |value| bytes.of(value).to_vec());
                if !right {
                    match expected.last_mut() {
                        Some(last) => *last ^= 1,
                        None => expected.push(0),
                    }
                }
                let written = session.compare_and_set(name, &expected, bytes.of(new))?;
                let expire_at_ms = found.and_then(|value| value.expire_at_ms);
                (written, right && found.is_some(), Some(Val { expire_at_ms, ..new }))
            }
        };
        match written {
            Written::Done { commit_ts } => {
                assert!(expect, "{what}: done");
                Ok(Some((value, commit_ts)))
            }
            Written::ConditionFailed => {
                assert!(!expect, "{what}: not done");
                Ok(None)
            }
        }
    }

    /// Checks that the log contains the committed transactions, in order.
    fn check_log(&mut self) {
        let Test { log: Some(log), expected, numbers, bytes, name, .. } = self else { return };
        log.drain(usize::MAX, &mut |txn: LogTxn| {
            let (ts, written) = expected.pop_front().unwrap_or_else(|| panic!("{name}: {txn:?}"));
            assert_eq!(txn.commit_ts, ts, "{name}");
            let logged: BTreeMap<usize, &Op> = txn.ops.iter().map(|op| (numbers[op.key()], op)).collect();
            assert!(logged.keys().eq(written.keys()), "{name}: {txn:?}, {written:?}");
            for (key, value) in written {
                let same = match (logged[&key], value) {
                    (Op::Delete { .. }, None) => true,
                    (Op::Put { value: logged, expire_at_ms, .. }, Some(value)) => {
                        logged == bytes.of(value) && *expire_at_ms == value.expire_at_ms
                    }
                    _ => false,
                };
                assert!(same, "{name}: key {key} of commit {ts}: {:?}, {value:?}", logged[&key]);
            }
        });
    }

    /// At the end: no transaction is open, the memory is in order, and the contents are those of the
    /// model.
    fn finish(mut self) -> Counts {
        (0..SESSIONS).for_each(|session| self.roll_back(session));
        self.check_log();
        assert!(
            self.expected.is_empty(),
            "{}: {} commits are not in the log",
            self.name,
            self.expected.len()
        );
        self.db.verify().unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let snapshot = self.db.snapshot().unwrap();
        let mut found = BTreeMap::new();
        snapshot
            .scan(0, snapshot.positions(), &mut |item| {
                let twice = found.insert(self.numbers[item.key], (item.value.to_vec(), item.expire_at_ms));
                assert!(twice.is_none(), "{}", self.name);
            })
            .unwrap();
        for key in 0..KEYS {
            match self.model.read(0, key, now_ms()) {
                Seen::Present(value, _) => {
                    let expected = (self.bytes.of(value).to_vec(), value.expire_at_ms);
                    assert_eq!(found.get(&key), Some(&expected), "{}: key {key}", self.name);
                }
                // The key may not have been collected, but it has expired.
                Seen::Absent => {
                    let expiry = found.get(&key).map(|item| item.1);
                    assert!(expiry.is_none_or(|at| at.is_some()), "{}: key {key}, {expiry:?}", self.name);
                }
                Seen::Unsure => {}
            }
        }
        self.counts
    }
}

fn configurations() -> Vec<(String, Config)> {
    let mut all = Vec::new();
    for versions in [1, 2, 4, 64] {
        for partitions in [1, 3] {
            for wal_ring_bytes in [0, 1 << 20] {
                if wal_ring_bytes == 0 && partitions == 3 {
                    continue;
                }
                let config =
                    Config { versions, partitions, wal_ring_bytes, memory_bytes: 96 << 20, ..small() };
                all.push((format!("arena, {versions} versions, {partitions} partitions"), config));
            }
        }
    }
    for versions in [1, 2, 4, 8] {
        let wal_ring_bytes = if versions == 2 { 0 } else { 1 << 20 };
        let config = Config { versions, wal_ring_bytes, memory_bytes: 96 << 20, ..hash_maps() };
        all.push((format!("hash maps, {versions} versions"), config));
    }
    all
}

#[test]
fn random_operations_do_what_the_model_does() {
    if !can_run() {
        return;
    }
    let operations = number("BEDPLATE_TEST_OPERATIONS").unwrap_or(60_000);
    let seed = number("BEDPLATE_TEST_SEED").unwrap_or(now_ms());
    let only = std::env::var("BEDPLATE_TEST_CONFIGURATIONS").unwrap_or_default();
    println!("seed {seed}");
    for (index, (name, config)) in configurations().into_iter().enumerate() {
        let logged = if config.wal_ring_bytes > 0 { "logged" } else { "not logged" };
        let hashed = config.engine == EngineKind::HashMap;
        let name = format!("seed {seed}, {name}, {logged}");
        if !name.contains(&only) {
            continue;
        }
        let started = std::time::Instant::now();
        let db = Database::create(config).unwrap_or_else(|e| panic!("{name}: {e}"));
        // The model does not contain the commits of the active expiry.
        db.set_expire_effort(0).unwrap();
        let mut test = Test::new(name.clone(), &db);
        let mut random = Random(seed ^ (index as u64) << 56);
        for i in 0..operations {
            test.step(&mut random);
            if i % 16 == 0 {
                test.check_log();
            }
        }
        let counts = test.finish();
        println!("{name}: {counts:?}, {:?}", started.elapsed());
        assert!(counts.done > operations / 2 && counts.commits > operations / 10, "{name}: {counts:?}");
        assert!(counts.conflicts > 0, "{name}: {counts:?}");
        assert!(counts.busy * 1000 < operations, "{name}: {counts:?}");
        assert!(counts.no_memory * 20 < operations || hashed, "{name}: {counts:?}");
    }
}
