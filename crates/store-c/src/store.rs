//! Stores: opening, closing, and the functions on a whole store.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use bedplate_btree::store::{Durability, Store};
use bedplate_bufpool::{Choice, Kind};
use bedplate_c_support::input::{Sized, sized};
use bedplate_c_support::output;
use bedplate_c_support::table::{Bad, Table};

use crate::code::bp_store_code::*;
use crate::code::{Answer, Refusal, answer};
use crate::input::{directory, has_flag};
use crate::trees::Trees;
use crate::update::refuse_in_update;

/// BP_STORE_CREATE
pub(crate) const CREATE: u32 = 0x1;
/// BP_STORE_ASYNC
const ASYNC: u32 = 0x2;

static STORES: Table<Arc<Open>> = Table::new(STORE_KIND);
/// The kind of a store's handle: its highest byte.
pub(crate) const STORE_KIND: u8 = b'S';

/// A store that is open.
///
/// Each transaction has a share of it besides its share of `store`, and drops the share of `store` first. So the last share of
/// this is also the last share of `store`.
pub(crate) struct Open {
    pub(crate) store: Arc<Store>,
    pub(crate) trees: Trees,
}

/// A store that is open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_store {
    /// Its number; never 0.
    pub handle: u64,
}

/// The way in which pages are found in memory. docs/bufpool.md compares them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_store_engine {
    /// The best one that works here.
    BP_STORE_ENGINE_AUTO = 0,
    /// An array that has the frame of each page.
    BP_STORE_ENGINE_ARRAY = 1,
    /// Virtual memory; pages are evicted in batches.
    BP_STORE_ENGINE_STOCK = 2,
    /// A hash table of the pages in memory.
    BP_STORE_ENGINE_HASHTABLE = 4,
}

/// How a store is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_store_options {
    /// sizeof(struct bp_store_options)
    pub size: usize,
    /// The most bytes of pages in memory; 0: 64 MiB.
    pub memory_bytes: usize,
    /// The most bytes of pages that the store may ever have; 0: 16 GiB. It may be another number each time.
    pub capacity_bytes: u64,
    /// The most bytes of superseded values that are kept in memory for open transactions; 0: 256 MiB.
    pub version_bytes: u64,
    /// The bytes of log after which a commit makes a checkpoint; 0: 64 MiB.
    pub checkpoint_bytes: u64,
    /// BP_STORE_CREATE and BP_STORE_ASYNC, or 0.
    pub flags: u32,
    /// One of bp_store_engine.
    pub engine: u32,
    /// The bytes of a page: a power of two from 4096 to 65536; 0: those of the store, or 4096 for a new one. Another number than
    /// that of an existing store is an error. A key has at most an eighth of a page.
    pub page_bytes: u64,
}

// SAFETY: integers, without gaps.
unsafe impl Sized for bp_store_options {
    const FIRST: usize = 48;
}

impl bp_store_options {
    fn engine(&self) -> Result<Choice, Refusal> {
        Ok(match self.engine {
            0 => Choice::Auto,
            1 => Choice::Only(Kind::Array),
            2 => Choice::Only(Kind::Stock),
            4 => Choice::Only(Kind::Hashtable),
            other => return Err(Refusal::invalid(format!("there is no engine {other}"))),
        })
    }
}

/// The number of an engine in [`bp_store_engine`]; 0 for another one.
fn number_of(kind: Kind) -> bp_store_engine {
    use bp_store_engine::*;

    match kind {
        Kind::Array => BP_STORE_ENGINE_ARRAY,
        Kind::Stock => BP_STORE_ENGINE_STOCK,
        Kind::Hashtable => BP_STORE_ENGINE_HASHTABLE,
        _ => BP_STORE_ENGINE_AUTO,
    }
}

/// Counts of a store. They count from the opening on, unless they say otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_store_statistics {
    /// Transactions that wrote something and committed.
    pub commits: u64,
    /// Commits that failed with BP_STORE_ERROR_CONFLICT.
    pub conflicts: u64,
    /// Bytes of superseded values that are kept now.
    pub version_bytes: u64,
    /// Bytes that were appended to the log since the store was created.
    pub log_bytes: u64,
    /// Checkpoints, the one at the opening included.
    pub checkpoints: u64,
    /// Checkpoints that a commit began and that failed. The commits are durable, and the log grows until a checkpoint succeeds:
    /// bp_store_checkpoint() returns the reason.
    pub failed_checkpoints: u64,
    /// Trees that the store has now.
    pub(crate) trees: u64,
    /// Pages that were read from the file.
    pub pages_read: u64,
    /// Pages that were written to the file.
    pub pages_written: u64,
    /// Pages that left memory.
    pub pages_evicted: u64,
    /// Pages that are in memory now.
    pub pages_in_memory: u64,
    /// Pages that fit into memory.
    pub pages_in_memory_max: u64,
    /// The engine that was chosen: one of bp_store_engine.
    pub engine: u32,
    /// 0.
    pub reserved: u32,
    /// How often a commit or a checkpoint waited for another commit.
    pub commit_waits: u64,
    /// How often a thread waited for a page that another thread held or read.
    pub page_waits: u64,
    /// How often a thread waited for room in memory, because no page could be evicted at once.
    pub frame_waits: u64,
    /// Durations of commits that wrote something, in nanoseconds: half of them took at most this long.
    pub commit_p50_ns: u64,
    /// 99 of 100 commits took at most this long.
    pub commit_p99_ns: u64,
    /// The longest commit.
    pub commit_max_ns: u64,
    /// Durations of writes of the log with their fsync, in nanoseconds: half of them took at most this long.
    pub log_write_p50_ns: u64,
    /// 99 of 100 writes of the log took at most this long.
    pub log_write_p99_ns: u64,
    /// The longest write of the log.
    pub log_write_max_ns: u64,
    /// Durations of checkpoints, in nanoseconds: half of them took at most this long.
    pub checkpoint_p50_ns: u64,
    /// 99 of 100 checkpoints took at most this long.
    pub checkpoint_p99_ns: u64,
    /// The longest checkpoint.
    pub checkpoint_max_ns: u64,
}

/// A share of the store of a handle.
pub(crate) fn store(store: bp_store) -> Result<Arc<Open>, Refusal> {
    Ok(Arc::clone(&*STORES.enter_in_turn(store.handle)?))
}

/// Opens the store in a directory, and recovers it if it was not closed. One process at a time has a store open.
///
/// # Safety
/// `directory` is a C string or NULL; `options` is NULL or as long as it says; `opened` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_open(
    directory: *const c_char,
    options: *const bp_store_options,
    opened: *mut bp_store,
) -> c_int {
    answer(|| {
        if opened.is_null() {
            return Err(Refusal::null("no place for the store"));
        }
        // SAFETY: as the caller promised.
        let directory = unsafe { self::directory(directory) }?;
        // SAFETY: as the caller promised.
        let options = unsafe { sized(options, "the options") }?;
        let create = has_flag(options.flags, CREATE, CREATE | ASYNC)?;
        let is_async = options.flags & ASYNC != 0;
        let durability = if is_async { Durability::Async } else { Durability::Sync };
        let mut builder = Store::builder(directory)
            .create_if_missing(create)
            .durability(durability)
            .engine(options.engine()?);
        if options.memory_bytes != 0 {
            builder = builder.memory(options.memory_bytes);
        }
        if options.capacity_bytes != 0 {
            builder = builder.capacity(options.capacity_bytes);
        }
        if options.page_bytes != 0 {
            builder = builder.page_size(usize::try_from(options.page_bytes).unwrap_or(usize::MAX));
        }
        if options.version_bytes != 0 {
            builder = builder.version_bytes(usize::try_from(options.version_bytes).unwrap_or(usize::MAX));
        }
        if options.checkpoint_bytes != 0 {
            builder = builder.checkpoint_bytes(options.checkpoint_bytes);
        }
        let store = builder.open()?;
        let trees = Trees::of(&store)?;
        let open = Arc::new(Open { store: Arc::new(store), trees });
        let full = |_| Refusal::full("as many stores are open as there can be: close some");
        let handle = STORES.insert(open).map_err(full)?;
        // SAFETY: as the caller promised.
        unsafe { opened.write_unaligned(bp_store { handle }) };
        Ok(BP_STORE_OK)
    })
}

/// Makes everything durable and closes the store, so that the next opening has nothing to recover.
///
/// BP_STORE_ERROR_ACTIVE if transactions are open, or another thread is in a function on the store: it stays open. After any error
/// that is not the program's mistake the store is closed all the same, and the next opening recovers it.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_close(store: bp_store) -> c_int {
    answer(|| {
        refuse_in_update(store.handle)?;
        let check = |open: &Arc<Open>| match Arc::strong_count(open) {
            1 => Ok(()),
            shares => Err(Refusal::new(
                BP_STORE_ERROR_ACTIVE,
                format!(
                    "{} transactions of the store are open, or threads are in functions on it: end them first",
                    shares - 1
                ),
            )),
        };
        let open = STORES.remove_in_turn_if(store.handle, check)?;
        // No function gets a share of it any more, so the count that was checked cannot have grown.
        let Some(Open { store, .. }) = Arc::into_inner(open) else { return Err(Bad::Broken.into()) };
        let Some(store) = Arc::into_inner(store) else { return Err(Bad::Broken.into()) };
        // The error of the log is the graver one: commits of asynchronous durability may be lost.
        let synced = store.sync();
        synced.and(store.close())?;
        Ok(BP_STORE_OK)
    })
}

/// Makes all commits durable; of use with BP_STORE_ASYNC.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_sync(store: bp_store) -> c_int {
    answer(|| {
        self::store(store)?.store.sync()?;
        Ok(BP_STORE_OK)
    })
}

/// Writes all pages to the file and drops the part of the log that is not needed any more. Commits go on meanwhile. The store
/// makes checkpoints by itself, so a program need not call this.
#[unsafe(no_mangle)]
pub extern "C" fn bp_store_checkpoint(store: bp_store) -> c_int {
    answer(|| {
        refuse_in_update(store.handle)?;
        self::store(store)?.store.checkpoint()?;
        Ok(BP_STORE_OK)
    })
}

/// Counts of a store. `size` is sizeof the structure.
///
/// # Safety
/// `statistics` is writable, as many bytes as `size` says, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_store_get_statistics(
    store: bp_store,
    statistics: *mut bp_store_statistics,
    size: usize,
) -> c_int {
    answer(|| {
        if statistics.is_null() {
            return Err(Refusal::null("no place for the statistics"));
        }
        let open = self::store(store)?;
        // SAFETY: as the caller promised; the structure has no gaps.
        unsafe { output::sized(&counts(&open), statistics, size) };
        Ok(BP_STORE_OK)
    })
}

fn counts(open: &Open) -> bp_store_statistics {
    let (counts, pool) = (open.store.statistics(), open.store.pool_statistics());
    let latencies = open.store.latencies();
    let [commit, log_write, checkpoint] = [latencies.commits, latencies.log_writes, latencies.checkpoints]
        .map(|latency| [latency.p50, latency.p99, latency.max].map(|duration| duration.as_nanos() as u64));
    bp_store_statistics {
        commits: counts.commits,
        conflicts: counts.conflicts,
        version_bytes: counts.version_bytes,
        log_bytes: counts.log_bytes,
        checkpoints: counts.checkpoints,
        failed_checkpoints: counts.failed_checkpoints,
        trees: open.trees.count(),
        pages_read: pool.read,
        pages_written: pool.written,
        pages_evicted: pool.evicted,
        pages_in_memory: pool.resident,
        pages_in_memory_max: pool.frames,
        engine: number_of(open.store.engine()) as u32,
        reserved: 0,
        commit_waits: counts.commit_waits,
        page_waits: pool.page_waits,
        frame_waits: pool.frame_waits,
        commit_p50_ns: commit[0],
        commit_p99_ns: commit[1],
        commit_max_ns: commit[2],
        log_write_p50_ns: log_write[0],
        log_write_p99_ns: log_write[1],
        log_write_max_ns: log_write[2],
        checkpoint_p50_ns: checkpoint[0],
        checkpoint_p99_ns: checkpoint[1],
        checkpoint_max_ns: checkpoint[2],
    }
}

/// The answer of a function on a store that its own update must not call.
pub(crate) fn answer_outside_update(store: bp_store, work: impl FnOnce(&Open) -> Answer) -> c_int {
    answer(|| {
        refuse_in_update(store.handle)?;
        work(&*self::store(store)?)
    })
}
