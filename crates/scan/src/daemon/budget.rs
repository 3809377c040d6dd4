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
    budget: Budget,
    bytes: u64,
}

impl Budget {
    /// So much.
    pub fn new(all: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(all)), all }
    }

    /// A part of it, for something that the client asked for.
    pub fn take(&self, bytes: u64, what: &str) -> Result<Share> {
        let mut share = Share { budget: self.clone(), bytes: 0 };
        share.resize(bytes, what)?;
        Ok(share)
    }
}

impl Share {
    /// Makes it as large as this. If there is not as much, it stays as it is.
    pub fn resize(&mut self, bytes: u64, what: &str) -> Result<()> {
        let change = |left: u64| (left + self.bytes).checked_sub(bytes);
        match self.budget.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change) {
            Ok(_) => {
                self.bytes = bytes;
                Ok(())
            }
            Err(left) => Err(Error::Refused(format!(
                "{what} takes {bytes} bytes, and {} of the service's {} for scans are left: ask for less, or raise its limit \
                 (--memory)",
                left + self.bytes,
                self.budget.all
            ))),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
