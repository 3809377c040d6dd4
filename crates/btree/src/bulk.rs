//! Bulk loading: a tree from records that are already in order, every page written once and full.
//!
//! A node's records wait until its last fence is known, because what they have in common is known only then. Nobody sees
//! the new nodes before the root does; until then an error gives them all back.

use std::ops::Range;

use bedplate_bufpool::PageId;

use crate::error::{Error, Result, damaged};
use crate::handle::Handle;
use crate::latch::Readable;
use crate::node::edit::{Full, NewValue, Node};
use crate::node::{CAPACITY, Copied, INNER_SLOT, LEAF_SLOT, common_prefix, separator};
use crate::write::{check_limits, is_long};

/// What waits for its node.
struct Entry {
    /// In the level's bytes.
    key: Range<usize>,
    payload: Payload,
}

enum Payload {
    Here(Range<usize>),
    Elsewhere(u64, u64),
    Child(u64),
}

impl Entry {
    /// Bytes of the node that do not depend on what its keys have in common.
    fn fixed(&self) -> usize {
        match &self.payload {
            Payload::Here(value) => LEAF_SLOT + 2 + value.len(),
            Payload::Elsewhere(..) => LEAF_SLOT + 2 + 16,
            Payload::Child(_) => INNER_SLOT,
        }
    }
}

/// The node of a level that is not complete yet.
#[derive(Default)]
struct Level {
    low: Option<Vec<u8>>,
    /// Of an inner node, the child before the first separator.
    first: Option<u64>,
    entries: Vec<Entry>,
    /// Keys and values.
    bytes: Vec<u8>,
    /// Sums and the least over the entries.
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

    /// Whether the entries are a node that ends at `high`.
    fn fits(&self, high: Option<&[u8]>) -> bool {
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
        fences + self.fixed + tails <= CAPACITY
    }

    /// Writes the node.
    fn build(&self, level: u8, high: Option<&[u8]>, page: &mut Copied) -> std::result::Result<(), Full> {
        let mut node = Node::create(&mut page.0, level, self.low.as_deref(), high, self.first.unwrap_or(0));
        for (at, entry) in self.entries.iter().enumerate() {
            let key = &self.bytes[entry.key.clone()];
            match &entry.payload {
                Payload::Here(value) => node.put(at, key, NewValue::Here(&self.bytes[value.clone()]))?,
                Payload::Elsewhere(first, len) => node.put(at, key, NewValue::Elsewhere(*first, *len))?,
                Payload::Child(child) => node.put_child(at, key, *child)?,
            }
        }
        node.refresh_hints();
        Ok(())
    }

    /// Takes the last entry away.
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
    page: Box<Copied>,
    /// What was allocated: nodes, and the first pages of long values.
    nodes: Vec<u64>,
    chains: Vec<u64>,
}

impl<'p> Handle<'p> {
    /// Fills an empty tree; returns how many records.
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
            page: Copied::boxed(),
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
        check_limits(key, value)?;
        let leaf = &self.levels[0];
        if let Some(last) = leaf.entries.len().checked_sub(1) {
            if leaf.key(last) >= key {
                return Err(Error::NotSorted { position });
            }
            let high = separator(leaf.key(last), key);
            if !leaf.fits(Some(high)) {
                self.close(0)?;
            }
        }
        let long = if is_long(key, value) {
            let first = self.tree.write_chain(value)?;
            self.chains.push(first);
            Some(first)
        } else {
            None
        };
        self.levels[0].push(key, |bytes| match long {
            Some(first) => Payload::Elsewhere(first, value.len() as u64),
            None => {
                let from = bytes.len();
                bytes.extend_from_slice(value);
                Payload::Here(from..bytes.len())
            }
        });
        Ok(())
    }

    /// A node of the level below, with the keys from `low` on.
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
        if !node.fits(Some(&low)) {
            self.close(level)?;
        }
        self.levels[level].push(&low, |_| Payload::Child(child));
        Ok(())
    }

    /// Completes the node of a level without its last entry, with which the next node begins. It fits: that was found
    /// out when the last entry came, or there are so few that they always do.
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
            Payload::Elsewhere(first, len) => node.push(&key, |_| Payload::Elsewhere(first, len)),
            Payload::Here(_) => node.push(&key, |bytes| {
                let from = bytes.len();
                bytes.extend_from_slice(&value.unwrap_or_default());
                Payload::Here(from..bytes.len())
            }),
        }
        Ok(())
    }

    /// Writes what waits on a level as a node, and tells the level above.
    fn write(&mut self, level: usize, high: Option<&[u8]>) -> Result<()> {
        let mut page = self.tree.pool.allocate()?;
        self.nodes.push(page.page().0);
        let node = std::mem::take(&mut self.levels[level]);
        node.build(level as u8, high, &mut self.page).map_err(|_| damaged(page.page(), "is too small"))?;
        page.copy_from_slice(&self.page.0);
        self.tree.log.images([&mut page]);
        let number = page.page().0;
        drop(page);
        self.child(level + 1, node.low, number)
    }

    /// Completes all levels; the topmost node becomes the root.
    fn finish(mut self) -> Result<()> {
        let mut level = 0;
        loop {
            if !self.levels[level].fits(None) {
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
        root.copy_from_slice(&self.page.0);
        self.tree.log.images([&mut root]);
        self.nodes.clear();
        self.chains.clear();
        Ok(())
    }
}

impl Drop for Loader<'_> {
    fn drop(&mut self) {
        // Only after an error, which is what is reported.
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
