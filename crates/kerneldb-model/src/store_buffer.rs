//! The store buffer of a processor, as x86 has it.
//!
//! The stores of a buffer are applied to memory while a thread of its processor runs, and taken back before
//! another processor's thread runs. A processor therefore sees its own stores at once. Others see them when
//! they have left the buffer, in their order.

use crate::limits::STORES;

#[derive(Clone, Copy)]
struct Store {
    address: u64,
    bytes: u32,
    new: [u8; 16],
    /// Contents of the memory before the store was applied.
    old: [u8; 16],
}

/// The stores of one processor that others do not see yet.
#[derive(Default)]
pub(crate) struct StoreBuffer {
    stores: Vec<Store>,
    applied: bool,
    /// A store that the thread is about to make: its new value is known at the thread's next access.
    pending: Option<Store>,
}

fn read(address: u64, bytes: u32, to: &mut [u8; 16]) {
    // SAFETY: the address is one that the engine accesses itself, in memory of the model.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, to.as_mut_ptr(), bytes as usize) }
}

fn write(address: u64, bytes: u32, from: &[u8; 16]) {
    // SAFETY: as in `read`.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), address as *mut u8, bytes as usize) }
}

impl StoreBuffer {
    /// Called before the thread stores to memory.
    pub(crate) fn about_to_store(&mut self, address: u64, bytes: u32) {
        let mut store = Store { address, bytes, new: [0; 16], old: [0; 16] };
        read(address, bytes, &mut store.old);
        self.pending = Some(store);
    }

    /// Called after the announced store has happened.
    pub(crate) fn stored(&mut self) {
        let Some(mut store) = self.pending.take() else { return };
        read(store.address, store.bytes, &mut store.new);
        self.stores.push(store);
    }

    /// Whether the buffer is full, so that the oldest store has to leave.
    pub(crate) fn is_full(&self) -> bool {
        self.stores.len() > STORES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    /// Called when a thread of this processor begins to run.
    pub(crate) fn apply(&mut self) {
        if self.applied {
            return;
        }
        self.applied = true;
        for store in &mut self.stores {
            read(store.address, store.bytes, &mut store.old);
            write(store.address, store.bytes, &store.new);
        }
    }

    /// Called when no thread of this processor runs any more.
    pub(crate) fn take_back(&mut self) {
        if !self.applied {
            return;
        }
        self.applied = false;
        for store in self.stores.iter().rev() {
            write(store.address, store.bytes, &store.old);
        }
    }

    /// Makes the oldest stores visible to all processors. The buffer is not applied.
    pub(crate) fn drain(&mut self, count: usize) {
        debug_assert!(!self.applied);
        for store in self.stores.drain(..count.min(self.stores.len())) {
            write(store.address, store.bytes, &store.new);
        }
    }

    /// Makes all stores visible to all processors; the buffer may be applied.
    pub(crate) fn drain_all(&mut self) {
        self.stored();
        if self.applied {
            self.stores.clear();
        } else {
            self.drain(usize::MAX);
        }
    }

    /// Empties the buffer.
    pub(crate) fn reset(&mut self) {
        self.stores.clear();
        self.applied = false;
        self.pending = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(buffer: &mut StoreBuffer, to: &mut u64, value: u64) {
        let address = std::ptr::from_mut(to) as u64;
        buffer.about_to_store(address, 8);
        // SAFETY: the address of a variable that is borrowed.
        unsafe { std::ptr::write_volatile(address as *mut u64, value) };
        buffer.stored();
    }

    #[test]
    fn only_the_own_processor_sees_a_store_before_it_is_drained() {
        let mut word = Box::new(1u64);
        let mut buffer = StoreBuffer::default();
        buffer.apply();
        store(&mut buffer, &mut word, 2);
        store(&mut buffer, &mut word, 3);
        assert_eq!(*word, 3);
        buffer.take_back();
        assert_eq!(*word, 1);
        buffer.apply();
        assert_eq!(*word, 3);
        buffer.take_back();
        buffer.drain(1);
        assert_eq!(*word, 2);
        // Another processor's store comes between the two.
        *word = 9;
        buffer.apply();
        assert_eq!(*word, 3);
        buffer.take_back();
        assert_eq!(*word, 9);
        buffer.drain_all();
        assert_eq!(*word, 3);
    }
}
