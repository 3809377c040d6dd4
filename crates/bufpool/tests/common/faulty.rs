//! Storage in memory with controlled failures. A crash loses, keeps, or tears the writes since the last sync.
#![allow(dead_code, reason = "every test uses some of it")]

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bedplate_bufpool::PAGE;
use bedplate_bufpool::storage::{Read, Storage, Write};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The content of a block. A page of more than one block is torn between any two sectors, too.
type Image = [u8; PAGE];

/// A disk. Clones are the same disk. A clone from before a power failure belongs to a computer that has lost its power, so its
/// operations fail. Threads of a pool that was forgotten may still use it.
pub struct Faulty {
    inner: Arc<Inner>,
    /// Number of power failures before this clone was made.
    failures: u64,
}

impl Clone for Faulty {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), failures: self.disk().failures }
    }
}

struct Inner {
    disk: Mutex<Disk>,
    /// Number of operations in a million that fail.
    reads: AtomicU32,
    writes: AtomicU32,
    syncs: AtomicU32,
    failed: AtomicU64,
    /// Whether a failed sync drops the writes that it should have made durable.
    forgets: AtomicBool,
    /// Number of further blocks that are written before the power fails; 0 means never.
    fuse: AtomicU64,
}

struct Disk {
    durable: BTreeMap<u64, Image>,
    /// Blocks written since the last sync, in order.
    pending: Vec<(u64, Image)>,
    /// Blocks written before a sync that failed. They stay until the power fails, and no sync makes all of them durable.
    cached: BTreeMap<u64, Image>,
    random: SmallRng,
    dead: bool,
    /// Number of power failures.
    failures: u64,
}

impl Faulty {
    pub fn new(seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        let disk = Disk {
            durable: BTreeMap::new(),
            pending: Vec::new(),
            cached: BTreeMap::new(),
            random,
            dead: false,
            failures: 0,
        };
        let inner = Inner {
            disk: Mutex::new(disk),
            reads: AtomicU32::new(0),
            writes: AtomicU32::new(0),
            syncs: AtomicU32::new(0),
            failed: AtomicU64::new(0),
            forgets: AtomicBool::new(false),
            fuse: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner), failures: 0 }
    }

    /// From now on, this many of a million operations fail.
    pub fn fail(&self, reads: u32, writes: u32, syncs: u32) {
        self.inner.reads.store(reads, Ordering::Relaxed);
        self.inner.writes.store(writes, Ordering::Relaxed);
        self.inner.syncs.store(syncs, Ordering::Relaxed);
    }

    /// Sets whether a failed sync drops the writes since the previous sync at once, as kernels may, or only when the power fails.
    pub fn forgets(&self, forgets: bool) {
        self.inner.forgets.store(forgets, Ordering::Relaxed);
    }

    /// Number of operations that were made to fail.
    pub fn failed(&self) -> u64 {
        self.inner.failed.load(Ordering::Relaxed)
    }

    /// Makes the power fail after this number of further blocks has been written.
    pub fn fuse(&self, pages: u64) {
        self.inner.fuse.store(pages, Ordering::Relaxed);
    }

    pub fn is_dead(&self) -> bool {
        self.disk().dead
    }

    /// Makes the power fail and return. Some blocks that were written since the last sync stay, others are lost, and some
    /// pages are torn between two sectors. Returns the number of torn pages.
    pub fn crash(&self) -> usize {
        let mut disk = self.disk();
        disk.dead = false;
        disk.failures += 1;
        self.inner.fuse.store(0, Ordering::Relaxed);
        let mut torn = 0;
        let written = std::mem::take(&mut disk.cached).into_iter().chain(std::mem::take(&mut disk.pending));
        for (page, image) in written {
            let mut content = disk.durable.get(&page).copied().unwrap_or([0; PAGE]);
            let sectors = match disk.random.random_range(0..3) {
                0 => 0..8,
                1 => 0..0,
                _ => {
                    let at = disk.random.random_range(1..8);
                    if disk.random.random() { 0..at } else { at..8 }
                }
            };
            torn += usize::from((1..8).contains(&sectors.len()));
            let bytes = sectors.start * 512..sectors.end * 512;
            content[bytes.clone()].copy_from_slice(&image[bytes]);
            disk.durable.insert(page, content);
        }
        torn
    }

    /// Damages a block.
    pub fn damage(&self, page: u64) {
        let mut disk = self.disk();
        disk.settle();
        disk.durable.get_mut(&page).expect("it was written")[1000] ^= 1;
    }

    /// Puts one block in the place of another.
    pub fn misplace(&self, from: u64, to: u64) {
        let mut disk = self.disk();
        disk.settle();
        let image = disk.durable[&from];
        disk.durable.insert(to, image);
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.inner.disk.lock().unwrap()
    }

    /// Whether the power has failed for this clone.
    fn is_off(&self, disk: &Disk) -> bool {
        disk.dead || disk.failures != self.failures
    }

    fn lot(&self, disk: &mut Disk, per_million: &AtomicU32) -> io::Result<()> {
        if self.is_off(disk) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if disk.random.random_range(0..1_000_000) < per_million.load(Ordering::Relaxed) {
            self.inner.failed.fetch_add(1, Ordering::Relaxed);
            let error = if disk.random.random() { libc::EIO } else { libc::ENOSPC };
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(())
    }
}

impl Disk {
    fn get(&self, page: u64) -> Option<Image> {
        let pending = self.pending.iter().rev().find(|(written, _)| *written == page);
        let known = pending.map(|(_, image)| image).or_else(|| self.cached.get(&page));
        known.or_else(|| self.durable.get(&page)).copied()
    }

    fn settle(&mut self) {
        for (page, image) in std::mem::take(&mut self.pending) {
            self.cached.remove(&page);
            self.durable.insert(page, image);
        }
    }
}

impl Storage for Faulty {
    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            let mut disk = self.disk();
            read.result = self.lot(&mut disk, &self.inner.reads);
            for part in 0..(read.size().bytes() / PAGE) {
                let image = disk.get(read.block() + part as u64).unwrap_or([0; PAGE]);
                // A read that fails has changed the memory too.
                read.fill_part(part * PAGE, &image);
            }
        }
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        for write in writes {
            let mut disk = self.disk();
            write.result = self.lot(&mut disk, &self.inner.writes);
            for (page, image) in (write.block()..).zip(write.bytes().as_chunks::<PAGE>().0) {
                if self.is_off(&disk) {
                    write.result = Err(io::Error::from_raw_os_error(libc::EIO));
                    break;
                }
                disk.pending.push((page, *image));
                if self.inner.fuse.load(Ordering::Relaxed) > 0
                    && self.inner.fuse.fetch_sub(1, Ordering::Relaxed) == 1
                {
                    disk.dead = true;
                }
                if write.result.is_err() {
                    // The write failed in the middle of a page.
                    disk.pending.last_mut().expect("pushed").1[2048..].fill(0xee);
                    break;
                }
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.disk();
        let result = self.lot(&mut disk, &self.inner.syncs);
        if result.is_ok() {
            disk.settle();
        } else if !self.is_off(&disk) {
            let pending = std::mem::take(&mut disk.pending);
            if !self.inner.forgets.load(Ordering::Relaxed) {
                disk.cached.extend(pending);
            }
        }
        result
    }

    fn grow(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }
}
