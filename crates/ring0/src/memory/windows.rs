//! The windows: which gigabyte of virtual addresses is where in guest-physical memory, and the page tables that
//! say so.
//!
//! Guest-physical memory is handed out from 4 GiB up, a gigabyte at a time; the number of a gigabyte is also the
//! number of KVM's memory slot (less the first four). Virtual and guest-physical addresses are congruent modulo
//! 1 GiB, so that huge pages stay huge.
//!
//! The tables have a topmost table and all 256 tables below it from the start: a window is one entry (or one table,
//! where the processor has no 1 GiB pages). Whoever copies the topmost table so sees windows that are added later.
//!
//! One lock, `space`, is held while windows are added or taken away, in ring 3 with signals blocked: ring 0 asks its
//! host part, so an interrupted holder never is the one who waits. Readers need no lock.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kvm_bindings::kvm_userspace_memory_region;

use super::mapping::Mapping;
use super::{ADDRESS_END, WINDOW, maps};
use crate::arch::instructions::syscall;
use crate::error::{Error, Result};
use crate::frames::Frame;
use crate::host::signals::BlockedSignals;
use crate::paging::{PhysicalMemory, Table};

/// The first gigabyte of guest-physical memory that is handed out.
const FIRST: usize = 4;
/// Windows of virtual addresses there can be.
const VIRTUAL: usize = 1 << 17;
/// Marks addresses that ring 0 alone gives a meaning.
const PRIVATE: u32 = u32::MAX;

const ENTRIES: usize = 512;
const TABLE_BYTES: usize = 4096;
const TABLE_FLAGS: u64 = 7; // present, writable, user
const LEAF_FLAGS: u64 = 0xe7; // and accessed, dirty, huge
const KVM_SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;

/// See the module.
#[derive(Debug)]
pub struct Windows {
    vm: RawFd,
    /// For each gigabyte of virtual addresses: 0, or 1 + the number of its gigabyte of guest-physical memory, or
    /// [`PRIVATE`].
    physical: Mapping,
    /// For each gigabyte of guest-physical memory: 0, or 1 + the number of its gigabyte of virtual addresses.
    virtuals: Box<[AtomicU32]>,
    /// The topmost table, the 256 tables below it, and one more for each window if there are no 1 GiB pages.
    tables: Mapping,
    gigabyte_pages: bool,
    space: Mutex<Space>,
}

/// Which gigabytes of guest-physical memory are taken.
#[derive(Debug)]
struct Space {
    taken: Box<[bool]>,
    free: usize,
    /// Which are in use; filled by `reclaim`, which cannot allocate.
    used: Box<[bool]>,
}

/// Memory that was given guest-physical addresses of its own, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// The guest-physical address of its first byte.
    pub physical: u64,
    /// Its length.
    pub bytes: u64,
}

impl Windows {
    /// Tables without windows but their own. `width` is the number of bits of a physical address, `slots` the
    /// number of memory slots KVM has.
    pub fn new(vm: &impl AsRawFd, width: u32, slots: usize, gigabyte_pages: bool) -> Result<Windows> {
        let end = (1usize << width.clamp(33, 48).saturating_sub(30)).min(slots.saturating_sub(8) + FIRST);
        let tables = 1 + 256 + if gigabyte_pages { 0 } else { end };
        let mut taken = vec![false; end].into_boxed_slice();
        taken[..FIRST].fill(true);
        let windows = Windows {
            vm: vm.as_raw_fd(),
            physical: Mapping::new(VIRTUAL * size_of::<AtomicU32>(), "the list of windows")?,
            virtuals: (0..end).map(|_| AtomicU32::new(0)).collect(),
            tables: Mapping::new(tables * TABLE_BYTES, "page tables")?,
            gigabyte_pages,
            space: Mutex::new(Space { used: taken.clone(), taken, free: end - FIRST }),
        };
        let own = windows.tables.base() as u64;
        windows.add(own, windows.tables.bytes() as u64)?;
        for index in 0..256 {
            let table = windows.table(1 + index);
            let entry =
                windows.physical_address(own + (TABLE_BYTES * (1 + index)) as u64).unwrap_or(0) | TABLE_FLAGS;
            debug_assert_ne!(entry, TABLE_FLAGS);
            windows.table(0)[index].store(entry, Ordering::Release);
            debug_assert!(table.len() == ENTRIES);
        }
        Ok(windows)
    }

    /// How many windows there can be.
    pub fn capacity(&self) -> usize {
        self.virtuals.len() - FIRST
    }

    /// How many gigabytes of guest-physical memory are not handed out.
    pub fn free(&self) -> usize {
        let _signals = BlockedSignals::new();
        self.lock().free
    }

    /// The guest-physical address of the topmost table: what CR3 is.
    pub fn root(&self) -> u64 {
        self.physical_address(self.tables.base() as u64).unwrap_or(0)
    }

    /// The guest-physical address of a virtual one, if its window is there.
    #[inline]
    pub fn physical_address(&self, address: u64) -> Option<u64> {
        match self.window(address)?.load(Ordering::Acquire) {
            0 | PRIVATE => None,
            number => Some(u64::from(number - 1) * WINDOW + address % WINDOW),
        }
    }

    /// The virtual address of a guest-physical one.
    #[inline]
    pub fn virtual_address(&self, physical: u64) -> Option<u64> {
        let number = usize::try_from(physical / WINDOW).ok()?;
        match self.virtuals.get(number)?.load(Ordering::Acquire) {
            0 => None,
            window => Some(u64::from(window - 1) * WINDOW + physical % WINDOW),
        }
    }

    /// Whether the address belongs to ring 0 alone.
    pub fn is_private(&self, address: u64) -> bool {
        self.window(address).is_some_and(|window| window.load(Ordering::Acquire) == PRIVATE)
    }

    /// Whether the window of an address is one entry, as it was added: nobody has divided it.
    pub fn is_whole(&self, address: u64) -> bool {
        let (top, entry) = ((address >> 39) as usize & 511, (address >> 30) as usize & 511);
        let value = self.table(1 + top)[entry].load(Ordering::Acquire);
        match self.physical_address(address / WINDOW * WINDOW) {
            Some(physical) if self.gigabyte_pages => value & !0xfff == physical,
            Some(_) => value != 0,
            None => false,
        }
    }

    /// Adds the windows of a range. In ring 3.
    pub fn add(&self, address: u64, bytes: u64) -> Result<()> {
        let end = checked_end(address, bytes)?;
        let _signals = BlockedSignals::new();
        let mut space = self.lock();
        let mut start = address / WINDOW * WINDOW;
        while start < end {
            self.add_one(&mut space, start)?;
            start += WINDOW;
        }
        Ok(())
    }

    fn add_one(&self, space: &mut Space, start: u64) -> Result<()> {
        let Some(window) = self.window(start) else { return Ok(()) };
        if window.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        let number = match space.take(1) {
            Some(number) => number,
            None => {
                self.reclaim(space);
                space
                    .take(1)
                    .ok_or(Error::AddressSpace { needed: self.capacity() + 1, available: self.capacity() })?
            }
        };
        let bytes = WINDOW.min(ADDRESS_END - start);
        if let Err(error) = self.set_slot(number, start, bytes) {
            space.give(number, 1);
            return Err(error);
        }
        self.virtuals[number].store((start / WINDOW) as u32 + 1, Ordering::Release);
        window.store(number as u32 + 1, Ordering::Release);
        self.map(start, Some(number));
        Ok(())
    }

    /// Takes windows away in which there is no memory any more. KVM flushes what processors have cached of a slot
    /// when it goes, so a gigabyte can be handed out again at once.
    fn reclaim(&self, space: &mut Space) {
        space.used.fill(false);
        let complete = maps::for_each(|area| {
            if !area.is_reservation() {
                for window in area.range.start / WINDOW..=(area.range.end - 1) / WINDOW {
                    if let Some(number) = self.physical_address(window * WINDOW) {
                        space.used[(number / WINDOW) as usize] = true;
                    }
                }
            }
        });
        if !complete {
            return;
        }
        for number in FIRST..self.virtuals.len() {
            let window = self.virtuals[number].load(Ordering::Relaxed);
            if window == 0 || space.used[number] {
                continue;
            }
            let start = u64::from(window - 1) * WINDOW;
            if self.physical_address(start) != Some(number as u64 * WINDOW) {
                continue; // Attached memory.
            }
            self.map(start, None);
            if self.set_slot(number, start, 0).is_err() {
                self.map(start, Some(number));
                continue;
            }
            if let Some(entry) = self.window(start) {
                entry.store(0, Ordering::Release);
            }
            self.virtuals[number].store(0, Ordering::Release);
            space.give(number, 1);
        }
    }

    /// Keeps a range, whole windows, for ring 0: its host part will not put a window there. In ring 3.
    pub fn keep_private(&self, address: u64, bytes: u64) -> Result<()> {
        let end = checked_end(address, bytes)?;
        if !(address | bytes).is_multiple_of(WINDOW) {
            return Err(Error::BadRange {
                address,
                bytes,
                why: "it does not consist of whole windows of 1 GiB",
            });
        }
        let _signals = BlockedSignals::new();
        let mut space = self.lock();
        for start in (address..end).step_by(WINDOW as usize) {
            let Some(window) = self.window(start) else { continue };
            match window.load(Ordering::Relaxed) {
                0 | PRIVATE => {}
                number => {
                    let number = number as usize - 1;
                    self.map(start, None);
                    self.set_slot(number, start, 0)?;
                    self.virtuals[number].store(0, Ordering::Release);
                    space.give(number, 1);
                }
            }
            window.store(PRIVATE, Ordering::Release);
        }
        Ok(())
    }

    /// Gives a range back that was kept private; its entries in the tables are empty again. In ring 3.
    pub fn release_private(&self, address: u64, bytes: u64) -> Result<()> {
        let end = checked_end(address, bytes)?;
        let _signals = BlockedSignals::new();
        let _space = self.lock();
        for start in (address..end).step_by(WINDOW as usize) {
            if let Some(window) = self.window(start) {
                let _ = window.compare_exchange(PRIVATE, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Gives memory guest-physical addresses that follow one another, besides those it has by its windows. In ring
    /// 3.
    pub fn attach(&self, address: u64, bytes: u64) -> Result<Attached> {
        checked_end(address, bytes)?;
        if !(address | bytes).is_multiple_of(4096) {
            return Err(Error::BadRange { address, bytes, why: "it does not consist of whole pages" });
        }
        let offset = address % WINDOW;
        let gigabytes = (offset + bytes).div_ceil(WINDOW) as usize;
        let _signals = BlockedSignals::new();
        let mut space = self.lock();
        let full = || Error::AddressSpace { needed: self.capacity() + gigabytes, available: self.capacity() };
        let number = space.take(gigabytes).ok_or_else(full)?;
        if let Err(error) = self.set_slot_at(number, offset, address, bytes) {
            space.give(number, gigabytes);
            return Err(error);
        }
        for index in 0..gigabytes {
            let window = (address / WINDOW) as u32 + index as u32;
            self.virtuals[number + index].store(window + 1, Ordering::Release);
        }
        Ok(Attached { physical: number as u64 * WINDOW + offset, bytes })
    }

    /// Takes guest-physical addresses away that [`attach`](Self::attach) gave. In ring 3, when no page table leads
    /// to them any more.
    pub fn detach(&self, attached: Attached) -> Result<()> {
        let (number, offset) = ((attached.physical / WINDOW) as usize, attached.physical % WINDOW);
        let _signals = BlockedSignals::new();
        let mut space = self.lock();
        self.set_slot_at(number, offset, 0, 0)?;
        let gigabytes = (offset + attached.bytes).div_ceil(WINDOW) as usize;
        for virtuals in &self.virtuals[number..number + gigabytes] {
            virtuals.store(0, Ordering::Release);
        }
        space.give(number, gigabytes);
        Ok(())
    }

    fn window(&self, address: u64) -> Option<&AtomicU32> {
        let index = usize::try_from(address / WINDOW).ok()?;
        // SAFETY: the mapping has VIRTUAL zeroed words, which are atomics, and lives as long as this value.
        (index < VIRTUAL).then(|| unsafe { &*self.physical.base().cast::<AtomicU32>().add(index) })
    }

    fn table(&self, index: usize) -> &[AtomicU64; ENTRIES] {
        assert!(index < self.tables.bytes() / TABLE_BYTES);
        // SAFETY: inside of the mapping, which is aligned to pages; programs and processors access it as words.
        unsafe { &*self.tables.base().add(index * TABLE_BYTES).cast() }
    }

    /// Lets the window's entry point to a gigabyte, or to nothing.
    fn map(&self, start: u64, number: Option<usize>) {
        let (top, entry) = ((start >> 39) as usize & 511, (start >> 30) as usize & 511);
        let value = match number {
            None => 0,
            Some(number) if self.gigabyte_pages => (number as u64 * WINDOW) | LEAF_FLAGS,
            Some(number) => {
                for (index, small) in self.table(257 + number).iter().enumerate() {
                    small.store(
                        (number as u64 * WINDOW + ((index as u64) << 21)) | LEAF_FLAGS,
                        Ordering::Relaxed,
                    );
                }
                let table = self.tables.base() as u64 + ((257 + number) * TABLE_BYTES) as u64;
                self.physical_address(table).unwrap_or(0) | TABLE_FLAGS
            }
        };
        self.table(1 + top)[entry].store(value, Ordering::Release);
    }

    fn set_slot(&self, number: usize, address: u64, bytes: u64) -> Result<()> {
        self.set_slot_at(number, 0, address, bytes)
    }

    fn set_slot_at(&self, number: usize, offset: u64, address: u64, bytes: u64) -> Result<()> {
        let region = kvm_userspace_memory_region {
            slot: (number - FIRST) as u32,
            flags: 0,
            guest_phys_addr: number as u64 * WINDOW + offset,
            memory_size: bytes,
            userspace_addr: address,
        };
        let arguments = [self.vm as u64, KVM_SET_USER_MEMORY_REGION, (&raw const region) as u64, 0, 0, 0];
        // SAFETY: KVM reads the structure. Ring 0 gets no memory that ring 3 does not have.
        match unsafe { syscall(libc::SYS_ioctl as u64, arguments) } {
            0 => Ok(()),
            errno => Err(Error::kvm_errno("adding memory to the virtual machine", -errno as i32)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

// SAFETY: a frame of a window, or of attached memory, is found where the memory is, which stays while page tables are
// in it, as those who put them there have promised. Nothing faults, allocates, locks or panics: the lists are in
// windows.
unsafe impl PhysicalMemory for Windows {
    #[inline]
    fn table(&self, frame: Frame) -> &Table {
        match self.virtual_address(frame.address()) {
            // SAFETY: as above; a table is atomics, for which all values are valid.
            Some(address) => unsafe { &*(address as *const Table) },
            // Tables that are not in this memory: against the contract of whoever made them.
            None => std::process::abort(),
        }
    }
}

impl Space {
    /// The first of so many free gigabytes in a row.
    fn take(&mut self, count: usize) -> Option<usize> {
        let mut run = 0;
        for number in 0..self.taken.len() {
            run = if self.taken[number] { 0 } else { run + 1 };
            if run == count {
                let first = number + 1 - count;
                self.taken[first..=number].fill(true);
                self.free -= count;
                return Some(first);
            }
        }
        None
    }

    fn give(&mut self, first: usize, count: usize) {
        self.taken[first..first + count].fill(false);
        self.free += count;
    }
}

fn checked_end(address: u64, bytes: u64) -> Result<u64> {
    let bad = |why| Error::BadRange { address, bytes, why };
    let end = address.checked_add(bytes).ok_or_else(|| bad("it ends beyond the last address"))?;
    if bytes == 0 {
        return Err(bad("it is empty"));
    }
    if end > ADDRESS_END {
        return Err(bad("it is not in the process's half of the address space"));
    }
    Ok(end)
}
