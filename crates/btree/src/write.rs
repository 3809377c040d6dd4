//! Changes of records. A leaf is found and searched optimistically. It is held exclusively only for the change itself.

use std::mem;

use bedplate_bufpool::{Exclusive, Optimistic, PageSize};

use crate::MAX_VALUE;
use crate::descend::{Handle, Mode, retry};
use crate::error::{Attempt, Error, Result, damaged};
use crate::latch::Readable;
use crate::node::edit::{NewValue, Node};
use crate::node::view::{Leaf, Page, Value};
use crate::node::{LEAF_SLOT, LONGEST_KEY, max_key, max_record};
use crate::overflow::{CHAIN_PATIENCE, Source};
use crate::read::Room;
use crate::split::SPLITS;

/// The effect of a put on a key that is in the tree already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Keeps the existing value.
    Keep,
    /// Replaces the existing value.
    Replace,
}

/// The slot of a key, or the slot where it would be inserted.
struct Place<'p> {
    leaf: Hold<'p>,
    at: usize,
    found: bool,
}

enum Hold<'p> {
    Optimistic(Optimistic<'p>),
    Exclusive(Exclusive<'p>),
}

impl<'p> Place<'p> {
    /// Holds the leaf exclusively. Fails if the leaf has changed since the search.
    fn lock(self) -> Attempt<Exclusive<'p>> {
        match self.leaf {
            Hold::Optimistic(leaf) => Ok(leaf.upgrade()?),
            Hold::Exclusive(leaf) => Ok(leaf),
        }
    }

    /// Checks that the leaf has not changed since the search.
    fn validate(&self) -> Attempt<()> {
        match &self.leaf {
            Hold::Optimistic(leaf) => Ok(Readable::validate(leaf)?),
            Hold::Exclusive(_) => Ok(()),
        }
    }
}

/// An overflow chain that no leaf refers to yet. It is freed on drop, unless it is kept.
struct Chain<'p> {
    tree: Handle<'p>,
    first: u64,
}

impl Chain<'_> {
    /// A leaf refers to the chain now.
    fn keep(mut self) {
        self.first = 0;
    }

    /// Frees the chain, because no leaf will refer to it.
    fn free(mut self) -> Result<()> {
        self.tree.free_chain(mem::take(&mut self.first))
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        // The chain is dropped only when another operation failed. That error is the one to report.
        let _ = self.tree.free_chain(self.first);
    }
}

impl<'p> Handle<'p> {
    #[inline(always)]
    fn place(self, key: &[u8], mode: Mode) -> Attempt<Place<'p>> {
        let (leaf, (at, found)) = match mode {
            Mode::Optimistic => {
                let leaf = self.leaf(|inner| inner.position(key))?;
                let place = leaf.view().leaf().lower_bound(key);
                (Hold::Optimistic(leaf), place)
            }
            Mode::Latched => {
                let leaf = self.leaf_exclusive(key)?;
                let place = leaf.view().leaf().lower_bound(key);
                (Hold::Exclusive(leaf), place)
            }
        };
        Ok(Place { leaf, at, found })
    }

    /// Finds the leaf of `key`, holds it exclusively, and returns it with the key's slot. Returns none if the key is
    /// absent.
    fn hold(self, key: &[u8], mode: Mode) -> Attempt<Option<(Exclusive<'p>, usize)>> {
        let place = self.place(key, mode)?;
        if !place.found {
            place.validate()?;
            return Ok(None);
        }
        let at = place.at;
        Ok(Some((place.lock()?, at)))
    }

    /// Puts a record. Returns whether the key was in the tree before.
    pub fn put(self, key: &[u8], value: &[u8], existing: Existing) -> Result<bool> {
        check_limits(self.size(), key, value)?;
        if !is_long(self.size(), key, value) {
            let (found, old) = self.put_value(key, NewValue::Here(value), existing)?;
            self.free_chain(old)?;
            return Ok(found);
        }
        let chain = Chain { tree: self, first: self.write_chain(value)? };
        let new = NewValue::Overflow(chain.first, value.len() as u64);
        let (found, old) = self.put_value(key, new, existing)?;
        if found && existing == Existing::Keep {
            chain.free()?;
        } else {
            chain.keep();
        }
        self.free_chain(old)?;
        Ok(found)
    }

    /// Returns whether the key was in the tree before, and the first overflow page of its old value. The caller frees
    /// that chain.
    fn put_value(self, key: &[u8], value: NewValue<'_>, existing: Existing) -> Result<(bool, u64)> {
        retry(|mode| {
            for _ in 0..SPLITS {
                let place = self.place(key, mode)?;
                let (at, found) = (place.at, place.found);
                if found && existing == Existing::Keep {
                    place.validate()?;
                    return Ok((true, 0));
                }
                let mut leaf = place.lock()?;
                let old = if found { chain_of(leaf.view().leaf(), at) } else { 0 };
                let mut node = Node::of(&mut leaf);
                let done = if found { node.replace(at, value) } else { node.insert(at, key, value) };
                if done.is_ok() {
                    self.log.put(&mut leaf, key, value, old);
                    return Ok((found, old));
                }
                self.make_room(leaf, key, record_size(key, value))?;
            }
            Err(damaged(self.root, "leads to leaves that never have room").into())
        })
    }

    /// Splits a leaf that had no room for a record of at most `need` bytes. Fails if the leaf has that room, because
    /// the node is damaged then.
    fn make_room(self, leaf: Exclusive<'p>, key: &[u8], need: usize) -> Result<()> {
        let page = leaf.page();
        if leaf.view().used() + need <= leaf.view().capacity() {
            return Err(damaged(page, "has no room where it says so"));
        }
        drop(leaf);
        self.split(page, 0, key, need)
    }

    /// Replaces the value of `key` by the result of `change`. Returns whether the key is in the tree.
    pub fn update(self, key: &[u8], mut change: impl FnMut(&[u8], &mut Vec<u8>)) -> Result<bool> {
        let (mut new, mut long) = (Vec::new(), Vec::new());
        // `read` is the chain that `long` was read from. `reads` counts the reads. The leaf is not held while a chain
        // is read from storage. After [`CHAIN_PATIENCE`] reads, the chain is read while the leaf is held.
        let (mut read, mut reads) = (None, 0);
        let old = retry(|mode| {
            for _ in 0..SPLITS {
                let Some((mut leaf, at)) = self.hold(key, mode)? else { return Ok(None) };
                new.clear();
                let old = match leaf.view().leaf().value(at) {
                    Value::Here(bytes) => {
                        // SAFETY: the leaf is held exclusively, and it is not changed while `change` runs.
                        change(unsafe { bytes.stable() }, &mut new);
                        0
                    }
                    Value::Overflow(first, len) => {
                        let is_read = matches!(&read, Some(Source::Chain(source)) if source.is(first, len));
                        if !is_read && reads < CHAIN_PATIENCE {
                            drop(leaf);
                            read = self.read_value(key, &mut long)?;
                            reads += 1;
                            continue;
                        }
                        if !is_read {
                            self.read_chain_of_leaf(leaf.page(), first, len, &mut long)?;
                        }
                        change(&long, &mut new);
                        first
                    }
                };
                let (done, need) = self.replace(&mut leaf, key, at, &new)?;
                if done {
                    return Ok(Some(old));
                }
                self.make_room(leaf, key, need)?;
            }
            Err(damaged(self.root, "leads to leaves that never have room").into())
        })?;
        self.free_chain(old.unwrap_or(0))?;
        Ok(old.is_some())
    }

    /// Replaces value `at` of a leaf. Returns whether it fitted, and the size of the new record in bytes.
    fn replace(self, leaf: &mut Exclusive<'p>, key: &[u8], at: usize, value: &[u8]) -> Result<(bool, usize)> {
        check_limits(self.size(), key, value)?;
        let chain = match is_long(self.size(), key, value) {
            true => Some(Chain { tree: self, first: self.write_chain(value)? }),
            false => None,
        };
        let new = chain
            .as_ref()
            .map_or(NewValue::Here(value), |chain| NewValue::Overflow(chain.first, value.len() as u64));
        let old = chain_of(leaf.view().leaf(), at);
        let done = Node::of(leaf).replace(at, new).is_ok();
        let need = record_size(key, new);
        if done {
            self.log.put(leaf, key, new, old);
            if let Some(chain) = chain {
                chain.keep();
            }
        }
        Ok((done, need))
    }

    /// Lets `change` overwrite the value of `key`, without a change of its length.
    pub fn update_in_place<R>(self, key: &[u8], change: impl FnOnce(&mut [u8]) -> R) -> Result<Option<R>> {
        let mut change = Some(change);
        let mut result = None;
        let mut room = Room::new();
        let done = retry(|mode| {
            let Some((mut leaf, at)) = self.hold(key, mode)? else { return Ok(true) };
            let Value::Here(bytes) = leaf.view().leaf().value(at) else { return Ok(false) };
            // The closure gets a copy, because optimistic readers may read the page while it runs.
            let value = room.copy(bytes);
            result = change.take().map(|change| change(value));
            Node::of(&mut leaf).overwrite_value(at, value);
            self.log.put(&mut leaf, key, NewValue::Here(value), 0);
            Ok(true)
        })?;
        if !done {
            // The value is in an overflow chain. Chains are never changed, so a new chain replaces it.
            self.update(key, |old, new| {
                new.extend_from_slice(old);
                if let Some(change) = change.take() {
                    result = Some(change(new));
                }
            })?;
        }
        Ok(result)
    }

    /// Removes `key`. Returns whether it was in the tree.
    pub fn remove(self, key: &[u8]) -> Result<bool> {
        if key.len() > LONGEST_KEY {
            return Ok(false);
        }
        let removed = retry(|mode| {
            let Some((mut leaf, at)) = self.hold(key, mode)? else { return Ok(None) };
            let old = chain_of(leaf.view().leaf(), at);
            Node::of(&mut leaf).remove(at);
            self.log.remove(&mut leaf, key, old);
            Ok(Some((old, is_underfull(leaf.view()))))
        })?;
        let Some((old, underfull)) = removed else { return Ok(false) };
        self.free_chain(old)?;
        if underfull {
            // The key is removed, so an error of the merge is ignored. A node that stays small is correct, and the next
            // removal tries again.
            let _ = self.merge(0, key);
        }
        Ok(true)
    }
}

/// Whether a node uses so few bytes that it is merged with a sibling, if both fit into one node.
pub(crate) fn is_underfull(node: Page<'_>) -> bool {
    node.used() < node.capacity() * 2 / 5
}

/// Fails if a tree with pages of this size cannot have this record.
pub(crate) fn check_limits(size: PageSize, key: &[u8], value: &[u8]) -> Result<()> {
    match (key.len(), value.len()) {
        (len, _) if len > max_key(size) => Err(Error::KeyTooLong { len, max: max_key(size) }),
        (_, len) if len > MAX_VALUE => Err(Error::ValueTooLong { len }),
        _ => Ok(()),
    }
}

/// The first overflow page of value `at`, 0 if the value is in the leaf.
fn chain_of(leaf: Leaf<'_>, at: usize) -> u64 {
    match leaf.value(at) {
        Value::Here(_) => 0,
        Value::Overflow(first, _) => first,
    }
}

/// Whether a value is stored in an overflow chain.
pub(crate) fn is_long(size: PageSize, key: &[u8], value: &[u8]) -> bool {
    key.len() + value.len() > max_record(size)
}

/// The maximum size of a record in a leaf, in bytes.
fn record_size(key: &[u8], value: NewValue<'_>) -> usize {
    let value = match value {
        NewValue::Here(value) => value.len(),
        NewValue::Overflow(..) => 16,
    };
    LEAF_SLOT + 2 + key.len() + value
}
