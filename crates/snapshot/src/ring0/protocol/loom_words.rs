//! Loom's atomic words: every interleaving, and every value that a weak memory order lets a load return.

use std::sync::atomic::Ordering;

use bedplate_ring0::word::{Atomic, Atomics};

/// For the model checker.
#[derive(Debug, Clone, Copy)]
pub struct Loom;

/// A word of loom's.
#[derive(Debug)]
pub struct Word<T>(T);

macro_rules! word {
    ($inner:ty, $value:ty) => {
        impl Atomic<$value> for Word<$inner> {
            fn new(value: $value) -> Self {
                Self(<$inner>::new(value))
            }
            fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }
            fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order);
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, success, failure)
            }
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_add(value, order)
            }
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_and(value, order)
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_or(value, order)
            }
            fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_max(value, order)
            }
        }
    };
}

word!(loom::sync::atomic::AtomicU64, u64);
word!(loom::sync::atomic::AtomicU32, u32);

impl Atomics for Loom {
    type U64 = Word<loom::sync::atomic::AtomicU64>;
    type U32 = Word<loom::sync::atomic::AtomicU32>;

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    fn relax() {
        loom::thread::yield_now();
    }
}
