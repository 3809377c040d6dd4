//! Merging of log records into one sequence of transactions with consecutive commit timestamps.
//!
//! Records come ring by ring. A transaction's writes and its commit may be in different rings, and records of different
//! rings (or of nested contexts on one CPU) may come out of order. A complete transaction that is next in sequence is
//! handed over straight from the rings' memory. Other records are copied: the writes of open transactions, and commits
//! whose predecessors are not complete yet.
//!
//! The copies are bounded. Of an open transaction's writes only the newest of each key counts. Its copies therefore
//! take at most twice the memory of its uncommitted versions in the database, and `REWRITES_BYTES`. Transactions that
//! ended without a record of it are found by their sessions' contexts. So the copies of all open transactions take less
//! than twice the database's memory limit. The merge never waits, so the rings' space always comes back.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    mem::offset_of,
    time::Instant,
};

use super::log::{OpRef, TxnSink};
use crate::{
    Op,
    layout::{
        KDB_MARKER_SEQ_BITS, KDB_REC_ABORT, KDB_REC_AUTO_DEL, KDB_REC_AUTO_PUT, KDB_REC_COMMIT, KDB_REC_DEL,
        KDB_REC_LONG, KDB_REC_PUT, KDB_REC_SKIP, kdb_rec, kdb_rec_long,
    },
    limits::{ABANDONED_INTERVAL, MAX_AHEAD, REWRITES_BYTES, UNCOMMITTED_CHECK_BYTES},
};

/// [`Merge::filled`] if there are none.
const NONE_FILLED: (u64, u64) = (u64::MAX, 0);

/// Position of a record: partition and offset in its arena.
pub(super) type Place = (u32, u64);
/// Returns the record at a place that was accepted and not given back yet.
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
pub(super) type TxId = (u64, u64);

/// A change, in its ring or copied.
enum Change {
    There(Place),
    Copied(Op),
}

/// State of a commit timestamp.
enum Slot {
    /// No record of it was read yet.
    Unknown,
    /// The commit is not to be logged.
    Skip,
    Auto(Change),
    Transaction(Vec<Change>),
}

/// The writes of a transaction that is not complete.
#[derive(Default)]
struct OpenWrites {
    /// Writes with their index in the transaction.
    writes: Vec<(u32, Change)>,
    /// Number of writes seen: those in `writes`, and those that were overwritten.
    seen: u32,
    /// Bytes that the copies take, and that they took when the overwritten ones were last removed.
    bytes: usize,
    bytes_compacted: usize,
}

impl OpenWrites {
    /// Copies the writes that are still in the rings. Returns by how many bytes the copies have grown.
    fn copy(&mut self, records: Records<'_>) -> isize {
        let before = self.bytes;
        for (_, change) in &mut self.writes {
            if matches!(change, Change::There(_)) {
                copy(change, records);
                self.bytes += copied_bytes(change);
            }
        }
        if self.bytes > REWRITES_BYTES + 2 * self.bytes_compacted {
            self.remove_overwritten();
        }
        self.bytes as isize - before as isize
    }

    /// Keeps the newest write of each key. All writes are copies.
    fn remove_overwritten(&mut self) {
        fn key(change: &Change) -> &[u8] {
            match change {
                Change::Copied(Op::Put { key, .. } | Op::Delete { key }) => key,
                Change::There(_) => &[],
            }
        }
        self.writes.sort_unstable_by(|(i, a), (j, b)| key(a).cmp(key(b)).then(j.cmp(i)));
        self.writes.dedup_by(|(_, later), (_, first)| key(later) == key(first));
        self.writes.shrink_to_fit();
        self.bytes = self.writes.iter().map(|(_, change)| copied_bytes(change)).sum();
        self.bytes_compacted = self.bytes;
    }
}

/// Memory that a copy takes.
fn copied_bytes(change: &Change) -> usize {
    size_of::<(u32, Change)>()
        + match change {
            Change::There(_) => 0,
            Change::Copied(Op::Put { key, value, .. }) => key.len() + value.len(),
            Change::Copied(Op::Delete { key }) => key.len(),
        }
}

/// See the module's comment.
pub(super) struct Merge {
    /// Timestamp of the first slot.
    next_ts: u64,
    slots: VecDeque<Slot>,
    /// Timestamps from and before which slots were filled since the last copying.
    filled: (u64, u64),
    /// Writes of transactions that are not complete.
    open: BTreeMap<TxId, OpenWrites>,
    /// Bytes that the copies in `open` take.
    open_bytes: usize,
    /// Transactions in `open` with writes that are not copied.
    touched: Vec<TxId>,
    /// Commits whose writes have not all been seen: timestamp and number of writes.
    committed: HashMap<TxId, (u64, u32)>,
    /// Number of the newest transaction seen of each session.
    newest: Vec<Option<u64>>,
    /// Transactions that have ended, by commit or roll-back, and may have writes in `open`.
    over: Vec<TxId>,
    /// Transactions taken from `over`, and the ring positions that must be read before their outcome is certain.
    settling: Option<(Vec<u64>, Vec<TxId>)>,
}

impl Merge {
    pub(super) fn new(next_ts: u64) -> Merge {
        Merge {
            next_ts,
            slots: VecDeque::new(),
            filled: NONE_FILLED,
            open: BTreeMap::new(),
            open_bytes: 0,
            touched: Vec::new(),
            committed: HashMap::new(),
            newest: Vec::new(),
            over: Vec::new(),
            settling: None,
        }
    }

    /// Timestamp of the newest commit such that all commits up to it were handed over.
    pub(super) fn done_ts(&self) -> u64 {
        self.next_ts - 1
    }

    /// Takes in one complete record.
    pub(super) fn accept(&mut self, place: Place, bytes: &[u8]) {
        let rec = header(bytes);
        let transaction = |id| (id >> KDB_MARKER_SEQ_BITS, id & ((1 << KDB_MARKER_SEQ_BITS) - 1));
        match u32::from(rec.type_) {
            KDB_REC_AUTO_PUT | KDB_REC_AUTO_DEL => self.place(rec.stamp, Slot::Auto(Change::There(place))),
            KDB_REC_SKIP => self.place(rec.stamp, Slot::Skip),
            KDB_REC_PUT | KDB_REC_DEL => {
                let id = transaction(rec.stamp);
                self.notice(id);
                let open = self.open.entry(id).or_default();
                open.writes.push((rec.index, Change::There(place)));
                open.seen += 1;
                if self.touched.last() != Some(&id) {
                    self.touched.push(id);
                }
                self.finish(id);
            }
            KDB_REC_COMMIT => {
                let id = transaction(word(bytes));
                self.notice(id);
                self.committed.insert(id, (rec.stamp, rec.index));
                self.finish(id);
            }
            KDB_REC_ABORT => {
                let id = transaction(rec.stamp);
                self.notice(id);
                self.forget(id);
                self.over.push(id);
            }
            _ => {}
        }
    }

    /// A record of a transaction was read: the session's earlier transactions have ended, and perhaps this one has.
    fn notice(&mut self, id @ (session, number): TxId) {
        let index = session as usize;
        if index >= self.newest.len() {
            self.newest.resize(index + 1, None);
        }
        match self.newest[index] {
            Some(newest) if number == newest => {}
            Some(newest) if !is_after(number, newest) => {
                if !self.open.contains_key(&id) {
                    self.over.push(id);
                }
            }
            _ => {
                self.newest[index] = Some(number);
                let open = self.open.range((session, 0)..=(session, u64::MAX)).map(|(&id, _)| id);
                self.over.extend(open.filter(|&(_, other)| is_after(number, other)));
            }
        }
    }

    /// Called after the rings were read up to `read`; `heads` returns the positions up to which there are records now.
    /// Forgets the writes of transactions that were rolled back.
    pub(super) fn settle(&mut self, mut read: impl Iterator<Item = u64>, heads: impl FnOnce() -> Vec<u64>) {
        if let Some((until, over)) = &self.settling
            && until.iter().all(|until| read.next().is_some_and(|read| read >= *until))
        {
            for id in over {
                if !self.committed.contains_key(id)
                    && let Some(open) = self.open.remove(id)
                {
                    self.open_bytes -= open.bytes;
                }
            }
            self.settling = None;
        }
        if self.settling.is_none() && !self.over.is_empty() {
            self.settling = Some((heads(), std::mem::take(&mut self.over)));
        }
    }

    /// Drops the writes of a transaction.
    fn forget(&mut self, id: TxId) -> Option<OpenWrites> {
        let open = self.open.remove(&id)?;
        self.open_bytes -= open.bytes;
        Some(open)
    }

    /// Bytes that the copies of open transactions' writes take.
    #[cfg(test)]
    fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    /// Drops the writes of transactions that were rolled back without a record of it, as `ended` knows, once there are
    /// enough of them. `looked_at` is the time of the last search.
    pub(super) fn find_abandoned(&mut self, looked_at: &mut Instant, ended: impl FnMut(TxId) -> bool) {
        if self.open_bytes >= UNCOMMITTED_CHECK_BYTES && looked_at.elapsed() >= ABANDONED_INTERVAL {
            *looked_at = Instant::now();
            self.abandon(ended);
        }
    }

    /// Marks transactions that have ended without a record of it, as `ended` knows. They are over once the rings have
    /// been read up to their current positions.
    fn abandon(&mut self, mut ended: impl FnMut(TxId) -> bool) {
        let known = |id: &TxId| {
            self.over.contains(id) || self.settling.as_ref().is_some_and(|(_, over)| over.contains(id))
        };
        let over: Vec<TxId> = self.open.keys().copied().filter(|id| !known(id) && ended(*id)).collect();
        self.over.extend(over);
    }

    /// Whether a transaction can be handed over without reading more records.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(self.slots.front(), None | Some(Slot::Unknown))
    }

    /// Index of a commit's slot; `None` if its timestamp cannot be in the rings now.
    fn slot_index(&self, ts: u64) -> Option<usize> {
        let ahead = ts.wrapping_sub(self.next_ts);
        (ahead < MAX_AHEAD).then_some(ahead as usize)
    }

    fn place(&mut self, ts: u64, slot: Slot) {
        let Some(index) = self.slot_index(ts) else {
            panic!("commit {ts} is in the log rings, {} was expected", self.next_ts);
        };
        self.filled = (self.filled.0.min(ts), self.filled.1.max(ts + 1));
        if index == self.slots.len() {
            self.slots.push_back(slot);
        } else {
            if index > self.slots.len() {
                self.slots.resize_with(index + 1, || Slot::Unknown);
            }
            self.slots[index] = slot;
        }
    }

    /// Moves a transaction to the sequence once its commit and all of its writes were read.
    fn finish(&mut self, id: TxId) {
        let Some(&(ts, count)) = self.committed.get(&id) else { return };
        if self.open.get(&id).is_some_and(|open| open.seen == count) {
            let mut writes = self.forget(id).unwrap_or_default().writes;
            self.committed.remove(&id);
            writes.sort_unstable_by_key(|&(index, _)| index);
            let writes = writes.into_iter().map(|(_, change)| change).collect();
            self.place(ts, Slot::Transaction(writes));
        }
    }

    /// Hands over transactions in sequence, up to about `max_bytes` of keys and values; returns the number of
    /// transactions.
    pub(super) fn emit<'a>(&mut self, max_bytes: usize, bytes: Records<'a>, sink: &mut dyn TxnSink) -> usize {
        let (mut count, mut sum) = (0, 0);
        while sum < max_bytes && self.is_ready() {
            sink.begin(self.next_ts);
            match self.slots.pop_front() {
                Some(Slot::Auto(change)) => sum += hand_over(&change, bytes, sink),
                Some(Slot::Transaction(changes)) => {
                    for change in &changes {
                        sum += hand_over(change, bytes, sink);
                    }
                }
                _ => {}
            }
            sink.end();
            self.next_ts += 1;
            count += 1;
        }
        count
    }

    /// Copies all records that are still in the rings, so that their space can be given back.
    pub(super) fn copy_rest<'a>(&mut self, bytes: Records<'a>) {
        // Slots before those were copied earlier, and may have to wait for long.
        let (from, before) = std::mem::replace(&mut self.filled, NONE_FILLED);
        let index = |ts: u64| ts.saturating_sub(self.next_ts) as usize;
        for slot in self.slots.range_mut(index(from).min(index(before))..index(before)) {
            match slot {
                Slot::Auto(change) => copy(change, bytes),
                Slot::Transaction(changes) => changes.iter_mut().for_each(|change| copy(change, bytes)),
                Slot::Unknown | Slot::Skip => {}
            }
        }
        for id in self.touched.drain(..) {
            if let Some(open) = self.open.get_mut(&id) {
                self.open_bytes = self.open_bytes.saturating_add_signed(open.copy(bytes));
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

/// Whether a session's transaction came after another one. Their numbers begin again at 2^40.
fn is_after(number: u64, other: u64) -> bool {
    let unused = 64 - KDB_MARKER_SEQ_BITS;
    (number.wrapping_sub(other) << unused) as i64 > 0
}

pub(super) fn header(bytes: &[u8]) -> kdb_rec {
    assert!(bytes.len() >= size_of::<kdb_rec>());
    // SAFETY: the slice is at least as long as the header, which consists of integers; it is read
    // unaligned.
    unsafe { bytes.as_ptr().cast::<kdb_rec>().read_unaligned() }
}

/// The word of a long record; 0 if it is a short one.
fn word(bytes: &[u8]) -> u64 {
    if u32::from(header(bytes).flags) & KDB_REC_LONG == 0 {
        return 0;
    }
    let at = offset_of!(kdb_rec_long, word);
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The change in a record with a key.
fn op_of(record: Record<'_>) -> OpRef<'_> {
    let bytes = record.bytes;
    let rec = header(bytes);
    let long = u32::from(rec.flags) & KDB_REC_LONG != 0;
    let key_at = if long { size_of::<kdb_rec_long>() } else { size_of::<kdb_rec>() };
    let key = &bytes[key_at..key_at + usize::from(rec.klen)];
    match u32::from(rec.type_) {
        KDB_REC_AUTO_DEL | KDB_REC_DEL => OpRef::Delete { key },
        _ => {
            let value_at = key_at + usize::from(rec.klen).next_multiple_of(8);
            let value = record.value.unwrap_or_else(|| &bytes[value_at..value_at + rec.vlen as usize]);
            let expire_ms = word(bytes);
            OpRef::Put { key, value, expire_at_ms: (expire_ms != 0).then_some(expire_ms) }
        }
    }
}

#[cfg(test)]
mod tests;
