//! A session: the user-space handle through which operators are run.

use crate::{Result, SetOptions, Value, Written};

/// A session of the database: one transaction at a time, used by one thread at a time (`Send`, not
/// `Sync`). Dropping it rolls back its transaction.
///
/// Outside of a transaction every operation is its own transaction (auto-commit).
pub struct Session {
    _private: (),
}

impl Session {
    /// Starts a read-write transaction (strict two-phase locking, no-wait).
    pub fn begin(&mut self) -> Result<()> {
        todo!()
    }

    /// Starts a read-only transaction on a snapshot: it never blocks, aborts or locks.
    pub fn begin_read_only(&mut self) -> Result<()> {
        todo!()
    }

    /// Whether a transaction (also a failed one) is open.
    pub fn in_transaction(&self) -> bool {
        todo!()
    }

    /// Reads a key; an expired key does not exist.
    pub fn get(&mut self, _key: &[u8]) -> Result<Option<Value>> {
        todo!()
    }

    /// Writes a key.
    pub fn set(&mut self, _key: &[u8], _value: &[u8], _options: SetOptions) -> Result<Written> {
        todo!()
    }

    /// Deletes a key; [`Written::ConditionFailed`] if it did not exist.
    pub fn delete(&mut self, _key: &[u8]) -> Result<Written> {
        todo!()
    }

    /// Writes `new` if the key's value is `expected`.
    pub fn compare_and_set(&mut self, _key: &[u8], _expected: &[u8], _new: &[u8]) -> Result<Written> {
        todo!()
    }

    /// Commits; returns the commit timestamp (0 if nothing was written or the transaction was
    /// read-only). After an error the transaction has been rolled back.
    pub fn commit(&mut self) -> Result<u64> {
        todo!()
    }

    /// Rolls back; a no-op without a transaction.
    pub fn rollback(&mut self) -> Result<()> {
        todo!()
    }
}
