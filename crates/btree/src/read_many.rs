//! Point lookups of several keys whose absent pages are read together.
//!
//! A lookup descends as far as pages are in memory. The pages at which lookups end are read with one submission to storage,
//! and the lookups begin again. So storage is asked once for each level of the tree that is not in memory, not once for each
//! key.
//!
//! Reading together is advice to the pool. A lookup that has begun [`ROUNDS`] times reads its pages one after the other.

use bedplate_bufpool::{Optimistic, PageId};

use crate::descend::{DEPTH, Handle, Mode, retry};
use crate::error::{Attempt, Result, damaged};
use crate::latch::Readable;
use crate::node::LONGEST_KEY;
use crate::read::Room;

/// How many keys are looked up together, and so how many pages are read together at most.
const MOST: usize = 64;
/// How often a lookup begins. A tree of this many levels has more pages than storage can have.
const ROUNDS: usize = 8;

/// How the lookup of a key ended.
enum Lookup {
    /// The value is in the room.
    Found,
    NotFound,
    /// This page would have to be read.
    Absent(PageId),
}

impl<'p> Handle<'p> {
    /// Looks several keys up, and shows each one's number and value to `read`, in no order.
    pub fn get_many<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        mut read: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let mut room = Room::new();
        for (chunk, keys) in keys.chunks(MOST).enumerate() {
            let first = chunk * MOST;
            let left = self.rounds(keys.len(), |key| {
                let found = match self.get_resident(keys[key].as_ref(), &mut room)? {
                    Lookup::Found => true,
                    Lookup::NotFound => false,
                    Lookup::Absent(page) => return Ok(Some(page)),
                };
                read(first + key, found.then(|| room.value()));
                Ok(None)
            })?;
            for key in left {
                let found = self.get(keys[key].as_ref(), &mut room)?;
                read(first + key, found.then(|| room.value()));
            }
        }
        Ok(())
    }

    /// Brings the leaves of several keys into memory, and the pages on the way to them, as far as there is room.
    pub fn warm<K: AsRef<[u8]>>(self, keys: &[K]) -> Result<()> {
        for keys in keys.chunks(MOST) {
            self.rounds(keys.len(), |key| {
                retry(|mode| match mode {
                    Mode::Optimistic => Ok(self.leaf_resident(keys[key].as_ref())?.err()),
                    Mode::Latched => Ok(None),
                })
            })?;
        }
        Ok(())
    }

    /// Attempts something for each number below `count`, again when the page that was absent has been read. Returns the numbers
    /// for which a page was still absent the last time.
    fn rounds(
        self,
        count: usize,
        mut attempt: impl FnMut(usize) -> Result<Option<PageId>>,
    ) -> Result<Vec<usize>> {
        let mut left: Vec<usize> = (0..count).collect();
        for _ in 0..ROUNDS {
            let (mut absent, mut failed) = (Vec::new(), None);
            left.retain(|number| match attempt(*number) {
                Ok(page) => {
                    absent.extend(page);
                    page.is_some()
                }
                Err(error) => {
                    failed.get_or_insert(error);
                    false
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if left.is_empty() {
                break;
            }
            absent.sort_unstable();
            absent.dedup();
            self.pool.fetch(&absent);
        }
        Ok(left)
    }

    /// The value of `key` into `room`, unless a page of the way to it is absent. A value that has pages of its own is read.
    fn get_resident(self, key: &[u8], room: &mut Room) -> Result<Lookup> {
        if key.len() > LONGEST_KEY {
            return Ok(Lookup::NotFound);
        }
        let found = retry(|mode| {
            let found = match mode {
                Mode::Optimistic => match self.leaf_resident(key)? {
                    Ok(leaf) => self.short_value(&leaf, key, room)?,
                    Err(page) => return Ok(Err(page)),
                },
                Mode::Latched => {
                    self.short_value(&self.leaf_shared(&|inner| inner.position(key))?, key, room)?
                }
            };
            Ok(Ok(found))
        })?;
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => self.long_value(key, room)?,
            Err(page) => return Ok(Lookup::Absent(page)),
        };
        Ok(if found { Lookup::Found } else { Lookup::NotFound })
    }

    /// The leaf of `key`, or the first page on the way to it that would have to be read.
    fn leaf_resident(self, key: &[u8]) -> Attempt<std::result::Result<Optimistic<'p>, PageId>> {
        let mut node = self.pool.optimistic(self.root)?;
        for _ in 0..DEPTH {
            if node.view().is_leaf() {
                return Ok(Ok(node));
            }
            let at = node.view().inner().position(key);
            let child = PageId(node.view().inner().child(at));
            node.validate()?;
            if self.pool.would_read(child) {
                return Ok(Err(child));
            }
            node = self.child(node, at)?;
        }
        node.validate()?;
        Err(damaged(node.page(), "is in a circle").into())
    }
}
