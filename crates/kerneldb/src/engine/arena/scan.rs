//! Reads the contents of a registered snapshot straight from the mapped arenas.
//!
//! While a snapshot at timestamp S is registered, the newest version of each key at or before S exists, unless it is a
//! tombstone. Its entry is neither unlinked nor reused. A value may move meanwhile. While a scan is registered with the
//! partition's readers, nothing overwrites the value's previous place, so its bytes can be borrowed.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{
    Partition,
    format::{entry_bytes, key_of},
    size::kind_capacity,
};
use crate::{
    engine::{control::Control, storage::SnapshotItem},
    layout::{
        KDB_CLASSES, KDB_INLINE_VERSIONS, KDB_LEN_EXPIRES, KDB_LEN_INLINE, KDB_LEN_MASK, MARKER, kdb_entry,
        kdb_version,
    },
};

/// Number of scan positions (pieces of the heap) over all partitions.
pub(super) fn positions(partitions: &[Partition]) -> u64 {
    partitions.iter().map(|p| p.geometry.slab_count() * PIECES).sum::<u64>()
}

/// A position that may have keys, drawn with a random number. Slabs that were never used have none.
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

    /// Reads entries in the order of memory. Memory that is read a little later is fetched meanwhile, so that memory is
    /// never idle. This is done for entries across page ends, where the processor does not look ahead by itself, and
    /// for values in blocks, which `ahead` remembers. Memory that is no entry yet, or none any more, has no version.
    fn scan_heap<'a>(
        &'a self,
        partition: &'a Partition,
        begin: u64,
        end: u64,
        ahead: &mut VecDeque<Version>,
        f: &mut dyn FnMut(SnapshotItem<'_>),
    ) {
        let _reading = partition.reclaimer.read();
        let used = used_positions(partition);
        let (mut at, end) = (begin, end.min(used));
        let mut fetched = 0;
        while at < end {
            let slab = at / PIECES;
            let stop = end.min((slab + 1) * PIECES);
            if let Some((class, carved)) = entries_in(partition, slab) {
                let bytes = entry_bytes(class);
                let capacity = kind_capacity(KDB_CLASSES + class);
                let start = partition.geometry.slab_start(slab);
                let of = |position: u64| ((position - slab * PIECES) * capacity / PIECES).min(carved);
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
        loop {
            if let Ok(found) = self.newest(partition, entry) {
                return found.filter(|version| version.block != 0);
            }
        }
    }

    fn item<'a>(&'a self, partition: &'a Partition, version: &Version) -> SnapshotItem<'a> {
        let &Version { entry, commit_ts, block, len } = version;
        let head: *const kdb_entry = partition.arena.at(entry);
        // SAFETY: in bounds; the key of an entry with a needed version does not change.
        let klen = unsafe { (&raw const (*head).klen).read_volatile() };
        let block = u64::from(block);
        // SAFETY: the memory is mapped as long as the database. Key and block stay unchanged while the snapshot is
        // registered and not revoked, and while the scan that calls this is registered. After that their bytes, which
        // are plain data, may change, and `Snapshot::scan` documents that.
        let (key, value) = unsafe {
            (
                partition.arena.bytes(key_of(entry), usize::from(klen)),
                partition.arena.bytes(block, (len & KDB_LEN_MASK) as usize),
            )
        };
        let expires = len & KDB_LEN_EXPIRES != 0;
        let head = partition.geometry.head_of(block, len);
        let expire_at_ms = expires.then(|| partition.arena.word(head).load(Ordering::Relaxed));
        SnapshotItem { key, value, expire_at_ms, commit_ts }
    }

    /// The newest version at or before the snapshot. `Err` = look again, also because a version left or moved
    /// meanwhile: it may have been a tombstone, which no snapshot needs, or a version that the tombstone hid. The order
    /// of the steps is that of `version_find()` in `bpf/engine/arena/version.h`.
    fn newest(&self, partition: &Partition, entry: u64) -> std::result::Result<Option<Version>, ()> {
        let words = partition.arena.words(entry, ENTRY_WORDS);
        let changes = |order| words[CHANGES_AT].load(order) as u32;
        let before = changes(Ordering::Acquire);
        let overflow = u64::from(words[OVERFLOW_AT].load(Ordering::Acquire) as u32);
        let mut best: Option<Version> = None;
        let mut look = |slot: &[AtomicU64]| {
            let seen = slot[0].load(Ordering::Acquire);
            let commit_ts = if seen & MARKER != 0 { self.control.resolve(seen) } else { seen };
            // The value is read after the marker was resolved, because the transaction may replace the value until its
            // commit.
            let word = slot[1].load(Ordering::Acquire);
            if seen & MARKER != 0 && slot[0].load(Ordering::Acquire) != seen {
                return Err(());
            }
            let newer = best.as_ref().is_none_or(|best| commit_ts > best.commit_ts);
            if commit_ts != 0 && commit_ts <= self.timestamp && newer {
                best = Some(Version { entry, commit_ts, block: word as u32, len: (word >> 32) as u32 });
            }
            Ok(())
        };
        words[SLOTS_AT..].chunks_exact(2).try_for_each(&mut look)?;
        let more = (partition.geometry.slots - KDB_INLINE_VERSIONS) as usize;
        if overflow != 0 && more > 0 {
            partition.arena.words(overflow, 2 * more).chunks_exact(2).try_for_each(&mut look)?;
        }
        fence(Ordering::Acquire);
        if changes(Ordering::Relaxed) == before { Ok(best) } else { Err(()) }
    }
}

/// Scan positions of a slab: enough that few entries have the same position.
const PIECES: u64 = 64;
/// Limits on values that are fetched ahead, and on their bytes: about as many as a processor fetches at once.
const AHEAD: usize = 32;
const BYTES_AHEAD: u64 = 2 << 10;
/// Entries are fetched this many bytes before they are read.
const ENTRIES_AHEAD: u64 = 2048;
/// Bytes of a value that are fetched ahead; the processor fetches the rest by itself.
const VALUE_AHEAD: u64 = 1024;

/// Words of an entry: its size without the key, the words whose lower halves are the count of changes and the
/// offset of the overflow array, and the first version slot (a slot is a timestamp, and a word with block and
/// length).
pub(super) const ENTRY_WORDS: usize = size_of::<kdb_entry>() / 8;
const CHANGES_AT: usize = offset_of!(kdb_entry, changes) / 8;
pub(super) const OVERFLOW_AT: usize = offset_of!(kdb_entry, overflow) / 8;
pub(super) const SLOTS_AT: usize = offset_of!(kdb_entry, v) / 8;
const _: () = assert!(offset_of!(kdb_entry, changes) % 8 == 0 && offset_of!(kdb_entry, overflow) % 8 == 0);
const _: () = assert!(offset_of!(kdb_version, ts) == 0 && size_of::<kdb_version>() == 16);
const _: () = assert!(offset_of!(kdb_version, block) == 8 && offset_of!(kdb_version, len) == 12);

/// Class and number of the entries that were ever created in a slab of entries. An entry is in a valid state, and
/// without versions, before it is counted.
pub(super) fn entries_in(partition: &Partition, slab: u64) -> Option<(u32, u64)> {
    // The kind is read before the word: a slab that has entries now keeps them while the scan is registered, and a free
    // slab has another kind.
    let class = partition.slab_kind(slab).checked_sub(KDB_CLASSES)?;
    Some((class, partition.slab_word(slab).carved()))
}

/// The positions of a partition that were ever used are below this one.
fn used_positions(partition: &Partition) -> u64 {
    partition.used_slabs() * PIECES
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

/// Lets the processor fetch memory that is read a little later.
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
