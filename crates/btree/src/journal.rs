//! What a write-ahead log is told of a tree, and how a tree is made of that again.
//!
//! Every record is appended while the pages it is about are held exclusively, and its number is put into them before they
//! are let go; the pool then writes none of them before the record is durable. A change of a leaf is logged as the record
//! that was put or removed (redo repeats it on the same page); splits, merges, what neighbours share and pages of long values
//! are logged as images of all pages they change, in one record, so that a log has all of such a change or nothing.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | what it is: put, remove, images |
//! | 1.. | put: page (8), key's length (2), 1 if the value is elsewhere, key, value or reference |
//! | | remove: page (8), key |
//! | | images: page (8) and payload of each |

use bedplate_bufpool::{Exclusive, PageId, Pool};

use crate::error::{Error, Result, damaged};
use crate::latch::Readable;
use crate::node::edit::{NewValue, Node};
use crate::node::view::Value;
use crate::node::{MAX_KEY, PAYLOAD};

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const IMAGES: u8 = 3;

/// A write-ahead log, as far as a tree needs to know it.
///
/// It is the same log that the pool waits for (`bedplate_bufpool::Log`), and its numbers are the pool's log sequence
/// numbers: each is above all before it.
pub trait Journal: Send + Sync {
    /// Appends a record, whose bytes are these pieces one after the other, and returns its number. It need not be durable
    /// yet.
    ///
    /// Pages are held meanwhile, so this should be quick, and must use neither the pool nor a tree. A log that cannot go on
    /// says so when it is asked to be durable.
    fn append(&self, record: &[&[u8]]) -> u64;
}

/// The journal of a tree that may have none.
#[derive(Clone, Copy)]
pub(crate) struct Logged<'j>(pub Option<&'j dyn Journal>);

impl Logged<'_> {
    /// A value was put into a leaf.
    #[inline(always)]
    pub fn put(self, leaf: &mut Exclusive<'_>, key: &[u8], value: NewValue<'_>) {
        let Some(journal) = self.0 else { return };
        let (elsewhere, reference);
        let (tag, value) = match value {
            NewValue::Here(value) => (0, value),
            NewValue::Elsewhere(first, len) => {
                reference = u128::from(first) | u128::from(len) << 64;
                elsewhere = reference.to_le_bytes();
                (1, &elsewhere[..])
            }
        };
        let page = leaf.page().0.to_le_bytes();
        let len = (key.len() as u16).to_le_bytes();
        leaf.set_lsn(journal.append(&[&[PUT], &page, &len, &[tag], key, value]));
    }

    /// A value was overwritten where it is.
    pub fn overwritten(self, leaf: &mut Exclusive<'_>, key: &[u8], at: usize) {
        if self.0.is_none() {
            return;
        }
        let mut copy = Vec::new();
        let Value::Here(bytes) = leaf.view().leaf().value(at) else { return };
        bytes.append_to(&mut copy);
        self.put(leaf, key, NewValue::Here(&copy));
    }

    /// A key was removed from a leaf.
    pub fn remove(self, leaf: &mut Exclusive<'_>, key: &[u8]) {
        let Some(journal) = self.0 else { return };
        let page = leaf.page().0.to_le_bytes();
        leaf.set_lsn(journal.append(&[&[REMOVE], &page, key]));
    }

    /// Pages have another content.
    pub fn images<const N: usize>(self, pages: [&mut Exclusive<'_>; N]) {
        let Some(journal) = self.0 else { return };
        let numbers: [_; N] = std::array::from_fn(|i| pages[i].page().0.to_le_bytes());
        let mut record: Vec<&[u8]> = vec![&[IMAGES]];
        for (number, page) in numbers.iter().zip(&pages) {
            record.extend([&number[..], &page[..]]);
        }
        let lsn = journal.append(&record);
        for page in pages {
            page.set_lsn(lsn);
        }
    }
}

/// Repeats a change that a [`Journal`] was told of, on every page that does not have it yet. `lsn` is the record's number.
///
/// Records are repeated in their order, from the last checkpoint (`Pool::sync`) at the latest, in a pool that was opened for
/// recovery and that nobody else uses yet.
pub fn redo(pool: &Pool, lsn: u64, record: &[u8]) -> Result<()> {
    let malformed = || Error::Record { lsn };
    let (&kind, rest) = record.split_first().ok_or_else(malformed)?;
    match kind {
        PUT => {
            let (page, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
            let (&tag, rest) = rest.split_first().ok_or_else(malformed)?;
            let len = usize::from(u16::from_le_bytes(*len));
            let (key, value) = rest.split_at_checked(len).ok_or_else(malformed)?;
            let value = match (tag, <[u8; 16]>::try_from(value)) {
                (0, _) => NewValue::Here(value),
                (1, Ok(reference)) => {
                    let reference = u128::from_le_bytes(reference);
                    NewValue::Elsewhere(reference as u64, (reference >> 64) as u64)
                }
                _ => return Err(malformed()),
            };
            if key.len() > MAX_KEY {
                return Err(malformed());
            }
            redo_page(pool, lsn, *page, |page| redo_put(page, key, value))
        }
        REMOVE => {
            let (page, key) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            redo_page(pool, lsn, *page, |page| {
                let (at, found) = leaf_of(page)?.lower_bound(key);
                if found {
                    Node::of(page).remove(at);
                }
                Ok(())
            })
        }
        IMAGES if rest.len().is_multiple_of(8 + PAYLOAD) => {
            for image in rest.chunks_exact(8 + PAYLOAD) {
                let (page, payload) = image.split_first_chunk::<8>().ok_or_else(malformed)?;
                redo_page(pool, lsn, *page, |page| {
                    page.copy_from_slice(payload);
                    Ok(())
                })?;
            }
            Ok(())
        }
        _ => Err(malformed()),
    }
}

fn leaf_of<'e>(page: &'e Exclusive<'_>) -> Result<crate::node::view::Leaf<'e>> {
    if page.view().is_leaf() {
        Ok(page.view().leaf())
    } else {
        Err(damaged(page.page(), "is no leaf, as the log has it"))
    }
}

fn redo_put(page: &mut Exclusive<'_>, key: &[u8], value: NewValue<'_>) -> Result<()> {
    let (at, found) = leaf_of(page)?.lower_bound(key);
    let mut node = Node::of(page);
    let done = if found { node.replace(at, value) } else { node.insert(at, key, value) };
    done.map_err(|_| damaged(page.page(), "has no room for what the log has it take"))
}

fn redo_page(
    pool: &Pool,
    lsn: u64,
    page: [u8; 8],
    change: impl FnOnce(&mut Exclusive<'_>) -> Result<()>,
) -> Result<()> {
    let (mut page, _) = pool.pin_for_redo(PageId(u64::from_le_bytes(page)))?;
    if page.lsn() < lsn {
        change(&mut page)?;
        page.set_lsn(lsn);
    }
    Ok(())
}
