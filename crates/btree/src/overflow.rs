//! Overflow chains: lists of pages for values that are too long for a leaf.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | [`CHAIN`] |
//! | 8..16 | the next page, 0 at the end |
//! | 16..24 | number of the value's bytes in this page |
//! | 24.. | the bytes |
//!
//! A chain is written before its leaf refers to it, and it never changes. It is freed after its leaf has dropped the
//! reference, from the first page on.
//!
//! **Reading.** A reader holds no leaf while it waits for storage. It reads the reference and begins an optimistic read
//! of the first page. Then it checks that the leaf is unchanged. From then on, the chain belongs to the value as long
//! as the first page is unchanged, even if the leaf changes. The reason: a thread that frees a chain frees the first
//! page first. Eviction changes the first page too. After an eviction, the reader needs the leaf to be unchanged, or it
//! starts again. After [`CHAIN_PATIENCE`] attempts the reader holds the first page shared. Then no thread can free or
//! evict that page, and writers of the leaf do not wait. A writer that replaced the value waits for the reader before
//! it frees the old chain. The writer holds no page while it waits.
//!
//! **Latch order.** A thread that holds the first page of a chain never waits for a node.

use bedplate_bufpool::{Optimistic, PageId, PageSize, Restart};

use crate::MAX_VALUE;
use crate::descend::{Handle, Mode, retry};
use crate::error::{Abort, Attempt, Result, damaged};
use crate::latch::{Readable, not_held};
use crate::node::view::Value;

/// Byte 0 of an overflow page.
pub(crate) const CHAIN: u8 = 0xb3;
const NEXT: usize = 8;
const LEN: usize = 16;
const DATA: usize = 24;

/// Bytes of a value in one page of this size.
pub(crate) const fn part(size: PageSize) -> usize {
    size.payload() - DATA
}

/// Number of optimistic attempts to read a chain, before the reader holds its first page. A chain may have 4145 pages of 4 KiB.
pub(crate) const CHAIN_PATIENCE: u32 = 4;
/// Number of times that a reader loads the first page and finds it evicted again. After that, the reader waits for
/// storage while it holds the leaf.
const HOLD_ATTEMPTS: u32 = 16;
/// The number of pages of a chain that are read together at first, and the maximum.
const FEWEST_TOGETHER: usize = 4;
const MOST_TOGETHER: usize = 32;

/// The reason why the pages of a chain still belong to the value.
pub(crate) enum ChainGuard<'p> {
    /// The first page is unchanged since the leaf referred to it.
    Seen(Optimistic<'p>),
    /// The caller holds the first page shared, so no thread can free the chain.
    Held,
    /// The caller holds this leaf exclusively, and the leaf refers to the chain.
    Leaf(PageId),
}

impl ChainGuard<'_> {
    fn validate(&self) -> std::result::Result<(), Restart> {
        match self {
            ChainGuard::Seen(first) => first.validate(),
            ChainGuard::Held | ChainGuard::Leaf(_) => Ok(()),
        }
    }
}

/// The place where a value was found.
pub(crate) enum Source<'p> {
    /// In its leaf.
    Leaf,
    /// In a chain.
    Chain(ChainSource<'p>),
}

/// A chain that has been read.
pub(crate) struct ChainSource<'p> {
    /// The reference in the leaf: first page and length.
    first: u64,
    len: u64,
    /// The first page. As long as it is unchanged, the chain is the one that was read.
    seen: Optimistic<'p>,
    /// Number of pages of the chain.
    pub pages: u64,
    /// The page after the last one that the value needs; 0 in a sound tree.
    pub after: u64,
}

impl ChainSource<'_> {
    /// Whether this reference, in a leaf that the caller holds, refers to the chain that was read.
    pub fn is(&self, first: u64, len: u64) -> bool {
        (self.first, self.len) == (first, len) && self.seen.validate().is_ok()
    }
}

/// A record's value as its leaf stores it.
enum Stored {
    Absent,
    /// The value is in the leaf and has been copied.
    Here,
    /// First page and length of a chain.
    Chain(u64, u64),
}

impl<'p> Handle<'p> {
    /// Writes a value into a new overflow chain. Returns the first page.
    pub fn write_chain(self, value: &[u8]) -> Result<u64> {
        let mut next = 0;
        // Writes the last part first, so that each page can store the number of the next one.
        for part in value.chunks(part(self.size())).rev() {
            let mut page = match self.pool.allocate() {
                Ok(page) => page,
                Err(error) => {
                    // The error to report is the one of the write.
                    let _ = self.free_chain(next);
                    return Err(error.into());
                }
            };
            page.write(0, &[CHAIN]);
            page.write(NEXT, &next.to_le_bytes());
            page.write(LEN, &(part.len() as u64).to_le_bytes());
            page.write(DATA, part);
            self.log.images([&mut page]);
            next = page.page().0;
        }
        Ok(next)
    }

    /// Reads the value of `key` into `value`, whatever its length. Holds no leaf while it waits for overflow pages,
    /// except after [`HOLD_ATTEMPTS`] evictions of the first page. Returns where the value was, or none if the key is
    /// absent.
    #[cold]
    pub fn read_value(self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Source<'p>>> {
        let mut attempts = 0;
        retry(|mode| {
            if mode == Mode::Latched || attempts >= CHAIN_PATIENCE {
                return Ok(self.read_value_held(key, value)?);
            }
            let leaf = self.leaf(|inner| inner.position(key))?;
            let (first, len) = match stored(&leaf, key, value)? {
                Stored::Absent => return Ok(None),
                Stored::Here => return Ok(Some(Source::Leaf)),
                Stored::Chain(first, len) => (first, len),
            };
            attempts += 1;
            let see = || match self.pool.optimistic(PageId(first)) {
                Ok(seen) => {
                    Readable::validate(&leaf)?;
                    Ok(ChainGuard::Seen(seen))
                }
                Err(error) => {
                    // The error may have occurred because another thread has freed the chain. Then the leaf has
                    // changed.
                    Readable::validate(&leaf)?;
                    Err(error.into())
                }
            };
            let mut guard = see()?;
            let (pages, after) = self.read_chain(first, len, &mut guard, see, value)?;
            let ChainGuard::Seen(seen) = guard else { return Err(Restart.into()) };
            Ok(Some(Source::Chain(ChainSource { first, len, seen, pages, after })))
        })
    }

    /// Like [`Handle::read_value`], but holds the first page of the chain, so that no thread can disturb the read.
    fn read_value_held(self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Source<'p>>> {
        let mut attempts = 0;
        let (held, first, len) = loop {
            let leaf = self.leaf_shared(&|inner| inner.position(key))?;
            let found = match stored(&leaf, key, value) {
                Ok(found) => found,
                Err(Abort::Failed(error)) => return Err(error),
                Err(Abort::Restart) => continue,
            };
            let (first, len) = match found {
                Stored::Absent => return Ok(None),
                Stored::Here => return Ok(Some(Source::Leaf)),
                Stored::Chain(first, len) => (first, len),
            };
            let page = not_held(PageId(first), &leaf)?;
            if attempts == HOLD_ATTEMPTS {
                // The leaf is held for the read of a single page.
                break (self.pool.pin_shared(page)?, first, len);
            }
            if let Some(seen) = self.pool.try_optimistic(page)
                && let Ok(held) = seen.share()
            {
                break (held, first, len);
            }
            drop(leaf);
            // This error is ignored, because another thread may have freed the page. A real error occurs again while
            // the leaf is held.
            let _ = self.pool.optimistic(page);
            attempts += 1;
        };
        let mut guard = ChainGuard::Held;
        let read = self.read_chain(first, len, &mut guard, || Err(Restart.into()), value);
        let (pages, after) = match read {
            Ok(read) => read,
            Err(Abort::Failed(error)) => return Err(error),
            Err(Abort::Restart) => return Err(damaged(PageId(first), "is held, and not valid")),
        };
        // The caller waits for nodes later, so it must not hold the page.
        let seen = self.pool.optimistic(PageId(first))?;
        drop(held);
        Ok(Some(Source::Chain(ChainSource { first, len, seen, pages, after })))
    }

    /// Reads an overflow value of a leaf that the caller holds exclusively.
    pub fn read_chain_of_leaf(self, leaf: PageId, first: u64, len: u64, value: &mut Vec<u8>) -> Attempt<()> {
        let mut guard = ChainGuard::Leaf(leaf);
        self.read_chain(first, len, &mut guard, || Err(Restart.into()), value).map(drop)
    }

    /// Reads a value of `len` bytes. `renew` makes another guard if the old one is no longer valid. Returns the number
    /// of pages, and the page after the last of them.
    fn read_chain(
        self,
        first: u64,
        len: u64,
        guard: &mut ChainGuard<'p>,
        renew: impl Fn() -> Attempt<ChainGuard<'p>>,
        value: &mut Vec<u8>,
    ) -> Attempt<(u64, u64)> {
        value.clear();
        let len = checked_len(first, len)?;
        let (mut next, mut pages) = (first, 0);
        let mut ahead = Ahead::default();
        while value.len() < len {
            let so_far = value.len();
            if let ChainGuard::Leaf(leaf) = guard
                && next == leaf.0
            {
                return Err(damaged(*leaf, "refers to itself as a value").into());
            }
            self.pool.fetch(&ahead.pages(next, (len - so_far).div_ceil(part(self.size()))));
            let read = self.part(next, len - so_far, value);
            // A malformed page is an error only if it still belongs to the value.
            if guard.validate().is_err() {
                *guard = renew()?;
            }
            match read {
                Ok(after) => (next, pages) = (after, pages + 1),
                // The page was evicted meanwhile, but it still belongs to the value.
                Err(Abort::Restart) => value.truncate(so_far),
                Err(error) => return Err(error),
            }
        }
        Ok((pages, next))
    }

    /// Appends the content of one page, at most `left` bytes. Returns the next page.
    fn part(self, number: u64, left: usize, value: &mut Vec<u8>) -> Attempt<u64> {
        let page = self.pool.optimistic(PageId(number))?;
        let header = |at| u64::from_le_bytes(page.read::<8>(at));
        let (next, len, kind) = (header(NEXT), header(LEN), page.read::<1>(0)[0]);
        let most = left.min(part(self.size())) as u64;
        page.view().bytes(DATA, len.min(most) as usize).append_to(value);
        page.validate()?;
        // No part is empty, so even a circular chain ends.
        if kind == CHAIN && (1..=most).contains(&len) {
            Ok(next)
        } else {
            Err(Abort::Failed(damaged(PageId(number), "is no part of a value")))
        }
    }

    /// Frees the pages of a chain that no leaf refers to any more. The caller must hold no page: readers of the value
    /// may hold its first page for as long as storage takes.
    pub fn free_chain(self, first: u64) -> Result<()> {
        let mut next = first;
        while next != 0 {
            let page = self.pool.pin_exclusive(PageId(next))?;
            if page[0] != CHAIN {
                return Err(damaged(page.page(), "is no part of a value"));
            }
            (next, _) = next_and_len(&page);
            self.pool.free(page)?;
        }
        Ok(())
    }
}

/// Copies the value of `key` if it is in the leaf, or else returns its reference. The result is validated.
fn stored(leaf: &impl Readable, key: &[u8], value: &mut Vec<u8>) -> Attempt<Stored> {
    value.clear();
    let slots = leaf.view().leaf();
    let (at, found) = slots.lower_bound(key);
    let stored = match found.then(|| slots.value(at)) {
        None => Stored::Absent,
        Some(Value::Here(bytes)) => {
            bytes.append_to(value);
            Stored::Here
        }
        Some(Value::Overflow(first, len)) => Stored::Chain(first, len),
    };
    leaf.validate()?;
    Ok(stored)
}

/// Predicts the next pages of a chain. A page stores the number of the next page only. But a chain is written at once,
/// so most of its page numbers are consecutive. A wrong prediction costs one read and nothing else.
#[derive(Default)]
struct Ahead {
    last: Option<u64>,
    /// Number of requested pages that the reader has not reached yet.
    covered: usize,
    together: usize,
}

impl Ahead {
    /// The pages to read together with `next`, when `parts` pages are left.
    fn pages(&mut self, next: u64, parts: usize) -> Vec<PageId> {
        let step = match self.last.replace(next) {
            Some(last) if next == last.wrapping_sub(1) => -1,
            Some(last) if next == last.wrapping_add(1) => 1,
            Some(last) if next == last => return Vec::new(),
            _ => {
                (self.covered, self.together) = (0, FEWEST_TOGETHER);
                return Vec::new();
            }
        };
        if self.covered > 0 {
            self.covered -= 1;
            return Vec::new();
        }
        let count = self.together.min(parts);
        (self.covered, self.together) = (count.saturating_sub(1), (2 * self.together).min(MOST_TOGETHER));
        (0..count as i64).map_while(|i| next.checked_add_signed(step * i)).map(PageId).collect()
    }
}

/// The length in a reference, checked. An overflow value is never empty, and never longer than [`MAX_VALUE`].
pub(crate) fn checked_len(first: u64, len: u64) -> Result<usize> {
    match usize::try_from(len) {
        Ok(len @ 1..=MAX_VALUE) => Ok(len),
        _ => Err(damaged(PageId(first), format!("is said to begin a value of {len} bytes"))),
    }
}

/// The next page and the number of value bytes, as an overflow page states them. Neither number is checked.
pub(crate) fn next_and_len(page: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
    (word(NEXT), word(LEN))
}
