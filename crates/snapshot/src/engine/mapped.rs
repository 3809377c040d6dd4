//! Memory files, of which a snapshot is another mapping: see [`crate::uffd`] and [`crate::remap`]. Here a region of
//! theirs becomes an engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fork::{Child, last_error, pipe, run_and_exit};
use super::{Engine, Kind, Shape, Statistics, Work};
use crate::running::{Snapshot, Task};
use crate::uffd::{Options, SnapshotId};
use crate::{Error, PAGE, View, remap, uffd};

/// A region with its threads.
pub(crate) trait Region: Send + Sync + Sized + 'static {
    /// What stands still from before a `fork` until after it.
    type Frozen<'a>;

    const KIND: Kind;

    fn make(options: Options) -> Result<Self, Error>;
    fn base(&self) -> usize;
    fn pages(&self) -> usize;
    fn snapshot(&self) -> Result<SnapshotId, Error>;
    /// Ends a snapshot and says whether it was whole.
    ///
    /// # Safety
    /// Nobody reads it any more.
    unsafe fn end(&self, id: SnapshotId) -> bool;
    fn freeze(&self) -> Result<Self::Frozen<'_>, Error>;
    fn cancel(frozen: Self::Frozen<'_>);
    fn thaw(frozen: Self::Frozen<'_>) -> u32;
    /// # Safety
    /// This is the child of a `fork` that followed [`Self::freeze`] immediately.
    unsafe fn map_in_child(frozen: Self::Frozen<'_>) -> Result<(), Error>;
    fn settle(&self);
    fn statistics(&self) -> Statistics;
}

/// What both kinds of regions call alike.
macro_rules! the_same {
    ($of:ident) => {
        type Frozen<'a> = $of::Frozen<'a>;

        fn make(options: Options) -> Result<Self, Error> {
            let service = Self::new($of::Region::new(options)?);
            service.start_threads()?;
            Ok(service)
        }

        fn base(&self) -> usize {
            (**self).base()
        }

        fn pages(&self) -> usize {
            (**self).pages()
        }

        fn snapshot(&self) -> Result<SnapshotId, Error> {
            (**self).snapshot()
        }

        fn freeze(&self) -> Result<Self::Frozen<'_>, Error> {
            (**self).freeze()
        }

        fn cancel(frozen: Self::Frozen<'_>) {
            frozen.cancel();
        }

        fn thaw(frozen: Self::Frozen<'_>) -> u32 {
            frozen.thaw()
        }

        unsafe fn map_in_child(frozen: Self::Frozen<'_>) -> Result<(), Error> {
            // SAFETY: as the caller says.
            unsafe { frozen.map_in_child() }
        }

        fn settle(&self) {
            (**self).settle();
        }
    };
}

impl Region for uffd::Service {
    the_same!(uffd);

    const KIND: Kind = Kind::Uffd;

    unsafe fn end(&self, id: SnapshotId) -> bool {
        // SAFETY: as the caller says.
        unsafe { (**self).end(id) }
    }

    fn statistics(&self) -> Statistics {
        let of = (**self).statistics();
        Statistics {
            snapshots: of.snapshots,
            active: of.active,
            faults: of.faults,
            pages_copied: of.pages_copied,
            pages_armed_at_snapshots: of.armed_at_snapshots,
            pages_armed_ahead: of.armed_ahead,
            ..Statistics::default()
        }
    }
}

impl Region for remap::Service {
    the_same!(remap);

    const KIND: Kind = Kind::Remap;

    unsafe fn end(&self, id: SnapshotId) -> bool {
        // SAFETY: as the caller says.
        unsafe { (**self).end(id) };
        true
    }

    fn statistics(&self) -> Statistics {
        let of = (**self).statistics();
        Statistics {
            snapshots: of.snapshots,
            active: of.active,
            pages_copied: of.folded,
            instantaneous: of.instantaneous,
            ..Statistics::default()
        }
    }
}

pub(crate) struct Mapped<R> {
    /// Shared with the tasks in this process.
    service: Arc<R>,
    in_child: bool,
}

impl<R: Region> Mapped<R> {
    pub(crate) fn new(shape: Shape) -> Result<Self, Error> {
        let options = Options { bytes: shape.bytes, base: None, huge_pages: shape.huge_pages, claimed: true };
        Ok(Self { service: Arc::new(R::make(options)?), in_child: shape.in_child })
    }

    fn home(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.service.base())
    }

    fn spawn_thread(&self, work: Work) -> Result<Snapshot, Error> {
        let id = self.service.snapshot()?;
        let pause = Duration::from_nanos(id.pause_ns);
        let held = Held { service: self.service.clone(), id: Some(id) };
        let thread = std::thread::Builder::new().name("bedplate-view".into()).spawn(move || held.run(work));
        let thread = thread.map_err(|error| Error::System {
            what: "starting the task's thread",
            source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        })?;
        Ok(Snapshot::new(Box::new(Thread(thread)), id.epoch.into(), pause))
    }

    fn spawn_child(&self, work: Work) -> Result<Snapshot, Error> {
        let (read, write) = pipe()?;
        let begin = Instant::now();
        let frozen = self.service.freeze()?;
        // SAFETY: nothing in between touches the region; the child runs the work and ends without returning.
        match unsafe { libc::fork() } {
            -1 => {
                let source = last_error();
                R::cancel(frozen);
                Err(Error::System { what: "fork", source })
            }
            0 => {
                // SAFETY: the child of the fork above.
                let mapped = unsafe { R::map_in_child(frozen) };
                drop(read);
                let work = match mapped {
                    Ok(()) => work,
                    Err(error) => Box::new(move |_: &View<'_>| -> Vec<u8> { panic!("{error}") }) as Work,
                };
                // SAFETY: the child's mapping, which nobody else changes.
                let view = unsafe { View::new(self.home(), self.service.pages() * PAGE, self.home()) };
                run_and_exit(work, &view, &write)
            }
            pid => {
                let epoch = R::thaw(frozen);
                let pause = begin.elapsed();
                Ok(Snapshot::new(Box::new(Child::new(pid, read, None)), epoch.into(), pause))
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

    fn spawn(&self, work: Work) -> Result<Snapshot, Error> {
        if self.in_child { self.spawn_child(work) } else { self.spawn_thread(work) }
    }

    fn settle(&self) {
        self.service.settle();
    }

    fn statistics(&self) -> Statistics {
        self.service.statistics()
    }
}

/// A snapshot that ends when this does.
struct Held<R: Region> {
    service: Arc<R>,
    id: Option<SnapshotId>,
}

impl<R: Region> Held<R> {
    fn run(mut self, work: Work) -> Result<Vec<u8>, Error> {
        let base = self.id.map_or(0, |id| id.base);
        let home = std::ptr::with_exposed_provenance(self.service.base());
        // SAFETY: the snapshot's mapping, which stays until the view is gone and does not change.
        let view =
            unsafe { View::new(std::ptr::with_exposed_provenance(base), self.service.pages() * PAGE, home) };
        let result = catch_unwind(AssertUnwindSafe(|| work(&view)));
        match result {
            Err(_) => Err(Error::Task("it panicked".into())),
            Ok(_) if !self.end() => Err(Error::Torn),
            Ok(bytes) => Ok(bytes),
        }
    }

    /// Ends it, and says whether it was whole.
    fn end(&mut self) -> bool {
        // SAFETY: the view, if there ever was one, is not used any more.
        self.id.take().is_some_and(|id| unsafe { self.service.end(id) })
    }
}

impl<R: Region> Drop for Held<R> {
    fn drop(&mut self) {
        self.end();
    }
}

struct Thread(JoinHandle<Result<Vec<u8>, Error>>);

impl Task for Thread {
    fn join(self: Box<Self>) -> Result<Vec<u8>, Error> {
        self.0.join().unwrap_or_else(|_| Err(Error::Task("it panicked".into())))
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}
