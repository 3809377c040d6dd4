//! Transactions, and reading and writing in them.
//!
//! A value that a program gets is in a buffer of its transaction. The program cannot know the length of a value before it has
//! it, and with a buffer of its own it would have to ask twice; with memory of its own it would have to free it. The buffer is used
//! again by the next `bp_store_get`, and freed when the transaction ends.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use bedplate_btree::store::{NamedTree, ReadTransaction, WriteTransaction};
use bedplate_c_support::table::{Bad, Entered, Table};

use crate::code::bp_store_code::*;
use crate::code::{Answer, Refusal, answer};
use crate::cursor::Cursors;
use crate::input::{bounds, bp_store_bytes, bp_store_range, bytes, has_flag};
use crate::store::{Open, bp_store, store};
use crate::trees::bp_store_tree;
use crate::update::refuse_in_update;

/// BP_STORE_READ_ONLY
const READ_ONLY: u32 = 0x1;

pub(crate) static SESSIONS: Table<Session> = Table::new(b'X');

/// A transaction that is open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_store_transaction {
    /// Its number; never 0.
    pub handle: u64,
}

/// A transaction that is open, and all that ends with it. Fields are dropped in their order, and the share of the store must be
/// the last, as [`Open`] says.
pub(crate) struct Session {
    pub(crate) transaction: Transaction,
    pub(crate) cursors: Cursors,
    /// The value that was returned last.
    value: Vec<u8>,
    /// Whether `bp_store_update` has begun it, and ends it.
    is_updates: bool,
    pub(crate) trees: KnownTrees,
}

/// The trees that a transaction has used, so that it looks up each of them once, and the store.
pub(crate) struct KnownTrees {
    known: BTreeMap<u64, NamedTree>,
    /// The handle of the store.
    handle: u64,
    open: Arc<Open>,
}

impl KnownTrees {
    pub(crate) fn find(&mut self, tree: bp_store_tree) -> Result<&NamedTree, Refusal> {
        use std::collections::btree_map::Entry;

        if tree.store != self.handle {
            // The list has the error.
            return Err(self.open.trees.find(tree, self.handle).err().unwrap_or_else(|| Bad::Unknown.into()));
        }
        match self.known.entry(tree.number) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(self.open.trees.find(tree, self.handle)?)),
        }
    }
}

/// A transaction of either kind.
pub(crate) enum Transaction {
    Read(ReadTransaction<'static>),
    Write(WriteTransaction<'static>),
}

impl Transaction {
    fn get(&self, tree: &NamedTree, key: &[u8]) -> bedplate_btree::store::Result<Option<Vec<u8>>> {
        match self {
            Self::Read(transaction) => transaction.get(tree, key),
            Self::Write(transaction) => transaction.get(tree, key),
        }
    }

    fn contains(&self, tree: &NamedTree, key: &[u8]) -> bedplate_btree::store::Result<bool> {
        match self {
            Self::Read(transaction) => transaction.contains(tree, key),
            Self::Write(transaction) => transaction.contains(tree, key),
        }
    }

    fn writing(&mut self) -> Result<&mut WriteTransaction<'static>, Refusal> {
        match self {
            Self::Write(transaction) => Ok(transaction),
            Self::Read(_) => {
                let text = "the transaction is read-only: begin one without BP_STORE_READ_ONLY";
                Err(Refusal::new(BP_STORE_ERROR_READ_ONLY, text))
            }
        }
    }
}

impl Session {
    pub(crate) fn new(transaction: Transaction, store: bp_store, open: Arc<Open>, is_updates: bool) -> Self {
        Self {
            transaction,
            cursors: Cursors::default(),
            value: Vec::new(),
            is_updates,
            trees: KnownTrees { known: BTreeMap::new(), handle: store.handle, open },
        }
    }

    /// Makes a handle of it.
    pub(crate) fn insert(self) -> Result<bp_store_transaction, Refusal> {
        let full = |_| Refusal::full("as many transactions are open as there can be: end some");
        Ok(bp_store_transaction { handle: SESSIONS.insert(self).map_err(full)? })
    }

    /// Whether the program may end it.
    fn may_end(&self) -> Result<(), Refusal> {
        if self.is_updates {
            let text = "the transaction is bp_store_update()'s: it ends when the function returns";
            return Err(Refusal::new(BP_STORE_ERROR_IN_UPDATE, text));
        }
        Ok(())
    }

    /// Changes a tree. The cursors in it forget the records that they have read ahead.
    fn change(
        &mut self,
        tree: bp_store_tree,
        change: impl FnOnce(&mut WriteTransaction<'static>, &NamedTree) -> Answer,
    ) -> Answer {
        let transaction = self.transaction.writing()?;
        let found = self.trees.find(tree)?;
        self.cursors.forget_ahead(tree);
        change(transaction, found)
    }
}

/// The transaction of a handle, for this thread alone.
pub(crate) fn session(transaction: bp_store_transaction) -> Result<Entered<Session>, Refusal> {
    Ok(SESSIONS.enter(transaction.handle)?)
}

/// Begins a transaction. With BP_STORE_READ_ONLY in `flags` it reads the store as it is now, whatever others commit
/// meanwhile. Without, it reads the store as it is now, keeps its writes to itself, and is validated when it commits. Every
/// transaction must be ended by bp_store_commit() or bp_store_abort(): until then, values that others replace are kept in memory
/// for it.
///
/// # Safety
/// `begun` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_begin(
    store: bp_store,
    flags: u32,
    begun: *mut bp_store_transaction,
) -> c_int {
    answer(|| {
        if begun.is_null() {
            return Err(Refusal::null("no place for the transaction"));
        }
        let is_read_only = has_flag(flags, READ_ONLY, READ_ONLY)?;
        let open = self::store(store)?;
        let transaction = if is_read_only {
            Transaction::Read(open.store.read_shared()?)
        } else {
            Transaction::Write(open.store.write_shared()?)
        };
        let handle = Session::new(transaction, store, open, false).insert()?;
        // SAFETY: as the caller promised.
        unsafe { begun.write_unaligned(handle) };
        Ok(BP_STORE_OK)
    })
}

/// Commits a transaction and ends it, with its cursors, whatever this returns, unless the error is a mistake of the program's:
/// one of BP_STORE_ERROR_HANDLE, CLOSED, BUSY, FORKED and IN_UPDATE.
///
/// BP_STORE_ERROR_CONFLICT if another transaction has committed a change of a record or a range that this one read: nothing was
/// written, and the program begins again. That is so even if this one wrote nothing. A read-only transaction never conflicts.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_commit(transaction: bp_store_transaction) -> c_int {
    answer(|| {
        let mut is_whole = false;
        let session = SESSIONS.remove(transaction.handle, |session: &Session| {
            session.may_end()?;
            refuse_in_update(session.trees.handle)?;
            is_whole = true;
            Ok::<_, Refusal>(())
        })?;
        if !is_whole {
            return Err(Bad::Broken.into());
        }
        // `trees` has the share of the store and is dropped last, because it is declared first.
        let Session { trees: _trees, transaction, .. } = session;
        if let Transaction::Write(transaction) = transaction {
            transaction.commit()?;
        }
        Ok(BP_STORE_OK)
    })
}

/// Undoes a transaction and ends it, with its cursors. So does a read-only one end.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_abort(transaction: bp_store_transaction) -> c_int {
    answer(|| {
        drop(SESSIONS.remove(transaction.handle, Session::may_end)?);
        Ok(BP_STORE_OK)
    })
}

/// The value of a key: BP_STORE_OK and the value, or BP_STORE_NOT_FOUND, and `value` is {NULL, 0}. The bytes are the library's.
/// They are valid until the next bp_store_get() in this transaction, or its end, and may be passed to any function. If `value` is
/// NULL, this only says whether the key is there.
///
/// # Safety
/// `key_len` bytes at `key` are readable, or `key` is NULL; `value` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_get(
    transaction: bp_store_transaction,
    tree: bp_store_tree,
    key: *const c_void,
    key_len: usize,
    value: *mut bp_store_bytes,
) -> c_int {
    answer(|| {
        // SAFETY: as the caller promised.
        let key = unsafe { bytes(key, key_len, "no key") }?;
        let mut session = session(transaction)?;
        let Session { transaction, trees, value: buffer, .. } = &mut *session;
        let tree = trees.find(tree)?;
        if value.is_null() {
            let found = transaction.contains(tree, key)?;
            return Ok(if found { BP_STORE_OK } else { BP_STORE_NOT_FOUND });
        }
        // The key may be in the buffer, which is not used any more from here on.
        let found = transaction.get(tree, key)?;
        let (code, bytes) = match found {
            Some(found) => {
                *buffer = found;
                (BP_STORE_OK, bp_store_bytes::of(buffer))
            }
            None => (BP_STORE_NOT_FOUND, bp_store_bytes { data: ptr::null(), len: 0 }),
        };
        // SAFETY: as the caller promised.
        unsafe { value.write_unaligned(bytes) };
        Ok(code)
    })
}

/// Inserts a record, or replaces its value. It reads nothing, so it alone never conflicts.
///
/// # Safety
/// `key_len` bytes at `key` and `value_len` bytes at `value` are readable, or the pointers are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_put(
    transaction: bp_store_transaction,
    tree: bp_store_tree,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> c_int {
    answer(|| {
        // SAFETY: as the caller promised.
        let (key, value) = unsafe { (bytes(key, key_len, "no key")?, bytes(value, value_len, "no value")?) };
        session(transaction)?.change(tree, |transaction, tree| {
            transaction.put(tree, key, value)?;
            Ok(BP_STORE_OK)
        })
    })
}

/// Inserts a record unless the key is there: BP_STORE_EXISTS, and its value stays.
///
/// # Safety
/// As for bp_store_put().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_insert(
    transaction: bp_store_transaction,
    tree: bp_store_tree,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> c_int {
    answer(|| {
        // SAFETY: as the caller promised.
        let (key, value) = unsafe { (bytes(key, key_len, "no key")?, bytes(value, value_len, "no value")?) };
        session(transaction)?.change(tree, |transaction, tree| {
            let is_new = transaction.insert(tree, key, value)?;
            Ok(if is_new { BP_STORE_OK } else { BP_STORE_EXISTS })
        })
    })
}

/// Deletes a record: BP_STORE_OK, or BP_STORE_NOT_FOUND if the key is not there.
///
/// # Safety
/// `key_len` bytes at `key` are readable, or `key` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_delete(
    transaction: bp_store_transaction,
    tree: bp_store_tree,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    answer(|| {
        // SAFETY: as the caller promised.
        let key = unsafe { bytes(key, key_len, "no key") }?;
        session(transaction)?.change(tree, |transaction, tree| {
            let found = transaction.remove(tree, key)?;
            Ok(if found { BP_STORE_OK } else { BP_STORE_NOT_FOUND })
        })
    })
}

/// Deletes all records of a range; `range` NULL: all records of the tree. `deleted`, which may be NULL, gets the number of them.
/// BP_STORE_ERROR_TOO_LARGE if there are more than a transaction may write: delete them in several transactions.
///
/// # Safety
/// `range` is NULL or readable, as its bytes are; `deleted` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_delete_range(
    transaction: bp_store_transaction,
    tree: bp_store_tree,
    range: *const bp_store_range,
    deleted: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: as the caller promised.
        let bounds = unsafe { bounds(range) }?;
        session(transaction)?.change(tree, |transaction, tree| {
            let count = transaction.remove_range(tree, bounds)? as u64;
            if !deleted.is_null() {
                // SAFETY: as the caller promised.
                unsafe { deleted.write_unaligned(count) };
            }
            Ok(BP_STORE_OK)
        })
    })
}
