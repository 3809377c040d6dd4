//! The memory that the engine works on: an arena at a multiple of 4 GiB, the database's state, contexts and I/O
//! buffers. A thread of the test process keeps it from one execution to the next, because fresh memory is slow.

use std::{mem::offset_of, ptr};

use crate::layout::*;
use crate::limits::{ARENA_BYTES, CPUS, FIRST_NS, RING_BYTES, SESSIONS};
use crate::world::Setup;

const GIB4: u64 = 4 << 30;

pub(crate) struct Memory {
    reserved: *mut libc::c_void,
    pub(crate) arena: u64,
    /// Bytes that the last execution may have written.
    used: usize,
    pub(crate) state: *mut kdb_state,
    pub(crate) contexts: *mut kdb_ctx,
    pub(crate) ios: *mut kdb_io,
    pub(crate) config: Box<kdb_config>,
    pub(crate) geometry: Geometry,
    /// Whether a thread other than the session's owner changes contexts.
    contexts_are_shared: bool,
}

/// Offsets of the parts of the arena.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Geometry {
    pub(crate) buckets: u64,
    pub(crate) heap: u64,
    pub(crate) end: u64,
    pub(crate) slabs: u64,
    pub(crate) bitmaps: u64,
    pub(crate) bitmap_words: u64,
}

/// Zeroed memory of one or more `T`, which the process keeps.
fn zeroed<T>(count: usize) -> *mut T {
    let layout = std::alloc::Layout::array::<T>(count).expect("the size fits").align_to(64).expect("aligned");
    // SAFETY: the layout's size is not zero.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!memory.is_null(), "out of memory");
    memory.cast()
}

impl Memory {
    pub(crate) fn new() -> Memory {
        // SAFETY: reserves address space at an address of the kernel's choice.
        let reserved = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), 2 * GIB4 as usize, libc::PROT_NONE, flags, -1, 0)
        };
        assert!(reserved != libc::MAP_FAILED, "cannot reserve address space for the arena");
        let arena = (reserved as u64).next_multiple_of(GIB4);
        // SAFETY: the range is a part of the reservation, which is 4 GiB longer than needed.
        let result = unsafe {
            libc::mprotect(arena as *mut _, ARENA_BYTES as usize, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_eq!(result, 0, "cannot make the arena accessible");
        Memory {
            reserved,
            arena,
            used: 0,
            state: zeroed(1),
            contexts: zeroed(SESSIONS),
            ios: zeroed(SESSIONS),
            // SAFETY: a structure of integers.
            config: Box::new(unsafe { std::mem::zeroed() }),
            geometry: Geometry::default(),
            contexts_are_shared: false,
        }
    }

    /// Sets everything to the state after a start of the database.
    pub(crate) fn reset(&mut self, setup: &Setup) {
        let cpus = u64::from(setup.cpus);
        assert!(setup.cpus as usize <= CPUS, "a model has at most {CPUS} processors");
        let align = |x: u64, to: u64| x.next_multiple_of(to);
        let cpu_state = align(u64::from(KDB_SUPER_OFF) + size_of::<kdb_arena>() as u64, 64);
        let rings = align(cpu_state + cpus * size_of::<kdb_cpu_alloc>() as u64, 64);
        let buckets = align(rings + cpus * size_of::<kdb_ring>() as u64, 64);
        let slabs = align(buckets + u64::from(setup.buckets) * 8, 64);
        let bitmaps = align(slabs + u64::from(setup.slabs) * size_of::<kdb_slab>() as u64, 64);
        let bitmap_words = u64::from(setup.slabs).div_ceil(64);
        let ring_data = align(bitmaps + (u64::from(KDB_KINDS) + 1) * bitmap_words * 8, 4096);
        let ring_bytes = if setup.wal { RING_BYTES } else { 0 };
        let heap = align(ring_data + cpus * u64::from(ring_bytes), u64::from(KDB_SLAB_BYTES));
        let end = heap + u64::from(setup.slabs) * u64::from(KDB_SLAB_BYTES);
        assert!(end <= ARENA_BYTES, "the model's arena ends at {ARENA_BYTES} bytes");
        self.geometry = Geometry { buckets, heap, end, slabs, bitmaps, bitmap_words };
        self.contexts_are_shared = setup.reaper;
        // SAFETY: structures of integers in memory that belongs to this model; no task runs.
        unsafe {
            ptr::write_bytes(self.arena as *mut u8, 0, self.used);
            self.used = end as usize;
            ptr::write_bytes(self.state, 0, 1);
            for session in 0..SESSIONS {
                ptr::write_bytes(self.contexts.add(session), 0, 1);
                (*self.contexts.add(session)).session = session as u32;
                (*self.ios.add(session)).flags = 0;
                (*self.ios.add(session)).expire_ms = 0;
            }
            let config = &mut *self.config;
            config.partitions = 1;
            config.versions = setup.versions;
            config.slots = setup.versions.max(2);
            config.buckets = buckets as u32;
            config.bucket_mask = setup.buckets - 1;
            config.cpus = cpu_state as u32;
            config.ncpus = setup.cpus;
            config.rings = if setup.wal { rings as u32 } else { 0 };
            config.heap = heap as u32;
            config.slabs = slabs as u32;
            config.bitmaps = bitmaps as u32;
            config.bitmap_words = bitmap_words as u32;
            config.wal = u32::from(setup.wal);
            config.hash_key = [0x5eed, 0x5eed_5eed];
            config.log_secret = 0x5ec2e7;
            let state = &mut *self.state;
            state.coarse_ns = FIRST_NS;
            state.snapshot_grace_ns = if setup.revoke { 0 } else { u64::MAX };
            state.scan_grace_ns = u64::MAX;
            let superblock = &mut *((self.arena + u64::from(KDB_SUPER_OFF)) as *mut kdb_arena);
            superblock.limit = end;
            superblock.brk = heap;
            superblock.committed = end;
            superblock.ncpus = setup.cpus;
            superblock.nbuckets = setup.buckets;
            superblock.buckets = buckets as u32;
            superblock.cpus = cpu_state as u32;
            superblock.rings = rings as u32;
            superblock.versions = config.slots;
            for cpu in 0..cpus {
                let ring = (self.arena + rings + cpu * size_of::<kdb_ring>() as u64) as *mut kdb_ring;
                (*ring).data = (ring_data + cpu * u64::from(ring_bytes)) as u32;
                (*ring).size = ring_bytes;
            }
        }
    }

    /// Whether an access to `address` can be seen by another thread of the model.
    pub(crate) fn is_shared(&self, address: u64) -> bool {
        let within = |start: u64, bytes: usize| address.wrapping_sub(start) < bytes as u64;
        if within(self.arena, ARENA_BYTES as usize) {
            return true;
        }
        // Each processor has statistics of its own.
        if within(self.state as u64, size_of::<kdb_state>()) {
            let offset = (address - self.state as u64) as usize;
            return !(offset_of!(kdb_state, stats)..offset_of!(kdb_state, removed_ts)).contains(&offset);
        }
        if !within(self.contexts as u64, SESSIONS * size_of::<kdb_ctx>()) {
            return false;
        }
        // Other operators read a transaction's number and commit timestamp. The reaper changes the rest.
        let offset = (address - self.contexts as u64) as usize % size_of::<kdb_ctx>();
        self.contexts_are_shared
            || offset < offset_of!(kdb_ctx, nlocks)
            || (offset_of!(kdb_ctx, in_use)..offset_of!(kdb_ctx, app)).contains(&offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the arena any more. The other memory is kept: a process has few models.
        unsafe { libc::munmap(self.reserved, 2 * GIB4 as usize) };
    }
}
