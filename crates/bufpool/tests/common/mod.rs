//! Pools for tests, and pages whose content tells where and when it was written.
#![allow(dead_code, reason = "every test uses some of it")]

use bedplate_bufpool::{Builder, Choice, Kind, PAGE, PAYLOAD, PageId, Pool};
use tempfile::TempDir;

/// Whether this runs in a virtual machine, where there is a ring 0.
pub fn in_guest() -> bool {
    std::env::var_os(bedplate_vm::MARK).is_some()
}

/// How much a test does that is as long as it is made: less where the processor is software, which is some hundred times
/// slower.
pub fn scaled(natively: usize) -> usize {
    if in_guest() { natively / 8 } else { natively }
}

/// Every engine that works here.
pub fn kinds() -> impl Iterator<Item = Kind> {
    let ring0 = in_guest().then_some(Kind::Ring0);
    ring0.into_iter().chain([Kind::Stock, Kind::Vmcache, Kind::Hashtable])
}

/// In a virtual machine only the engine that works nowhere else: of what takes long, and is the others' natively.
pub fn kinds_of_here() -> impl Iterator<Item = Kind> {
    kinds().take(if in_guest() { 1 } else { usize::MAX })
}

/// A pool of that many pages in memory, of which none is there, the folder of its file, and so many pages that it has in
/// storage, of version 3.
pub fn stored(kind: Kind, frames: usize, pages: usize) -> (Pool, TempDir, Vec<PageId>) {
    let (pool, folder) = pool(kind, frames);
    let fresh = |_| {
        let mut page = pool.allocate().unwrap();
        let id = page.page();
        fill(&mut page, id.0, 3);
        id
    };
    let ids = (0..pages).map(fresh).collect();
    pool.close().unwrap();
    drop(pool);
    (builder(&folder, kind, frames).open().unwrap(), folder, ids)
}

/// A pool of that many pages in memory, and the folder of its file.
pub fn pool(kind: Kind, frames: usize) -> (Pool, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let pool = builder(&folder, kind, frames).open().unwrap();
    (pool, folder)
}

pub fn builder(folder: &TempDir, kind: Kind, frames: usize) -> Builder {
    Pool::builder(folder.path().join("pool"))
        .memory(frames * PAGE)
        .capacity(1 << 30)
        .engine(Choice::Only(kind))
}

/// Fills a payload with what only this page has at this version.
pub fn fill(payload: &mut [u8; PAYLOAD], page: u64, version: u64) {
    for (index, word) in payload.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&stamp(page, version, index as u64).to_le_bytes());
    }
}

/// The version of a payload that `fill` filled; panics if it is of another page, or of several versions.
pub fn version(payload: &[u8; PAYLOAD], page: u64) -> u64 {
    let word = |index: usize| u64::from_le_bytes(*payload[index * 8..].first_chunk().unwrap());
    let version = word(0) ^ stamp(page, 0, 0);
    for index in 0..PAYLOAD / 8 {
        assert_eq!(word(index), stamp(page, version, index as u64), "page {page}, word {index}");
    }
    version
}

fn stamp(page: u64, version: u64, index: u64) -> u64 {
    version ^ (page << 40) ^ (index << 24)
}
