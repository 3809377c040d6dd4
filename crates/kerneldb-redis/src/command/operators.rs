//! The operators of a session that commands use.

use bedplate_kerneldb::{
    Durability, Error, FoundProcedure, KeyUsage, Reply, Result, Session, SetOptions, Value, Written,
};

/// The operators of one session, exactly as [`Session`] has them; commands are generic over it, so that
/// they can be run on a model as well. See [`Session`] for what each one does.
#[allow(missing_docs, reason = "documented at Session")]
pub trait Operators {
    fn begin(&mut self) -> Result<()>;
    fn begin_read_only(&mut self) -> Result<()>;
    fn in_transaction(&self) -> bool;
    fn is_failed(&self) -> bool;
    fn failure(&self) -> Error {
        Error::Aborted
    }
    fn get(&mut self, key: &[u8]) -> Result<Option<Value>>;
    fn peek(&mut self, key: &[u8]) -> Result<Option<Value>> {
        self.get(key)
    }
    fn key_usage(&mut self, key: &[u8]) -> Result<Option<KeyUsage>> {
        Ok(self.get(key)?.map(|_| KeyUsage::default()))
    }
    fn set(&mut self, key: &[u8], value: &[u8], options: SetOptions) -> Result<Written>;
    fn delete(&mut self, key: &[u8]) -> Result<Written>;
    fn delete_expired(&mut self, key: &[u8]) -> Result<Written>;
    fn compare_and_set(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<Written>;
    fn commit(&mut self) -> Result<u64>;
    fn rollback(&mut self) -> Result<()>;
    fn find_procedure(&self, name: &str) -> Result<FoundProcedure> {
        Err(Error::NoProcedure(name.to_owned()))
    }
    fn call_found(&mut self, _procedure: &FoundProcedure, _arguments: &[&[u8]]) -> Result<Reply> {
        Err(Error::State)
    }
    fn take_observed_ts(&mut self) -> u64;
    /// Sets whether writes are logged, from the next transaction on. The caller waits for durability, so
    /// [`Durability::Async`] and [`Durability::Sync`] are the same here.
    fn set_durability(&mut self, durability: Durability);
}

impl Operators for Session {
    fn begin(&mut self) -> Result<()> {
        Session::begin(self)
    }

    fn begin_read_only(&mut self) -> Result<()> {
        Session::begin_read_only(self)
    }

    fn in_transaction(&self) -> bool {
        Session::in_transaction(self)
    }

    fn is_failed(&self) -> bool {
        Session::is_failed(self)
    }

    fn failure(&self) -> Error {
        Session::failure(self)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Value>> {
        Session::get(self, key)
    }

    fn peek(&mut self, key: &[u8]) -> Result<Option<Value>> {
        Session::peek(self, key)
    }

    fn key_usage(&mut self, key: &[u8]) -> Result<Option<KeyUsage>> {
        Session::key_usage(self, key)
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: SetOptions) -> Result<Written> {
        Session::set(self, key, value, options)
    }

    fn delete(&mut self, key: &[u8]) -> Result<Written> {
        Session::delete(self, key)
    }

    fn delete_expired(&mut self, key: &[u8]) -> Result<Written> {
        Session::delete_expired(self, key)
    }

    fn compare_and_set(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<Written> {
        Session::compare_and_set(self, key, expected, new)
    }

    fn commit(&mut self) -> Result<u64> {
        Session::commit(self)
    }

    fn rollback(&mut self) -> Result<()> {
        Session::rollback(self)
    }

    fn find_procedure(&self, name: &str) -> Result<FoundProcedure> {
        Session::find_procedure(self, name)
    }

    fn call_found(&mut self, procedure: &FoundProcedure, arguments: &[&[u8]]) -> Result<Reply> {
        Session::call_found(self, procedure, arguments)
    }

    fn take_observed_ts(&mut self) -> u64 {
        Session::take_observed_ts(self)
    }

    fn set_durability(&mut self, durability: Durability) {
        self.set_logged(durability != Durability::Off);
    }
}
