//! Page tables. Handlers may call all of these functions: they do not allocate (tables come from a pool), and leave
//! no error text.

use std::ffi::c_int;
use std::ptr;

use bedplate_ring0::frames::{CpuFrames, Frame};
use bedplate_ring0::paging::{NoTables, PageSize, PageTables, PagingError, PteFlags, VirtRange, Which};
use bedplate_ring0::paging::{Protect, TableSource};
use bedplate_ring0::{Cpu, Process, Windows};

use crate::frames::{bp_ring0_pool, list, pool};

/// The sizes of pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_ring0_page_size {
    /// 4 KiB.
    BP_RING0_4K = 0,
    /// 2 MiB.
    BP_RING0_2M = 1,
    /// 1 GiB.
    BP_RING0_1G = 2,
}

impl bp_ring0_page_size {
    pub(crate) fn size(self) -> PageSize {
        match self {
            bp_ring0_page_size::BP_RING0_4K => PageSize::Size4K,
            bp_ring0_page_size::BP_RING0_2M => PageSize::Size2M,
            bp_ring0_page_size::BP_RING0_1G => PageSize::Size1G,
        }
    }
}

/// A mapped page.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_ring0_page {
    /// Its page-table entry.
    pub entry: u64,
    /// The guest-physical address that the requested address translates to.
    pub physical: u64,
    /// The page's size in bytes.
    pub bytes: u64,
}

/// The frames of a pool, or none.
enum Source<'a> {
    Frames(CpuFrames<'a>),
    None(NoTables),
}

impl TableSource for Source<'_> {
    fn take(&mut self) -> Option<Frame> {
        match self {
            Source::Frames(frames) => frames.take(),
            Source::None(none) => none.take(),
        }
    }

    fn give(&mut self, frame: Frame) {
        match self {
            Source::Frames(frames) => frames.give(frame),
            Source::None(none) => none.give(frame),
        }
    }
}

/// # Safety
/// `from` must be NULL or a pool.
unsafe fn source<'a>(from: *const bp_ring0_pool) -> Source<'a> {
    // SAFETY: as the caller promised.
    match unsafe { pool(from) } {
        Some(pool) => Source::Frames(pool.cpu(list())),
        None => Source::None(NoTables),
    }
}

/// # Safety
/// `root` must be 0 or the root of page tables. Only private addresses may be changed.
unsafe fn tables(root: u64) -> Result<PageTables<'static, Windows>, c_int> {
    let process = Process::current().ok_or(-libc::ENXIO)?;
    let root = if root == 0 { process.root() } else { root };
    // SAFETY: as the caller promised; the process is never freed.
    Ok(unsafe { PageTables::from_root(process.physical_memory(), Frame::containing(root)) })
}

fn code<T>(result: Result<T, PagingError>) -> Result<T, c_int> {
    result.map_err(|error| match error {
        PagingError::AlreadyMapped { .. } => -libc::EEXIST,
        PagingError::NotMapped { .. } => -libc::ENOENT,
        PagingError::HugePage { .. } => -libc::EBUSY,
        PagingError::Locked { .. } => -libc::EAGAIN,
        PagingError::OutOfTables => -libc::ENOMEM,
        PagingError::OutOfRange { .. } | PagingError::EmptyRange { .. } | PagingError::Unaligned { .. } => {
            -libc::EINVAL
        }
    })
}

fn status(result: Result<(), c_int>) -> c_int {
    result.map_or_else(|code| code, |()| 0)
}

/// The root of the page tables that this thread's processor uses. In ring 3, the root of the process's page tables,
/// or 0 before bp_ring0_build().
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_root() -> u64 {
    match Cpu::current() {
        Some(cpu) => cpu.root(),
        None => Process::current().map_or(0, Process::root),
    }
}

/// Maps a page of this size at a private address to the frames from `frame` on, with flags like BP_RING0_WRITABLE.
/// `frame` is a guest-physical address. Missing tables are taken from `from`, which may be NULL if no table is
/// missing.
///
/// In all these functions, `root` is 0 for the process's page tables, or page tables that bp_ring0_tables_create()
/// made. They return -EEXIST if something is mapped at the address, -EBUSY if a huge page is in the way, -ENOMEM if
/// a frame for a table is missing, and -EAGAIN if another thread has locked the entry (bit 58).
///
/// # Safety
/// The address must be private, `root` must be 0 or the root of page tables, and `from` NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_map(
    root: u64,
    address: u64,
    frame: u64,
    size: bp_ring0_page_size,
    flags: u64,
    from: *const bp_ring0_pool,
) -> c_int {
    let flags = PteFlags::from_bits_truncate(flags);
    // SAFETY: as the caller promised.
    let (tables, mut source) = unsafe { (tables(root), source(from)) };
    let map = |tables: PageTables<'_, Windows>| {
        code(tables.map(address, Frame::containing(frame), size.size(), flags, &mut source))
    };
    if !frame.is_multiple_of(4096) {
        return -libc::EINVAL;
    }
    status(tables.and_then(map))
}

/// Unmaps the page that begins at `address`, and stores its old entry in `before` unless that is NULL. Processors
/// may use cached translations of it until bp_ring0_shoot_down(). Returns -ENOENT if nothing is mapped there.
///
/// # Safety
/// The same as for bp_ring0_map(); `before` must be NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_unmap(root: u64, address: u64, before: *mut u64) -> c_int {
    // SAFETY: as the caller promised.
    let taken = unsafe { tables(root) }.and_then(|tables| code(tables.unmap(address)));
    status(taken.map(|(entry, _)| {
        if !before.is_null() {
            // SAFETY: as the caller promised.
            unsafe { before.write(entry.bits()) };
        }
    }))
}

/// Sets and clears flags of all pages of a range. Huge pages that are only partly in the range are split, with
/// tables from `from`. Processors may use the old rights until bp_ring0_shoot_down().
///
/// # Safety
/// The same as for bp_ring0_map().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_protect(
    root: u64,
    address: u64,
    bytes: u64,
    set: u64,
    clear: u64,
    from: *const bp_ring0_pool,
) -> c_int {
    let (set, clear) = (PteFlags::from_bits_truncate(set), PteFlags::from_bits_truncate(clear));
    // SAFETY: as the caller promised.
    let (tables, mut source) = unsafe { (tables(root), source(from)) };
    status(tables.and_then(|tables| {
        let range = code(VirtRange::at(address, bytes))?;
        code(tables.protect_range(range, set, clear, &mut source)).map(drop)
    }))
}

/// Stores the translation of any address in `found`. Returns -ENOENT if nothing is mapped there.
///
/// # Safety
/// `root` must be 0 or the root of page tables, and `found` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_walk(root: u64, address: u64, found: *mut bp_ring0_page) -> c_int {
    if found.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: as the caller promised.
    let walked = unsafe { tables(root) }.and_then(|tables| tables.translate(address).ok_or(-libc::ENOENT));
    status(walked.map(|page| {
        let (entry, physical) = (page.pte.bits(), page.physical_address());
        // SAFETY: as the caller promised.
        unsafe { found.write(bp_ring0_page { entry, physical, bytes: page.size.bytes() }) };
    }))
}

/// The entry of the page of this size at an address, present or not, in the page table itself. It must be changed
/// by compare-and-swap. Missing tables above it are added from `from`, unless that is NULL. Returns NULL if a table
/// is missing, or a huge page is in the way.
///
/// # Safety
/// The same as for bp_ring0_map().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_entry(
    root: u64,
    address: u64,
    size: bp_ring0_page_size,
    from: *const bp_ring0_pool,
) -> *mut u64 {
    // SAFETY: as the caller promised.
    let (tables, mut source) = unsafe { (tables(root), source(from)) };
    let slot = tables.and_then(|tables| code(tables.slot_or_add(address, size.size(), &mut source)));
    slot.map_or(ptr::null_mut(), |slot| ptr::from_ref(slot).cast_mut().cast())
}

/// Creates page tables that share everything with the process's, except for a range of one or more whole units of
/// 512 GiB. The new tables have a copy of the entries of that range. If `protect` is set, both lose
/// BP_RING0_WRITABLE there: after bp_ring0_shoot_down(), the first write to each page faults, which allows
/// copy-on-write. No other code may change the range meanwhile.
///
/// # Safety
/// The range must be private, `from` must be a pool, and `root` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_tables_create(
    address: u64,
    bytes: u64,
    protect: bool,
    from: *const bp_ring0_pool,
    root: *mut u64,
) -> c_int {
    if root.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: as the caller promised.
    let (tables, mut source) = unsafe { (tables(0), source(from)) };
    let create = |tables: PageTables<'static, Windows>| {
        let range = code(VirtRange::at(address, bytes))?;
        let copy = code(tables.create_sharing(range, &mut source))?;
        let protect = if protect { Protect::Both } else { Protect::Nothing };
        if let Err(error) = code(tables.clone_range(&copy, range, protect, &mut source)) {
            // SAFETY: no other code has seen the copy.
            unsafe {
                copy.free_range(range, Which::All, &mut source);
                copy.free_root(&mut source);
            }
            return Err(error);
        }
        Ok(copy.root().address())
    };
    status(tables.and_then(create).map(|made| {
        // SAFETY: as the caller promised.
        unsafe { root.write(made) };
    }))
}

/// Frees page tables that bp_ring0_tables_create() made for this range. The caller must give back the frames that
/// only these tables map before.
///
/// # Safety
/// No processor may use these tables (bp_ring0_set_root()), and no code may change them. `to` must be the pool they
/// came from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_tables_free(
    root: u64,
    address: u64,
    bytes: u64,
    to: *const bp_ring0_pool,
) -> c_int {
    if root == 0 {
        return -libc::EINVAL;
    }
    // SAFETY: as the caller promised.
    let (tables, mut source) = unsafe { (tables(root), source(to)) };
    status(tables.and_then(|tables| {
        let range = code(VirtRange::at(address, bytes))?;
        // SAFETY: as the caller promised.
        unsafe {
            tables.free_range(range, Which::All, &mut source);
            tables.free_root(&mut source);
        }
        Ok(())
    }))
}
