//! Trees by name.
//!
//! A tree's handle has the number of its store and a number of its own, and nothing has to be closed: the list ends with the
//! store. All trees of the store are in the list. The C interface alone creates and drops trees of a store that it has opened, so
//! the list and the store's catalog are equal whenever `changing` is free.
//!
//! Locks: `changing` is held while a tree is created or dropped, which waits for commits and for storage. `list` is a leaf, held
//! for a moment, so that no transaction waits for the creation of a tree.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::ops::Bound;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bedplate_btree::store::{Error, NamedTree, Store};

use crate::code::bp_store_code::*;
use crate::code::{Refusal, answer};
use crate::input::{has_flag, name};
use crate::store::{CREATE, STORE_KIND, answer_outside_update, bp_store, store};
use crate::update::refuse_in_update;

/// A tree of a store. It is valid until the store is closed or the tree is dropped, in all threads; there is nothing to close.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_store_tree {
    /// The number of its store.
    pub store: u64,
    /// Its number in the store; never 0.
    pub number: u64,
}

/// The trees of a store that is open.
pub(crate) struct Trees {
    changing: Mutex<()>,
    list: RwLock<List>,
}

#[derive(Default)]
struct List {
    /// The number of the tree that was added last. Numbers are not used again.
    last: u64,
    by_name: BTreeMap<String, u64>,
    by_number: BTreeMap<u64, NamedTree>,
}

impl List {
    fn add(&mut self, tree: NamedTree) -> u64 {
        self.last += 1;
        self.by_name.insert(tree.name().to_owned(), self.last);
        self.by_number.insert(self.last, tree);
        self.last
    }
}

impl Trees {
    /// All trees of a store that was opened just now.
    pub(crate) fn of(store: &Store) -> Result<Self, Refusal> {
        let mut list = List::default();
        for name in store.trees() {
            list.add(store.tree(&name)?);
        }
        Ok(Self { changing: Mutex::default(), list: RwLock::new(list) })
    }

    fn read(&self) -> RwLockReadGuard<'_, List> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, List> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.read().by_name.get(name).copied()
    }

    /// The number of trees.
    pub(crate) fn count(&self) -> u64 {
        self.read().by_number.len() as u64
    }

    /// The tree of a handle, for a transaction of the store with the handle `store`.
    pub(crate) fn find(&self, tree: bp_store_tree, store: u64) -> Result<NamedTree, Refusal> {
        let unknown = || Refusal::new(BP_STORE_ERROR_HANDLE, "there never was such a tree");
        if tree.store != store {
            if tree.store >> 56 != u64::from(STORE_KIND) || tree.number == 0 {
                return Err(unknown());
            }
            let text = "the tree is not of the transaction's store: open it in that store";
            return Err(Refusal::new(BP_STORE_ERROR_OTHER_STORE, text));
        }
        let list = self.read();
        if tree.number == 0 || tree.number > list.last {
            return Err(unknown());
        }
        let dropped = || Refusal::new(BP_STORE_ERROR_NO_TREE, "the tree was dropped");
        list.by_number.get(&tree.number).cloned().ok_or_else(dropped)
    }

    /// The first name after another, or the first of all. Names that C cannot write are left out.
    fn next_name(&self, after: Option<&str>) -> Option<String> {
        let list = self.read();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut names = list.by_name.range::<str, _>((from, Bound::Unbounded)).map(|(name, _)| name);
        names.find(|name| !name.contains('\0')).cloned()
    }
}

/// Opens a tree by its name, which is UTF-8. With BP_STORE_CREATE in `flags`, an empty tree is created if there is none; its
/// creation is a commit of its own, and durable when this returns unless the store was opened with BP_STORE_ASYNC. A tree that is
/// opened twice has the same handle.
///
/// # Safety
/// `name` is a C string or NULL; `opened` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_open_tree(
    store: bp_store,
    name: *const c_char,
    flags: u32,
    opened: *mut bp_store_tree,
) -> c_int {
    answer(|| {
        if opened.is_null() {
            return Err(Refusal::null("no place for the tree"));
        }
        // SAFETY: as the caller promised.
        let name = unsafe { self::name(name) }?;
        let create = has_flag(flags, CREATE, CREATE)?;
        let open = self::store(store)?;
        let number = match open.trees.number(name) {
            Some(number) => number,
            // All trees are in the list.
            None if !create => return Err(Error::NoSuchTree(name.to_owned()).into()),
            None => {
                refuse_in_update(store.handle)?;
                let _changing = open.trees.changing.lock().unwrap_or_else(PoisonError::into_inner);
                // Another thread may have created it meanwhile.
                match open.trees.number(name) {
                    Some(number) => number,
                    None => {
                        let tree = open.store.create_tree(name)?;
                        open.trees.write().add(tree)
                    }
                }
            }
        };
        // SAFETY: as the caller promised.
        unsafe { opened.write_unaligned(bp_store_tree { store: store.handle, number }) };
        Ok(BP_STORE_OK)
    })
}

/// Removes a tree with all its records. BP_STORE_ERROR_ACTIVE while any transaction of the store is open. It is a commit of its
/// own.
///
/// # Safety
/// `name` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_drop_tree(store: bp_store, name: *const c_char) -> c_int {
    answer_outside_update(store, |open| {
        // SAFETY: as the caller promised.
        let name = unsafe { self::name(name) }?;
        let _changing = open.trees.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = open.store.drop_tree(name);
        // After an error, too, the tree may be gone: its record may be in the log.
        if open.store.tree(name).is_err() {
            let mut list = open.trees.write();
            if let Some(number) = list.by_name.remove(name) {
                list.by_number.remove(&number);
            }
        }
        dropped?;
        Ok(BP_STORE_OK)
    })
}

/// The name of the first tree after `after` in the order of names, with a zero at the end; NULL and "" are before all names.
/// BP_STORE_END if there is none. `name` may be the same place as `after`, so that a loop goes through all names. Names with a
/// zero byte, which only other languages can give, are left out.
///
/// # Safety
/// `after` is a C string or NULL; `name` has room for so many bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_next_tree(
    store: bp_store,
    after: *const c_char,
    name: *mut c_char,
    bytes: usize,
) -> c_int {
    answer(|| {
        if name.is_null() {
            return Err(Refusal::null("no place for the name"));
        }
        // SAFETY: as the caller promised.
        let after = if after.is_null() { None } else { Some(unsafe { self::name(after) }?) };
        let open = self::store(store)?;
        let Some(next) = open.trees.next_name(after) else { return Ok(BP_STORE_END) };
        if next.len() >= bytes {
            let text =
                format!("a name of {} bytes does not fit: BP_STORE_TREE_NAME_MAX + 1 suffice", next.len());
            return Err(Refusal::invalid(text));
        }
        // SAFETY: as the caller promised, and it fits. `after` is not used any more.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(next.as_ptr(), next.len());
            name.add(next.len()).write(0);
        }
        Ok(BP_STORE_OK)
    })
}
