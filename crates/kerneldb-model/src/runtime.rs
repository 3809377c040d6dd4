//! Functions that the compiled engine calls: the interface of the compiler's thread instrumentation, and the
//! functions of shim/bedplate/kernel.h.
//!
//! A plain access follows its call at once; no other task of the model runs in between. These functions execute
//! the atomic instructions.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::layout::{kdb_config, kdb_ctx, kdb_io, kdb_state};
use crate::limits::SESSIONS;
use crate::world;

macro_rules! accesses {
    ($($name:ident $bytes:literal $store:literal;)*) => {
        $(#[unsafe(no_mangle)]
        extern "C-unwind" fn $name(address: u64) {
            world::access(address, $bytes, $store);
        })*
    };
}

accesses! {
    __tsan_read1 1 false;
    __tsan_read2 2 false;
    __tsan_read4 4 false;
    __tsan_read8 8 false;
    __tsan_read16 16 false;
    __tsan_write1 1 true;
    __tsan_write2 2 true;
    __tsan_write4 4 true;
    __tsan_write8 8 true;
    __tsan_write16 16 true;
    __tsan_unaligned_read2 2 false;
    __tsan_unaligned_read4 4 false;
    __tsan_unaligned_read8 8 false;
    __tsan_unaligned_read16 16 false;
    __tsan_unaligned_write2 2 true;
    __tsan_unaligned_write4 4 true;
    __tsan_unaligned_write8 8 true;
    __tsan_unaligned_write16 16 true;
}

macro_rules! atomics {
    ($type:ty, $atomic:ty; $cas:ident $exchange:ident $add:ident $sub:ident $and:ident $or:ident $load:ident $store:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $cas(
            to: *mut $type,
            expected: $type,
            new: $type,
            _: i32,
            _: i32,
        ) -> $type {
            world::locked_access(to as u64);
            // SAFETY: the engine's own operand.
            let atomic = unsafe { <$atomic>::from_ptr(to) };
            match atomic.compare_exchange(expected, new, SeqCst, SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }

        atomics!(@rmw $type, $atomic, $exchange, swap);
        atomics!(@rmw $type, $atomic, $add, fetch_add);
        atomics!(@rmw $type, $atomic, $sub, fetch_sub);
        atomics!(@rmw $type, $atomic, $and, fetch_and);
        atomics!(@rmw $type, $atomic, $or, fetch_or);

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $load(from: *const $type, _: i32) -> $type {
            world::access(from as u64, size_of::<$type>() as u32, false);
            // SAFETY: the engine's own operand.
            unsafe { std::ptr::read_volatile(from) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $store(to: *mut $type, new: $type, _: i32) {
            world::access(to as u64, size_of::<$type>() as u32, true);
            // SAFETY: the engine's own operand.
            unsafe { std::ptr::write_volatile(to, new) };
        }
    };
    (@rmw $type:ty, $atomic:ty, $name:ident, $method:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(to: *mut $type, operand: $type, _: i32) -> $type {
            world::locked_access(to as u64);
            // SAFETY: the engine's own operand.
            unsafe { <$atomic>::from_ptr(to) }.$method(operand, SeqCst)
        }
    };
}

atomics! { u32, AtomicU32; __tsan_atomic32_compare_exchange_val __tsan_atomic32_exchange __tsan_atomic32_fetch_add
__tsan_atomic32_fetch_sub __tsan_atomic32_fetch_and __tsan_atomic32_fetch_or __tsan_atomic32_load
__tsan_atomic32_store }
atomics! { u64, AtomicU64; __tsan_atomic64_compare_exchange_val __tsan_atomic64_exchange __tsan_atomic64_fetch_add
__tsan_atomic64_fetch_sub __tsan_atomic64_fetch_and __tsan_atomic64_fetch_or __tsan_atomic64_load
__tsan_atomic64_store }

/// Fills memory word by word, as the engine's own loops do.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __tsan_memset(to: *mut u8, byte: i32, bytes: u64) -> *mut u8 {
    let mut done = 0;
    while done < bytes {
        let step = if bytes - done >= 8 { 8 } else { 1 };
        world::access(to as u64 + done, step as u32, true);
        // SAFETY: within the engine's own operand.
        unsafe { std::ptr::write_bytes(to.add(done as usize), byte as u8, step as usize) };
        done += step;
    }
    to
}

/// Copies memory word by word, as the engine's own loops do.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __tsan_memcpy(to: *mut u8, from: *const u8, bytes: u64) -> *mut u8 {
    let mut done = 0;
    while done < bytes {
        let step = if bytes - done >= 8 { 8 } else { 1 };
        let mut word = [0u8; 8];
        world::access(from as u64 + done, step as u32, false);
        // SAFETY: within the engine's own operand.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(done as usize), word.as_mut_ptr(), step as usize);
        }
        world::access(to as u64 + done, step as u32, true);
        // SAFETY: within the engine's own operand.
        unsafe { std::ptr::copy_nonoverlapping(word.as_ptr(), to.add(done as usize), step as usize) };
        done += step;
    }
    to
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_init() {}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_arena() -> u64 {
    world::arena_address()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_config() -> *const kdb_config {
    world::config()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_context(index: u32) -> *mut kdb_ctx {
    if (index as usize) < SESSIONS { world::context(index as usize) } else { std::ptr::null_mut() }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_io(index: u32) -> *mut kdb_io {
    if (index as usize) < SESSIONS { world::io(index as usize) } else { std::ptr::null_mut() }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_state(index: u32) -> *mut kdb_state {
    if index == 0 { world::state() } else { std::ptr::null_mut() }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_cpu() -> u32 {
    world::cpu() as u32
}

/// Time stands still.
#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_time_ns() -> u64 {
    1_000_000_000
}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_irq_save() {
    world::irq_save();
}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_irq_restore() {
    world::irq_restore();
}

#[unsafe(no_mangle)]
extern "C-unwind" fn kdb_model_retry() {
    world::retry();
}
