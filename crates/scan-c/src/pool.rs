//! Pools: for workers that scan the same files at the same time.

use std::ffi::c_int;

use bedplate_c_support::input::{Sized, sized};
use bedplate_c_support::table::Table;
use bedplate_scan::{AccessKey, Pool, PoolOptions};

use crate::channel::{bp_scan_channel, give};
use crate::code::bp_scan_code::*;
use crate::code::{Refusal, answer};
use crate::input::{bp_scan_source, held, is_unwatched, null, sources};
use crate::service::{bp_scan_service, service};

static POOLS: Table<Pool> = Table::new(b'P');

/// A pool of memory for a group of files. Its memory exists as long as the pool, or a channel in it, is open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_pool {
    /// Its number; never 0.
    pub handle: u64,
}

/// The key that lets a worker join a pool. It cannot be guessed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_key {
    #[allow(missing_docs)]
    pub bytes: [u8; 16],
}

/// The options of a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_pool_options {
    /// sizeof(struct bp_scan_pool_options)
    pub size: usize,
    /// Its files. Every worker scans all of them.
    pub sources: *const bp_scan_source,
    /// Number of files.
    pub source_count: usize,
    /// Amount of memory: 16 MiB to 1 GiB; 0: 64 MiB, which are enough for 29 workers that have one page at a time.
    pub memory_bytes: usize,
    /// 0 or BP_SCAN_UNWATCHED: each worker judges its own pages.
    pub flags: u32,
    /// Maximum number of pages that each worker may have out at a time: 1 to BP_SCAN_POOL_PAGES_HELD_MAX; 0: 1.
    pub pages_held: u32,
}

// SAFETY: the structure has only pointers and integers, without padding.
unsafe impl Sized for bp_scan_pool_options {
    const FIRST: usize = 32;
}

/// Makes a pool.
///
/// # Safety
/// `options` is NULL or as long as its size says, with arrays of the stated lengths; `made` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_create_pool(
    service: bp_scan_service,
    options: *const bp_scan_pool_options,
    made: *mut bp_scan_pool,
) -> c_int {
    answer(|| {
        if made.is_null() {
            return Err(null("no place for the pool"));
        }
        // SAFETY: the caller guarantees this.
        let options = unsafe { sized(options, "the options") }?;
        // SAFETY: the caller guarantees this.
        let sources = unsafe { sources(options.sources, options.source_count) }?;
        let memory = if options.memory_bytes == 0 { 64 << 20 } else { options.memory_bytes };
        let mut pool = PoolOptions::of(sources).memory_bytes(memory).pages_held(held(options.pages_held))?;
        if is_unwatched(options.flags)? {
            pool = pool.unwatched();
        }
        let pool = self::service(service)?.make_pool(pool)?;
        let full = |_| Refusal::new(BP_SCAN_ERROR_FULL, "there are too many pools");
        let handle = POOLS.insert(pool).map_err(full)?;
        // SAFETY: the caller guarantees this.
        unsafe { made.write_unaligned(bp_scan_pool { handle }) };
        Ok(BP_SCAN_OK)
    })
}

/// Gives the key by which workers join.
///
/// # Safety
/// `key` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_pool_key(pool: bp_scan_pool, key: *mut bp_scan_key) -> c_int {
    answer(|| {
        if key.is_null() {
            return Err(null("no place for the key"));
        }
        let bytes = POOLS.enter_in_turn(pool.handle)?.key().to_bytes();
        // SAFETY: the caller guarantees this.
        unsafe { key.write_unaligned(bp_scan_key { bytes }) };
        Ok(BP_SCAN_OK)
    })
}

/// Closes a pool. No further worker can join, and the workers in the pool continue.
#[unsafe(no_mangle)]
pub extern "C" fn bp_scan_close_pool(pool: bp_scan_pool) -> c_int {
    answer(|| {
        // Another thread may be reading the pool's key, which takes a moment.
        drop(POOLS.remove_in_turn(pool.handle)?);
        Ok(BP_SCAN_OK)
    })
}

/// Joins a pool. The channel delivers every page of the pool's files once, in the pool's order. Pages have `page_size` bytes: a
/// power of two from 4 KiB to 2 MiB; 0: 2 MiB.
///
/// # Safety
/// `key` is readable or NULL, and `joined` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_join(
    service: bp_scan_service,
    key: *const bp_scan_key,
    page_size: usize,
    joined: *mut bp_scan_channel,
) -> c_int {
    answer(|| {
        if key.is_null() || joined.is_null() {
            return Err(null("no key, or no place for the channel"));
        }
        // SAFETY: the caller guarantees this.
        let key = AccessKey::from_bytes(unsafe { key.read_unaligned() }.bytes);
        let page_size = if page_size == 0 { bedplate_scan::FRAME } else { page_size };
        let channel = self::service(service)?.join(key, page_size)?;
        // SAFETY: the caller guarantees this.
        unsafe { give(channel, joined) }
    })
}
