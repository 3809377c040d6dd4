//! The cache of a service: readers of any process share ranges of files, in any order. The service reads them past the page
//! cache.
//!
//! A [channel](crate::Channel) delivers every page once, to a worker that takes pages in the order of arrival. A reader of the
//! cache names the ranges that it wants, so the cache suits programs that read by offset. Readers that want the same bytes within
//! a short time share one read.
//!
//! # The rule
//! A cached file is one *version* of a file: its content from the moment at which the cache takes its stamp. All reads of the
//! cached file begin after that moment. Suppose that a reader finds the same stamp later. Then no process wrote in between, and
//! every range that the reader holds equals the result of a read at that later moment ([`FileVersion::is_current`]).
//!
//! Two kinds of writes stamp the file when they begin, but change it later, possibly during a direct read. They are writes past
//! the page cache, and the first store to a page that is mapped from the file. So the cache takes a version only of a file that
//! has not changed for a while ([`SETTLING_TIME`](crate::SETTLING_TIME)). A file that has changed gets another cached file beside
//! the old one. The old one ends with its last reader.
//!
//! # Threads and locks
//! One thread reads for all cached files ([`control`]). A second thread makes their memory ([`maker`]). Both start with the first
//! reader and end with the service.
//!
//! One lock ([`Cache::state`]) guards the tables of all files. A thread must hold it only briefly, and must not read files, or
//! make or free memory, while it holds it. The cache delivers under the lock, so that deliveries arrive in the order of the
//! decisions. A [`Recipient`] must not wait and must not take a lock of the cache. The cache wakes tasks after it has released
//! the lock, because a waker runs foreign code.

mod control;
mod maker;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;

use crate::engine::{Bell, Choice};
use crate::limits::{FRAMES_PER_SEGMENT, IDLE_TIME, MAX_RANGES_HELD, MAX_SEGMENTS};
use crate::memory::{FRAME, Segment};
use crate::source::{File, FileVersion, Stamp};
use crate::{Error, Result};
use table::{Actions, Delivery, Load, Table, frames_of, unit_of};
pub use table::{Span, Ticket};

/// The result of a fetch.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The reader's number for the fetch.
    pub fetch: u32,
    /// The place of the range, or the error of the read.
    pub place: std::result::Result<Place, Errno>,
}

/// The place of a range in memory.
#[derive(Clone, Debug)]
pub struct Place {
    /// The number of the segment in the cached file's memory.
    pub number: u32,
    pub segment: Arc<Segment>,
    /// Offset of the range in the segment, in bytes.
    pub at: usize,
}

/// The receiver of the results of a reader's fetches.
pub trait Recipient: Send {
    /// Receives the result of a fetch. It must not wait. It returns a waker if a task waits for the result; the cache wakes that
    /// task later.
    fn arrive(&mut self, arrival: Arrival) -> Option<Waker>;
}

/// A charge for some bytes of memory. Dropping it returns these bytes to the budget.
pub type Charge = Box<dyn Send>;

/// The options of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub choice: Choice,
    pub reserved_pages: bool,
    /// Minimum age of a file's last change; the cache refuses younger files.
    pub settling_time: Duration,
}

/// The cache of a service.
pub struct Cache {
    state: Mutex<State>,
    /// The maker waits on it for a frame to make.
    to_make: Condvar,
    bell: Arc<Bell>,
    options: Options,
    add_bytes: Box<dyn Fn(u64) + Send + Sync>,
}

#[derive(Default)]
struct State {
    files: HashMap<u64, CachedFile>,
    recipients: HashMap<u64, Box<dyn Recipient>>,
    /// Reads for the control thread to start, each with the number of its cached file.
    loads: Vec<(u64, Load)>,
    /// Tasks to wake after the lock is released.
    wakers: Vec<Waker>,
    /// The charge for the segment that is kept ready. `None`: the cache keeps no segment ready.
    ready_charge: Option<Charge>,
    /// Time that the latest frame took to make.
    frame_time: Duration,
    /// The segment that is kept ready. No reader has seen it. The next file takes it, with the frames that it has.
    ready: Option<Arc<Segment>>,
    next: u64,
    is_over: bool,
}

struct CachedFile {
    version: FileVersion,
    /// Reads begin and end at multiples of this number of bytes.
    unit: u32,
    /// The open file; `None` while the file has no readers. The cache closes such a file so that its file system can be
    /// unmounted, and so that a deletion frees its space.
    descriptor: Option<Arc<OwnedFd>>,
    table: Table,
    /// The segments in which at least one frame exists.
    segments: Vec<Arc<Segment>>,
    /// One charge for each segment that the file may have.
    charges: Vec<Charge>,
    /// The time when the last reader detached, if no reader is attached.
    idle_since: Option<Instant>,
}

/// Ends the cache when one of its threads ends, even by a panic. Readers then learn that nothing more arrives.
struct Over(Arc<Cache>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A reader's registration at the cache. Dropping it detaches the reader.
pub struct Attached {
    pub cache: Arc<Cache>,
    /// The cached file, and the reader's number.
    file: u64,
    reader: u64,
    pub version: FileVersion,
    /// Reads begin and end at multiples of this number of bytes.
    pub unit: u32,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Cache {
    /// Starts a cache and its two threads.
    pub fn start(
        options: Options,
        add_bytes: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<(Arc<Self>, [std::thread::JoinHandle<()>; 2])> {
        let cache = Arc::new(Self {
            state: Mutex::default(),
            to_make: Condvar::new(),
            bell: Arc::new(Bell::new()?),
            options,
            add_bytes: Box::new(add_bytes),
        });
        let control = control::start(cache.clone(), options.choice)?;
        match maker::start(cache.clone()) {
            Ok(maker) => Ok((cache, [control, maker])),
            Err(error) => {
                cache.stop();
                let _ = control.join();
                Err(error)
            }
        }
    }

    /// Makes the cache keep a segment ready for the next new file. `charge` counts its memory.
    pub fn keep_ready(&self, charge: Charge) {
        self.state().ready_charge = Some(charge);
        self.to_make.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the cache: tells its threads to end, and its readers that nothing more arrives.
    pub fn stop(&self) {
        self.end();
        self.bell.ring();
    }

    /// Marks the cache as ended. Readers that wait learn that nothing more arrives.
    fn end(&self) {
        let recipients = {
            let mut state = self.state();
            state.is_over = true;
            std::mem::take(&mut state.recipients)
        };
        self.to_make.notify_one();
        // Dropping the recipients wakes tasks, so the lock must not be held here.
        drop(recipients);
    }

    /// Releases the lock, then wakes the tasks whose fetches have arrived.
    fn release_and_wake(mut state: MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for waker in wakers {
            // A waker that panics must not end the cache for all readers.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
        }
    }

    /// Attaches a reader to a file. `charge` counts the memory that the cache makes for it.
    ///
    /// # Errors
    /// The cache returns an error in these cases:
    /// - It cannot read the file past the page cache.
    /// - The file's stamps prove nothing, or the file changed too recently.
    /// - The file has the maximum number of readers.
    /// - There is not enough memory.
    /// - The cache has ended.
    pub fn attach(
        self: &Arc<Self>,
        file: File,
        charge: &dyn Fn(u64) -> Result<Charge>,
        recipient: Box<dyn Recipient>,
    ) -> Result<Attached> {
        let stamp = settled_stamp(&file, self.options.settling_time)?;
        let mut state = self.state();
        if state.is_over {
            return Err(Error::Gone);
        }
        let id = state.find_or_add(&file, stamp);
        let mut allowed = state.allow_one_reader_more(id, charge);
        if allowed.is_err() && state.drop_unread(id) {
            allowed = state.allow_one_reader_more(id, charge);
        }
        if let Err(error) = allowed {
            // The control thread then checks when it can drop the files without readers.
            self.bell.ring();
            return Err(error);
        }
        let cached = state.files.get_mut(&id).expect("it was found");
        cached.idle_since = None;
        let (unit, version) = (cached.unit, cached.version);
        cached.descriptor.get_or_insert_with(|| file.descriptor().clone());
        state.next += 1;
        let reader = state.next;
        state.files.get_mut(&id).expect("it was found").table.attach(reader);
        state.recipients.insert(reader, recipient);
        self.give_ready(&mut state, id);
        Self::release_and_wake(state);
        // The maker makes another segment to keep ready.
        self.to_make.notify_one();
        Ok(Attached { cache: self.clone(), file: id, reader, version, unit })
    }

    /// Gives the ready segment to a file that has no memory. Other readers of the file may already wait for its first frame.
    fn give_ready(&self, state: &mut State, file: u64) {
        let Some(cached) = state.files.get_mut(&file).filter(|cached| cached.segments.is_empty()) else {
            return;
        };
        let Some(segment) = state.ready.take() else { return };
        let made = segment.made();
        cached.segments.push(segment);
        for _ in 0..made {
            let cached = state.files.get_mut(&file).expect("it was found");
            let actions = cached.table.add_frame(state.frame_time);
            self.perform(state, file, actions);
        }
    }

    /// Carries out the actions that a table has decided on.
    fn perform(&self, state: &mut State, file: u64, actions: Actions) {
        if !actions.loads.is_empty() {
            state.loads.extend(actions.loads.into_iter().map(|load| (file, load)));
            self.bell.ring();
        }
        let Some(cached) = state.files.get(&file) else { return };
        if cached.table.frame_to_make().is_some() {
            self.to_make.notify_one();
        }
        for Delivery { ticket, place } in actions.deliveries {
            let Some(recipient) = state.recipients.get_mut(&ticket.reader) else { continue };
            let place = place.map(|(frame, at)| {
                let number = frame as usize / FRAMES_PER_SEGMENT;
                let at = frame as usize % FRAMES_PER_SEGMENT * FRAME + at;
                Place { number: number as u32, segment: cached.segments[number].clone(), at }
            });
            let waker = recipient.arrive(Arrival { fetch: ticket.fetch, place });
            state.wakers.extend(waker);
        }
    }
}

impl State {
    /// Returns the cached file for a version of a file, and adds it if there is none.
    fn find_or_add(&mut self, file: &File, stamp: Stamp) -> u64 {
        let version = FileVersion::new(file.identity, stamp);
        if let Some((id, _)) = self.files.iter().find(|(_, cached)| cached.version == version) {
            return *id;
        }
        self.next += 1;
        let cached = CachedFile {
            version,
            unit: unit_of(file.unit),
            descriptor: None,
            table: Table::new(file.size, unit_of(file.unit)),
            segments: Vec::new(),
            charges: Vec::new(),
            idle_since: Some(Instant::now()),
        };
        self.files.insert(self.next, cached);
        self.next
    }

    /// See [`CachedFile::allow_one_reader_more`].
    fn allow_one_reader_more(&mut self, file: u64, charge: &dyn Fn(u64) -> Result<Charge>) -> Result<()> {
        self.files.get_mut(&file).expect("it was found").allow_one_reader_more(charge)
    }

    /// Drops all files without readers except `but`, even if they have not been idle for long, because another file needs their
    /// memory. Returns whether it has dropped any.
    fn drop_unread(&mut self, but: u64) -> bool {
        let before = self.files.len();
        let is_kept = |id: u64, cached: &CachedFile| {
            id == but || cached.table.readers() > 0 || !cached.table.is_at_rest()
        };
        self.files.retain(|id, cached| is_kept(*id, cached));
        self.files.len() < before
    }

    /// Returns whether the segment that is kept ready lacks frames.
    fn is_ready_missing(&self) -> bool {
        let made = self.ready.as_ref().map_or(0, |segment| segment.made());
        self.ready_charge.is_some() && made < FRAMES_PER_SEGMENT
    }
}

impl CachedFile {
    /// Charges for the memory that the file may have with one more reader. The maker makes the memory when the file needs it.
    ///
    /// # Errors
    /// There is not enough memory, or the file has the maximum number of readers.
    fn allow_one_reader_more(&mut self, charge: &dyn Fn(u64) -> Result<Charge>) -> Result<()> {
        let readers = self.table.readers() + 1;
        let needed = segments_for(readers);
        if needed > MAX_SEGMENTS {
            return Err(Error::Refused(format!(
                "the file has {} readers, as many as share {MAX_SEGMENTS} segments of memory",
                readers - 1
            )));
        }
        let bytes = (FRAMES_PER_SEGMENT * FRAME) as u64;
        let whole = (frames_of(self.version.size()) as usize).div_ceil(FRAMES_PER_SEGMENT);
        while self.charges.len() < needed.max(spare_segments_for(readers).min(whole)) {
            match charge(bytes) {
                Ok(charge) => self.charges.push(charge),
                Err(error) if self.charges.len() < needed => return Err(error),
                Err(_) => break,
            }
        }
        self.table.allow_frames((self.charges.len() * FRAMES_PER_SEGMENT) as u32);
        Ok(())
    }
}

/// Number of segments that `readers` readers need. They hold the frames of one reader more than there are, so that one frame is
/// always available.
fn segments_for(readers: usize) -> usize {
    ((readers + 1) * MAX_RANGES_HELD).div_ceil(FRAMES_PER_SEGMENT)
}

/// Number of segments that `readers` readers may have if memory is available and the file is long enough. Several readers may
/// have twice as many segments as they need. Ranges that one of them has read then stay in memory for readers that are behind it.
fn spare_segments_for(readers: usize) -> usize {
    let needed = segments_for(readers);
    if readers == 1 { needed } else { (2 * needed).min(MAX_SEGMENTS) }
}

/// Returns the stamp of a file, or an error if the file cannot be cached.
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

    /// Fetches a range. The reader's recipient receives the result.
    ///
    /// # Errors
    /// The table refuses the fetch ([`Table::fetch`]), or the cache has ended.
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

    /// Releases a range, or abandons a fetch. The reader must not release a failed fetch, because it holds nothing.
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
        // The control thread then checks when it can drop the idle file.
        self.cache.bell.ring();
    }
}

/// Time until the cache drops a file that has been idle since `since`.
fn idle_left(since: Instant) -> Duration {
    IDLE_TIME.saturating_sub(since.elapsed())
}
