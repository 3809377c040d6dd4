//! The write set of a transaction. It is sorted, so that cursors can merge it, and so that a commit changes leaves in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::{Error, Result};
use super::limits::{MAX_TRANSACTION_BYTES, MAX_TRANSACTION_WRITES};
use super::trees::NamedTree;

/// Keys with their new values; none means a removal.
pub(crate) type Writes = BTreeMap<Arc<[u8]>, Option<Box<[u8]>>>;

#[derive(Default)]
pub(crate) struct WriteSet {
    /// The writes of each tree, by id.
    trees: BTreeMap<u64, (NamedTree, Writes)>,
    count: usize,
    bytes: usize,
}

impl WriteSet {
    /// The writes to a tree.
    pub fn of(&self, tree: u64) -> Option<&Writes> {
        self.trees.get(&tree).map(|(_, writes)| writes)
    }

    /// The write of a key: none, a removal, or a value.
    pub fn get(&self, tree: u64, key: &[u8]) -> Option<Option<&[u8]>> {
        self.of(tree)?.get(key).map(Option::as_deref)
    }

    /// All writes, tree by tree, in the order of keys.
    pub fn trees(&self) -> impl Iterator<Item = (&NamedTree, &Writes)> {
        self.trees.values().map(|(tree, writes)| (tree, writes))
    }

    /// Bytes of keys and new values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Replaces earlier writes to a key.
    pub fn write(&mut self, tree: &NamedTree, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let before = self.get(tree.0.id, key);
        let size = |value: Option<&[u8]>| key.len() + value.map_or(0, <[u8]>::len);
        let count = self.count + usize::from(before.is_none());
        let bytes = self.bytes + size(value) - before.map_or(0, size);
        if count > MAX_TRANSACTION_WRITES || bytes > MAX_TRANSACTION_BYTES {
            return Err(Error::TransactionTooLarge);
        }
        (self.count, self.bytes) = (count, bytes);
        let (_, writes) = self.trees.entry(tree.0.id).or_insert_with(|| (tree.clone(), Writes::new()));
        writes.insert(Arc::from(key), value.map(Box::from));
        Ok(())
    }
}
