//! Point lookups of several keys whose absent pages are read together.
//!
//! A lookup descends until it needs a page that is not in memory. These pages are read with one submission to storage for all
//! lookups, and the lookups begin again. So there is one submission for each level of the tree that is not in memory, and not one
//! for each key.
//!
//! Reading together is only a hint to the pool. A lookup that has begun [`ROUNDS`] times reads its pages one after the other.

use bedplate_bufpool::{Optimistic, PageId};

use crate::descend::{DEPTH, Handle, Mode, retry};
use crate::error::{Attempt, Result, damaged};
use crate::latch::Readable;
use crate::node::LONGEST_KEY;
use crate::read::Room;

/// Maximum number of keys that are looked up together, and so of pages that are read together.
const MOST: usize = 64;
/// Maximum number of times that a lookup begins. A tree with this many levels has more pages than storage can have.
const ROUNDS: usize = 8;

/// The result of the lookup of a key.
enum Lookup {
    /// The value is in the room.
    Found,
    NotFound,
    /// This page would have to be read.
    Absent(PageId),
}

impl<'p> Handle<'p> {
    /// Looks several keys up, and calls `read` with the number and the value of each, in no particular order.
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

    /// Reads the leaves of several keys, and the pages on the paths to them, into memory while there are frames.
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

    /// Attempts something for each number below `count`, and again after the absent page has been read. Returns the numbers for
    /// which a page was still absent the last time.
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

    /// Copies the value of `key` into `room`, unless a page on the path to it is absent. If the value is in overflow pages, these
    /// are read.
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

    /// Finds the leaf of `key`, or the first absent page on the path to it.
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
