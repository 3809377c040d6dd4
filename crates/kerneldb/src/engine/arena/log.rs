//! The log rings of this engine: merges the rings of all CPUs and partitions into one sequence with
//! consecutive commit timestamps (paper 4.3).
//!
//! A record is complete when its `state` is that of its own position, which depends on the database's secret:
//! stale bytes never look like a complete record.

use std::{
    mem::offset_of,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::Partition;
use crate::{
    engine::{
        control::Control,
        log::TxnSink,
        merge::{Merge, Place, Record, header},
        storage::LogRings,
    },
    layout::{KDB_REC_BY_REFERENCE, kdb_rec, kdb_ring},
};

/// At least this many bytes are read from a ring at once, if they are there.
const MIN_PIECE: usize = 64 << 10;

/// The log rings of all partitions.
pub(super) struct ArenaLog<'db> {
    control: &'db Control,
    partitions: &'db [Partition],
    merge: Merge,
    rings: Vec<Ring>,
    /// Time of the last search for abandoned transactions.
    abandoned_at: Instant,
}

/// A ring, and the position up to which it was read. `tail..pos` was read but not given back.
struct Ring {
    partition: u32,
    /// Offset of its header in the arena.
    header: u64,
    pos: u64,
}

impl<'db> ArenaLog<'db> {
    pub(super) fn new(control: &'db Control, partitions: &'db [Partition]) -> Self {
        let next_ts = control.state().durable_ts.load(Ordering::SeqCst) + 1;
        let mut rings = Vec::new();
        for (partition, owner) in (0..).zip(partitions) {
            for cpu in 0..u64::from(owner.geometry.ncpus) {
                let header = owner.geometry.rings + cpu * size_of::<kdb_ring>() as u64;
                let tail = owner.arena.word(header + offset_of!(kdb_ring, tail) as u64);
                rings.push(Ring { partition, header, pos: tail.load(Ordering::Relaxed) });
            }
        }
        ArenaLog { control, partitions, merge: Merge::new(next_ts), rings, abandoned_at: Instant::now() }
    }
}

impl LogRings for ArenaLog<'_> {
    /// The producers of this engine send no notifications.
    fn wait(&self, time: Duration) -> bool {
        std::thread::sleep(time);
        false
    }

    fn read_bytes(&self) -> u64 {
        self.rings.iter().map(|ring| ring.pos).sum()
    }

    fn drain(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize {
        let (control, partitions) = (self.control, self.partitions);
        self.merge.find_abandoned(&mut self.abandoned_at, |id| control.has_ended(id));
        // Transactions that were left over the last time come first, because their copies would pile up
        // otherwise.
        let left_over = self.merge.emit(max_bytes, &|_| unreachable!("what is left over is copied"), sink);
        if self.merge.is_ready() {
            control.state().drained_ts.store(self.merge.done_ts(), Ordering::Release);
            return left_over;
        }
        let piece = (max_bytes / self.rings.len().max(1)).max(MIN_PIECE) as u64;
        for ring in &mut self.rings {
            read(control.secrets.log_secret, partitions, ring, piece, &mut self.merge);
        }
        self.merge.settle(self.rings.iter().map(|ring| ring.pos), || {
            self.rings.iter().map(|ring| head(partitions, ring)).collect()
        });
        let bytes = |(partition, offset): Place| {
            let arena = &partitions[partition as usize].arena;
            let record: *const kdb_rec = arena.at(offset);
            // SAFETY: the record is complete, as `read` has seen, and is not given back before the end of
            // this function, so nothing writes to it. Its size is inside of the ring's data.
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
        // From now on the blocks that records referred to may be freed.
        control.state().drained_ts.store(self.merge.done_ts(), Ordering::Release);
        for ring in &self.rings {
            give_back(partitions, ring);
        }
        left_over + count
    }
}

/// Memory and size of a ring.
fn geometry(arena: &crate::bpf::ArenaMapping, header: u64) -> (u64, u64) {
    let ring: *const kdb_ring = arena.at(header);
    // SAFETY: in bounds; both fields were set when the arena was formatted and never change.
    unsafe { (u64::from((*ring).data), u64::from((*ring).size)) }
}

/// Position up to which the producers have reserved.
fn head(partitions: &[Partition], ring: &Ring) -> u64 {
    let arena = &partitions[ring.partition as usize].arena;
    arena.word(ring.header + offset_of!(kdb_ring, head) as u64).load(Ordering::Acquire)
}

/// Reads a ring up to its first incomplete record, or about `piece` bytes.
fn read(log_secret: u64, partitions: &[Partition], ring: &mut Ring, piece: u64, merge: &mut Merge) {
    let arena = &partitions[ring.partition as usize].arena;
    let (data, size) = geometry(arena, ring.header);
    let head = head(partitions, ring);
    let start = ring.pos;
    while ring.pos < head && ring.pos - start < piece {
        let at = ring.pos % size;
        let room = size - at;
        if room < 16 {
            ring.pos += room;
            continue;
        }
        if arena.word(data + at).load(Ordering::Acquire) != (ring.pos << 1 | 1) ^ log_secret {
            break;
        }
        let record: *const kdb_rec = arena.at(data + at);
        // SAFETY: the record is complete and not given back yet, so nothing writes to it. Its size is inside
        // of the ring's data.
        let bytes = unsafe { (*record).size };
        debug_assert!(bytes > 0 && u64::from(bytes) <= room);
        if u64::from(bytes) >= size_of::<kdb_rec>() as u64 {
            // SAFETY: as above.
            merge.accept((ring.partition, data + at), unsafe { arena.bytes(data + at, bytes as usize) });
        }
        ring.pos += u64::from(bytes);
    }
}

/// Gives the space that was read back to the producers.
fn give_back(partitions: &[Partition], ring: &Ring) {
    let arena = &partitions[ring.partition as usize].arena;
    let tail = arena.word(ring.header + offset_of!(kdb_ring, tail) as u64);
    if tail.load(Ordering::Relaxed) != ring.pos {
        tail.store(ring.pos, Ordering::Release);
    }
}
