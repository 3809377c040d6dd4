//! Frames and private addresses. Handlers may take and give frames, so these functions do not allocate and leave no
//! error text.

use std::ffi::{c_int, c_void};
use std::ptr;

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
use bedplate_ring0::{Cpu, Process, natively};

use crate::error::{answer, refuse};

/// A pool of frames: preallocated memory with contiguous guest-physical addresses, handed out in frames of 4 KiB.
/// It is never freed.
pub struct bp_ring0_pool {
    _opaque: [u8; 0],
}

/// The kind of the host's pages behind a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_ring0_backing {
    /// The first available kind of the others, from the last one to the first.
    BP_RING0_BEST = 0,
    /// Pages of 4 KiB.
    BP_RING0_SMALL = 1,
    /// Huge pages of 2 MiB where the host finds free ones, and pages of 4 KiB elsewhere.
    BP_RING0_TRANSPARENT = 2,
    /// Huge pages of 2 MiB that the administrator has reserved.
    BP_RING0_RESERVED = 3,
}

pub(crate) fn process() -> Result<&'static Process, c_int> {
    Process::current().ok_or_else(|| refuse(libc::ENXIO, "the process's ring 0 has not been built"))
}

/// # Safety
/// The pointer must be NULL, or a pool that `bp_ring0_pool_create` made.
pub(crate) unsafe fn pool<'a>(pool: *const bp_ring0_pool) -> Option<&'a FramePool> {
    // SAFETY: pools are never freed.
    unsafe { pool.cast::<FramePool>().as_ref() }
}

/// The number of the list of frames to use.
pub(crate) fn list() -> u32 {
    Cpu::current().map_or(0, |cpu| cpu.number())
}

/// Creates a pool of at least `bytes` bytes. The host provides the memory at once, so that no first access waits
/// for it. Returns -ENOMEM if there is not enough memory.
///
/// # Safety
/// `made` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_pool_create(
    bytes: usize,
    backing: bp_ring0_backing,
    made: *mut *mut bp_ring0_pool,
) -> c_int {
    if made.is_null() {
        return refuse(libc::EINVAL, "no place for the pool");
    }
    let process = match process() {
        Ok(process) => process,
        Err(refused) => return refused,
    };
    let backing = match backing {
        bp_ring0_backing::BP_RING0_BEST => Backing::Best,
        bp_ring0_backing::BP_RING0_SMALL => Backing::Small,
        bp_ring0_backing::BP_RING0_TRANSPARENT => Backing::Transparent,
        bp_ring0_backing::BP_RING0_RESERVED => Backing::Reserved,
    };
    let memory = natively(|| {
        let memory = HostMemory::map(bytes, backing)?;
        memory.prefault()?;
        Ok(memory)
    });
    let pool = match memory {
        Ok(memory) => process.frame_pool(memory),
        Err(error) => Err(bedplate_ring0::frames::PoolError::Memory(error).into()),
    };
    if let Ok(pool) = pool {
        // SAFETY: as the caller promised.
        unsafe { made.write(ptr::from_ref(pool).cast_mut().cast()) };
    }
    answer(pool)
}

/// Takes a frame. Returns its guest-physical address, or 0 if none is left. The frame has the contents that its
/// last user left. May be called in handlers.
///
/// # Safety
/// `from` must be a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_frame_take(from: *const bp_ring0_pool) -> u64 {
    // SAFETY: as the caller promised.
    let frame = unsafe { pool(from) }.and_then(|pool| pool.take(list()));
    frame.map_or(0, Frame::address)
}

/// Takes 512 contiguous frames (2 MiB) on a boundary of 2 MiB. Returns the guest-physical address of the first, or
/// 0 if there are none. May be called in handlers.
///
/// # Safety
/// `from` must be a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_run_take(from: *const bp_ring0_pool) -> u64 {
    // SAFETY: as the caller promised.
    let frame = unsafe { pool(from) }.and_then(FramePool::take_run);
    frame.map_or(0, Frame::address)
}

/// Gives a frame back. Returns -EINVAL if it was not taken from this pool by bp_ring0_frame_take(). May be called
/// in handlers.
///
/// # Safety
/// `to` must be a pool, and no code may use the frame any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_frame_give(to: *const bp_ring0_pool, frame: u64) -> c_int {
    // SAFETY: as the caller promised.
    let given = unsafe { pool(to) }.map(|pool| pool.give(list(), Frame::containing(frame)));
    if matches!(given, Some(Ok(()))) { 0 } else { -libc::EINVAL }
}

/// Gives back the frames that bp_ring0_run_take() returned. Returns -EINVAL if they were not taken from this pool
/// by that function. May be called in handlers.
///
/// # Safety
/// `to` must be a pool, and no code may use the frames any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_run_give(to: *const bp_ring0_pool, frame: u64) -> c_int {
    // SAFETY: as the caller promised.
    let given = unsafe { pool(to) }.map(|pool| pool.give_run(Frame::containing(frame)));
    if matches!(given, Some(Ok(()))) { 0 } else { -libc::EINVAL }
}

/// The address of a frame in the process, for I/O and for handlers. NULL if the frame is not of this pool. May be
/// called in handlers.
///
/// # Safety
/// `of` must be a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_frame_memory(of: *const bp_ring0_pool, frame: u64) -> *mut c_void {
    // SAFETY: as the caller promised.
    let address = unsafe { pool(of) }.and_then(|pool| pool.address(Frame::containing(frame)));
    address.map_or(ptr::null_mut(), |address| address.cast())
}

/// Makes a range private to ring 0: only the page tables determine its contents. The range must consist of whole
/// gigabytes that the caller has reserved (PROT_NONE). A program may change page-table entries only in private
/// ranges.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_keep_private(address: u64, bytes: u64) -> c_int {
    process().map_or_else(|refused| refused, |process| answer(process.keep_private(address, bytes)))
}

/// Ends the privacy of a range. Ring 0 must have removed its mappings there, and flushed them.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_release_private(address: u64, bytes: u64) -> c_int {
    process().map_or_else(|refused| refused, |process| answer(process.release_private(address, bytes)))
}
