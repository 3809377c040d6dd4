//! Merging of log records into one sequence of transactions with consecutive commit timestamps.
//!
//! Records come ring by ring; a transaction's writes and its commit may be in different rings, and
//! records of different rings (or of nested contexts on one CPU) may come out of order. What is complete
//! and in sequence is handed over straight from the rings' memory. Only what has to wait is copied: the
//! writes of open transactions, and commits whose predecessors are not complete yet.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::{
    Op,
    layout::{
        KDB_MARKER_SEQ_BITS, KDB_REC_ABORT, KDB_REC_AUTO_DEL, KDB_REC_AUTO_PUT, KDB_REC_COMMIT, KDB_REC_DEL,
        KDB_REC_PUT, KDB_REC_SKIP, kdb_rec,
    },
    wal::{OpRef, TxnSink},
};

/// More commits than this are never in the rings at once: the sequence is broken.
const MAX_AHEAD: u64 = 1 << 26;

/// Where a record is: partition and offset in its arena.
pub(super) type Place = (u32, u64);
/// The record at a place that was accepted and not given back yet.
pub(super) type Records<'a> = &'a dyn Fn(Place) -> Record<'a>;

/// A record, and the value if the record only refers to it.
pub(super) struct Record<'a> {
    pub bytes: &'a [u8],
    pub value: Option<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for Record<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Record { bytes, value: None }
    }
}
/// A transaction: session, and its number within the session.
type TxId = (u64, u64);

/// A change, in its ring or copied.
enum Change {
    There(Place),
    Copied(Op),
}

/// What is known of a commit timestamp.
enum Slot {
    /// Not seen yet.
    Unknown,
    /// Not logged.
    Skip,
    Auto(Change),
    Transaction(TxId, Vec<Change>),
}

/// See the module's comment.
pub(super) struct Merge {
    /// Timestamp of the first slot.
    next_ts: u64,
    slots: VecDeque<Slot>,
    /// Writes, with their index, of transactions that are not complete.
    open: BTreeMap<TxId, Vec<(u32, Change)>>,
    /// Transactions in `open` with writes that are not copied.
    touched: Vec<TxId>,
    /// Commits whose writes have not all been seen: timestamp and number of writes.
    committed: HashMap<TxId, (u64, u32)>,
}

impl Merge {
    pub(super) fn new(next_ts: u64) -> Merge {
        Merge {
            next_ts,
            slots: VecDeque::new(),
            open: BTreeMap::new(),
            touched: Vec::new(),
            committed: HashMap::new(),
        }
    }

    /// Timestamp of the newest commit that was handed over, if they were all.
    pub(super) fn done_ts(&self) -> u64 {
        self.next_ts - 1
    }

    /// Takes in one complete record.
    pub(super) fn accept(&mut self, place: Place, bytes: &[u8]) {
        let rec = header(bytes);
        let id = (rec.txid >> KDB_MARKER_SEQ_BITS, rec.txid & ((1 << KDB_MARKER_SEQ_BITS) - 1));
        match u32::from(rec.type_) {
            KDB_REC_AUTO_PUT | KDB_REC_AUTO_DEL => self.place(rec.ts, Slot::Auto(Change::There(place))),
            KDB_REC_SKIP => self.place(rec.ts, Slot::Skip),
            KDB_REC_PUT | KDB_REC_DEL => {
                self.open.entry(id).or_default().push((rec.index, Change::There(place)));
                if self.touched.last() != Some(&id) {
                    self.touched.push(id);
                }
                self.finish(id);
            }
            KDB_REC_COMMIT => {
                self.committed.insert(id, (rec.ts, rec.index));
                self.finish(id);
            }
            KDB_REC_ABORT => {
                self.open.remove(&id);
            }
            _ => {}
        }
    }

    fn place(&mut self, ts: u64, slot: Slot) {
        let ahead = ts.wrapping_sub(self.next_ts);
        assert!(ahead < MAX_AHEAD, "commit {ts} is in the log rings, {} was expected", self.next_ts);
        let index = ahead as usize;
        if index == self.slots.len() {
            self.slots.push_back(slot);
        } else {
            if index > self.slots.len() {
                self.slots.resize_with(index + 1, || Slot::Unknown);
            }
            self.slots[index] = slot;
        }
    }

    /// Moves a transaction to the sequence once its commit and all of its writes were seen.
    fn finish(&mut self, id: TxId) {
        let Some(&(ts, count)) = self.committed.get(&id) else { return };
        if self.open.get(&id).is_some_and(|writes| writes.len() as u32 == count) {
            let mut writes = self.open.remove(&id).unwrap_or_default();
            self.committed.remove(&id);
            writes.sort_unstable_by_key(|&(index, _)| index);
            let writes = writes.into_iter().map(|(_, change)| change).collect();
            self.place(ts, Slot::Transaction(id, writes));
        }
    }

    /// Hands over what is in sequence, until about `max_bytes` of keys and values were; returns how many
    /// transactions there were.
    pub(super) fn emit<'a>(&mut self, max_bytes: usize, bytes: Records<'a>, sink: &mut dyn TxnSink) -> usize {
        let (mut count, mut sum) = (0, 0);
        while sum < max_bytes && !matches!(self.slots.front(), None | Some(Slot::Unknown)) {
            sink.begin(self.next_ts);
            match self.slots.pop_front() {
                Some(Slot::Auto(change)) => sum += hand_over(&change, bytes, sink),
                Some(Slot::Transaction(id, changes)) => {
                    for change in &changes {
                        sum += hand_over(change, bytes, sink);
                    }
                    self.forget_before(id);
                }
                _ => {}
            }
            sink.end();
            self.next_ts += 1;
            count += 1;
        }
        count
    }

    /// A session's commits come in order: what is open of its earlier transactions was rolled back.
    fn forget_before(&mut self, (session, number): TxId) {
        while let Some((&stale, _)) = self.open.range((session, 0)..(session, number)).next() {
            self.open.remove(&stale);
        }
    }

    /// Copies whatever is still in the rings, so that their space can be given back.
    pub(super) fn copy_rest<'a>(&mut self, bytes: Records<'a>) {
        for slot in &mut self.slots {
            match slot {
                Slot::Auto(change) => copy(change, bytes),
                Slot::Transaction(_, changes) => changes.iter_mut().for_each(|change| copy(change, bytes)),
                Slot::Unknown | Slot::Skip => {}
            }
        }
        for id in self.touched.drain(..) {
            if let Some(writes) = self.open.get_mut(&id) {
                writes.iter_mut().for_each(|(_, change)| copy(change, bytes));
            }
        }
    }
}

fn copy<'a>(change: &mut Change, bytes: Records<'a>) {
    if let Change::There(place) = *change {
        *change = Change::Copied(op_of(bytes(place)).into());
    }
}

/// Returns the bytes of key and value.
fn hand_over<'a>(change: &Change, bytes: Records<'a>, sink: &mut dyn TxnSink) -> usize {
    let op = match change {
        Change::There(place) => op_of(bytes(*place)),
        Change::Copied(op) => op.into(),
    };
    sink.op(op);
    match op {
        OpRef::Put { key, value, .. } => key.len() + value.len(),
        OpRef::Delete { key } => key.len(),
    }
}

pub(super) fn header(bytes: &[u8]) -> kdb_rec {
    assert!(bytes.len() >= size_of::<kdb_rec>());
    // SAFETY: the slice is at least as long as the header, which consists of integers; it is read
    // unaligned.
    unsafe { bytes.as_ptr().cast::<kdb_rec>().read_unaligned() }
}

/// The change in a record with a key.
fn op_of(record: Record<'_>) -> OpRef<'_> {
    let bytes = record.bytes;
    let rec = header(bytes);
    let key_at = size_of::<kdb_rec>();
    let key = &bytes[key_at..key_at + usize::from(rec.klen)];
    match u32::from(rec.type_) {
        KDB_REC_AUTO_DEL | KDB_REC_DEL => OpRef::Delete { key },
        _ => {
            let value_at = key_at + usize::from(rec.klen).next_multiple_of(8);
            let value = record.value.unwrap_or_else(|| &bytes[value_at..value_at + rec.vlen as usize]);
            OpRef::Put { key, value, expire_at_ms: (rec.expire_ms != 0).then_some(rec.expire_ms) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogTxn;
    use crate::layout::KDB_REC_VOID;
    use proptest::prelude::*;

    /// Two rings that are plain memory: records at places.
    #[derive(Default)]
    struct Rings {
        records: Vec<Vec<u8>>,
    }

    impl Rings {
        fn put(&mut self, kind: u32, ts: u64, id: TxId, index: u32, op: Option<&Op>) -> Place {
            let (key, value, expire_ms): (&[u8], &[u8], u64) = match op {
                Some(Op::Put { key, value, expire_at_ms }) => (key, value, expire_at_ms.unwrap_or(0)),
                Some(Op::Delete { key }) => (key, &[], 0),
                None => (&[], &[], 0),
            };
            let rec = kdb_rec {
                state: 1,
                size: 0,
                klen: key.len() as u16,
                type_: kind as u8,
                flags: 0,
                ts,
                txid: id.0 << KDB_MARKER_SEQ_BITS | id.1,
                vlen: value.len() as u32,
                index,
                expire_ms,
            };
            // SAFETY: a header is plain integers without padding.
            let head = unsafe {
                std::slice::from_raw_parts((&raw const rec).cast::<u8>(), size_of::<kdb_rec>()).to_vec()
            };
            let mut bytes = [head, key.to_vec()].concat();
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes.extend_from_slice(value);
            self.records.push(bytes);
            (0, self.records.len() as u64 - 1)
        }
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

    #[derive(Clone, Debug)]
    enum Kind {
        Auto(Op),
        Skip,
        Commit(Vec<Op>),
        Abort(Vec<Op>),
        /// A client that went away: its writes are never resolved.
        Silent(Vec<Op>),
        Void,
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

    fn kinds() -> impl Strategy<Value = Vec<(Kind, u64)>> {
        let ops = || proptest::collection::vec(op(), 1..5);
        let kind = prop_oneof![
            op().prop_map(Kind::Auto),
            Just(Kind::Skip),
            ops().prop_map(Kind::Commit),
            ops().prop_map(Kind::Abort),
            ops().prop_map(Kind::Silent),
            Just(Kind::Void),
        ];
        proptest::collection::vec((kind, 0..4u64), 0..60)
    }

    proptest! {
        #[test]
        fn any_order_becomes_the_sequence(
            kinds in kinds(),
            order in proptest::collection::vec(any::<u16>(), 400),
            pieces in proptest::collection::vec((1..40usize, 1..200usize), 400),
        ) {
            let mut rings = Rings::default();
            let mut expected = Vec::new();
            // Places with a position that decides the order; a session's records keep theirs.
            let mut places: Vec<(u64, Place)> = Vec::new();
            let mut clocks = [0u64; 4];
            let mut ts = 0;
            for (number, (kind, session)) in kinds.into_iter().enumerate() {
                let id = (session, number as u64 + 1);
                let mut add = |rings: &mut Rings, kind, ts, index, op: Option<&Op>| {
                    let clock = &mut clocks[session as usize];
                    *clock += u64::from(order[places.len() % order.len()] % 50);
                    places.push((*clock, rings.put(kind, ts, id, index, op)));
                };
                let write = |op: &Op| if matches!(op, Op::Put { .. }) { KDB_REC_PUT } else { KDB_REC_DEL };
                let mut ops = Vec::new();
                match &kind {
                    Kind::Auto(op) => {
                        ts += 1;
                        let put = matches!(op, Op::Put { .. });
                        let kind = if put { KDB_REC_AUTO_PUT } else { KDB_REC_AUTO_DEL };
                        add(&mut rings, kind, ts, 0, Some(op));
                        ops.push(op.clone());
                    }
                    Kind::Skip => {
                        ts += 1;
                        add(&mut rings, KDB_REC_SKIP, ts, 0, None);
                    }
                    Kind::Commit(all) | Kind::Abort(all) | Kind::Silent(all) => {
                        for (index, op) in all.iter().enumerate() {
                            add(&mut rings, write(op), 0, index as u32, Some(op));
                        }
                        match kind {
                            Kind::Commit(_) => {
                                ts += 1;
                                add(&mut rings, KDB_REC_COMMIT, ts, all.len() as u32, None);
                                ops.clone_from(all);
                            }
                            Kind::Abort(_) => add(&mut rings, KDB_REC_ABORT, 0, all.len() as u32, None),
                            _ => continue,
                        }
                    }
                    Kind::Void => add(&mut rings, KDB_REC_VOID, 0, 0, None),
                }
                if !matches!(kind, Kind::Abort(_) | Kind::Void) {
                    expected.push(LogTxn { commit_ts: ts, ops });
                }
            }
            places.sort_by_key(|&(clock, _)| clock);

            let mut merge = Merge::new(1);
            let mut got = Collect::default();
            let mut rest = &places[..];
            for (records, max_bytes) in pieces {
                let (now, later) = rest.split_at(records.min(rest.len()));
                rest = later;
                let bytes = |place: Place| Record::from(&rings.records[place.1 as usize][..]);
                now.iter().for_each(|&(_, place)| merge.accept(place, bytes(place).bytes));
                merge.emit(max_bytes, &bytes, &mut got);
                merge.copy_rest(&bytes);
                // The space is given back: nothing may be read from it any more.
                now.iter().for_each(|(_, place)| rings.records[place.1 as usize].clear());
            }
            prop_assert!(rest.is_empty());
            merge.emit(usize::MAX, &|_| unreachable!("all is copied"), &mut got);
            prop_assert_eq!(got.0, expected);
        }
    }

    #[test]
    #[should_panic(expected = "was expected")]
    fn a_repeated_timestamp_is_noticed() {
        let mut rings = Rings::default();
        let place = rings.put(KDB_REC_SKIP, 3, (0, 0), 0, None);
        Merge::new(4).accept(place, &rings.records[0]);
    }
}
