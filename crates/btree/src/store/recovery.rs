//! Recovery: brings a store to the state that its durable log describes, after a crash.
//!
//! # Records of the log
//!
//! - For each transaction, a commit record with all its writes. It is appended before the first of them is applied.
//! - For each split, merge, redistribution and new overflow page, and for each change of a leaf that puts or removes a
//!   reference to overflow pages: an image of every page that it changes, all in one record. Other changes of leaves
//!   have no record of their own ("covered" changes): the commit records have their keys and values.
//! - Checkpoint records. Each has the LSN `S` that the log ended at, under the commit mutex, before a `pool.sync()` that
//!   succeeded before the record was appended.
//!
//! # Steps of recovery
//!
//! 1. It finds the last checkpoint, which has `S`.
//! 2. It repeats the images from `S` on in order, each on the pages whose LSN is less.
//! 3. It repeats the writes of all commits from `S` on that concern the catalog, opens the trees that the catalog then
//!    has, and frees the pages that none of them reaches.
//! 4. It repeats the writes of all commits from `S` on to those trees, in order. Writes to other ids are skipped. If some of
//!    these commits gave a key a long value, only the last write of the key is repeated, and only if the tree does not have it.
//! 5. It makes a checkpoint.
//!
//! # Why that is right
//!
//! *No page in storage is ahead of the durable log.* A page has the LSN of the last image of it, or, after a covered
//! change, the end of the log at that time, which is at or above the LSN of each record appended before. The pool writes no
//! page whose LSN is not durable. So if storage has a page with a change, the commit record of that change is durable,
//! and so are all images that the page contains. If covered changes did not raise the LSN, that would still hold for
//! images, but an uncommitted change could reach storage.
//!
//! *After step 2 the trees are sound.* Call the *structure* of a node its fences, its separators and children, and its
//! references to overflow pages. Each change of structure has an image. For each page, storage has the image that `pool.sync()`
//! wrote, or a later one. In either case, after step 2 the structure of the page is that of its last durable image, or that of
//! the sync if there is none after `S`: an image is skipped only if the page has its LSN or more and hence contains it. All
//! images of one change are in one record, so the structures of all pages are those of one moment, the durable end of the log. A
//! page that was freed and used again has an image from its new use, because no thread uses a new page without one. The other
//! content of leaves is from different moments, each of them between `S` and the end. A log of puts into leaves could not replace
//! the images: a leaf may lack covered removals that made room for the put.
//!
//! *After step 4 the contents are right.* Take a key that some commit from `S` on wrote, in a tree that exists at the end. The last
//! such commit alone determines the value after step 4. The earlier content of the leaf has no influence. Take a key that no such
//! commit wrote. Its value is as of `S`, in storage or in images, because all commits before `S` were in the trees under the
//! mutex when `S` was taken, and `pool.sync()` wrote them. Commits are applied in the order of the log, one at a time, so the
//! result is the one of the commits up to the durable end. A commit is in the log completely or not at all.
//!
//! *Why long values are an exception.* Each change of a reference to overflow pages has an image, so after step 2 each key has
//! the long value that it has at the end. Repeating it would write its overflow pages, and their images to the log, once more;
//! recovery would need as much space as the log has. Because these writes are skipped, step 4 appends images only where leaves,
//! whose contents are from different moments, have no room for a write. [`LOG_SLACK_BYTES`](super::limits) are reserved for that,
//! so that a store can be recovered on a full disk.
//!
//! *Trees that no longer exist.* An id is used once. A write to an id that the catalog does not have at the end has no effect.
//! The catalog itself is a sound tree after step 2, by the same argument, and its own writes are repeated before it is read.
//! Pages that step 3 allocates for it are behind all pages in use, because no page is free before step 3 frees it.
//!
//! *A crash during recovery* adds images to the end of the log, behind the commits that are repeated. The argument does not
//! depend on why a structure changed, and step 4 is idempotent, so the next recovery has the same result. The first four steps
//! append no commit and no checkpoint.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_bufpool::{PageSize, Pool};

use super::error::Result;
use super::log::Log;
use super::record::{Record, Write};
use super::replay::Replay;
use super::trees::{self, CATALOG, CATALOG_SLOT, Trees};
use crate::descend::Handle;
use crate::page_set::PageSet;
use crate::read::Room;
use crate::write::{Existing, is_long};
use crate::{Journal, Tree, redo};

/// The catalog and the trees that recovery found.
pub(crate) struct Recovered {
    pub catalog: Tree<Arc<Pool>>,
    pub trees: Trees,
    /// The timestamp of the last commit.
    pub timestamp: u64,
}

/// Steps 2 to 4; the caller makes the checkpoint. A new store gets a catalog.
pub(crate) fn recover(pool: &Arc<Pool>, log: &Arc<Log>, replay: &Replay, store: u64) -> Result<Recovered> {
    let mut timestamp = replay.checkpoint().timestamp;
    replay.records(|lsn, record| {
        match record {
            Record::Tree(change) => redo(pool, lsn, change)?,
            Record::Commit(commit) => timestamp = timestamp.max(commit.timestamp),
            Record::Checkpoint(_) => {}
        }
        Ok(())
    })?;
    let journal = Arc::clone(log) as Arc<dyn Journal>;
    let is_new = pool.root(CATALOG_SLOT) == 0;
    let catalog = if is_new {
        Tree::create_with(Arc::clone(pool), CATALOG_SLOT, journal)?
    } else {
        Tree::open_with(Arc::clone(pool), CATALOG_SLOT, journal)?
    };
    let none = LongValues::new();
    replay.records(|lsn, record| {
        repeat(lsn, record, &none, |tree| (tree == CATALOG).then(|| catalog.handle()))
    })?;
    let trees = trees::open_all(&catalog, store)?;
    if pool.needs_recovery() {
        let mut pages = PageSet::default();
        catalog.pages(|page| _ = pages.insert(page))?;
        for tree in trees.values() {
            tree.0.handle(pool, log).walk(&mut |page| _ = pages.insert(page))?;
        }
        pool.reclaim(|page| pages.contains(page));
    }
    let by_id: HashMap<u64, _> = trees.values().map(|tree| (tree.0.id, tree.0.handle(pool, log))).collect();
    let long = long_values(replay, pool.page_size())?;
    replay.records(|lsn, record| repeat(lsn, record, &long, |id| by_id.get(&id).copied()))?;
    drop(by_id);
    Ok(Recovered { catalog, trees, timestamp })
}

/// For each tree, the keys that some commit gave a long value, with the LSN of the last commit that wrote the key. A long value
/// is in the log, so there are not many.
type LongValues = HashMap<u64, HashMap<Box<[u8]>, u64>>;

fn long_values(replay: &Replay, size: PageSize) -> Result<LongValues> {
    let mut long = LongValues::new();
    let mut each = |visit: &mut dyn FnMut(&mut LongValues, u64, Write<'_>)| {
        replay.records(|lsn, record| {
            if let Record::Commit(commit) = record {
                commit.writes().for_each(|write| visit(&mut long, lsn, write));
            }
            Ok(())
        })
    };
    each(&mut |long, lsn, Write { tree, key, value }| {
        if value.is_some_and(|value| is_long(size, key, value)) {
            long.entry(tree).or_default().insert(key.into(), lsn);
        }
    })?;
    each(&mut |long, lsn, Write { tree, key, .. }| {
        if let Some(last) = long.get_mut(&tree).and_then(|keys| keys.get_mut(key)) {
            *last = lsn;
        }
    })?;
    Ok(long)
}

/// Repeats the writes of a commit to existing trees.
fn repeat<'p>(
    lsn: u64,
    record: Record<'_>,
    long: &LongValues,
    find: impl Fn(u64) -> Option<Handle<'p>>,
) -> Result<()> {
    let Record::Commit(commit) = record else { return Ok(()) };
    let mut last = None;
    let mut room = Room::new();
    for write in commit.writes() {
        // The writes of a record are sorted by tree.
        let tree = match last {
            Some((id, tree)) if id == write.tree => tree,
            _ => find(write.tree),
        };
        last = Some((write.tree, tree));
        if let Some(tree) = tree
            && let Some(last) = long.get(&write.tree).and_then(|keys| keys.get(write.key))
        {
            let has = |room: &mut Room| -> Result<bool> {
                Ok(tree.get(write.key, room)? && write.value == Some(room.value()))
            };
            if lsn != *last || has(&mut room)? {
                continue;
            }
        }
        match (tree, write.value) {
            (Some(tree), Some(value)) => _ = tree.put(write.key, value, Existing::Replace)?,
            (Some(tree), None) => _ = tree.remove(write.key)?,
            (None, _) => {}
        }
    }
    Ok(())
}
