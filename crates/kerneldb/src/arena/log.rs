//! The consumer of the log rings: merges the rings of all CPUs and partitions into one sequence with
//! consecutive commit timestamps (paper 4.3).
//!
//! A record is complete when its `state` is that of its own position, which depends on the database's secret:
//! stale bytes never look like a complete record.

use std::{mem::offset_of, sync::atomic::Ordering};

use super::merge::{Merge, Place, Record, header};
use crate::{
    LogTxn,
    database::Inner,
    hashmap::LogRing,
    layout::{KDB_REC_BY_REFERENCE, kdb_rec, kdb_ring},
    wal::{OpRef, TxnSink},
};

/// Fewer bytes than this are never read from a ring at once, if they are there.
const MIN_PIECE: usize = 64 << 10;

/// Consumer of the log rings. Only one exists per database at a time.
pub struct LogReader<'db> {
    db: &'db Inner,
    /// The hash-map engine's one ring; the arena engine's are in the arenas.
    ring: Option<LogRing>,
    merge: Merge,
    rings: Vec<Ring>,
}

/// A ring, and how far it was read. What is read but not given back is `tail..pos`.
struct Ring {
    partition: u32,
    /// Offset of its header in the arena.
    header: u64,
    pos: u64,
}

impl<'db> LogReader<'db> {
    pub(crate) fn new(db: &'db Inner, ring: Option<LogRing>) -> Self {
        let next_ts = db.state().durable_ts.load(Ordering::SeqCst) + 1;
        let mut rings = Vec::new();
        for (partition, owner) in (0..).zip(&db.partitions) {
            for cpu in 0..u64::from(owner.geometry.ncpus) {
                let header = owner.geometry.rings + cpu * size_of::<kdb_ring>() as u64;
                let tail = owner.arena.word(header + offset_of!(kdb_ring, tail) as u64);
                rings.push(Ring { partition, header, pos: tail.load(Ordering::Relaxed) });
            }
        }
        LogReader { db, ring, merge: Merge::new(next_ts), rings }
    }

    /// Waits for the log's notification (hash-map engine, every [`crate::Config::wal_notify_bytes`] bytes) or
    /// for the given time; returns whether there was one. The arena engine's producers notify nobody.
    pub fn wait(&self, time: std::time::Duration) -> bool {
        match &self.ring {
            Some(ring) => ring.wait(time),
            None => {
                std::thread::sleep(time);
                false
            }
        }
    }

    /// Hands over the transactions that are complete, in timestamp order, until there is none left or
    /// about `max_bytes` of keys and values were handed over. Ring space is free again when this returns,
    /// so the callee must keep what it needs. Returns how many there were.
    pub fn drain(&mut self, max_bytes: usize, f: &mut dyn FnMut(LogTxn)) -> usize {
        struct Collect<'a> {
            txn: LogTxn,
            f: &'a mut dyn FnMut(LogTxn),
        }
        impl TxnSink for Collect<'_> {
            fn begin(&mut self, commit_ts: u64) {
                self.txn = LogTxn { commit_ts, ops: Vec::new() };
            }
            fn op(&mut self, op: OpRef<'_>) {
                self.txn.ops.push(op.into());
            }
            fn end(&mut self) {
                let ops = std::mem::take(&mut self.txn.ops);
                (self.f)(LogTxn { commit_ts: self.txn.commit_ts, ops });
            }
        }
        self.drain_into(max_bytes, &mut Collect { txn: LogTxn { commit_ts: 0, ops: Vec::new() }, f })
    }

    /// [`LogReader::drain`] without copies: keys and values are borrowed from the rings.
    pub fn drain_into(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize {
        if let Some(ring) = &mut self.ring {
            return drain_ring(ring, &mut self.merge, max_bytes, sink);
        }
        let piece = (max_bytes / self.rings.len().max(1)).max(MIN_PIECE) as u64;
        for ring in &mut self.rings {
            read(self.db, ring, piece, &mut self.merge);
        }
        let db = self.db;
        self.merge.settle(self.rings.iter().map(|ring| ring.pos), || {
            self.rings.iter().map(|ring| head(db, ring)).collect()
        });
        let bytes = |(partition, offset): Place| {
            let arena = &db.partitions[partition as usize].arena;
            let record: *const kdb_rec = arena.at(offset);
            // SAFETY: the record is complete, as `read` has seen, and not given back before the end of
            // this function: nobody writes to it. Its size is inside of the ring's data.
            let bytes = unsafe { arena.bytes(offset, (*record).size as usize) };
            let head = header(bytes);
            let by_reference = u32::from(head.flags) & KDB_REC_BY_REFERENCE != 0;
            // SAFETY: the block of a commit after `drained_ts` is not freed and its data does not change.
            let value =
                by_reference.then(|| unsafe { arena.bytes(u64::from(head.index), head.vlen as usize) });
            Record { bytes, value }
        };
        let count = self.merge.emit(max_bytes, &bytes, sink);
        self.merge.copy_rest(&bytes);
        // Only now may the blocks that records referred to go.
        db.state().drained_ts.store(self.merge.done_ts(), Ordering::Release);
        for ring in &self.rings {
            give_back(db, ring);
        }
        count
    }
}

/// The same for the hash-map engine: all records that there are, copied out of the ring buffer.
fn drain_ring(ring: &mut LogRing, merge: &mut Merge, max_bytes: usize, sink: &mut dyn TxnSink) -> usize {
    let records = ring.read();
    records.iter().for_each(|(offset, record)| merge.accept((0, offset as u64), record));
    // One ring, which is read in the order of reservation: what was before is known.
    merge.settle(std::iter::empty(), Vec::new);
    let bytes = |(_, offset): Place| Record::from(records.at(offset as usize));
    let count = merge.emit(max_bytes, &bytes, sink);
    merge.copy_rest(&bytes);
    count
}

/// Memory and size of a ring.
fn geometry(arena: &crate::bpf::ArenaMapping, header: u64) -> (u64, u64) {
    let ring: *const kdb_ring = arena.at(header);
    // SAFETY: in bounds; both fields were set when the arena was formatted and never change.
    unsafe { (u64::from((*ring).data), u64::from((*ring).size)) }
}

/// Up to where the producers have reserved.
fn head(db: &Inner, ring: &Ring) -> u64 {
    let arena = &db.partitions[ring.partition as usize].arena;
    arena.word(ring.header + offset_of!(kdb_ring, head) as u64).load(Ordering::Acquire)
}

/// Reads a ring up to its first incomplete record, or about `piece` bytes.
fn read(db: &Inner, ring: &mut Ring, piece: u64, merge: &mut Merge) {
    let arena = &db.partitions[ring.partition as usize].arena;
    let (data, size) = geometry(arena, ring.header);
    let head = head(db, ring);
    let start = ring.pos;
    while ring.pos < head && ring.pos - start < piece {
        let at = ring.pos % size;
        let room = size - at;
        if room < 16 {
            ring.pos += room;
            continue;
        }
        if arena.word(data + at).load(Ordering::Acquire) != (ring.pos << 1 | 1) ^ db.seed {
            break;
        }
        let record: *const kdb_rec = arena.at(data + at);
        // SAFETY: the record is complete and not given back yet: nobody else writes to it. Its size is
        // inside of the ring's data.
        let bytes = unsafe { (*record).size };
        debug_assert!(bytes > 0 && u64::from(bytes) <= room);
        if u64::from(bytes) >= size_of::<kdb_rec>() as u64 {
            // SAFETY: as above.
            merge.accept((ring.partition, data + at), unsafe { arena.bytes(data + at, bytes as usize) });
        }
        ring.pos += u64::from(bytes);
    }
}

/// Gives back what was read to the producers.
fn give_back(db: &Inner, ring: &Ring) {
    let arena = &db.partitions[ring.partition as usize].arena;
    let tail = arena.word(ring.header + offset_of!(kdb_ring, tail) as u64);
    if tail.load(Ordering::Relaxed) != ring.pos {
        tail.store(ring.pos, Ordering::Release);
    }
}
