//! Buffers for what must be copied. They are used again, so that a copy does not take page faults of new memory.
//!
//! Lock: the list of free buffers. Nothing else is taken while it is held.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::limits::KEPT_BUFFER_BYTES;

/// Sizes of buffers are multiples of it, so that a buffer fits more than one chunk.
const GRANULE: usize = 256 << 10;

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Free buffers.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    free: Arc<Mutex<Free>>,
}

impl Buffers {
    /// An empty buffer with room for so many bytes.
    pub fn take(&self, bytes: usize) -> Buffer {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |buffer: &Vec<u8>| buffer.capacity() >= bytes && buffer.capacity() / 2 <= bytes.max(GRANULE);
        let best = (0..free.buffers.len())
            .filter(|at| fits(&free.buffers[*at]))
            .min_by_key(|at| free.buffers[*at].capacity());
        let bytes = match best {
            Some(at) => {
                let buffer = free.buffers.swap_remove(at);
                free.bytes -= buffer.capacity();
                buffer
            }
            None => {
                drop(free);
                Vec::with_capacity(bytes.next_multiple_of(GRANULE))
            }
        };
        Buffer { bytes, home: self.clone() }
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}

/// A buffer, which goes back to the free ones when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    home: Buffers,
}

impl Buffer {
    /// Appends a copy.
    pub fn copy(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// What was copied.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + bytes.capacity() <= KEPT_BUFFER_BYTES {
            free.bytes += bytes.capacity();
            free.buffers.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_bounded() {
        let buffers = Buffers::default();
        let mut one = buffers.take(1 << 20);
        one.copy(&[7; 1000]);
        let bytes = one.into_bytes();
        let place = bytes.as_ptr();
        assert!(bytes.len() == 1000 && bytes.iter().all(|byte| *byte == 7));
        drop(bytes);
        assert_eq!(buffers.kept(), 1 << 20);
        let again = buffers.take((1 << 20) - 5);
        assert!(again.bytes.as_ptr() == place && again.bytes.is_empty());
        assert_eq!(buffers.kept(), 0);
        drop(again);
        assert!(buffers.take(10).bytes.as_ptr() != place, "a small copy does not take a large buffer");
        let many: Vec<_> = (0..100).map(|_| buffers.take(4 << 20)).collect();
        drop(many);
        assert!(buffers.kept() <= KEPT_BUFFER_BYTES && buffers.kept() > KEPT_BUFFER_BYTES - (4 << 20));
    }
}
