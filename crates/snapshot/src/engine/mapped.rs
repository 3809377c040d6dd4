//! Memory files, of which a snapshot is another mapping: see [`crate::uffd`] and [`crate::remap`]. Here a region of
//! theirs becomes an engine.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fork::{Child, forking, last_error, pipe, run_and_exit};
use super::{ChildWork, Engine, Kind, Shape, Statistics, Work};
use crate::region::{Frozen, Options, Region, Service, SnapshotId};
use crate::snapshot::{Bookmark, Kept};
use crate::task::{Completion, Task};
use crate::{Error, PAGE, Snapshot, View};

/// Memories that keep track of changes.
static MEMORIES: AtomicU64 = AtomicU64::new(0);

/// An engine by a region.
pub(crate) struct Mapped<R: Region> {
    /// Shared with the tasks in this process.
    service: Arc<Service<R>>,
    /// If it keeps track of changes: what its bookmarks are known by.
    number: Option<u64>,
    in_child: bool,
    /// Bytes that are accessible. The lock is for the thread that makes more of them so.
    len: AtomicUsize,
    growth: Mutex<()>,
    /// The process that made it: its children have a copy of this that nobody serves.
    owner: u32,
}

impl<R: Region> Mapped<R> {
    pub(crate) fn new(shape: Shape) -> Result<Self, Error> {
        let most = if shape.in_child { R::CHILDREN_AT_ONCE } else { R::AT_ONCE };
        super::check_shape(R::KIND, shape, most, R::TRACKS_CHANGES)?;
        let claimed = shape.reserve == shape.bytes;
        let options = Options {
            bytes: shape.reserve,
            base: None,
            huge_pages: shape.huge_pages,
            claimed,
            track_changes: shape.track_changes,
        };
        let service = Service::new(R::new(options)?);
        service.start_threads()?;
        let len = AtomicUsize::new(if claimed { shape.bytes } else { 0 });
        let (growth, owner) = (Mutex::new(()), std::process::id());
        let number = shape.track_changes.then(|| MEMORIES.fetch_add(1, Ordering::Relaxed));
        let service = Arc::new(service);
        let mapped = Self { service, number, in_child: shape.in_child, len, growth, owner };
        if !claimed {
            mapped.grow(shape.bytes)?;
        }
        Ok(mapped)
    }

    /// In a child the locks are as they were at the fork, and nobody unlocks them.
    fn check_owner(&self) -> Result<(), Error> {
        if std::process::id() == self.owner { Ok(()) } else { Err(Error::OfASnapshot) }
    }

    fn home(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.service.base())
    }

    fn spawn_thread(&self, work: Work) -> Result<Task, Error> {
        let snapshot = self.snapshot()?;
        let (epoch, pause) = (snapshot.epoch(), snapshot.pause());
        let named = std::thread::Builder::new().name("bedplate-view".into());
        let thread = named.spawn(move || run(snapshot, work));
        let thread = thread.map_err(|error| Error::System {
            what: "starting the task's thread",
            source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        })?;
        Ok(Task::new(Box::new(Thread(thread)), epoch, pause))
    }

    fn spawn_child(&self, work: ChildWork<'_>) -> Result<Task, Error> {
        self.check_owner()?;
        let forking = forking();
        let (read, write) = pipe()?;
        let begin = Instant::now();
        let frozen = self.service.freeze()?;
        // SAFETY: nothing in between touches the region; the child runs the work and ends without returning.
        match unsafe { libc::fork() } {
            -1 => {
                let source = last_error();
                frozen.cancel();
                Err(Error::System { what: "fork", source })
            }
            0 => {
                // SAFETY: the child of the fork above.
                let mapped = unsafe { frozen.map_in_child() };
                drop((read, forking));
                let work = match mapped {
                    Ok(()) => work,
                    Err(error) => {
                        Box::new(move |_: &View<'_>| -> Vec<u8> { panic!("{error}") }) as ChildWork<'_>
                    }
                };
                // SAFETY: the child's mapping, which nobody else changes.
                let view = unsafe { View::new(self.home(), self.bytes(), self.home()) };
                run_and_exit(work, &view, &write)
            }
            pid => {
                let epoch = frozen.thaw();
                let pause = begin.elapsed();
                Ok(Task::new(Box::new(Child::new(pid, read, None)), epoch.into(), pause))
            }
        }
    }
}

impl<R: Region> Engine for Mapped<R> {
    fn kind(&self) -> Kind {
        R::KIND
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.home().cast_mut()).expect("a mapping is not at address 0")
    }

    fn bytes(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    fn grow(&self, bytes: usize) -> Result<Range<usize>, Error> {
        self.check_owner()?;
        let _growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        let len = self.bytes();
        let grown = super::grown(len, bytes, self.service.pages() * PAGE)?;
        // Nobody else claims any.
        if grown > len && !self.service.claim_exactly(len / PAGE..grown / PAGE) {
            let what = "making more of the memory accessible";
            return Err(Error::System { what, source: rustix::io::Errno::NOMEM });
        }
        self.len.store(grown, Ordering::Release);
        Ok(len..grown)
    }

    fn snapshot(&self) -> Result<Snapshot, Error> {
        self.check_owner()?;
        let id = self.service.snapshot()?;
        let epoch = u64::from(id.era) << 32 | u64::from(id.epoch);
        let bookmark = self.number.map(|memory| Bookmark { memory, epoch, bytes: id.pages * PAGE });
        let kept = Box::new(Mapping { service: self.service.clone(), id, owner: self.owner });
        let (base, bytes) = (std::ptr::with_exposed_provenance(id.base), id.pages * PAGE);
        // SAFETY: the snapshot's mapping, which `kept` keeps. It changes only if the snapshot is given up, of which `Snapshot`
        // tells.
        unsafe {
            let view = View::new(base, bytes, self.home());
            Ok(Snapshot::new(view, epoch, bookmark, Duration::from_nanos(id.pause_ns), kept))
        }
    }

    fn spawn(&self, work: Work) -> Result<Task, Error> {
        if self.in_child { self.spawn_child(work) } else { self.spawn_thread(work) }
    }

    fn spawn_in_child(&self, work: ChildWork<'_>) -> Result<Task, Error> {
        self.spawn_child(work)
    }

    fn settle(&self) {
        if self.check_owner().is_ok() {
            self.service.settle();
        }
    }

    fn statistics(&self) -> Statistics {
        // A child knows of none.
        self.check_owner().map(|()| self.service.statistics()).unwrap_or_default()
    }
}

/// A snapshot of this process's, which ends when this is dropped.
struct Mapping<R: Region> {
    service: Arc<Service<R>>,
    id: SnapshotId,
    /// The process that took it: in a child, nobody unlocks the region's locks, and the snapshot is the parent's.
    owner: u32,
}

impl<R: Region> Kept for Mapping<R> {
    fn is_whole(&self) -> bool {
        self.service.is_whole(&self.id)
    }

    fn first_changed(&self, since: u64, bytes: Range<usize>) -> Option<Range<usize>> {
        if since >> 32 != u64::from(self.id.era) {
            // Epochs of another era tell nothing.
            return (!bytes.is_empty()).then_some(bytes);
        }
        let pages =
            self.service.first_changed(&self.id, since as u32, bytes.start / PAGE..bytes.end / PAGE)?;
        Some(pages.start * PAGE..pages.end * PAGE)
    }
}

impl<R: Region> Drop for Mapping<R> {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            // SAFETY: the view is gone with the snapshot's last handle.
            unsafe { self.service.end(self.id) };
        }
    }
}

/// A task's life. Its snapshot has ended when this returns.
fn run(snapshot: Snapshot, work: Work) -> Result<Vec<u8>, Error> {
    let result = catch_unwind(AssertUnwindSafe(|| work(&snapshot)));
    let bytes = result.map_err(|_| Error::Task("it panicked".into()))?;
    snapshot.check()?;
    Ok(bytes)
}

struct Thread(JoinHandle<Result<Vec<u8>, Error>>);

impl Completion for Thread {
    fn join(self: Box<Self>) -> Result<Vec<u8>, Error> {
        self.0.join().unwrap_or_else(|_| Err(Error::Task("it panicked".into())))
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd;

    #[test]
    fn numbers_that_begin_anew_make_everything_changed_and_stay_ascending() {
        let shape = Shape {
            bytes: 4 * PAGE,
            reserve: 4 * PAGE,
            huge_pages: false,
            in_child: false,
            at_once: 1,
            track_changes: true,
            ahead: 0,
            copiers: 0,
        };
        let mapped = match Mapped::<uffd::Region>::new(shape) {
            Err(Error::Unavailable { engine, reason }) => {
                println!("skipped: the {engine} engine does not work here: {reason}");
                return;
            }
            mapped => mapped.unwrap(),
        };
        mapped.service.set_epoch(u32::MAX - 2);
        let mut epochs = Vec::new();
        let mut bookmarks: Vec<Bookmark> = Vec::new();
        for number in 0..4 {
            let snapshot = mapped.snapshot().unwrap();
            epochs.push(snapshot.epoch());
            // Nothing is written. So nothing has changed since a snapshot of the same era.
            let changed = bookmarks.iter().map(|earlier| {
                snapshot.changed_since(earlier).unwrap().map(|run| run.len() / PAGE).sum::<usize>()
            });
            let expected: &[usize] = [&[][..], &[0], &[4, 4], &[4, 4, 0]][number];
            assert_eq!(changed.collect::<Vec<_>>(), expected);
            bookmarks.push(snapshot.bookmark().unwrap());
        }
        assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    }
}
