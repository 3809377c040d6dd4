//! Where things lie in an arena, and its first initialization.

use crate::{
    bpf::ArenaMapping,
    engine::control::Secrets,
    layout::{
        KDB_CACHE_LINE, KDB_CELLS, KDB_LAYOUT_VERSION, KDB_MAGIC, KDB_SLAB_BYTES, KDB_SUPER_OFF, kdb_arena,
        kdb_config, kdb_cpu_alloc, kdb_entry, kdb_ring, kdb_version,
    },
};

/// Smallest sensible arena.
pub(crate) const MIN_ARENA: u64 = 16 << 20;
/// One bucket for so many bytes of the arena: about one key at the smallest sizes.
const BYTES_PER_BUCKET: u64 = 256;

/// Layout of an arena, computed from its configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub limit: u64,
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
}

impl Geometry {
    /// Lays out an arena of `limit` bytes (a multiple of 4096, at most 4 GiB).
    pub(crate) fn new(
        limit: u64,
        partition: u32,
        partitions: u32,
        versions: u32,
        ncpus: u32,
        ring_bytes: u32,
    ) -> Self {
        let align = |x: u64, to: u64| x.next_multiple_of(to);
        let nbuckets = (limit / BYTES_PER_BUCKET).next_power_of_two() as u32;
        let cpus = align(u64::from(KDB_SUPER_OFF) + size_of::<kdb_arena>() as u64, 4096);
        let rings = align(cpus + u64::from(ncpus) * size_of::<kdb_cpu_alloc>() as u64, 4096);
        let buckets = align(rings + u64::from(ncpus) * size_of::<kdb_ring>() as u64, 4096);
        let slabs = align(buckets + u64::from(nbuckets) * 8, 4096);
        let ring_data = align(slabs + limit / u64::from(KDB_SLAB_BYTES), 4096);
        let heap = align(ring_data + u64::from(ncpus) * u64::from(ring_bytes), u64::from(KDB_SLAB_BYTES));
        Geometry {
            limit,
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
            wal: u32::from(self.ring_bytes > 0),
            hash_key: secrets.hash_key,
            log_secret: secrets.log_secret,
            key_bytes: 0,
            irqs: 0,
            map_args: 0,
            wal_notify: 0,
        }
    }

    /// Offset of an entry's key.
    pub(crate) fn key_of(&self, entry: u64) -> u64 {
        entry + (size_of::<kdb_entry>() + self.slots as usize * size_of::<kdb_version>()) as u64
    }

    /// Slabs that the heap may come to.
    pub(crate) fn slab_count(&self) -> u64 {
        (self.limit - self.heap) / u64::from(KDB_SLAB_BYTES)
    }

    /// Bytes of an entry of a size class.
    pub(crate) fn entry_bytes(class: u64) -> u64 {
        (class + 1) * u64::from(KDB_CACHE_LINE)
    }

    /// Offset and size of the cells of an entry with a key of `klen` bytes; as `cell_bytes()` in
    /// `bpf/engine/arena/arena.h`. `None` if the class is too small for the key.
    pub(crate) fn cells(&self, entry: u64, klen: u64, class: u64) -> Option<(u64, u64)> {
        let cells = self.key_of(entry) + klen.next_multiple_of(8);
        let left = (entry + Self::entry_bytes(class)).checked_sub(cells)?;
        Some((cells, left / u64::from(KDB_CELLS) / 8 * 8))
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
