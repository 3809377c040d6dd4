//! Changing records: the leaf is found and searched optimistically, and held exclusively only for the change itself.

use std::mem;

use bedplate_bufpool::{Exclusive, Optimistic};

use crate::MAX_VALUE;
use crate::error::{Attempt, Error, Result, damaged};
use crate::handle::{Handle, Mode, retry};
use crate::latch::Readable;
use crate::node::edit::{NewValue, Node};
use crate::node::view::{Leaf, Value};
use crate::node::{CAPACITY, LEAF_SLOT, MAX_KEY, MAX_RECORD};
use crate::split::SPLITS;

/// What may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Is left as it is.
    Keep,
    /// Is replaced.
    Replace,
}

/// Where a key is, or would be.
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
    /// Holds the leaf exclusively; what was found is then true.
    fn lock(self) -> Attempt<Exclusive<'p>> {
        match self.leaf {
            Hold::Optimistic(leaf) => Ok(leaf.upgrade()?),
            Hold::Exclusive(leaf) => Ok(leaf),
        }
    }

    /// Whether what was found is true.
    fn validate(&self) -> Attempt<()> {
        match &self.leaf {
            Hold::Optimistic(leaf) => Ok(Readable::validate(leaf)?),
            Hold::Exclusive(_) => Ok(()),
        }
    }
}

/// A value in pages of its own that belongs to no leaf yet: it is freed unless it is kept.
struct Chain<'p> {
    tree: Handle<'p>,
    first: u64,
}

impl Chain<'_> {
    /// It belongs to a leaf now.
    fn keep(mut self) {
        self.first = 0;
    }

    /// Nobody needs it.
    fn free(mut self) -> Result<()> {
        self.tree.free_chain(mem::take(&mut self.first))
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        // Only when something else failed, which is what is reported.
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

    /// The leaf that has `key`, held exclusively, and where the key is in it; none if it is not there.
    fn hold(self, key: &[u8], mode: Mode) -> Attempt<Option<(Exclusive<'p>, usize)>> {
        let place = self.place(key, mode)?;
        if !place.found {
            place.validate()?;
            return Ok(None);
        }
        let at = place.at;
        Ok(Some((place.lock()?, at)))
    }

    /// Puts a record; says whether the key was there before.
    pub fn put(self, key: &[u8], value: &[u8], existing: Existing) -> Result<bool> {
        check_limits(key, value)?;
        if !is_long(key, value) {
            let (found, old) = self.put_value(key, NewValue::Here(value), existing)?;
            self.free_chain(old)?;
            return Ok(found);
        }
        let chain = Chain { tree: self, first: self.write_chain(value)? };
        let new = NewValue::Elsewhere(chain.first, value.len() as u64);
        let (found, old) = self.put_value(key, new, existing)?;
        if found && existing == Existing::Keep {
            chain.free()?;
        } else {
            chain.keep();
        }
        self.free_chain(old)?;
        Ok(found)
    }

    /// Says whether the key was there before, and the first of the pages that its old value leaves behind.
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
                    self.log.put(&mut leaf, key, value);
                    return Ok((found, old));
                }
                self.make_room(leaf, key, record_size(key, value))?;
            }
            Err(damaged(self.root, "leads to leaves that never have room").into())
        })
    }

    /// Splits a leaf that has not taken something of at most `need` bytes, unless it should have.
    fn make_room(self, leaf: Exclusive<'p>, key: &[u8], need: usize) -> Result<()> {
        let page = leaf.page();
        if leaf.view().used() + need <= CAPACITY {
            return Err(damaged(page, "has no room where it says so"));
        }
        drop(leaf);
        self.split(page, 0, key, need)
    }

    /// Replaces the value of `key` by what `change` makes of it; says whether there was one.
    pub fn update(self, key: &[u8], mut change: impl FnMut(&[u8], &mut Vec<u8>)) -> Result<bool> {
        let (mut new, mut long) = (Vec::new(), Vec::new());
        let old = retry(|mode| {
            for _ in 0..SPLITS {
                let Some((mut leaf, at)) = self.hold(key, mode)? else { return Ok(None) };
                new.clear();
                let old = match leaf.view().leaf().value(at) {
                    Value::Here(bytes) => {
                        // SAFETY: the leaf is held exclusively, and not changed while the value is looked at.
                        change(unsafe { bytes.stable() }, &mut new);
                        0
                    }
                    Value::Elsewhere(first, len) => {
                        self.read_chain(first, len, leaf.page(), || Ok(()), &mut long)?;
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

    /// Replaces value `at` of a leaf; whether it fitted, and else how much it needs.
    fn replace(self, leaf: &mut Exclusive<'p>, key: &[u8], at: usize, value: &[u8]) -> Result<(bool, usize)> {
        check_limits(key, value)?;
        let chain = match is_long(key, value) {
            true => Some(Chain { tree: self, first: self.write_chain(value)? }),
            false => None,
        };
        let new = chain
            .as_ref()
            .map_or(NewValue::Here(value), |chain| NewValue::Elsewhere(chain.first, value.len() as u64));
        let done = Node::of(leaf).replace(at, new).is_ok();
        let need = record_size(key, new);
        if done {
            self.log.put(leaf, key, new);
            if let Some(chain) = chain {
                chain.keep();
            }
        }
        Ok((done, need))
    }

    /// Lets `change` overwrite the value of `key` where it is.
    pub fn update_in_place<R>(self, key: &[u8], change: impl FnOnce(&mut [u8]) -> R) -> Result<Option<R>> {
        let mut change = Some(change);
        let mut result = None;
        let done = retry(|mode| {
            let Some((mut leaf, at)) = self.hold(key, mode)? else { return Ok(true) };
            let Some(value) = Node::of(&mut leaf).into_value(at) else { return Ok(false) };
            result = change.take().map(|change| change(value));
            self.log.overwritten(&mut leaf, key, at);
            Ok(true)
        })?;
        if !done {
            // It has pages of its own, which are never changed: others take their place.
            self.update(key, |old, new| {
                new.extend_from_slice(old);
                if let Some(change) = change.take() {
                    result = Some(change(new));
                }
            })?;
        }
        Ok(result)
    }

    /// Removes `key`; says whether it was there.
    pub fn remove(self, key: &[u8]) -> Result<bool> {
        if key.len() > MAX_KEY {
            return Ok(false);
        }
        let removed = retry(|mode| {
            let Some((mut leaf, at)) = self.hold(key, mode)? else { return Ok(None) };
            let old = chain_of(leaf.view().leaf(), at);
            Node::of(&mut leaf).remove(at);
            self.log.remove(&mut leaf, key);
            Ok(Some((old, leaf.view().used() < UNDERFULL)))
        })?;
        let Some((old, underfull)) = removed else { return Ok(false) };
        self.free_chain(old)?;
        if underfull {
            // The key is removed, and a node that stays small is none the worse: the next removal tries again.
            let _ = self.merge(0, key);
        }
        Ok(true)
    }
}

/// A node that uses less than this is merged with a neighbour, if both fit into one.
pub(crate) const UNDERFULL: usize = CAPACITY * 2 / 5;

pub(crate) fn check_limits(key: &[u8], value: &[u8]) -> Result<()> {
    match (key.len(), value.len()) {
        (len, _) if len > MAX_KEY => Err(Error::KeyTooLong { len }),
        (_, len) if len > MAX_VALUE => Err(Error::ValueTooLong { len }),
        _ => Ok(()),
    }
}

/// The first of the pages of value `at`, 0 if it has none of its own.
fn chain_of(leaf: Leaf<'_>, at: usize) -> u64 {
    match leaf.value(at) {
        Value::Here(_) => 0,
        Value::Elsewhere(first, _) => first,
    }
}

/// Whether a value gets pages of its own.
pub(crate) fn is_long(key: &[u8], value: &[u8]) -> bool {
    key.len() + value.len() > MAX_RECORD
}

/// The most that a record takes in a leaf.
fn record_size(key: &[u8], value: NewValue<'_>) -> usize {
    let value = match value {
        NewValue::Here(value) => value.len(),
        NewValue::Elsewhere(..) => 16,
    };
    LEAF_SLOT + 2 + key.len() + value
}
