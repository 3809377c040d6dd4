//! RocksDB, with direct I/O, Bloom filters, and no compression (the data is random). The block cache, which also holds
//! indexes and filters, has three quarters of the memory, and each of two memtables has an eighth. Without durability,
//! there is no write-ahead log. With durability, every write is synchronous, and RocksDB writes waiting writes together.
//!
//! A transaction is an indexed batch, which is read before the database. It is atomic but not isolated.

mod library;

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use self::library::{Interface, Object};
use super::Setting;
use crate::pool::store::{Access, Body, Each, Expected, Session, Store, Transaction, Verdict, Visit};
use crate::{Error, Result};

/// `kTwoLevelIndexSearch`: an index of indexes.
const TWO_LEVELS: c_int = 2;
/// Approximate size of a record in a file, in bytes.
const RECORD: usize = 140;

/// A RocksDB database.
pub struct RocksDb {
    rocks: Interface,
    database: Object,
    read: Object,
    write: Object,
}

// SAFETY: RocksDB's databases and options may be used by several threads at once.
unsafe impl Send for RocksDb {}
// SAFETY: as above.
unsafe impl Sync for RocksDb {}

impl RocksDb {
    /// Opens the store in a directory, or creates it.
    pub fn open(directory: &Path, setting: Setting) -> Result<Self> {
        let rocks = library::load()?;
        let name = CString::new(directory.join("rocksdb").as_os_str().as_bytes())
            .map_err(|_| failed("a directory's name has a zero byte".to_owned()))?;
        let budget = setting.budget as usize;
        // SAFETY: the library has just made all objects. The table options own the filter policy and have a reference
        // to the cache, and the database copies all options.
        unsafe {
            let table = (rocks.block_based_options_create)();
            let cache = (rocks.cache_create_lru)(budget / 4 * 3);
            (rocks.block_based_options_set_block_cache)(table, cache);
            (rocks.cache_destroy)(cache);
            (rocks.block_based_options_set_cache_index_and_filter_blocks)(table, 1);
            // So small a cache would have room for only few indexes and filters of whole files.
            (rocks.block_based_options_set_index_type)(table, TWO_LEVELS);
            (rocks.block_based_options_set_partition_filters)(table, 1);
            (rocks.block_based_options_set_pin_l0_filter_and_index_blocks_in_cache)(table, 1);
            (rocks.block_based_options_set_filter_policy)(
                table,
                (rocks.filterpolicy_create_bloom_full)(10.0),
            );
            let options = (rocks.options_create)();
            (rocks.options_set_block_based_table_factory)(options, table);
            (rocks.block_based_options_destroy)(table);
            (rocks.options_set_create_if_missing)(options, 1);
            (rocks.options_set_write_buffer_size)(options, budget / 8);
            (rocks.options_set_max_write_buffer_number)(options, 2);
            (rocks.options_set_use_direct_reads)(options, 1);
            (rocks.options_set_use_direct_io_for_flush_and_compaction)(options, 1);
            (rocks.options_set_compression)(options, 0);
            (rocks.options_set_max_background_jobs)(options, 2);
            let mut problem = null_mut();
            let database = (rocks.open)(options, name.as_ptr(), &mut problem);
            (rocks.options_destroy)(options);
            said(&rocks, problem)?;
            let (read, write) = ((rocks.readoptions_create)(), (rocks.writeoptions_create)());
            (rocks.writeoptions_set_sync)(write, setting.durable.into());
            (rocks.writeoptions_disable_WAL)(write, (!setting.durable).into());
            Ok(Self { rocks, database, read, write })
        }
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: this object owns them, and no session that borrows it is left.
        unsafe {
            (self.rocks.readoptions_destroy)(self.read);
            (self.rocks.writeoptions_destroy)(self.write);
            (self.rocks.close)(self.database);
        }
    }
}

fn failed(problem: String) -> Error {
    Error::Store { store: "RocksDB", problem }
}

/// The error that the library has left, if any.
///
/// # Safety
/// `problem` is null or a message of the library, which the caller does not use afterwards.
unsafe fn said(rocks: &Interface, problem: *mut c_char) -> Result<()> {
    if problem.is_null() {
        return Ok(());
    }
    // SAFETY: it is a text that ends with a zero byte, by the library's `malloc`.
    unsafe {
        let text = CStr::from_ptr(problem).to_string_lossy().into_owned();
        (rocks.free)(problem.cast());
        Err(failed(text))
    }
}

impl Store for RocksDb {
    type Session<'s> = RocksSession<'s>;

    fn session(&self) -> Result<RocksSession<'_>> {
        // SAFETY: all three are this session's. The indexed batch overwrites, so that a key is in it once.
        let (batch, plain_batch, ahead) = unsafe {
            (
                (self.rocks.writebatch_wi_create)(0, 1),
                (self.rocks.writebatch_create)(),
                (self.rocks.readoptions_create)(),
            )
        };
        Ok(RocksSession { store: self, batch, plain_batch, ahead, new: Vec::new() })
    }

    /// Writes the memtables and compacts the database completely, as RocksDB would do in time.
    fn settle(&self) -> Result<()> {
        let mut problem = null_mut();
        // SAFETY: the objects are alive; no bounds are given as null pointers of length 0.
        unsafe {
            let options = (self.rocks.flushoptions_create)();
            (self.rocks.flush)(self.database, options, &mut problem);
            (self.rocks.flushoptions_destroy)(options);
            said(&self.rocks, problem)?;
            (self.rocks.compact_range)(self.database, null_mut(), 0, null_mut(), 0);
        }
        Ok(())
    }
}

/// A thread's session.
pub struct RocksSession<'s> {
    store: &'s RocksDb,
    /// The transaction that runs.
    batch: Object,
    /// A batch without an index, for writes that are not read before they are in the database.
    plain_batch: Object,
    /// The read options of scans.
    ahead: Object,
    new: Vec<u8>,
}

impl Drop for RocksSession<'_> {
    fn drop(&mut self) {
        // SAFETY: these are the session's own.
        unsafe {
            (self.store.rocks.writebatch_wi_destroy)(self.batch);
            (self.store.rocks.writebatch_destroy)(self.plain_batch);
            (self.store.rocks.readoptions_destroy)(self.ahead);
        }
    }
}

impl RocksSession<'_> {
    /// An iterator that reads the expected records ahead, or, without a number, as far as RocksDB chooses.
    fn iterator(&self, expected: Expected) -> Object {
        let rocks = &self.store.rocks;
        // SAFETY: the database is open, and the options are the session's, whose iterator before this one is gone.
        unsafe {
            let bytes = expected.map_or(0, |records| records * RECORD);
            (rocks.readoptions_set_readahead_size)(self.ahead, bytes);
            (rocks.create_iterator)(self.store.database, self.ahead)
        }
    }

    /// Visits the pairs of an iterator and destroys it.
    ///
    /// # Safety
    /// `iterator` belongs to this database, and only this function uses it.
    unsafe fn visit(&self, iterator: Object, from: &[u8], visit: Visit<'_>) -> Result<()> {
        let rocks = &self.store.rocks;
        let mut problem = null_mut();
        // SAFETY: key and value are valid until the iterator moves.
        unsafe {
            (rocks.iter_seek)(iterator, from.as_ptr().cast(), from.len());
            while (rocks.iter_valid)(iterator) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let key = (rocks.iter_key)(iterator, &mut key_len);
                let value = (rocks.iter_value)(iterator, &mut value_len);
                if !visit(slice(key, key_len), slice(value, value_len)) {
                    break;
                }
                (rocks.iter_next)(iterator);
            }
            (rocks.iter_get_error)(iterator, &mut problem);
            (rocks.iter_destroy)(iterator);
            said(rocks, problem)
        }
    }
}

/// # Safety
/// `bytes` has `len` bytes for as long as the result is used.
unsafe fn slice<'b>(bytes: *const c_char, len: usize) -> &'b [u8] {
    match len {
        0 => &[],
        // SAFETY: the caller guarantees it.
        _ => unsafe { std::slice::from_raw_parts(bytes.cast(), len) },
    }
}

impl Session for RocksSession<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let (rocks, mut problem, mut len) = (&self.store.rocks, null_mut(), 0);
        value.clear();
        // SAFETY: the database is open; the slice is valid until it is destroyed.
        unsafe {
            let key_bytes = key.as_ptr().cast();
            let found =
                (rocks.get_pinned)(self.store.database, self.store.read, key_bytes, key.len(), &mut problem);
            said(rocks, problem)?;
            if found.is_null() {
                return Ok(false);
            }
            let bytes = (rocks.pinnableslice_value)(found, &mut len);
            value.extend_from_slice(slice(bytes, len));
            (rocks.pinnableslice_destroy)(found);
        }
        Ok(true)
    }

    fn get_many(&mut self, keys: &[&[u8]], each: Each<'_>) -> Result<()> {
        let (store, count) = (self.store, keys.len());
        let (bytes, lens): (Vec<_>, Vec<_>) =
            keys.iter().map(|key| (key.as_ptr().cast::<c_char>(), key.len())).unzip();
        let (mut values, mut value_lens, mut problems) =
            (vec![null_mut(); count], vec![0; count], vec![null_mut(); count]);
        let mut result = Ok(());
        // SAFETY: the database is open, and all arrays have as many entries as there are keys. This function frees the values
        // that the library returns.
        unsafe {
            (store.rocks.multi_get)(
                store.database,
                store.read,
                count,
                bytes.as_ptr(),
                lens.as_ptr(),
                values.as_mut_ptr(),
                value_lens.as_mut_ptr(),
                problems.as_mut_ptr(),
            );
            for (index, ((value, len), problem)) in
                values.into_iter().zip(value_lens).zip(problems).enumerate()
            {
                result = result.and(said(&store.rocks, problem));
                each(index, (!value.is_null()).then(|| slice(value, len)));
                (store.rocks.free)(value.cast());
            }
        }
        result
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (store, mut problem) = (self.store, null_mut());
        let (key_bytes, value_bytes) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the database is open, and copies key and value.
        unsafe {
            let put = store.rocks.put;
            put(store.database, store.write, key_bytes, key.len(), value_bytes, value.len(), &mut problem);
            said(&store.rocks, problem)
        }
    }

    fn put_many(&mut self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        let (store, batch, mut problem) = (self.store, self.plain_batch, null_mut());
        // SAFETY: the database is open. The batch is this session's, and copies keys and values.
        unsafe {
            (store.rocks.writebatch_clear)(batch);
            for (key, value) in pairs {
                let (key_bytes, value_bytes) = (key.as_ptr().cast(), value.as_ptr().cast());
                (store.rocks.writebatch_put)(batch, key_bytes, key.len(), value_bytes, value.len());
            }
            (store.rocks.write)(store.database, store.write, batch, &mut problem);
            said(&store.rocks, problem)
        }
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        let iterator = self.iterator(expected);
        // SAFETY: the iterator is new.
        unsafe { self.visit(iterator, from, visit) }
    }

    fn transaction(&mut self, _: Access, body: Body<'_>) -> Result<Verdict> {
        // SAFETY: the batch is this session's.
        unsafe { (self.store.rocks.writebatch_wi_clear)(self.batch) };
        let verdict = body(&mut *self)?;
        if verdict == Verdict::Commit {
            let (store, mut problem) = (self.store, null_mut());
            // SAFETY: the database is open; the batch stays this session's.
            unsafe {
                (store.rocks.write_writebatch_wi)(store.database, store.write, self.batch, &mut problem);
                said(&store.rocks, problem)?;
            }
        }
        Ok(verdict)
    }
}

/// The operations of the running transaction. Its writes are in the session's batch.
impl Transaction for RocksSession<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let (store, mut problem, mut len) = (self.store, null_mut(), 0);
        value.clear();
        // SAFETY: batch and database are alive; this function frees the value that is found.
        unsafe {
            let get = store.rocks.writebatch_wi_get_from_batch_and_db;
            let key_bytes = key.as_ptr().cast();
            let found =
                get(self.batch, store.database, store.read, key_bytes, key.len(), &mut len, &mut problem);
            said(&store.rocks, problem)?;
            if found.is_null() {
                return Ok(false);
            }
            value.extend_from_slice(slice(found, len));
            (store.rocks.free)(found.cast());
        }
        Ok(true)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (key_bytes, value_bytes) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the batch is this session's, and copies key and value.
        unsafe {
            (self.store.rocks.writebatch_wi_put)(self.batch, key_bytes, key.len(), value_bytes, value.len());
        }
        Ok(())
    }

    fn update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool> {
        let mut new = std::mem::take(&mut self.new);
        let found = Transaction::get(self, key, &mut new)?;
        if found {
            change(&mut new);
            self.insert(key, &new)?;
        }
        self.new = new;
        Ok(found)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        let mut old = std::mem::take(&mut self.new);
        let found = Transaction::get(self, key, &mut old)?;
        self.new = old;
        // SAFETY: the batch is this session's, and copies the key.
        unsafe { (self.store.rocks.writebatch_wi_delete)(self.batch, key.as_ptr().cast(), key.len()) };
        Ok(found)
    }

    fn scan(&mut self, from: &[u8], expected: Expected, visit: Visit<'_>) -> Result<()> {
        // SAFETY: the new iterator owns the base and is destroyed before the batch changes.
        unsafe {
            let base = self.iterator(expected);
            let iterator = (self.store.rocks.writebatch_wi_create_iterator_with_base)(self.batch, base);
            self.visit(iterator, from, visit)
        }
    }
}

/// An error with the reason if there is no RocksDB.
#[cfg(test)]
pub fn available() -> Result<()> {
    library::load().map(drop)
}
