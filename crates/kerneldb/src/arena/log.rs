//! The consumer of the log rings: merges the rings of all CPUs and partitions into one sequence with
//! consecutive commit timestamps (paper 4.3).
//!
//! A record is complete when its `state` is its own position | 1. What was consumed is zeroed before the
//! space is given back, so that stale bytes never look like a complete record.

use std::{
    collections::{BTreeMap, HashMap},
    mem::offset_of,
    sync::atomic::Ordering,
};

use crate::{
    LogTxn, Op,
    database::Inner,
    layout::{
        KDB_MARKER_SEQ_BITS, KDB_REC_ABORT, KDB_REC_AUTO_DEL, KDB_REC_AUTO_PUT, KDB_REC_COMMIT, KDB_REC_DEL,
        KDB_REC_PUT, KDB_REC_SKIP, kdb_rec, kdb_ring,
    },
};

/// Consumer of the log rings. Only one exists per database at a time.
pub struct LogReader<'db> {
    db: &'db Inner,
    merge: Merge,
}

/// A transaction: session, and its number within the session.
type TxId = (u64, u64);

/// Records that were read, on their way into the sequence.
struct Merge {
    next_ts: u64,
    /// Complete transactions that wait for their predecessors, with who made them.
    ready: BTreeMap<u64, (Option<TxId>, Vec<Op>)>,
    /// Writes, by index, of transactions that are not complete.
    open: BTreeMap<TxId, BTreeMap<u32, Op>>,
    /// Commits whose writes have not all been seen: timestamp and number of writes.
    committed: HashMap<TxId, (u64, u32)>,
}

impl<'db> LogReader<'db> {
    pub(crate) fn new(db: &'db Inner) -> Self {
        let next_ts = db.state().durable_ts.load(Ordering::SeqCst) + 1;
        let merge =
            Merge { next_ts, ready: BTreeMap::new(), open: BTreeMap::new(), committed: HashMap::new() };
        LogReader { db, merge }
    }

    /// Hands over the transactions that are complete, in timestamp order, until there is none left or
    /// `max_bytes` of keys and values were handed over. Returns how many there were.
    pub fn drain(&mut self, max_bytes: usize, f: &mut dyn FnMut(LogTxn)) -> usize {
        for partition in &self.db.partitions {
            for cpu in 0..u64::from(partition.geometry.ncpus) {
                let header = partition.geometry.rings + cpu * size_of::<kdb_ring>() as u64;
                self.consume(&partition.arena, header, max_bytes);
            }
        }
        let mut count = 0;
        let mut bytes = 0;
        while bytes < max_bytes
            && let Some((id, ops)) = self.merge.ready.remove(&self.merge.next_ts)
        {
            if let Some((session, number)) = id {
                // Commits come in order: what is left of the session's earlier transactions was rolled back.
                while let Some((&stale, _)) = self.merge.open.range((session, 0)..(session, number)).next() {
                    self.merge.open.remove(&stale);
                }
            }
            bytes += ops.iter().map(op_bytes).sum::<usize>();
            f(LogTxn { commit_ts: self.merge.next_ts, ops });
            self.merge.next_ts += 1;
            count += 1;
        }
        count
    }

    /// Reads one ring up to its first incomplete record.
    fn consume(&mut self, arena: &crate::bpf::ArenaMapping, header: u64, max_bytes: usize) {
        let ring: *const kdb_ring = arena.at(header);
        // SAFETY: in bounds; both fields were set when the arena was formatted and never change.
        let (data, size) = unsafe { (u64::from((*ring).data), u64::from((*ring).size)) };
        let head = arena.word(header + offset_of!(kdb_ring, head) as u64).load(Ordering::Acquire);
        let tail = arena.word(header + offset_of!(kdb_ring, tail) as u64);
        let start = tail.load(Ordering::Relaxed);
        let mut pos = start;
        while pos < head && pos - start < max_bytes as u64 {
            let at = pos % size;
            let room = size - at;
            if room < 16 {
                pos += room;
                continue;
            }
            if arena.word(data + at).load(Ordering::Acquire) != (pos << 1 | 1) {
                break;
            }
            let record: *const kdb_rec = arena.at(data + at);
            // SAFETY: the record is complete and not given back yet: nobody else writes to it. Its size
            // is inside of the ring's data.
            let bytes = unsafe { (*record).size };
            debug_assert!(bytes > 0 && u64::from(bytes) <= room);
            if u64::from(bytes) >= size_of::<kdb_rec>() as u64 {
                // SAFETY: as above.
                self.merge.accept(unsafe { arena.bytes(data + at, bytes as usize) });
            }
            pos += u64::from(bytes);
        }
        zero(arena, data, size, start, pos);
        tail.store(pos, Ordering::Release);
    }
}

fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { key } => key.len(),
    }
}

/// Zeroes the consumed positions `from..to` of a ring.
fn zero(arena: &crate::bpf::ArenaMapping, data: u64, size: u64, from: u64, to: u64) {
    let mut pos = from;
    while pos < to {
        let at = pos % size;
        let len = (size - at).min(to - pos);
        assert!(at + len <= size);
        let first: *mut u8 = arena.at(data + at);
        let _last: *mut u8 = arena.at(data + at + len - 1);
        // SAFETY: the range is inside of the ring's data and belongs to the consumer until `tail` moves.
        unsafe { std::ptr::write_bytes(first, 0, len as usize) };
        pos += len;
    }
}

impl Merge {
    /// Takes in one complete record.
    fn accept(&mut self, bytes: &[u8]) {
        // SAFETY: the slice is at least as long as the header; it is read unaligned.
        let rec = unsafe { bytes.as_ptr().cast::<kdb_rec>().read_unaligned() };
        let id = (rec.txid >> KDB_MARKER_SEQ_BITS, rec.txid & ((1 << KDB_MARKER_SEQ_BITS) - 1));
        match u32::from(rec.type_) {
            KDB_REC_AUTO_PUT | KDB_REC_AUTO_DEL => {
                self.ready.insert(rec.ts, (None, vec![op_of(&rec, bytes)]));
            }
            KDB_REC_SKIP => {
                self.ready.insert(rec.ts, (None, Vec::new()));
            }
            KDB_REC_PUT | KDB_REC_DEL => {
                self.open.entry(id).or_default().insert(rec.index, op_of(&rec, bytes));
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

    /// Moves a transaction to the sequence once its commit and all of its writes were seen.
    fn finish(&mut self, id: TxId) {
        let Some(&(ts, count)) = self.committed.get(&id) else { return };
        if self.open.get(&id).is_some_and(|writes| writes.len() as u32 == count) {
            let writes = self.open.remove(&id).unwrap_or_default();
            self.committed.remove(&id);
            self.ready.insert(ts, (Some(id), writes.into_values().collect()));
        }
    }
}

fn op_of(rec: &kdb_rec, bytes: &[u8]) -> Op {
    let key_at = size_of::<kdb_rec>();
    let key = bytes[key_at..key_at + usize::from(rec.klen)].to_vec();
    match u32::from(rec.type_) {
        KDB_REC_AUTO_DEL | KDB_REC_DEL => Op::Delete { key },
        _ => {
            let value_at = key_at + usize::from(rec.klen).next_multiple_of(8);
            let value = bytes[value_at..value_at + rec.vlen as usize].to_vec();
            Op::Put { key, value, expire_at_ms: (rec.expire_ms != 0).then_some(rec.expire_ms) }
        }
    }
}
