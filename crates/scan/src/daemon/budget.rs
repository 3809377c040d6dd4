//! The memory that all clients may have together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// The memory that no client has yet.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Arc<AtomicU64>,
    all: u64,
}

/// A part of the budget that a client has.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    bytes: u64,
}

impl Budget {
    /// A budget of `all` bytes.
    pub fn new(all: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(all)), all }
    }

    /// The whole budget, in bytes.
    pub fn all(&self) -> u64 {
        self.all
    }

    /// Takes a part of the budget for a request of the client.
    pub fn take(&self, bytes: u64, what: &str) -> Result<Share> {
        let mut share = Share { budget: self.clone(), bytes: 0 };
        share.resize(bytes, what)?;
        Ok(share)
    }
}

impl Share {
    /// Changes the share to `bytes`. If the budget has too little left, the share does not change.
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
