//! The cache of a service: ranges of files, read past the page cache, which readers in any order and of any process share.
//!
//! A [channel](crate::Channel) hands out every page once, to a worker that takes pages as they come. A reader of the cache names the
//! ranges that it wants, so it suits programs that read by offset. Two readers that want the same range within a short time
//! share one read.
//!
//! # The rule
//! A cached file is one *version* of a file: what it is from the moment at which the cache takes its stamp. All of its reads
//! begin after that moment. So a reader that finds the same stamp later knows that nobody wrote in between, and that every range
//! that it holds is what a read at that later moment returns ([`FileVersion::is_current`]). Two kinds of writes stamp the file when
//! they begin and change it afterwards, at times beside a direct read: writes past the page cache, and the first store to a page
//! that is mapped from the file. So a version is taken only of a file that has not been changed for a while
//! ([`SETTLING_TIME`](crate::SETTLING_TIME)).
//! A file that has changed gets another cached file, beside the old one, which ends with its last reader.
//!
//! # Threads and locks
//! One thread reads for all cached files ([`control`]). It begins with the first reader and ends with the service. One lock
//! ([`Cache::state`]) guards the tables of all files; it is held for moments, while nothing is read and no memory is made. Deliveries
//! are made under the lock, so that they arrive in the order of the decisions; a [`Recipient`] does not wait and takes no lock of
//! the cache. Tasks are woken after the lock was released, because a waker runs code of others.

mod control;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;

use crate::engine::{Bell, Choice};
use crate::limits::{FRAMES_PER_SEGMENT, IDLE_TIME, MAX_RANGES_HELD, MAX_SEGMENTS};
use crate::memory::Frames;
use crate::source::{File, FileVersion, Stamp};
use crate::{Error, Result};
use table::{Actions, Delivery, Load, Table};
pub use table::{Span, Ticket};

/// What a fetch has come to.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The reader's number of the fetch.
    pub fetch: u32,
    /// Where the range is, or the error of the read.
    pub place: std::result::Result<Place, Errno>,
}

/// Where a range is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Which part of the cached file's memory.
    pub segment: u32,
    /// The part.
    pub frames: Arc<Frames>,
    /// Where in the part the range begins.
    pub at: usize,
}

/// Who hears of a reader's fetches.
pub trait Recipient: Send {
    /// A fetch is complete. This must not wait. The cache wakes the task that it returns.
    fn arrive(&mut self, arrival: Arrival) -> Option<Waker>;
}

/// Bytes of memory that are counted for somebody, until it is dropped.
pub type Charge = Box<dyn Send>;

/// How a cache is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub choice: Choice,
    pub reserved_pages: bool,
    /// How long a file must not have been changed before it is cached.
    pub settling_time: Duration,
}

/// The cache of a service.
pub struct Cache {
    /// Taken before `state`.
    making: Mutex<()>,
    state: Mutex<State>,
    bell: Arc<Bell>,
    options: Options,
    add_bytes: Box<dyn Fn(u64) + Send + Sync>,
}

#[derive(Default)]
struct State {
    files: HashMap<u64, CachedFile>,
    recipients: HashMap<u64, Box<dyn Recipient>>,
    /// Reads that are to be started: the file, and which.
    loads: Vec<(u64, Load)>,
    /// Tasks that are to be woken when the lock is released.
    wakers: Vec<Waker>,
    next: u64,
    is_over: bool,
}

struct CachedFile {
    version: FileVersion,
    /// Reads are multiples of it.
    unit: u32,
    /// Nobody has the file open without readers, so that its file system can be unmounted and its space is free when it is deleted.
    descriptor: Option<Arc<OwnedFd>>,
    table: Table,
    segments: Vec<Arc<Frames>>,
    /// Count the segments.
    charges: Vec<Charge>,
    /// When the last reader ended, if none is left.
    idle_since: Option<Instant>,
}

/// What a reader begins with.
pub struct Attached {
    pub cache: Arc<Cache>,
    /// The cached file, and the reader's number.
    file: u64,
    reader: u64,
    pub version: FileVersion,
    /// Reads are multiples of it.
    pub unit: u32,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Cache {
    /// Starts a cache, and its thread.
    pub fn start(
        options: Options,
        add_bytes: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<(Arc<Self>, std::thread::JoinHandle<()>)> {
        let cache = Arc::new(Self {
            making: Mutex::default(),
            state: Mutex::default(),
            bell: Arc::new(Bell::new()?),
            options,
            add_bytes: Box::new(add_bytes),
        });
        let thread = control::start(cache.clone(), options.choice)?;
        Ok((cache, thread))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread to end.
    pub fn stop(&self) {
        self.end();
        self.bell.ring();
    }

    /// Nothing arrives any more; readers that wait learn that.
    fn end(&self) {
        let recipients = {
            let mut state = self.state();
            state.is_over = true;
            std::mem::take(&mut state.recipients)
        };
        // Their ends wake tasks.
        drop(recipients);
    }

    /// Releases the lock, then wakes the tasks for which something arrived.
    fn release_and_wake(mut state: MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for waker in wakers {
            // A waker that panics is not everybody's end.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
        }
    }

    /// A reader of a file begins. `charge` counts the memory that the cache makes for it.
    ///
    /// # Errors
    /// The file is not read past the page cache, its stamps prove nothing, or it was changed a moment ago; it has as many
    /// readers as it may have; there is no memory.
    pub fn attach(
        self: &Arc<Self>,
        file: File,
        charge: &dyn Fn(u64) -> Result<Charge>,
        recipient: Box<dyn Recipient>,
    ) -> Result<Attached> {
        let stamp = settled_stamp(&file, self.options.settling_time)?;
        // One at a time makes memory, so that several that begin together make no more than they need.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let mut may_spare = true;
        loop {
            let (missing, is_needed) = {
                let mut state = self.state();
                if state.is_over {
                    return Err(Error::Gone);
                }
                let id = state.find_or_add(&file, stamp);
                let cached = state.files.get_mut(&id).expect("it was found");
                let readers = cached.table.readers() + 1;
                let needed = segments_for(readers);
                if needed > MAX_SEGMENTS {
                    return Err(Error::Refused(format!(
                        "the file has {} readers, as many as share {MAX_SEGMENTS} segments of memory",
                        cached.table.readers()
                    )));
                }
                let wanted = if may_spare { spare_segments_for(readers) } else { needed };
                if cached.segments.len() >= wanted {
                    cached.idle_since = None;
                    let (unit, version) = (cached.unit, cached.version);
                    cached.descriptor.get_or_insert_with(|| file.descriptor().clone());
                    state.next += 1;
                    let reader = state.next;
                    state.files.get_mut(&id).expect("it was found").table.attach(reader);
                    state.recipients.insert(reader, recipient);
                    return Ok(Attached { cache: self.clone(), file: id, reader, version, unit });
                }
                // Found by another reader meanwhile, it is not idle for long.
                cached.idle_since = Some(Instant::now());
                (id, cached.segments.len() < needed)
            };
            let bytes = FRAMES_PER_SEGMENT * crate::FRAME;
            let made = charge(bytes as u64).and_then(|charge| {
                Ok((charge, Frames::with_reserved(self.options.reserved_pages, FRAMES_PER_SEGMENT)?))
            });
            let (charge, frames) = match made {
                Ok(made) => made,
                Err(error) if is_needed => return Err(error),
                Err(_) => {
                    may_spare = false;
                    continue;
                }
            };
            let mut state = self.state();
            if let Some(cached) = state.files.get_mut(&missing) {
                let first = (cached.segments.len() * FRAMES_PER_SEGMENT) as u32;
                cached.segments.push(Arc::new(frames));
                cached.charges.push(charge);
                let actions = cached.table.add_frames(first..first + FRAMES_PER_SEGMENT as u32);
                self.perform(&mut state, missing, actions);
            }
            Self::release_and_wake(state);
        }
    }

    /// Does what a table decided.
    fn perform(&self, state: &mut State, file: u64, actions: Actions) {
        if !actions.loads.is_empty() {
            state.loads.extend(actions.loads.into_iter().map(|load| (file, load)));
            self.bell.ring();
        }
        let Some(cached) = state.files.get(&file) else { return };
        for Delivery { ticket, span, frame } in actions.deliveries {
            let Some(recipient) = state.recipients.get_mut(&ticket.reader) else { continue };
            let place = frame.map(|frame| {
                let segment = frame as usize / FRAMES_PER_SEGMENT;
                let within = frame as usize % FRAMES_PER_SEGMENT * crate::FRAME;
                // The read begins at a multiple of the file's unit.
                let at = within + (span.start % u64::from(cached.unit)) as usize;
                Place { segment: segment as u32, frames: cached.segments[segment].clone(), at }
            });
            let waker = recipient.arrive(Arrival { fetch: ticket.fetch, place });
            state.wakers.extend(waker);
        }
    }
}

impl State {
    /// The cached file of a file's version.
    fn find_or_add(&mut self, file: &File, stamp: Stamp) -> u64 {
        let version = FileVersion::new(file.identity, stamp);
        if let Some((id, _)) = self.files.iter().find(|(_, cached)| cached.version == version) {
            return *id;
        }
        self.next += 1;
        let cached = CachedFile {
            version,
            unit: file.unit,
            descriptor: None,
            table: Table::new(file.size, file.unit.into()),
            segments: Vec::new(),
            charges: Vec::new(),
            idle_since: Some(Instant::now()),
        };
        self.files.insert(self.next, cached);
        self.next
    }
}

/// Segments that so many readers need: one reader's frames more than all readers may hold.
fn segments_for(readers: usize) -> usize {
    ((readers + 1) * MAX_RANGES_HELD).div_ceil(FRAMES_PER_SEGMENT)
}

/// Segments that so many readers have if there is memory for them: several readers have twice as many as they need, so that what one of
/// them has read is still there for those that are behind it.
fn spare_segments_for(readers: usize) -> usize {
    let needed = segments_for(readers);
    if readers == 1 { needed } else { (2 * needed).min(MAX_SEGMENTS) }
}

/// The stamp of a file that can be cached.
fn settled_stamp(file: &File, settling_time: Duration) -> Result<Stamp> {
    let refuse = |why: &str| Err(Error::Refused(format!("the file is not cached: {why}")));
    if let Err(error) = file.direct {
        return Err(Error::Refused(format!("the file is not read past the page cache: {error}")));
    }
    if !file.waits_for_writes {
        return refuse("its file system reads beside writes that are not complete");
    }
    let stamp = file.stamp_now().map_err(Error::system("looking at a file"))?;
    let Some(stamp) = stamp else { return refuse("it is a device, which has no stamps") };
    if !stamp.proves_unchanged(&stamp) {
        return refuse("equal time stamps do not prove that it is unchanged");
    }
    if stamp.size() != file.size {
        return refuse("its size has changed");
    }
    let settled = stamp.changed_at().and_then(|at| at.checked_add(settling_time));
    if settled.is_none_or(|at| at > SystemTime::now()) {
        return refuse("it was changed a moment ago");
    }
    Ok(stamp)
}

impl Attached {
    fn ticket(&self, fetch: u32) -> Ticket {
        Ticket { reader: self.reader, fetch }
    }

    /// Fetches a range: its arrival is told to the reader's recipient.
    ///
    /// # Errors
    /// As the table's; the cache has ended.
    pub fn fetch(&self, fetch: u32, span: Span) -> Result<()> {
        let mut state = self.cache.state();
        if state.is_over {
            return Err(Error::Gone);
        }
        let cached = state.files.get_mut(&self.file).ok_or(Error::Gone)?;
        let actions = cached.table.fetch(self.ticket(fetch), span)?;
        self.cache.perform(&mut state, self.file, actions);
        Cache::release_and_wake(state);
        Ok(())
    }

    /// Releases a range, or gives up waiting for it. A fetch that failed has nothing to be released.
    pub fn release(&self, fetch: u32) {
        let mut state = self.cache.state();
        let Some(cached) = state.files.get_mut(&self.file) else { return };
        if let Ok(actions) = cached.table.release(self.ticket(fetch)) {
            self.cache.perform(&mut state, self.file, actions);
        }
        Cache::release_and_wake(state);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut state = self.cache.state();
        let recipient = state.recipients.remove(&self.reader);
        if let Some(cached) = state.files.get_mut(&self.file) {
            let actions = cached.table.detach(self.reader);
            if cached.table.readers() == 0 {
                cached.idle_since = Some(Instant::now());
            }
            self.cache.perform(&mut state, self.file, actions);
        }
        Cache::release_and_wake(state);
        drop(recipient);
        // The thread looks when the file has been idle for too long.
        self.cache.bell.ring();
    }
}

/// How long until a file that has been idle since a moment is dropped.
fn idle_left(since: Instant) -> Duration {
    IDLE_TIME.saturating_sub(since.elapsed())
}
