//! The atomic operations that the lock-free parts of this crate are written in.
//!
//! This module owns no state. The lock-free parts are generic over [`Atomics`], so the model checker runs the same
//! code that runs in ring 0. Programs use [`Native`]; tests use loom's atomics instead. The order between two
//! different words is always established by [`Atomics::fence`] and never by `SeqCst` accesses, because the model
//! checker supports only fences.

use std::sync::atomic::{self, Ordering};

/// One atomic word.
pub trait Atomic<T>: Send + Sync + Sized + 'static {
    /// Creates a word with this value.
    fn new(value: T) -> Self;
    /// Reads the word.
    fn load(&self, order: Ordering) -> T;
    /// Writes the word.
    fn store(&self, value: T, order: Ordering);
    /// Writes the word, and returns the previous value.
    fn swap(&self, value: T, order: Ordering) -> T;
    /// Writes `new` if the word contains `current`; otherwise returns the value found.
    fn compare_exchange(&self, current: T, new: T, success: Ordering, failure: Ordering) -> Result<T, T>;
    /// Adds, and returns the previous value.
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    /// Bitwise and; returns the previous value.
    fn fetch_and(&self, value: T, order: Ordering) -> T;
    /// Bitwise or; returns the previous value.
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    /// Stores the maximum; returns the previous value.
    fn fetch_max(&self, value: T, order: Ordering) -> T;
}

/// A family of atomic words.
pub trait Atomics: Sized + 'static {
    /// A word of 64 bits.
    type U64: Atomic<u64>;
    /// A word of 32 bits.
    type U32: Atomic<u32>;
    /// A full fence.
    fn fence();
    /// Called in every iteration of a loop that waits for another thread.
    fn relax();
}

/// The processor's own atomics.
#[derive(Debug, Clone, Copy)]
pub struct Native;

impl Atomics for Native {
    type U64 = atomic::AtomicU64;
    type U32 = atomic::AtomicU32;

    #[inline]
    fn fence() {
        atomic::fence(Ordering::SeqCst);
    }

    #[inline]
    fn relax() {
        std::hint::spin_loop();
    }
}

macro_rules! atomic {
    ($word:ty, $value:ty) => {
        impl Atomic<$value> for $word {
            #[inline]
            fn new(value: $value) -> Self {
                Self::new(value)
            }
            #[inline]
            fn load(&self, order: Ordering) -> $value {
                Self::load(self, order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                Self::store(self, value, order);
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                Self::swap(self, value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                Self::compare_exchange(self, current, new, success, failure)
            }
            #[inline]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                Self::fetch_add(self, value, order)
            }
            #[inline]
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                Self::fetch_and(self, value, order)
            }
            #[inline]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                Self::fetch_or(self, value, order)
            }
            #[inline]
            fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                Self::fetch_max(self, value, order)
            }
        }
    };
}

atomic!(atomic::AtomicU64, u64);
atomic!(atomic::AtomicU32, u32);

/// Loom's atomics, for models of the code that is built on this module. They cover every interleaving and every
/// value that a weak memory order lets a load return.
#[cfg(any(test, feature = "loom"))]
mod model {
    use super::{Atomic, Atomics, Ordering};

    /// The atomics of the model checker.
    #[derive(Debug, Clone, Copy)]
    pub struct Loom;

    impl Atomics for Loom {
        type U64 = loom::sync::atomic::AtomicU64;
        type U32 = loom::sync::atomic::AtomicU32;

        fn fence() {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }

        fn relax() {
            loom::thread::yield_now();
        }
    }

    atomic!(loom::sync::atomic::AtomicU64, u64);
    atomic!(loom::sync::atomic::AtomicU32, u32);
}

#[cfg(any(test, feature = "loom"))]
pub use model::Loom;
