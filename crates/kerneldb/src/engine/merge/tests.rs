//! Merging against a model of sessions, rings and a reader.

use super::*;
use crate::LogTxn;
use crate::layout::KDB_REC_VOID;
use proptest::prelude::*;

/// The bytes of a record.
fn record(kind: u32, ts: u64, id: TxId, index: u32, op: Option<&Op>) -> Vec<u8> {
    let (key, value, expire_ms): (&[u8], &[u8], u64) = match op {
        Some(Op::Put { key, value, expire_at_ms }) => (key, value, expire_at_ms.unwrap_or(0)),
        Some(Op::Delete { key }) => (key, &[], 0),
        None => (&[], &[], 0),
    };
    let transaction = id.0 << KDB_MARKER_SEQ_BITS | id.1;
    let word = if kind == KDB_REC_COMMIT { transaction } else { expire_ms };
    let rec = kdb_rec {
        state: 1,
        size: 0,
        klen: key.len() as u16,
        type_: kind as u8,
        flags: if word != 0 { KDB_REC_LONG as u8 } else { 0 },
        stamp: match kind {
            KDB_REC_PUT | KDB_REC_DEL | KDB_REC_ABORT => transaction,
            _ => ts,
        },
        vlen: value.len() as u32,
        index,
    };
    // SAFETY: a header is plain integers without padding.
    let head =
        unsafe { std::slice::from_raw_parts((&raw const rec).cast::<u8>(), size_of::<kdb_rec>()).to_vec() };
    let more = if word != 0 { word.to_ne_bytes().to_vec() } else { Vec::new() };
    let mut bytes = [head, more, key.to_vec()].concat();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend_from_slice(value);
    bytes
}

#[derive(Default)]
struct Collect(Vec<LogTxn>);

impl TxnSink for Collect {
    fn begin(&mut self, commit_ts: u64) {
        self.0.push(LogTxn { commit_ts, ops: Vec::new() });
    }
    fn op(&mut self, op: OpRef<'_>) {
        self.0.last_mut().expect("after begin").ops.push(op.into());
    }
    fn end(&mut self) {}
}

/// The next action of a session.
#[derive(Clone, Debug)]
enum Kind {
    Auto(Op),
    Skip,
    Commit(Vec<Op>),
    Abort(Vec<Op>),
    /// Rolled back without a record of it.
    Silent(Vec<Op>),
    Void,
}

/// The contents of a record that is reserved.
#[derive(Clone, Debug)]
enum Record {
    Auto(Op),
    Skip,
    Write(TxId, u32, Op),
    Commit(TxId, Vec<Op>),
    Abort(TxId, u32),
    Void,
}

/// A ring: records, empty as long as they are reserved only or when they were given back.
#[derive(Default)]
struct Ring {
    records: Vec<Option<Vec<u8>>>,
    pos: usize,
}

/// A session acts step by step; other sessions may act between the reservation of a record and its
/// completion.
struct Session {
    todo: std::collections::VecDeque<Record>,
    reserved: Option<(usize, usize, Record)>,
}

impl Session {
    fn new(index: u64, kinds: Vec<Kind>) -> Session {
        let mut todo = std::collections::VecDeque::new();
        for (number, kind) in (1..).zip(kinds) {
            let id = (index, number);
            match kind {
                Kind::Auto(op) => todo.push_back(Record::Auto(op)),
                Kind::Skip => todo.push_back(Record::Skip),
                Kind::Void => todo.push_back(Record::Void),
                Kind::Commit(ref ops) | Kind::Abort(ref ops) | Kind::Silent(ref ops) => {
                    let count = ops.len() as u32;
                    todo.extend((0..).zip(ops).map(|(i, op)| Record::Write(id, i, op.clone())));
                    match kind {
                        Kind::Commit(ops) => todo.push_back(Record::Commit(id, ops)),
                        Kind::Abort(_) => todo.push_back(Record::Abort(id, count)),
                        _ => {}
                    }
                }
            }
        }
        Session { todo, reserved: None }
    }
}

struct World {
    rings: Vec<Ring>,
    sessions: Vec<Session>,
    /// The committed transactions, in order.
    expected: Vec<LogTxn>,
    merge: Merge,
    got: Collect,
}

impl World {
    /// A session reserves a record, or completes the one it has reserved; false when it has nothing to do.
    fn step(&mut self, session: usize, ring: usize) -> bool {
        let session = &mut self.sessions[session];
        let Some((ring, at, what)) = session.reserved.take() else {
            let Some(what) = session.todo.pop_front() else { return false };
            let records = &mut self.rings[ring].records;
            records.push(None);
            session.reserved = Some((ring, records.len() - 1, what));
            return true;
        };
        let ts = self.expected.len() as u64 + 1;
        let mut commit = |ops: Vec<Op>| self.expected.push(LogTxn { commit_ts: ts, ops });
        let put = |op: &Op, yes, no| if matches!(op, Op::Put { .. }) { yes } else { no };
        let bytes = match what {
            Record::Auto(op) => {
                let kind = put(&op, KDB_REC_AUTO_PUT, KDB_REC_AUTO_DEL);
                let bytes = record(kind, ts, (0, 0), 0, Some(&op));
                commit(vec![op]);
                bytes
            }
            Record::Skip => {
                commit(Vec::new());
                record(KDB_REC_SKIP, ts, (0, 0), 0, None)
            }
            Record::Write(id, i, op) => record(put(&op, KDB_REC_PUT, KDB_REC_DEL), 0, id, i, Some(&op)),
            Record::Commit(id, ops) => {
                let count = ops.len() as u32;
                commit(ops);
                record(KDB_REC_COMMIT, ts, id, count, None)
            }
            Record::Abort(id, count) => record(KDB_REC_ABORT, 0, id, count, None),
            Record::Void => record(KDB_REC_VOID, 0, (0, 0), 0, None),
        };
        self.rings[ring].records[at] = Some(bytes);
        true
    }

    /// The reader's round: some records of each ring, up to the first incomplete one. `between` runs while
    /// the reader goes from ring to ring.
    fn drain(&mut self, limit: usize, max_bytes: usize, between: &mut dyn FnMut(&mut World)) {
        let starts: Vec<usize> = self.rings.iter().map(|ring| ring.pos).collect();
        for (index, &start) in starts.iter().enumerate() {
            let ring = &mut self.rings[index];
            while ring.pos < ring.records.len() && ring.pos - start < limit {
                let Some(bytes) = &ring.records[ring.pos] else { break };
                self.merge.accept((index as u32, ring.pos as u64), bytes);
                ring.pos += 1;
            }
            between(self);
        }
        let World { rings, merge, .. } = self;
        merge.settle(rings.iter().map(|ring| ring.pos as u64), || {
            rings.iter().map(|ring| ring.records.len() as u64).collect()
        });
        let bytes = |(ring, at): Place| {
            super::Record::from(rings[ring as usize].records[at as usize].as_deref().expect("is there"))
        };
        merge.emit(max_bytes, &bytes, &mut self.got);
        merge.copy_rest(&bytes);
        // The space is given back, so it must not be read any more.
        for (ring, start) in rings.iter_mut().zip(starts) {
            ring.records[start..ring.pos].fill(None);
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let key = proptest::collection::vec(any::<u8>(), 1..30);
    let value = proptest::collection::vec(any::<u8>(), 0..30);
    prop_oneof![
        (key.clone(), value, proptest::option::of(1..u64::MAX))
            .prop_map(|(key, value, expire_at_ms)| Op::Put { key, value, expire_at_ms }),
        key.prop_map(|key| Op::Delete { key }),
    ]
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let ops = || proptest::collection::vec(op(), 1..5);
    let kind = prop_oneof![
        op().prop_map(Kind::Auto),
        Just(Kind::Skip),
        ops().prop_map(Kind::Commit),
        ops().prop_map(Kind::Abort),
        ops().prop_map(Kind::Silent),
        Just(Kind::Void),
    ];
    proptest::collection::vec(kind, 0..12)
}

/// The reader's limits, and the actions of sessions around it: session and ring.
type Round = (usize, usize, Vec<(u8, u8)>, Vec<(u8, u8)>);

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let steps = || proptest::collection::vec(any::<(u8, u8)>(), 0..20);
    proptest::collection::vec((0..12usize, 1..200usize, steps(), steps()), 0..40)
}

proptest! {
    /// Whatever the order of the records, the merge returns the committed transactions in order, and keeps
    /// none of those that were rolled back.
    #[test]
    fn commits_come_out_in_order_and_the_rest_is_forgotten(
        scripts in proptest::collection::vec(kinds(), 1..5),
        rings in 1..4usize,
        rounds in rounds(),
    ) {
        // The last transaction of a session, if no record shows that it is over.
        let last_unknown: Vec<Option<u64>> = scripts
            .iter()
            .map(|kinds| {
                let transaction = |k: &Kind| matches!(k, Kind::Commit(_) | Kind::Abort(_) | Kind::Silent(_));
                let last = kinds.iter().rposition(transaction)?;
                matches!(kinds[last], Kind::Silent(_)).then_some(last as u64 + 1)
            })
            .collect();
        let mut world = World {
            rings: (0..rings).map(|_| Ring::default()).collect(),
            sessions: (0..).zip(scripts).map(|(i, kinds)| Session::new(i, kinds)).collect(),
            expected: Vec::new(),
            merge: Merge::new(1),
            got: Collect::default(),
        };
        let sessions = world.sessions.len();
        for (limit, max_bytes, before, during) in rounds {
            for (session, ring) in before {
                world.step(usize::from(session) % sessions, usize::from(ring) % rings);
            }
            let mut during = during.into_iter();
            world.drain(limit, max_bytes, &mut |world| {
                for (session, ring) in during.by_ref().take(7) {
                    world.step(usize::from(session) % sessions, usize::from(ring) % rings);
                }
            });
        }
        for session in 0..sessions {
            while world.step(session, session % rings) {}
        }
        for _ in 0..3 {
            world.drain(usize::MAX, usize::MAX, &mut |_| ());
        }
        prop_assert_eq!(world.got.0, world.expected);
        let merge = world.merge;
        for &(session, number) in merge.open.keys() {
            prop_assert_eq!(last_unknown[session as usize], Some(number), "kept: {:?}", (session, number));
        }
        prop_assert!(merge.committed.is_empty() && merge.over.is_empty() && merge.settling.is_none());
    }
}

#[test]
#[should_panic(expected = "was expected")]
fn a_repeated_timestamp_is_noticed() {
    let bytes = record(KDB_REC_SKIP, 3, (0, 0), 0, None);
    Merge::new(4).accept((0, 0), &bytes);
}

#[test]
fn a_commit_can_be_ahead_of_the_next_one_up_to_the_limit() {
    let merge = Merge::new(4);
    // The slots themselves would take gigabytes.
    assert_eq!(merge.slot_index(4 + MAX_AHEAD - 1), Some(MAX_AHEAD as usize - 1));
    assert_eq!(merge.slot_index(4 + MAX_AHEAD), None);
}

#[test]
#[should_panic(expected = "was expected")]
fn a_commit_past_the_limit_is_a_broken_sequence() {
    let bytes = record(KDB_REC_SKIP, 4 + MAX_AHEAD, (0, 0), 0, None);
    Merge::new(4).accept((0, 0), &bytes);
}

/// A place for each record, so that the reader's copies are tested.
struct OneRing {
    records: Vec<Vec<u8>>,
}

impl OneRing {
    /// The reader accepts a record and copies the writes that have to wait.
    fn read(&mut self, merge: &mut Merge, bytes: Vec<u8>) {
        let at = self.records.len() as u64;
        merge.accept((0, at), &bytes);
        self.records.push(bytes);
        let place = |(_, at): Place| super::Record::from(&self.records[at as usize][..]);
        merge.copy_rest(&place);
    }
}

fn rewrite(value: &[u8]) -> Op {
    Op::Put { key: b"key".to_vec(), value: value.to_vec(), expire_at_ms: None }
}

#[test]
fn rewrites_of_an_open_transaction_take_bounded_memory_and_the_last_one_counts() {
    let (mut merge, mut ring) = (Merge::new(1), OneRing { records: Vec::new() });
    let other = Op::Delete { key: b"other".to_vec() };
    ring.read(&mut merge, record(KDB_REC_DEL, 0, (3, 9), 0, Some(&other)));
    let value = [7; 1000];
    for i in 1..=2000u32 {
        // Two neighbours come in the wrong order, as records of different rings can.
        let index = (i + 1) ^ 1;
        let op = rewrite(&[&index.to_le_bytes(), &value[..]].concat());
        ring.read(&mut merge, record(KDB_REC_PUT, 0, (3, 9), index - 1, Some(&op)));
        assert!(merge.open_bytes() < REWRITES_BYTES + 4 * 1100, "{i}: {} bytes", merge.open_bytes());
    }
    assert_eq!(merge.open[&(3, 9)].seen, 2001);
    let newest = rewrite(b"the last");
    ring.read(&mut merge, record(KDB_REC_PUT, 0, (3, 9), 2001, Some(&newest)));
    ring.read(&mut merge, record(KDB_REC_COMMIT, 1, (3, 9), 2002, None));
    let mut got = Collect::default();
    merge.emit(usize::MAX, &|_| unreachable!("everything is copied"), &mut got);
    let ops = std::mem::take(&mut got.0[0].ops);
    assert_eq!(ops.last(), Some(&newest));
    assert!(ops.contains(&other));
    assert!(ops.len() < 200, "{} changes", ops.len());
    assert_eq!(merge.open_bytes(), 0);
}

#[test]
fn writes_of_transactions_that_ended_without_a_record_are_forgotten() {
    let (mut merge, mut ring) = (Merge::new(1), OneRing { records: Vec::new() });
    for session in 0..10 {
        ring.read(&mut merge, record(KDB_REC_PUT, 0, (session, 1), 0, Some(&rewrite(b"value"))));
    }
    // The even sessions have ended. Session 4 has committed, but its record is not read yet.
    merge.abandon(|(session, _)| session.is_multiple_of(2));
    merge.abandon(|(session, _)| session.is_multiple_of(2));
    merge.settle(std::iter::once(10), || vec![11]);
    assert_eq!(merge.open.len(), 10, "the rings may hold commits");
    ring.read(&mut merge, record(KDB_REC_COMMIT, 1, (4, 1), 1, None));
    merge.settle(std::iter::once(11), || vec![11]);
    let left: Vec<u64> = merge.open.keys().map(|&(session, _)| session).collect();
    assert_eq!(left, [1, 3, 5, 7, 9]);
    let mut got = Collect::default();
    assert_eq!(merge.emit(usize::MAX, &|_| unreachable!("everything is copied"), &mut got), 1);
    assert_eq!(got.0[0].ops, [rewrite(b"value")]);
    assert!(merge.open_bytes() > 0);
    merge.abandon(|_| true);
    merge.settle(std::iter::once(11), || vec![11]);
    merge.settle(std::iter::once(11), || vec![11]);
    assert_eq!(merge.open_bytes(), 0);
}
