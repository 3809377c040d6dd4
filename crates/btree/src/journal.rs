//! The log records of a tree, and the redo of those records.
//!
//! A record is appended while its pages are held exclusively. Its number is stored in those pages before they are
//! released. The pool writes such a page only after the record is durable. A put or a removal in a leaf is logged as
//! that operation, and redo repeats it on the same page. Splits, merges, redistributions and overflow chains are logged
//! as images. One record has the images of all pages of such a change, so a log contains all of the change or nothing. An
//! overflow chain has one record for each page.
//!
//! The first record about an allocated page is always an image, as `bedplate_bufpool::Log` requires. New trees, splits,
//! bulk loads and overflow chains allocate pages. Each of them logs images before it releases the page, or frees the
//! page without a record. Puts and removals happen only in leaves that already have an image in the log. So redo never
//! reads the content that a page had before its allocation.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | kind of the record: put, remove or images |
//! | 1.. | put: page (8), length of the key (2), 1 for an overflow value or else 0 (1), key, value or reference |
//! | | remove: page (8), key |
//! | | images: page (8) and payload, for each page |

use bedplate_bufpool::{Exclusive, Log, PageId, Pool};

use crate::error::{Error, Result, damaged};
use crate::latch::Readable;
use crate::node::edit::{NewValue, Node};
use crate::node::max_key;

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const IMAGES: u8 = 3;

/// A write-ahead log, as far as a tree needs it.
///
/// It must be the same log that the pool waits for (`bedplate_bufpool::Log`). Its record numbers are the pool's log
/// sequence numbers: each is larger than all numbers before it.
pub trait Journal: Send + Sync {
    /// Appends a record and returns its number. The record is the concatenation of the pieces. It need not be durable
    /// yet.
    ///
    /// The caller holds pages meanwhile. So this should be quick, and it must use neither the pool nor a tree. A log
    /// that has failed reports the error when it is asked to make records durable.
    fn append(&self, record: &[&[u8]]) -> u64;

    /// Returns whether this journal appends to `log`, the one that the pool waits for. A tree refuses a journal that
    /// does not.
    ///
    /// By default, the two must be the same object. A journal that is a different object than its log overrides this.
    fn appends_to(&self, log: &dyn Log) -> bool {
        std::ptr::addr_eq(self, log)
    }

    /// Returns the log's end if the user of this journal logs every put and removal and repeats them in recovery.
    ///
    /// The tree then appends nothing for a change inside one leaf, and stores this number in the leaf. The number must
    /// be at or above the number of every record that the leaf depends on. A change that puts or removes a reference to
    /// an overflow page is still logged as an image of the leaf. The reason: the pages that an older leaf refers to may
    /// have another use by now. Such a journal gets images only. With a put record, redo could find a leaf that is
    /// still full, because an earlier removal has no record.
    fn covered_by(&self) -> Option<u64> {
        None
    }
}

/// The journal of a tree, if the tree has one.
#[derive(Clone, Copy)]
pub(crate) struct Logged<'j>(pub Option<&'j dyn Journal>);

impl Logged<'_> {
    /// Logs that a value was put into a leaf. `freed` is the first overflow page of the replaced value, or 0.
    #[inline(always)]
    pub fn put(self, leaf: &mut Exclusive<'_>, key: &[u8], value: NewValue<'_>, freed: u64) {
        let Some(journal) = self.0 else { return };
        if let Some(end) = journal.covered_by() {
            return self.covered(leaf, end, freed != 0 || matches!(value, NewValue::Overflow(..)));
        }
        let (elsewhere, reference);
        let (tag, value) = match value {
            NewValue::Here(value) => (0, value),
            NewValue::Overflow(first, len) => {
                reference = u128::from(first) | u128::from(len) << 64;
                elsewhere = reference.to_le_bytes();
                (1, &elsewhere[..])
            }
        };
        let page = leaf.page().0.to_le_bytes();
        let len = (key.len() as u16).to_le_bytes();
        leaf.set_lsn(journal.append(&[&[PUT], &page, &len, &[tag], key, value]));
    }

    /// Handles the change of a leaf that the journal's user logs itself. `refers`: the change puts or removes a
    /// reference to an overflow page.
    fn covered(self, leaf: &mut Exclusive<'_>, end: u64, refers: bool) {
        if refers { self.images([leaf]) } else { leaf.set_lsn(end) }
    }

    /// Logs that a key was removed from a leaf. `freed` is the first overflow page of its value, or 0.
    pub fn remove(self, leaf: &mut Exclusive<'_>, key: &[u8], freed: u64) {
        let Some(journal) = self.0 else { return };
        if let Some(end) = journal.covered_by() {
            return self.covered(leaf, end, freed != 0);
        }
        let page = leaf.page().0.to_le_bytes();
        leaf.set_lsn(journal.append(&[&[REMOVE], &page, key]));
    }

    /// Logs the new content of all pages, as one record.
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

/// Repeats a logged change on every page that does not have it yet. `lsn` is the number of the record.
///
/// The caller repeats the records in log order. The pool must be open for recovery, and no other thread may use it yet.
/// The first record to repeat is the first one after the last checkpoint (`Pool::sync`). An earlier checkpoint is
/// correct too, even if the pool was closed in between. Fails if a record is malformed or does not match its page.
pub fn redo(pool: &Pool, lsn: u64, record: &[u8]) -> Result<()> {
    let malformed = || Error::Record { lsn };
    let payload = pool.page_size().payload();
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
                    NewValue::Overflow(reference as u64, (reference >> 64) as u64)
                }
                _ => return Err(malformed()),
            };
            if key.len() > max_key(pool.page_size()) {
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
        IMAGES if rest.len().is_multiple_of(8 + payload) => {
            for image in rest.chunks_exact(8 + payload) {
                let (page, content) = image.split_first_chunk::<8>().ok_or_else(malformed)?;
                redo_page(pool, lsn, *page, |page| {
                    page.write(0, content);
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
