//! Results of functions: a code, and for a thread's last error a text and an error number.

use std::borrow::Cow;
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int};
use std::io;

use bedplate_btree::store::Error;
use bedplate_bufpool::Error as PoolError;
use bedplate_c_support::input::Wrong;
use bedplate_c_support::last::{self, Failure};
use bedplate_c_support::table::Bad;

use bp_store_code::*;

/// The results of functions. Errors are negative.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_store_code {
    /// It is done.
    BP_STORE_OK = 0,
    /// The key is not in the tree.
    BP_STORE_NOT_FOUND = 1,
    /// The key is in the tree already, and its value stays as it was.
    BP_STORE_EXISTS = 2,
    /// There is no further record, or no further tree.
    BP_STORE_END = 3,

    /// Another transaction changed a record or a range that this one had read. This transaction has ended, and nothing was written:
    /// begin it again.
    BP_STORE_ERROR_CONFLICT = -1,
    /// The values that the snapshot needs were dropped to keep within `version_bytes` of the options: begin the transaction again.
    BP_STORE_ERROR_SNAPSHOT_TOO_OLD = -2,

    /// A file of the store could not be used: bp_store_error_number() says why.
    BP_STORE_ERROR_SYSTEM = -16,
    /// The file system or the capacity of the store is full.
    BP_STORE_ERROR_NO_SPACE = -17,
    /// There is not enough memory, or `memory_bytes` is too small for the threads that use the store.
    BP_STORE_ERROR_NO_MEMORY = -18,
    /// Another process, or this one, has the store open.
    BP_STORE_ERROR_IN_USE = -19,
    /// The directory has no store, and BP_STORE_CREATE was not given.
    BP_STORE_ERROR_NO_STORE = -20,
    /// Files of the store are damaged or missing: restore it from a backup.
    BP_STORE_ERROR_DAMAGED = -21,
    /// The log could not be written during the commit. Close the store and open it again to know whether the transaction has
    /// committed.
    BP_STORE_ERROR_IN_DOUBT = -22,
    /// An earlier error, often BP_STORE_ERROR_IN_DOUBT, left the store in a state that recovery completes: close it and open it
    /// again.
    BP_STORE_ERROR_REOPEN = -23,
    /// The engine does not work on this machine.
    BP_STORE_ERROR_UNAVAILABLE = -24,
    /// As many handles are open as there can be.
    BP_STORE_ERROR_FULL = -25,

    /// The key is longer than BP_STORE_KEY_MAX.
    BP_STORE_ERROR_KEY_TOO_LONG = -32,
    /// The value is longer than BP_STORE_VALUE_MAX.
    BP_STORE_ERROR_VALUE_TOO_LONG = -33,
    /// The transaction writes or reads more than a transaction may. It can still be committed without this call.
    BP_STORE_ERROR_TOO_LARGE = -34,
    /// The name of a tree is empty or longer than BP_STORE_TREE_NAME_MAX.
    BP_STORE_ERROR_TREE_NAME = -35,
    /// There is no tree of this name, or the tree was dropped.
    BP_STORE_ERROR_NO_TREE = -36,
    /// The store has BP_STORE_TREES_MAX trees.
    BP_STORE_ERROR_TOO_MANY_TREES = -37,
    /// Transactions of the store are open, or another thread is in a function on it: the store cannot be closed, or the tree not
    /// be dropped.
    BP_STORE_ERROR_ACTIVE = -38,

    /// An argument has a value that it cannot have.
    BP_STORE_ERROR_INVALID = -48,
    /// A pointer is NULL that must not be.
    BP_STORE_ERROR_NULL = -49,
    /// There never was such a handle, or it is one of another kind.
    BP_STORE_ERROR_HANDLE = -50,
    /// The handle was closed, or the transaction has ended.
    BP_STORE_ERROR_CLOSED = -51,
    /// Another thread is in this transaction.
    BP_STORE_ERROR_BUSY = -52,
    /// The tree is another store's.
    BP_STORE_ERROR_OTHER_STORE = -53,
    /// The transaction is read-only.
    BP_STORE_ERROR_READ_ONLY = -54,
    /// The function of bp_store_update() must not call this: it would wait for itself.
    BP_STORE_ERROR_IN_UPDATE = -55,
    /// The handle is the parent process's. After fork() a child opens stores of its own.
    BP_STORE_ERROR_FORKED = -56,
    /// Something went wrong within the library. A transaction in which this happens can only be aborted.
    BP_STORE_ERROR_INTERNAL = -64,
}

impl bp_store_code {
    const ALL: [(Self, &CStr); 33] = [
        (BP_STORE_OK, c"done"),
        (BP_STORE_NOT_FOUND, c"the key is not in the tree"),
        (BP_STORE_EXISTS, c"the key is in the tree already"),
        (BP_STORE_END, c"there is nothing further"),
        (BP_STORE_ERROR_CONFLICT, c"another transaction changed what this one read"),
        (BP_STORE_ERROR_SNAPSHOT_TOO_OLD, c"the snapshot is too old"),
        (BP_STORE_ERROR_SYSTEM, c"a file of the store could not be used"),
        (BP_STORE_ERROR_NO_SPACE, c"the file system or the store is full"),
        (BP_STORE_ERROR_NO_MEMORY, c"there is not enough memory"),
        (BP_STORE_ERROR_IN_USE, c"the store is open already"),
        (BP_STORE_ERROR_NO_STORE, c"there is no store in the directory"),
        (BP_STORE_ERROR_DAMAGED, c"the store is damaged"),
        (BP_STORE_ERROR_IN_DOUBT, c"the transaction has committed or not: open the store again to know"),
        (BP_STORE_ERROR_REOPEN, c"the store must be closed and opened again"),
        (BP_STORE_ERROR_UNAVAILABLE, c"the engine does not work here"),
        (BP_STORE_ERROR_FULL, c"there are too many handles"),
        (BP_STORE_ERROR_KEY_TOO_LONG, c"the key is too long"),
        (BP_STORE_ERROR_VALUE_TOO_LONG, c"the value is too long"),
        (BP_STORE_ERROR_TOO_LARGE, c"the transaction is too large"),
        (BP_STORE_ERROR_TREE_NAME, c"this cannot be the name of a tree"),
        (BP_STORE_ERROR_NO_TREE, c"there is no such tree"),
        (BP_STORE_ERROR_TOO_MANY_TREES, c"the store has too many trees"),
        (BP_STORE_ERROR_ACTIVE, c"transactions are open"),
        (BP_STORE_ERROR_INVALID, c"an argument has a value that it cannot have"),
        (BP_STORE_ERROR_NULL, c"a pointer is NULL that must not be"),
        (BP_STORE_ERROR_HANDLE, c"there is no such handle"),
        (BP_STORE_ERROR_CLOSED, c"the handle was closed"),
        (BP_STORE_ERROR_BUSY, c"another thread is in this transaction"),
        (BP_STORE_ERROR_OTHER_STORE, c"the tree is another store's"),
        (BP_STORE_ERROR_READ_ONLY, c"the transaction is read-only"),
        (BP_STORE_ERROR_IN_UPDATE, c"the function of an update must not call this"),
        (BP_STORE_ERROR_FORKED, c"the handle is the parent process's"),
        (BP_STORE_ERROR_INTERNAL, c"something went wrong within the library"),
    ];
}

/// The meaning of a code, in words; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_strerror(code: c_int) -> *const c_char {
    let text = bp_store_code::ALL.iter().find(|(known, _)| *known as c_int == code).map(|(_, text)| *text);
    text.unwrap_or(c"no such code").as_ptr()
}

/// Why something is not done.
#[derive(Debug)]
pub struct Refusal {
    pub code: bp_store_code,
    number: c_int,
    text: Cow<'static, str>,
}

impl Refusal {
    pub fn new(code: bp_store_code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, number: 0, text: text.into() }
    }

    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(BP_STORE_ERROR_INVALID, text)
    }

    pub fn null(what: &'static str) -> Self {
        Self::new(BP_STORE_ERROR_NULL, what)
    }

    pub fn full(what: &'static str) -> Self {
        Self::new(BP_STORE_ERROR_FULL, what)
    }
}

impl From<Bad> for Refusal {
    fn from(bad: Bad) -> Self {
        let (code, text) = match bad {
            Bad::Unknown => (BP_STORE_ERROR_HANDLE, "there never was such a handle, or not of this kind"),
            Bad::Closed => (BP_STORE_ERROR_CLOSED, "the handle was closed, or the transaction has ended"),
            Bad::Busy => {
                (BP_STORE_ERROR_BUSY, "another thread is in this transaction: every thread begins its own")
            }
            Bad::Forked => (
                BP_STORE_ERROR_FORKED,
                "the handle is the parent process's: this process opens stores of its own",
            ),
            Bad::Broken => {
                (BP_STORE_ERROR_INTERNAL, "something went wrong in this transaction before: abort it")
            }
        };
        Self::new(code, text)
    }
}

impl From<Wrong> for Refusal {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Null(what) => Self::null(what),
            Wrong::Invalid(text) => Self::invalid(text),
        }
    }
}

/// The code and the error number of a system call's failure.
fn of_io(error: &io::Error) -> (bp_store_code, c_int) {
    let number = error.raw_os_error().unwrap_or(0);
    let code = match number {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => BP_STORE_ERROR_NO_SPACE,
        libc::ENOMEM => BP_STORE_ERROR_NO_MEMORY,
        _ => BP_STORE_ERROR_SYSTEM,
    };
    (code, number)
}

fn of_pool(error: &PoolError) -> (bp_store_code, c_int) {
    match error {
        PoolError::Read { source, .. }
        | PoolError::Write { source, .. }
        | PoolError::Storage { source, .. }
        | PoolError::Log(source) => of_io(source),
        PoolError::NotDurable => (BP_STORE_ERROR_SYSTEM, libc::EIO),
        PoolError::Lost { .. }
        | PoolError::Damaged { .. }
        | PoolError::NoSuchPage { .. }
        | PoolError::LogTooShort { .. }
        | PoolError::PageAheadOfLog { .. }
        | PoolError::Format(_) => (BP_STORE_ERROR_DAMAGED, 0),
        PoolError::Full { .. } => (BP_STORE_ERROR_NO_SPACE, 0),
        PoolError::Pinned { .. } | PoolError::AddressSpace { .. } => (BP_STORE_ERROR_NO_MEMORY, 0),
        PoolError::Unavailable { .. } => (BP_STORE_ERROR_UNAVAILABLE, 0),
        PoolError::Setting { .. } | PoolError::PageSize { .. } => (BP_STORE_ERROR_INVALID, 0),
        _ => (BP_STORE_ERROR_INTERNAL, 0),
    }
}

fn of_tree(error: &bedplate_btree::Error) -> (bp_store_code, c_int) {
    use bedplate_btree::Error::*;

    match error {
        Pool(error) => of_pool(error),
        KeyTooLong { .. } => (BP_STORE_ERROR_KEY_TOO_LONG, 0),
        ValueTooLong { .. } => (BP_STORE_ERROR_VALUE_TOO_LONG, 0),
        Record { .. } | Damaged { .. } => (BP_STORE_ERROR_DAMAGED, 0),
        _ => (BP_STORE_ERROR_INTERNAL, 0),
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (code, number) = match &error {
            Error::Tree(error) => of_tree(error),
            Error::Directory { source, .. } | Error::Io { source, .. } => of_io(source),
            Error::Log(source) => (BP_STORE_ERROR_IN_DOUBT, of_io(source).1),
            Error::Interrupted(error) => (BP_STORE_ERROR_IN_DOUBT, of_tree(error).1),
            Error::Poisoned => (BP_STORE_ERROR_REOPEN, 0),
            Error::InUse(_) => (BP_STORE_ERROR_IN_USE, 0),
            Error::NoStore(_) => (BP_STORE_ERROR_NO_STORE, 0),
            Error::LogDamaged { .. } | Error::Missing(_) | Error::Incomplete(_) => {
                (BP_STORE_ERROR_DAMAGED, 0)
            }
            Error::Conflict => (BP_STORE_ERROR_CONFLICT, 0),
            Error::SnapshotTooOld => (BP_STORE_ERROR_SNAPSHOT_TOO_OLD, 0),
            Error::TransactionTooLarge => (BP_STORE_ERROR_TOO_LARGE, 0),
            Error::NoSuchTree(_) => (BP_STORE_ERROR_NO_TREE, 0),
            Error::TreeName => (BP_STORE_ERROR_TREE_NAME, 0),
            Error::TooManyTrees => (BP_STORE_ERROR_TOO_MANY_TREES, 0),
            Error::Busy => (BP_STORE_ERROR_ACTIVE, 0),
            Error::OtherStore(_) => (BP_STORE_ERROR_OTHER_STORE, 0),
            // The list of errors may grow: one whose reason is a system call's failure has the code of that.
            other => match other.source().and_then(|source| source.downcast_ref()) {
                Some(error) => of_io(error),
                None => (BP_STORE_ERROR_INTERNAL, 0),
            },
        };
        Self { code, number, text: error.to_string().into() }
    }
}

/// The result of a function's work.
pub type Answer = Result<bp_store_code, Refusal>;

/// The reason of this thread's last failure, in words; "" if no call has failed. Valid until the next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_error() -> *const c_char {
    last::text()
}

/// The error number (errno) of this thread's last failure; 0 if the kernel had no part in it.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_error_number() -> c_int {
    last::number()
}

/// Does the work of a function. No panic leaves this.
pub fn answer(work: impl FnOnce() -> Answer) -> c_int {
    answer_number(|| work().map(|code| code as c_int))
}

/// [`answer`] for work whose result may be a number of the program's.
pub fn answer_number(work: impl FnOnce() -> Result<c_int, Refusal>) -> c_int {
    let failure = |Refusal { code, number, text }| Failure { code: code as c_int, number, text };
    last::answer(BP_STORE_ERROR_INTERNAL as c_int, || work().map_err(failure))
}
