//! Pools for their users: one process makes a pool for a group of files, and every process with the access key can join it (paper
//! 4.2.3).

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::inbox::{Command, Founding, Terms};
use super::{Opened, Service, Shared, Side};
use crate::board::Board;
use crate::extents::Extents;
use crate::limits::{MAX_FRAMES, POOL_SPARE_FRAMES, SPARE_FRAMES};
use crate::memory::{FRAME, Frames};
use crate::plan::{Pending, Plan, Range};
use crate::remote;
use crate::scan::check_pool_pages_held;
use crate::source::{File, Identity, Source};
use crate::worker::{Cancelled, Channel, Link};
use crate::{Error, Result};

/// Number of entries of a member's board, which is the maximum number of chunks that are ready for it.
const SLOTS: usize = 64;

/// The key by which a worker joins a pool. It cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessKey([u8; 16]);

impl AccessKey {
    /// The key as bytes, to send it to another process in private. A process that has them and can read the pool's files may
    /// join.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Makes the key from its bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    fn new() -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Error::system("making an access key"))?;
        Ok(Self(bytes))
    }
}

impl std::fmt::Debug for AccessKey {
    /// Hides the key, because a reader of logs must not be able to join.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AccessKey")
    }
}

/// The state of a pool that its handles need.
struct Known {
    id: usize,
    frames: Weak<Frames>,
    chunks: u64,
    bytes: u64,
    direct: Vec<std::result::Result<(), Errno>>,
    files: Vec<Identity>,
    terms: Terms,
    /// The files, if they are not watched. Members in this process judge their pages by them.
    judged: Vec<File>,
    /// The files' paths, for members in other processes.
    names: Vec<Vec<u8>>,
}

/// The pools of a service, by their keys.
#[derive(Default)]
pub struct Registry(Mutex<HashMap<AccessKey, Known>>);

impl Registry {
    fn pools(&self) -> MutexGuard<'_, HashMap<AccessKey, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pool of frames for a group of files. After it is dropped, no other worker can join. Its workers continue.
pub struct Pool {
    key: AccessKey,
    memory_bytes: usize,
    _founded: Keeper,
}

/// The object whose end ends the pool.
enum Keeper {
    Here { _founded: Founded },
    Daemon { _founded: remote::Founded },
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("memory_bytes", &self.memory_bytes).finish_non_exhaustive()
    }
}

impl Pool {
    /// The key by which workers join.
    pub fn key(&self) -> AccessKey {
        self.key
    }

    /// The memory of the pool in bytes. The pool has all of it from the beginning.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

/// A pool of a service in this process. After it is dropped, no worker can join.
pub(crate) struct Founded {
    shared: Arc<Shared>,
    frames: Arc<Frames>,
    id: usize,
    pub key: AccessKey,
}

impl Founded {
    /// The memory of its frames.
    pub fn memory_bytes(&self) -> usize {
        self.frames.count() * FRAME
    }
}

impl Drop for Founded {
    fn drop(&mut self) {
        if self.shared.check_process().is_ok() {
            self.shared.pools.pools().remove(&self.key);
            self.shared.tell(Command::Dissolve(self.id));
        }
    }
}

/// The options of a pool that [`Service::make_pool`] makes.
#[derive(Debug)]
pub struct PoolOptions {
    sources: Vec<Source>,
    memory_bytes: usize,
    terms: Terms,
}

impl PoolOptions {
    /// A pool for all of these files, with 64 MiB.
    pub fn of<S: Into<Source>>(sources: impl IntoIterator<Item = S>) -> Self {
        let terms = Terms { is_watched: true, pages_held: 1 };
        Self { sources: sources.into_iter().map(Into::into).collect(), memory_bytes: 64 << 20, terms }
    }

    /// Sets the amount of memory: 16 MiB to 1 GiB. [`Service::make_pool`] checks whether it is enough.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// The same as [`Scan::unwatched`](crate::Scan::unwatched), for all members. Each member judges its own pages.
    #[must_use]
    pub fn unwatched(mut self) -> Self {
        self.terms.is_watched = false;
        self
    }

    /// Sets the number of pages that each worker may hold at a time; 1 by default. The pool's memory must have as many frames of
    /// 2 MiB for each worker, and three more.
    ///
    /// # Errors
    /// The number is 0, or more than [`MAX_POOL_PAGES_HELD`](crate::MAX_POOL_PAGES_HELD).
    pub fn pages_held(mut self, pages: usize) -> Result<Self> {
        check_pool_pages_held(pages)?;
        self.terms.pages_held = pages;
        Ok(self)
    }
}

impl Service {
    /// Makes a pool for the workers that scan all of these files. It has `memory_bytes` of frames, and each worker may hold one.
    /// 64 MiB are enough for 29 workers.
    ///
    /// # Errors
    /// A file cannot be opened, there is no memory, or `memory_bytes` is less than 16 MiB or more than 1 GiB.
    pub fn create_pool<S: Into<Source>>(
        &self,
        sources: impl IntoIterator<Item = S>,
        memory_bytes: usize,
    ) -> Result<Pool> {
        self.make_pool(PoolOptions::of(sources).memory_bytes(memory_bytes))
    }

    /// Makes a pool with these options.
    ///
    /// # Errors
    /// The same as those of [`create_pool`](Self::create_pool). Also, there is not enough memory for the pages that one worker
    /// may hold.
    pub fn make_pool(&self, options: PoolOptions) -> Result<Pool> {
        let PoolOptions { sources, memory_bytes, terms } = options;
        check_memory(memory_bytes, terms)?;
        match &self.side {
            Side::Here(shared) => {
                let files = sources.iter().map(File::open).collect::<Result<Vec<_>>>()?;
                // These are for workers that join through a daemon that serves this.
                let names = sources.iter().map(Source::name).collect();
                let founded = shared.found(files, names, memory_bytes, terms)?;
                let (key, memory_bytes) = (founded.key, founded.memory_bytes());
                Ok(Pool { key, memory_bytes, _founded: Keeper::Here { _founded: founded } })
            }
            Side::Daemon(remote) => {
                let founded = remote.found(&sources, memory_bytes, terms)?;
                let (key, memory_bytes) = (founded.key, founded.memory_bytes);
                Ok(Pool { key, memory_bytes, _founded: Keeper::Daemon { _founded: founded } })
            }
        }
    }

    /// Joins a pool. The channel delivers every page of its files once, in the pool's order, beginning with pages that are
    /// already in memory. A page never crosses a multiple of `page_size` in its file.
    ///
    /// # Errors
    /// No pool has this key, the page size is invalid (see [`Scan::page_size`](crate::Scan::page_size)), or there are too many
    /// workers for the pool's memory. With a daemon, also: this process cannot open the pool's files.
    pub fn join(&self, key: AccessKey, page_size: usize) -> Result<Channel> {
        match &self.side {
            Side::Here(shared) => shared.join(key, page_size, None)?.channel(),
            Side::Daemon(remote) => remote.join(key, None, page_size),
        }
    }

    /// The same as [`join`](Self::join), with files that this process names itself, in the pool's order, or has open. It is for
    /// processes in which the names of the pool's creator mean other files, or none.
    ///
    /// # Errors
    /// The same as those of [`join`](Self::join). Also, these are not the pool's files.
    pub fn join_with<S: Into<Source>>(
        &self,
        key: AccessKey,
        sources: impl IntoIterator<Item = S>,
        page_size: usize,
    ) -> Result<Channel> {
        let files =
            sources.into_iter().map(|source| File::open(&source.into())).collect::<Result<Vec<_>>>()?;
        match &self.side {
            Side::Here(shared) => shared.join(key, page_size, Some(&files))?.channel(),
            Side::Daemon(remote) => remote.join(key, Some(files), page_size),
        }
    }
}

fn check_memory(memory_bytes: usize, terms: Terms) -> Result<()> {
    if !(8 * FRAME..=MAX_FRAMES * FRAME).contains(&memory_bytes) {
        return Err(Error::Invalid(format!("a pool of {memory_bytes} bytes: 16 MiB to 1 GiB")));
    }
    check_pool_pages_held(terms.pages_held)?;
    let (frames, needed) = (memory_bytes / FRAME, terms.pages_held + POOL_SPARE_FRAMES);
    if frames < needed {
        return Err(Error::Invalid(format!(
            "a pool of {memory_bytes} bytes, whose workers may hold {} pages: it has {frames} frames of 2 MiB and needs {needed} for \
             one worker, so ask for {} bytes or hold fewer pages",
            terms.pages_held,
            needed * FRAME
        )));
    }
    Ok(())
}

/// The error for a key that is not, or no longer, valid.
pub(super) fn unknown() -> Error {
    Error::Invalid("no pool has this access key".into())
}

impl Shared {
    /// Makes a pool.
    pub(crate) fn found(
        self: &Arc<Self>,
        files: Vec<File>,
        names: Vec<Vec<u8>>,
        memory_bytes: usize,
        terms: Terms,
    ) -> Result<Founded> {
        self.check_process()?;
        check_memory(memory_bytes, terms)?;
        let frames = Arc::new(Frames::with_reserved(self.reserved_pages, memory_bytes / FRAME)?);
        let mut plan = Plan::new(&files, FRAME);
        let everything = plan.everything();
        plan.add(&everything)?;
        let chunks = plan.into_chunks();
        let count = chunks.len() as u64;
        let bytes = everything.iter().map(|range| range.end).sum();
        let direct = files.iter().map(|file| file.direct).collect();
        let identities = files.iter().map(|file| file.identity).collect();
        let judged = if terms.is_watched { Vec::new() } else { files.clone() };
        let key = AccessKey::new()?;
        let extents = Extents::of_all(&files);
        let founding = Founding { frames: frames.clone(), files, extents, chunks, terms };
        let id = self.ask(|answer| Command::Found(founding, answer))?;
        // Nothing fails from here on. The pool ends with this object.
        let founded = Founded { shared: self.clone(), frames, id, key };
        let frames = Arc::downgrade(&founded.frames);
        let known =
            Known { id, frames, chunks: count, bytes, direct, files: identities, terms, judged, names };
        self.pools.pools().insert(founded.key, known);
        Ok(founded)
    }

    /// The names of a pool's files, as its creator gave them.
    pub(crate) fn names(&self, key: AccessKey) -> Result<Vec<Vec<u8>>> {
        self.check_process()?;
        self.pools.pools().get(&key).map(|known| known.names.clone()).ok_or_else(unknown)
    }

    /// Joins a pool. With a proof, only a process that has opened the pool's own files can join.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: AccessKey,
        page_size: usize,
        proof: Option<&[File]>,
    ) -> Result<Opened> {
        self.check_process()?;
        let page_size = crate::Scan::of::<Source>([]).page_size(page_size)?.page_size;
        let (pool, frames, chunks, bytes, direct, terms, files) = {
            let pools = self.pools.pools();
            let known = pools.get(&key).ok_or_else(unknown)?;
            if proof
                .is_some_and(|proof| !proof.iter().map(|file| file.identity).eq(known.files.iter().copied()))
            {
                return Err(Error::Invalid(
                    "the files that were opened are not the pool's: they were replaced, or names mean other files here"
                        .into(),
                ));
            }
            let frames = known.frames.upgrade().ok_or_else(unknown)?;
            let (direct, files) = (known.direct.clone(), known.judged.clone());
            (known.id, frames, known.chunks, known.bytes, direct, known.terms, files)
        };
        let board = Arc::new(Board::new(SLOTS.max(terms.pages_held + SPARE_FRAMES), self.clock)?);
        board.service().total.store(chunks, Release);
        board.service().total_bytes.store(bytes, Release);
        let member = self.ask(|answer| Command::Join(pool, board.clone(), answer))?;
        let link = Box::new(Membership { shared: self.clone(), pool, member });
        let pending = Pending::default();
        Ok(Opened { board, frames, link, pending, direct, in_order: false, page_size, terms, files })
    }
}

/// A member's connection to its pool.
struct Membership {
    shared: Arc<Shared>,
    pool: usize,
    member: usize,
}

impl Link for Membership {
    fn notify_ranges(&self, _: &[Range]) -> Result<()> {
        Err(Error::Invalid("a pool is for scans of whole files".into()))
    }

    fn cancel_ranges(&self, _: &[Range]) -> Result<Cancelled> {
        Err(Error::Invalid("a pool is for scans of whole files: nothing of it can be cancelled".into()))
    }

    fn descriptor(&self, board: &Board) -> Result<OwnedFd> {
        board.descriptor()
    }

    fn is_alive(&self) -> bool {
        self.shared.is_alive()
    }

    fn ring(&self) {
        self.shared.inbox.bell.ring();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.tell(Command::Leave(self.pool, self.member));
    }
}
