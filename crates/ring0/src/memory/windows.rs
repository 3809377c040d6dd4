//! The windows: the position of each gigabyte of virtual addresses in guest-physical memory, and the page tables
//! that map them.
//!
//! Guest-physical memory is handed out from 4 GiB up, one gigabyte at a time. The number of KVM's memory slot is
//! the number of the gigabyte less four. Virtual and guest-physical addresses are congruent modulo 1 GiB, so huge
//! pages stay huge.
//!
//! The topmost table and all 256 tables below it exist from the start. A window is one entry in these tables; on
//! processors without pages of 1 GiB, it is one table. A copy of the topmost table therefore includes windows that
//! are added later.
//!
//! The lock `space` is held while windows are added or removed. A thread takes it only in ring 3 with signals
//! blocked. Ring 0 asks its host part to do this work. A thread that holds the lock is therefore never interrupted
//! by code that waits for the lock. Readers need no lock.

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

/// The first gigabyte of guest-physical memory that is handed out, as a number of gigabytes.
const FIRST: usize = 4;
/// Number of windows in the virtual address space.
const VIRTUAL: usize = 1 << 17;
/// Marks a window of private addresses: only ring 0's page tables determine its contents.
const PRIVATE: u32 = u32::MAX;

const ENTRIES: usize = 512;
const TABLE_BYTES: usize = 4096;
const TABLE_FLAGS: u64 = 7; // present, writable, user
const LEAF_FLAGS: u64 = 0xe7; // and accessed, dirty, huge
const KVM_SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;

/// The windows of a process. See the module.
#[derive(Debug)]
pub struct Windows {
    vm: RawFd,
    /// For each gigabyte of virtual addresses: 0 if there is no window, [`PRIVATE`], or 1 + the number of its
    /// gigabyte of guest-physical memory.
    physical: Mapping,
    /// For each gigabyte of guest-physical memory: 0 if it is not in use, or 1 + the number of its gigabyte of
    /// virtual addresses.
    virtuals: Box<[AtomicU32]>,
    /// The topmost table and the 256 tables below it. Without pages of 1 GiB, there is one more table for each
    /// window.
    tables: Mapping,
    gigabyte_pages: bool,
    space: Mutex<Space>,
}

/// The allocation of guest-physical memory in units of 1 GiB.
#[derive(Debug)]
struct Space {
    taken: Box<[bool]>,
    free: usize,
    /// The gigabytes that still contain memory. `reclaim` fills the list; it is allocated ahead because `reclaim`
    /// must not allocate.
    used: Box<[bool]>,
}

/// Memory with additional, contiguous guest-physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// The guest-physical address of the first byte.
    pub physical: u64,
    /// The length in bytes.
    pub bytes: u64,
}

impl Windows {
    /// Creates tables that contain only the windows of the tables themselves. `width` is the number of bits of a
    /// physical address; `slots` is the number of KVM's memory slots.
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

    /// The limit of windows.
    pub fn capacity(&self) -> usize {
        self.virtuals.len() - FIRST
    }

    /// Number of gigabytes of guest-physical memory that are free.
    pub fn free(&self) -> usize {
        let _signals = BlockedSignals::new();
        self.lock().free
    }

    /// The guest-physical address of the topmost table, for CR3.
    pub fn root(&self) -> u64 {
        self.physical_address(self.tables.base() as u64).unwrap_or(0)
    }

    /// The guest-physical address of a virtual address, or `None` if there is no window.
    #[inline]
    pub fn physical_address(&self, address: u64) -> Option<u64> {
        match self.window(address)?.load(Ordering::Acquire) {
            0 | PRIVATE => None,
            number => Some(u64::from(number - 1) * WINDOW + address % WINDOW),
        }
    }

    /// The virtual address of a guest-physical address.
    #[inline]
    pub fn virtual_address(&self, physical: u64) -> Option<u64> {
        let number = usize::try_from(physical / WINDOW).ok()?;
        match self.virtuals.get(number)?.load(Ordering::Acquire) {
            0 => None,
            window => Some(u64::from(window - 1) * WINDOW + physical % WINDOW),
        }
    }

    /// Whether the address is in a private window.
    pub fn is_private(&self, address: u64) -> bool {
        self.window(address).is_some_and(|window| window.load(Ordering::Acquire) == PRIVATE)
    }

    /// Whether the window of an address still is one entry, as it was added, and has not been split.
    pub fn is_whole(&self, address: u64) -> bool {
        let (top, entry) = ((address >> 39) as usize & 511, (address >> 30) as usize & 511);
        let value = self.table(1 + top)[entry].load(Ordering::Acquire);
        match self.physical_address(address / WINDOW * WINDOW) {
            Some(physical) if self.gigabyte_pages => value & !0xfff == physical,
            Some(_) => value != 0,
            None => false,
        }
    }

    /// Adds the windows of a range where they are missing. The caller must be in ring 3.
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

    /// Removes the windows that contain no memory any more. KVM flushes the cached translations of a slot when the
    /// slot is deleted, so its gigabyte can be reused at once.
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
                continue; // Attached memory has no window of its own here.
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

    /// Makes a range of whole windows private: the host part will not add windows there. Existing windows in it are
    /// removed. The caller must be in ring 3.
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

    /// Ends the privacy of a range. The caller must be in ring 3, and the range's entries in the tables must be
    /// empty again.
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

    /// Gives memory contiguous guest-physical addresses, in addition to those of its windows. The caller must be in
    /// ring 3.
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

    /// Removes the guest-physical addresses that [`attach`](Self::attach) gave. The caller must be in ring 3, and
    /// no page table may lead to these addresses any more.
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
        // SAFETY: the mapping has VIRTUAL zeroed atomic words, and lives as long as this value.
        (index < VIRTUAL).then(|| unsafe { &*self.physical.base().cast::<AtomicU32>().add(index) })
    }

    fn table(&self, index: usize) -> &[AtomicU64; ENTRIES] {
        assert!(index < self.tables.bytes() / TABLE_BYTES);
        // SAFETY: inside of the mapping, which is aligned to pages. Programs and processors access it as words.
        unsafe { &*self.tables.base().add(index * TABLE_BYTES).cast() }
    }

    /// Points the window's entry to a gigabyte of guest-physical memory, or clears it.
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
        // SAFETY: KVM reads the structure. Ring 0 gets only memory that ring 3 has too.
        match unsafe { syscall(libc::SYS_ioctl as u64, arguments) } {
            0 => Ok(()),
            errno => Err(Error::kvm_errno("adding memory to the virtual machine", -errno as i32)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

// SAFETY: a frame of a window or of attached memory is found at the memory's virtual address. Code that puts page tables there
// has promised that the memory stays while they are in use. The lookup does not fault, allocate, lock or panic, because its lists
// are in windows.
unsafe impl PhysicalMemory for Windows {
    #[inline]
    fn table(&self, frame: Frame) -> &Table {
        match self.virtual_address(frame.address()) {
            // SAFETY: as above; a table consists of atomics, for which all values are valid.
            Some(address) => unsafe { &*(address as *const Table) },
            // The frame is not in this memory. The code that made these tables has broken its contract.
            None => std::process::abort(),
        }
    }
}

impl Space {
    /// Takes `count` contiguous free gigabytes, and returns the number of the first one.
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
