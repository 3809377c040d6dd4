//! Reads what a registered snapshot sees straight from the mapped arenas.
//!
//! While a snapshot at timestamp S is registered, the version of each key that is the newest at or before S stays where
//! it is, unless it is a tombstone, so its bytes can be borrowed; entries that have such a version are neither unlinked
//! nor reused.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{Partition, format::Geometry};
use crate::{
    engine::{control::Control, storage::SnapshotItem},
    layout::{
        KDB_LEN_EXPIRES, KDB_LEN_INLINE, KDB_LEN_MASK, KDB_SLAB_BYTES, MARKER, kdb_block, kdb_entry,
        kdb_version,
    },
};

/// Number of scan positions (pieces of the heap) over all partitions.
pub(super) fn positions(partitions: &[Partition]) -> u64 {
    partitions.iter().map(|p| p.geometry.slab_count() * PIECES).sum::<u64>()
}

/// A position that may have keys, drawn with a random number. Behind what was ever used there are none.
pub(super) fn draw_position(partitions: &[Partition], random: u64) -> u64 {
    let used: Vec<u64> = partitions.iter().map(used_positions).collect();
    let mut left = random % used.iter().sum::<u64>().max(1);
    let mut first = 0;
    for (partition, used) in partitions.iter().zip(used) {
        if left < used {
            return first + left;
        }
        left -= used;
        first += partition.geometry.slab_count() * PIECES;
    }
    0
}

/// Reads the versions that a registered snapshot sees.
pub(super) struct Reader<'db> {
    pub control: &'db Control,
    pub partitions: &'db [Partition],
    /// The timestamp of the snapshot, which stays registered as long as the reader is used.
    pub timestamp: u64,
}

impl Reader<'_> {
    /// Calls `f` for every key visible at positions `from..to`.
    pub(super) fn scan(&self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) {
        let mut ahead = VecDeque::with_capacity(AHEAD + 1);
        let mut first = 0;
        for partition in self.partitions {
            let count = partition.geometry.slab_count() * PIECES;
            let begin = from.clamp(first, first + count) - first;
            let end = to.clamp(first, first + count) - first;
            self.scan_heap(partition, begin, end, &mut ahead, f);
            first += count;
        }
    }

    /// Reads entries as they lie in memory. What is read a little later is fetched meanwhile, so that memory is
    /// never idle: entries across page ends, where the processor does not look ahead by itself, and values in
    /// blocks, which `ahead` remembers. Memory that is no entry yet, or none any more, has no version.
    fn scan_heap<'a>(
        &'a self,
        partition: &'a Partition,
        begin: u64,
        end: u64,
        ahead: &mut VecDeque<Version>,
        f: &mut dyn FnMut(SnapshotItem<'_>),
    ) {
        let geometry = &partition.geometry;
        let used = used_positions(partition);
        let (mut at, end) = (begin, end.min(used));
        let mut fetched = 0;
        while at < end {
            let slab = at / PIECES;
            let stop = end.min((slab + 1) * PIECES);
            if let Some(class) = entry_class(partition, slab) {
                let bytes = Geometry::entry_bytes(class);
                let entries = u64::from(KDB_SLAB_BYTES) / bytes;
                let start = geometry.heap + slab * u64::from(KDB_SLAB_BYTES);
                let of = |position: u64| (position - slab * PIECES) * entries / PIECES;
                for i in of(at)..of(stop) {
                    let entry = start + i * bytes;
                    fetch(partition, entry + ENTRIES_AHEAD, bytes);
                    let Some(version) = self.visible(partition, entry) else { continue };
                    if version.len & KDB_LEN_INLINE != 0 {
                        f(self.item(partition, &version));
                        continue;
                    }
                    fetch(partition, u64::from(version.block), version.fetched());
                    fetched += version.fetched();
                    ahead.push_back(version);
                    while (fetched > BYTES_AHEAD || ahead.len() > AHEAD)
                        && let Some(version) = ahead.pop_front()
                    {
                        fetched -= version.fetched();
                        f(self.item(partition, &version));
                    }
                }
            }
            at = stop;
        }
        ahead.drain(..).for_each(|version| f(self.item(partition, &version)));
    }

    /// The version of an entry that this snapshot sees, unless it is a tombstone.
    fn visible(&self, partition: &Partition, entry: u64) -> Option<Version> {
        let words = partition.arena.words(entry, SLOTS_AT + 2 * partition.geometry.slots as usize);
        let (slot, commit_ts) = loop {
            if let Ok(found) = self.newest(words) {
                break found?;
            }
        };
        fence(Ordering::Acquire);
        // A version needed by a registered snapshot does not change any more.
        let word = words[slot + 1].load(Ordering::Relaxed);
        let (block, len) = (word as u32, (word >> 32) as u32);
        (block != 0).then_some(Version { entry, commit_ts, block, len })
    }

    fn item<'a>(&'a self, partition: &'a Partition, version: &Version) -> SnapshotItem<'a> {
        let &Version { entry, commit_ts, block, len } = version;
        let head: *const kdb_entry = partition.arena.at(entry);
        // SAFETY: in bounds; the key of an entry with a needed version does not change.
        let klen = unsafe { (&raw const (*head).klen).read_volatile() };
        let block = u64::from(block);
        let data = block + size_of::<kdb_block>() as u64;
        // SAFETY: key and block stay unchanged while this snapshot, which the slices borrow, is registered.
        let (key, value) = unsafe {
            (
                partition.arena.bytes(partition.geometry.key_of(entry), usize::from(klen)),
                partition.arena.bytes(data, (len & KDB_LEN_MASK) as usize),
            )
        };
        let expires = len & KDB_LEN_EXPIRES != 0;
        let expire_at_ms = expires.then(|| partition.arena.word(block).load(Ordering::Relaxed));
        SnapshotItem { key, value, expire_at_ms, commit_ts }
    }

    /// Place among the entry's words and timestamp of the newest version at or before the snapshot; `Err` = look
    /// again, also because a version left meanwhile: it may have been a tombstone, which no snapshot needs, and
    /// what it hid.
    fn newest(&self, words: &[AtomicU64]) -> std::result::Result<Option<(usize, u64)>, ()> {
        let changes = &words[CHANGES_AT];
        let before = changes.load(Ordering::Acquire);
        let mut best = None;
        for (slot, word) in words.iter().enumerate().skip(SLOTS_AT).step_by(2) {
            let mut ts = word.load(Ordering::Acquire);
            if ts & MARKER != 0 {
                let marker = ts;
                ts = self.control.resolve(marker);
                if word.load(Ordering::Acquire) != marker {
                    return Err(());
                }
            }
            if ts != 0 && ts <= self.timestamp && best.is_none_or(|(_, t)| ts > t) {
                best = Some((slot, ts));
            }
        }
        fence(Ordering::Acquire);
        if changes.load(Ordering::Relaxed) == before { Ok(best) } else { Err(()) }
    }
}

/// Scan positions of a slab: so many that few entries have the same.
const PIECES: u64 = 64;
/// Most values that are fetched ahead, and most bytes of them: about as many as a processor fetches at once.
const AHEAD: usize = 32;
const BYTES_AHEAD: u64 = 2 << 10;
/// Entries are fetched this long before they are looked at.
const ENTRIES_AHEAD: u64 = 2048;
/// So much of a value is fetched ahead; what follows comes by itself.
const VALUE_AHEAD: u64 = 1024;

/// Words of an entry: its count of changes, and the first version slot (a slot is a timestamp, and a word with
/// block and length).
const CHANGES_AT: usize = offset_of!(kdb_entry, changes) / 8;
pub(super) const SLOTS_AT: usize = size_of::<kdb_entry>() / 8;
const _: () = assert!(offset_of!(kdb_version, ts) == 0 && size_of::<kdb_version>() == 16);
const _: () = assert!(offset_of!(kdb_version, block) == 8 && offset_of!(kdb_version, len) == 12);

/// Positions of a partition that were ever used: those before this one.
fn used_positions(partition: &Partition) -> u64 {
    used_slabs(partition) * PIECES
}

/// Slabs of a partition that were ever used: those before this one.
pub(super) fn used_slabs(partition: &Partition) -> u64 {
    (partition.brk() - partition.geometry.heap) / u64::from(KDB_SLAB_BYTES)
}

/// The class of the entries in a slab, if the slab has entries.
pub(super) fn entry_class(partition: &Partition, slab: u64) -> Option<u64> {
    let word = partition.arena.word(partition.geometry.slabs + slab / 8 * 8).load(Ordering::Acquire);
    (word.to_le_bytes()[(slab % 8) as usize] as u64).checked_sub(1)
}

/// A version that a snapshot sees.
struct Version {
    entry: u64,
    commit_ts: u64,
    block: u32,
    len: u32,
}

impl Version {
    /// Bytes of the value that are fetched ahead.
    fn fetched(&self) -> u64 {
        u64::from(self.len & KDB_LEN_MASK).min(VALUE_AHEAD)
    }
}

/// Lets the processor fetch what is read a little later.
#[inline]
fn fetch(partition: &Partition, offset: u64, bytes: u64) {
    for at in (offset..offset + bytes).step_by(64) {
        if at < partition.arena.len() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint; it does not access memory, and the address is inside of the arena.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(partition.arena.at::<u8>(at).cast());
            }
        }
    }
}
