//! Layout of an arena, and its first initialization.
//!
//! `bpf/include/bedplate/layout.h` defines the structures, `bpf/engine/arena/alloc.h` the rules of the heap.

use crate::{
    bpf::ArenaMapping,
    engine::control::Secrets,
    layout::{
        KDB_CELL_DEFAULT, KDB_CELL_MAX, KDB_CELLS, KDB_ENTRY_CLASSES, KDB_HEAD_BYTES, KDB_HEADED_MAX,
        KDB_KINDS, KDB_LAYOUT_VERSION, KDB_LEN_MASK, KDB_MAGIC, KDB_SLAB_BYTES, KDB_SUPER_OFF, kdb_arena,
        kdb_config, kdb_cpu_alloc, kdb_entry, kdb_ring, kdb_slab,
    },
    limits::{BYTES_PER_BUCKET, PARTITION_BYTES_MAX, RESERVE_BYTES, RESERVE_SHARE},
};

use super::size::GRAIN;

/// Layout of an arena, computed from its configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Bytes that the arena takes while the database runs.
    pub limit: u64,
    /// Bytes that it may take, including the reserve for recovery.
    pub capacity: u64,
    pub partition: u32,
    pub partitions: u32,
    pub versions: u32,
    pub slots: u32,
    pub ncpus: u32,
    pub ring_bytes: u32,
    pub nbuckets: u32,
    pub cpus: u64,
    pub rings: u64,
    pub buckets: u64,
    pub ring_data: u64,
    pub heap: u64,
    pub slabs: u64,
    pub bitmaps: u64,
    pub bitmap_words: u64,
}

impl Geometry {
    /// Lays out an arena of `limit` bytes (a multiple of 64 KiB, at most 4 GiB). The limit does not include the
    /// reserve, unless they would exceed 4 GiB together.
    pub(crate) fn new(
        limit: u64,
        partition: u32,
        partitions: u32,
        versions: u32,
        ncpus: u32,
        ring_bytes: u32,
    ) -> Self {
        let align = |x: u64, to: u64| x.next_multiple_of(to);
        let nbuckets = bucket_count(limit);
        let capacity = (limit + reserve_bytes(limit)).min(PARTITION_BYTES_MAX);
        let limit = capacity - reserve_bytes(limit);
        let slab_limit = capacity / u64::from(KDB_SLAB_BYTES);
        let bitmap_words = slab_limit.div_ceil(64);
        let cpus = align(u64::from(KDB_SUPER_OFF) + size_of::<kdb_arena>() as u64, 4096);
        let rings = align(cpus + u64::from(ncpus) * size_of::<kdb_cpu_alloc>() as u64, 4096);
        let buckets = align(rings + u64::from(ncpus) * size_of::<kdb_ring>() as u64, 4096);
        let slabs = align(buckets + u64::from(nbuckets) * 8, 4096);
        let bitmaps = align(slabs + slab_limit * size_of::<kdb_slab>() as u64, 4096);
        let ring_data = align(bitmaps + (u64::from(KDB_KINDS) + 1) * bitmap_words * 8, 4096);
        let heap = align(ring_data + u64::from(ncpus) * u64::from(ring_bytes), u64::from(KDB_SLAB_BYTES));
        Geometry {
            limit,
            capacity,
            partition,
            partitions,
            versions,
            slots: versions.max(2),
            ncpus,
            ring_bytes,
            nbuckets,
            cpus,
            rings,
            buckets,
            ring_data,
            heap,
            slabs,
            bitmaps,
            bitmap_words,
        }
    }

    /// The constants of programs that work on this arena.
    pub(crate) fn config(&self, secrets: Secrets) -> kdb_config {
        kdb_config {
            partition: self.partition,
            partitions: self.partitions,
            versions: self.versions,
            slots: self.slots,
            buckets: self.buckets as u32,
            bucket_mask: self.nbuckets - 1,
            cpus: self.cpus as u32,
            ncpus: self.ncpus,
            rings: self.rings as u32,
            heap: self.heap as u32,
            slabs: self.slabs as u32,
            bitmaps: self.bitmaps as u32,
            bitmap_words: self.bitmap_words as u32,
            wal: u32::from(self.ring_bytes > 0),
            hash_key: secrets.hash_key,
            log_secret: secrets.log_secret,
            key_bytes: 0,
            irqs: 0,
            map_args: 0,
            wal_notify: 0,
            handler_sessions: 0,
            _pad: 0,
        }
    }

    /// Number of slabs that the heap can have, including the reserve.
    pub(crate) fn slab_count(&self) -> u64 {
        (self.capacity - self.heap) / u64::from(KDB_SLAB_BYTES)
    }

    /// Number of slabs in the heap if it is used up to the limit.
    pub(crate) fn slab_limit(&self) -> u64 {
        (self.limit - self.heap) / u64::from(KDB_SLAB_BYTES)
    }

    /// Offset of a slab.
    pub(crate) fn slab_start(&self, slab: u64) -> u64 {
        self.heap + slab * u64::from(KDB_SLAB_BYTES)
    }

    /// Number of the slab that an offset of the heap is in.
    pub(crate) fn slab_of(&self, offset: u64) -> u64 {
        (offset - self.heap) / u64::from(KDB_SLAB_BYTES)
    }

    /// Offset of the descriptor of a slab.
    pub(crate) fn descriptor(&self, slab: u64) -> u64 {
        self.slabs + slab * size_of::<kdb_slab>() as u64
    }

    /// Offset of the bitmap of the partial slabs of a kind, or with `KDB_KIND_FREE` of the free slabs.
    pub(crate) fn bitmap(&self, kind: u32) -> u64 {
        self.bitmaps + u64::from(kind) * self.bitmap_words * 8
    }

    /// Offset of the head of a value; the same as `head_at()` in `bpf/engine/arena/alloc.h`.
    pub(crate) fn head_of(&self, block: u64, len: u32) -> u64 {
        if len & KDB_LEN_MASK <= KDB_HEADED_MAX {
            block - u64::from(KDB_HEAD_BYTES)
        } else {
            self.descriptor(self.slab_of(block)) + std::mem::offset_of!(kdb_slab, head) as u64
        }
    }

    /// Initializes an arena of zeros and backs its fixed part with memory.
    pub(crate) fn format(&self, arena: &ArenaMapping) {
        arena.commit(0, self.heap);
        for cpu in 0..u64::from(self.ncpus) {
            let ring: *mut kdb_ring = arena.at(self.rings + cpu * size_of::<kdb_ring>() as u64);
            // SAFETY: in bounds; no program runs on this arena yet, so nothing else accesses it.
            unsafe {
                (*ring).data = (self.ring_data + cpu * u64::from(self.ring_bytes)) as u32;
                (*ring).size = self.ring_bytes;
            }
        }
        let superblock: *mut kdb_arena = arena.at(u64::from(KDB_SUPER_OFF));
        // SAFETY: as above.
        unsafe {
            (*superblock).magic = KDB_MAGIC;
            (*superblock).layout_version = KDB_LAYOUT_VERSION;
            (*superblock).partition = self.partition;
            (*superblock).partitions = self.partitions;
            (*superblock).versions = self.slots;
            (*superblock).nbuckets = self.nbuckets;
            (*superblock).buckets = self.buckets as u32;
            (*superblock).ncpus = self.ncpus;
            (*superblock).cpus = self.cpus as u32;
            (*superblock).rings = self.rings as u32;
            (*superblock).limit = self.limit;
            (*superblock).brk = self.heap;
            (*superblock).committed = self.heap;
        }
    }
}

/// Offset of an entry's key.
pub(crate) fn key_of(entry: u64) -> u64 {
    entry + size_of::<kdb_entry>() as u64
}

/// Bytes of an entry of a size class; the same as `entry_bytes()` in `bpf/engine/arena/arena.h`.
pub(crate) fn entry_bytes(class: u32) -> u64 {
    u64::from(class + 1) * GRAIN
}

/// Size class of an entry for a key of `klen` bytes; the same as `entry_class()` there. The entry's cells have room for
/// values of `vlen` bytes, if cells may hold such values.
pub(crate) fn entry_class(klen: u64, vlen: u64) -> u32 {
    let cell = match vlen {
        0..=KDB_CELL_DEFAULT_BYTES => KDB_CELL_DEFAULT_BYTES,
        _ if vlen <= u64::from(KDB_CELL_MAX) => vlen.next_multiple_of(8),
        _ => 0,
    };
    let bytes = key_of(0) + klen.next_multiple_of(8) + u64::from(KDB_CELLS) * cell;
    let class = (bytes.div_ceil(GRAIN) - 1) as u32;
    debug_assert!(class < KDB_ENTRY_CLASSES);
    class
}

const KDB_CELL_DEFAULT_BYTES: u64 = KDB_CELL_DEFAULT as u64;

/// Offset and size of the cells of an entry with a key of `klen` bytes; as `cell_bytes()` there. `None` if
/// the class is too small for the key.
pub(crate) fn cells(entry: u64, klen: u64, class: u32) -> Option<(u64, u64)> {
    let cells = key_of(entry) + klen.next_multiple_of(8);
    let left = (entry + entry_bytes(class)).checked_sub(cells)?;
    Some((cells, (left / u64::from(KDB_CELLS) / 8 * 8).min(u64::from(KDB_CELL_MAX))))
}

/// Bytes of an arena with this limit that recovery may take beyond it.
fn reserve_bytes(limit: u64) -> u64 {
    (limit / RESERVE_SHARE).clamp(*RESERVE_BYTES.start(), *RESERVE_BYTES.end())
        & !u64::from(KDB_SLAB_BYTES - 1)
}

/// Number of buckets for an arena: the power of two that is nearest to one for [`BYTES_PER_BUCKET`] bytes.
fn bucket_count(limit: u64) -> u32 {
    let wanted = limit / BYTES_PER_BUCKET;
    let below = 1 << wanted.ilog2();
    if wanted >= below + below / 2 { 2 * below as u32 } else { below as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_take_little_of_any_arena() {
        for mebibytes in 16..=4096u64 {
            let limit = mebibytes << 20;
            let buckets = u64::from(bucket_count(limit));
            assert!(buckets.is_power_of_two());
            assert!((3 * BYTES_PER_BUCKET / 4..=3 * BYTES_PER_BUCKET / 2).contains(&(limit / buckets)));
        }
    }

    #[test]
    fn common_entries_take_few_bytes() {
        assert_eq!(entry_bytes(entry_class(16, 16)), 112);
        assert_eq!(entry_bytes(entry_class(16, 0)), 112);
        assert_eq!(entry_bytes(entry_class(16, 100)), 80);
        assert_eq!(entry_bytes(entry_class(255, 32)), 384);
    }

    #[test]
    fn cells_hold_what_their_class_was_made_for() {
        for klen in 1..=255 {
            for vlen in 0..=u64::from(KDB_CELL_MAX) {
                let (at, bytes) = cells(4096, klen, entry_class(klen, vlen)).unwrap();
                assert!(bytes >= vlen && at + 2 * bytes <= 4096 + entry_bytes(entry_class(klen, vlen)));
            }
        }
    }
}
