//! Frames and private addresses. Taking and giving frames may be done in handlers: so it allocates nothing and leaves no
//! text.

use std::ffi::{c_int, c_void};
use std::ptr;

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
use bedplate_ring0::{Cpu, Process, natively};

use crate::error::{answer, refuse};

/// A pool of frames: preallocated memory with guest-physical addresses in one piece, handed out in frames of 4 KiB. It
/// exists as long as the process.
pub struct bp_ring0_pool {
    _opaque: [u8; 0],
}

/// What the host has behind a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_ring0_backing {
    /// The best of the others that can be had, the last one first.
    BP_RING0_BEST = 0,
    /// Pages of 4 KiB.
    BP_RING0_SMALL = 1,
    /// Huge pages as far as the host finds some.
    BP_RING0_TRANSPARENT = 2,
    /// Huge pages that the administrator has reserved.
    BP_RING0_RESERVED = 3,
}

pub(crate) fn process() -> Result<&'static Process, c_int> {
    Process::current().ok_or_else(|| refuse(libc::ENXIO, "the process's ring 0 has not been built"))
}

/// # Safety
/// The pointer is NULL, or a pool that `bp_ring0_pool_create` made.
pub(crate) unsafe fn pool<'a>(pool: *const bp_ring0_pool) -> Option<&'a FramePool> {
    // SAFETY: pools stay as long as the process.
    unsafe { pool.cast::<FramePool>().as_ref() }
}

/// Whose list of frames is used.
pub(crate) fn list() -> u32 {
    Cpu::current().map_or(0, |cpu| cpu.number())
}

/// Makes a pool of at least `bytes`, which the host provides at once, so that no first use waits for it. -ENOMEM where
/// there is not so much.
///
/// # Safety
/// `made` is writable.
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

/// Takes a frame: its guest-physical address, or 0 if there is none left. It has the contents that its last user left.
/// May be called in handlers.
///
/// # Safety
/// `from` is a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_frame_take(from: *const bp_ring0_pool) -> u64 {
    // SAFETY: as the caller promised.
    let frame = unsafe { pool(from) }.and_then(|pool| pool.take(list()));
    frame.map_or(0, Frame::address)
}

/// Takes 512 frames, 2 MiB on a boundary of 2 MiB: the address of the first, or 0. May be called in handlers.
///
/// # Safety
/// `from` is a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_run_take(from: *const bp_ring0_pool) -> u64 {
    // SAFETY: as the caller promised.
    let frame = unsafe { pool(from) }.and_then(FramePool::take_run);
    frame.map_or(0, Frame::address)
}

/// Gives a frame back. -EINVAL if it was not taken from this pool, or not by bp_ring0_frame_take(). May be called in
/// handlers.
///
/// # Safety
/// `to` is a pool, and nobody uses the frame any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_frame_give(to: *const bp_ring0_pool, frame: u64) -> c_int {
    // SAFETY: as the caller promised.
    let given = unsafe { pool(to) }.map(|pool| pool.give(list(), Frame::containing(frame)));
    if matches!(given, Some(Ok(()))) { 0 } else { -libc::EINVAL }
}

/// Gives back what bp_ring0_run_take() returned; otherwise as bp_ring0_frame_give().
///
/// # Safety
/// `to` is a pool, and nobody uses the frames any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_run_give(to: *const bp_ring0_pool, frame: u64) -> c_int {
    // SAFETY: as the caller promised.
    let given = unsafe { pool(to) }.map(|pool| pool.give_run(Frame::containing(frame)));
    if matches!(given, Some(Ok(()))) { 0 } else { -libc::EINVAL }
}

/// Where the process sees a frame, for I/O and for handlers; NULL if it is not of this pool. May be called in handlers.
///
/// # Safety
/// `of` is a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_frame_memory(of: *const bp_ring0_pool, frame: u64) -> *mut c_void {
    // SAFETY: as the caller promised.
    let address = unsafe { pool(of) }.and_then(|pool| pool.address(Frame::containing(frame)));
    address.map_or(ptr::null_mut(), |address| address.cast())
}

/// Keeps addresses, whole gigabytes that the caller has reserved (PROT_NONE), for ring 0 alone: what they mean is up to
/// the page tables. Only such addresses may be changed there.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_keep_private(address: u64, bytes: u64) -> c_int {
    process().map_or_else(|refused| refused, |process| answer(process.keep_private(address, bytes)))
}

/// Gives addresses back that were kept private. Ring 0 has nothing mapped there any more, and has flushed.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_release_private(address: u64, bytes: u64) -> c_int {
    process().map_or_else(|refused| refused, |process| answer(process.release_private(address, bytes)))
}
