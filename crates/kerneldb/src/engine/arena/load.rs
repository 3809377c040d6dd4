//! Filling an arena from user space, while no program works on it: recovery.
//!
//! A [`Loader`] writes entries with one version each, and their values, as the programs would have left them. Several
//! loaders fill one arena at the same time. That needs no locks, because of these invariants:
//!
//! - Each bucket belongs to one loader: a key's bucket determines its loader ([`Partition::bucket_of`]).
//! - Each slab belongs to the loader that claimed it, until that loader finishes. Meanwhile the slab is CLAIMED, and
//!   nothing else touches it. The loader that allocated a block also frees it, because both happen on behalf of one
//!   key.
//! - Nothing reads the arena except for slab descriptors and counters: no operator, snapshot or expiry runs.
//!
//! `bpf/engine/arena/alloc.h` states the rules of the heap.

use std::{collections::HashMap, mem::offset_of, sync::atomic::Ordering};

use super::{
    Partition,
    format::{cells, entry_class, key_of},
    size::{GRAIN, kind_bytes, kind_capacity, size_class},
};
use crate::{
    Error, Result,
    layout::{
        KDB_CELL_MAX, KDB_CHAIN_MAX, KDB_CLASSES, KDB_HEAD_BYTES, KDB_HEADED_MAX, KDB_KINDS, KDB_LEN_EXPIRES,
        KDB_LEN_HEAD, KDB_LEN_INLINE, KDB_LEN_MASK, KDB_LOCK_DEAD, KDB_SLAB_BYTES, kdb_entry, kdb_version,
    },
};

/// Additions of loaders to the accounts of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Keys.
    pub keys: i64,
    /// Bytes of their keys and values.
    pub bytes: i64,
    /// Keys that have an expiry.
    pub expiring: i64,
}

impl Loaded {
    /// Includes the additions of another loader.
    pub(crate) fn add(&mut self, other: Loaded) {
        self.keys += other.keys;
        self.bytes += other.bytes;
        self.expiring += other.expiring;
    }

    fn account(&mut self, klen: usize, len: u32, sign: i64) {
        self.keys += sign;
        self.bytes += sign * (klen as i64 + i64::from(len & KDB_LEN_MASK));
        self.expiring += sign * i64::from(len & KDB_LEN_EXPIRES != 0);
    }
}

/// A key to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadKey<'a> {
    /// Its bytes, 1 to `KEY_MAX` of them.
    pub key: &'a [u8],
    /// Their hash.
    pub hash: u64,
    /// The commit timestamp of its change. A change that is older than the key's version is ignored.
    pub commit_ts: u64,
}

/// Blocks of one kind that a loader can allocate.
#[derive(Default)]
struct Kind {
    /// Offset of the next block that was never used, and the end of its slab.
    next: u64,
    end: u64,
    /// Blocks that were used and freed.
    free: Vec<u64>,
}

/// Position of a key's entry, or the position at which it would be linked.
struct Position {
    /// Offset of the bucket's word.
    bucket: u64,
    /// Offset of the key's entry; 0 = there is none.
    entry: u64,
    /// Offset of the entry before it in the chain; 0 = it is the first.
    before: u64,
}

/// Fills its share of an arena. Dropping it without [`Loader::finish`] leaves slabs claimed for ever.
pub(crate) struct Loader<'a> {
    partition: &'a Partition,
    /// A database with a log needs heads for all values that have blocks.
    head: u32,
    kinds: Vec<Kind>,
    /// Claimed slabs and their kinds.
    slabs: Vec<(u64, u32)>,
    entries: i64,
    loaded: Loaded,
}

impl Partition {
    /// Number of the bucket of keys with a hash.
    pub(crate) fn bucket_of(&self, hash: u64) -> u32 {
        hash as u32 & (self.geometry.nbuckets - 1)
    }
}

impl<'a> Loader<'a> {
    /// A loader without slabs.
    pub(crate) fn new(partition: &'a Partition) -> Loader<'a> {
        Loader {
            partition,
            head: if partition.geometry.ring_bytes > 0 { KDB_LEN_HEAD } else { 0 },
            kinds: (0..KDB_KINDS).map(|_| Kind::default()).collect(),
            slabs: Vec::new(),
            entries: 0,
            loaded: Loaded::default(),
        }
    }

    /// Prefetches the index's memory for keys with these hashes, all at once, so that the misses overlap.
    pub(crate) fn look_ahead(&self, hashes: impl Iterator<Item = u64> + Clone) {
        let first = |hash| self.partition.arena.word(self.bucket(hash)).load(Ordering::Relaxed) as u32;
        let entries = hashes.clone().map(first).fold(0, |any, entry| any | entry);
        if std::hint::black_box(entries) == 0 {
            return;
        }
        for entry in hashes.map(first).filter(|entry| *entry != 0) {
            std::hint::black_box(self.partition.arena.word(u64::from(entry)).load(Ordering::Relaxed));
        }
    }

    /// Writes a key. `expire_ms` is its expiry in Unix time, 0 if it has none.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] when the partition has no slab left, [`Error::ChainFull`]; nothing has changed then.
    pub(crate) fn put(&mut self, key: LoadKey<'_>, value: &[u8], expire_ms: u64) -> Result<()> {
        let position = self.find(&key)?;
        let is_small = value.len() <= KDB_CELL_MAX as usize && expire_ms == 0;
        if position.entry != 0 {
            let entry = self.entry(position.entry);
            // SAFETY: the entry is linked in one of this loader's buckets; nothing else accesses it.
            let (old, class) = unsafe { ((*entry).v[0], (*entry).class_) };
            if old.ts > key.commit_ts {
                return Ok(());
            }
            let new = self.place(position.entry, class.into(), &key, value, expire_ms)?;
            self.free_value(old);
            // SAFETY: as above.
            unsafe { (*entry).v[0] = new };
            self.loaded.account(key.key.len(), old.len, -1);
            self.loaded.account(key.key.len(), new.len, 1);
            return Ok(());
        }
        let room = if is_small { value.len() as u64 } else { u64::from(KDB_CELL_MAX) + 1 };
        let class = entry_class(key.key.len() as u64, room);
        let kind = KDB_CLASSES + class;
        let at = self.allocate(kind)?;
        let version = match self.place(at, class, &key, value, expire_ms) {
            Ok(version) => version,
            Err(error) => {
                self.free_entry(at, kind);
                return Err(error);
            }
        };
        let bucket = self.partition.arena.word(position.bucket);
        let word = bucket.load(Ordering::Relaxed);
        // SAFETY: this loader has just allocated the entry, in which the key fits with its padding.
        unsafe {
            let entry = self.entry(at);
            let padded = key.key.len().next_multiple_of(8);
            let to = self.partition.arena.at::<u8>(key_of(at));
            to.add(padded - 8).cast::<u64>().write(0);
            std::ptr::copy_nonoverlapping(key.key.as_ptr(), to, key.key.len());
            entry.write(kdb_entry {
                next: word as u32,
                hash: key.hash as u32,
                klen: key.key.len() as u8,
                class_: class as u8,
                v: [version, NO_VERSION],
                ..NO_ENTRY
            });
        }
        bucket.store(word & !u64::from(u32::MAX) | at, Ordering::Relaxed);
        self.entries += 1;
        self.loaded.account(key.key.len(), version.len, 1);
        Ok(())
    }

    /// Removes a key, if it is there.
    pub(crate) fn delete(&mut self, key: LoadKey<'_>) -> Result<()> {
        let position = match self.find(&key) {
            // The chain has no room for the key, which is absent.
            Err(Error::ChainFull) => return Ok(()),
            found => found?,
        };
        if position.entry == 0 {
            return Ok(());
        }
        let entry = self.entry(position.entry);
        // SAFETY: the entry is linked in one of this loader's buckets; nothing else accesses it.
        let (old, next, class) = unsafe { ((*entry).v[0], (*entry).next, (*entry).class_) };
        if old.ts > key.commit_ts {
            return Ok(());
        }
        if position.before == 0 {
            let bucket = self.partition.arena.word(position.bucket);
            let word = bucket.load(Ordering::Relaxed);
            bucket.store(word & !u64::from(u32::MAX) | u64::from(next), Ordering::Relaxed);
        } else {
            // SAFETY: as above; it is in the same chain.
            unsafe { (*self.entry(position.before)).next = next };
        }
        self.free_value(old);
        self.free_entry(position.entry, KDB_CLASSES + u32::from(class));
        self.entries -= 1;
        self.loaded.account(key.key.len(), old.len, -1);
        Ok(())
    }

    /// Gives all slabs to the programs and returns the additions to the accounts.
    pub(crate) fn finish(self) -> Loaded {
        struct Slab {
            kind: u32,
            carved: u64,
            used: u64,
            /// See [`Word::new`].
            first: u64,
        }
        let partition = self.partition;
        let mut slabs: HashMap<u64, Slab> = HashMap::with_capacity(self.slabs.len());
        for (slab, kind) in self.slabs {
            let current = &self.kinds[kind as usize];
            let start = partition.geometry.slab_start(slab);
            let carved = if start < current.next && current.next <= start + u64::from(KDB_SLAB_BYTES) {
                (current.next - start) / kind_bytes(kind)
            } else {
                kind_capacity(kind)
            };
            slabs.insert(slab, Slab { kind, carved, used: carved, first: 0 });
        }
        for (kind, lists) in (0..).zip(&self.kinds) {
            let link = if kind < KDB_CLASSES { 0 } else { offset_of!(kdb_entry, next) as u64 };
            for &block in &lists.free {
                let number = partition.geometry.slab_of(block);
                let slab = slabs.get_mut(&number).expect("a loader's blocks are in its slabs");
                partition.arena.word(block + link).store(slab.first, Ordering::Relaxed);
                slab.first = (block - partition.geometry.slab_start(number)) / GRAIN + 1;
                slab.used -= 1;
            }
        }
        for (number, slab) in slabs {
            partition.release_slab(number, slab.kind, slab.first, slab.used, slab.carved);
        }
        partition.add_entries(self.entries);
        self.loaded
    }

    fn bucket(&self, hash: u64) -> u64 {
        self.partition.geometry.buckets + u64::from(self.partition.bucket_of(hash)) * 8
    }

    fn entry(&self, at: u64) -> *mut kdb_entry {
        self.partition.arena.at(at)
    }

    /// Walks the chain of a key; [`Error::ChainFull`] if the key is absent and cannot be added.
    fn find(&self, key: &LoadKey<'_>) -> Result<Position> {
        let bucket = self.bucket(key.hash);
        let mut position = Position { bucket, entry: 0, before: 0 };
        let mut at = u64::from(self.partition.arena.word(bucket).load(Ordering::Relaxed) as u32);
        for _ in 0..KDB_CHAIN_MAX {
            if at == 0 {
                return Ok(position);
            }
            let entry = self.entry(at);
            // SAFETY: the entry is linked in one of this loader's buckets; nothing else accesses it.
            let (hash, klen, next) = unsafe { ((*entry).hash, (*entry).klen, (*entry).next) };
            // SAFETY: as above; the key is behind the entry.
            let found = unsafe { self.partition.arena.bytes(key_of(at), klen.into()) };
            if hash == key.hash as u32 && found == key.key {
                position.entry = at;
                return Ok(position);
            }
            position.before = at;
            at = u64::from(next);
        }
        if at == 0 { Err(Error::ChainFull) } else { Err(Error::Corrupt("a hash chain is too long".into())) }
    }

    /// Gives a value its place, in the first cell of its entry or in a block, and returns its version.
    fn place(
        &mut self,
        entry: u64,
        class: u32,
        key: &LoadKey<'_>,
        value: &[u8],
        expire_ms: u64,
    ) -> Result<kdb_version> {
        let vlen = value.len() as u32;
        let (cell, bytes) = cells(entry, key.key.len() as u64, class).expect("a key fits in its entry");
        let fits = vlen <= KDB_CELL_MAX && expire_ms == 0 && u64::from(vlen) <= bytes;
        let (block, len) = if fits {
            (cell, vlen | KDB_LEN_INLINE)
        } else {
            let len = vlen | self.head | if expire_ms == 0 { 0 } else { KDB_LEN_HEAD | KDB_LEN_EXPIRES };
            let head = head_in_block(len);
            let block = self.allocate(size_class((u64::from(vlen) + head).max(1)))? + head;
            if expire_ms != 0 {
                let at = self.partition.geometry.head_of(block, len);
                self.partition.arena.word(at).store(expire_ms, Ordering::Relaxed);
            }
            (block, len)
        };
        let to = self.partition.arena.range(block, value.len());
        // SAFETY: the cell or the block is this loader's own, and holds the value.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to, value.len()) };
        Ok(kdb_version { ts: key.commit_ts, block: block as u32, len })
    }

    fn free_value(&mut self, version: kdb_version) {
        if version.block != 0 && version.len & KDB_LEN_INLINE == 0 {
            let head = head_in_block(version.len);
            let class = size_class((u64::from(version.len & KDB_LEN_MASK) + head).max(1));
            self.kinds[class as usize].free.push(u64::from(version.block) - head);
        }
    }

    /// Frees an entry, and leaves it in the state that scans of its slab and programs with stale pointers need.
    fn free_entry(&mut self, at: u64, kind: u32) {
        // SAFETY: the entry is this loader's own, and not linked any more.
        unsafe { self.entry(at).write(kdb_entry { lock: KDB_LOCK_DEAD as u64, ..NO_ENTRY }) };
        self.kinds[kind as usize].free.push(at);
    }

    /// Allocates a block or an entry of a kind.
    fn allocate(&mut self, kind: u32) -> Result<u64> {
        let own = &mut self.kinds[kind as usize];
        if let Some(block) = own.free.pop() {
            return Ok(block);
        }
        let bytes = kind_bytes(kind);
        if own.next + bytes > own.end {
            let slab = self.partition.claim_slab(kind).ok_or(Error::NoMemory)?;
            self.slabs.push((slab, kind));
            own.next = self.partition.geometry.slab_start(slab);
            own.end = own.next + u64::from(KDB_SLAB_BYTES);
        }
        own.next += bytes;
        Ok(own.next - bytes)
    }
}

const NO_VERSION: kdb_version = kdb_version { ts: 0, block: 0, len: 0 };

/// An entry without key, versions and successor.
const NO_ENTRY: kdb_entry = kdb_entry {
    lock: 0,
    next: 0,
    hash: 0,
    changes: 0,
    gc_next: 0,
    overflow: 0,
    klen: 0,
    class_: 0,
    gc_queued: 0,
    usage: 0,
    v: [NO_VERSION; 2],
};

/// Bytes of a value's head that are in its block; the same as `head_in_block()` in `bpf/engine/arena/alloc.h`.
fn head_in_block(len: u32) -> u64 {
    if len & KDB_LEN_HEAD != 0 && len & KDB_LEN_MASK <= KDB_HEADED_MAX {
        u64::from(KDB_HEAD_BYTES)
    } else {
        0
    }
}
