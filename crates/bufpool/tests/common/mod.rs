//! Pools for tests, and pages whose content tells where and when it was written.
#![allow(dead_code, reason = "every test uses some of it")]

use bedplate_bufpool::{Builder, Choice, Exclusive, Kind, PAGE, PageId, PageSize, Pool};
use tempfile::TempDir;

/// Whether this runs in a virtual machine, which has a ring 0.
pub fn in_guest() -> bool {
    std::env::var_os(bedplate_vm::MARK).is_some()
}

/// Reduces the number of repetitions of a test, because a software processor is some hundred times slower.
pub fn scaled(natively: usize) -> usize {
    if in_guest() { natively / 8 } else { natively }
}

/// The page sizes of tests that run with several: the smallest, the largest, and one between them.
pub fn page_sizes() -> [PageSize; 3] {
    [4096, 16384, 65536].map(|bytes| PageSize::new(bytes).unwrap())
}

/// The engine in ring 0, if the tests are built with it.
#[cfg(feature = "ring0")]
pub const RING0: Option<Kind> = Some(Kind::Ring0);
#[cfg(not(feature = "ring0"))]
pub const RING0: Option<Kind> = None;

/// Whether an engine has pages of this size.
pub fn has_size(kind: Kind, size: PageSize) -> bool {
    Some(kind) != RING0 || size == PageSize::MIN
}

/// Every engine that the tests are built with and that works here. In a virtual machine, the first one is the engine in
/// ring 0.
pub fn kinds() -> impl Iterator<Item = Kind> {
    RING0.filter(|_| in_guest()).into_iter().chain([
        Kind::Array,
        Kind::Stock,
        #[cfg(feature = "bench")]
        Kind::Vmcache,
        Kind::Hashtable,
    ])
}

/// The engines for tests that take long. In a virtual machine, only the engine that works nowhere else.
pub fn kinds_of_here() -> impl Iterator<Item = Kind> {
    kinds().take(if in_guest() { 1 } else { usize::MAX })
}

/// The engine of tests that need only one: in a virtual machine, the one that works nowhere else.
pub fn kind_of_here() -> Kind {
    RING0.filter(|_| in_guest()).unwrap_or(Kind::Stock)
}

/// A pool with this number of frames, none of them in use, the folder of its file, and pages in storage of version 3.
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

/// A pool with this number of frames, and the folder of its file.
pub fn pool(kind: Kind, frames: usize) -> (Pool, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let pool = builder(&folder, kind, frames).open().unwrap();
    (pool, folder)
}

pub fn builder(folder: &TempDir, kind: Kind, frames: usize) -> Builder {
    builder_for(folder, kind, frames, PageSize::MIN)
}

/// A builder of a pool that has room for this number of pages of this size. It does not set the size.
pub fn builder_for(folder: &TempDir, kind: Kind, frames: usize, size: PageSize) -> Builder {
    Pool::builder(folder.path().join("pool"))
        .memory(frames * size.bytes())
        .capacity((1 << 30) / PAGE as u64 * size.bytes() as u64)
        .engine(Choice::Only(kind))
}

/// Fills a payload with content that only this page has at this version.
pub fn fill(exclusive: &mut Exclusive<'_>, page: u64, version: u64) {
    let mut content = vec![0; exclusive.len()];
    for (index, word) in content.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&stamp(page, version, index as u64).to_le_bytes());
    }
    exclusive.write(0, &content);
}

/// Allocates pages of version 1 and makes them durable.
pub fn allocate(pool: &Pool, count: usize) -> Vec<PageId> {
    let fresh = |_| {
        let mut page = pool.allocate().unwrap();
        let id = page.page();
        fill(&mut page, id.0, 1);
        id
    };
    let ids = (0..count).map(fresh).collect();
    pool.sync().unwrap();
    ids
}

/// Changes pages to a version.
pub fn write(pool: &Pool, pages: &[PageId], version: u64) {
    for page in pages {
        fill(&mut pool.pin_exclusive(*page).unwrap(), page.0, version);
    }
}

/// The version that a page has in the pool.
pub fn stored_version(pool: &Pool, page: PageId) -> u64 {
    version(&pool.pin_shared(page).unwrap(), page.0)
}

/// The version of a payload that `fill` filled. Panics if it belongs to another page, or has several versions.
pub fn version(payload: &[u8], page: u64) -> u64 {
    let word = |index: usize| u64::from_le_bytes(*payload[index * 8..].first_chunk().unwrap());
    let version = word(0) ^ stamp(page, 0, 0);
    for index in 0..payload.len() / 8 {
        assert_eq!(word(index), stamp(page, version, index as u64), "page {page}, word {index}");
    }
    version
}

/// Word `index` of a payload that [`fill`] filled.
pub fn stamp(page: u64, version: u64, index: u64) -> u64 {
    version ^ (page << 40) ^ (index << 24)
}
