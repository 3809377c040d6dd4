//! Bulk loading: builds a tree from sorted records. Every page is written once and filled completely.
//!
//! The records of a node are buffered until the node's upper fence is known, because the common prefix depends on it.
//! No other thread sees the new nodes before the root refers to them. An error before that frees all of them.

use std::ops::Range;

use bedplate_bufpool::{PageId, PageSize};

use crate::descend::Handle;
use crate::error::{Error, Result, damaged};
use crate::latch::Readable;
use crate::node::edit::{Full, NewValue, Node};
use crate::node::{INNER_SLOT, LEAF_SLOT, PageBuf, capacity, common_prefix, separator};
use crate::write::{check_limits, is_long};

/// A buffered record or child of a node that is not written yet.
struct Entry {
    /// Position of the key in the bytes of the level.
    key: Range<usize>,
    payload: Payload,
}

enum Payload {
    Here(Range<usize>),
    Overflow(u64, u64),
    Child(u64),
}

impl Entry {
    /// Bytes in the node that do not depend on the common prefix of its keys.
    fn fixed(&self) -> usize {
        match &self.payload {
            Payload::Here(value) => LEAF_SLOT + 2 + value.len(),
            Payload::Overflow(..) => LEAF_SLOT + 2 + 16,
            Payload::Child(_) => INNER_SLOT,
        }
    }
}

/// The incomplete node of a level.
#[derive(Default)]
struct Level {
    low: Option<Vec<u8>>,
    /// The child before the first separator, for an inner node.
    first: Option<u64>,
    entries: Vec<Entry>,
    /// The bytes of all keys and values.
    bytes: Vec<u8>,
    /// Sum of `fixed()` over the entries. `key_bytes` is the sum of the key lengths, `shortest` is the shortest key
    /// length.
    fixed: usize,
    key_bytes: usize,
    shortest: usize,
}

impl Level {
    fn key(&self, i: usize) -> &[u8] {
        &self.bytes[self.entries[i].key.clone()]
    }

    fn push(&mut self, key: &[u8], payload: impl FnOnce(&mut Vec<u8>) -> Payload) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let key = from..self.bytes.len();
        let payload = payload(&mut self.bytes);
        self.shortest = if self.entries.is_empty() { key.len() } else { self.shortest.min(key.len()) };
        self.key_bytes += key.len();
        let entry = Entry { key, payload };
        self.fixed += entry.fixed();
        self.entries.push(entry);
    }

    /// Whether the entries fit into one node of this size whose upper fence is `high`.
    fn fits(&self, size: PageSize, high: Option<&[u8]>) -> bool {
        let prefix = match (&self.low, high) {
            (Some(low), Some(high)) => common_prefix(low, high),
            _ => 0,
        };
        let fences = self.low.as_ref().map_or(0, Vec::len) + high.map_or(0, <[u8]>::len);
        let in_head = prefix + 4;
        let tails = if self.shortest >= in_head {
            self.key_bytes - self.entries.len() * in_head
        } else {
            self.entries.iter().map(|entry| entry.key.len().saturating_sub(in_head)).sum()
        };
        fences + self.fixed + tails <= capacity(size)
    }

    /// Writes the node into `page`.
    fn build(&self, level: u8, high: Option<&[u8]>, page: &mut PageBuf) -> std::result::Result<(), Full> {
        let mut node = Node::create(&mut page.0, level, self.low.as_deref(), high, self.first.unwrap_or(0));
        for (at, entry) in self.entries.iter().enumerate() {
            let key = &self.bytes[entry.key.clone()];
            match &entry.payload {
                Payload::Here(value) => node.put(at, key, NewValue::Here(&self.bytes[value.clone()]))?,
                Payload::Overflow(first, len) => node.put(at, key, NewValue::Overflow(*first, *len))?,
                Payload::Child(child) => node.put_child(at, key, *child)?,
            }
        }
        node.refresh_hints();
        Ok(())
    }

    /// Removes the last entry and returns it.
    fn pop(&mut self) -> Option<(Vec<u8>, Option<Vec<u8>>, Payload)> {
        let entry = self.entries.pop()?;
        self.fixed -= entry.fixed();
        self.key_bytes -= entry.key.len();
        let key = self.bytes[entry.key.clone()].to_vec();
        let value = match &entry.payload {
            Payload::Here(value) => Some(self.bytes[value.clone()].to_vec()),
            _ => None,
        };
        Some((key, value, entry.payload))
    }
}

/// A tree that is being built.
struct Loader<'p> {
    tree: Handle<'p>,
    levels: Vec<Level>,
    page: PageBuf,
    /// The allocated pages: nodes, and the first pages of overflow chains. An error frees them.
    nodes: Vec<u64>,
    chains: Vec<u64>,
}

impl<'p> Handle<'p> {
    /// Fills an empty tree. Returns the number of records.
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        self,
        records: impl Iterator<Item = (K, V)>,
    ) -> Result<u64> {
        if !is_empty_leaf(&self.pool.pin_shared(self.root)?) {
            return Err(Error::NotEmpty);
        }
        let mut loader = Loader {
            tree: self,
            levels: vec![Level::default()],
            page: PageBuf::new(self.size()),
            nodes: vec![],
            chains: vec![],
        };
        let mut count = 0;
        for (key, value) in records {
            loader.record(key.as_ref(), value.as_ref(), count)?;
            count += 1;
        }
        loader.finish()?;
        Ok(count)
    }
}

fn is_empty_leaf(root: &impl Readable) -> bool {
    root.view().is_leaf() && root.view().leaf().count() == 0
}

impl Loader<'_> {
    fn record(&mut self, key: &[u8], value: &[u8], position: u64) -> Result<()> {
        check_limits(self.tree.size(), key, value)?;
        let leaf = &self.levels[0];
        if let Some(last) = leaf.entries.len().checked_sub(1) {
            if leaf.key(last) >= key {
                return Err(Error::NotSorted { position });
            }
            let high = separator(leaf.key(last), key);
            if !leaf.fits(self.tree.size(), Some(high)) {
                self.close(0)?;
            }
        }
        let long = if is_long(self.tree.size(), key, value) {
            let first = self.tree.write_chain(value)?;
            self.chains.push(first);
            Some(first)
        } else {
            None
        };
        self.levels[0].push(key, |bytes| match long {
            Some(first) => Payload::Overflow(first, value.len() as u64),
            None => {
                let from = bytes.len();
                bytes.extend_from_slice(value);
                Payload::Here(from..bytes.len())
            }
        });
        Ok(())
    }

    /// Adds a child, whose keys begin at `low`, to the node of `level`.
    fn child(&mut self, level: usize, low: Option<Vec<u8>>, child: u64) -> Result<()> {
        if level == self.levels.len() {
            self.levels.push(Level::default());
        }
        let node = &mut self.levels[level];
        if node.first.is_none() {
            (node.first, node.low) = (Some(child), low);
            return Ok(());
        }
        let Some(low) = low else { return Err(damaged(PageId(child), "begins nowhere")) };
        if !node.fits(self.tree.size(), Some(&low)) {
            self.close(level)?;
        }
        self.levels[level].push(&low, |_| Payload::Child(child));
        Ok(())
    }

    /// Completes the node of a level without its last entry, which becomes the first entry of the next node. The node
    /// fits: this was checked when the last entry was added, or the entries are so few that they always fit.
    fn close(&mut self, level: usize) -> Result<()> {
        let node = &mut self.levels[level];
        let Some((key, value, payload)) = node.pop() else { return Ok(()) };
        let high = match node.entries.len().checked_sub(1) {
            Some(last) if level == 0 => separator(node.key(last), &key).to_vec(),
            _ => key.clone(),
        };
        self.write(level, Some(&high))?;
        let node = &mut self.levels[level];
        node.low = Some(high);
        match payload {
            Payload::Child(child) => node.first = Some(child),
            Payload::Overflow(first, len) => node.push(&key, |_| Payload::Overflow(first, len)),
            Payload::Here(_) => node.push(&key, |bytes| {
                let from = bytes.len();
                bytes.extend_from_slice(&value.unwrap_or_default());
                Payload::Here(from..bytes.len())
            }),
        }
        Ok(())
    }

    /// Writes the buffered entries of a level as a node, and adds the node to the level above.
    fn write(&mut self, level: usize, high: Option<&[u8]>) -> Result<()> {
        let mut page = self.tree.pool.allocate()?;
        self.nodes.push(page.page().0);
        let node = std::mem::take(&mut self.levels[level]);
        node.build(level as u8, high, &mut self.page).map_err(|_| damaged(page.page(), "is too small"))?;
        page.payload_mut().copy_from(&self.page.0);
        self.tree.log.images([&mut page]);
        let number = page.page().0;
        drop(page);
        self.child(level + 1, node.low, number)
    }

    /// Completes all levels. The topmost node becomes the root.
    fn finish(mut self) -> Result<()> {
        let mut level = 0;
        loop {
            if !self.levels[level].fits(self.tree.size(), None) {
                self.close(level)?;
            }
            if level + 1 == self.levels.len() {
                break;
            }
            self.write(level, None)?;
            level += 1;
        }
        let top = &self.levels[level];
        let mut root = self.tree.pool.pin_exclusive(self.tree.root)?;
        if !is_empty_leaf(&root) {
            drop(root);
            return Err(Error::NotEmpty);
        }
        top.build(level as u8, None, &mut self.page).map_err(|_| damaged(root.page(), "is too small"))?;
        root.payload_mut().copy_from(&self.page.0);
        self.tree.log.images([&mut root]);
        self.nodes.clear();
        self.chains.clear();
        Ok(())
    }
}

impl Drop for Loader<'_> {
    fn drop(&mut self) {
        // There are pages to free only after an error. That error is the one to report, so errors here are ignored.
        for &page in &self.nodes {
            if let Ok(page) = self.tree.pool.pin_exclusive(PageId(page)) {
                let _ = self.tree.pool.free(page);
            }
        }
        for &first in &self.chains {
            let _ = self.tree.free_chain(first);
        }
    }
}
