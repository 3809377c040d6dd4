//! The memory that all clients may have together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// What is left of it.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Arc<AtomicU64>,
    all: u64,
}

/// A part of it that somebody has.
#[derive(Debug)]
pub struct Share {
    left: Arc<AtomicU64>,
    bytes: u64,
}

impl Budget {
    /// So much.
    pub fn new(all: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(all)), all }
    }

    /// A part of it.
    pub fn take(&self, bytes: u64) -> Result<Share> {
        let less = |left: u64| left.checked_sub(bytes);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Ok(Share { left: self.left.clone(), bytes }),
            Err(left) => Err(Error::Refused(format!(
                "{left} bytes of the service's {} for scans are left: ask for less, or raise its limit (--memory)",
                self.all
            ))),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
