//! Transactions that are run again after a conflict.
//!
//! The last attempt holds the commit mutex of its store. A function that then committed another transaction of the store, or
//! called anything else that takes the mutex, would wait for itself. So each thread knows in which updates it is, and these calls
//! are errors in any attempt.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use bedplate_btree::store::{Error, WriteTransaction};
use bedplate_c_support::table::Bad;

use crate::code::bp_store_code::*;
use crate::code::{Refusal, answer_number};
use crate::store::{bp_store, store};
use crate::transaction::{SESSIONS, Session, Transaction, bp_store_transaction};

/// The function of an update. `argument` is the one of bp_store_update(). It returns BP_STORE_OK to have the
/// transaction committed, or another number to have it undone. It must return: neither longjmp() nor a C++ exception may leave it.
pub type bp_store_work =
    Option<unsafe extern "C-unwind" fn(transaction: bp_store_transaction, argument: *mut c_void) -> c_int>;

thread_local! {
    /// The stores whose updates this thread is in.
    static UPDATING: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The time of an update in this thread.
struct Updating;

impl Updating {
    fn begin(store: u64) -> Self {
        UPDATING.with_borrow_mut(|updating| updating.push(store));
        Self
    }
}

impl Drop for Updating {
    fn drop(&mut self) {
        UPDATING.with_borrow_mut(|updating| updating.pop());
    }
}

/// Refuses a call that needs the commit mutex of a store whose update this thread is in.
pub(crate) fn refuse_in_update(store: u64) -> Result<(), Refusal> {
    // A thread that ends is in no update.
    let is_inside = UPDATING.try_with(|updating| updating.borrow().contains(&store)).unwrap_or(false);
    if is_inside {
        let text = "the function of bp_store_update() must not call this: it would wait for itself";
        return Err(Refusal::new(BP_STORE_ERROR_IN_UPDATE, text));
    }
    Ok(())
}

/// The transaction of an update while it has a handle. Without [`Lent::take`] it is undone.
struct Lent(bp_store_transaction);

impl Lent {
    /// Ends the handle, after the thread that may be in it. The program cannot have ended it before.
    fn take(self) -> Result<WriteTransaction<'static>, Refusal> {
        let mut is_whole = false;
        let check = |_: &Session| {
            is_whole = true;
            Ok::<_, Bad>(())
        };
        let session = SESSIONS.remove_in_turn_if(self.0.handle, check)?;
        match session.transaction {
            Transaction::Write(transaction) if is_whole => Ok(transaction),
            _ => Err(Bad::Broken.into()),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // After `take` there is none.
        let _ = SESSIONS.remove_in_turn(self.0.handle);
    }
}

/// Runs `work` in a transaction and commits it, and does so again after each conflict. After 8 conflicts, `work` runs while no
/// other transaction of the store commits, so this comes to an end.
///
/// `work` may run several times: it must not change anything of the program's that another run would find changed. If it returns
/// BP_STORE_OK, the transaction is committed, and this returns BP_STORE_OK or the error of the commit. If it returns
/// BP_STORE_ERROR_CONFLICT or BP_STORE_ERROR_SNAPSHOT_TOO_OLD, it runs again. If it returns anything else, the transaction
/// is undone, and this returns the same number.
///
/// In `work` the transaction must not be committed or aborted, and in its thread no other function may be called for the store
/// that commits, closes, or makes a checkpoint: BP_STORE_ERROR_IN_UPDATE. Nor may it wait for a thread that does so.
///
/// # Safety
/// `work` is NULL or a function that may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_update(
    store: bp_store,
    work: bp_store_work,
    argument: *mut c_void,
) -> c_int {
    answer_number(|| {
        let Some(work) = work else { return Err(Refusal::null("no function")) };
        refuse_in_update(store.handle)?;
        let open = self::store(store)?;
        let _updating = Updating::begin(store.handle);
        let (mut returned, mut refused) = (BP_STORE_OK as c_int, None);
        let committed = open.store.update_shared(|transaction| {
            let session = Session::new(Transaction::Write(transaction), store, open.clone(), true);
            let lent = match session.insert() {
                Ok(transaction) => Lent(transaction),
                Err(refusal) => {
                    refused = Some(refusal);
                    return Ok(None);
                }
            };
            // SAFETY: as the caller promised.
            returned = unsafe { work(lent.0, argument) };
            if returned == BP_STORE_ERROR_CONFLICT as c_int {
                return Err(Error::Conflict);
            }
            if returned == BP_STORE_ERROR_SNAPSHOT_TOO_OLD as c_int {
                return Err(Error::SnapshotTooOld);
            }
            if returned != BP_STORE_OK as c_int {
                return Ok(None);
            }
            match lent.take() {
                Ok(transaction) => Ok(Some(transaction)),
                Err(refusal) => {
                    refused = Some(refusal);
                    Ok(None)
                }
            }
        })?;
        match refused {
            Some(refusal) => Err(refusal),
            None if committed => Ok(BP_STORE_OK as c_int),
            None => Ok(returned),
        }
    })
}
